#include "api/courses.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <vector>

namespace serve {

namespace fs = std::filesystem;
using vernier::Json;

namespace {

constexpr std::size_t most_courses = 96, most_metrics = 256;

struct Numbers {
  std::int64_t step = 0;
  std::vector<std::pair<std::string_view, double>> others = {};
};

// Of a line {"step":7,"loss":0.5}, as nearly all lines are: many times faster than to parse it as JSON. Nothing for any
// other line.
std::optional<Numbers> numbers_of(std::string_view line) {
  Numbers numbers;
  if (!line.starts_with("{\"step\":") || !line.ends_with('}')) return std::nullopt;
  const char *at = line.data() + 8, *end = line.data() + line.size() - 1;
  const auto first = std::from_chars(at, end, numbers.step);
  if (first.ec != std::errc()) return std::nullopt;
  for (at = first.ptr; at != end;) {
    if (end - at < 2 || at[0] != ',' || at[1] != '"') return std::nullopt;
    const char* name = at + 2;
    const char* name_end = std::find(name, end, '"');
    if (end - name_end < 3 || name_end[1] != ':' || std::find(name, name_end, '\\') != name_end) return std::nullopt;
    at = name_end + 2;
    if (*at != '-' && (*at < '0' || *at > '9')) return std::nullopt;
    auto& [known, value] = numbers.others.emplace_back(std::string_view(name, name_end), 0.0);
    const auto number = std::from_chars(at, end, value);
    if (number.ec != std::errc()) return std::nullopt;
    at = number.ptr;
  }
  return numbers;
}

}  // namespace

void Courses::add_value(Course& course, std::string_view name, double value) {
  auto newest = course.newest.find(name);
  if (newest == course.newest.end()) {
    if (course.newest.size() >= most_metrics) return;
    newest = course.newest.emplace(name, Newest{}).first;
  }
  newest->second.step = course.step;
  newest->second.value = value;
  newest->second.history.add(course.step, value);
}

void Courses::add_line(Course& course, const std::string& line) {
  if (const auto values = numbers_of(line)) {
    course.step = values->step;
    for (const auto& [name, value] : values->others) add_value(course, name, value);
    return;
  }
  const auto values = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object() || !values.contains("step") || !values["step"].is_number_integer()) return;
  course.step = values["step"].get<std::int64_t>();
  for (const auto& [name, value] : values.items()) {
    if (value.is_number() && name != "step") add_value(course, name, value.get<double>());
  }
}

// Up to the last whole line.
void Courses::read_more(Course& course) {
  const auto file = course.run / "losses.jsonl";
  std::error_code none;
  const auto size = fs::file_size(file, none);
  if (none || size == course.read) return;
  if (size < course.read) {  // a run that was resumed has cut it
    course.read = 0;
    course.step = 0;
    course.newest.clear();
  }
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(course.read));
  for (std::string line; std::getline(in, line) && !in.eof();) {
    course.read += line.size() + 1;
    add_line(course, line);
  }
}

Courses::Course& Courses::course_of(const fs::path& run, std::int64_t attempt) {
  auto found = courses_.begin();
  while (found != courses_.end() && (found->run != run || found->attempt != attempt)) ++found;
  if (found == courses_.end()) {
    courses_.push_front({.run = run, .attempt = attempt});
    if (courses_.size() > most_courses) courses_.pop_back();
  } else {
    courses_.splice(courses_.begin(), courses_, found);
  }
  read_more(courses_.front());
  return courses_.front();
}

Json Courses::history(const fs::path& run, std::int64_t attempt, const std::string& metric, std::int64_t points) {
  const std::lock_guard lock(mutex_);
  const auto& course = course_of(run, attempt);
  const auto found = course.newest.find(metric);
  if (found == course.newest.end()) return nullptr;
  Json parts = Json::array();
  for (const auto& [step, min, max] : found->second.history.parts(static_cast<std::size_t>(points))) {
    parts.push_back({step, min, max});
  }
  return {{"metric", metric}, {"points", parts}};
}

Json Courses::metrics(const fs::path& run, std::int64_t attempt) {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  for (const auto& [name, newest] : course_of(run, attempt).newest) {
    all.push_back({{"name", name}, {"step", newest.step}, {"value", newest.value}});
  }
  return {{"metrics", all}};
}

Json Courses::newest_step(const fs::path& run, std::int64_t attempt, std::int64_t after) {
  const std::lock_guard lock(mutex_);
  const auto& course = course_of(run, attempt);
  if (course.step <= after) return nullptr;
  Json values = {{"step", course.step}};
  for (const auto& [name, newest] : course.newest) {
    if (newest.step == course.step) values[name] = newest.value;
  }
  return values;
}

}  // namespace serve
