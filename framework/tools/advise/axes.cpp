#include "axes.h"

#include "common/text/quoting.h"

#include <algorithm>

namespace vernier {

namespace {

// The value as TOML; "" where the configuration has none.
std::string written_value(const toml::table& written, const std::string& key) {
  const auto node = written.at_path(key);
  if (!node) return "";
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  auto all = text.str();
  if (all.size() > 1 && all.front() == '\'') all = toml_quoted(all.substr(1, all.size() - 2));
  return all;
}

// Values of keys that the configuration does not give.
const std::map<std::string, std::string> defaults = {
    {"precision.use", "\"fp32\""}, {"precision.level", "\"O1\""},     {"precision.rounding", "\"nearest\""},
    {"scaler.use", "\"none\""},    {"accumulation.use", "\"fixed\""}, {"accumulation.micro_batches", "1"}};

std::string default_of(const std::string& key) {
  const auto known = defaults.find(key);
  return known == defaults.end() ? "" : known->second;
}

std::string value_or_default(const toml::table& written, const std::string& key) {
  const auto value = written_value(written, key);
  return value.empty() ? default_of(key) : value;
}

bool is_written(const toml::table& written, const Option& option) {
  return std::ranges::all_of(
      option.settings, [&](const Setting& setting) { return value_or_default(written, setting.key) == setting.value; });
}

// Without what is so anyway. Another plugin begins with its defaults, whatever the table says for the one before it.
std::vector<Setting> needed(const toml::table& written, const std::vector<Setting>& settings) {
  const auto replaces_plugin = [&](const std::string& key) {
    const auto use = key.substr(0, key.find('.')) + ".use";
    return std::ranges::any_of(
        settings, [&](const Setting& each) { return each.key == use && each.value != value_or_default(written, use); });
  };
  std::vector<Setting> kept;
  for (const auto& setting : settings) {
    const bool begins_anew = !setting.key.ends_with(".use") && replaces_plugin(setting.key);
    const auto before = begins_anew ? default_of(setting.key) : value_or_default(written, setting.key);
    if (before != setting.value) kept.push_back(setting);
  }
  return kept;
}

// Puts the written option first; makes one where the configuration has something else than all options.
Axis finished(std::string name, const toml::table& written, std::vector<Option> options, const std::string& own) {
  const auto found = std::ranges::find_if(options, [&](const Option& each) { return is_written(written, each); });
  if (found == options.end()) {
    options.insert(options.begin(), Option{own, {}});
  } else {
    std::rotate(options.begin(), found, found + 1);
    options.front().settings.clear();
  }
  for (auto& option : options) option.settings = needed(written, option.settings);
  return {std::move(name), std::move(options), ""};
}

Option low_precision(const std::string& name, const char* plugin, const char* level, const char* rounding,
                     const char* scaler) {
  return {name,
          {{"precision.use", toml_quoted(plugin)},
           {"precision.level", toml_quoted(level)},
           {"precision.rounding", toml_quoted(rounding)},
           {"scaler.use", toml_quoted(scaler)}}};
}

Axis precision_axis(const AxisInputs& inputs) {
  std::vector<Option> options = {
      {"fp32", {{"precision.use", "\"fp32\""}, {"scaler.use", "\"none\""}}},
      low_precision("bf16", "bf16", "O1", "nearest", "none"),
      low_precision("bf16-O2", "bf16", "O2", "nearest", "none"),
      low_precision("bf16-O3-stochastic", "bf16", "O3", "stochastic", "none"),
      low_precision("fp16", "fp16", "O1", "nearest", "dynamic"),
      low_precision("fp16-O2", "fp16", "O2", "nearest", "dynamic"),
  };
  if (inputs.saves_memory) options.push_back(low_precision("bf16-O3-kahan", "bf16", "O3", "kahan", "none"));
  // A CPU only emulates 8-bit products.
  if (!inputs.is_on_cpu) options.push_back(low_precision("fp8", "fp8", "O1", "nearest", "none"));
  const auto use = inputs.written["precision"]["use"].value_or(std::string("fp32"));
  const auto level = inputs.written["precision"]["level"].value_or(std::string());
  return finished("precision", inputs.written, std::move(options), use + (level.empty() ? "" : "-" + level));
}

// The axis of an option whose declaration lists its words.
Axis axis_of_words(const std::string& name, const AxisInputs& inputs, const std::string& table, const std::string& key,
                   const DeclaredOptions& declared, const std::vector<std::string>& without = {}) {
  const auto found = declared.find(key);
  if (found == declared.end()) {
    const auto plugin = inputs.written[table]["use"].value_or(table);
    return {name, {{"none", {}}}, "[" + table + "] use = \"" + plugin + "\" has no option `" + key + "`"};
  }
  const auto path = table + "." + key;
  const auto before = written_value(inputs.written, path);
  const auto now = before.empty() ? found->second.fallback : before;
  std::vector<Option> options = {{key + "=" + now.substr(1, now.size() - 2), {}}};
  for (const auto& word : found->second.words) {
    if (toml_quoted(word) == now || std::ranges::find(without, word) != without.end()) continue;
    options.push_back({key + "=" + word, {{path, toml_quoted(word)}}});
  }
  return {name, std::move(options), ""};
}

Axis micro_batch_axis(const AxisInputs& inputs) {
  const auto use = inputs.written["accumulation"]["use"].value_or(std::string("fixed"));
  const auto size = inputs.written["accumulation"]["micro_batch_size"].value_or(std::int64_t{0});
  if (use != "fixed" || size > 0) {
    const auto own = size > 0 ? "micro_batch_size=" + std::to_string(size) : use;
    return {"micro-batches", {{own, {}}}, "[accumulation] of the configuration decides, and stays"};
  }
  std::vector<Option> options;
  for (const char* count : {"1", "2", "4", "8"}) {
    options.push_back({std::string("micro_batches=") + count,
                       {{"accumulation.use", "\"fixed\""}, {"accumulation.micro_batches", count}}});
  }
  return finished("micro-batches", inputs.written, std::move(options),
                  "micro_batches=" + written_value(inputs.written, "accumulation.micro_batches"));
}

Axis unmeasured(Axis axis) {
  axis.options.resize(1);
  if (axis.note.empty()) axis.note = "costs time and saves memory: measured with --memory only";
  return axis;
}

}  // namespace

DeclaredOptions declared_in(const nlohmann::json& schema) {
  DeclaredOptions all;
  const auto properties = schema.value("properties", nlohmann::json::object());
  for (const auto& [key, option] : properties.items()) {
    const auto words = option.value("/anyOf/0/enum"_json_pointer, std::vector<std::string>());
    if (!words.empty()) all[key] = {toml_quoted(option.value("default", "")), words};
  }
  return all;
}

std::vector<Axis> axes_of(const AxisInputs& inputs) {
  // LibTorch has no faster float32 products for "high" on a CPU.
  const std::vector<std::string> no_products =
      inputs.is_on_cpu ? std::vector<std::string>{"high"} : std::vector<std::string>{};
  std::vector<Axis> axes = {
      precision_axis(inputs),
      axis_of_words("matrix kernel", inputs, "run", "matmul", inputs.run),
      axis_of_words("float32 products", inputs, "run", "matmul_precision", inputs.run, no_products),
      micro_batch_axis(inputs),
      axis_of_words("optimizer state", inputs, "optimizer", "state", inputs.optimizer),
      axis_of_words("recomputation", inputs, "task", "recompute", inputs.task)};
  if (!inputs.is_on_cpu || !inputs.is_amd) {
    axes[1].options.resize(1);
    axes[1].note = "only AMD's processors have more than one";
  }
  if (!inputs.saves_memory) {
    axes[4] = unmeasured(axes[4]);
    axes[5] = unmeasured(axes[5]);
  }
  return axes;
}

std::size_t place_of_float32(const Axis& precision) {
  const auto found = std::ranges::find(precision.options, "fp32", &Option::name);
  return static_cast<std::size_t>(found - precision.options.begin());
}

Choice as_written(const std::vector<Axis>& axes) {
  return Choice(axes.size(), 0);
}

std::string name_of(const std::vector<Axis>& axes, const Choice& choice) {
  std::string name;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (choice[i] != 0) name += (name.empty() ? "" : ", ") + axes[i].options[choice[i]].name;
  }
  return name.empty() ? "as written" : name;
}

std::vector<Setting> settings_of(const std::vector<Axis>& axes, const Choice& choice) {
  std::vector<Setting> all;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto& settings = axes[i].options[choice[i]].settings;
    all.insert(all.end(), settings.begin(), settings.end());
  }
  return all;
}

std::size_t changes_in(const Choice& choice) {
  return static_cast<std::size_t>(std::ranges::count_if(choice, [](std::size_t place) { return place != 0; }));
}

std::string overlay_of(const std::vector<Setting>& settings) {
  std::map<std::string, std::string> tables;
  for (const auto& [key, value] : settings) {
    const auto dot = key.find('.');
    tables[key.substr(0, dot)] += key.substr(dot + 1) + " = " + value + "\n";
  }
  std::string text;
  for (const auto& [table, lines] : tables) text += "\n[" + table + "]\n" + lines;
  return text;
}

}  // namespace vernier
