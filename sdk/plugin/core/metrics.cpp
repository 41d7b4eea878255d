#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "step_results.h"

namespace vernier {

double Metrics::Entry::value() const {
  if (const auto* tensor = std::get_if<torch::Tensor>(&number)) {
    const bool is_here = tensor->is_cpu() && tensor->scalar_type() == torch::kFloat32;
    return is_here ? *tensor->const_data_ptr<float>() : tensor->item<double>();  // item() takes ten times as long
  }
  return std::get<double>(number);
}

namespace {

std::string_view checked(const char* name) {
  if (name == nullptr) throw Error("the name of a metric is a null pointer", Error::Kind::plugin);
  return name;
}

}  // namespace

// Metrics that this step sets come first, in the order in which it sets them. The order must not depend on earlier
// steps, which a resumed run has not seen.
Metrics::Entry& Metrics::entry(const char* name) {
  const auto wanted = checked(name);  // its length is counted once
  const auto is_set = [](const Entry& entry) { return entry.number.index() != 0; };
  const auto found = std::ranges::find_if(entries_, [wanted](const Entry& entry) { return entry.name == wanted; });
  const bool was_set = found != entries_.end() && is_set(*found);
  StepNumbers::refuse_metric(*this, wanted, was_set);
  if (was_set) return *found;
  const auto next = std::ranges::find_if_not(entries_, is_set);
  if (found == entries_.end()) return *entries_.insert(next, Entry{name, {}});
  std::rotate(next, found, found + 1);
  return *next;
}

void Metrics::set(const char* name, double value) {
  entry(name).number = value;
}

void Metrics::set_time(const char* name, double seconds) {
  auto& time = entry(name);
  time.number = seconds;
  time.is_time = true;
}

// Refused here, where the plugin that sets it is known: a monitor would fail later.
void Metrics::set(const char* name, torch::Tensor value) {
  if (!value.defined() || value.numel() != 1) {
    throw Error(c10::str("the metric \"", checked(name), "\" is set to ",
                         value.defined() ? c10::str("a tensor of shape ", value.sizes()) : "an undefined tensor",
                         ": a metric is one number; set a mean, or a metric for each number"));
  }
  entry(name).number = value.detach();
}

const Metrics::Entry* HostApi::find(const Metrics& metrics, std::string_view name) {
  for (const auto& entry : metrics.entries_) {
    if (entry.number.index() == 0) break;  // set entries come first
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

void HostApi::declare(MetricInfos& known, std::vector<MetricInfo> more, const std::string& source) {
  for (auto& info : more) {
    auto& sources = known.try_emplace(info.name, info).first->second.source;
    const bool is_named = sources == source || sources.ends_with(", " + source);
    if (!is_named) sources += (sources.empty() ? "" : ", ") + source;
  }
}

std::optional<double> Metrics::value(const char* name) const {
  const auto wanted = checked(name);
  for (const auto* entry : set_now()) {
    if (entry->name == wanted) return entry->value();
  }
  return std::nullopt;
}

std::vector<const Metrics::Entry*> Metrics::set_now() const {
  std::vector<const Entry*> set;
  set.reserve(entries_.size());
  for (const auto& entry : entries_) {
    if (entry.number.index() != 0) set.push_back(&entry);
  }
  return set;
}

void Metrics::clear() {
  for (auto& entry : entries_) entry.number = std::monostate{};
}

std::string Notice::text() const {
  std::ostringstream out;
  out << name;
  for (const auto& [key, detail] : details) {
    out << ' ' << key << '=';
    std::visit([&out](const auto& value) { out << value; }, detail);
  }
  return out.str();
}

}  // namespace vernier
