#include "hyper_parameters.h"

#include <toml++/toml.h>
#include <fstream>
#include <map>
#include <sstream>

namespace vernier {

namespace {

void add(std::vector<HyperParameter>& all, const std::string& name, const toml::node& node);

void add_table(std::vector<HyperParameter>& all, const std::string& prefix, const toml::table& table, bool with_use) {
  for (const auto& [key, value] : table) {
    if (with_use || key.str() != "use") add(all, prefix + "." + std::string(key.str()), value);
  }
}

// [[callback]] use = "clip_norm": its options are "callback.clip_norm.…", those of a second one
// "callback.clip_norm#2.…".
void add_plugins(std::vector<HyperParameter>& all, const std::string& role, const toml::array& tables) {
  std::map<std::string, int> seen;
  for (const auto& each : tables) {
    const auto& table = *each.as_table();
    auto name = role + "." + table["use"].value_or(std::string("table"));
    if (const int number = ++seen[name]; number > 1) name += "#" + std::to_string(number);
    add_table(all, name, table, false);
  }
}

void add(std::vector<HyperParameter>& all, const std::string& name, const toml::node& node) {
  if (const auto* table = node.as_table()) return add_table(all, name, *table, true);
  const auto* list = node.as_array();
  if (list != nullptr && list->is_array_of_tables()) return add_plugins(all, name, *list);
  if (const auto flag = node.as_boolean()) {
    all.emplace_back(name, flag->get());
  } else if (const auto number = node.value<double>(); number && node.is_number()) {
    all.emplace_back(name, *number);
  } else if (const auto* text = node.as_string()) {
    all.emplace_back(name, text->get());
  } else {
    std::ostringstream printed;
    node.visit([&](const auto& value) { printed << value; });
    all.emplace_back(name, printed.str());
  }
}

}  // namespace

std::string text_in(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<HyperParameter> hyper_parameters(const std::string& output) {
  std::vector<HyperParameter> all;
  const auto config = toml::parse(text_in(output + "/config.toml"));
  for (const auto& [role, value] : config) {
    if (role.str() != "monitor") add(all, std::string(role.str()), value);  // monitors change no number of a run
  }
  return all;
}

}  // namespace vernier
