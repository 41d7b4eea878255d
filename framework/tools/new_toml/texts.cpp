// Texts: classes, numbers or an order of them, and what language models learn.
#include <ATen/ops/_unique.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/run_files.h"
#include "common/text/quoting.h"
#include "records.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

bool is_mostly_distinct(const Field& field, std::int64_t rows) {
  return field.has_words() && 2 * std::ssize(field.words) > rows;
}

// Row numbers, in any order.
bool is_counter(const Field& field) {
  if (field.type != Field::Type::numbers || !field.values.equal(field.values.round())) return false;
  return std::get<0>(at::_unique(field.values)).numel() == field.values.numel();
}

// The fields that are read as texts if `target` is predicted; none if the records look like a table.
std::vector<std::string> texts_of(const Records& records, const std::string& target, const GivenData& given) {
  if (auto named = Options("task", given.task, "--set task").get("text", std::vector<std::string>{}, "");
      !named.empty())
    return named;
  constexpr double sentence = 6, phrase = 2;
  std::vector<std::string> texts, all;
  bool are_texts = given.use == "text" || !records.is_csv, are_words = true, has_distinct = false;
  for (const auto& field : records.fields) {
    if (field.name == target || is_counter(field)) continue;
    const bool is_distinct = is_mostly_distinct(field, records.rows);
    const auto words = field.words_of_a_value();
    are_texts |= is_distinct && words >= sentence;
    are_words &= field.has_words();
    has_distinct |= is_distinct;
    if (field.has_words() && (words >= phrase || is_distinct)) texts.push_back(field.name);
    if (field.has_words()) all.push_back(field.name);
  }
  if (!are_texts && !(are_words && has_distinct)) return {};
  return texts.empty() ? all : texts;
}

// The field that is predicted: by its usual name, or else the last that is not a text.
std::string target_of(const Records& records) {
  const std::set<std::string> usual = {"target", "label",     "class",  "species", "y",
                                       "score",  "relevance", "clicks", "rating",  "sentiment"};
  std::string last;
  for (const auto& field : records.fields) {
    if (field.type == Field::Type::others) continue;
    if (usual.contains(small_letters(field.name))) return field.name;
    const bool is_text = is_mostly_distinct(field, records.rows) || field.words_of_a_value() >= 2;
    if (!is_text && !is_counter(field)) last = field.name;
  }
  return last;
}

// The field that is the same for texts that are compared. Their rows follow one another.
std::string group_of(const Records& records, const std::string& target, const GivenData& given) {
  const auto* numbers = records.find(target);
  const bool is_relevance = numbers != nullptr && numbers->type == Field::Type::numbers;
  if (!is_relevance || given.task.contains("kind") || numbers->values.lt(0).any().item<bool>()) return "";
  const std::set<std::string> usual = {"group",  "group_id",  "query",   "query_id",   "qid",
                                       "search", "search_id", "session", "session_id", "prompt"};
  for (const auto& field : records.fields) {
    if (!usual.contains(small_letters(field.name)) || field.name == target) continue;
    const auto changes = field.values.diff().ne(0).sum().item<std::int64_t>();
    const auto different = std::get<0>(at::_unique(field.values)).numel();
    if (changes == different - 1 && 2 * different <= records.rows && different > 1) return field.name;
  }
  return "";
}

// Refuses JSON that is not read as texts: an array, and lines without a value, with the command that mends the file.
void require_lines(const Records& records, std::vector<std::string> read) {
  const auto &path = records.path, stem = fs::path(path).replace_extension().string();
  if (ending_of(path) == ".json") {
    refuse("'" + path +
           "' is an array, and texts are read from JSON Lines: python3 -c \"import json; [print(json.dumps("
           "row)) for row in json.load(open('" +
           path + "'))]\" > " + shell_quoted(stem + ".jsonl"));
  }
  std::string names;
  for (const auto& name : read) names += (names.empty() ? "'" : ", '") + name + "'";
  for (const auto& name : read) {
    const auto* field = records.find(name);
    if (field == nullptr || field->gap == 0) continue;
    refuse(c10::str("'", path, "' line ", field->gap, " has no '", name,
                    "'; leave such lines out: python3 -c \"import ", "json; [print(line, end='') for line in open('",
                    path, "') if None not in map(json.loads(line).get, [", names, "])]\" > ",
                    shell_quoted(stem + "_whole.jsonl")));
  }
}

}  // namespace

std::optional<Findings> look_at_texts(const Records& records, const GivenData& given, const std::string& folder) {
  const auto target = given.target.empty() ? target_of(records) : given.target;
  const auto texts = texts_of(records, target, given);
  if (texts.empty() || target.empty()) return std::nullopt;
  auto read = texts;
  read.push_back(target);
  if (!records.is_csv) require_lines(records, read);
  const auto group = group_of(records, target, given);
  Findings found;
  found.samples = records.rows;
  found.updates = 1000;
  found.learning_rate = folder.empty() ? "2e-3" : "2e-5";
  if (!folder.empty()) found.epochs = 3, found.batch = 8;
  found.task = {{"use", "\"text\""},
                {"data", toml_value(records.path)},
                {"text", toml_list(texts)},
                {"target", toml_value(target)}};
  if (!folder.empty()) found.task.emplace_back("folder", toml_value(folder));
  if (!records.has_header) found.task.emplace_back("header", "false");
  std::vector<std::string> unused, again = {records.path, "--target", target, "--set"};
  bool has_gaps = false;
  for (const auto& field : records.fields) {
    const bool is_read = field.name == target || std::ranges::count(texts, field.name) > 0;
    has_gaps |= is_read && field.has_gaps;
    if (!is_read && field.name != group) unused.push_back(printable(field.name));
  }
  found.lines = {c10::str(printable(records.path), ": ", records.rows, records.is_csv ? " rows" : " lines",
                          ", texts in ", c10::Join(", ", texts),
                          unused.empty() ? "" : "; not read: " + some_of(unused))};
  if (records.is_csv && has_gaps) {
    found.task.emplace_back("missing", "\"drop\"");
    found.lines.emplace_back("rows without a text or a target are not used");
  }
  if (!group.empty()) {
    found.task.insert(found.task.end(), {{"kind", "\"ranking\""}, {"group", toml_value(group)}});
    found.samples = std::get<0>(at::_unique(records.find(group)->values)).numel();
    found.batch = 8;
    found.others.emplace_back(again, "a number of each text");
    found.others.back().first.emplace_back("task.kind=regression");
  }
  if (records.is_csv && !unused.empty()) {
    found.others.emplace_back(again, "a table without its texts");
    found.others.back().first.emplace_back("task.use=tabular");
  }
  return found;
}

std::optional<Findings> look_at_chats(const Records& records, const std::string& folder) {
  const auto has = [&](const char* name) { return records.find(name) != nullptr; };
  const bool are_pairs = has("chosen") && has("rejected");
  const char* const what = are_pairs                                   ? "pairs of answers, one of them preferred"
                           : has("messages") || has("conversations")   ? "chats"
                           : has("prompt") && has("completion")        ? "prompts and completions"
                           : has("instruction") && has("output")       ? "instructions and answers"
                           : has("text") && records.fields.size() == 1 ? "texts"
                                                                       : nullptr;
  if (what == nullptr) return std::nullopt;
  const auto path = records.path;
  if (folder.empty()) {
    refuse("'" + path + "' has " + what + ", from which a published model learns; name its folder, with config.json, " +
           "too: vernier new toml " + shell_quoted(path) + " FOLDER");
  }
  Findings found;
  found.samples = records.rows;
  found.lines = {c10::str(printable(path), ": ", records.rows, " lines of ", what)};
  if (are_pairs) found.task.emplace_back("objective", "\"dpo\"");
  std::ifstream config(fs::path(folder) / "tokenizer_config.json");
  const std::string text((std::istreambuf_iterator<char>(config)), std::istreambuf_iterator<char>());
  const bool has_template =
      fs::exists(fs::path(folder) / "chat_template.jinja") || text.find("chat_template") != text.npos;
  if (!has_template && (has("messages") || has("conversations"))) {  // they are written as ChatML
    found.task.emplace_back("new_tokens", toml_list({"<|im_start|>", "<|im_end|>"}));
  }
  return found;
}

std::int64_t texts_in(const std::string& folder) {
  std::int64_t count = 0;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(folder, none)) {
    count += entry.is_regular_file(none) && is_text(entry.path());
  }
  return count;
}

void refuse_mixed_folder(const std::string& path) {
  const auto refuse_runs = [&](const char* what, const std::string& run) {
    refuse("'" + path + "' " + what + ", and not data; for predictions of a model: vernier predict " +
           shell_quoted(run) + " --input FILE");
  };
  if (is_run(path)) refuse_runs("is the folder of a run", path);
  constexpr std::string_view endings = ".csv .tsv .jsonl .npy .npz .parquet ";
  std::set<std::string> runs, data, texts;
  std::error_code none;
  for (fs::recursive_directory_iterator entry(path, none), end; !none && entry != end; entry.increment(none)) {
    const auto name = entry->path().lexically_normal().string();
    if (entry->is_directory(none)) {
      if (is_run(name)) runs.insert(name);
      if (runs.contains(name) || entry->path().filename().string().starts_with('.')) entry.disable_recursion_pending();
    } else if (const auto ending = ending_of(name); !ending.empty()) {
      if (endings.find(ending + " ") != endings.npos) data.insert(name);
      if (is_text(name)) texts.insert(name);
    }
  }
  if (runs.empty() && data.empty()) return;
  if (data.empty() && texts.empty()) refuse_runs("has runs", *runs.begin());
  const auto* const what = !runs.empty()   ? "has runs beside data"
                           : texts.empty() ? "is a folder of tables or arrays"
                                           : "has tables or arrays beside texts";
  refuse("'" + path + "' " + what + "; name one of them: vernier new toml " +
         shell_quoted(*(data.empty() ? texts : data).begin()) +
         (texts.empty() ? "" : "; or for a model of all its bytes: --set task.use=gpt"));
}

void refuse_packed(const std::string& path) {
  refuse("'" + path + "' is packed; unpack it: gunzip " + shell_quoted(path));
}

Findings look_at_bytes(const std::string& path) {
  if (path.ends_with(".gz")) refuse_packed(path);
  std::int64_t bytes = 0, classes = 0;
  std::error_code none;
  const bool is_folder = fs::is_directory(path, none);
  if (!is_folder) bytes = static_cast<std::int64_t>(fs::file_size(path, none));
  for (auto entry = fs::recursive_directory_iterator(is_folder ? path : "", none);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_regular_file(none)) bytes += static_cast<std::int64_t>(entry->file_size(none));
    classes += entry.depth() == 0 && entry->is_directory(none) && texts_in(entry->path()) > 0;
  }
  std::int64_t context = 128;
  constexpr std::int64_t least = 16, windows = 64;
  while (context > least && bytes < context * windows) context /= 2;
  Findings found;
  found.samples = bytes / context;
  found.batch = std::clamp<std::int64_t>(found.samples / 4, 1, 16);
  found.updates = 600;
  found.lines = {c10::str(printable(path), ": ", bytes, " bytes of text, of which a language model learns")};
  if (classes > 1) {
    found.lines.push_back(
        "to tell its folders apart, write a table: python3 -c \"import pandas, pathlib; pandas.DataFrame([(p.read_text("
        "), p.parent.name) for p in pathlib.Path('" +
        path + "').glob('*/*.txt')], columns=['text', 'label']).to_csv('" + name_of(path) + ".csv', index=False)\"");
  }
  found.task = {{"use", "\"gpt\""},
                {"data", toml_list({path})},
                {"context", std::to_string(context)},
                {"layers", "2"},
                {"width", "128"}};
  if (!is_folder) found.others.push_back({{path, "FOLDER"}, "a published model; FOLDER has its config.json"});
  return found;
}

}  // namespace vernier
