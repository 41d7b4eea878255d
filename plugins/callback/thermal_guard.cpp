// thermal_guard: pauses or slows the training while the machine is too hot.
//   limit = 85.0                  degrees Celsius from which on it acts
//   resume_at = 80.0              degrees Celsius at which it stops acting
//   action = "pause"              "pause" waits before the next step; "slow" waits as long as the step before took
//   sensor = "auto"               "auto" is the run's GPU, or the processor in a run on a CPU; or a file with
//                                 millidegrees, such as /sys/class/thermal/thermal_zone0/temp
//   interval = 1.0                seconds between two readings, on a thread of its own
//   nvml = "libnvidia-ml.so.1"    the library of the NVIDIA driver that is asked about the run's GPU
// It changes no number of the run. The log says when it begins to act and when it stops. A signal ends the pause. Where
// no temperature can be read, the run is refused. Source of the readings: those of callback/hardware. That of the rule:
// hysteresis, as in a thermostat.
#include <vernier/sdk.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "hardware/sensors.h"

using vernier::Event;
using vernier::Readings;
using vernier::Run;
using Clock = std::chrono::steady_clock;

class ThermalGuard final : public vernier::Callback {
 public:
  explicit ThermalGuard(vernier::Options& options)
      : limit_(options.get("limit", 85.0, "degrees Celsius from which on it acts", vernier::between(0, 150))),
        resume_at_(
            options.get("resume_at", 80.0, "degrees Celsius at which it stops acting", vernier::between(0, 150))),
        pauses_(options.choose("action", "pause", {"pause", "slow"}, "what it does while it is too hot") == "pause"),
        sensor_(options.get("sensor", "auto", "\"auto\", or a file with millidegrees Celsius")),
        interval_(options.get("interval", 1.0, "seconds between two readings", vernier::at_least(0.01))),
        library_(options.get("nvml", "libnvidia-ml.so.1", "library that is asked about an NVIDIA GPU")) {
    if (resume_at_ > limit_) options.refuse("resume_at", "is above limit, so it would never act twice");
    for (const char* key : {"limit", "resume_at", "action", "sensor", "interval", "nvml"}) options.resumable(key);
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) { guard(run); });
    bus.on(Event::StepEnd, [this](Run&) { step_took_ = Clock::now() - step_began_; });
  }

  // The thread begins here, so that a machine without a sensor is refused before the first step.
  void prepare(Run& run) override {
    thread_.emplace(reader(run.device), interval_);
    if (!temperature()) {
      throw vernier::Error("no temperature can be read: " + why_ +
                           "; set `sensor` to a file with millidegrees Celsius");
    }
  }

 private:
  std::function<Readings()> reader(torch::Device device) {
    if (sensor_ != "auto") {
      why_ = sensor_ + " has no number";
      return [file = sensor_] {
        Readings readings;
        double millidegrees = 0;
        if (std::ifstream(file) >> millidegrees) readings.cpu_temperature = millidegrees / 1e3;
        return readings;
      };
    }
    if (device.is_cuda()) {
      const std::shared_ptr<vernier::Nvml> nvml = vernier::Nvml::open(library_, device.index(), why_);
      return [nvml] {
        Readings readings;
        if (nvml) nvml->read(readings);
        return readings;
      };
    }
    why_ = "the kernel shows no sensor of a processor in /sys/class/thermal and /sys/class/hwmon";
    return [machine = std::make_shared<vernier::LinuxSensors>()] {
      Readings readings;
      machine->read(readings);
      return readings;
    };
  }

  std::optional<double> temperature() const {
    const auto readings = thread_->newest();
    return readings.gpu_temperature ? readings.gpu_temperature : readings.cpu_temperature;
  }

  void guard(Run& run) {
    look(run);
    const auto begun = Clock::now();
    constexpr std::chrono::milliseconds nap{10};
    while (is_hot_ && !run.is_stopping() && (pauses_ || Clock::now() - begun < step_took_)) {
      std::this_thread::sleep_for(nap);
      look(run);
    }
    step_began_ = Clock::now();
  }

  // A sensor that fails in mid-run does not stop the run.
  void look(const Run& run) {
    const auto degrees = temperature();
    const bool was_hot = is_hot_;
    is_hot_ = degrees && (was_hot ? *degrees > resume_at_ : *degrees >= limit_);
    if (is_hot_ == was_hot) return;
    const auto now = degrees ? c10::str(*degrees, " degrees Celsius") : std::string("no temperature");
    if (is_hot_) {
      warn("step ", run.step + 1, ": it has ", now, pauses_ ? ": training pauses" : ": training is slowed",
           " until it has ", resume_at_);
    } else {
      info("step ", run.step + 1, ": it has ", now, ": training goes on");
    }
  }

  double limit_, resume_at_;
  bool pauses_;
  std::string sensor_;
  double interval_;
  std::string library_, why_;
  bool is_hot_ = false;
  Clock::time_point step_began_;
  Clock::duration step_took_{};
  std::optional<vernier::SensorThread> thread_;
};

VERNIER_PLUGIN(ThermalGuard, "thermal_guard", "1.0.0")
