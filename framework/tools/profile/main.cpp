// `vernier profile`: where the time of a step goes.
#include <vernier/error.h>
#include <vernier/options.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/low_memory.h"
#include "cli/program.h"
#include "output/log.h"
#include "profile.h"

namespace vernier {

namespace fs = std::filesystem;
using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier profile FILE… [--steps N] [--output FILE] [--set KEY=VALUE]…

Trains the first steps of a run under LibTorch's profiler. Prints a table of where their time goes, and writes a trace
for https://ui.perfetto.dev.

  --steps N              the steps that are recorded (20)
  --output FILE          the trace (profile.json)
  The options of `vernier train` that change a configuration; see vernier train --help.
)";

int call(const boost::program_options::variables_map& given) {
  if (wants_to_resume(given)) refuse("profile trains the first steps of a new run; leave --resume out");
  auto config = merged_config(given);
  const auto host = make_host(given, words_of(given));
  if (given.count("low-memory") != 0) config = with_low_memory(std::move(config), host);
  const auto steps = parse_value(word_or(given, "steps", "20"), "--steps");
  const auto* number = std::get_if<std::int64_t>(&steps.data);
  if (number == nullptr || *number < 1 || *number > 1000) refuse("--steps must be an integer from 1 to 1000");
  const fs::path first = words_of(given).front();
  listen_for_signals();
  set_log_level(static_cast<int>(Level::error));  // `vernier check` has the rest
  return profile(std::move(config), *number, word_or(given, "output", "profile.json"), first.stem().string(), host,
                 stop_signal());
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::configuration_options();
  options.add_options()("steps", po::value<std::string>())("output", po::value<std::string>());
  return vernier::call_run_verb({"profile", vernier::usage, options, vernier::call}, argc, argv);
}
