// `vernier check plugin.so`: tries the laws of plugins on one library, each in a process of its own.
#include <dlfcn.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <regex>

#include "common/child.h"
#include "common/scratch_folder.h"
#include "common/verb.h"
#include "forked_call.h"
#include "laws.h"
#include "run/process/crash.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;
using Words = std::vector<std::string>;

constexpr const char* usage =
    R"(usage: vernier check PLUGIN.so [--set KEY=VALUE]... [--task FILE.toml] [--device NAME] [--law NAME]
                     [--time-limit SECONDS] [--sanitize]

Tries the laws of plugins on a library: that it resumes to the last bit, leaks nothing, and so on. Each law is a line,
"ok", "FAILED" with the reason, "skipped" with the reason, or "declined" where the plugin refuses the law's run by a
configuration error. If a law fails, the run in which it was tried follows as TOML.

  --set KEY=VALUE    as in vernier train, for the plugin and the run; an option of the plugin needs no table: max_norm=1
  --task FILE.toml   the run to try it in, instead of a small network; for 20 steps on the CPU
  --device NAME      cuda: on the GPU instead of the CPU
  --law NAME         this law alone
  --time-limit SECONDS
                     a law that takes longer fails; 120 by default
  --sanitize         with the address sanitizer, for a plugin that was built with -fsanitize=address

exit status: 0 all laws are kept, 1 one is not, 2 wrong usage
)";

// A law that takes longer has failed. The longest, "does not grow", takes seconds with a small task.
constexpr std::int64_t most_seconds = 120;

// Returns what the user gave for --time-limit, or the default.
unsigned time_limit(const po::variables_map& given) {
  const auto seconds = given["time-limit"].as<std::int64_t>();
  if (seconds < 1 || seconds > 1'000'000) refuse(c10::str("--time-limit ", seconds, ": must be 1 to 1000000 seconds"));
  return static_cast<unsigned>(seconds);
}

// A plugin that crashes, hangs or changes its process is seen in one law only, and memory is counted from the start.
Result run_apart(const std::function<std::string()>& body, unsigned limit) {
  const ScratchFolder folder;  // removes files that a crashing child leaves
  return ForkedCall(
             [&] {
               ::setenv("TMPDIR", folder.path().c_str(), 1);
               name_crashes();
               return body();
             },
             limit)
      .wait();
}

// The plugins of the build tree or of the installation.
Host host_of_installation() {
  const fs::path program = boost::dll::program_location().parent_path().string();
  return Host({program / "plugins", program.parent_path() / "lib" / "vernier" / "plugins"});
}

Subject subject_of(const fs::path& file, const po::variables_map& given) {
  const auto descriptor = PluginFile(file, "").descriptor();
  Subject subject{host_of_installation(), descriptor.role, descriptor.name, fs::absolute(file).string(), {}, {}};
  subject.base = given.count("task") != 0
                     ? base_of_file(given["task"].as<std::string>(), subject.role, subject.name, subject.options)
                     : small_base();
  change(subject, words_in(given, "set"));
  if (given.count("device") != 0) {
    std::get<Table>(subject.base.at("run").data)
        .insert_or_assign("device", Value{given["device"].as<std::string>(), "--device"});
  }
  return subject;
}

std::vector<Law> laws_wanted(const po::variables_map& given) {
  if (given.count("law") == 0) return laws();
  const auto& name = given["law"].as<std::string>();
  Words names;
  for (const auto& law : laws()) {
    if (law.name == name) return {law};
    names.push_back(law.name);
  }
  const auto near = nearest(name, names);
  refuse("there is no law \"" + shortened(name) + "\"" + (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
}

// The command again, for one law.
std::string again(const std::vector<std::string>& words, const Law& law) {
  std::string command = called_as() + " check";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--law") {
      ++i;
    } else if (!words[i].starts_with("--law=")) {
      command +=
          " " + printable(words[i].find_first_of(" '\"[]{}$") == std::string::npos ? words[i] : "'" + words[i] + "'");
    }
  }
  return command + " --law '" + law.name + "'";
}

// Options of the user stay in force: the last of two equal options counts.
void put_before(const char* variable, const std::string& options) {
  const char* own = std::getenv(variable);
  ::setenv(variable, (own != nullptr ? options + ":" + own : options).c_str(), /*overwrite=*/1);
}

std::string runtime_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(printable(file.string()) + ": cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  static const std::regex name(R"(lib(asan\.so\.[0-9]+|clang_rt\.asan[-_a-z0-9]*\.so))");
  std::smatch found;
  if (!std::regex_search(bytes, found, name)) {
    refuse(printable(file.string()) +
           ": built without the address sanitizer; configure its project with "
           "-DCMAKE_CXX_FLAGS='-g -fsanitize=address,undefined' (clang: and -shared-libsan), and build it");
  }
  return found.str();
}

// Starts this program again with the sanitizer's runtime, which the plugin's file names and which must be in the
// process before all else. Returns where it runs already.
void start_sanitized(const fs::path& file, char** argv) {
  const auto runtime = runtime_of(file);
  if (::dlsym(RTLD_DEFAULT, "__asan_init") != nullptr) return;
  const char* preloaded = std::getenv("LD_PRELOAD");
  if (preloaded != nullptr && std::string(preloaded).starts_with(runtime)) {
    refuse(runtime + ", which the plugin needs, cannot be loaded; install it, or add its folder to LD_LIBRARY_PATH");
  }
  ::setenv("LD_PRELOAD", (runtime + (preloaded != nullptr ? std::string(":") + preloaded : "")).c_str(), 1);
  // LibTorch and its libraries keep memory until the end, which is not a leak of the plugin: the law of growth sees
  // those.
  put_before("ASAN_OPTIONS", "detect_leaks=0");
  put_before("UBSAN_OPTIONS", "halt_on_error=1");
  ::execv("/proc/self/exe", argv);
  throw Error("the program cannot be started again with " + runtime);
}

// Prints the result of a law. Returns true if the law is kept.
bool try_law(const Law& law, const Subject& subject, const Words& words, unsigned limit) {
  const auto result = run_apart(
      [&] {
        law.check(subject);
        return std::string();
      },
      limit);
  std::cout << law.name << ": ";
  if (result.kind == Result::Kind::ok) std::cout << "ok\n";
  if (result.kind == Result::Kind::skipped) std::cout << "skipped: " << result.text << '\n';
  if (result.kind == Result::Kind::declined) std::cout << "declined: " << printable(result.text) << '\n';
  if (result.kind != Result::Kind::failed) return true;
  std::cout << "FAILED: " << printable(result.text) << "\n  again: " << again(words, law) << '\n';
  if (*law.by_hand != '\0') std::cout << "  or by hand, with run.toml below: " << law.by_hand << '\n';
  return false;
}

// A name in a TOML may mean another plugin than this one.
void say_namesake(const Subject& subject) {
  for (const auto& each : subject.host.list()) {
    std::error_code none;
    if (each.role != subject.role || each.name != subject.name || fs::equivalent(each.file, subject.use, none))
      continue;
    std::cout << "its name is that of " << printable(each.file.string()) << " too: `use = \"" << subject.name
              << "\"` takes the first that it finds; choose another name\n";
  }
}

int check(const po::variables_map& given, int argc, char** argv) {
  const auto files = words_of(given);
  if (files.empty()) refuse("name a library, as in `vernier check build/plugins/callback/mine.so`");
  if (files.size() > 1) refuse("check takes one library, and " + files[1] + " is a second");
  if (given.count("sanitize") != 0) start_sanitized(files[0], argv);
  const Words words(argv + 1, argv + argc);
  const auto limit = time_limit(given);
  std::optional<Subject> found;
  try {
    found = subject_of(files[0], given);
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::configuration) throw;
    std::cout << "loads: FAILED: " << error.what() << '\n';
    return 1;
  }
  const auto& subject = *found;
  std::cout << subject.id() << ", " << subject.use << '\n';
  say_namesake(subject);
  bool is_kept = true;
  for (const auto& law : laws_wanted(given)) {
    if (!applies(law, subject)) continue;
    const bool is_law_kept = try_law(law, subject, words, limit);
    is_kept = is_kept && is_law_kept;
    if (!is_law_kept && law.check == check_loads) break;  // nothing else can be tried
  }
  if (is_kept && given.count("law") == 0) {
    std::cout << "its listeners take: " << run_apart([&] { return times_of(subject); }, limit).text << '\n';
  }
  if (!is_kept) std::cout << "\n# run.toml\n" << to_toml(subject.config());
  return is_kept ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  set_log_sink([](Level level, const std::string& who, const std::string& text) {
    if (level >= Level::warning) std::cerr << who << ": " << text << '\n';
  });
  po::options_description known;
  known.add_options()("set", po::value<Words>())("task", po::value<std::string>())("device", po::value<std::string>())(
      "law", po::value<std::string>())("sanitize", "")("time-limit",
                                                       po::value<std::int64_t>()->default_value(most_seconds));
  try {
    return run_verb({"check-plugin", usage, known, [&](const auto& given) { return check(given, argc, argv); }}, argc,
                    argv);
  } catch (const std::exception& error) {
    std::cerr << "vernier: " << message(error) << '\n';
  }
  return 2;
}
