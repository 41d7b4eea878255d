// The processor cores that this process may use. Needs no library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

namespace vernier {

namespace cores_detail {

inline constexpr double no_quota = std::numeric_limits<double>::infinity();

// cgroup v2, cpu.max: "max 100000", or the microseconds of each period.
inline double quota_in(const std::string& folder) {
  std::ifstream in(folder + "/cpu.max");
  double quota = 0, period = 0;
  return in >> quota >> period && quota > 0 && period > 0 ? quota / period : no_quota;
}

// cgroup v1: -1 for none.
inline double old_quota_in(const std::string& folder) {
  std::ifstream quotas(folder + "/cpu.cfs_quota_us"), periods(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quotas >> quota && periods >> period && quota > 0 && period > 0 ? quota / period : no_quota;
}

// The controllers of a line of /proc/self/cgroup, "4:cpu,cpuacct:/group", between commas.
inline bool is_of_cpu(const std::string& line) {
  const auto first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return false;
  return ("," + line.substr(first + 1, second - first - 1) + ",").find(",cpu,") != std::string::npos;
}

// The least quota of this process's group and those around it. A container sees its own group at the root.
inline double least_quota(const std::string& groups_file, const std::string& mount) {
  double least = no_quota;
  std::ifstream groups(groups_file);
  for (std::string line; std::getline(groups, line);) {
    const bool is_new = line.starts_with("0::");
    if (!is_new && !is_of_cpu(line)) continue;
    const auto root = is_new ? mount : mount + "/cpu";
    auto group = line.substr(line.find(':', line.find(':') + 1) + 1);
    for (;; group.resize(group.rfind('/'))) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      least = std::min(least, is_new ? quota_in(root + group) : old_quota_in(root + group));
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace cores_detail

// At least 1: those of the machine, or fewer where its affinity (taskset) or the CPU quota of its control group
// (containers, Slurm, systemd) says so. A quota of two and a half cores counts as three.
inline std::int64_t available_cores() {
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  const auto quota = cores_detail::least_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  return static_cast<std::int64_t>(std::min<double>(cores, std::max(1.0, std::ceil(quota))));
}

}  // namespace vernier
