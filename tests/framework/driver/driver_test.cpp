// The program `vernier`: what it says itself, and how it becomes the program of a verb.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <vernier/abi.h>

#include <cstdlib>
#include <sstream>

#include "run_folder.h"
#include "thrown.h"

namespace driver_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

// A folder with programs of somebody else. It is the first of PATH in calls of a shell.
struct Place : RunFolder {
  Place() : RunFolder("") {}
  void write_program(const std::string& name, const std::string& script) const {
    fs::permissions(folder.write(name, "#!/bin/sh\n" + script), fs::perms::owner_all);
  }
  // Runs `script`, in which $vernier is the program. Returns its exit status.
  int shell(const std::string& script) {
    const auto file = folder.write("script", script);
    const auto command = "cd " + folder.path().string() +
                         " && exec env PATH=$PWD:$PATH vernier=" VERNIER_BINARY_DIR "/vernier sh " + file +
                         " >out 2>err";
    const int status = std::system(command.c_str());
    out = read_text(folder / "out");
    err = read_text(folder / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

struct Call {
  Arguments arguments;
  int status;
  std::string out, err;  // how they begin; "": nothing is printed
};

const std::string usage = "usage: vernier VERB …\n\n  train         trains what TOML files say\n  config        ";
const std::string version =
    "vernier " VERNIER_VERSION ", plugin ABI " VERNIER_TEXT(VERNIER_ABI) ", " VERNIER_BUILD "\n";

const std::vector<Call> calls = {
    {{}, 2, "", usage},
    {{"--help"}, 0, usage, ""},
    {{"help"}, 0, usage, ""},
    {{"-h"}, 0, usage, ""},
    {{"-V"}, 0, version, ""},
    {{"--cmake-dir"}, 0, VERNIER_BINARY_DIR "/lib/cmake/Vernier\n", ""},
    {{"--libtorch-dir"}, 0, "/", ""},
    {{"--version"}, 0, version, ""},
    {{"version"}, 0, version + "compiled by ", ""},
    {{"train", "--help"}, 0, "usage: vernier train FILE", ""},
    {{"config", "--help"}, 0, "usage: vernier config FILE", ""},
    {{"plugins", "--help"}, 0, "usage: vernier plugins [", ""},
    {{"runs", "-h"}, 0, "usage: vernier runs", ""},
    {{"train", "-h"}, 0, "usage: vernier train FILE", ""},
    {{"help", "version"}, 0, "usage: vernier version [", ""},
    {{"help", "runs"}, 0, "usage: vernier runs", ""},
    {{"check", "--help"}, 0, "usage: vernier check FILE", ""},
    {{"check", "mine.so", "--help"}, 0, "usage: vernier check PLUGIN", ""},
    {{"runs", "none"}, 2, "", "vernier: none"},
    {{"plugins", "none"}, 2, "", "vernier: `vernier plugins none`"},
    {{"nwe"}, 2, "", "vernier: there is no verb \"nwe\"; did you mean new?\n"},
    {{"cnofig", "run.toml"}, 2, "", "vernier: there is no verb \"cnofig\"; did you mean config?\n"},
    {{"training", "run.toml"}, 2, "", "vernier: there is no verb \"training\"; did you mean train?\n"},
    {{"fly"}, 2, "", "vernier: there is no verb \"fly\"; see vernier --help\n"},
    {{"help", "fly"}, 2, "", "vernier: there is no verb \"fly\"; see vernier --help\n"},
    {{"\x1b[31m"}, 2, "", "vernier: there is no verb \"\\x1b[31m\"; see vernier --help\n"},
    {{"../vernier-new"}, 2, "", "vernier: there is no verb \"../vernier-new\""},
    {{"--quiet", "new", "app"}, 2, "", "vernier: say a verb first, and its options after it; see vernier --help\n"},
    {{"complete", "tr"}, 0, "train\n", ""},
    {{"complete", "con"}, 0, "config\n", ""},
    {{"complete", "check"}, 0, "check\ncheckpoint\n", ""},
    {{"complete", "schema"}, 0, "", ""},
    {{"complete", "--"}, 0, "--cmake-dir\n--help\n--libtorch-dir\n--version\n", ""},
    {{"complete", "train", "--res"}, 0, "--resume\n", ""},
    {{"complete", "plugins", "scaler/d"}, 0, "scaler/dynamic\n", ""},
    {{"complete", "checkpoint", "v"}, 0, "verify\n", ""},
    {{"complete", "compare", "--sweep", "run.ste"}, 0, "run.steps=\n", ""},
    {{"complete", "fly", "--"}, 0, "", ""},
};

bool begins(const std::string& text, const std::string& with) {
  return with.empty() ? text.empty() : text.starts_with(with);
}

void trace_libraries() {
  ::setenv("LD_DEBUG", "files", 1);
}

double seconds_of_children() {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

TEST_CASE("driver: what each call prints, and its exit status") {
  Place place;
  for (const auto& [arguments, status, out, err] : calls) {
    std::ostringstream typed;
    for (const auto& word : arguments) typed << word << ' ';
    CAPTURE(typed.str());
    CHECK(place.call(arguments) == status);
    CHECK_MESSAGE(begins(place.out, out), place.out);
    CHECK_MESSAGE(begins(place.err, err), place.err);
    if (arguments.size() > 1 && arguments[0] != "complete" && status == 2) CHECK(is_one_line(place.err));
  }
}

TEST_CASE("driver: every help fits into 80 columns") {
  Place place;
  REQUIRE(place.call({"--help"}) == 0);
  std::istringstream lines(place.out);
  std::vector<std::string> verbs = {"--help"};
  for (std::string line; std::getline(lines, line) && !line.starts_with("Any other verb");) {
    if (line.starts_with("  ") && line[2] != ' ') verbs.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  CHECK(verbs.size() > 10);
  for (const auto& verb : verbs) {
    REQUIRE(place.call({verb, "--help"}) == 0);
    std::istringstream help(place.out);
    for (std::string line; std::getline(help, line);) {
      const auto columns =
          std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
      CHECK_MESSAGE(columns <= 80, verb << ": " << line);
    }
  }
}

TEST_CASE("driver: it starts LibTorch for a verb that needs it alone, and is quick") {
  Place place;
  const auto starts_libtorch = [&](const Arguments& arguments) {
    (void)place.call(arguments, &trace_libraries);
    std::istringstream lines(place.err);
    for (std::string line; std::getline(lines, line);) {
      if (says(line, "calling init: ") && says(line, "libtorch_cpu.so")) return true;
    }
    return false;
  };
  for (const Arguments& arguments :
       {Arguments{"--version"}, {"--help"}, {"fly"}, {"runs", "--help"}, {"complete", "tr"}, {"new", "--help"}}) {
    CAPTURE(arguments[0]);
    CHECK_FALSE(starts_libtorch(arguments));
  }
  CHECK(starts_libtorch({"version"}));
  CHECK(place.shell("said=$(readelf -d \"$vernier\") && case $said in *torch*) exit 1 ;; esac\n") == 0);
  if (!std::string(VERNIER_SANITIZER).empty()) return;
  double least = 1;
  for (int i = 0; i < 5; ++i) {
    const auto before = seconds_of_children();
    CHECK(place.call({"--version"}) == 0);
    least = std::min(least, seconds_of_children() - before);
  }
  CHECK(least < 0.02);
}

TEST_CASE("driver: an unknown verb becomes the program of its name in PATH") {
  Place place;
  place.write_program("vernier-greet", "echo $$ $# \"$@\"\ncat\necho oh >&2\nexit 7\n");
  CHECK(place.shell("echo $$\nexec \"$vernier\" greet --set 'a b' <script\n") == 7);
  std::istringstream lines(place.out);
  std::string process, greeting, read;
  std::getline(lines, process);
  std::getline(lines, greeting);
  std::getline(lines, read);
  CHECK(greeting == process + " 2 --set a b");
  CHECK(read == "echo $$");
  CHECK(place.err == "oh\n");
  CHECK(place.call({"greet"}) == 2);  // not in this PATH
  CHECK(says(place.err, "there is no verb \"greet\""));
}

TEST_CASE("driver: signals reach the program of a verb, and those that are ignored stay so") {
  Place place;
  place.write_program("vernier-ends", "kill -$1 $$\necho lives\n");
  CHECK(place.shell("exec \"$vernier\" ends TERM\n") == -SIGTERM);
  CHECK(place.out.empty());
  CHECK(place.shell("exec \"$vernier\" ends PIPE\n") == -SIGPIPE);
  CHECK(place.shell("trap '' INT\nexec \"$vernier\" ends INT\n") == 0);
  CHECK(place.out == "lives\n");
}

TEST_CASE("driver: a verb that was built goes before a program of its name") {
  Place place;
  for (const std::string name : {"version", "runs"}) place.write_program("vernier-" + name, "exit 7\n");
  CHECK(place.shell("\"$vernier\" version && \"$vernier\" runs --help\n") == 0);
}

TEST_CASE("driver: a program of somebody else is not run to complete a verb") {
  Place place;
  place.write_program("vernier-foo", "echo ran \"$@\"\n");
  CHECK(place.shell("\"$vernier\" complete foo --x\n") == 0);
  CHECK(place.out.empty());
  CHECK(place.shell("\"$vernier\" foo --x\n") == 0);
  CHECK(place.out == "ran --x\n");
}

TEST_CASE("driver: a verb whose program is missing or cannot be started is refused in one line") {
  Place place;
  fs::copy_file(VERNIER_BINARY_DIR "/vernier", place.folder / "vernier");
  CHECK(place.shell("./vernier config run.toml\n") == 2);
  CHECK(place.err == "vernier: the program vernier-train is missing in " + place.folder.path().string() +
                         "; build or install it again\n");
  CHECK(place.shell("./vernier complete c\n") == 0);
  CHECK(place.out.empty());
  place.folder.write("vernier-train",
                     "\x7f"
                     "ELF");
  fs::permissions(place.folder / "vernier-train", fs::perms::owner_all);
  fs::create_directory(place.folder / "lib");
  fs::create_directory_symlink(VERNIER_BINARY_DIR "/lib/libtorch", place.folder / "lib/libtorch");
  CHECK(place.shell("./vernier train run.toml\n") == 2);
  CHECK(place.err == "vernier: vernier-train cannot be started: Exec format error\n");
}

}  // namespace driver_test
