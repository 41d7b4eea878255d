// The program `vernier-train`: the verbs train, config, plugins and version.
#include <ATen/Context.h>
#include <torch/headeronly/version.h>
#include <vernier/error.h>

#include <algorithm>
#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>

#include "cli/options/completion.h"
#include "cli/options/plugin_list.h"
#include "command.h"
#include "common/config/plugin_folders.h"
#include "common/config/shorthands.h"
#include "common/version_line.h"
#include "files/json.h"
#include "output/status.h"
#include "program.h"
#include "run/process/device.h"

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
  --trust                resumes a run that others made, with the libraries that its checkpoint names
  --plugin-path FOLDER   looks for <role>/<name>.so there first; may be repeated; then in $VERNIER_PLUGIN_PATH, in the
                         folder plugins beside FILE, in ~/.local/share/vernier/plugins, and in the installation
  --quiet                train prints warnings and errors only, and no progress
  --debug                debug lines of the log too
  --help, --version

for people who come from other trainers; each is short for --set
  --mixed-precision no|fp16|bf16|fp8   precision.use; fp16 brings scaler.use=dynamic where the files have no [scaler]
  --amp-opt-level O0|O1|O2|O3          precision.level
  --grad-scaler-init SCALE             scaler.init_scale; needs a scaler, as --mixed-precision fp16 brings it
  --grad-scaler-growth-interval STEPS  scaler.growth_interval
  --grad-scaler-backoff FACTOR         scaler.backoff_factor
  --grad-accum-steps NUMBER            accumulation.use=target and accumulation.gradient_accumulation_steps: an update
                                       takes so many batches, batch_size x NUMBER samples
  --batch-size SAMPLES                 task.batch_size
  --epochs EPOCHS                      run.epochs, instead of run.steps
  --grad-ckpt                          task.recompute=full: activations are computed again; see docs/guides/memory.md

  --low-memory           switches on what plugins name as saving memory, where the files do not say else;
                         each logs its cost: see docs/guides/accumulation.md
)";

constexpr const char* config_usage = R"(usage: vernier config FILE… [--set KEY=VALUE]…
       vernier config --schema [ROLE/NAME]…

Prints the merged configuration, with the place of each value.

  --resume=PATH          without FILE, prints that of the run or checkpoint at PATH
  --schema               prints a JSON Schema of configurations, with which editors check and complete
  The options of `vernier train` that change a configuration; see vernier train --help.
)";

constexpr const char* plugins_usage = R"(usage: vernier plugins [ROLE/NAME]… [--plugin-path FOLDER]…

Lists the plugins, or the options of those that are named; `run` names the options of [run].
)";

constexpr const char* version_usage = R"(usage: vernier version [--json]

Prints what this program was built of.
)";

int print_config(const po::variables_map& given) {
  print_result([&] {
    auto merged = merged_config(given);
    if (given.count("low-memory") != 0) merged = with_low_memory(std::move(merged), make_host(given, words_of(given)));
    return to_toml(merged, /*with_places=*/true);
  });
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

int print_version(bool as_json) {
  OrderedJson version = {{"name", "vernier"},         {"version", VERNIER_VERSION},
                         {"plugin_abi", VERNIER_ABI}, {"build", VERNIER_BUILD},
                         {"libtorch", TORCH_VERSION}, {"cuda", has_cuda()},
                         {"compiler", compiler()},    {"cxx11_abi", _GLIBCXX_USE_CXX11_ABI == 1}};
  if (as_json) {
    version["hardware"] = hardware_status(open_device("auto").type());  // opens LibTorch's CUDA library for a GPU
    std::cout << json_text(version, 2) << '\n';
    return 0;
  }
  std::cout << version_line << "\ncompiled by " << compiler() << "; LibTorch " << TORCH_VERSION
            << (has_cuda() ? " with CUDA\n" : " without CUDA\n");
  return 0;
}

int plugins(const po::variables_map& given) {
  const Host host = make_host(given);
  if (words_of(given).empty()) list_plugins(host);
  for (const auto& id : words_of(given)) describe_plugin(host, id);
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

// Prints what a shell offers for the last of the words behind the verb.
int complete(const Verb& verb, const std::vector<std::string>& pieces) {
  std::size_t cut = 0;
  const auto words = joined_pieces(pieces, cut);
  const Host host(plugin_folders({}, "--plugin-path ", {}));
  print_result([&] {
    std::string lines;
    for (const auto& word : completions(verb, words, host)) lines += word.substr(cut) + '\n';
    return lines;
  });
  return 0;
}

// argv[0]: vernier-VERB as `vernier` calls this program; another name means train.
int run(int argc, char** argv) {
  const auto known = verbs();
  const auto name = std::filesystem::path(argv[0]).filename().string();
  const auto found = std::ranges::find(known, name, [](const Verb& verb) { return "vernier-" + verb.name; });
  const auto& verb = found == known.end() ? known.front() : *found;
  if (argc > 1 && argv[1] == std::string("complete")) return complete(verb, {argv + 2, argv + argc});
  return run_verb_with_hints(verb, argc, argv);
}

}  // namespace

}  // namespace vernier

// Exit status: 0 done, 2 wrong configuration or usage, 3 plugin refused, 4 training failed, 5 trained to the end and
// diverged, 128 + n stopped by signal n after a checkpoint, 124 by [run] time_limit.
int main(int argc, char** argv) {
  return vernier::run_program([&] { return vernier::run(argc, argv); });
}
