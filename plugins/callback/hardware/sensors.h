// Sensors of the machine: load, memory, temperature and energy from Linux, and an NVIDIA GPU's from NVML.
//
// Sources: proc(5); the kernel's Documentation/power/powercap/powercap.rst and admin-guide/thermal; NVML API Reference.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace vernier {

// A value is missing if the machine does not report it.
struct Readings {
  std::optional<double> cpu_load;         // share of all processors that were busy since the last reading
  std::optional<double> memory_resident;  // bytes of this process
  std::optional<double> cpu_energy;       // joules since the first reading
  std::optional<double> cpu_temperature;  // degrees Celsius, of the hottest sensor
  std::optional<double> gpu_temperature, gpu_power, gpu_clock, gpu_load;  // degrees Celsius, watts, hertz, share
};

// One thread at a time.
class LinuxSensors {
 public:
  explicit LinuxSensors(std::string root = "");  // root: of another /proc and /sys, for tests
  void read(Readings& into);

 private:
  void read_load(Readings& into);
  void read_energy(Readings& into);

  std::string root_;
  double busy_ = 0, all_ = 0;
  struct Counter {
    std::string folder;
    double last = 0, range = 0;  // microjoules; it starts again at 0 after range
  };
  std::vector<Counter> counters_;
  double microjoules_ = 0;
  std::vector<std::string> thermometers_;
};

// NVML, which the NVIDIA driver brings. It is opened at run time, so nothing is linked. One thread at a time.
class Nvml {
 public:
  // Returns nullptr if there is no such library, or it does not work; `why` says so. device: CUDA's number of the
  // GPU.
  static std::unique_ptr<Nvml> open(const std::string& library, int device, std::string& why);
  ~Nvml();
  void read(Readings& into) const;

 private:
  struct Functions;
  Nvml() = default;
  std::unique_ptr<Functions> functions_;
  void* gpu_ = nullptr;
};

// How NVML names CUDA's device number `device`, by the text of CUDA_VISIBLE_DEVICES: "2", or "GPU-8932f937-…".
std::string nvml_name(const char* visible_devices, int device);

// Reads all sensors on a thread of its own, at the start and then every so many seconds.
class SensorThread {
 public:
  SensorThread(std::function<Readings()> read, double seconds);
  Readings newest() const;  // any thread

 private:
  void work(const std::stop_token& stop);

  std::function<Readings()> read_;
  std::chrono::duration<double> pause_;
  Readings newest_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

}  // namespace vernier
