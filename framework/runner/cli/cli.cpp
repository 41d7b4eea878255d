#include "cli.h"

#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>

#include "checkpoint_tools.h"
#include "command.h"
#include "completion.h"
#include "core/printable.h"
#include "low_memory.h"
#include "other_verbs.h"
#include "output/log.h"
#include "output/recorded_run.h"
#include "plugin_list.h"
#include "profile.h"
#include "run/crash.h"
#include "run/device.h"
#include "schema.h"
#include "shorthands.h"
#include "tools/common/text.h"
#include "tools/replay/replay.h"
#include "tools/replay/travel.h"
#include "use_model.h"
#include "version.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace cli;

namespace {

constexpr const char* program_usage = R"(usage: vernier VERB …

  train FILE… [--set KEY=VALUE]… [--resume[=PATH]]   trains what the TOML files say, merged left to right
  check FILE… [--set KEY=VALUE]…                     all of it but the training: plugins, data, model, device,
                                                     one batch without an update, its memory, advice
  check PLUGIN.so [--set KEY=VALUE]…                 tries the laws of plugins on a library; see check x.so --help
  profile FILE… [--steps N] [--output FILE]          where the time of a step goes: a table of N steps (20), and a
                                                     trace (profile.json) for https://ui.perfetto.dev
  replay CAPSULE [--precision NAME] [--set …]…       runs a step that callback/flight_recorder kept again,
                                                     and traces it; beside it, with what --precision and --set change
  replay RUN --step N [--precision NAME] [--set …]…  the same for any step of a run, with the ranges of each layer
  replay RUN --step N..M --watch LAYER               the ranges of one layer, a line for each of the steps
  replay RUN --against OTHER                         the first step, layer and operation in which two runs differ
  evaluate RUN [--set …]…                            prints the metrics of a run's model on its validation data
  predict RUN --input FILE --output FILE             writes what it predicts: .csv, .npy or .jsonl
  export RUN --format FORMAT --output FILE           writes the model: torchscript, safetensors, python, or for language
                                                     models huggingface and peft
  config FILE… [--set KEY=VALUE]…                    prints the merged configuration, with the place of each value
  config --schema                                    prints a JSON Schema of it, with which editors check and complete
  version [--json]                                   prints what this program was built of
  plugins [ROLE/NAME]…                               lists the plugins, or the options of some
  checkpoint TOOL …                                  list, verify, show, export, import; see checkpoint --help
  runs [FOLDER]                                      lists runs: state, steps, losses, precision, time
  watch RUN                                          draws a run's losses from its files while it goes on
  report RUN… [--output FILE]                        writes a page of HTML: results, curves, differences
  compare FILE… [--sweep KEY=VALUE,VALUE]…           trains them with the same seeds, in turn: speed, memory, losses,
                                                     and which differences the seeds show
  launch -n RANKS FILE… [--restarts N]               trains with several processes on this machine; see launch --help
  serve FOLDER [--cores N] [--data FOLDER]…          a job server for this machine, with a page; see serve --help
  jobs submit|list|show|logs|cancel|retry|…          its client; see jobs --help
  audit verify FILE                                  checks the audit log of serve
  generate RUN --prompt TEXT                         continues a text with a run's language model, or a published one
  tokenize FILE… --tokenizer FOLDER --output FILE    writes the tokens of texts, or trains a tokenizer on them
  advise FILE… [--memory 8G] [--seconds 60]          measures it in other precisions, micro-batches and kernels here,
                                                     says which are best, and writes an overlay
  new plugin ROLE NAME | task NAME | app NAME        writes a folder to start from, which builds and runs at once
  VERB …                                             any other verb runs the program vernier-VERB of PATH

options
  --set KEY=VALUE        sets one value: run.steps=100, 'task.data=["a", "b"]', callback.clip_norm.max_norm=0.5
  --resume[=PATH]        resumes from the run's newest checkpoint, or from the run or checkpoint at PATH
  --allow-inexact        resumes even if the result will differ from an uninterrupted run
  --plugin-path FOLDER   looks for <role>/<name>.so there first; may be repeated; then in $VERNIER_PLUGIN_PATH, in the
                         folder plugins beside FILE, in ~/.local/share/vernier/plugins, and in the installation
  --find-lr              check also trains a copy of the model for 100 steps at ever higher learning rates, plots the
                         loss, and suggests a rate
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
  --grad-ckpt                          task.recompute=full: activations are computed again; see docs/memory.md

  --low-memory           switches on what saves memory, where the files do not say else:
                         accumulation.use=fit, task.recompute=full, optimizer.state=8bit; each logs its cost

In the source tree ./vernier builds what is missing and knows three verbs more:
  build                  builds the program and its plugins
  test [CTEST OPTIONS]   builds and runs the tests
  bench [NAME…]          builds and runs the benchmarks
)";

int profile(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("profile trains the first steps of a new run; leave --resume out");
  auto config = merged_config(given);
  const auto host = make_host(given);
  if (given.count("low-memory") != 0) config = with_low_memory(std::move(config), host);
  const auto steps = parse_value(word_or(given, "steps", "20"), "--steps");
  const auto* number = std::get_if<std::int64_t>(&steps.data);
  if (number == nullptr || *number < 1 || *number > 1000) refuse("--steps must be an integer from 1 to 1000");
  const fs::path first = given["argument"].as<std::vector<std::string>>().front();
  listen_for_signals();
  set_log_level(static_cast<int>(Level::error));  // `vernier check` has the rest
  return profile(std::move(config), *number, word_or(given, "output", "profile.json"), first.stem().string(), host,
                 stop_signal());
}

int replay(const po::variables_map& given) {
  if (given.count("argument") == 0) {
    refuse("name a run or a capsule, as in `vernier replay runs/NAME --step 124`; see vernier --help");
  }
  const auto& paths = given["argument"].as<std::vector<std::string>>();
  if (paths.size() > 1) refuse("replay takes one run or capsule, and " + paths[1] + " is a second");
  if (const auto words = shorthands_given(given); !words.empty()) {
    refuse(words.front() + " is for train and check; replay takes --precision NAME and --set KEY=VALUE");
  }
  const auto& path = paths.front();
  const auto text = [&](const char* option) { return word_or(given, option, ""); };
  auto sets = strings_of(given, "set");
  if (given.count("precision") != 0) sets.push_back("precision.use=" + text("precision"));
  const bool is_one_step = given.count("watch") == 0 && given.count("against") == 0;
  if (!is_one_step && !sets.empty()) refuse("--set and --precision replay a single step: say --step N alone");
  const auto host = make_host(given);
  if (is_run(path) && !is_checkpoint(path)) {
    listen_for_signals();
    if (given.count("against") != 0) return replay_against(path, text("against"), host, stop_signal());
    if (given.count("step") == 0) refuse(path + " is a run: say which step of it, --step N, or --against OTHER");
    const auto steps = steps_of(text("step"));
    if (given.count("watch") != 0) return watch_layer(path, steps, text("watch"), host, stop_signal());
    if (steps.first != steps.last) refuse("name a layer for a range of steps: --watch LAYER");
    return replay_step(path, steps.first, sets, host, stop_signal());
  }
  if (!is_one_step || given.count("step") != 0) refuse(path + ": is not a run, so it has no other steps");
  return replay_capsule(path, sets, host, stop_signal());
}

std::string word_of(const po::variables_map& given, const std::string& option, const std::string& example) {
  if (given.count(option) == 0) refuse("--" + option + " is missing, as in `" + example + "`");
  return given[option].as<std::string>();
}

// evaluate, predict and export: what a trained run is used for.
int use_run(const std::string& verb, const po::variables_map& given) {
  const std::string example = verb == "evaluate"  ? "vernier evaluate runs/NAME"
                              : verb == "predict" ? "vernier predict runs/NAME --input new.csv --output predictions.csv"
                                                  : "vernier export runs/NAME --format torchscript --output model.pt";
  if (given.count("argument") == 0) refuse("name a run or a checkpoint, as in `" + example + "`");
  const auto& paths = given["argument"].as<std::vector<std::string>>();
  if (paths.size() > 1) refuse(verb + " takes one run, and " + paths[1] + " is a second");
  auto sets = given.count("set") != 0 ? given["set"].as<std::vector<std::string>>() : std::vector<std::string>{};
  const auto more = sets_of_shorthands(given, sets, true);
  sets.insert(sets.end(), more.begin(), more.end());
  const auto host = make_host(given);
  listen_for_signals();
  if (verb == "evaluate") return evaluate_run(paths[0], sets, host, stop_signal());
  const auto output = word_of(given, "output", example);
  if (verb == "predict") {
    return predict_with_run(paths[0], sets, host, stop_signal(), word_of(given, "input", example), output);
  }
  return export_run(paths[0], sets, host, stop_signal(), word_of(given, "format", example), output);
}

int print_config(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("config only prints; leave --resume out");
  if (given.count("schema") == 0) {
    auto merged = merged_config(given);
    if (given.count("low-memory") != 0) merged = with_low_memory(std::move(merged), make_host(given));
    std::cout << to_toml_with_places(merged);
  } else if (given.count("argument") != 0) {
    refuse("--schema is that of every configuration; name no file");
  } else {
    std::cout << schema_of(make_host(given)).dump(2) << '\n';
  }
  return 0;
}

int plugins(const po::variables_map& given) {
  const Host host = make_host(given);
  if (given.count("argument") == 0) {
    list_plugins(host);
  } else {
    for (const auto& id : given["argument"].as<std::vector<std::string>>()) describe_plugin(host, id);
  }
  return 0;
}

// Options are written with hyphens; underscores mean the same: --batch_size is --batch-size.
std::string with_hyphens(std::string word) {
  const auto end = std::find(word.begin(), word.end(), '=');
  if (word.starts_with("--")) std::replace(word.begin(), end, '_', '-');
  return word;
}

po::options_description known_options() {
  po::options_description known;
  auto add = known.add_options();
  for (const char* name :
       {"verb", "resume", "precision", "input", "output", "format", "step", "steps", "watch", "against"})
    add(name, po::value<std::string>());
  for (const char* name : {"argument", "set", "plugin-path"}) add(name, po::value<std::vector<std::string>>());
  for (const char* name : {"resume-newest", "allow-inexact", "low-memory", "find-lr", "schema", "json", "quiet",
                           "debug", "help", "version"}) {
    add(name, "");
  }
  add_shorthands(known);
  return known;
}

po::variables_map parse(int argc, char** argv) {
  // Program_options would take the word behind a bare --resume, a TOML file, for its path.
  std::vector<std::string> words(argv + 1, argv + argc);
  std::ranges::transform(words, words.begin(), with_hyphens);
  std::replace(words.begin(), words.end(), std::string("--resume"), std::string("--resume-newest"));
  const auto known = known_options();
  po::positional_options_description places;
  places.add("verb", 1).add("argument", -1);
  po::variables_map given;
  try {
    po::store(po::command_line_parser(words).options(known).positional(places).run(), given);
  } catch (const po::unknown_option& unknown) {
    refuse(unknown.what() + hint_for_flag(unknown.get_option_name(), known) + "; see vernier --help");
  }
  return given;
}

// For the scripts in framework/runner/shell: `vernier complete WORD…`.
int complete(int argc, char** argv, std::vector<std::string> verbs) {
  const auto others = other_verbs();
  verbs.insert(verbs.end(), others.begin(), others.end());
  std::vector<std::string> flags;
  const auto options = known_options();
  for (const auto& option : options.options()) {
    const auto& name = option->long_name();
    if (name != "verb" && name != "argument" && name != "resume-newest") flags.push_back("--" + name);
  }
  for (const auto& each : completions({argv + 2, argv + argc}, verbs, flags, make_host(parse(2, argv)))) {
    std::cout << each << '\n';
  }
  return 0;
}

// `vernier check plugin.so`: the laws of plugins are tried by a program of its own.
bool is_check_of_plugin(int argc, char** argv) {
  return argc > 2 && argv[1] == std::string("check") && std::any_of(argv + 2, argv + argc, [](const std::string& word) {
           return word.ends_with(".so") && word.find('=') == std::string::npos;
         });
}

void refuse_option_of_another_verb(const po::variables_map& given, const std::string& verb) {
  if (given.count("precision") != 0 && verb != "replay") refuse("--precision is for replay; say --mixed-precision");
  const std::vector<std::pair<const char*, std::string>> owners = {
      {"steps", "profile"}, {"step", "replay"},   {"watch", "replay"}, {"against", "replay"},
      {"find-lr", "check"}, {"schema", "config"}, {"json", "version"}};
  for (const auto& [option, owner] : owners) {
    if (given.count(option) == 0 || verb == owner) continue;
    refuse(c10::str("--", option, " is for ", owner, "; say `vernier ", owner, " --", option, "`"));
  }
}

int run_verb(int argc, char** argv) {
  static char check_plugin[] = "check-plugin";
  if (is_check_of_plugin(argc, argv)) argv[1] = check_plugin;
  std::vector<std::string> known = {"train",  "check",   "config",  "evaluate",   "predict", "export",
                                    "replay", "profile", "plugins", "checkpoint", "version"};
  if (argc > 1 && argv[1] == std::string("complete")) return complete(argc, argv, known);
  const bool begins_with_verb = argc > 1 && argv[1][0] != '-';
  if (begins_with_verb && std::ranges::find(known, argv[1]) == known.end()) become_other_verb(argv + 1);
  if (argc > 1 && argv[1] == std::string("checkpoint")) return run_checkpoint_tool(argc - 1, argv + 1);
  const auto given = parse(argc, argv);
  if (given.count("version") != 0) {
    std::cout << version_line() << '\n';
    return 0;
  }
  if (given.count("help") != 0) {
    std::cout << program_usage;
    return 0;
  }
  if (given.count("verb") == 0) {
    std::cerr << program_usage;
    return 2;
  }
  set_log_level(static_cast<int>(log_level(given)));
  const auto& verb = given["verb"].as<std::string>();
  refuse_option_of_another_verb(given, verb);
  if (verb == "train") return train(given);
  if (verb == "check") return check(given);
  if (verb == "config") return print_config(given);
  if (verb == "plugins") return plugins(given);
  if (verb == "replay") return replay(given);
  if (verb == "profile") return profile(given);
  if (verb == "version") return print_version(given.count("json") != 0);
  if (verb == "evaluate" || verb == "predict" || verb == "export") return use_run(verb, given);
  const auto others = other_verbs();
  if (std::ranges::find(others, verb) != others.end())
    refuse("say `vernier " + verb + "` first, and its options after");
  known.insert(known.end(), others.begin(), others.end());
  const auto near = nearest(verb, known);
  refuse("there is no verb \"" + shortened(verb) + "\"" +
         (near.empty() ? "; see vernier --help" : "; did you mean " + near + "?"));
}

}  // namespace

int run_command_line(int argc, char** argv) {
  set_log_sink([](Level level, const std::string& who, const std::string& text) {
    write_log(static_cast<int>(level), who, printable(text, "\n\t"));
  });
  name_crashes();
  const ExitRefused no_exit;
  try {
    refuse_another_libtorch();
    return run_verb(argc, argv);
  } catch (const po::error& error) {
    std::cerr << "vernier: " << message(error) << "; see vernier --help\n";
    return 2;
  } catch (...) {
    const auto [text, kind] = caught();
    write_log(static_cast<int>(Level::error), "vernier", text);  // into the run's log too, where there is one
    return static_cast<int>(kind);
  }
}

}  // namespace vernier
