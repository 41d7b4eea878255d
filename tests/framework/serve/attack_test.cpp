// Faults that operators and attackers found: full disks, killed jobs, journals that do not fit, tokens, load.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>
#include <list>
#include <optional>
#include <random>
#include <set>

#include "job_server.h"
#include "long_form.h"
#include "program.h"
#include "service/audit/audit.h"
#include "service/queue/queue.h"
#include "service/queue/reach.h"

namespace attack_test {

using namespace job_server;

namespace {

// A queue in this process, whose jobs are `true` at once.
struct OwnQueue {
  explicit OwnQueue(const fs::path& folder) {
    settings.folder = folder;
    settings.program = "/bin/true";
    settings.attempt_program = VERNIER_BINARY_DIR "/vernier-serve";
    settings.limits.readable = serve::places_of_system();
  }
  serve::QueueSettings settings;
};

serve::JobRequest request_named(const std::string& name) {
  serve::JobRequest request;
  request.user = "ada";
  request.name = name;
  request.config = "[run]\nsteps = 1\n";
  return request;
}

std::int64_t add(serve::Queue& queue, const std::string& name) {
  bool is_new = false;
  return queue.submit(request_named(name), is_new).id;
}

bool look_until_over(serve::Queue& queue, std::int64_t id) {
  return wait_until([&] {
    queue.look();
    return queue.find(id).is_over();
  });
}

int count_in(const fs::path& folder) {
  std::error_code none;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder, none)) count += entry.path().empty() ? 0 : 1;
  return count;
}

// A job that is done may still be ending. The server asks it to, and wants to be started again.
void open_when_jobs_have_ended(std::optional<serve::Queue>& queue, const serve::QueueSettings& settings) {
  for (int i = 0; !queue; ++i) {
    try {
      queue.emplace(settings);
    } catch (const std::exception& error) {
      if (i == 100 || std::string(error.what()).find("start again when it has") == std::string::npos) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

}  // namespace

TEST_CASE("attack: a journal that was removed, emptied or restored gives no job another one's folder or result") {
  for (const char* damage : {"removed", "emptied", "restored"}) {
    CAPTURE(damage);
    const TemporaryFolder folder;
    const OwnQueue own(folder.path());
    const auto journal = folder.path() / "journal.sqlite";
    std::string backup;
    {
      serve::Queue queue(own.settings);
      REQUIRE(look_until_over(queue, add(queue, "old 1")));
    }
    backup = read_text(journal);
    {
      serve::Queue queue(own.settings);
      REQUIRE(look_until_over(queue, add(queue, "old 2")));
      std::ofstream(folder.path() / "jobs/2/result") << "old";
    }
    for (const char* file : {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"})
      fs::remove(folder.path() / file);
    if (damage == std::string("emptied")) std::ofstream{journal};
    if (damage == std::string("restored")) std::ofstream(journal, std::ios::binary) << backup;
    std::optional<serve::Queue> opened;
    open_when_jobs_have_ended(opened, own.settings);
    auto& queue = *opened;
    CHECK(fs::exists(folder.path() / "jobs/1") == (damage == std::string("restored")));
    CHECK(!fs::exists(folder.path() / "jobs/2"));
    CHECK(count_in(folder.path() / "set-aside") == (damage == std::string("restored") ? 1 : 2));
    const auto id = add(queue, "new");
    CHECK(id == 3);
    CHECK(queue.find(id).state == serve::State::queued);
    REQUIRE(look_until_over(queue, id));
    CHECK(queue.find(id).state == serve::State::done);
  }
}

TEST_CASE("attack: a damaged journal is refused in a line, or all of its jobs are there") {
  const TemporaryFolder whole;
  {
    const OwnQueue own(whole.path());
    serve::Queue queue(own.settings);
    for (int i = 0; i < 20; ++i) add(queue, "job " + std::to_string(i));
  }
  const auto bytes = read_text(whole.path() / "journal.sqlite");
  REQUIRE(bytes.size() > 4096);
  std::mt19937 random(1);
  int refused = 0, whole_again = 0;
  for (int i = 0; i < 50; ++i) {
    CAPTURE(i);
    auto damaged = bytes;
    const auto at = random() % bytes.size(), length = 1 + random() % 5000;
    if (i % 3 == 0) damaged.resize(at);
    for (std::size_t k = at; i % 3 == 1 && k < std::min(at + length, damaged.size()); ++k) damaged[k] = '\0';
    if (i % 3 == 2) damaged[at] = static_cast<char>(damaged[at] ^ (1 << (random() % 8)));
    const TemporaryFolder folder;
    folder.write("journal.sqlite", damaged);
    const OwnQueue own(folder.path());
    try {
      serve::Queue queue(own.settings);
      const auto jobs = queue.list({.before = 0, .limit = 1000, .state = "", .user = ""});
      whole_again += jobs.size() == 20 || jobs.empty() ? 1 : 0;  // an empty one is a new one
      for (const auto& job : jobs) queue.find(job.id);
      add(queue, "new");
    } catch (const std::exception& error) {
      const std::string text = error.what();
      CHECK(text.find('\n') == text.npos);
      refused += 1;
    }
  }
  MESSAGE(refused, " refused, ", whole_again, " whole");
  CHECK(refused + whole_again == 50);
}

TEST_CASE("attack: on a full disk jobs wait, say why, and go on when there is room") {
  const TemporaryFolder place;
  if (::mount("none", place.path().c_str(), "tmpfs", 0, "size=16m") != 0) {
    MESSAGE("skipped: a tmpfs cannot be mounted here");
    return;
  }
  const int moments = is_long() ? 50 : 5;
  {
    const auto folder = place.path() / "server";
    fs::create_directory(folder);
    const OwnQueue own(folder);
    serve::Queue queue(own.settings);
    std::mt19937 random(1);
    std::set<std::int64_t> ids;
    for (int moment = 0; moment < moments; ++moment) {
      CAPTURE(moment);
      for (int i = 0; i < 4; ++i) ids.insert(add(queue, "job"));
      {
        std::ofstream fill(place.path() / "fill", std::ios::binary);
        while (fill << std::string(65536, 'x') << std::flush) {
        }
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(random() % 300);
      while (std::chrono::steady_clock::now() < end) {
        try {
          queue.look();
        } catch (const std::exception&) {  // the server's loop looks again
        }
      }
      for (const auto id : ids) CHECK(queue.find(id).state != serve::State::failed);
      fs::remove(place.path() / "fill");
      for (const auto id : ids) CHECK(look_until_over(queue, id));
      for (const auto id : ids) CHECK(queue.find(id).state == serve::State::done);
      for (const auto id : ids) queue.remove(id);
      ids.clear();
    }
  }
  ::umount2(place.path().c_str(), MNT_DETACH);
}

TEST_CASE("attack: a training that is killed is queued again, a bounded number of times; one that crashes has failed") {
  JobServer server;
  const auto id = server.submit(takes(forever));
  for (int attempt = 1; attempt <= 4; ++attempt) {
    REQUIRE(wait_until([&] { return server.job(id).at("attempt") == attempt && server.state(id) == "running"; }));
    const auto folder = (server.path() / "jobs/1").string();
    REQUIRE(wait_until([&] {
      return signal_processes(SIGKILL, [&](const std::string&, const std::string& here) { return here == folder; }) > 0;
    }));
    wait_until([&] { return server.job(id).at("attempt") != attempt || server.state(id) != "running"; });
  }
  REQUIRE(server.waits_for(id, "failed"));
  CHECK(server.job(id).at("error") == "its process was killed or interrupted 4 times");
}

TEST_CASE("attack: no request switches the server's limits off") {
  JobServer server({"--time-limit", "1", "--grace", "1"});
  for (const Json& more : {Json{{"time_limit", 0}}, Json{{"time_limit", 0}, {"memory_limit", 0}}, Json::object()}) {
    const auto id = server.submit(takes(forever), more);
    REQUIRE(server.waits_for(id, "failed"));
    CHECK(server.job(id).at("error") == "it took longer than its limit of 1 s");
  }
}

TEST_CASE("attack: an event stream ends with its token, and a token file that others may read is noticed") {
  JobServer server;
  const Connection stream(server.port);
  stream.send(request_of(server.port, "GET", "/v1/events", {{"Authorization", "Bearer " + server.tokens.at("read")}}));
  CHECK(status_of(stream.read("retry: 2000\n\n")) == 200);
  fs::permissions(server.path() / "tokens", fs::perms::owner_all | fs::perms::others_read);
  const auto begun = std::chrono::steady_clock::now();
  stream.read();  // until it is closed
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(patience::limit(5)));
  CHECK(server.get("/v1/jobs").status == 401);
}

TEST_CASE("attack: clients without a good token do not keep out those with one") {
  JobServer server({"--requests-per-second", "100"});
  int good = 0, refused = 0;
  for (int i = 0; i < 60; ++i) {
    for (int k = 0; k < 8; ++k) {
      const auto wrong = k % 2 == 0 ? server.ask_as(std::string(40, 'w'), "GET", "/v1/jobs")
                                    : server.ask_as(std::string(40, 'w'), "GET", "/nope");
      refused += wrong.status == 429 ? 1 : 0;
    }
    good += server.get("/v1/jobs").status == 200 ? 1 : 0;
  }
  CHECK(good == 60);
  CHECK(refused > 100);
}

TEST_CASE("attack: the document is public and names no folder; names have no hidden control characters") {
  const TemporaryFolder data;
  JobServer server({"--data", data.path().string()});
  const auto document = body_of(ask(server.port, request_of(server.port, "GET", "/v1/openapi.json")));
  CHECK(document.find(data.path().filename().string()) == std::string::npos);
  CHECK(document.find(server.path().filename().string()) == std::string::npos);
  for (const char* name :
       {"a\u202egnp.exe", "a\u009b31m", "\u2066x", "\u200f", "\u061c", "a\x1b", "a\u2028b", "\u200b", "\ufeffa"}) {
    CAPTURE(name);
    CHECK(server.post("/v1/jobs", Json{{"config", takes("0")}, {"name", name}}.dump()).status == 422);
  }
  CHECK(server.post("/v1/jobs", Json{{"config", takes("0")}, {"name", "Grüße 日本"}}.dump()).status == 201);
}

TEST_CASE("attack: files of a job are read with a bound") {
  JobServer server;
  const auto id = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(id));
  const auto run = server.path() / "jobs/1/run";
  fs::create_directory(run);
  std::ofstream(run / "config.toml") << "";
  std::ofstream(run / "control.tokens") << "control " << std::string(40, 'x') << "\n";
  for (const auto& url : {std::string(2 << 20, 'x'), std::string(10000, 'y') + "\n"}) {
    std::ofstream(run / "control.url") << url;
    const auto answer = server.get("/v1/jobs/1/run");
    CHECK(answer.status == 409);
    CHECK(answer.text.size() < 2000);
  }
  server.go();
}

TEST_CASE("attack: an audit log is one, or is refused in a line") {
  const TemporaryFolder folder;
  CHECK(!serve::verify_audit(folder.write("empty", "")).trouble.empty());
  CHECK_THROWS(serve::verify_audit(folder.path()));
  ::mkfifo((folder.path() / "pipe").c_str(), 0600);
  CHECK_THROWS(serve::verify_audit(folder.path() / "pipe"));
  for (const char* line : {"{\"seq\":\"x\",\"hash\":\"a\"}\n", "{\"seq\":1,\"hash\":5}\n", "[]\n", "x\n"}) {
    CHECK_THROWS_WITH_AS(serve::AuditLog(folder.write("log", line)), doctest::Contains("its last line"),
                         std::runtime_error);
  }
  ::mkfifo((folder / "pipe").c_str(), 0600);
  CHECK_THROWS_WITH_AS(serve::AuditLog(folder / "pipe"), doctest::Contains("is not a file"), std::runtime_error);
}

TEST_CASE("attack: what cannot be printed has an exit code of its own") {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> words) {
    Program program(std::move(words), folder.path(), [] { ::dup2(::open("/dev/full", O_WRONLY), 1); });
    const int status = program.wait();
    CHECK(program.err().find("standard output cannot be written: No space left on device") != std::string::npos);
    return status;
  };
  folder.write("run.toml", "[task]\nuse = \"mlp\"\n[optimizer]\nuse = \"sgd\"\n[run]\nsteps = 1\n");
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"config", "--schema"}, {"config", "run.toml"}, {"plugins"}, {"jobs", "--help"}}) {
    CAPTURE(words[0]);
    CHECK(run(words) == 6);
  }
}

TEST_CASE("attack: names are printed as exact UTF-8, without control characters of any length") {
  const TemporaryFolder folder;
  const struct {
    const char *name, *shown;
  } cases[] = {{"\x9b\xb1", "\\x9b\\xb1"},    {"\xa5\xb7", "\\xa5\\xb7"},
               {"\xc1\xbf", "\\xc1\\xbf"},    {"\u202e", "\\xe2\\x80\\xae"},
               {"\u2066", "\\xe2\\x81\\xa6"}, {"\u009b", "\\xc2\\x9b"},
               {"\u061c", "\\xd8\\x9c"},      {"Grüße", "Grüße"},
               {"\u2028", "\\xe2\\x80\\xa8"}, {"\u200b", "\\xe2\\x80\\x8b"}};
  for (const auto& [name, shown] : cases) {
    CAPTURE(shown);
    Program program({"train", std::string(name) + ".toml"}, folder.path());
    CHECK(program.wait() == 2);
    CHECK(program.err().find(shown) != std::string::npos);
  }
}

TEST_CASE("attack: retention says what it removed, in the log and in the audit") {
  JobServer server({"--keep-days", "1"});
  const auto id = server.submit(takes("0"));
  REQUIRE(server.waits_for(id, "done"));
  server.kill();
  {
    Program change({"jobs", "--help"}, server.path());  // the journal is closed
    change.wait();
  }
  serve::Journal journal(server.path() / "journal.sqlite");
  auto job = journal.find(id).value();
  job.ended = "2020-01-01T00:00:00.000Z";
  journal.update(job);
  server.start();
  REQUIRE(wait_until([&] { return !fs::exists(server.path() / "jobs/1"); }));
  CHECK(wait_until([&] { return !fs::exists(server.path() / "attempts/1"); }));
  CHECK(wait_until([&] { return server.server_log().find("job 1 is removed") != std::string::npos; }));
  CHECK(read_text(server.path() / "audit.jsonl").find("\"action\":\"remove\",\"job\":1") != std::string::npos);
}

TEST_CASE("attack: connections that stay silent, however many come at once, keep out nobody") {
  JobServer server;
  std::list<Connection> silent;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 25; ++i) silent.emplace_back(server.port);  // at last four times the most that there may be
    while (silent.size() > 700) silent.pop_front();
    CHECK(server.get("/v1/jobs").status == 200);
  }
}

TEST_CASE("attack: a body that is slow to parse is refused, or is parsed at once") {
  JobServer server;
  const auto many = [](std::size_t size, const auto& part) {
    std::string text = "{\"config\": {\"x\": [0";
    for (int i = 0; text.size() < size; ++i) text += part(i);
    return text;
  };
  const auto objects = many(1'000'000, [](int) { return ",{}"; }) + "]}}";
  CHECK(server.post("/v1/jobs", objects).status < 500);  // it answers; a parser with a callback would take a minute
  const auto keys = many(1'000'000, [](int i) { return (i == 0 ? ",{\"" : ",\"") + std::to_string(i) + "\":1"; });
  const auto refused = server.post("/v1/jobs", keys + "}]}}");
  CHECK(refused.status == 422);
  CHECK(refused.text.find("the body has objects with too many keys") != std::string::npos);
  CHECK(server.post("/v1/jobs", "{\"config\": " + std::string(100'000, '[')).status == 422);
}

TEST_CASE("attack: an audit log that was removed or emptied is noticed beside jobs") {
  JobServer server;
  const auto id = server.submit(takes("0"));
  REQUIRE(server.waits_for(id, "done"));
  CHECK(server.server_log().find("has no line") == std::string::npos);
  for (const bool is_removed : {true, false}) {
    server.kill();
    fs::remove(server.path() / "audit.jsonl");
    if (!is_removed) std::ofstream(server.path() / "audit.jsonl") << "";
    server.start();
    CHECK(read_text(server.path() / "audit.jsonl").find("\"action\":\"lost\"") != std::string::npos);
  }
  const auto log = server.server_log();
  CHECK(log.find("audit.jsonl has no line, and there are jobs") !=
        log.rfind("audit.jsonl has no line, and there are jobs"));
  // The server notices an emptied log before any client can add a line: here the port is taken, so none can.
  server.kill();
  fs::remove(server.path() / "audit.jsonl");
  const JobServer other;
  const auto command = "exec " VERNIER_BINARY_DIR "/vernier-serve '" + server.path().string() +
                       "' --listen 127.0.0.1:" + std::to_string(other.port) + " 2>/dev/null";
  CHECK(std::system(command.c_str()) != 0);
  CHECK(read_text(server.path() / "audit.jsonl").find("\"action\":\"lost\"") != std::string::npos);
}

TEST_CASE("attack: tokens of a killed process go, and those of a person stay") {
  const std::string made = "# Tokens of the service, each with its scope: `read` may look, `control` may also act.\n",
                    token = " " + std::string(64, 'a');
  const std::pair<std::string, bool> cases[] = {{made + "read" + token + "\ncontrol" + token + "\n", true},
                                                {made + "read" + token + " ada\n", false},
                                                {"read" + token + "\n", false},
                                                {"", false}};
  for (const auto& [text, goes] : cases) {
    CAPTURE(text);
    const TemporaryFolder folder;
    vernier::Tokens::forget(folder.write("tokens", text));
    CHECK(fs::exists(folder / "tokens") != goes);
  }
}

TEST_CASE("attack: a half-written file of tokens is made anew") {
  for (const char* text :
       {"", "# Tokens of", "# Tokens of the service, each with its scope: `read` may look, `control` may also act.\n",
        "# Tokens of the service, each with its scope: `read` may look, `control` may also act.\nread 5f0c"}) {
    CAPTURE(text);
    const TemporaryFolder folder;
    const auto file = folder.write("tokens", text);
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
    vernier::Tokens tokens(file, vernier::Scope::admin, [](const std::string&) {});
    CHECK(read_text(file).find("\nadmin ") != std::string::npos);
  }
}

TEST_CASE("attack: a client waits for a server that starts, and follows a job over a restart") {
  JobServer server;
  const auto id = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(id));
  server.kill();
  fs::remove(server.path() / "server.url");
  Program follow({"jobs", "--folder", server.path().string(), "logs", "1", "--follow"}, server.path());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  server.restart();
  server.go();
  CHECK(follow.wait() == 0);
  CHECK(follow.out().find("trained") != std::string::npos);
}

TEST_CASE("attack: the first page of the documents works when it is pasted") {
  const auto document = read_text(fs::path(VERNIER_SOURCE_DIR) / "docs/guides/service.md");
  const auto begin = document.find("```sh\n") + 6;
  auto script = document.substr(begin, document.find("```", begin) - begin);
  const auto put = [&](const std::string& from, const std::string& to) {
    REQUIRE(script.find(from) != script.npos);
    script.replace(script.find(from), from.size(), to);
  };
  put("./vernier build\n", "");                                // it is built
  put("vernier serve", "vernier serve --listen 127.0.0.1:0");  // another test may have that port
  put("--follow", "--follow --set run.steps=2 --set run.validate_every=0 --set callback.schedule.warmup_steps=0");
  const TemporaryFolder folder;
  const auto clone = folder.path() / "clone";
  fs::create_directories(clone / "build");
  fs::create_directory_symlink(VERNIER_BINARY_DIR, clone / "build/release");
  for (const char* part : {"README.md", "docs", "framework", "sdk", "plugins", "configs"}) {
    fs::copy(fs::path(VERNIER_SOURCE_DIR) / part, clone / part, fs::copy_options::recursive);
  }
  const auto out = folder / "out";
  const pid_t shell = ::fork();
  if (shell == 0) {
    ::setsid();
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    ::dup2(1, 2);
    if (::chdir(clone.c_str()) == 0) ::execl("/bin/sh", "sh", "-ec", script.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(shell, &status, 0);
  ::kill(-shell, SIGTERM);  // the server
  CAPTURE(read_text(out));
  CHECK(status == 0);
  CHECK(read_text(out).find("done after 2 steps") != std::string::npos);
}

TEST_CASE("attack: a thousand waiting jobs of a megabyte") {
  const int jobs = is_long() ? 1000 : 60;
  JobServer server({"--cores", "1"});
  const auto first = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(first));
  std::string config = takes("0") + "text = [";
  while (config.size() < 1'000'000) config += "\"" + std::string(200, 'x') + "\", ";
  config += "]\n";
  const auto body = Json{{"config", config}}.dump();
  double slowest_submit = 0, slowest_list = 0;
  const auto timed = [](const auto& call) {
    const auto begun = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  for (int i = 0; i < jobs; ++i) {
    slowest_submit = std::max(slowest_submit, timed([&] { REQUIRE(server.post("/v1/jobs", body).status == 201); }));
    slowest_list = std::max(slowest_list, timed([&] { REQUIRE(server.get("/v1/jobs?limit=1000").status == 200); }));
  }
  const auto memory = server.memory();
  MESSAGE("submit ", slowest_submit * 1e3, " ms, list ", slowest_list * 1e3, " ms, ", memory >> 20, " MB");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a sanitizer adds memory of its own
  CHECK(memory < 100 << 20);
#endif
  CHECK(slowest_list < patience::limit(0.5));  // the bar is 50 ms on a quiet machine
}

}  // namespace attack_test
