#include "schema.h"

#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/plugin.h>

#include <iterator>
#include <map>
#include <sstream>

#include "cli/options/plugin_list.h"

namespace vernier {

namespace {

using DeclaredOptions = std::vector<HostApi::Declared>;

struct Described {
  std::string name;
  OrderedJson properties;  // of its table
};

OrderedJson closed_object(OrderedJson properties) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

// Any value may be a reference, "${run.seed}", in the place of its own type.
OrderedJson or_reference(const char* type) {
  return {{"type", {type, "string"}}, {"pattern", R"(^\$\{.*\}$)"}};
}

// A text that is one of the words, or has a reference or what else the pattern says.
OrderedJson one_of(const std::vector<std::string>& words, const char* pattern) {
  return {{"type", "string"},
          {"anyOf", OrderedJson::array({OrderedJson{{"enum", words}}, OrderedJson{{"pattern", pattern}}})}};
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The limits as Options::declared() says them: "1 to 5", "0 < x <= 5", "at least 1", "above 0", "at most 3".
void add_limits(const std::string& range, OrderedJson& schema) {
  const auto words = split_words(range);
  const auto limit = [&](const char* name, std::size_t word) { schema[name] = OrderedJson::parse(words.at(word)); };
  if (words.size() == 3 && words[1] == "to") {
    limit("minimum", 0);
    limit("maximum", 2);
  } else if (words.size() == 5 && words[3] == "<=") {
    limit("exclusiveMinimum", 0);
    limit("maximum", 4);
  } else if (range.starts_with("at least ")) {
    limit("minimum", 2);
  } else if (range.starts_with("at most ")) {
    limit("maximum", 2);
  } else if (range.starts_with("above ")) {
    limit("exclusiveMinimum", 1);
  }
}

OrderedJson properties_of(const DeclaredOptions& options);

// The options of a table in the list `key`, which are declared as "rule.match".
DeclaredOptions options_in(const std::string& key, const DeclaredOptions& all) {
  DeclaredOptions inner;
  for (auto option : all) {
    if (!option.key.starts_with(key + ".")) continue;
    option.key.erase(0, key.size() + 1);
    inner.push_back(std::move(option));
  }
  return inner;
}

OrderedJson schema_of_type(const HostApi::Declared& option, const DeclaredOptions& all) {
  const auto number = [&](const char* type) {
    auto schema = or_reference(type);
    add_limits(option.range, schema);
    return schema;
  };
  const auto list = [](OrderedJson items) {
    auto schema = or_reference("array");
    schema["items"] = std::move(items);
    return schema;
  };
  if (option.type == "true or false") return or_reference("boolean");
  if (option.type == "an integer") return number("integer");
  if (option.type == "a number") return number("number");
  if (option.type == "a list of integers") return list(number("integer"));
  if (option.type == "a list of numbers") return list(number("number"));
  if (option.type == "a list of strings") return {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}};
  if (option.type == "a list of tables") return list(closed_object(properties_of(options_in(option.key, all))));
  if (option.type == "a table") return {{"type", "object"}};
  if (option.range.empty()) return {{"type", "string"}};
  auto words = split_words(option.range);  // "a | b | c"
  std::erase(words, "|");
  return one_of(words, R"(\$\{)");
}

OrderedJson schema_of_option(const HostApi::Declared& option, const DeclaredOptions& all) {
  auto schema = schema_of_type(option, all);
  const bool is_required = option.fallback == "required";
  schema["description"] =
      option.meaning + (is_required ? "; required" : "") + (option.range.empty() ? "" : " (" + option.range + ")");
  const auto fallback = OrderedJson::parse(option.fallback, nullptr, /*allow_exceptions=*/false);
  if (!fallback.is_discarded()) schema["default"] = fallback;  // JSON has no inf
  return schema;
}

OrderedJson properties_of(const DeclaredOptions& options) {
  OrderedJson properties = OrderedJson::object();
  for (const auto& option : options) {
    const bool is_of_a_list = option.key.find('.') != std::string::npos;
    if (!is_of_a_list) properties[option.key] = schema_of_option(option, options);
  }
  return properties;
}

// The options of all plugins of a role, for completion. What they do not agree about is left open.
OrderedJson properties_of_all(const std::vector<Described>& plugins) {
  OrderedJson all = OrderedJson::object();
  for (const auto& plugin : plugins) {
    for (const auto& [key, schema] : plugin.properties.items()) {
      if (!all.contains(key)) {
        all[key] = schema;
      } else if (all[key] != schema) {
        all[key] = {{"description", all[key]["description"]}};
      }
    }
  }
  return all;
}

OrderedJson schema_of_role(const std::string& role, const std::vector<Described>& plugins) {
  const bool is_list = role == Callback::role || role == Monitor::role;
  std::vector<std::string> names, keys;
  for (const auto& plugin : plugins) names.push_back(plugin.name);
  auto use = one_of(names, R"(/|\$\{)");
  use["description"] = "name of the plugin, or the path of its library";
  OrderedJson own = {{"use", use}};
  own["sha256"] = {{"type", "string"},
                   {"pattern", "^[0-9a-fA-F]{64}$"},
                   {"description", "digest that the plugin's file must have, as sha256sum prints it"}};
  if (is_list) {
    own["remove"] = {{"type", "boolean"}, {"description", "true: removes that of a file before this one"}};
  }
  auto properties = own;
  properties.update(properties_of_all(plugins));
  for (const auto& [key, schema] : properties.items()) keys.push_back(key);
  // By `use`, the options of that plugin. Without it, another file names the plugin. A path may have any options.
  OrderedJson rest = {{"if", {{"not", {{"required", OrderedJson::array({"use"})}}}}},
                      {"then", {{"propertyNames", {{"enum", keys}}}}}};
  for (auto plugin = plugins.rbegin(); plugin != plugins.rend(); ++plugin) {
    auto with_own = own;
    with_own.update(plugin->properties);
    rest = {{"if", {{"properties", {{"use", {{"const", plugin->name}}}}}, {"required", OrderedJson::array({"use"})}}},
            {"then", closed_object(std::move(with_own))},
            {"else", std::move(rest)}};
  }
  OrderedJson table = {{"type", "object"}, {"properties", std::move(properties)}};
  table.update(rest);
  if (!is_list) return table;
  table["required"] = OrderedJson::array({"use"});
  return {{"type", "array"}, {"items", std::move(table)}};
}

}  // namespace

OrderedJson schema_of(const Host& host) {
  std::map<std::string, std::vector<Described>> roles;
  for (const auto& plugin : host.list()) {
    auto& plugins = roles[plugin.role];
    if (!plugins.empty() && plugins.back().name == plugin.name) continue;  // of a later folder
    try {
      const auto options = options_of(host, plugin.role + "/" + plugin.name);
      plugins.push_back({plugin.name, properties_of(HostApi::declared(options))});
    } catch (...) {
      log(Level::warning, "config", plugin.role + "/" + plugin.name + " is left out: " + caught().message);
    }
  }
  const OrderedJson file = {{"type", "string"}};
  OrderedJson properties = {{"include",
                             {{"description", "files that are merged before this one, relative to it"},
                              {"anyOf", OrderedJson::array({file, {{"type", "array"}, {"items", file}}})}}},
                            {"run", closed_object(properties_of(HostApi::declared(options_of(host, "run"))))}};
  auto& run = properties["run"]["properties"];
  run["name"].erase("default");  // that of the first file
  auto steps = or_reference("integer");
  add_limits("at least 0", steps);
  auto& every = run["validate_every"];
  every = {{"description", every["description"]},
           {"default", every["default"]},
           {"anyOf", OrderedJson::array({one_of({"epoch"}, R"(\$\{)"), steps})}};
  for (const auto& [role, plugins] : roles) {
    if (!plugins.empty()) properties[role] = schema_of_role(role, plugins);
  }
  OrderedJson schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "a run of Vernier"}};
  schema.update(closed_object(std::move(properties)));
  return schema;
}

}  // namespace vernier
