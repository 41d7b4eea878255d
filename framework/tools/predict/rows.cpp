#include "rows.h"

#include <vernier/data/data_source.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "common/config/config.h"
#include "common/text/quoting.h"
#include "files/json.h"
#include "predictions.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

using Rows = nlohmann::ordered_json;

constexpr std::size_t deepest = 8;
constexpr std::size_t most_rows = 100'000;

Rows parsed(const std::string& text, const std::string& where) {
  auto json = json_in<OrderedJson>(text, deepest);
  if (json.is_discarded() || json.is_null()) {
    refuse(where + " is not JSON, in which names and words have double quotes: '{\"carat\": 0.3, \"colour\": \"E\"}'");
  }
  return json;
}

const Table& task_of(const Table& config) {
  static const Table none;
  const auto found = config.find("task");
  const auto* table = found == config.end() ? nullptr : std::get_if<Table>(&found->second.data);
  return table == nullptr ? none : *table;
}

// The first text of an option, which may be a list.
std::string text_in(const Table& table, const char* key, const std::string& fallback) {
  const auto found = table.find(key);
  if (found == table.end()) return fallback;
  const auto* list = std::get_if<Array>(&found->second.data);
  const auto* text =
      std::get_if<std::string>(list != nullptr && !list->empty() ? &(*list)[0].data : &found->second.data);
  return text == nullptr ? fallback : *text;
}

// The bytes of base64, maybe behind "data:image/png;base64,"; nothing: it is another text.
std::optional<std::string> decoded(std::string text) {
  if (text.starts_with("data:")) text.erase(0, text.find(',') + 1);
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=' || c == '\n' || c == '\r') continue;
    const auto digit = digits.find(c == '-' ? '+' : c == '_' ? '/' : c);
    if (digit == digits.npos) return {};
    bits = bits << 6 | static_cast<unsigned>(digit);
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return bytes;
}

bool is_image(const std::string& bytes) {
  return bytes.starts_with("\x89PNG") || bytes.starts_with("\xff\xd8\xff") || bytes.starts_with("RIFF") ||
         bytes.starts_with("\x93NUMPY") || bytes.starts_with("GIF8") || bytes.starts_with("BM");
}

std::string cell_of(const Rows& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return json_text(value);
  const auto& text = value.get_ref<const std::string&>();
  const bool is_plain = !text.empty() && text.find_first_of(",;\t|\"\r\n ") == text.npos;
  return is_plain ? text : csv_quoted(text);
}

// Adds the numbers of nested lists, which all have the shape of the first. Returns what is wrong.
std::string flatten(const Rows& value, std::size_t depth, std::vector<std::size_t>& shape, Rows& flat) {
  if (!value.is_array()) {
    if (!value.is_number() && !value.is_boolean()) return "is not a list of numbers";
    if (depth != shape.size()) return "has lists of different depth";
    flat.push_back(value);
    return "";
  }
  if (depth == shape.size() && flat.empty()) shape.push_back(value.size());
  if (depth >= shape.size() || shape[depth] != value.size()) {
    return "has a list of " + std::to_string(value.size()) + " where others have another length";
  }
  for (const auto& each : value) {
    if (auto wrong = flatten(each, depth + 1, shape, flat); !wrong.empty()) return wrong;
  }
  return "";
}

template <class Number>
void append(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string npy_of(const std::vector<std::size_t>& shape, const Rows& flat) {
  const bool is_whole = std::ranges::all_of(flat, [](const auto& each) {
    return each.is_boolean() || (each.is_number_integer() && !each.is_number_unsigned()) ||
           (each.is_number_unsigned() && each.template get<std::uint64_t>() <= INT64_MAX);
  });
  auto bytes = npy_header(is_whole ? "<i8" : "<f8", shape);
  for (const auto& each : flat) {
    const auto whole = [&] { return each.is_boolean() ? each.get<bool>() : each.get<std::int64_t>(); };
    is_whole ? append(bytes, whole()) : append(bytes, each.is_boolean() ? each.get<bool>() : each.get<double>());
  }
  return bytes;
}

// The format of MNIST: bytes of images [samples, height, width].
std::string idx_of(const std::vector<std::size_t>& shape, const Rows& flat) {
  std::string bytes("\x00\x00\x08\x03", 4);
  for (const auto size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xFF);
  }
  for (const auto& each : flat) {
    const auto pixel = each.is_number_integer() ? each.get<std::int64_t>() : -1;
    if (pixel < 0 || pixel > 255) refuse("a pixel is " + json_text(each) + ", and must be an integer from 0 to 255");
    bytes += static_cast<char>(pixel);
  }
  return bytes;
}

}  // namespace

Rows rows_of_words(const std::vector<std::string>& words) {
  auto rows = Rows::array(), row = Rows::object();
  const auto end_row = [&] {
    if (!row.empty()) rows.push_back(std::exchange(row, Rows::object()));
  };
  for (const auto& word : words) {
    if (word.starts_with('{') || word.starts_with('[')) {
      end_row();
      auto json = parsed(word, "--row " + shortened(word));
      const bool is_list = json.is_array() && !json.empty() && json[0].is_object();
      for (auto& each : is_list ? json : Rows::array({json})) rows.push_back(each);
      continue;
    }
    const auto equals = word.find('=');
    if (equals == word.npos || equals == 0) {
      refuse("--row " + shortened(word) +
             ": write NAME=VALUE for each column, as in --row 'carat=0.3' 'colour=E', or "
             "JSON; the run stands before --row");
    }
    if (row.contains(word.substr(0, equals))) end_row();
    row[word.substr(0, equals)] = word.substr(equals + 1);
  }
  end_row();
  return rows;
}

Rows rows_of_text(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || (text[first] != '{' && text[first] != '[')) return nullptr;
  if (auto whole = json_in<OrderedJson>(text, deepest); whole.is_array()) {
    return !whole.empty() && whole[0].is_number() ? Rows::array({whole}) : whole;
  }
  auto rows = Rows::array();
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    rows.push_back(parsed(line, "standard input line " + std::to_string(number)));
  }
  return rows;
}

std::vector<std::string> plain_form(const Table& config) {
  std::vector<std::string> sets;
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, const char*>>{{"header", "true"},
                                                                                             {"separator", "\",\""},
                                                                                             {"decimal", "\".\""},
                                                                                             {"thousands", "\"\""},
                                                                                             {"encoding", "\"utf-8\""},
                                                                                             {"skip_lines", "0"}}) {
    if (task_of(config).contains(key)) sets.push_back(std::string("task.") + key + "=" + value);
  }
  return sets;
}

GivenRows::GivenRows(const Table& config, std::string name) : task_(task_of(config)), name_(std::move(name)) {}

std::string GivenRows::called(std::size_t row) const {
  return name_ == "instances" ? "instances[" + std::to_string(row) + "]" : "row " + std::to_string(row + 1);
}

void GivenRows::refuse_row(std::size_t row, const std::string& why) const {
  refuse(called(row) + ": " + why);
}

std::string GivenRows::file(const std::string& name, const std::string& bytes) const {
  const auto path = scratch_.path() + "/" + name;
  std::ofstream out(path, std::ios::binary);
  if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) {
    throw Error("the rows cannot be written to " + path + "; set TMPDIR to a folder with room");
  }
  return path;
}

void GivenRows::forget() {
  first_lines_.clear();
  for (const auto& each : fs::directory_iterator(scratch_.path())) fs::remove_all(each);
}

std::vector<std::string> GivenRows::write(const std::string& text) {
  forget();
  if (text_in(task_, "use", "") == "images" && is_image(text) && !text.starts_with("\x93NUMPY"))
    return {images({text})};
  const auto format = other_format(text, "rows", ConvertTo::table);
  if (format && !format->remedy.empty() && format->name != "a NumPy archive" && format->name != "packed by gzip") {
    refuse(name_ + " is " + format->name +
           "; write it to a file, and name that by --input, which says how to convert it");
  }
  const auto* ending = text.starts_with("\x93NUMPY") ? ".npy" : text.starts_with("PK\x03\x04") ? ".npz" : ".csv";
  return {file(std::string("rows") + ending, text)};
}

std::vector<std::string> GivenRows::write(const Rows& rows) {
  forget();
  if (rows.empty()) refuse("there is no row in " + (name_ == "row" ? "--row" : name_) + "; write [{\"carat\": 0.3}]");
  const bool is_series = text_in(task_, "kind", "") == "forecast" && rows.size() == 1 && rows[0].is_array();
  if (is_series && Options("task", task_, "").get("context", 32, "") != 1) return write(rows[0]);
  if (rows.size() > most_rows) refuse("at most " + std::to_string(most_rows) + " rows are taken at once");
  const auto is_like = [](const Rows& a, const Rows& b) {
    return a.is_object() == b.is_object() && a.is_string() == b.is_string();
  };
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    if (!is_like(row, rows[0])) refuse_row(i, "is not of the kind of the first");
    if (row.is_null()) refuse_row(i, "is null");
    const bool is_of_one = row.is_object() && row.size() == 1 && row.begin().value().is_string();
    if (row.is_string() || is_of_one) texts.push_back((row.is_string() ? row : row.begin().value()).get<std::string>());
  }
  const auto use = text_in(task_, "use", "");
  const auto image = texts.size() == rows.size() ? decoded(texts[0]) : std::nullopt;
  if (use == "images" && texts.size() == rows.size() && !image) refuse_row(0, "is not an image in base64");
  if (image && (use == "images" || is_image(*image))) {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto bytes = decoded(texts[i]);
      if (!bytes || !is_image(*bytes)) refuse_row(i, "is not an image in base64");
      texts[i] = *bytes;
    }
    return {images(texts)};
  }
  if (rows[0].is_string()) {
    if (use != "text") refuse_row(0, "is a text; write an object with a value for each column");
    auto objects = Rows::array();
    for (const auto& text : texts) objects.push_back({{text_in(task_, "text", "text"), text}});
    return write(objects);
  }
  const auto data = file_of(text_in(task_, "data", ""));
  const bool has_columns = use == "text" || (use == "tabular" && !data.ends_with(".npy") && !data.ends_with(".npz"));
  if (has_columns && !rows[0].is_object()) refuse_row(0, "must be an object with a value for each column");
  if (!rows[0].is_object()) return {array(rows, "")};
  std::vector<std::string> lists;
  for (const auto& [key, value] : rows[0].items()) {
    if (value.is_array()) lists.push_back(key);
  }
  if (lists.empty())
    return {use == "text" && text_in(task_, "data", "").ends_with(".jsonl") ? lines(rows) : table(rows)};
  // The order is that of the model's inputs, where the keys are their names: x of x.npy, or of data.npz:x.
  const auto found = task_.find("inputs");
  const auto* sources = found == task_.end() ? nullptr : std::get_if<Array>(&found->second.data);
  std::vector<std::string> files, in_order;
  for (const auto& source : sources == nullptr ? Array() : *sources) {
    const auto* name = std::get_if<std::string>(&source.data);
    if (name == nullptr) continue;
    const auto colon = name->rfind(':');
    const auto key = colon == name->npos ? fs::path(*name).stem().string() : name->substr(colon + 1);
    if (std::ranges::count(lists, key) == 1) in_order.push_back(key);
  }
  for (const auto& key : in_order.size() == lists.size() ? in_order : lists) files.push_back(array(rows, key));
  return files;
}

std::string GivenRows::lines(const Rows& rows) const {
  std::string text;
  for (const auto& row : rows) text += json_text(row) + '\n';
  return file("rows.jsonl", text);
}

std::string GivenRows::table(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& [name, value] : rows[0].items()) names.push_back(name);
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ",") + cell_of(name);
  text += '\n';
  std::size_t line = 2;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto begin = text.size();
    first_lines_.push_back(line);
    for (const auto& [name, value] : rows[i].items()) {
      if (!rows[0].contains(name))
        refuse_row(i, "has the column '" + shortened(name) + "', which the first row has not");
    }
    for (std::size_t k = 0; k < names.size(); ++k) {
      const auto found = rows[i].find(names[k]);
      if (found == rows[i].end()) refuse_row(i, "has no column '" + shortened(names[k]) + "'; null is a missing value");
      if (found->is_structured())
        refuse_row(i, "column '" + shortened(names[k]) + "' is a list or an object, and not one value");
      const auto cell = cell_of(*found);
      text += (k > 0 ? "," : "") + (names.size() == 1 && cell.empty() ? "\"\"" : cell);
    }
    text += '\n';
    line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), '\n'));
  }
  return file("rows.csv", text);
}

std::string GivenRows::array(const Rows& rows, const std::string& key) const {
  std::vector<std::size_t> shape = {rows.size()};
  auto flat = Rows::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!key.empty() && !rows[i].contains(key)) refuse_row(i, "has no '" + key + "'");
    const auto wrong = flatten(key.empty() ? rows[i] : rows[i][key], 1, shape, flat);
    if (!wrong.empty()) refuse_row(i, (key.empty() ? "" : "'" + key + "' ") + wrong);
  }
  if (flat.empty()) refuse_row(0, "has no numbers");
  const bool is_idx = text_in(task_, "use", "") == "images" && shape.size() == 3;
  if (is_idx) return file("rows-idx3-ubyte", idx_of(shape, flat));
  return file("rows" + (key.empty() ? "" : "-" + std::to_string(std::hash<std::string>{}(key))) + ".npy",
              npy_of(shape, flat));
}

// The names are the numbers of the rows, all of one length, as they are read in their order.
std::string GivenRows::images(const std::vector<std::string>& rows) const {
  const auto folder = scratch_.path() + "/images";
  fs::remove_all(folder);
  fs::create_directory(folder);
  const auto width = std::to_string(rows.size() - 1).size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].starts_with("GIF8") || rows[i].starts_with("BM")) refuse_row(i, "is a GIF or a BMP; convert it to PNG");
    auto name = std::to_string(i);
    file("images/" + name.insert(0, width - name.size(), '0'), rows[i]);
  }
  return folder;
}

std::string GivenRows::reworded(std::string error) const {
  const auto quoted = "'" + scratch_.path() + "/";
  for (std::size_t at = 0; (at = error.find(quoted, at)) != error.npos;) {
    const auto end = error.find('\'', at + 1);
    if (end == error.npos) break;
    const auto name = error.substr(at + quoted.size(), end - at - quoted.size());
    auto stop = end + 1;
    std::string place = name_ == "row" ? "--row" : name_;
    const std::string line = " line ";
    if (name.starts_with("images/") && std::isdigit(name.back()) != 0) place = called(std::stoul(name.substr(7)));
    if (error.compare(stop, line.size(), line) == 0 && std::isdigit(error[stop + line.size()]) != 0) {
      std::size_t digits = 0;
      const auto number = std::stoul(error.substr(stop + line.size()), &digits);
      const auto next = std::ranges::upper_bound(first_lines_, number);
      const bool is_line = name.ends_with(".jsonl") || next != first_lines_.begin();
      if (is_line)
        place =
            called(name.ends_with(".jsonl") ? number - 1 : static_cast<std::size_t>(next - first_lines_.begin()) - 1);
      if (is_line) stop += line.size() + digits;
    }
    error.replace(at, stop - at, place);
    at += place.size();
  }
  return error;
}

}  // namespace vernier
