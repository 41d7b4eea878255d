#include "recorded_configuration.h"

#include <vernier/error.h>
#include <vernier/missing_file.h>

#include <system_error>

#include "common/text/quoting.h"

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
  if (path.extension() == ".toml") {
    refuse(path.string() + ": is a configuration; name the run that `vernier train " + shell_quoted(path.string()) +
           "` writes, such as runs/" + path.stem().string());
  }
  std::string run;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (fs::exists(entry.path() / "config.toml", none)) run = (path / entry.path().filename()).string();
  }
  refuse(path.string() + ": is neither a run nor a checkpoint of one: there is no config.toml" +
         (run.empty() ? "" : "; name a run in it, such as " + run));
}

}  // namespace vernier::cli
