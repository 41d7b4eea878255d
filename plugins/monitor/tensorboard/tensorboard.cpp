// tensorboard: writes event files, which TensorBoard shows: `tensorboard --logdir runs` for all runs of that folder.
//   folder = "tensorboard"   in the run's output folder
//   every = 1                steps between records; a step with notices and the last planned step always have one
//   histograms = 0           steps between histograms of weights and gradients, a multiple of `every`; 0: none
// Scalars are the numbers of docs/reference/metrics.md, with their meaning as description. Texts are the configuration
// and the notices. The options of the run are hyper-parameters, so the page HPARAMS compares runs. A resumed run, and a
// rewind, begin with a mark that has TensorBoard drop the records of the steps that come again. For histograms the host
// waits for the device. If the disk is full, records wait in memory until there is room; those beyond 1 MB are lost.
// Source of the format: TensorBoard's .proto files and TFRecord, named in events.h.
#include <ATen/ops/histc.h>
#include <unistd.h>
#include <vernier/append_file.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/record_monitor.h>
#include <vernier/sdk.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <set>

#include "events.h"

namespace {

namespace fs = std::filesystem;
namespace tensorboard = vernier::tensorboard;
using vernier::AppendFile;
using vernier::Record;
using vernier::Run;
constexpr auto now = vernier::seconds_since_1970;

// TensorBoard reads files in the order of their names, so the time comes first.
std::string file_name() {
  static std::atomic<int> files{0};
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::array<char, 400> name{};
  std::snprintf(name.data(), name.size(), "events.out.tfevents.%010lld.%s.%d.%05d", static_cast<long long>(now()),
                host.data(), static_cast<int>(::getpid()), files++);
  return name.data();
}

class Events final : public vernier::RecordSink {
 public:
  Events(const fs::path& folder, const Run& run, AppendFile::Warn warn) : last_(run.step) {
    fs::create_directories(folder);
    file_ = std::make_unique<AppendFile>(folder / file_name(), "records", std::move(warn));
    file_->append(tensorboard::version_event(now()));
    if (run.step > 0) file_->append(tensorboard::restart_event(now(), run.step + 1));
    tensorboard::Message summary;
    tensorboard::add_hyper_parameters(summary, vernier::hyper_parameters(run.output), run.name, now());
    if (const auto text = vernier::text_in(run.output + "/config.toml"); !text.empty()) {
      tensorboard::add_text(summary, "configuration", "```toml\n" + text + "```");
    }
    file_->append(tensorboard::summary_event(now(), run.step, summary));
    file_->flush();
  }

  void write(const Record& record) override {
    const bool goes_back = record.kind == Record::Kind::step && record.step <= last_;
    if (goes_back) file_->append(tensorboard::restart_event(record.time, record.step));
    last_ = record.step;
    tensorboard::Message summary;
    for (const auto& [metric, value] : record.entries) {
      tensorboard::add_scalar(summary, metric->name, value, meaning_once(*metric));
    }
    for (const auto& histogram : record.histograms) tensorboard::add_histogram(summary, histogram);
    for (const auto& [name, text] : record.notices) tensorboard::add_text(summary, "notices/" + name, text);
    if (!summary.text().empty()) file_->append(tensorboard::summary_event(record.time, record.step, summary));
  }

  void flush() override { file_->flush(); }

  void end(const Run& run, bool has_failed) override {
    tensorboard::Message summary;
    tensorboard::add_end(summary, has_failed, now());
    file_->append(tensorboard::summary_event(now(), run.step, summary));
    file_->flush();
    file_->warn_of_missing();
  }

 private:
  // TensorBoard keeps the first description of a scalar.
  std::string meaning_once(const vernier::MetricInfo& metric) {
    if (!described_.insert(&metric).second) return "";
    return metric.meaning + (metric.unit.empty() ? "" : " (" + metric.unit + ")");
  }

  std::unique_ptr<AppendFile> file_;
  std::set<const vernier::MetricInfo*> described_;
  std::int64_t last_;
};

void add_histogram(Record& record, const std::string& name, const torch::Tensor& tensor) {
  constexpr std::int64_t intervals = 30;
  const torch::NoGradGuard no_grad;
  auto values = tensor.detach().to(torch::kCPU, at::kFloat).flatten();
  values = values.masked_select(values.isfinite());
  if (values.numel() == 0) return;
  vernier::Histogram histogram;
  histogram.name = name;
  histogram.min = values.min().item<double>();
  histogram.max = values.max().item<double>();
  histogram.count = static_cast<double>(values.numel());
  const auto exact = values.to(at::kDouble);
  histogram.sum = exact.sum().item<double>();
  histogram.sum_of_squares = exact.square().sum().item<double>();
  if (histogram.min == histogram.max) {
    histogram.counts = {histogram.count};
  } else {
    const auto counts = at::histc(exact, intervals, histogram.min, histogram.max);
    histogram.counts.assign(counts.const_data_ptr<double>(), counts.const_data_ptr<double>() + intervals);
  }
  record.histograms.push_back(std::move(histogram));
}

class TensorBoard final : public vernier::RecordMonitor {
 public:
  explicit TensorBoard(vernier::Options& options)
      : RecordMonitor(options),
        folder_(options.get("folder", "tensorboard", "name in the run's output folder")),
        histograms_(options.get("histograms", 0, "steps between histograms; 0: none", vernier::at_least(0))) {
    if (folder_.empty()) options.refuse("folder", "must be the name of a folder");
  }

 protected:
  std::unique_ptr<vernier::RecordSink> open(const Run& run, const vernier::State&) override {
    return std::make_unique<Events>(fs::path(run.output) / folder_, run,
                                    [this](const std::string& text) { warn(text); });
  }

  void add_to_step(const Run& run, Record& record) override {
    if (histograms_ == 0 || record.step % histograms_ != 0) return;
    for (const auto& parameter : run.parameters) {
      add_histogram(record, "weights/" + parameter.name, parameter.best());
      const auto& gradient = parameter.master.grad();
      if (gradient.defined() && !vernier::draft::is_elsewhere(gradient))
        add_histogram(record, "gradients/" + parameter.name, gradient);
    }
  }

 private:
  std::string folder_;
  std::int64_t histograms_;
};

}  // namespace

VERNIER_PLUGIN(TensorBoard, "tensorboard", "1.0.0")
