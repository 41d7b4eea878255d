// The program `vernier`: its verbs, and those that other programs run.
#include <ATen/Context.h>
#include <torch/headeronly/version.h>
#include <unistd.h>
#include <vernier/error.h>

#include <algorithm>
#include <array>
#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/program_options.hpp>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <iostream>
#include <span>
#include <string_view>
#include <system_error>

#include "cli/options/completion.h"
#include "cli/options/plugin_list.h"
#include "command.h"
#include "files/json.h"
#include "low_memory.h"
#include "output/log.h"
#include "program.h"
#include "shorthands.h"
#include "wiring/plugin_folders.h"

namespace vernier {

namespace po = boost::program_options;
using namespace cli;

namespace {

constexpr const char* train_usage = R"(usage: vernier train FILE… [--set KEY=VALUE]… [--resume[=PATH]]

Trains what the TOML files say, merged left to right.

options
  --set KEY=VALUE        sets one value: run.steps=100, 'task.data=["a", "b"]', callback.clip_norm.max_norm=0.5
  --resume[=PATH]        resumes from the run's newest checkpoint, or from the run or checkpoint at PATH
  --allow-inexact        resumes even if the result will differ from an uninterrupted run
  --plugin-path FOLDER   looks for <role>/<name>.so there first; may be repeated; then in $VERNIER_PLUGIN_PATH, in the
                         folder plugins beside FILE, in ~/.local/share/vernier/plugins, and in the installation
  --quiet                train prints warnings and errors only, and no progress
  --debug                debug lines of the log too
  --help, --version

for people who come from other trainers; each is exactly a --set
  --mixed-precision no|fp16|bf16|fp8   precision.use; fp16 brings scaler.use=dynamic where the files have no [scaler]
  --amp-opt-level O0|O1|O2|O3          precision.level
  --grad-scaler-init SCALE             scaler.init_scale
  --grad-scaler-growth-interval STEPS  scaler.growth_interval
  --grad-scaler-backoff FACTOR         scaler.backoff_factor
  --grad-accum-steps NUMBER            accumulation.micro_batches: each batch in so many, its size stays
  --batch-size SAMPLES                 task.batch_size
  --epochs EPOCHS                      run.epochs, instead of run.steps
  --grad-ckpt                          task.recompute=full: activations are computed again; see docs/guides/memory.md

  --low-memory           switches on what plugins name as saving memory, where the files do not say else;
                         each logs its cost: see docs/guides/accumulation.md
)";

constexpr const char* config_usage = R"(usage: vernier config FILE… [--set KEY=VALUE]…
       vernier config --schema

Prints the merged configuration, with the place of each value.

  --schema               prints a JSON Schema of configurations, with which editors check and complete
  The options of `vernier train` that change a configuration; see vernier train --help.
)";

constexpr const char* plugins_usage = R"(usage: vernier plugins [ROLE/NAME]… [--plugin-path FOLDER]…

Lists the plugins, or the options of those that are named; `run` names the options of [run].
)";

constexpr const char* version_usage = R"(usage: vernier version [--json]

Prints what this program was built of.
)";

struct Summary {
  std::string_view name, text;
};

constexpr Summary own_verbs[] = {
    {"train", "trains what TOML files say"},
    {"config", "prints the merged configuration with the place of each value, or its schema"},
    {"plugins", "lists the plugins, or the options of some"},
    {"version", "prints what this program was built of"},
};

// The verbs that were built beside this program: vernier_add_verb() lists them.
constexpr Summary built_verbs[] = {
#include "built_verbs.inc"
};

constexpr const char* program_prefix = "vernier-";

// The verbs' programs lie in this folder too, in the build tree and in an installation.
std::filesystem::path folder_of_this_program() {
  return boost::dll::program_location().parent_path().string();
}

// Becomes the program vernier-VERB, which lies beside this program or else in PATH, as git and cargo do. It gets the
// arguments after the verb, and standard input and output stay. Returns where there is no such program. argv: a verb,
// its arguments, a null pointer.
void become_other_verb(char** argv) {
  const std::string name = program_prefix + std::string(argv[0]);
  if (name.find('/') != std::string::npos) return;  // a path
  ::execv((folder_of_this_program() / name).c_str(), argv);
  if (errno == ENOENT) ::execvp(name.c_str(), argv);
  // EACCES: also where a folder of PATH may not be read.
  if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) return;
  throw Error(name + " cannot be started: " + std::generic_category().message(errno), Error::Kind::configuration);
}

// Returns the verb that another program runs in place of this one's: the laws of plugins, for example, are tried for
// `vernier check plugin.so`.
std::string_view handed_on(std::string_view verb, std::span<char* const> words) {
  if (verb == "new" && !words.empty() && words.front() == std::string_view("toml")) return "new-toml";
  for (const std::string_view word : words) {
    const bool is_library = word.ends_with(".so") && word.find('=') == word.npos;
    if (verb == "check" && is_library) return "check-plugin";
    if (verb == "config" && word == "--schema") return "schema";
  }
  return verb;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they are not ready so early
// Becomes the program of a built verb. The dynamic loader calls it before it initialises LibTorch, which takes a fifth
// of a second here, and the other program would wait for it once more. No library is ready yet, so it takes no memory
// from the heap. If it fails, it returns, and main() says why.
void become_built_verb(int argc, char** argv, char** environment) {
  if (argc < 2) return;
  const auto verb = handed_on(argv[1], std::span(argv + 2, argv + argc));
  if (std::ranges::find(built_verbs, verb, &Summary::name) == std::end(built_verbs)) return;
  std::array<char, PATH_MAX> place{};
  const auto length = ::readlink("/proc/self/exe", place.data(), place.size());
  if (length <= 0) return;
  const auto folder = std::string_view(place.data(), static_cast<std::size_t>(length)).rfind('/') + 1;
  const std::string_view prefix = program_prefix;
  if (folder + prefix.size() + verb.size() >= place.size()) return;
  auto end = std::ranges::copy(prefix, place.begin() + static_cast<std::ptrdiff_t>(folder)).out;
  end = std::ranges::copy(verb, end).out;
  *end = '\0';
  auto* const given = argv[1];
  argv[1] = place.data() + folder + prefix.size();
  ::execve(place.data(), argv + 1, environment);
  argv[1] = given;
}

[[gnu::used, gnu::section(".preinit_array")]] void (*const before_libraries)(int, char**, char**) = become_built_verb;
#endif

// The verbs of the programs that lie beside this one.
std::vector<std::string> other_verbs() {
  std::vector<std::string> verbs;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of_this_program(), none)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(program_prefix)) verbs.push_back(name.substr(std::string(program_prefix).size()));
  }
  return verbs;
}

int print_config(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("config only prints; leave --resume out");
  auto merged = merged_config(given);
  if (given.count("low-memory") != 0) merged = with_low_memory(std::move(merged), make_host(given, words_of(given)));
  std::cout << to_toml(merged, /*with_places=*/true);
  return 0;
}

std::string compiler() {
#ifdef __clang__
  return std::string("clang ") + __clang_version__;
#else
  return std::string("gcc ") + __VERSION__;
#endif
}

// Returns true if this LibTorch was compiled with CUDA; no library is opened to find out.
bool has_cuda() {
  return boost::dll::fs::exists(boost::dll::symbol_location(at::globalContext).parent_path() / "libtorch_cuda.so");
}

std::string version_line() {
  return std::string("vernier ") + VERNIER_VERSION + ", plugin ABI " + abi_text(VERNIER_ABI) + ", " + VERNIER_BUILD;
}

int print_version(bool as_json) {
  const OrderedJson version = {{"name", "vernier"},         {"version", VERNIER_VERSION},
                               {"plugin_abi", VERNIER_ABI}, {"build", VERNIER_BUILD},
                               {"libtorch", TORCH_VERSION}, {"cuda", has_cuda()},
                               {"compiler", compiler()},    {"cxx11_abi", _GLIBCXX_USE_CXX11_ABI == 1}};
  if (as_json) {
    std::cout << json_text(version, 2) << '\n';
    return 0;
  }
  std::cout << version_line() << "\ncompiled by " << compiler() << "; LibTorch " << TORCH_VERSION
            << (has_cuda() ? " with CUDA\n" : " without CUDA\n");
  return 0;
}

int plugins(const po::variables_map& given) {
  const Host host = make_host(given);
  if (words_of(given).empty()) {
    list_plugins(host);
  } else {
    for (const auto& id : words_of(given)) describe_plugin(host, id);
  }
  return 0;
}

po::options_description with_flag(po::options_description options, const char* flag) {
  options.add_options()(flag, "");
  return options;
}

std::vector<Verb> verbs() {
  const auto configuration = configuration_options();
  po::options_description folders;
  folders.add_options()("plugin-path", po::value<std::vector<std::string>>());
  const auto words = words_of_shorthands();
  return {{"train", train_usage, configuration, train, words},
          {"config", config_usage, with_flag(configuration, "schema"), print_config, words},
          {"plugins", plugins_usage, folders, plugins},
          {"version", version_usage, with_flag({}, "json"),
           [](const auto& given) { return print_version(given.count("json") != 0); }}};
}

void print_summaries(std::ostream& out, std::span<const Summary> all) {
  constexpr std::size_t column = 14;
  for (const auto& [name, text] : all) {
    if (text.empty()) continue;  // a program that handed_on() names
    out << "  " << name << std::string(column - name.size(), ' ') << text << '\n';
  }
}

void print_usage(std::ostream& out) {
  out << "usage: vernier VERB …\n\n";
  print_summaries(out, own_verbs);
  out << '\n';
  print_summaries(out, built_verbs);
  out << R"(
Any other verb runs the program vernier-VERB of PATH. `vernier VERB --help` has the options of a verb.

In the source tree ./vernier builds what is missing and knows four verbs more:
  build                  builds the program and its plugins
  test [CTEST OPTIONS]   builds and runs the tests
  bench [NAME…]          builds and runs the benchmarks
  gpu-pack               packs them for a bare machine with a GPU
)";
}

std::vector<std::string> names_of_verbs() {
  auto names = other_verbs();
  std::erase_if(names, [](const auto& name) {
    const auto built = std::ranges::find(built_verbs, name, &Summary::name);
    return built != std::end(built_verbs) && built->text.empty();
  });
  for (const auto& verb : own_verbs) names.emplace_back(verb.name);
  return names;
}

// Prints what a shell offers, for the scripts in framework/runner/shell: `vernier complete WORD…`.
int complete(int argc, char** argv, const std::vector<Verb>& verbs) {
  std::size_t cut = 0;
  const auto words = joined_pieces({argv + 2, argv + argc}, cut);
  const auto own = std::ranges::find(verbs, words.front(), &Verb::name);
  const Host host(plugin_folders({}, "--plugin-path ", {}));
  auto found = completions(words, names_of_verbs(), own == verbs.end() ? nullptr : &*own, host);
  // Another program has the verb. One that was not built with this program may not know `complete`, and do its work.
  const bool is_built = std::ranges::find(built_verbs, words.front(), &Summary::name) != std::end(built_verbs);
  if (found.empty() && is_built && words.size() > 1) {
    std::swap(argv[1], argv[2]);
    become_other_verb(argv + 1);
  }
  for (const auto& word : found) std::cout << word.substr(cut) << '\n';
  return 0;
}

[[noreturn]] void refuse_verb(const std::string& verb) {
  if (verb.starts_with("-")) refuse("say a verb first, and its options after it; see vernier --help");
  const auto near = nearest(verb, names_of_verbs());
  refuse("there is no verb \"" + shortened(verb) + "\"" +
         (near.empty() ? "; see vernier --help" : "; did you mean " + near + "?"));
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_usage(std::cerr);
    return 2;
  }
  std::string help = "--help";
  if (std::string_view(argv[1]) == "help") {  // `vernier help check` is `vernier check --help`
    argv[1] = argc == 2 ? help.data() : argv[2];
    if (argc > 2) argv[2] = help.data();
  }
  std::string word(handed_on(argv[1], std::span(argv + 2, argv + argc)));
  argv[1] = word.data();
  if (word == "--help" || word == "--version") {
    word == "--help" ? print_usage(std::cout) : void(std::cout << version_line() << '\n');
    return 0;
  }
  const auto known = verbs();
  if (word == "complete") return complete(argc, argv, known);
  const auto verb = std::ranges::find(known, word, &Verb::name);
  if (verb != known.end()) return run_verb_with_hints(*verb, argc - 1, argv + 1);
  if (!word.starts_with("-")) become_other_verb(argv + 1);
  refuse_verb(word);
}

}  // namespace

}  // namespace vernier

// Exit status: 0 done, 2 wrong configuration or usage, 3 plugin refused, 4 training failed, 5 trained to the end and
// diverged, 128 + n stopped by signal n after a checkpoint, 124 by [run] time_limit.
int main(int argc, char** argv) {
  return vernier::run_program([&] { return vernier::run(argc, argv); });
}
