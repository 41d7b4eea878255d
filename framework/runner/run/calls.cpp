#include "calls.h"

#include "core/plugin_calls.h"
#include "run/process/crash.h"
#include "run/process/warnings.h"

namespace vernier {

std::string Calls::moment(const Run& run) const {
  return step_ > 0      ? " in step " + std::to_string(step_)
         : run.step > 0 ? " after step " + std::to_string(run.step)
                        : "";
}

const Plugin* Calls::running() const {
  return listening_now() != nullptr ? listening_now() : called_;
}

void Calls::attributed(const Run& run, const std::function<void()>& body) {
  const CallsWatched watched(called_, run, step_);
  Warnings warnings(warnings_, [&] {
    const auto* plugin = running();
    return (plugin != nullptr ? plugin->id() : "trainer") + moment(run);
  });
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  try {
    body();
  } catch (...) {
    const auto when = moment(run);
    step_ = 0;
    const std::string who = called_ != nullptr ? called_->id() : "trainer";
    const bool is_configured = caught().kind == Error::Kind::configuration && called_ != nullptr;
    rethrow_naming(who, when, Error::Kind::training, is_configured ? wiring_.table_of(*called_).where : "");
  }
}

void Calls::attributed_in_step(const Run& run, const std::function<void()>& body) {
  attributed(run, [&] {
    const auto step = in_step(run);
    body();
  });
}

}  // namespace vernier
