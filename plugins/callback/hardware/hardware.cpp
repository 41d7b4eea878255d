// hardware: reports load, memory, temperature and energy of the machine as metrics, for all monitors.
//   interval = 1.0                seconds between two readings, on a thread of its own
//   nvml = "libnvidia-ml.so.1"    the library of the NVIDIA driver that is asked about the run's GPU
// Always: cpu_load, memory_resident. Where LibTorch counts them: memory_allocated, the bytes of tensors. Where the
// kernel shows them: cpu_temperature, cpu_energy (RAPL; reading it takes root on most systems). In a run on an NVIDIA
// GPU: gpu_temperature, gpu_power, gpu_clock, gpu_load. Each step has the newest reading. docs/reference/metrics.md has
// the units. Source of the readings: proc(5), the kernel's powercap and thermal classes, and the NVML API Reference.
#include <vernier/memory.h>
#include <vernier/sdk.h>

#include <memory>
#include <optional>
#include <string>

#include "sensors.h"

namespace {

using vernier::Event;
using vernier::Run;

class Hardware final : public vernier::Callback {
 public:
  explicit Hardware(vernier::Options& options)
      : interval_(options.get("interval", 1.0, "seconds between two readings", vernier::at_least(0.01))),
        library_(options.get("nvml", "libnvidia-ml.so.1", "library that is asked about an NVIDIA GPU")) {
    options.resumable("interval");
    options.resumable("nvml");
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    const auto sensor = [](const char* name, const char* unit, const char* meaning, bool is_count = false) {
      return vernier::MetricInfo{.name = name, .unit = unit, .meaning = meaning, .is_count = is_count, .varies = true};
    };
    return {sensor("cpu_load", "ratio", "share of the machine's processors that were busy"),
            sensor("memory_resident", "bytes", "memory that the process holds"),
            sensor("memory_allocated", "bytes", "memory of tensors on the run's device, where it is counted"),
            sensor("cpu_temperature", "degrees Celsius", "temperature of the hottest sensor of a processor"),
            sensor("cpu_energy", "J", "energy of the processors since the process began", true),
            sensor("gpu_temperature", "degrees Celsius", "temperature of the run's GPU"),
            sensor("gpu_power", "W", "power that the run's GPU draws"),
            sensor("gpu_clock", "Hz", "clock of the processors of the run's GPU"),
            sensor("gpu_load", "ratio", "share of the time in which the run's GPU was busy")};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run& run) { begin(run); });
    bus.on(Event::UpdateDone, [this](Run& run) { report(run); });
  }

 private:
  void begin(const Run& run) {
    std::shared_ptr<vernier::Nvml> nvml;
    if (run.device.is_cuda()) {
      std::string why;
      nvml = vernier::Nvml::open(library_, run.device.index(), why);
      if (nvml == nullptr) warn("there are no numbers of the GPU: ", why);
    }
    const auto read = [nvml, machine = std::make_shared<vernier::LinuxSensors>()] {
      vernier::Readings readings;
      machine->read(readings);
      if (nvml) nvml->read(readings);
      return readings;
    };
    thread_.emplace(read, interval_);
  }

  void report(Run& run) const {
    if (!thread_) return;  // a step without a run, for `vernier check --find-lr`
    const auto readings = thread_->newest();
    const auto set = [&run](const char* name, const std::optional<double>& value) {
      if (value) run.metrics.set(name, *value);
    };
    set("cpu_load", readings.cpu_load);
    set("memory_resident", readings.memory_resident);
    if (const auto bytes = vernier::allocated_memory(run.device).now; bytes > 0) {
      run.metrics.set("memory_allocated", static_cast<double>(bytes));
    }
    set("cpu_temperature", readings.cpu_temperature);
    set("cpu_energy", readings.cpu_energy);
    set("gpu_temperature", readings.gpu_temperature);
    set("gpu_power", readings.gpu_power);
    set("gpu_clock", readings.gpu_clock);
    set("gpu_load", readings.gpu_load);
  }

  double interval_;
  std::string library_;
  std::optional<vernier::SensorThread> thread_;
};

}  // namespace

VERNIER_PLUGIN(Hardware, "hardware", "1.0.0")
