#include <c10/util/StringUtil.h>
#include <vernier/data/trainer_program.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace vernier {

namespace {

using Json = nlohmann::json;

// A text as a literal of C++. A byte that may not stand in one becomes three octal digits.
std::string literal(const std::string& text) {
  std::string all = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\' && c != '?';
    if (is_plain) {
      all += c;
    } else {
      all += '\\';
      for (const int shift : {6, 3, 0}) all += static_cast<char>('0' + ((byte >> shift) & 7));
    }
  }
  return all + '"';
}

std::string exact(double value) {
  return Json(value).dump();
}

class Constants {
 public:
  template <class T>
  void add(const char* type, const std::string& name, const T& value) {
    text_ += c10::str("constexpr ", type, " ", name, " = ", value, ";\n");
  }
  // Adds an array of sizes that ends with 0.
  void sizes(const char* name, const std::vector<std::int64_t>& all) {
    std::string list;
    for (const auto size : all) list += std::to_string(size) + ", ";
    text_ += c10::str("constexpr int64_t ", name, "[] = {", list, "0};\n");
  }
  // Adds an array of words that ends with a nullptr.
  void words(const std::string& name, const std::vector<std::string>& all) {
    std::string list;
    for (const auto& word : all) list += literal(word) + ", ";
    text_ += "constexpr const char* " + name + "[] = {" + list + "nullptr};\n";
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

// Adds the columns in the JSON of csv_schema.h.
void put_columns(const Json& json, Constants& to) {
  std::string list;
  std::size_t number = 0;
  for (const auto& column : json.at("columns")) {
    const auto name = column.at("name").get<std::string>();
    if (column.at("type") == "date") {
      refuse("column '" + name + "' has dates, which the program cannot read; export --format python can");
    }
    std::string words = "nullptr";
    if (column.at("type") == "category") {
      words = "words_" + std::to_string(number++);
      to.words(words, column.at("words").get<std::vector<std::string>>());
    }
    const bool has_fill = column.contains("fill") && column["fill"].is_number();
    list += c10::str("    {", literal(name), ", ", words, ", ", column.value("signs", false) ? "true" : "false", ", ",
                     has_fill ? "true" : "false", ", ", has_fill ? exact(column["fill"]) : "0", "},\n");
  }
  to.add("int", "column_count", json["columns"].size());
  to.add("Column", "columns[]", "{\n" + list + "    {}}");
  const auto target = json.value("target", Json::object());
  to.add("Column", "target",
         c10::str("{", literal(target.value("name", "")), ", nullptr, ",
                  target.value("signs", false) ? "true" : "false", ", false, 0}"));
  to.add("char", "decimal", literal(json.at("decimal")) + "[0]");
  to.add("char", "thousands", literal(json.at("thousands")) + "[0]");
  to.words("missing_words", json.at("missing_words").get<std::vector<std::string>>());
  to.add("bool", "fills", json.at("fills").get<bool>() ? "true" : "false");
}

// Returns the names of columns of predicted numbers.
std::vector<std::string> output_names(const TrainerPlan& plan) {
  const auto names = plan.horizon > 0 ? plan.feature_names : std::vector<std::string>{plan.output};
  const auto each = plan.horizon > 0 ? plan.horizon : plan.outputs;
  std::vector<std::string> all;
  for (const auto& name : names) {
    for (std::int64_t i = 0; i < each; ++i) all.push_back(each == 1 ? name : c10::str(name, '_', i));
  }
  return all;
}

}  // namespace

TrainerExportable::~TrainerExportable() = default;

std::string trainer_program(const TrainerPlan& plan, const TrainerDefaults& defaults) {
  Constants to;
  to.add("bool", "has_classes", plan.classes.empty() ? "false" : "true");
  to.words("classes", plan.classes);
  to.add("int", "outputs", plan.outputs);
  to.add("int", "numbers", plan.numbers);
  to.add("int64_t", "steps", plan.steps);
  to.add("int", "category_count", plan.categories.size());
  to.sizes("categories", plan.categories);
  to.add("int", "lstm_layers", plan.lstm_layers);
  to.add("int64_t", "lstm_width", plan.lstm_width);
  to.add("int", "hidden_count", plan.hidden.size());
  to.sizes("hidden", plan.hidden);
  to.add("float", "dropout", exact(plan.dropout));
  to.add("const char*", "name_mean", literal(plan.mean));
  to.add("const char*", "name_deviation", literal(plan.deviation));
  to.add("const char*", "name_target_mean", literal(plan.target_mean));
  to.add("const char*", "name_target_deviation", literal(plan.target_deviation));
  to.add("const char*", "name_last_weight", literal(plan.last_weight));
  to.add("const char*", "name_last_bias", literal(plan.last_bias));
  to.add("const char*", "output_name", literal(plan.output));
  to.words("output_names", output_names(plan));
  to.add("int64_t", "horizon", plan.horizon);
  to.add("int64_t", "stride", plan.stride);
  to.add("int64_t", "season", plan.season);
  to.add("int", "feature_count", plan.features.empty() ? 1 : plan.features.size());
  to.sizes("features", plan.features);
  if (plan.columns.empty()) {
    put_columns({{"columns", Json::array()},
                 {"decimal", "."},
                 {"thousands", ""},
                 {"missing_words", Json::array()},
                 {"fills", false}},
                to);
  } else {
    put_columns(json_in<Json>(plan.columns), to);
  }
  to.add("bool", "skips_targets", plan.skips_targets ? "true" : "false");
  to.add("bool", "skips_inputs", plan.skips_inputs ? "true" : "false");
  to.add("double", "learning_rate_of_run", exact(defaults.learning_rate));
  to.add("double", "weight_decay_of_run", exact(defaults.weight_decay));
  to.add("double", "beta1", exact(defaults.beta1));
  to.add("double", "beta2", exact(defaults.beta2));
  to.add("double", "epsilon", exact(defaults.epsilon));
  to.add("int64_t", "batch_of_run", plan.batch_size);
  std::string source = trainer_source;
  const std::string place = "// @model@\n";
  return source.replace(source.find(place), place.size(), to.text());
}

}  // namespace vernier
