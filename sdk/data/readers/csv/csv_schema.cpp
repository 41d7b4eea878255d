#include <c10/util/StringUtil.h>
#include <vernier/data/csv.h>
#include <vernier/data/csv_schema.h>
#include <vernier/error.h>

#include <algorithm>

#include "csv_values.h"
#include "files/json.h"

namespace vernier {

namespace {

constexpr std::size_t deepest = 8;

const char* name_of(CsvType type) {
  return type == CsvType::number ? "number" : type == CsvType::category ? "category" : "date";
}

OrderedJson json_of(const CsvColumn& column) {
  OrderedJson json = {{"name", column.name}, {"type", name_of(column.type)}};
  if (column.type == CsvType::category) json["words"] = column.vocabulary;
  if (column.fill) json["fill"] = *column.fill;
  if (!column.means.empty()) json["means"] = column.means;
  if (column.has_signs) json["signs"] = true;
  if (column.type == CsvType::date) {
    json["form"] = column.form;
    json["numbers"] = numbers_of(column);
    if (!column.fills.empty()) json["fill"] = column.fills;
  }
  return json;
}

CsvColumn column_of(const Json& json) {
  CsvColumn column;
  column.name = json.at("name");
  const std::string type = json.at("type");
  column.type = type == "number" ? CsvType::number : type == "category" ? CsvType::category : CsvType::date;
  if (json.contains("words")) column.vocabulary = json["words"].get<std::vector<std::string>>();
  column.has_signs = json.value("signs", false);
  column.form = json.value("form", "");
  if (json.contains("means")) column.means = json["means"].get<std::vector<double>>();
  if (!json.contains("fill")) return column;
  if (json["fill"].is_array()) {
    column.fills = json["fill"].get<std::vector<double>>();
  } else {
    column.fill = json["fill"].get<double>();
  }
  return column;
}

}  // namespace

std::vector<std::string> numbers_of(const CsvColumn& column) {
  if (column.type == CsvType::category) return {};
  if (column.type != CsvType::date) return {column.name};
  std::vector<std::string> names;
  for (const char* part : {"days", "year", "month", "day", "weekday", "day_of_year"}) {
    names.push_back(column.name + "_" + part);
  }
  if (DateForm::parse(column.form).has_time) names.push_back(column.name + "_hour");
  return names;
}

std::string json_of(const CsvSchema& schema) {
  OrderedJson json = {{"columns", OrderedJson::array()}};
  for (const auto& column : schema.columns) json["columns"].push_back(json_of(column));
  if (schema.target) json["target"] = json_of(*schema.target);
  if (schema.width > 0) json["width"] = schema.width;
  return json_text(json);
}

CsvSchema parse_csv_schema(const std::string& json) {
  const auto parsed = parse_json("the columns", "schema", json, deepest);
  CsvSchema schema;
  try {
    for (const auto& column : parsed.value.at("columns")) schema.columns.push_back(column_of(column));
    if (parsed.value.contains("target")) schema.target = column_of(parsed.value["target"]);
    schema.width = parsed.value.value("width", std::int64_t{0});
  } catch (const Json::exception&) {
    throw Error("the schema of a table is damaged");
  }
  return schema;
}

std::string names_of_columns(std::vector<std::string> names) {
  for (auto& name : names) {
    if (name.empty()) name = "''";
  }
  return some_of(names);
}

std::string toml_key(const std::string& name) {
  const bool is_bare = !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (is_bare) return name;
  std::string quoted = "\"";
  for (const char c : name) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "\"";
}

}  // namespace vernier
