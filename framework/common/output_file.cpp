#include "output_file.h"

#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/text/quoting.h"
#include "common/toml_depth.h"
#include "common/verb.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {

using Words = std::vector<std::string>;

// The files and folders that a command names. A word that is not a path changes nothing.
class Named {
 public:
  // word: "x.csv", "x.npz:images", "task.data=x.csv", "run.toml", "runs/a" or "runs/a/checkpoints/latest"
  void add(const std::string& word) {
    add_path(word);
    for (auto colon = word.find(':'); colon != word.npos; colon = word.find(':', colon + 1)) {
      add_path(word.substr(0, colon));
    }
    const auto equals = word.find('=');
    if (equals == word.npos) return;
    add_path(word.substr(equals + 1));
    add_texts("value = " + word.substr(equals + 1), "");
  }

  bool has(const fs::path& file) const {
    std::error_code none;
    const auto place = fs::weakly_canonical(file, none).string();
    return std::ranges::any_of(paths_, [&](const auto& path) {
      return fs::equivalent(path, file, none) || (place + '/').starts_with(path == "/" ? path : path + '/');
    });
  }

 private:
  void add_path(std::string word) {
    if (word.find_first_not_of("./") == std::string::npos) return;  // a separator, or the folder of all
    const char* home = std::getenv("HOME");
    if (home != nullptr && word.starts_with("~/")) word.replace(0, 1, home);
    std::error_code none;
    const auto path = fs::weakly_canonical(word, none);
    if (word.empty() || none || !fs::exists(path, none) || !paths_.insert(path.string()).second) return;
    if (path.extension() == ".toml") add_toml(path);
    if (!fs::is_directory(path, none)) return;
    for (const auto& folder : {path, path.parent_path(), path.parent_path().parent_path()}) {  // a run, or a checkpoint
      if (!fs::exists(folder / "config.toml", none) || paths_.count((folder / "config.toml").string()) != 0) continue;
      paths_.insert(folder.string());
      add_path((folder / "config.toml").string());
    }
    if (!fs::exists(path / "compare.json", none)) return;
    for (fs::directory_iterator entry(path, none), end; !none && entry != end; entry.increment(none)) {
      add_path((entry->path() / "candidate.toml").string());
    }
  }
  void add_toml(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    add_texts(text.str(), path.parent_path());
  }
  // Adds every text in TOML. A text that is not TOML has none: the verb itself refuses it.
  void add_texts(const std::string& text, const fs::path& folder) {
    if (line_too_deep(text) > 0) return;
    try {
      add_node(toml::parse(text), folder);
    } catch (const toml::parse_error&) {
    }
  }
  void add_node(const toml::node& node, const fs::path& folder) {
    if (const auto* table = node.as_table()) {
      for (const auto& [key, child] : *table) add_node(child, folder);
    } else if (const auto* list = node.as_array()) {
      for (const auto& child : *list) add_node(child, folder);
    } else if (const auto* value = node.as_string()) {
      add(value->get());
      if (value->get().ends_with(".toml")) add_path((folder / value->get()).string());  // `include` is beside its file
    }
  }

  std::set<std::string> paths_;
};

Named named_in(const po::variables_map& given, const std::string& output) {
  Named named;
  for (const auto& [option, value] : given) {
    if (option == "output" || option == "png") continue;
    Words words;
    if (const auto* word = boost::any_cast<std::string>(&value.value())) words = {*word};
    if (const auto* list = boost::any_cast<Words>(&value.value())) words = *list;
    const bool is_last = option == "word" && given.count("output") == 0 && !words.empty() && words.back() == output;
    if (is_last) words.pop_back();  // the output itself
    for (const auto& word : words) named.add(word);
  }
  return named;
}

}  // namespace

void refuse_output(const po::variables_map& given, const std::string& output) {
  const auto refuse = [&](const std::string& why) { throw po::error(output + ": " + why); };
  std::error_code none;
  const fs::path path(output);
  const bool is_stream = output.starts_with("/dev/std") || output.starts_with("/dev/fd/");  // not /dev/shm, a folder
  if (is_stream || fs::is_other(path, none) || fs::is_fifo(path, none)) return;
  if (!path.has_filename()) refuse("is not the name of a file");
  const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, none)) {
    refuse("there is no folder " + folder.string() + "; make it with `mkdir -p " + shell_quoted(folder.string()) + "`");
  }
  if (fs::is_directory(path, none)) refuse("is a folder that is there already; name another place");
  if (fs::is_symlink(path, none)) {
    refuse("is a link; name its target, " + fs::weakly_canonical(path, none).string());
  }
  if (fs::exists(path, none)) {
    if (named_in(given, output).has(path)) {
      refuse("is data, a configuration or a file of a run that the command names, and stays; name another file");
    }
    if (given.count("force") == 0) refuse("is there already; name another file, or replace it with --force");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    refuse("cannot be written: " + std::string(std::strerror(errno)) + "; name a file in another folder");
  }
}

}  // namespace vernier
