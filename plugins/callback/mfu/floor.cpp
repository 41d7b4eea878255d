#include "floor.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <vernier/error.h>
#include <vernier/hardware.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>
#include <utility>

namespace vernier {

namespace {

constexpr double mebibyte = 1 << 20;
constexpr std::pair<const char*, torch::ScalarType> dtypes[] = {
    {"float32", torch::kFloat32}, {"bfloat16", torch::kBFloat16}, {"float16", torch::kFloat16}};

// Calls the body for so many seconds, and at least three times. Returns the seconds of the shortest call.
double shortest_of(const std::function<void()>& body, double seconds) {
  using Clock = std::chrono::steady_clock;
  double shortest = INFINITY, all = 0;
  for (int calls = 0; calls < 3 || all < seconds; ++calls) {
    const auto start = Clock::now();
    body();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    shortest = std::min(shortest, took);
    all += took;
  }
  return shortest;
}

std::string name_of_processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return hardware_of(torch::kCPU).name;  // Linux names no model on ARM
}

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 128> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace

Peak measured_peak(torch::Device device, torch::ScalarType dtype, double seconds) {
  constexpr double long_time = 0.01;
  const torch::NoGradGuard no_grad;
  Peak best;
  for (std::int64_t side = 256; side <= (device.is_cpu() ? 2048 : 8192); side *= 2) {
    const auto matrix =
        at::linspace(-1, 1, side * side, torch::dtype(torch::kFloat32).device(device)).to(dtype).reshape({side, side});
    const auto multiply = [&] {
      at::mm(matrix, matrix);
      if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    };
    multiply();  // its threads and its plan are ready
    const double shortest = shortest_of(multiply, seconds);
    const double flops = 2 * std::pow(static_cast<double>(side), 3) / shortest;
    if (flops > best.flops) best = {flops, side};
    if (shortest > long_time) break;
  }
  return best;
}

std::optional<double> Floor::seconds(double operations, torch::ScalarType dtype, double bytes) const {
  const auto rate = flops.find(dtype);
  if (rate == flops.end() || memory.empty()) return std::nullopt;
  auto size = memory.lower_bound(bytes);
  if (size == memory.end()) --size;
  return operations / rate->second + 2 * bytes / size->second.changed;
}

std::string Floor::table() const {
  std::string text;
  for (const auto& [name, dtype] : dtypes) {
    if (flops.contains(dtype)) text += print("  multiplies %-8s  %7.1f GFLOP/s\n", name, flops.at(dtype) / 1e9);
  }
  for (const auto& [bytes, rates] : memory) {
    text += print("  moves %3.0f MiB        %7.1f GB/s read, %.1f GB/s read and written in place\n", bytes / mebibyte,
                  rates.read / 1e9, rates.changed / 1e9);
  }
  return text;
}

std::filesystem::path floor_file(int threads) {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  const bool is_given = cache != nullptr && *cache != '\0';
  const std::filesystem::path folder = is_given ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
  auto name = name_of_processor();
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return folder / "vernier/floor" / (name + "-" + std::to_string(threads) + ".txt");
}

std::optional<Floor> kept_floor(int threads) {
  const auto path = floor_file(threads);
  std::ifstream file(path);
  if (!file) return std::nullopt;
  Floor floor;
  bool is_whole = true;
  for (std::string word; is_whole && file >> word;) {
    double bytes = 0;
    Floor::Rates rates;
    const auto* dtype = std::ranges::find(dtypes, word, [](const auto& each) { return std::string(each.first); });
    if (dtype != std::end(dtypes)) {
      double& rate = floor.flops[dtype->second];
      is_whole = file >> rate && rate > 0;
    } else {
      is_whole = word == "memory" && file >> bytes >> rates.read >> rates.changed && rates.changed > 0;
      floor.memory[bytes] = rates;
    }
  }
  if (is_whole && !floor.flops.empty() && !floor.memory.empty()) return floor;
  throw Error(path.string() + " is damaged; remove it, or measure again with `vernier profile --floor`");
}

Floor measure_floor(double seconds) {
  const auto path = floor_file(at::get_num_threads());
  try {
    std::filesystem::create_directories(path.parent_path());
  } catch (const std::system_error& error) {
    throw Error(path.parent_path().string() + ": cannot be made (" + error.code().message() +
                "); set XDG_CACHE_HOME to a folder that can");
  }
  const torch::NoGradGuard no_grad;
  Floor floor;
  std::ostringstream text;
  for (const auto& [name, dtype] : dtypes) {
    floor.flops[dtype] = measured_peak(torch::kCPU, dtype, seconds).flops;
    text << name << ' ' << floor.flops[dtype] << '\n';
  }
  for (double bytes = mebibyte; bytes <= 256 * mebibyte; bytes *= 4) {
    const auto memory = at::full({static_cast<std::int64_t>(bytes / 4)}, 1.0, torch::kFloat32);
    auto& rates = floor.memory[bytes];
    rates.read = bytes / shortest_of([&] { memory.sum(); }, seconds);
    rates.changed = 2 * bytes / shortest_of([&] { memory.mul_(1.0); }, seconds);
    text << "memory " << bytes << ' ' << rates.read << ' ' << rates.changed << '\n';
  }
  write_whole(path, text.str());
  return floor;
}

}  // namespace vernier
