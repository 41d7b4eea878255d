#include "profile.h"

#include <vernier/error.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "run/prepared.h"
#include "tools/common/scratch_folder.h"
#include "wiring/config.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t warm_up = 4;  // steps before those that are recorded

Value word(const std::string& text) {
  return {text, "vernier profile"};
}
Value number(std::int64_t value) {
  return {value, "vernier profile"};
}

// The listeners of the run's own callbacks are a part of its steps, so they stay.
Table with_profiler(Table config, std::int64_t steps, const std::string& trace) {
  config.erase(Monitor::role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", word("none")}}, "vernier profile"});
  auto& run = std::get<Table>(config.try_emplace("run", Value{Table{}, ""}).first->second.data);
  run.insert_or_assign("validate_every", number(0));
  for (const char* key : {"time_limit", "requeue", "resume"}) run.erase(key);
  auto& callbacks = config.try_emplace(Callback::role, Value{Array{}, ""}).first->second;
  if (auto* all = std::get_if<Array>(&callbacks.data)) {  // anything else is refused by prepare()
    Table profiler = {{"use", word("profiler")},
                      {"first_step", number(warm_up + 1)},
                      {"steps", number(steps)},
                      {"trace", word(trace)}};
    all->push_back({std::move(profiler), "vernier profile"});
  }
  return config;
}

}  // namespace

int profile(Table config, std::int64_t steps, const std::string& trace, const std::string& name, const Host& host,
            const std::atomic<int>& stop) {
  const ScratchFolder scratch;
  const auto whole = fs::absolute(trace).string();
  if (std::ofstream file(whole, std::ios::app); !file) refuse(trace + ": cannot be written");
  const auto prepared =
      prepare(with_profiler(std::move(config), steps, whole), name, host, stop, [](auto&&...) { return false; });
  prepared->run.output = scratch.path();
  prepared->run.quiet = true;
  auto& run = prepared->run;
  while (run.step < warm_up + steps && stop == 0 && prepared->trainer.train_step(run)) {
  }
  std::ifstream table(scratch.path() + "/profile.txt");
  if (!table) {
    throw Error(c10::str("the run ended after ", run.step, " steps, before the ", steps, " that follow the first ",
                         warm_up, " were recorded; give fewer with --steps"));
  }
  std::cout << table.rdbuf() << "trace: " << trace << " (open it in https://ui.perfetto.dev)\n";
  return 0;
}

}  // namespace vernier
