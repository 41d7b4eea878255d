// `vernier jobs`: the client of `vernier serve`.
#include <vernier/json_in.h>

#include <toml++/toml.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <thread>

#include "common/child.h"
#include "common/run_files.h"
#include "common/text/control_characters.h"
#include "common/text/text_table.h"
#include "common/toml_text.h"
#include "common/verb.h"
#include "server.h"

namespace {

namespace po = boost::program_options;
using jobs::Json;
using jobs::Server;
using vernier::Refused;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier jobs COMMAND [OPTION]...

Gives jobs to a `vernier serve`, and says what becomes of them. See docs/guides/service.md.

  submit FILE… [--set KEY=VALUE]…   puts a job into the queue: the TOML files, merged here as vernier train merges them.
                                    Files and folders that [task] names here become whole paths
  list [--state STATE] [--user NAME] [--limit N] [--json]
                                    jobs, the newest first
  show ID [--json]                  one job, and the newest numbers of its run
  logs ID [--follow]                what it prints
  cancel ID                         ends it; with a checkpoint, if it runs
  retry ID                          puts one that failed or was cancelled back into the queue, from its last checkpoint
  remove ID                         removes one that is over, with its files
  pause ID | resume ID              its run waits after the current step, and goes on
  save ID | validate ID | stop ID   its run saves itself, validates, or ends as done
  swap ID ROLE=PLUGIN… [ROLE.KEY=VALUE]…
                                    puts other plugins into precision, scaler or accumulation
  interval ID MONITOR STEPS         a monitor of its run looks every so many steps

options of submit
  --name NAME            for lists; the first FILE's
  --cores N, --gpus N    that it has for itself: 1, 0
  --priority N           from -100 to 100; larger ones come first
  --time-limit SECONDS   of each attempt; then it is ended with a checkpoint, and has failed
  --memory-limit BYTES   most memory
  --retries N            after a failure it goes on from its last checkpoint, at most so often
  --key TEXT             the same key again is the same job, and no second one
  --follow               prints its log until it is over; the exit code is 1 where it has not ended as done

the server
  --folder FOLDER        that of a server on this machine: its address, and its token of the scope control
  --server URL           http://127.0.0.1:8080, or $VERNIER_SERVER
  --token-file FILE      ~/.config/vernier/token, or $VERNIER_TOKEN_FILE; a file that only you may read
  --certificate FILE     whom to trust as the server's signer, or $VERNIER_CERTIFICATE; those of the system
)";

struct Call {
  const po::variables_map& given;
  std::string name;  // the command's name
  Words words;       // after it
  const Server& server;

  std::string target(const std::string& rest = "") const {
    const bool is_id =
        !words.empty() && !words[0].empty() && words[0].find_first_not_of("0123456789") == std::string::npos;
    if (!is_id) throw Refused("name a job by its number, as `vernier jobs list` prints it");
    return "/v1/jobs/" + words[0] + rest;
  }
  bool has(const char* option) const { return given.count(option) != 0; }
};

std::string text_in(const Json& job, const char* key) {
  const auto& value = job.at(key);
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "" : vernier::json_text(value);
}

// "2026-11-23 14:05:09"
std::string time_in(const Json& job, const char* key) {
  auto text = text_in(job, key).substr(0, 19);
  std::ranges::replace(text, 'T', ' ');
  return text;
}

// Prints what is new of a log. Returns the job's state.
std::string print_log(const Call& call, std::int64_t& offset) {
  for (;;) {
    const auto log = call.server.get_again(call.target("/log?offset=" + std::to_string(offset)));
    const auto text = log.at("text").get<std::string>();
    std::cout << vernier::without_control_characters(text, "\n\t\r") << std::flush;  // a model may have printed it
    offset = log.at("next").get<std::int64_t>();
    if (text.empty()) return log.at("state").get<std::string>();
  }
}

int follow(const Call& call) {
  std::int64_t offset = 0;
  for (;;) {
    const auto state = print_log(call, offset);
    if (state != "queued" && state != "running") return state == "done" ? 0 : 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
}

int logs(const Call& call) {
  if (call.has("follow")) return follow(call);
  std::int64_t offset = 0;
  print_log(call, offset);
  return 0;
}

// Paths of the task are those of this folder, as for vernier train, and the server reads them from elsewhere: a text
// that names a file or a folder here becomes its whole path. "waves.csv:x,y" names one, too.
void make_whole(toml::node& node, const std::string& where) {
  if (auto* array = node.as_array()) {
    for (auto& each : *array) make_whole(each, where);
  }
  auto* text = node.as_string();
  if (text == nullptr || text->get().empty() || text->get().starts_with('/')) return;
  const auto colon = std::min(text->get().find(':'), text->get().size());
  std::error_code trouble;
  const auto whole = std::filesystem::canonical(text->get().substr(0, colon), trouble);
  if (trouble) return;
  const auto path = whole.string() + text->get().substr(colon);
  std::cerr << "vernier: " << where << ": " << text->get() << " is " << path << std::endl;
  *text = path;
}

// The files and --set together, without the places of values.
std::string merged(const Call& call) {
  Words words = {"config"};
  words.insert(words.end(), call.words.begin(), call.words.end());
  for (const auto& set : vernier::words_in(call.given, "set")) words.insert(words.end(), {"--set", set});
  vernier::Ended config;
  {
    vernier::Children children(vernier::program_beside_this());
    config = children.run(words);
  }
  if (config.status != 0) {
    auto text = config.err;
    while (text.ends_with('\n')) text.pop_back();
    throw Refused(text.starts_with("vernier: ") ? text.substr(9) : text);
  }
  auto table = toml::parse(config.out);
  if (auto* task = table["task"].as_table()) {
    for (auto&& [key, value] : *task) {
      if (key != "use") make_whole(value, "task." + std::string(key.str()));
    }
  }
  return vernier::toml_text(table);
}

int submit(const Call& call) {
  if (call.words.empty()) throw Refused("name a TOML file, as in `vernier jobs submit run.toml`");
  Json body = {{"config", merged(call)}, {"name", std::filesystem::path(call.words[0]).stem().string()}};
  for (const char* option : {"name", "key"}) {
    if (call.has(option)) body[option] = call.given[option].as<std::string>();
  }
  for (const auto& [option, key] : {std::pair("cores", "cores"), std::pair("gpus", "gpus"),
                                    std::pair("priority", "priority"), std::pair("time-limit", "time_limit"),
                                    std::pair("memory-limit", "memory_limit"), std::pair("retries", "retries")}) {
    if (call.has(option)) body[key] = call.given[option].as<std::int64_t>();
  }
  const auto job = call.server.post("/v1/jobs", body);
  const auto id = text_in(job, "id");
  std::cout << "job " << id << " is " << text_in(job, "state") << std::endl;
  return call.has("follow") ? follow({call.given, "logs", {id}, call.server}) : 0;
}

int list(const Call& call) {
  const auto limit = call.has("limit") ? call.given["limit"].as<std::int64_t>() : 50;
  auto target = "/v1/jobs?limit=" + std::to_string(limit);
  for (const char* filter : {"state", "user"}) {
    if (call.has(filter)) target += std::string("&") + filter + "=" + call.given[filter].as<std::string>();
  }
  const auto answer = call.server.get(target);
  vernier::TextRows rows = {{"id", "name", "user", "state", "attempt", "cores", "gpus", "created (UTC)", "error"}};
  for (const auto& job : answer.at("jobs")) {
    if (call.has("json")) std::cout << vernier::json_text(job) << '\n';
    rows.push_back({text_in(job, "id"), text_in(job, "name"), text_in(job, "user"), text_in(job, "state"),
                    text_in(job, "attempt"), text_in(job, "cores"), text_in(job, "gpus"), time_in(job, "created"),
                    vernier::without_control_characters(text_in(job, "error").substr(0, 100))});
  }
  if (call.has("json")) return 0;
  std::cout << (rows.size() == 1 ? "there are no jobs\n" : vernier::aligned(rows));
  return 0;
}

int show(const Call& call) {
  const auto job = call.server.get(call.target());
  if (call.has("json")) {
    std::cout << vernier::json_text(job) << '\n';
    return 0;
  }
  vernier::TextRows rows;
  for (const auto& [key, value] : job.items()) {
    if (key != "config" && !text_in(job, key.c_str()).empty()) rows.push_back({key, text_in(job, key.c_str())});
  }
  const auto newest = call.server.get(call.target("/metrics"));
  for (const auto& metric : newest.at("metrics")) {
    rows.push_back({text_in(metric, "name"), text_in(metric, "value") + " at step " + text_in(metric, "step")});
  }
  std::cout << vernier::aligned(rows) << "\n" << text_in(job, "config");
  return 0;
}

// Gives the run a command, which it answers after its step.
int give(const Call& call, const Json& body) {
  const auto answer = call.server.post(call.target("/commands"), body);
  const auto state = answer.value("state", "waiting");
  if (state == "waiting") {
    std::cout << "the run takes the command after its step\n";
    return 0;
  }
  std::cout << "after step " << text_in(answer, "step") << ": " << text_in(answer, "answer") << '\n';
  return state == "done" ? 0 : 1;
}

int swap(const Call& call) {
  Json roles = Json::object();
  for (std::size_t i = 1; i < call.words.size(); ++i) {
    const auto& word = call.words[i];
    const auto equals = word.find('='), dot = word.substr(0, equals).find('.');
    if (equals == word.npos) throw Refused(word + ": say ROLE=PLUGIN or ROLE.KEY=VALUE, as in precision=bf16");
    const auto role = word.substr(0, std::min(dot, equals)), value = word.substr(equals + 1);
    const auto key = dot == word.npos ? "use" : word.substr(dot + 1, equals - dot - 1);
    const auto parsed = vernier::json_in<Json>(value);
    roles[role][key] = key == "use" || parsed.is_discarded() ? Json(value) : parsed;
  }
  if (roles.empty()) throw Refused("say what to swap, as in `vernier jobs swap 3 precision=bf16`");
  return give(call, {{"command", "swap"}, {"roles", roles}});
}

int interval(const Call& call) {
  const auto steps = call.words.size() == 3 ? vernier::json_in<Json>(call.words[2]) : Json();
  if (!steps.is_number_integer())
    throw Refused("say which monitor, and how often, as in `vernier jobs interval 3 jsonl 10`");
  return give(call, {{"command", "set_interval"}, {"monitor", call.words[1]}, {"every", steps}});
}

// pause, resume, save, validate, stop
int steer(const Call& call) {
  return give(call, {{"command", call.name}});
}

// cancel, retry
int act(const Call& call) {
  const auto job = call.server.post(call.target("/" + call.name));
  std::cout << "job " << text_in(job, "id") << " is "
            << (job.at("is_ending") == true ? "ending" : text_in(job, "state")) << '\n';
  return 0;
}

int remove(const Call& call) {
  const auto job = call.server.remove(call.target());
  std::cout << "job " << text_in(job, "id") << " is removed\n";
  return 0;
}

int run_command(const po::variables_map& given) {
  static const std::map<std::string, int (*)(const Call&)> commands = {
      {"submit", submit},  {"list", list},     {"show", show},   {"logs", logs},        {"cancel", act},
      {"retry", act},      {"remove", remove}, {"pause", steer}, {"resume", steer},     {"save", steer},
      {"validate", steer}, {"stop", steer},    {"swap", swap},   {"interval", interval}};
  auto words = vernier::words_of(given);
  if (words.empty()) throw Refused("say what to do, as in `vernier jobs list`; see vernier jobs --help");
  const auto name = words[0];
  words.erase(words.begin());
  const auto found = commands.find(name);
  if (found == commands.end()) throw Refused("vernier jobs has no command " + name + "; see vernier jobs --help");
  const bool takes_more = name == "submit" || name == "swap" || name == "interval";
  const std::size_t most = name == "list" ? 0 : 1;
  if (!takes_more && words.size() > most) throw Refused("vernier jobs " + name + ": " + words[most] + " is too much");
  const Server server(given);
  return found->second({given, name, words, server});
}

}  // namespace

int jobs::call_jobs(int argc, char** argv) {
  po::options_description known;
  const auto text = [] { return po::value<std::string>(); };
  const auto number = [] { return po::value<std::int64_t>(); };
  known.add_options()("set", po::value<Words>())("name", text())("key", text())("cores", number())("gpus", number())(
      "priority", number())("time-limit", number())("memory-limit", number())("retries", number())("follow", "")(
      "state", text())("user", text())("limit", number())("json", "");
  Server::add_options(known);
  return vernier::call_verb({"jobs", usage, known, run_command}, argc, argv);
}
