#include "sensors.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#define BOOST_DLL_USE_STD_FS  // the plugin links nothing of Boost
#include <boost/dll/shared_library.hpp>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

namespace vernier {

namespace fs = std::filesystem;

namespace {

std::optional<double> number_in(const std::string& file) {
  double number = 0;
  if (std::ifstream in(file); in >> number) return number;
  return std::nullopt;
}

std::string text_in(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file) >> std::ws, text);
  return text;
}

// Folders of a folder, in the order of their names; none where it cannot be read.
std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) all.push_back(entry.path());
  std::ranges::sort(all);
  return all;
}

// True for sensors of processors; others belong to disks, batteries or wireless cards.
bool is_of_cpu(const std::string& sensor) {
  for (const char* name : {"x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu"}) {
    if (sensor.find(name) != sensor.npos) return true;
  }
  return false;
}

}  // namespace

LinuxSensors::LinuxSensors(std::string root) : root_(std::move(root)) {
  for (const auto& folder : folders_in(root_ + "/sys/class/powercap")) {
    // Packages, "intel-rapl:0". Their parts, "intel-rapl:0:1", count the same energy again.
    const auto name = fs::path(folder).filename().string();
    if (std::ranges::count(name, ':') != 1 || !text_in(folder + "/name").starts_with("package")) continue;
    const auto energy = number_in(folder + "/energy_uj");
    if (energy) counters_.push_back({folder, *energy, number_in(folder + "/max_energy_range_uj").value_or(0)});
  }
  for (const auto& folder : folders_in(root_ + "/sys/class/thermal")) {
    if (is_of_cpu(text_in(folder + "/type"))) thermometers_.push_back(folder + "/temp");
  }
  for (const auto& folder : folders_in(root_ + "/sys/class/hwmon")) {
    if (is_of_cpu(text_in(folder + "/name"))) thermometers_.push_back(folder + "/temp1_input");
  }
}

void LinuxSensors::read(Readings& into) {
  read_load(into);
  read_energy(into);
  double pages = 0, resident = 0;
  if (std::ifstream(root_ + "/proc/self/statm") >> pages >> resident) {
    into.memory_resident = resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
  }
  for (const auto& file : thermometers_) {
    const auto millidegrees = number_in(file);
    if (millidegrees) into.cpu_temperature = std::max(into.cpu_temperature.value_or(-273.0), *millidegrees / 1e3);
  }
}

// The line "cpu": user, nice, system, idle, iowait and others, in ticks.
void LinuxSensors::read_load(Readings& into) {
  std::ifstream file(root_ + "/proc/stat");
  std::string word;
  if (!(file >> word) || word != "cpu") return;
  double all = 0, idle = 0, ticks = 0;
  for (int i = 0; i < 8 && file >> ticks; ++i) {  // guests after the eighth are part of user
    all += ticks;
    if (i == 3 || i == 4) idle += ticks;
  }
  const double busy = all - idle;
  if (all_ > 0 && all > all_) into.cpu_load = std::clamp((busy - busy_) / (all - all_), 0.0, 1.0);
  busy_ = busy;
  all_ = all;
}

void LinuxSensors::read_energy(Readings& into) {
  for (auto& counter : counters_) {
    const auto now = number_in(counter.folder + "/energy_uj");
    if (!now) return;
    microjoules_ += *now - counter.last + (*now < counter.last ? counter.range : 0);
    counter.last = *now;
  }
  if (!counters_.empty()) into.cpu_energy = microjoules_ / 1e6;
}

// The functions of nvml.h that are called; its constants and types. Each returns 0 if all is well.
struct Nvml::Functions {
  struct Utilization {
    unsigned gpu, memory;  // percent
  };
  static constexpr int temperature_of_gpu = 0, clock_of_processors = 1;
  int (*init)();
  int (*shutdown)();
  int (*by_index)(unsigned, void**);
  int (*by_uuid)(const char*, void**);
  int (*temperature)(void*, int, unsigned*);
  int (*power)(void*, unsigned*);
  int (*clock)(void*, int, unsigned*);
  int (*utilization)(void*, Utilization*);
};

std::unique_ptr<Nvml> Nvml::open(const std::string& library, int device, std::string& why) {
  using boost::dll::load_mode::rtld_now, boost::dll::load_mode::search_system_folders;
  static auto* opened = new std::deque<boost::dll::shared_library>();  // never closed
  auto& nvml_library = opened->emplace_back();
  if (std::error_code trouble; nvml_library.load(library, trouble, rtld_now | search_system_folders), trouble) {
    const char* reason = ::dlerror();
    why = reason == nullptr ? trouble.message() : reason;  // an empty name has no text of the loader
    return nullptr;
  }
  auto functions = std::make_unique<Functions>();
  bool has_all = true;
  const auto find = [&](auto& function, const char* name) {
    has_all = has_all && nvml_library.has(name);
    if (has_all) function = &nvml_library.get<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(name);
  };
  find(functions->init, "nvmlInit_v2");
  find(functions->shutdown, "nvmlShutdown");
  find(functions->by_index, "nvmlDeviceGetHandleByIndex_v2");
  find(functions->by_uuid, "nvmlDeviceGetHandleByUUID");
  find(functions->temperature, "nvmlDeviceGetTemperature");
  find(functions->power, "nvmlDeviceGetPowerUsage");
  find(functions->clock, "nvmlDeviceGetClockInfo");
  find(functions->utilization, "nvmlDeviceGetUtilizationRates");
  if (!has_all || functions->init() != 0) {
    why = library + (has_all ? ": NVML does not start; is the driver loaded?" : ": is not an NVML that we know");
    return nullptr;
  }
  std::unique_ptr<Nvml> nvml(new Nvml);
  nvml->functions_ = std::move(functions);
  const auto name = nvml_name(std::getenv("CUDA_VISIBLE_DEVICES"), device);
  const bool is_uuid = name.starts_with("GPU-") || name.starts_with("MIG-");
  const int trouble = is_uuid ? nvml->functions_->by_uuid(name.c_str(), &nvml->gpu_)
                              : nvml->functions_->by_index(static_cast<unsigned>(std::atoi(name.c_str())), &nvml->gpu_);
  if (trouble == 0) return nvml;
  why = library + ": NVML knows no GPU " + name;
  return nullptr;
}

Nvml::~Nvml() {
  functions_->shutdown();
}

void Nvml::read(Readings& into) const {
  unsigned number = 0;
  if (functions_->temperature(gpu_, Functions::temperature_of_gpu, &number) == 0) into.gpu_temperature = number;
  if (functions_->power(gpu_, &number) == 0) into.gpu_power = number / 1e3;  // from milliwatts
  if (functions_->clock(gpu_, Functions::clock_of_processors, &number) == 0) into.gpu_clock = number * 1e6;  // from MHz
  Functions::Utilization utilization{};
  if (functions_->utilization(gpu_, &utilization) == 0) into.gpu_load = utilization.gpu / 1e2;
}

std::string nvml_name(const char* visible_devices, int device) {
  if (visible_devices == nullptr) return std::to_string(device);
  std::istringstream in(visible_devices);
  std::string name;
  for (int i = 0; std::getline(in >> std::ws, name, ','); ++i) {
    if (i == device) return name;
  }
  return std::to_string(device);
}

SensorThread::SensorThread(std::function<Readings()> read, double seconds)
    : read_(std::move(read)), pause_(seconds), newest_(read_()) {
  sigset_t all, before;  // signals are for the training thread
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Readings SensorThread::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

void SensorThread::work(const std::stop_token& stop) {
  const auto is_over = [&] { return stop.stop_requested(); };
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, stop, pause_, is_over)) {
    lock.unlock();
    const auto readings = read_();
    lock.lock();
    newest_ = readings;
  }
}

}  // namespace vernier
