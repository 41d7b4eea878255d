#include <vernier/record.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <thread>

namespace vernier {

namespace {

enum Name { loss, epoch, samples, tokens, updates, skipped, overflows, overflow_rate, samples_rate, tokens_rate };
const std::array<std::string, 10> names = {"loss",
                                           "epoch",
                                           "samples",
                                           "tokens",
                                           "updates",
                                           "skipped_updates",
                                           "overflows",
                                           "overflow_rate",
                                           "samples_per_second",
                                           "tokens_per_second"};

// Names of a record besides its entries. A metric of such a name gets another one.
bool is_taken(const std::string& name) {
  return name == "step" || name == "time" || std::ranges::find(names, name) != names.end();
}

double value_on_host(const torch::Tensor& value) {
  if (value.scalar_type() == at::kFloat) return *value.const_data_ptr<float>();  // item() takes ten times as long
  return value.item<double>();
}

// The declaration of a metric that records call `name`.
MetricInfo named(const std::string& name, const MetricInfo* declared) {
  auto info = declared != nullptr ? *declared : MetricInfo{};
  info.name = name;
  return info;
}

}  // namespace

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::int64_t skipped_updates(const Run& run) {
  const bool is_on_its_way = run.results_are_late && run.skip_update.defined();
  return std::max<std::int64_t>(0, run.step - run.updates - (is_on_its_way ? 1 : 0));
}

void Record::resolve() {
  if (!arrived) return;
  // A thread that waits in the driver would slow down the launches of the training thread.
  while (!arrived->query()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto* const values = late.values.const_data_ptr<double>();
  for (std::size_t i = 0; i < late.entries.size(); ++i) entries[late.entries[i]].value = values[i];
  arrived.reset();
  late = {};
}

void Collector::collect(const Run& run, Record::Kind kind, Record& into) {
  into.kind = kind;
  into.step = run.step;
  into.time = seconds_since_1970();
  into.entries.clear();
  into.late = {};
  into.arrived.reset();
  into.notices.clear();
  into.histograms.clear();
  for (const auto& notice : run.notices) {
    if (is_progress(notice)) continue;
    into.notices.emplace_back(notice.name, notice.sentence.empty() ? notice.text() : notice.sentence);
  }
  if (kind == Record::Kind::end) return;
  on_device_.clear();
  if (kind == Record::Kind::step) add_step(run, into);
  add_metrics(run, into);
  if (kind == Record::Kind::validation) rates_.is_known = false;  // its time is not a step's
  if (on_device_.empty()) return;
  std::vector<torch::Tensor> numbers;
  for (const auto& [tensor, entry] : on_device_) {
    numbers.push_back(tensor.reshape({}).to(at::kDouble));
    into.late.entries.push_back(entry);
  }
  // A copy into memory that is not pinned would make the host wait, and the training thread with it.
  const auto on_device = at::stack(numbers);
  into.late.values = at::empty_like(on_device, on_device.options().device(at::kCPU).pinned_memory(true));
  into.late.values.copy_(on_device, /*non_blocking=*/true);
  into.arrived.emplace(run.device.type());
  into.arrived->record(c10::impl::VirtualGuardImpl(run.device.type()).getStream(run.device));
}

void Collector::add_step(const Run& run, Record& into) {
  if (counts_.empty()) {
    for (const auto& name : names) counts_.push_back(named(name, run.metric_info(name)));
  }
  const auto add = [&](Name name, auto value) { into.entries.push_back({&counts_[name], static_cast<double>(value)}); };
  if (run.loss.defined()) add_tensor(counts_[loss], run.loss, into);
  add(epoch, run.epoch);
  add(samples, run.samples);
  if (run.tokens > 0) add(tokens, run.tokens);
  add(updates, run.updates);
  add(skipped, skipped_updates(run));
  if (run.found_inf.defined() || !run.amp.history().empty()) {  // there is a scaler, or there was one before a swap
    add(overflows, run.amp.overflow_count());
    add(overflow_rate, overflow_ratio(run.amp));
  }
  add_rates(run, into);
}

void Collector::add_rates(const Run& run, Record& into) {
  const auto now = std::chrono::steady_clock::now();
  const auto before = std::exchange(rates_, {now, run.samples, run.tokens, true});
  const double seconds = std::chrono::duration<double>(now - before.at).count();
  if (!before.is_known || !(seconds > 0) || run.samples < before.samples) return;  // less after a rewind
  const auto add = [&](Name name, std::int64_t count) {
    into.entries.push_back({&counts_[name], static_cast<double>(count) / seconds});
  };
  add(samples_rate, run.samples - before.samples);
  if (run.tokens > 0) add(tokens_rate, run.tokens - before.tokens);
}

void Collector::add_metrics(const Run& run, Record& into) {
  std::size_t slot = 0;
  for (const auto* metric : run.metrics.set_now()) {
    const auto& info = kept(run, metric->name, slot++);
    if (const auto* tensor = std::get_if<torch::Tensor>(&metric->number)) {
      add_tensor(info, *tensor, into);
    } else {
      into.entries.push_back({&info, std::get<double>(metric->number)});
    }
  }
}

void Collector::add_tensor(const MetricInfo& metric, const torch::Tensor& value, Record& into) {
  if (value.is_cpu()) return into.entries.push_back({&metric, value_on_host(value)});
  on_device_.emplace_back(value, into.entries.size());
  into.entries.push_back({&metric, 0});
}

// Steps have the same metrics in the same order, mostly: then it is one comparison.
const MetricInfo& Collector::kept(const Run& run, const std::string& name, std::size_t slot) {
  if (slot >= last_seen_.size()) last_seen_.resize(slot + 1);
  auto& seen = last_seen_[slot];
  if (seen != nullptr && seen->first == name) return seen->second;
  const auto found = std::ranges::find(metrics_, name, &std::pair<std::string, MetricInfo>::first);
  seen = found != metrics_.end() ? &*found
         : is_taken(name)        ? &metrics_.emplace_back(name, named("metric_" + name, nullptr))
                                 : &metrics_.emplace_back(name, named(name, run.metric_info(name)));
  return seen->second;
}

}  // namespace vernier
