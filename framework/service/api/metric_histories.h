// The numbers of jobs' runs, from losses.jsonl. What was read is kept, so that a page that asks again costs little.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "service/http/history.h"
#include "service/http/http_service.h"

namespace serve {

// Any thread.
class MetricHistories {
 public:
  // The history of the run in a folder. After another `attempt`, the file is read from its begin. Null if no step has
  // the metric.
  vernier::Json history(const std::filesystem::path& run, std::int64_t attempt, const std::string& metric,
                        std::int64_t points);
  // The newest value of each metric.
  vernier::Json metrics(const std::filesystem::path& run, std::int64_t attempt);
  // The newest step with its numbers, {"step": 7, "loss": 0.5}; null where it is not above `after`.
  vernier::Json newest_step(const std::filesystem::path& run, std::int64_t attempt, std::int64_t after);

 private:
  struct Newest {
    std::int64_t step = 0;
    double value = 0;
    vernier::History history = {};
  };
  using ByMetric = std::map<std::string, Newest, std::less<>>;
  struct RunHistory {
    std::filesystem::path run;
    std::int64_t attempt;
    std::uintmax_t read = 0;  // bytes
    std::int64_t step = 0;    // step of the last line
    ByMetric newest = {};
    std::vector<ByMetric::iterator> order = {};  // places of the metrics in the last lines
  };
  RunHistory& history_of(const std::filesystem::path& run, std::int64_t attempt);
  static void read_more(RunHistory& run_history);
  static void add_line(RunHistory& run_history, std::string_view line);
  static void add_value(RunHistory& run_history, std::size_t place, std::string_view name, double value);

  std::mutex mutex_;
  std::list<RunHistory> histories_;  // the one that was used last first
};

}  // namespace serve
