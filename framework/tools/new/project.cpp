#include "project.h"

#include <vernier/whole_file.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <system_error>

namespace vernier {

namespace fs = std::filesystem;

namespace {

// In one pass, so that what replaces a word is not searched again.
std::string replaced(const std::string& text, const std::map<std::string, std::string>& words) {
  std::string any;
  for (const auto& [word, meaning] : words) any += (any.empty() ? "" : "|") + word;
  const std::regex pattern(any);
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    result.append(rest, (*at)[0].first);
    result += words.at(at->str());
    rest = (*at)[0].second;
  }
  return result.append(rest, text.end());
}

std::string read_file(const fs::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::system_error(errno, std::generic_category(), "cannot read " + path.string());
  return text;
}

// Texts by the names of their files.
std::map<std::string, std::string> texts_of(const fs::path& templates, const std::vector<std::string>& parts,
                                            const std::map<std::string, std::string>& words) {
  std::map<std::string, std::string> texts;
  for (const auto& part : parts) {
    for (const auto& entry : fs::directory_iterator(templates / part)) {
      const auto name = replaced(entry.path().filename().string(), words);
      texts[name] = replaced(read_file(entry.path()), words);
    }
  }
  return texts;
}

}  // namespace

// Both trees have the package at the same place; in the build tree the program is beside it, installed in its bin
// folder.
fs::path find_prefix() {
  const fs::path program = boost::dll::program_location().parent_path().string();
  for (const auto& prefix : {program, program.parent_path()}) {
    if (fs::exists(prefix / "lib/cmake/Vernier/VernierConfig.cmake")) return prefix;
  }
  throw std::runtime_error("there is no lib/cmake/Vernier in " + program.string() +
                           " or the folder above it; vernier-new "
                           "belongs to a build tree or an installation of Vernier");
}

std::vector<std::string> write_project(const fs::path& templates, const std::vector<std::string>& parts,
                                       const std::map<std::string, std::string>& words, const fs::path& folder) {
  if (fs::symlink_status(folder).type() != fs::file_type::not_found) {
    throw std::runtime_error(folder.string() + " is there already; choose another name, or another place by --output");
  }
  const auto parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  if (!fs::is_directory(parent)) throw std::runtime_error("there is no folder " + parent.string() + "; make it first");
  const auto texts = texts_of(templates, parts, words);
  std::vector<std::string> names;
  try {
    WholeFile whole(folder);
    fs::create_directory(whole.part());
    for (const auto& [name, text] : texts) {
      write_whole(fs::path(whole.part()) / name, text);
      names.push_back(name);
    }
    whole.finish();
  } catch (const std::system_error& error) {
    throw CannotWrite(folder.string() + " cannot be written: " + error.code().message());
  }
  return names;
}

}  // namespace vernier
