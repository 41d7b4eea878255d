#include <vernier/cores.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "temporary_folder.h"

namespace cores_test {

TEST_CASE("cores: the least quota of the control groups, old and new") {
  struct Case {
    std::string groups;
    std::vector<std::pair<std::string, std::string>> files;
    double quota;
  };
  for (const auto& [groups, files, quota] : std::vector<Case>{
           {"", {}, INFINITY},
           {"0::/\n", {}, INFINITY},
           {"0::/job\n", {{"job/cpu.max", "max 100000\n"}}, INFINITY},
           {"0::/job\n", {{"job/cpu.max", "50000 100000\n"}}, 0.5},
           {"0::/job/step\n", {{"job/cpu.max", "150000 100000\n"}, {"job/step/cpu.max", "max 100000\n"}}, 1.5},
           {"0::/elsewhere\n", {{"cpu.max", "200000 100000\n"}}, 2},
           {"4:cpu,cpuacct:/a\n", {{"cpu/a/cpu.cfs_quota_us", "-1"}, {"cpu/a/cpu.cfs_period_us", "100000"}}, INFINITY},
           {"5:memory:/a\n4:cpu:/a\n",
            {{"cpu/a/cpu.cfs_quota_us", "50000"}, {"cpu/a/cpu.cfs_period_us", "100000"}},
            0.5},
           {"4:cpuset:/a\n", {{"cpu/a/cpu.cfs_quota_us", "50000"}, {"cpu/a/cpu.cfs_period_us", "100000"}}, INFINITY}}) {
    CAPTURE(groups);
    const TemporaryFolder folder;
    const auto listed = folder.write("groups", groups);
    for (const auto& [name, text] : files) folder.write(name, text);
    CHECK(vernier::cores_detail::least_quota(listed, folder.path().string()) == quota);
  }
  CHECK(vernier::available_cores() >= 1);
  CHECK(vernier::available_cores() <= std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace cores_test
