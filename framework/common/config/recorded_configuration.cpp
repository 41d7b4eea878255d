#include "recorded_configuration.h"

#include <vernier/error.h>
#include <vernier/missing_file.h>

#include <system_error>

namespace vernier::cli {

namespace fs = std::filesystem;

std::string configuration_at(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) {
    refuse(path.string() + ": there is no such run or checkpoint" + missing_file_hint(path.string()));
  }
  const auto folder = fs::absolute(path).lexically_normal();
  for (const auto& candidate : {folder, folder.parent_path(), folder.parent_path().parent_path()}) {
    if (fs::exists(candidate / "config.toml", none)) return (candidate / "config.toml").string();
  }
  refuse(path.string() + ": is neither a run nor a checkpoint of one: there is no config.toml");
}

}  // namespace vernier::cli
