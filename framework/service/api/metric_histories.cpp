#include "service/api/metric_histories.h"

#include <vernier/json_in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "service/queue/attempt.h"

namespace serve {

namespace fs = std::filesystem;
using vernier::Json;

namespace {

constexpr std::size_t most_runs = 96, most_metrics = 256;
constexpr std::size_t block_size = 1 << 20;

using Numbers = std::vector<std::pair<std::string_view, double>>;

// Returns the word that monitor/jsonl writes for a number that JSON lacks, or null if there is something else.
const char* word_at(const char* at, const char* end) {
  if (*at != '"') return nullptr;
  for (const char* word : {"\"inf\"", "\"-inf\"", "\"nan\""}) {
    if (std::string_view(at, end).starts_with(word)) return word;
  }
  return nullptr;
}

// Reads a line such as {"step":7,"loss":0.5,"grad_norm":"inf"}, as nearly all lines are, many times faster than a JSON
// parser does. Returns false for any other line.
bool read_numbers(std::string_view line, std::int64_t& step, Numbers& numbers) {
  numbers.clear();
  if (!line.starts_with("{\"step\":") || !line.ends_with('}')) return false;
  const char *at = line.data() + 8, *end = line.data() + line.size() - 1;
  const auto first = std::from_chars(at, end, step);
  if (first.ec != std::errc()) return false;
  for (at = first.ptr; at != end;) {
    if (end - at < 2 || at[0] != ',' || at[1] != '"') return false;
    const char* name = at + 2;
    const char* name_end = name;
    while (name_end != end && *name_end != '"' && *name_end != '\\') ++name_end;
    if (end - name_end < 3 || name_end[0] != '"' || name_end[1] != ':') return false;
    at = name_end + 2;
    if (const auto* word = word_at(at, end); word != nullptr) {
      at += std::strlen(word);
      continue;
    }
    if (*at != '-' && (*at < '0' || *at > '9')) return false;
    auto& [known, value] = numbers.emplace_back(std::string_view(name, name_end), 0.0);
    const auto number = std::from_chars(at, end, value);
    if (number.ec != std::errc()) return false;
    at = number.ptr;
  }
  return true;
}

}  // namespace

// The metrics of a line mostly stand where they stood in the line before.
void MetricHistories::add_value(RunHistory& run_history, std::size_t place, std::string_view name, double value) {
  run_history.order.resize(std::max(run_history.order.size(), place + 1), run_history.newest.end());
  auto& newest = run_history.order[place];
  if (newest == run_history.newest.end() || newest->first != name) newest = run_history.newest.find(name);
  if (newest == run_history.newest.end()) {
    if (run_history.newest.size() >= most_metrics) return;
    newest = run_history.newest.emplace(name, Newest{}).first;
  }
  newest->second.step = run_history.step;
  newest->second.value = value;
  newest->second.history.add(run_history.step, value);
}

void MetricHistories::add_line(RunHistory& run_history, std::string_view line) {
  static thread_local Numbers numbers;
  std::size_t place = 0;
  if (std::int64_t step = 0; read_numbers(line, step, numbers)) {
    run_history.step = step;
    for (const auto& [name, value] : numbers) add_value(run_history, place++, name, value);
    return;
  }
  const auto values = vernier::json_in<Json>(line);
  if (!values.is_object() || !values.contains("step") || !values["step"].is_number_integer()) return;
  run_history.step = values["step"].get<std::int64_t>();
  for (const auto& [name, value] : values.items()) {
    if (value.is_number() && name != "step") add_value(run_history, place++, name, value.get<double>());
  }
}

// Up to the last whole line.
void MetricHistories::read_more(RunHistory& run_history) {
  const auto file = run_history.run / "losses.jsonl";
  std::error_code none;
  const auto size = fs::file_size(file, none);
  if (none || size == run_history.read) return;
  if (size < run_history.read)
    run_history = {.run = run_history.run, .attempt = run_history.attempt};  // a resumed run has cut it
  for (std::size_t most = std::min<std::uintmax_t>(size - run_history.read, block_size); run_history.read < size;) {
    const auto block = read_part(file, static_cast<std::int64_t>(run_history.read), most);
    const std::string_view text = block;
    const auto lines = text.rfind('\n') + 1;  // bytes of whole lines
    for (std::size_t begin = 0; begin < lines;) {
      const auto end = text.find('\n', begin);
      add_line(run_history, text.substr(begin, end - begin));
      begin = end + 1;
    }
    run_history.read += lines;
    if (lines == 0 && text.size() < most) return;  // the last line is not whole yet
    if (lines == 0) most *= 2;                     // the line is longer
  }
}

MetricHistories::RunHistory& MetricHistories::history_of(const fs::path& run, std::int64_t attempt) {
  auto found = histories_.begin();
  while (found != histories_.end() && (found->run != run || found->attempt != attempt)) ++found;
  if (found == histories_.end()) {
    histories_.push_front({.run = run, .attempt = attempt});
    if (histories_.size() > most_runs) histories_.pop_back();
  } else {
    histories_.splice(histories_.begin(), histories_, found);
  }
  read_more(histories_.front());
  return histories_.front();
}

Json MetricHistories::history(const fs::path& run, std::int64_t attempt, const std::string& metric,
                              std::int64_t points) {
  const std::lock_guard lock(mutex_);
  const auto& run_history = history_of(run, attempt);
  const auto found = run_history.newest.find(metric);
  if (found == run_history.newest.end()) return nullptr;
  Json parts = Json::array();
  for (const auto& [step, min, max] : found->second.history.parts(static_cast<std::size_t>(points))) {
    parts.push_back({step, min, max});
  }
  return {{"metric", metric}, {"points", parts}};
}

Json MetricHistories::metrics(const fs::path& run, std::int64_t attempt) {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  for (const auto& [name, newest] : history_of(run, attempt).newest) {
    all.push_back({{"name", name}, {"step", newest.step}, {"value", newest.value}});
  }
  return {{"metrics", all}};
}

Json MetricHistories::newest_step(const fs::path& run, std::int64_t attempt, std::int64_t after) {
  const std::lock_guard lock(mutex_);
  const auto& run_history = history_of(run, attempt);
  if (run_history.step <= after) return nullptr;
  Json values = {{"step", run_history.step}};
  for (const auto& [name, newest] : run_history.newest) {
    if (newest.step == run_history.step) values[name] = newest.value;
  }
  return values;
}

}  // namespace serve
