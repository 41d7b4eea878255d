#include "findings.h"

#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "common/run_files.h"
#include "common/text/quoting.h"
#include "records.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// The targets beside an array, if there is one file with such a name; or "".
std::string targets_beside(const std::string& path) {
  std::vector<std::string> found;
  for (const char* name : {"y.npy", "labels.npy", "target.npy", "targets.npy"}) {
    const auto file = (fs::path(path).parent_path() / name).string();
    if (file != path && fs::exists(file)) found.push_back(file);
  }
  return found.size() == 1 ? found[0] : "";
}

Findings look_at_array(const std::string& path, const GivenData& given) {
  const auto targets = given.target.empty() ? targets_beside(path) : given.target;
  const auto x = read_npy(path);
  if (targets.empty() && x.dim() == 2) {
    auto series = given;
    series.use = "sequence";
    if (x.size(1) == 1) return *look_at_sequences(path, series);
    refuse("name the file of the targets of '" + path +
           "', as in --target y.npy; or forecast its columns: --set "
           "task.kind=forecast");
  }
  if (targets.empty()) refuse("name the file of the targets of '" + path + "', as in --target y.npy");
  const auto y = read_npy(targets);
  if (x.dim() < 2 || x.dim() > 3) {
    refuse(c10::str("'", path, "' has the shape ", x.sizes(),
                    "; a table has [rows, columns], sequences have [samples, steps, features]"));
  }
  if (y.dim() == 0 || y.size(0) != x.size(0)) {
    refuse(c10::str("'", path, "' has ", x.size(0), " samples, and '", targets, "' the shape ", y.sizes()));
  }
  return findings_of_arrays({path, x}, {targets, y}, x.dim() == 3 || given.use == "sequence");
}

// Returns true for a table with numbers whose name is that of a text.
bool is_table_of_text(const std::string& path) {
  const auto records = records_of_csv(path, {});
  return records && records->fields.size() > 1 && !std::ranges::all_of(records->fields, &Field::has_words);
}

}  // namespace

std::string toml_value(const std::string& text) {
  if (printable(text, text) != text) refuse("'" + printable(text) + "' is not UTF-8, as TOML must be; rename it");
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) escaped += '$';
    escaped += text[i];
  }
  return toml_quoted(escaped);
}

std::string toml_list(const std::vector<std::string>& texts) {
  std::string list;
  for (const auto& text : texts) list += (list.empty() ? "" : ", ") + toml_value(text);
  return "[" + list + "]";
}

std::string small_letters(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_number(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) || c == '"'; });
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_picture(const std::string& path) {
  const auto ending = ending_of(path);
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg" || ending == ".webp";
}

bool is_text(const std::string& path) {
  const auto ending = ending_of(path);
  return ending == ".txt" || ending == ".md" || ending == ".rst" || ending == ".tex";
}

std::string name_of(const std::string& data) {
  auto path = fs::absolute(data).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  auto name = path.filename();
  if (name.extension() == ".gz") name = name.stem();
  name = name.stem();
  return name.empty() ? "run" : name.string();
}

std::string ending_of(const std::string& path) {
  auto name = small_letters(fs::path(path).filename().string());
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return fs::path(name).extension().string();
}

const std::string* Findings::option(const std::string& key) const {
  const auto found = std::ranges::find(task, key, &std::pair<std::string, std::string>::first);
  return found == task.end() ? nullptr : &found->second;
}

namespace {

Findings look_at_folder(const std::string& path, const GivenData& given) {
  if (!given.target.empty()) refuse("--target is for files; the classes of images are their folders");
  if (given.use == "gpt") return look_at_bytes(path);
  if (is_run(path)) refuse_mixed_folder(path);
  try {
    auto found = look_at_images(path);
    found.others.push_back({{"MODEL.pt2", path}, "a network of your own from torch.export"});
    return found;
  } catch (const Error&) {
    if (!given.use.empty()) throw;
    refuse_mixed_folder(path);
    if (texts_in(path) > 0) return look_at_bytes(path);
    throw;
  }
}

// Returns true for a list of images. Refuses one whose columns have other names than those that task/images reads.
bool is_list_of_images(const Records& records) {
  std::string images, label;
  for (const auto& field : records.fields) {
    if (field.has_words() && images.empty() && std::ranges::all_of(field.words, is_picture)) {
      images = field.name;
    } else if (label != "label") {
      label = field.name;
    }
  }
  if (images.empty() || label.empty()) return false;
  if (images == "file" && label == "label" && records.fields.size() == 2) return true;
  refuse("'" + records.path + "' has names of images in column '" + shortened(images) +
         "'; a list of images has the columns file and label: python3 -c \"import pandas; pandas.read_csv('" +
         records.path + "')[['" + images + "', '" + label + "']].set_axis(['file', 'label'], axis=1).to_csv('" +
         fs::path(records.path).replace_extension().string() + "_list.csv', index=False)\"");
}

Findings look_at_csv(const std::string& path, const GivenData& given) {
  const auto records = given.use == "images" ? std::nullopt : records_of_csv(path, given);
  if (given.use == "images") return look_at_images(path);
  if (!records) return look_at_table(path, given);
  if (given.use == "text" || given.use == "sequence") {
    auto found = given.use == "text" ? look_at_texts(*records, given) : look_at_series(*records, given);
    if (found) return *found;
    refuse("'" + path + "' has no " + (given.use == "text" ? "column of texts" : "series in the order of its rows") +
           "; leave task.use out");
  }
  if (given.use.empty()) {
    if (is_list_of_images(*records)) return look_at_images(path);
    if (auto series = look_at_series(*records, given)) return *series;
    if (auto texts = look_at_texts(*records, given)) return *texts;
  }
  auto found = look_at_table(path, given);
  if (const auto* use = found.option("use"); use == nullptr || *use != "\"tabular\"") return found;
  const auto also = [&](const char* task, const char* remark) {
    auto words = std::vector<std::string>{path};
    if (!given.target.empty()) words.insert(words.end(), {"--target", given.target});
    words.insert(words.end(), {"--set", std::string("task.use=") + task});
    found.others.emplace_back(words, remark);
  };
  auto other = given;
  constexpr double words_of_a_text = 3;
  const auto is_text = [&](const auto& field) {
    return field.words_of_a_value() >= words_of_a_text && 2 * std::ssize(field.words) > records->rows;
  };
  if (std::ranges::any_of(records->fields, is_text)) also("text", "its texts alone");
  const bool has_dates = std::ranges::any_of(
      records->fields, [](const auto& field) { return field.type == Field::Type::dates && field.rises(); });
  other.use = "sequence";
  if (has_dates && records->rows >= 12 && look_at_series(*records, other))
    also("sequence", "a forecast of the next row");
  return found;
}

Findings look_at_lines(const std::string& path, const GivenData& given) {
  if (path.ends_with(".gz")) refuse_packed(path);
  const auto records = records_of_lines(path);
  if (given.use != "text") {
    if (auto chats = look_at_chats(records, "")) return *chats;
  }
  if (const auto found = look_at_texts(records, given)) return *found;
  refuse("'" + path +
         "' has no texts with a class or number, which --target names; a table is CSV: python3 -c \"import "
         "pandas; pandas.read_json('" +
         path + "', lines=" + (ending_of(path) == ".json" ? "False" : "True") + ").to_csv('" +
         fs::path(path).replace_extension().string() + ".csv', index=False)\"");
}

// Refuses a single picture, with the folder of its class's folder where there is one.
[[noreturn]] void refuse_picture(const std::string& path) {
  const auto folder = fs::path(path).parent_path().parent_path().string();
  refuse("'" + path +
         "' is a single picture; a model learns from a folder that has a folder of pictures for each class: "
         "vernier new toml " +
         (folder.empty() ? "FOLDER" : shell_quoted(folder)));
}

}  // namespace

Findings look_at(const std::vector<std::string>& paths, const GivenData& given) {
  for (const auto& path : paths) require_readable(path);
  if (const auto model = std::ranges::find_if(paths, is_model); model != paths.end()) {
    std::vector<std::string> data;
    for (const auto& path : paths) {
      if (path != *model) data.push_back(path);
    }
    return look_at_model(*model, data, given);
  }
  const auto& path = paths.at(0);
  if (paths.size() > 1) {
    refuse("new toml takes one file or folder, and " + paths[1] + " is a second; a model may stand beside its data");
  }
  std::error_code none;
  if (fs::is_directory(path, none)) return look_at_folder(path, given);
  const auto ending = ending_of(path);
  if (ending == ".jsonl" || ending == ".json") return look_at_lines(path, given);
  if (is_picture(path)) refuse_picture(path);
  if (given.use == "gpt" || (is_text(path) && given.use.empty() && given.target.empty() && !is_table_of_text(path))) {
    return look_at_bytes(path);
  }
  if (ending == ".npy" || ending == ".npz") {
    if (auto found = look_at_sequences(path, given)) return *found;
    return look_at_array(path, given);
  }
  return look_at_csv(path, given);
}

}  // namespace vernier
