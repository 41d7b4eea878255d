// prometheus: offers the newest numbers of the run to Prometheus, over HTTP or in a file.
//   listen = "127.0.0.1:9464"   where GET /metrics is answered; "" for none, port 0 for one that the system chooses
//   file = ""                   a file for node_exporter's textfile collector, "/var/lib/node_exporter/vernier.prom"
//   interval = 15.0             seconds between two writings of the file; it is written at the end of the run too
//   every = 1                   steps between records
// Each metric of docs/reference/metrics.md is "vernier_<name>_<unit>" with the label run; counts end with "_total". Two
// names that become the same are told apart by "_2". A name of another machine may listen too, but anyone who reaches
// the port can read the metrics: there is no password. Where the port is in use, the monitor is detached and the run
// goes on without it.
// Source of the format: Prometheus, "Exposition formats", text format 0.0.4, and its rules for names.
#include <vernier/append_file.h>
#include <vernier/record_monitor.h>
#include <vernier/sdk.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>

#include "service/http/http_server.h"

namespace {

namespace fs = std::filesystem;
using vernier::Record;
using vernier::Run;

std::string text_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return vernier::shortest(value);
}

// In a help text, or in the value of a label.
std::string escaped(const std::string& text, bool is_label) {
  std::string result;
  for (const char c : text) {
    if (c == '\n' || c == '\\' || (is_label && c == '"')) result += '\\';
    result += c == '\n' ? 'n' : c;
  }
  return result;
}

struct Metric {
  std::string name, help;
  bool is_counter = false;
  double value = 0;
};

std::string suffix_of(const vernier::MetricInfo& info) {
  static const std::map<std::string, std::string> suffixes = {
      {"s", "_seconds"}, {"bytes", "_bytes"}, {"ratio", "_ratio"}, {"degrees Celsius", "_celsius"},
      {"J", "_joules"},  {"Hz", "_hertz"},    {"W", "_watts"}};
  const auto found = suffixes.find(info.unit);
  return (found == suffixes.end() ? "" : found->second) + (info.is_count ? "_total" : "");
}

Metric metric_of(const vernier::MetricInfo& info) {
  Metric metric;
  metric.name = "vernier_";
  for (const char c : info.name) metric.name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  metric.help = info.meaning.empty() ? info.name + ", set by the task or a plugin" : info.meaning;
  metric.is_counter = info.is_count;
  metric.name += suffix_of(info);
  return metric;
}

// The newest numbers. The writer's thread changes them, the server's reads them.
class Newest {
 public:
  explicit Newest(const std::string& run) : label_("{run=\"" + escaped(run, true) + "\"} ") {
    metrics_.push_back({"vernier_steps_total", "updates that are finished, skipped ones included", true});
    metrics_.push_back({"vernier_last_record_timestamp_seconds", "when the newest numbers were measured"});
    metrics_.push_back({"vernier_run_is_running", "1 while the run goes on, 0 when it has ended"});
    for (const auto& metric : metrics_) names_.insert(metric.name);
  }

  void take(const Record& record) {
    const std::lock_guard lock(mutex_);
    metrics_[0].value = static_cast<double>(record.step);
    metrics_[1].value = record.time;
    metrics_[2].value = record.kind == Record::Kind::end ? 0 : 1;
    for (const auto& entry : record.entries) metrics_[number_of(entry.metric)].value = entry.value;
  }

  std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& metric : metrics_) {
      text += "# HELP " + metric.name + " " + escaped(metric.help, false) + "\n# TYPE " + metric.name +
              (metric.is_counter ? " counter\n" : " gauge\n") + metric.name + label_ + text_of(metric.value) + "\n";
    }
    return text;
  }

 private:
  std::size_t number_of(const vernier::MetricInfo* info) {
    const auto known = numbers_.find(info);
    if (known != numbers_.end()) return known->second;
    auto metric = metric_of(*info);
    const auto wanted = metric.name;
    for (int i = 2; !names_.insert(metric.name).second; ++i) metric.name = wanted + "_" + std::to_string(i);
    metrics_.push_back(std::move(metric));
    return numbers_[info] = metrics_.size() - 1;
  }

  std::string label_;
  mutable std::mutex mutex_;
  std::vector<Metric> metrics_;
  std::map<const vernier::MetricInfo*, std::size_t> numbers_;
  std::set<std::string> names_;
};

class Exposition final : public vernier::RecordSink {
 public:
  using Warn = std::function<void(const std::string&)>;
  Exposition(const std::string& run, const std::string& listen, std::string file, double interval, Warn warn)
      : newest_(run), file_(std::move(file)), interval_(interval), warn_(std::move(warn)) {
    if (!listen.empty())
      server_.emplace(listen, [this](const vernier::HttpRequest& request) { return answer(request); });
    try_to_write(/*may_throw=*/true);
  }

  int port() const { return server_ ? server_->port() : 0; }
  void write(const Record& record) override { newest_.take(record); }
  void flush() override {
    const auto now = std::chrono::steady_clock::now();
    if (now - written_ < std::chrono::duration<double>(interval_)) return;
    written_ = now;
    try_to_write(/*may_throw=*/false);
  }
  void end(const Run&, bool) override {
    is_failing_ = false;  // it is said again
    try_to_write(/*may_throw=*/false);
  }

 private:
  vernier::HttpResponse answer(const vernier::HttpRequest& request) const {
    const auto path = request.target.substr(0, request.target.find('?'));
    if (request.method != "GET" && request.method != "HEAD") return {405, "only GET is answered here\n"};
    if (path == "/") return {200, "The metrics are at /metrics.\n"};
    if (path != "/metrics") return {404, "not found; the metrics are at /metrics\n"};
    return {200, newest_.text(), "text/plain; version=0.0.4; charset=utf-8"};
  }

  // A full disk is tried again. Other reasons are thrown at the start.
  void try_to_write(bool may_throw) {
    if (file_.empty()) return;
    try {
      vernier::write_whole(file_, newest_.text());
      is_failing_ = false;
    } catch (const std::system_error& error) {
      const std::string why = file_ + ": cannot be written: " + error.code().message();
      if (may_throw && !vernier::is_full(error.code())) throw vernier::Error(why + "; choose another `file`");
      if (!std::exchange(is_failing_, true)) warn_(why + "; it has older numbers, or none");
    }
  }

  Newest newest_;
  std::string file_;
  double interval_;
  Warn warn_;
  bool is_failing_ = false;
  std::chrono::steady_clock::time_point written_;
  std::optional<vernier::HttpServer> server_;  // its thread reads newest_
};

class Prometheus final : public vernier::RecordMonitor {
 public:
  explicit Prometheus(vernier::Options& options)
      : RecordMonitor(options),
        listen_(
            options.get("listen", "127.0.0.1:9464", "address and port where GET /metrics is answered; \"\": nowhere")),
        file_(options.get("file", "", "for node_exporter's textfile collector; \"\": none")),
        interval_(options.get("interval", 15.0, "seconds between two writings of the file", vernier::at_least(0))) {
    if (listen_.empty() && file_.empty()) options.refuse("listen", "must not be empty where `file` is empty too");
    const auto trouble = listen_.empty() ? "" : vernier::trouble_with_listen(listen_);
    if (!trouble.empty()) options.refuse("listen", trouble);
    if (!file_.empty() && !file_.ends_with(".prom")) {
      options.refuse("file", "must end with .prom: node_exporter reads no other files");
    }
  }

 protected:
  std::unique_ptr<vernier::RecordSink> open(const Run& run, const vernier::State&) override {
    const auto file = file_.empty() ? "" : (fs::path(run.output) / file_).string();
    auto sink = std::make_unique<Exposition>(run.name, listen_, file, interval_,
                                             [this](const std::string& text) { warn(text); });
    if (!listen_.empty()) {
      const auto address = listen_.substr(0, listen_.rfind(':'));
      info("the metrics are at http://", address, ":", sink->port(), "/metrics");
    }
    return sink;
  }

 private:
  std::string listen_, file_;
  double interval_;
};

}  // namespace

VERNIER_PLUGIN(Prometheus, "prometheus", "1.0.0")
