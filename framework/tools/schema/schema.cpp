#include "schema.h"

#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/plugin.h>

#include <cmath>
#include <map>

#include "cli/options/plugin_list.h"

namespace vernier {

namespace {

using DeclaredOptions = std::vector<OptionInfo>;

struct Described {
  std::string name;
  OrderedJson properties;  // keys of its table
};

OrderedJson closed_object(OrderedJson properties) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

// Any value may be a reference, "${run.seed}", in the place of its own type. Validators then name the type that a wrong
// value should have; of a pattern or of alternatives they print those.
OrderedJson or_reference(const char* type) {
  return {{"type", {type, "string"}},
          {"if", {{"type", "string"}, {"pattern", R"(^\$\{.*\}$)"}}},
          {"else", {{"type", type}}}};
}

// A text that is one of the words, or has a reference or what else the pattern says.
OrderedJson one_of(const std::vector<std::string>& words, const char* pattern) {
  return {{"type", "string"},
          {"anyOf", OrderedJson::array({OrderedJson{{"enum", words}}, OrderedJson{{"pattern", pattern}}})}};
}

// A value as JSON; discarded where JSON has none, as for inf. Whole numbers have no ".0".
OrderedJson json_of(const Value& value) {
  return OrderedJson::parse(value_text(value), nullptr, /*allow_exceptions=*/false);
}

void add_limits(const Range& range, OrderedJson& schema) {
  if (std::isfinite(range.min)) schema[range.above ? "exclusiveMinimum" : "minimum"] = json_of({range.min, ""});
  if (std::isfinite(range.max)) schema["maximum"] = json_of({range.max, ""});
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

OrderedJson schema_of_type(const OptionInfo& option, const DeclaredOptions& all) {
  using Type = OptionInfo::Type;
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
  switch (option.type) {
    case Type::boolean:
      return or_reference("boolean");
    case Type::integer:
      return number("integer");
    case Type::number:
      return number("number");
    case Type::integers:
      return list(number("integer"));
    case Type::numbers:
      return list(number("number"));
    case Type::strings:
      return {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}};
    case Type::tables:
      return list(closed_object(properties_of(options_in(option.key, all))));
    case Type::table:
      return {{"type", "object"}};
    case Type::string:
      break;
  }
  if (option.words.empty()) return {{"type", "string"}};
  return one_of(option.words, R"(\$\{)");
}

OrderedJson schema_of_option(const OptionInfo& option, const DeclaredOptions& all) {
  auto schema = schema_of_type(option, all);
  const auto limits = option.limits_text();
  schema["description"] =
      option.meaning + (option.is_required ? "; required" : "") + (limits.empty() ? "" : " (" + limits + ")");
  const auto fallback = json_of(option.fallback);
  if (!option.is_required && !fallback.is_discarded()) schema["default"] = fallback;
  return schema;
}

OrderedJson properties_of(const DeclaredOptions& options) {
  OrderedJson properties = OrderedJson::object();
  for (const auto& option : options) {
    const bool is_of_a_list = option.key.find('.') != std::string::npos;
    if (is_of_a_list) continue;
    const auto schema = schema_of_option(option, options);
    auto& known = properties[option.key];
    // A key that is declared twice is read in the one way or the other, by another option.
    if (!known.is_null() && known != schema) {
      known = {{"description", option.meaning}, {"anyOf", OrderedJson::array({known, schema})}};
    } else {
      known = schema;
    }
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
    // A group with `use` has the options of another optimizer.
    if (role == Optimizer::role && with_own.contains("group")) {
      auto& items = with_own["group"]["items"];
      const OrderedJson other = {
          {"type", "object"}, {"required", {"use", "match"}}, {"properties", {{"use", own["use"]}}}};
      items = {{"anyOf", OrderedJson::array({items, other})}};
    }
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

OrderedJson schema_of_table(const Host& host, const std::string& id) {
  auto properties = properties_of(HostApi::declared(options_of(host, id)));
  if (id == "run") {
    properties["name"].erase("default");  // the default is the first file's name
    auto steps = or_reference("integer");
    add_limits(at_least(0), steps);
    auto& every = properties["validate_every"];
    every = {{"description", every["description"]},
             {"default", every["default"]},
             {"anyOf", OrderedJson::array({one_of({"epoch"}, R"(\$\{)"), steps})}};
  }
  return closed_object(std::move(properties));
}

OrderedJson schema_of(const Host& host) {
  std::map<std::string, std::vector<Described>> roles;
  for (const auto& plugin : host.list()) {
    auto& plugins = roles[plugin.role];
    if (!plugins.empty() && plugins.back().name == plugin.name) continue;  // an earlier folder has this plugin
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
                            {"run", schema_of_table(host, "run")}};
  for (const auto& [role, plugins] : roles) {
    if (!plugins.empty()) properties[role] = schema_of_role(role, plugins);
  }
  OrderedJson schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "a run of Vernier"}};
  schema.update(closed_object(std::move(properties)));
  return schema;
}

}  // namespace vernier
