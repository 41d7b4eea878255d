#include <vernier/missing_file.h>
#include <vernier/options.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <vector>

namespace vernier {

namespace fs = std::filesystem;

namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Returns the name in a folder that is meant by another: in other case, with an ending, or misspelt; or "".
std::string near_name(const fs::path& folder, const std::string& wanted) {
  constexpr std::size_t most = 10'000;
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, none), end;
       !none && entry != end && names.size() < most; entry.increment(none)) {
    names.push_back(entry->path().filename().string());
  }
  std::erase(names, wanted);  // it is there, as a link to what is not
  std::ranges::sort(names);
  for (const auto& name : names) {
    if (lower(name) == lower(wanted)) return name;
  }
  for (const auto& name : names) {
    if (lower(fs::path(name).stem().string()) == lower(wanted)) return name;
  }
  // The ending that two names share says nothing of how near they are.
  const auto ending = fs::path(wanted).extension();
  std::vector<std::string> stems, others;
  for (const auto& name : names) {
    if (fs::path(name).extension() == ending) {
      stems.push_back(fs::path(name).stem().string());
    } else {
      others.push_back(name);
    }
  }
  const auto stem = nearest(fs::path(wanted).stem().string(), stems);
  return stem.empty() ? nearest(wanted, others) : stem + ending.string();
}

// Returns the path with the first part that is not there put right, or "".
std::string near_path(const fs::path& path) {
  fs::path so_far;
  bool is_changed = false;
  std::error_code none;
  for (const auto& part : path) {
    if (fs::exists(so_far / part, none)) {
      so_far /= part;
      continue;
    }
    const auto near = is_changed ? "" : near_name(so_far, part.string());
    if (near.empty()) return "";
    so_far /= near;
    is_changed = true;
  }
  return so_far.string();
}

}  // namespace

std::string missing_file_hint(const std::string& path) {
  if (const auto scheme = path.find("://"); scheme != path.npos) {
    const bool is_of_web = path.starts_with("http") || path.starts_with("ftp");
    return is_of_web ? "; files are read from this machine: download it with `curl -LO '" + path + "'`, and name " +
                           fs::path(path).filename().string()
                     : "; files are read from this machine: copy it here first";
  }
  if (path.find('\\') != path.npos) {
    auto here = path;
    std::ranges::replace(here, '\\', '/');
    if (here.size() > 1 && here[1] == ':') here = "/mnt/" + lower(here.substr(0, 1)) + here.substr(2);
    std::error_code none;
    if (!fs::exists(here, none)) here = near_path(fs::path(here).filename());
    return here.empty() ? "; that is a path of Windows: copy the file here, and write / in place of \\"
                        : "; that is a path of Windows; did you mean '" + here + "'?";
  }
  std::error_code none;
  if (const auto target = fs::read_symlink(path, none); !target.empty() && !fs::exists(path, none)) {
    return "; it is a link to '" + target.string() + "', which is not there";
  }
  const auto near = near_path(path);
  return near.empty() ? "; paths are relative to the working folder" : "; did you mean '" + near + "'?";
}

}  // namespace vernier
