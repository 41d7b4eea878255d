// Requests of plugins to the trainer, as plain data. TrainerControl stores them, RequestHandler carries them out.
#pragma once

#include <vernier/between_steps.h>
#include <vernier/plugin.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// Main thread only.
struct Requests {
  // Carried out after the step.
  struct Pending {
    Table swap;
    std::string swapper;  // who has asked for it last
    Plugin* rewinder = nullptr;
    std::int64_t back = 0, drop = 0;
    std::string also;
    const Plugin* failing = nullptr;
    std::string why;
  };
  Pending pending;
  std::string asked;     // what this rank has asked for since the ranks agreed last: "finish by callback/x"
  std::string finished;  // the plugin that ends the run before its last planned step, and why; "": none
  std::vector<std::pair<const Plugin*, std::function<bool(BetweenSteps&)>>> looks;  // Control::between_steps
};

}  // namespace vernier
