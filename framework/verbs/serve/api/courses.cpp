#include "api/courses.h"

#include <fstream>

namespace serve {

namespace fs = std::filesystem;
using vernier::Json;

namespace {

constexpr std::size_t most_courses = 96, most_metrics = 256;

}  // namespace

void Courses::add_line(Course& course, const std::string& line) {
  const auto values = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object() || !values.contains("step") || !values["step"].is_number_integer()) return;
  const auto step = values["step"].get<std::int64_t>();
  course.step = step;
  for (const auto& [name, value] : values.items()) {
    if (!value.is_number() || name == "step") continue;
    if (course.newest.size() >= most_metrics && !course.newest.contains(name)) continue;
    course.newest[name] = {step, value.get<double>()};
    course.histories[name].add(step, value.get<double>());
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
    course.histories.clear();
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
  const auto found = course.histories.find(metric);
  if (found == course.histories.end()) return nullptr;
  Json parts = Json::array();
  for (const auto& [step, min, max] : found->second.parts(static_cast<std::size_t>(points))) {
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
