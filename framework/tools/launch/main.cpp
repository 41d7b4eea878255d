// `vernier launch`: trains with several processes on one machine or on each of several, and starts them again after a
// failure.
#include <toml++/toml.h>
#include <unistd.h>
#include <vernier/cores.h>
#include <vernier/launchers.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <regex>
#include <sstream>

#include "common/free_ports.h"
#include "common/run_files.h"
#include "common/verb.h"
#include "local_ranks.h"
#include "run_folder_watch.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using vernier::Refused;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier launch -n RANKS [OPTION]... FILE... [OPTION OF TRAIN]...

Trains with several processes on this machine. Each is a rank, and is called as `vernier train FILE...` is. If the
configuration has no [distributed] table, it gets one with use = "ddp". Rank 0 shows the run; the warnings and errors of
the others are lines that begin with [rank 1]. If a rank fails, all ranks are ended, and the first one that failed is
named. Ctrl-C stops all ranks after the same step, with a checkpoint; a second Ctrl-C kills them.

With --nodes, each of several machines calls this program, with its own --node-rank, and their ranks train together. In
pods of Kubeflow Trainer, and on other clusters whose variables name the machines, these options are not needed.

  -n, --ranks RANKS    the number of processes on this machine, from 1 to 1024
  --nodes NUMBER       the number of machines; each starts as many ranks
  --node-rank NUMBER   which of the machines this one is, from 0
  --address HOST:PORT  where the ranks meet: machine 0, and a port that is free there (29500 if none is given)
  --log-dir FOLDER     what a rank prints goes to the files rank-0.log, rank-1.log, ... in FOLDER
  --restarts NUMBER    starts all ranks again after a failure, at most so often; they go on from the newest checkpoint
  --elastic RANKS      each restart has one rank less than the last attempt, but at least so many

The exit code is that of the first rank that failed, or 128 + n if signal n killed it.
)";

constexpr int most_ranks = 1024, most_nodes = 65536, most_restarts = 1'000'000;
// Exit codes after which another attempt would end alike: of the configuration, of a plugin, of a program that is not
// there.
constexpr int lasting_failures[] = {2, 3, 127};

// The machines of a run: each has a launcher of its own, which starts its share of the ranks.
struct Nodes {
  int count = 1, own = 0;
  // The place where the ranks meet, if there are several machines.
  std::string address = {}, port = {};

  bool are_several() const { return count > 1; }
  // The words of a command that starts this machine's launcher again.
  std::string words() const {
    if (!are_several()) return "";
    return " --nodes " + std::to_string(count) + " --node-rank " + std::to_string(own) + " --address " + address + ":" +
           port;
  }
};

struct Plan {
  int ranks = 0;  // the number of processes on this machine
  int restarts = 0, least_ranks = 0;
  Nodes nodes;
  fs::path log_folder;
  Words words;  // words of `vernier train`, after the verb
};

// The parts of the merged configuration that the launcher needs.
struct Configuration {
  bool has_distributed = false, has_threads = false, resumes = false;
  fs::path output;  // output folder of a new run; its number may come after it
};

// Returns -1 for a text that is not a number.
int number_of(const std::string& text) {
  const bool is_number = !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoi(text) : -1;
}

std::string in_environment(const char* names, const std::string& otherwise = "") {
  const auto name = vernier::set_variable(names);
  return name.empty() ? otherwise : std::getenv(name.c_str());
}

// True for variables that name machines, on each of which a program may start several processes. RANK and WORLD_SIZE
// without LOCAL_RANK are of pods.
bool names_machines(const vernier::Launched& launched) {
  if (launched.is("torchrun")) return vernier::set_variable(launched.launcher->local_rank).empty();
  return *launched.launcher->local_rank == '\0' && *launched.launcher->size != '\0';
}

Nodes nodes_in_environment() {
  const auto launched = vernier::launched_as_one_of_several();
  if (launched.launcher == nullptr) return {};
  const auto started = vernier::started_as_one_of_several();
  Nodes nodes{.count = number_of(launched.size), .own = number_of(launched.rank)};
  if (!names_machines(launched) || nodes.own < 0 || nodes.own >= nodes.count) {
    throw Refused(started +
                  ", and each of them would start ranks of its own; call `vernier train` instead, with --set "
                  "distributed.use=ddp, or with --set distributed.use=none to train each alone");
  }
  nodes.address = in_environment(launched.launcher->address, launched.first);
  nodes.port = in_environment(launched.launcher->port, std::to_string(vernier::usual_port));
  if (nodes.address.empty()) {
    throw Refused(started + ", and nothing says where the ranks meet; set MASTER_ADDR to the machine of rank 0");
  }
  return nodes;
}

// Machines and their place: of the options, or else of the variables that a cluster sets.
Nodes read_nodes(const po::variables_map& given) {
  const bool has_rank = given.count("node-rank") != 0, has_address = given.count("address") != 0;
  if (given.count("nodes") == 0) {
    if (has_rank || has_address) throw Refused("--node-rank and --address belong to --nodes NUMBER; say that too");
    return nodes_in_environment();
  }
  Nodes nodes{.count = vernier::number_in(given, "nodes", 1, most_nodes)};
  if (has_rank) nodes.own = vernier::number_in(given, "node-rank", 0, nodes.count - 1);
  if (!nodes.are_several()) return nodes;
  if (!has_rank) throw Refused("say which machine this is: --node-rank 0 on the first, 1 on the next");
  if (!has_address) throw Refused("say where the ranks meet, the same on each machine: --address FIRST-MACHINE:29500");
  const auto text = given["address"].as<std::string>();
  std::smatch parts;
  static const std::regex form(R"((?:\[([^\]]+)\]|([^:]+)|([0-9a-fA-F:]*:[0-9a-fA-F:]*:[^:]*))(?::([0-9]{1,5}))?)");
  const bool has_form = std::regex_match(text, parts, form);
  nodes.address = has_form ? parts.str(1) + parts.str(2) + parts.str(3) : "";
  nodes.port = has_form && parts[4].matched ? parts.str(4) : std::to_string(vernier::usual_port);
  if (const int port = number_of(nodes.port); !has_form || port < 1 || port > 65535) {
    throw Refused("--address " + text + ": give a machine and a port from 1 to 65535, as in --address 10.0.0.4:29500");
  }
  return nodes;
}

Plan read_plan(const po::variables_map& given, Words words) {
  Plan plan;
  plan.words = std::move(words);
  plan.nodes = read_nodes(given);
  int of_cluster = -1;
  for (const auto& launcher : vernier::launchers)
    of_cluster = std::max(of_cluster, number_of(in_environment(launcher.each)));
  if (given.count("ranks") != 0) {
    plan.ranks = vernier::number_in(given, "ranks", 1, most_ranks);
  } else if (given.count("nodes") == 0 && of_cluster > 0 && of_cluster <= most_ranks) {
    plan.ranks = of_cluster;
  } else {
    throw Refused("say how many ranks, as in `vernier launch -n 2 run.toml`");
  }
  plan.least_ranks = plan.ranks;
  if (plan.words.empty()) throw Refused("name a TOML file, as in `vernier launch -n 2 run.toml`");
  if (given.count("restarts") != 0) plan.restarts = vernier::number_in(given, "restarts", 0, most_restarts);
  if (given.count("elastic") != 0) {
    if (plan.restarts == 0) throw Refused("--elastic is for restarts; say --restarts NUMBER too");
    if (plan.nodes.are_several()) throw Refused("--elastic is for one machine, and these are several");
    plan.least_ranks = vernier::number_in(given, "elastic", 1, plan.ranks);
  }
  if (given.count("log-dir") != 0) {
    plan.log_folder = given["log-dir"].as<std::string>();
    std::error_code trouble;
    fs::create_directories(plan.log_folder, trouble);
    if (trouble) throw Refused("--log-dir " + plan.log_folder.string() + " cannot be made: " + trouble.message());
  }
  return plan;
}

bool is_resume(const std::string& word) {
  return word == "--resume" || word.starts_with("--resume=");
}

// `vernier config` writes the place of a value behind it: "use = "none"  # run.toml:3".
std::string place_of(const toml::node& value, const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  for (toml::source_index i = 0; i < value.source().begin.line; ++i) std::getline(lines, line);
  const auto comment = line.rfind("  # ");
  return comment == std::string::npos ? "" : line.substr(comment + 4) + ": ";
}

Configuration read_configuration(const std::string& text, const Words& words) {
  const auto table = toml::parse(text);
  Configuration found;
  const auto use = table["distributed"]["use"];
  if (use.value_or(std::string()) == "none") {
    throw Refused(place_of(*use.node(), text) + "[distributed] use is \"none\", which trains with one process; " +
                  "say \"ddp\", or leave the table out");
  }
  found.has_distributed = table.contains("distributed");
  found.has_threads = table["run"]["threads"].value_or(std::int64_t{0}) > 0;
  found.resumes = table["run"]["resume"].value_or(std::string()) == "auto";
  const auto file = std::ranges::find_if(words, [](const auto& word) { return fs::is_regular_file(word); });
  const auto name = table["run"]["name"].value_or(file == words.end() ? "" : fs::path(*file).stem().string());
  auto output = table["run"]["output"].value_or(std::string("runs/{name}"));
  if (const auto place = output.find("{name}"); place != std::string::npos) output.replace(place, 6, name);
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  found.output = output;
  return found;
}

bool is_quiet(const Plan& plan) {
  return std::ranges::find(plan.words, "--quiet") != plan.words.end();
}

// The threads of a rank: its share of the cores. 0 if the user has chosen a number.
std::int64_t threads_of_a_rank(const Plan& plan, const Configuration& configuration) {
  if (configuration.has_threads || std::getenv("OMP_NUM_THREADS") != nullptr) return 0;
  const auto cores = vernier::available_cores();
  const auto threads = std::max<std::int64_t>(1, cores / static_cast<std::int64_t>(plan.ranks));
  if (!is_quiet(plan)) {
    std::cerr << "vernier: " << plan.ranks << (plan.ranks == 1 ? " rank" : " ranks") << " with " << threads
              << (threads == 1 ? " thread" : " threads") << " each, of " << cores
              << " cores; [run] threads or OMP_NUM_THREADS sets another number\n";
  }
  return threads;
}

void report_nodes(const Plan& plan) {
  const auto& nodes = plan.nodes;
  if (!nodes.are_several() || is_quiet(plan)) return;
  const int first = nodes.own * plan.ranks;
  std::cerr << "vernier: node " << nodes.own << " of " << nodes.count << ": ranks " << first << " to "
            << first + plan.ranks - 1 << " of " << nodes.count * plan.ranks << ", which meet at " << nodes.address
            << ", port " << nodes.port << '\n';
}

std::string free_port() {
  const auto found = vernier::free_ports(1);
  if (found.empty()) throw Refused(std::string("this machine has no free port for the ranks: ") + std::strerror(errno));
  return std::to_string(found.front());
}

// The environment is that of torchrun (https://docs.pytorch.org/docs/2.11/elastic/run.html), where rank 0 serves the
// store.
std::vector<vernier::ChildSettings> commands_of(const Nodes& nodes, const Words& words, int ranks, int attempt,
                                                std::int64_t threads) {
  Words all = {vernier::program_beside_this(), "train"};
  all.insert(all.end(), words.begin(), words.end());
  const auto port = nodes.are_several() ? nodes.port : free_port();
  std::vector<vernier::ChildSettings> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    Words environment = {
        "RANK=" + std::to_string(nodes.own * ranks + rank),
        "LOCAL_RANK=" + std::to_string(rank),
        "WORLD_SIZE=" + std::to_string(nodes.count * ranks),
        "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
        "MASTER_ADDR=" + (nodes.are_several() ? nodes.address : "127.0.0.1"),
        "MASTER_PORT=" + port,
        "TORCHELASTIC_RESTART_COUNT=" + std::to_string(attempt),
        "VERNIER_LAUNCHED_AS=" + vernier::called_as() + " launch -n " + std::to_string(ranks) + nodes.words()};
    if (threads > 0) environment.push_back("OMP_NUM_THREADS=" + std::to_string(threads));
    commands.push_back({all, environment});
  }
  return commands;
}

// The folders in which vernier train, called with these words, looks for plugins first.
Words plugin_paths(const Words& words) {
  Words paths;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto beside = fs::path(words[i]).parent_path() / "plugins";
    std::error_code none;
    if (words[i].starts_with("--plugin-path=")) paths.push_back(words[i]);
    if (words[i] == "--plugin-path" && i + 1 < words.size()) paths.push_back("--plugin-path=" + words[i + 1]);
    if (fs::is_regular_file(words[i], none) && fs::is_directory(beside, none)) {
      paths.push_back("--plugin-path=" + beside.string());
    }
  }
  return paths;
}

// Returns whether there is a whole checkpoint, from which `--resume=FOLDER` goes on: the plugin that keeps them knows.
// stopped_by: the signal that came meanwhile, if one did.
bool has_checkpoint(const fs::path& run, const Words& words, int& stopped_by) {
  Words question = {"checkpoint", "list", run.string()};
  const auto paths = plugin_paths(words);
  question.insert(question.end(), paths.begin(), paths.end());
  vernier::Children children(vernier::program_beside_this());
  const bool has = children.run(question).status == 0;
  stopped_by = children.stopped_by();
  return has;
}

// The words of an attempt after one that trained in this folder; empty: nobody knows of a folder.
Words words_to_go_on(const Words& words, const fs::path& folder, int& stopped_by) {
  if (folder.empty() || !has_checkpoint(folder, words, stopped_by)) return words;
  Words all = words;
  std::erase_if(all, is_resume);
  all.push_back("--resume=" + folder.string());
  return all;
}

void report_failure(const vernier::RankEnd& end, const fs::path& log_folder) {
  std::cerr << "vernier: " << vernier::sentence_of(end);
  if (!log_folder.empty())
    std::cerr << "; see " << (log_folder / ("rank-" + std::to_string(end.rank) + ".log")).string();
  std::cerr << (end.last_lines.empty() ? "\n" : "; its last lines:\n");
  for (const auto& line : end.last_lines) std::cerr << "  " << line << '\n';
}

bool is_restarted(const vernier::RankEnd& end, int attempt, const Plan& plan, int stopped_by) {
  if (!vernier::is_failure(end) || stopped_by != 0 || plan.restarts == 0) return false;
  if (!end.was_killed && std::ranges::find(lasting_failures, end.status) != std::end(lasting_failures)) {
    std::cerr << "vernier: the ranks are not started again, since exit code " << end.status
              << " would come again: see the table of exit codes in docs/reference/command-line.md\n";
    return false;
  }
  if (attempt < plan.restarts) return true;
  std::cerr << "vernier: that was the last of " << plan.restarts + 1 << " attempts\n";
  return false;
}

void report_restart(int attempt, const Plan& plan, int ranks, const Words& words) {
  const bool goes_on = !words.empty() && is_resume(words.back());
  std::cerr << "vernier: attempt " << attempt + 1 << " of " << plan.restarts + 1 << ": " << ranks
            << (ranks == 1 ? " rank" : " ranks")
            << (plan.nodes.are_several() ? " on this machine, with [run] resume = \"auto\""
                : goes_on                ? " with " + words.back()
                                         : " from the beginning: no checkpoint exists yet")
            << '\n';
}

int train(const Plan& plan, Words words, const fs::path& output, std::int64_t threads) {
  vernier::LocalRanks ranks(std::cerr, {.log_folder = plan.log_folder,
                                        .line_begin = ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "",
                                        .first_rank = plan.nodes.own * plan.ranks});
  int count = plan.ranks;
  for (int attempt = 0;; ++attempt) {
    const vernier::RunFolderWatch watch(output);
    const auto end = ranks.run(commands_of(plan.nodes, words, count, attempt, threads));
    if (!end) return 0;
    if (vernier::is_failure(*end)) report_failure(*end, plan.log_folder);
    if (!is_restarted(*end, attempt, plan, ranks.stopped_by())) return end->status;
    int stopped_by = 0;
    if (!plan.nodes.are_several()) words = words_to_go_on(words, watch.locked_by(ranks.process_of(0)), stopped_by);
    if (stopped_by != 0) return 128 + stopped_by;
    count = std::max(plan.least_ranks, count - 1);
    report_restart(attempt + 1, plan, count, words);
  }
}

int launch(const po::variables_map& given, const Words& given_words) {
  const auto plan = read_plan(given, given_words);
  Words words = {"config"};
  words.insert(words.end(), plan.words.begin(), plan.words.end());
  vernier::Ended merged;
  {
    vernier::Children children(vernier::program_beside_this());
    merged = children.run(words);
    if (const int signal = children.stopped_by(); signal != 0) return 128 + signal;
  }
  if (merged.status != 0) {
    const std::string help = "see vernier config --help";
    const auto place = merged.err.find(help);
    if (place != std::string::npos) merged.err.replace(place, help.size(), "see vernier launch --help");
    std::cerr << merged.err;
    return merged.status;
  }
  const auto configuration = read_configuration(merged.out, plan.words);
  if (plan.nodes.are_several() && plan.restarts > 0 && !configuration.resumes) {
    throw Refused(
        "--restarts on several machines needs --set run.resume=auto, by which the launcher of each machine "
        "goes on from the same checkpoint");
  }
  words = plan.words;
  if (!configuration.has_distributed) words.insert(words.end(), {"--set", "distributed.use=ddp"});
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");  // a torchrun above this program sets it
  report_nodes(plan);
  return train(plan, words, configuration.output, threads_of_a_rank(plan, configuration));
}

// Returns true if a word is one of the known options, or of help. Sets has_value_behind if its value is the next word.
bool is_own(const std::string& word, const po::options_description& known, bool& has_value_behind) {
  const auto name = word.substr(0, word.find('='));
  const bool is_long = name.starts_with("--") && known.find_nothrow(name.substr(2), /*approx=*/false) != nullptr;
  has_value_behind = word == "-n" || (is_long && name.size() == word.size());
  return word == "--help" || word == "-h" || is_long ||
         (word.starts_with("-n") && word.find_first_not_of("0123456789-", 2) == std::string::npos);
}

}  // namespace

// All other words are those of `vernier train`.
int main(int argc, char** argv) {
  po::options_description known;
  known.add_options()("ranks,n", po::value<int>())("nodes", po::value<int>())("node-rank", po::value<int>())(
      "address", po::value<std::string>())("log-dir", po::value<std::string>())("restarts", po::value<int>())(
      "elastic", po::value<int>());
  std::vector<char*> own = {argv[0]};
  Words others;
  for (int i = 1; i < argc; ++i) {
    bool has_value_behind = false;
    const auto word = vernier::with_hyphens(argv[i]);
    if (!is_own(word, known, has_value_behind)) {
      others.push_back(word);
      continue;
    }
    own.push_back(argv[i]);
    if (has_value_behind && i + 1 < argc) own.push_back(argv[++i]);
  }
  const vernier::Verb verb = {"launch", usage, known,
                              [&](const po::variables_map& given) { return launch(given, others); }};
  const bool completes = argc > 1 && argv[1] == std::string("complete");
  if (completes) return vernier::print_completions(verb, argc - 1, argv + 1);
  return vernier::call_verb(verb, static_cast<int>(own.size()), own.data());
}
