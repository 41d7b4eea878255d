// callback/hardware and callback/thermal_guard: readings of files and libraries that stand for a machine's.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "../../../plugins/callback/hardware/sensors.h"
#include "log_lines.h"
#include "monitored.h"
#include "patience.h"
#include "thrown.h"

namespace hardware_test {

using vernier::Callback;
using vernier::Event;
using vernier::LinuxSensors;
using vernier::Nvml;
using vernier::Readings;
using vernier::Run;

namespace {

// tests/fixtures/fake_nvml.cpp: a GPU of 66 degrees, 123.4 W, 1410 MHz, 87 %; 70 degrees if it is asked for by its
// UUID.
constexpr const char* fake_nvml = VERNIER_BINARY_DIR "/fixtures/libfake_nvml.so";

Readings read(LinuxSensors& sensors) {
  Readings readings;
  sensors.read(readings);
  return readings;
}

// A callback with a run around it.
struct Called {
  Called(const std::string& id, vernier::Table options, torch::Device device = torch::kCPU)
      : plugin(make_plugin<Callback>(id, std::move(options))) {
    run.device = device;
    vernier::HostApi::attach(bus, *plugin, false);
    plugin->prepare(run);
    vernier::HostApi::emit(bus, Event::RunBegin, run);
  }
  vernier::TrainerRun run;
  std::unique_ptr<Callback> plugin;
  vernier::Bus bus;
};

// At once, so that nobody reads half of it.
void set_temperature(const TemporaryFolder& folder, int millidegrees) {
  std::filesystem::rename(folder.write("next", std::to_string(millidegrees) + "\n"), folder.path() / "temp");
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("hardware: load, memory, temperature and energy are read as Linux shows them") {
  const TemporaryFolder root;
  root.write("proc/stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n");
  root.write("proc/self/statm", "1000 25 5 1 0 100 0\n");
  root.write("sys/class/powercap/intel-rapl:0/name", "package-0\n");
  root.write("sys/class/powercap/intel-rapl:0/energy_uj", "900\n");
  root.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "1000\n");
  root.write("sys/class/powercap/intel-rapl:0:0/name", "core\n");
  root.write("sys/class/powercap/intel-rapl:0:0/energy_uj", "1\n");
  root.write("sys/class/thermal/thermal_zone0/type", "iwlwifi\n");
  root.write("sys/class/thermal/thermal_zone0/temp", "99000\n");
  root.write("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
  root.write("sys/class/thermal/thermal_zone1/temp", "51000\n");
  root.write("sys/class/hwmon/hwmon0/name", "coretemp\n");
  root.write("sys/class/hwmon/hwmon0/temp1_input", "52500\n");
  LinuxSensors sensors(root.path().string());
  const auto first = read(sensors);
  CHECK_FALSE(first.cpu_load);  // there is nothing yet to compare with
  CHECK(first.memory_resident == 25.0 * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  CHECK(first.cpu_energy == 0);
  CHECK(first.cpu_temperature == 52.5);
  root.write("proc/stat", "cpu  150 0 125 710 115 0 0 0 50 0\n");    // 100 ticks more, 25 of them idle
  root.write("sys/class/powercap/intel-rapl:0/energy_uj", "200\n");  // it began again at 0
  const auto second = read(sensors);
  CHECK(second.cpu_load == doctest::Approx(0.75));
  CHECK(second.cpu_energy == doctest::Approx(300e-6));
}

TEST_CASE("hardware: what a machine does not show is missing, and this machine shows load and memory") {
  const TemporaryFolder empty;
  LinuxSensors none(empty.path().string()), here;
  const auto nothing = read(none);
  for (const auto& value : {nothing.cpu_load, nothing.memory_resident, nothing.cpu_energy, nothing.cpu_temperature}) {
    CHECK_FALSE(value);
  }
  read(here);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto now = read(here);
  CHECK(now.memory_resident.value() > 10e6);
  CHECK(now.cpu_load.value() >= 0);
  CHECK(now.cpu_load.value() <= 1);
}

TEST_CASE("hardware: NVML is opened at run time, and its units become ours") {
  std::string why;
  const auto gpu = Nvml::open(fake_nvml, 0, why);
  REQUIRE_MESSAGE(gpu != nullptr, why);
  Readings readings;
  gpu->read(readings);
  CHECK(readings.gpu_temperature == 66);
  CHECK(readings.gpu_power == doctest::Approx(123.4));
  CHECK(readings.gpu_clock == 1.41e9);
  CHECK(readings.gpu_load == doctest::Approx(0.87));
  ::setenv("CUDA_VISIBLE_DEVICES", "GPU-1", 1);
  const auto by_uuid = Nvml::open(fake_nvml, 0, why);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  REQUIRE_MESSAGE(by_uuid != nullptr, why);
  by_uuid->read(readings);
  CHECK(readings.gpu_temperature == 70);
  CHECK(Nvml::open(fake_nvml, 7, why) == nullptr);
  CHECK(says(why, "NVML knows no GPU 7"));
  CHECK(Nvml::open("libnowhere.so", 0, why) == nullptr);
  CHECK(says(why, "libnowhere.so: cannot open shared object file"));
  CHECK(Nvml::open("libm.so.6", 0, why) == nullptr);
  CHECK(why == "libm.so.6: is not an NVML that we know");
}

TEST_CASE("hardware: `nvml` names the library that is asked about the run's GPU") {
  const torch::Device gpu(torch::kCUDA, 0);
  const Called cool("callback/thermal_guard", {{"nvml", toml_text(fake_nvml)}}, gpu);
  const auto missing = toml_text("libnowhere.so");
  CHECK(says(thrown_by([&] {
               Called("callback/thermal_guard", {{"nvml", missing}}, gpu);
             }).text,
             "no temperature can be read: libnowhere.so: cannot open shared object file"));
  const LogLines log;
  const Called called("callback/hardware", {{"nvml", missing}}, gpu);
  CHECK(log.count("there are no numbers of the GPU: libnowhere.so: cannot open shared object file") == 1);
}

TEST_CASE("hardware: CUDA's number of a GPU is translated for NVML") {
  struct Case {
    const char* visible;
    int device;
    const char* name;
  };
  const Case cases[] = {{nullptr, 1, "1"}, {"2,3", 0, "2"}, {"2, 3", 1, "3"}, {"GPU-89ab,1", 0, "GPU-89ab"},
                        {"2", 5, "5"},     {"", 0, "0"}};
  for (const auto& [visible, device, name] : cases) CHECK(vernier::nvml_name(visible, device) == name);
}

TEST_CASE("hardware: each step has the newest reading as metrics") {
  Called called("callback/hardware", {{"interval", {0.01, "test.toml:2"}}});
  vernier::HostApi::emit(called.bus, Event::UpdateDone, called.run);
  CHECK(called.run.metrics.value("memory_resident").value() > 10e6);
  CHECK(patience::wait_until([&] {
    vernier::HostApi::clear(called.run.metrics);
    vernier::HostApi::emit(called.bus, Event::UpdateDone, called.run);
    return called.run.metrics.value("cpu_load").has_value();
  }));
}

TEST_CASE("thermal_guard: it acts from the limit on, until it is cool or a signal comes") {
  const double no_wait = patience::limit(0.03);
  for (const std::string action : {"pause", "slow"}) {
    CAPTURE(action);
    const TemporaryFolder folder;
    set_temperature(folder, 60000);
    Called called("callback/thermal_guard", {{"sensor", toml_text(folder / "temp")},
                                             {"interval", {0.01, "test.toml:2"}},
                                             {"limit", {70.0, "test.toml:2"}},
                                             {"resume_at", {65.0, "test.toml:2"}},
                                             {"action", toml_text(action)}});
    const auto step = [&] {
      const double waited = seconds_of([&] { vernier::HostApi::emit(called.bus, Event::StepBegin, called.run); });
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // its work
      vernier::HostApi::emit(called.bus, Event::StepEnd, called.run);
      return waited;
    };
    step();
    CHECK(step() < no_wait);
    set_temperature(folder, 70000);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    if (action == "slow") {
      const double waited = step();
      CHECK(waited > 0.055);
      CHECK(waited < 10 * no_wait);
    }
    std::thread cooling([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      set_temperature(folder, 66000);  // below the limit is not enough
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      set_temperature(folder, 65000);
    });
    if (action == "pause") CHECK(step() > 0.28);
    cooling.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    step();
    CHECK(step() < no_wait);
    set_temperature(folder, 90000);
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const std::atomic<int> stop = SIGINT;
    called.run.stop = &stop;
    CHECK(step() < no_wait);
  }
}

TEST_CASE("thermal_guard: without a temperature the run is refused, and so are limits that make no sense") {
  CHECK(says(thrown_by([] {
               Called("callback/thermal_guard", {{"sensor", toml_text("/nowhere")}});
             }).text,
             "no temperature can be read: /nowhere has no number; set `sensor`"));
  const auto thrown = thrown_by([] { Called("callback/thermal_guard", {{"resume_at", {90.0, "test.toml:2"}}}); });
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "is above limit"));
}

}  // namespace hardware_test
