// `vernier data`: the samples that a step of a run trained on, by name.
#include <vernier/error.h>

#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "replay.h"
#include "replayed_run.h"

namespace vernier {

using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier data RUN --step N
       vernier data RUN --step N..M

Prints the samples that a step of a run trained on: the place of each in the data set, with its file and line, its row or
its place in a text. The steps since the newest checkpoint before it are trained again in memory, so the answer holds
for runs that went back, skipped steps or changed the size of an update too. The run's files are only read.

  --step N               the step, counted from 1, or a range of steps
  --plugin-path FOLDER   looks for plugins there first
)";

// "sample 40217 ('reviews.jsonl' line 40218)"
std::string name_of(const Task& task, std::int64_t index) {
  const auto name = c10::str("sample ", index), where = task.where(index);
  return where == name || where.empty() ? name : name + " (" + where + ")";
}

void print_step(const Task& task, const StepView& view) {
  const auto& indices = view.capsule.batch.indices;
  if (indices.empty()) {
    refuse(task.id() +
           " does not say which samples a batch has; a task of your own sets Batch::indices, as "
           "vernier::DataLoader does");
  }
  std::cout << "step " << view.step << ": " << indices.size() << (indices.size() == 1 ? " sample\n" : " samples\n");
  for (const auto index : indices) std::cout << "  " << name_of(task, index) << '\n';
  for (const auto& notice : view.notices) std::cout << notice.text() << '\n';
  std::cout << std::flush;
}

int call(const boost::program_options::variables_map& given) {
  const auto paths = words_of(given);
  if (paths.size() != 1 || given.count("step") == 0) {
    refuse("name a run and a step, as in `vernier data runs/NAME --step 124`; see vernier data --help");
  }
  if (!is_run(paths.front())) refuse(paths.front() + ": is not the folder of a run");
  const auto steps = steps_of(word_or(given, "step", ""));
  listen_for_signals();
  ReplayedRun replayed(paths.front(), make_host(given), stop_signal(), ReplayedRun::Needs::batches);
  replayed.refuse_later_than(steps.last);
  replayed.start_before(steps.first,
                        [&](std::int64_t step) { return step < steps.first ? Look::digests : Look::capsule; });
  for (auto step = steps.first; step <= steps.last; ++step) {
    print_step(*replayed.prepared().wiring->task, replayed.go_to(step));
  }
  return 0;
}

}  // namespace

int call_data(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options;
  options.add_options()("plugin-path", po::value<std::vector<std::string>>())("step", po::value<std::string>());
  return call_run_verb({"data", usage, options, call}, argc, argv);
}

}  // namespace vernier
