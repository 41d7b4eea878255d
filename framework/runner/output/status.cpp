#include "status.h"

#include <ATen/DeviceAccelerator.h>
#include <vernier/hardware.h>
#include <vernier/memory.h>

#include <tuple>

#include "common/text/numbers.h"
#include "files/json.h"
#include "output.h"
#include "run/process/device.h"

namespace vernier {

namespace {

const char* word_of(c10::ScalarType dtype) {
  if (dtype == c10::kBFloat16) return "bfloat16";
  return dtype == c10::kHalf ? "float16" : dtype == c10::kDouble ? "float64" : "float32";
}

class StatusFile final : public Monitor {
 public:
  StatusFile(std::string path, const Roles& roles, bool logs_steps)
      : path_(std::move(path)), roles_(roles), logs_steps_(logs_steps) {
    set_id("monitor/status");
  }

  void attach(Bus& bus) override {
    bus.on(Event::StepEnd, [this](const Run& run) {
      if (logs_steps_) log(Level::debug, "precision", c10::str("step ", run.step, ": ", status_line(run, roles_)));
      const std::tuple now(roles_.wiring.precision.get(), roles_.wiring.scaler.get(), roles_.precision.dtype());
      if (std::exchange(in_force_, now) != now) write(run);
    });
    for (const auto end : {Event::RunEnd, Event::RunFailed}) bus.on(end, [this](const Run& run) { write(run); });
  }

 private:
  void write(const Run& run) const try {
    write_file(path_, json_text(status_of(run, roles_), 2) + "\n");
  } catch (const Error& error) {  // a full disk ends no run
    log(Level::warning, "output", error.what());
  }

  std::string path_;
  const Roles& roles_;
  bool logs_steps_;
  std::tuple<const Precision*, const Scaler*, std::optional<c10::ScalarType>> in_force_;  // at the last step
};

}  // namespace

OrderedJson hardware_status(c10::DeviceType device) {
  const auto [name, bf16, fp16, fp8, capability] = hardware_of(device);
  return {{"name", name}, {"cuda", capability > 0}, {"bf16", bf16}, {"fp16", fp16}, {"fp8", fp8}};
}

OrderedJson status_of(const Run& run, const Roles& roles) {
  const auto& precision = *roles.wiring.precision;
  const auto& scaler = *roles.wiring.scaler;
  const auto or_null = [](const auto& value) { return value ? OrderedJson(*value) : OrderedJson(); };
  const auto dtype = roles.precision.dtype();
  const auto scale = scaler.scales() ? run.amp.current_scale() : std::nullopt;
  OrderedJson status = {{"step", run.step}, {"device", run.device.str()}, {"precision", precision.id()}};
  status["dtype"] = dtype ? OrderedJson(word_of(*dtype)) : OrderedJson();
  status["description"] = precision.describe();
  status["scaler"] = scaler.scales() ? OrderedJson(scaler.id()) : OrderedJson();
  status["scale"] = or_null(scale);
  status["growth_tracker"] = scale ? or_null(run.amp.growth_tracker()) : OrderedJson();
  status["hardware"] = hardware_status(run.device.type());
  const auto allocated = allocated_memory(run.device).now;  // 0 on a CPU where nobody counts
  std::optional<std::int64_t> reserved;
  status["memory_allocated"] = allocated > 0 ? OrderedJson(allocated) : OrderedJson();
  if (!run.device.is_cpu()) reserved = at::accelerator::getDeviceStats(run.device.index()).reserved_bytes[0].current;
  status["memory_reserved"] = or_null(reserved);
  status["memory_peak"] = peak_memory(run.device);
  return status;
}

std::string status_line(const Run& run, const Roles& roles) {
  const auto status = status_of(run, roles);
  std::string text = status["precision"];
  const auto add = [&](const std::string& before, const char* key) {
    const auto& value = status[key];
    if (value.is_null()) return;
    text += before + (value.is_string() ? value.get<std::string>() : print_number("%.10g", value.get<double>()));
  };
  add(" in ", "dtype");
  add("; ", "scaler");
  add(", scale ", "scale");
  add(", growth tracker ", "growth_tracker");
  for (const std::string kind : {"allocated", "reserved", "peak"}) {
    if (const auto& bytes = status["memory_" + kind]; !bytes.is_null()) text += "; " + kind + ' ' + memory_text(bytes);
  }
  return text;
}

std::unique_ptr<Monitor> status_file(std::string path, const Roles& roles, bool logs_steps) {
  return std::make_unique<StatusFile>(std::move(path), roles, logs_steps);
}

}  // namespace vernier
