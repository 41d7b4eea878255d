// `vernier replay`: any step of a run again, bit for bit.
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>

#include "cli/command.h"
#include "cli/program.h"
#include "common/text/quoting.h"
#include "replay.h"
#include "replayed_run.h"

namespace vernier {

using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier replay CAPSULE [--precision NAME] [--set KEY=VALUE]…
       vernier replay RUN --step N [--precision NAME] [--set KEY=VALUE]…
       vernier replay RUN --step N..M --watch LAYER
       vernier replay RUN --against OTHER

Runs a step again and traces every operation: a step that callback/flight_recorder kept (CAPSULE), or any step of a run,
with the ranges of each layer.

  --step N               the step, counted from 1
  --precision NAME       runs the step a second time in this precision, beside the first
  --set KEY=VALUE        runs the step a second time with this change, beside the first
  --watch LAYER          the ranges of one layer, a line for each of the steps
  --against OTHER        finds the first step, layer and operation in which two runs differ
  --trust                runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER   looks for plugins there first
)";

int call(const boost::program_options::variables_map& given) {
  const auto paths = words_of(given);
  if (paths.empty()) {
    refuse("name a run or a capsule, as in `vernier replay runs/NAME --step 124`; see vernier replay --help");
  }
  if (paths.size() > 1) refuse("replay takes one run or capsule, and " + paths[1] + " is a second");
  const auto& path = paths.front();
  const auto text = [&](const char* option) { return word_or(given, option, ""); };
  auto sets = words_in(given, "set");
  if (given.count("precision") != 0) sets.push_back("precision.use=" + toml_quoted(text("precision")));
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

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  if (std::filesystem::path(argv[0]).filename() == "vernier-data") return vernier::call_data(argc, argv);
  namespace po = boost::program_options;
  po::options_description options;
  options.add_options()("trust", "");
  for (const char* name : {"set", "plugin-path"}) options.add_options()(name, po::value<std::vector<std::string>>());
  for (const char* name : {"step", "watch", "against", "precision"})
    options.add_options()(name, po::value<std::string>());
  return vernier::call_run_verb({"replay", vernier::usage, options, vernier::call}, argc, argv);
}
