// Reads each block of TOML in the documents, and makes its plugins.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "built.h"
#include "small_run.h"

namespace documents_test {

namespace fs = std::filesystem;

namespace {

struct Block {
  std::string place, text;
};

// The blocks of ```toml of a page.
std::vector<Block> blocks_of(const fs::path& page) {
  std::vector<Block> blocks;
  std::ifstream file(page);
  bool is_inside = false;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const bool is_fence = line.find("```") != std::string::npos;
    if (is_fence && !is_inside && line.ends_with("toml")) {
      blocks.push_back({page.string() + ":" + std::to_string(number), ""});
      is_inside = true;
    } else if (is_fence) {
      is_inside = false;
    } else if (is_inside) {
      blocks.back().text += line + '\n';
    }
  }
  return blocks;
}

std::vector<fs::path> pages() {
  const fs::path root = VERNIER_SOURCE_DIR;
  std::vector<fs::path> pages = {root / "README.md"};
  for (const auto& folder : {root / "docs", root / "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".md") pages.push_back(entry.path());
    }
  }
  return pages;
}

// The names of all options of a role's plugins, for a table that leaves `use` to another file.
std::set<std::string> keys_of(const vernier::Host& host, const std::string& role) {
  std::set<std::string> keys;
  for (const auto& plugin : host.list()) {
    if (plugin.role != role) continue;
    vernier::Options options(role + "/" + plugin.name, {}, "");
    vernier::HostApi::only_describe(options);
    host.make(role, plugin.name, options);
    for (const auto& option : vernier::HostApi::declared(options))
      keys.insert(option.key.substr(0, option.key.find('.')));
  }
  return keys;
}

void check_table(const vernier::Host& host, const std::string& role, const vernier::Value& value) {
  const auto& table = std::get<vernier::Table>(value.data);
  const auto use = table.find("use");
  const bool is_path = use != table.end() && std::get<std::string>(use->second.data).find('/') != std::string::npos;
  if (role == "run") {
    auto whole = table;
    if (!table.contains("epochs")) whole.try_emplace("steps", vernier::Value{std::int64_t{1000}, ""});
    vernier::Options options("run", whole, value.where);
    const vernier::RunOptions read(options, "name");
  } else if (use == table.end()) {
    const auto keys = keys_of(host, role);
    for (const auto& [key, ignored] : table) CHECK_MESSAGE(keys.contains(key), role << "." << key);
  } else if (!is_path) {
    vernier::make(host, role, value);
  }
}

// The rest of a configuration, which a block leaves to other files.
constexpr const char* base = R"([run]
seed = 1
[[callback]]
use = "clip_norm"
max_norm = 1.0
)";

// Wires a block as a run of its own, with a task and an optimizer if it has none. A block that leaves `use` to another
// file, removes a plugin of one, or names a plugin's file, is a part of a run, and is left out. Returns whether it was
// wired.
bool wire_block(const vernier::Host& host, const std::string& text) {
  constexpr const char* rest = "[run]\nsteps = 1000\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n";
  if (text.find("remove = true") != std::string::npos) return false;
  for (const auto& [role, value] : from_toml({text})) {
    const auto* list = std::get_if<vernier::Array>(&value.data);
    for (const auto& each : list != nullptr ? *list : vernier::Array{value}) {
      const auto& table = std::get<vernier::Table>(each.data);
      const auto use = table.find("use");
      if (role == "run" ? table.contains("epochs") : use == table.end()) return false;
      if (role != "run" && std::get<std::string>(use->second.data).find('/') != std::string::npos) return false;
    }
  }
  vernier::wire(from_toml({rest, text}), host);
  return true;
}

// It includes files that are not there, or pins a digest that no file has.
bool is_part(const std::string& text) {
  const auto has = [&](const char* words) { return text.find(words) != std::string::npos; };
  return has("include =") || has("sha256 =");
}

}  // namespace

TEST_CASE("documents: plugins and options of every block of TOML are those that there are") {
  if (!is_all_built()) return;
  const auto host = built_plugins();
  int tables = 0, wired = 0;
  for (const auto& page : pages()) {
    for (const auto& block : blocks_of(page)) {
      CAPTURE(block.place);
      CAPTURE(block.text);
      if (is_part(block.text)) continue;
      try {
        for (const auto& [role, value] : from_toml({base, block.text})) {
          const auto* list = std::get_if<vernier::Array>(&value.data);
          if (list == nullptr) check_table(host, role, value), ++tables;
          for (const auto& each : list != nullptr ? *list : vernier::Array{}) check_table(host, role, each), ++tables;
        }
        wired += wire_block(host, block.text) ? 1 : 0;
      } catch (const vernier::Error& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    }
  }
  CHECK(tables > 40);
  CHECK(wired > 20);
}

}  // namespace documents_test
