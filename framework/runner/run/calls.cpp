#include "calls.h"

#include "core/plugin_calls.h"
#include "run/process/crash.h"
#include "run/process/warnings.h"

namespace vernier {

namespace {

// The place of the value in a plugin's table that an error quotes; of the table where it quotes none.
const std::string& place_of(const Value& table, const std::string& error) {
  const std::string* place = &table.where;
  std::size_t longest = 0;
  const std::function<void(const Value&)> look = [&](const Value& value) {
    if (const auto* text = std::get_if<std::string>(&value.data)) {
      if (text->size() <= longest || error.find("'" + *text + "'") == std::string::npos) return;
      longest = text->size();
      place = &value.where;
    } else if (const auto* list = std::get_if<Array>(&value.data)) {
      for (const auto& each : *list) look(each);
    } else if (const auto* inner = std::get_if<Table>(&value.data)) {
      for (const auto& [key, each] : *inner) look(each);
    }
  };
  look(table);
  return *place;
}

}  // namespace

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
    const auto error = caught();
    const bool is_configured = error.kind == Error::Kind::configuration && called_ != nullptr;
    rethrow_naming(who, when, Error::Kind::training,
                   is_configured ? place_of(wiring_.table_of(*called_), error.message) : "");
  }
}

void Calls::attributed_in_step(const Run& run, const std::function<void()>& body) {
  attributed(run, [&] {
    const auto step = in_step(run);
    body();
  });
}

}  // namespace vernier
