#include "measured_speed.h"

#include <vernier/json_in.h>

#include <fstream>
#include <initializer_list>
#include <system_error>
#include <vector>

#include "statistics.h"
#include "text/numbers.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

bool are_same_but(OrderedJson one, OrderedJson other, std::initializer_list<const char*> roles) {
  for (auto* configuration : {&one, &other}) {
    for (const char* role : roles) configuration->erase(role);
    for (const char* key : {"name", "output", "resume", "steps", "epochs", "seed"}) (*configuration)["run"].erase(key);
  }
  return one == other;
}

}  // namespace

std::string measured_speed(const SpeedAsked& asked) try {
  std::error_code none;
  for (const auto& beside : fs::directory_iterator(fs::absolute(asked.output).parent_path(), none)) {
    std::vector<double> float32, configured;
    if (!fs::exists(beside.path() / "compare.json", none)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(beside.path(), none)) {
      if (entry.path().filename() != "summary.json") continue;
      std::ifstream file(entry.path());
      const auto summary = json_in<OrderedJson>(file);
      if (!summary.is_object()) continue;
      const auto found = [&](const char* at) { return value_at(summary, at); };
      const auto there = found("/configuration"), speed = found("/this_process/samples_per_second");
      const bool is_here = found("/device") == asked.device && found("/threads") == asked.threads;
      if (!is_here || !there.is_object() || !there.value("run", OrderedJson()).is_object() || !speed.is_number()) {
        continue;
      }
      if (are_same_but(asked.configuration, there, {"checkpoint", "monitor"})) configured.push_back(speed);
      const bool is_alike = are_same_but(asked.configuration, there, {"checkpoint", "monitor", "precision", "scaler"});
      if (is_alike && found("/amp/amp_steps") == 0) float32.push_back(speed);
    }
    if (float32.empty() || configured.empty()) continue;
    const auto times = median_range_of(configured).median / median_range_of(float32).median;
    return print_number("%.3gx", times) + " the speed of float32, as measured in " +
           beside.path().lexically_proximate(fs::current_path()).string();
  }
  return "";
} catch (const fs::filesystem_error&) {  // a folder that goes away, or that this user may not read
  return "";
}

}  // namespace vernier
