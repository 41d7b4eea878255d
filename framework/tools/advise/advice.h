// An advice as text, as JSON and as an overlay.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "search.h"

namespace vernier {

struct Advice {
  std::vector<std::string> files;  // configuration files of the command
  std::vector<std::string> sets;   // values of --set
  std::vector<std::string> plugin_paths;
  std::vector<Setting> always;  // the batch size of --batch
  std::vector<Axis> axes;
  Limits limits;
  Found found;
  std::string device;
  std::int64_t threads = 0;
  double seconds = 0;               // duration of the search
  std::vector<std::string> checks;  // lines of `vernier check` about the advice
};

const Measured* chosen(const Advice& advice);  // null where every candidate has an objection

std::vector<std::string> warnings_of(const Advice& advice);

std::string text_of(const Advice& advice);
nlohmann::ordered_json json_of(const Advice& advice);

// The file to merge after those of the command; it has --batch too. Only for an advice that there is.
std::string overlay_file(const Advice& advice, const std::string& path);

}  // namespace vernier
