#include <vernier/data/csv.h>
#include <vernier/options.h>

#include <map>
#include <string>

namespace vernier {

namespace {

// One character of those in `allowed`, or 0 for "".
char character(Options& options, const char* key, const char* allowed, const char* listed, const char* meaning) {
  const auto text = options.get(key, "", meaning);
  if (text.empty()) return 0;
  if (text.size() != 1 || std::string(allowed).find(text[0]) == std::string::npos) {
    options.refuse(key, std::string("must be ") + listed);
  }
  return text[0];
}

void read_types(Options& options, CsvOptions& csv) {
  static const std::map<std::string, CsvType> types = {{"number", CsvType::number},
                                                       {"category", CsvType::category},
                                                       {"date", CsvType::date},
                                                       {"day-month-year", CsvType::day_first},
                                                       {"month-day-year", CsvType::month_first}};
  for (const auto& [column, value] : options.get("types", Table{}, "CSV: types by column, {zip = \"category\"}")) {
    const auto* name = std::get_if<std::string>(&value.data);
    const auto type = name == nullptr ? types.end() : types.find(*name);
    if (type == types.end()) {
      options.refuse("types", "has a wrong type for column '" + column +
                                  "'; it must be number, category, date, day-month-year or month-day-year");
    }
    csv.types[column] = type->second;
  }
}

CsvFill fill_of(const std::string& word) {
  return word == "mean"       ? CsvFill::mean
         : word == "zero"     ? CsvFill::zero
         : word == "previous" ? CsvFill::previous
         : word == "drop"     ? CsvFill::drop
                              : CsvFill::refuse;
}

}  // namespace

CsvOptions csv_options(Options& options, std::initializer_list<const char*> fills) {
  CsvOptions csv;
  read_types(options, csv);
  csv.fill = fill_of(options.choose("missing", "refuse", fills,
                                    "CSV: what becomes of a missing value; previous: that of the row before; drop: "
                                    "its row is not used"));
  const std::vector<std::string> usual(csv.missing.begin() + 1, csv.missing.end());  // the first one is empty
  csv.missing = options.get("missing_words", usual, "CSV: words for no value, besides an empty cell");
  csv.missing.insert(csv.missing.begin(), "");
  csv.separator = character(options, "separator", ",;|\t ", "\",\", \";\", \"|\", \"\\t\" or \" \"",
                            "CSV: between two fields; \"\": it is found");
  csv.decimal = options.choose("decimal", ".", {".", ","}, "CSV: before the decimals of a number")[0];
  csv.thousands =
      character(options, "thousands", ",.' ", "\",\", \".\", \"'\" or \" \"", "CSV: between groups of three digits");
  if (csv.thousands == csv.decimal) options.refuse("thousands", "is the sign of `decimal`");
  csv.is_latin1 = options.choose("encoding", "utf-8", {"utf-8", "latin-1"}, "CSV: of the text") == "latin-1";
  csv.header = options.get("header", true, "CSV: the first line has the names; else columns are \"1\", \"2\", …");
  csv.skip_lines = options.get("skip_lines", 0, "CSV: lines before the header", between(0, 1e6));
  csv.doubts_header = !options.given("header");
  csv.doubts_points = !options.given("decimal");
  csv.sorted = true;  // codes do not depend on the order of the rows
  return csv;
}

}  // namespace vernier
