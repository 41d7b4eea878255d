// `vernier watch`: what it prints of a run, its keys in a terminal, and how it gives the terminal back.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "pseudo_terminal.h"
#include "run_folder.h"

namespace watch_test {

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// UTF-8, one column a character.
std::ptrdiff_t columns_of(const std::string& line) {
  return std::ranges::count_if(line, [](unsigned char byte) { return (byte & 0xC0U) != 0x80U; });
}

// A folder of a run in the place "out", as a run with three steps would leave it.
struct Left : RunFolder {
  explicit Left(const std::string& history, const std::string& summary = "") : RunFolder("") {
    folder.write("out/config.toml", "[run]\nname = 'out'\nsteps = 9\n");
    folder.write("out/losses.jsonl", history);
    if (!summary.empty()) folder.write("out/summary.json", summary);
  }
  // Until it is destroyed, the run goes on.
  struct Lock {
    explicit Lock(const Left& place) {
      place.folder.write("out/.lock", "1 here\n");
      file = ::open(place.at("out/.lock").c_str(), O_RDWR);
      REQUIRE(::flock(file, LOCK_EX) == 0);
    }
    ~Lock() { ::close(file); }
    int file;
  };
};

constexpr const char* three_steps =
    "{\"step\":1,\"loss\":4.0,\"accuracy\":0.25}\n{\"step\":2,\"loss\":2.0,\"accuracy\":0.5}\n"
    "{\"step\":3,\"loss\":1.0,\"accuracy\":0.75}\n";

// `vernier watch` in a terminal of its own.
class Watched {
 public:
  Watched(const std::filesystem::path& folder, const std::vector<std::string>& more = {}) {
    winsize size = {24, 80, 0, 0};
    std::vector<std::string> words = {VERNIER_BINARY_DIR "/vernier", "watch", "out", "--interval", "0.1"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm-256color", 1);
      if (::chdir(folder.c_str()) == 0) ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::tcgetattr(terminal_, &before_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }

  void press(char key) const { REQUIRE(::write(terminal_, &key, 1) == 1); }
  void send(int signal) const { ::kill(pid_, signal); }
  void resize(unsigned short columns, unsigned short rows) const {
    const winsize size = {rows, columns, 0, 0};
    ::ioctl(terminal_, TIOCSWINSZ, &size);
  }

  // The lines of the last picture that is whole.
  std::vector<std::string> lines() {
    read();
    const auto end = all_.rfind("\033[J"), begin = end == all_.npos ? end : all_.rfind("\033[H", end);
    if (begin == all_.npos) return {};
    std::istringstream text(std::regex_replace(all_.substr(begin + 3, end - begin - 3), std::regex("\033\\[K|\r"), ""));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  bool shows(const std::string& part) {
    return patience::wait_until(
        [&] {
          const auto all = lines();
          return std::ranges::any_of(all, [&](const auto& line) { return says(line, part); });
        },
        std::chrono::milliseconds(5));
  }
  // The exit status, or -n where signal n ended it.
  int wait() {
    int status = 0;
    patience::wait_until(
        [&] {
          read();
          return ::waitpid(pid_, &status, WNOHANG) == pid_;
        },
        std::chrono::milliseconds(5));
    read();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  bool is_as_before() const {
    termios now = {};
    ::tcgetattr(terminal_, &now);
    return now.c_lflag == before_.c_lflag && std::ranges::equal(now.c_cc, before_.c_cc) &&
           all_.rfind("\033[?1049l") > all_.rfind("\033[?1049h") && all_.rfind("\033[?25h") > all_.rfind("\033[?25l");
  }
  const std::string& all() const { return all_; }

 private:
  void read() {
    char bytes[4096];
    pollfd ready = {terminal_, POLLIN, 0};
    while (::poll(&ready, 1, 0) > 0) {
      const auto count = ::read(terminal_, bytes, sizeof bytes);
      if (count <= 0) break;
      all_.append(bytes, static_cast<std::size_t>(count));
    }
  }

  int terminal_ = -1;
  pid_t pid_ = 0;
  termios before_ = {};
  std::string all_;
};

}  // namespace

TEST_CASE("watch: draws a run once where there is no terminal") {
  Left place(
      std::string(three_steps) +
          "{\"step\":4,\"loss\":\"nan\",\"notices\":[{\"name\":\"non_finite\",\"step\":4,\"what\":\"<loss>\"}]}\n"
          "{\"step\":5,\"loss\":2.0}\n{\"step\":6,\"validation_loss\":3.5}\n",
      R"({"ended_by":"error","error":"no <memory>","steps":6})");
  REQUIRE(place.call({"watch", "out", "--metric", "accuracy"}) == 0);
  CHECK(says(place.out, "out: error, step 6 of 9"));
  CHECK(says(place.out, "loss 2 (lowest 1)"));
  CHECK(says(place.out, "validation_loss 3.5"));
  CHECK(says(place.out, "accuracy 0.75 (lowest 0.25)"));
  CHECK(says(place.out, "step 4: non_finite what=<loss>"));
  CHECK(says(place.out, "no <memory>"));
}

TEST_CASE("watch: numbers as far apart as they can be, and large ones that are nearly equal, are drawn") {
  struct Case {
    std::string first, last, draws;
  };
  const Case cases[] = {{"1.7e308", "-1.7e308", "-1.7e\\+308 \\| +\\S"},
                        {"1e25", "9.999999999995e24", "1e\\+25 \\|\\S+ +\\S"},
                        {"0", "5e-324", " \\|\\S+ +\\S"}};
  for (const auto& [first, last, draws] : cases) {
    CAPTURE(last);
    Left place("{\"step\":1,\"loss\":" + first + "}\n{\"step\":2,\"loss\":" + last + "}\n", R"({"ended_by":"done"})");
    CHECK(place.call({"watch", "out"}) == 0);
    CHECK_MESSAGE(std::regex_search(place.out, std::regex(draws)), place.out);
  }
}

TEST_CASE("watch: wrong calls and damaged files end in one line") {
  Left damaged(std::string(three_steps) + "{\"step\"\n{\"step\":5}\n");
  Left fine(three_steps);
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"watch"}, "name one run"},
      {{"watch", "nowhere"}, "nowhere: there is no such folder"},
      {{"watch", "."}, "this is not a folder of a run"},
      {{"watch", "out", "--metric", "los"}, "no metric \"los\" yet; it has loss"},
      {{"watch", "out", "--interval", "0"}, "--interval is 0, and must be from 0.1 to 3600"}};
  for (const auto& [words, part] : refused) {
    CAPTURE(words);
    CHECK(fine.call(words) == 2);
    CHECK_MESSAGE(says(fine.err, part), fine.err);
    CHECK(is_one_line(fine.err));
  }
  CHECK(damaged.call({"watch", "out"}) == 2);
  CHECK(says(damaged.err, "losses.jsonl:4: this line is not one that a run writes"));
}

TEST_CASE("watch: keys choose a metric, zoom, and steer the run") {
  if (!has_pseudo_terminals()) return;
  RunFolder place(
      "[run]\nsteps = 100000000\ndevice = 'cpu'\nthreads = 1\noutput = 'out'\n[task]\nuse = 'mlp'\nsamples = 64\n"
      "[optimizer]\nuse = 'sgd'\n[[callback]]\nuse = 'control'\n[[monitor]]\nuse = 'jsonl'\n");
  Program run({"train", "run.toml", "--quiet"}, place.folder.path());
  REQUIRE(run.wait_until([&] {
    return std::filesystem::exists(place.at("out/control.url")) && read_text(place.at("out/losses.jsonl")).size() > 500;
  }));
  Watched watched(place.folder.path());
  CHECK(watched.shows("run: running"));
  CHECK(watched.shows(" loss "));
  CHECK(watched.lines().size() == 24);
  CHECK(watched.lines().back() == "m metric  +/- zoom  p pause, go on  s save  v validate  x stop  q leave");
  struct Press {
    char key;
    std::string shows;
  };
  for (const auto& [key, shows] : {Press{'p', "pause: the run waits after step"},
                                   {'m', " learning_rate "},
                                   {'+', "the last 1/2 of the steps"},
                                   {'+', "the last 1/4 of the steps"},
                                   {'-', "the last 1/2 of the steps"},
                                   {'s', "save: checkpoint/rolling has"},
                                   {'p', "resume: the run goes on after step"},
                                   {'v', "validate: the validation loss is"},
                                   {'x', "press x again to stop the run"}}) {
    CAPTURE(key);
    watched.press(key);
    CHECK_MESSAGE(watched.shows(shows), watched.lines().at(22));
  }
  watched.resize(60, 12);
  CHECK(patience::wait_until([&] { return watched.lines().size() == 12; }));
  for (const auto& line : watched.lines()) CHECK(columns_of(line) <= 60);
  watched.press('x');  // still the second one
  CHECK(run.wait() == 0);
  CHECK(place.summary()["ended_by"] == "finished");
  CHECK(watched.wait() == 0);
  CHECK(watched.is_as_before());
  CHECK(says(watched.all().substr(watched.all().rfind("\033[?1049l")), "run: finished"));
}

TEST_CASE("watch: the terminal is given back at every end, and a run without callback/control is left alone") {
  if (!has_pseudo_terminals()) return;
  struct End {
    std::function<void(const Watched&, const Left&)> end;
    int status;
  };
  const End ends[] = {
      {[](const Watched& watched, const Left&) { watched.press('q'); }, 0},
      {[](const Watched& watched, const Left&) { watched.press('\x03'); }, -SIGINT},
      {[](const Watched& watched, const Left&) { watched.send(SIGTERM); }, -SIGTERM},
      {[](const Watched& watched, const Left&) { watched.send(SIGHUP); }, -SIGHUP},
      {[](const Watched&, const Left& place) { place.folder.write("out/losses.jsonl", "no\nline\n"); }, 2},
  };
  for (const auto& each : ends) {
    CAPTURE(each.status);
    Left place(three_steps);
    const Left::Lock lock(place);
    Watched watched(place.folder.path());
    REQUIRE(watched.shows("out: running, step 3 of 9"));
    watched.press('p');
    CHECK(watched.shows("only a run with [[callback]] use = \"control\" has these keys"));
    CHECK_FALSE(watched.is_as_before());
    each.end(watched, place);
    CHECK(watched.wait() == each.status);
    CHECK(watched.is_as_before());
  }
}

}  // namespace watch_test
