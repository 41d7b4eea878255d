#include <c10/util/ScopeExit.h>
#include <vernier/control.h>
#include <vernier/host.h>
#include <vernier/model_adapter.h>
#include <vernier/roles.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

namespace vernier {

namespace {

// The step in "step-00000100" or "step-100.one"; -1 for any other name.
std::int64_t step_in(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix) || name.ends_with(".partial")) return -1;  // a WholeFile that was not finished
  std::int64_t step = -1;
  const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && (end == last || *end == '.') ? step : -1;
}

}  // namespace

// Destructors stand here so that this library holds the key function, and so the type information, of every role.
Task::~Task() = default;
Precision::~Precision() = default;
Scaler::~Scaler() = default;
Accumulation::~Accumulation() = default;
Optimizer::~Optimizer() = default;
Checkpoint::~Checkpoint() = default;
Distributed::~Distributed() = default;
Callback::~Callback() = default;
Monitor::~Monitor() = default;
bool Callback::needs_gradients() const {
  return true;
}
bool Monitor::set_every(std::int64_t) {
  return false;
}
Control::~Control() = default;
ModelAdapter::~ModelAdapter() = default;

torch::Tensor Task::validate(Run&) {
  return {};
}

torch::Tensor Task::validate_batch(Run&, const Batch& batch) {
  return loss(batch);
}

std::optional<std::vector<MetricInfo>> Task::measures() const {
  return std::nullopt;
}

std::optional<double> Task::weight_of(const Batch&) const {
  return std::nullopt;
}

std::string Task::where(std::int64_t index) const {
  return "sample " + std::to_string(index);
}

Batch Task::concatenated(const std::vector<Batch>& batches) const {
  return Batch::concatenated(batches);
}

bool Precision::is_mixed() const {
  return false;
}
bool Precision::has_float32() const {
  return true;
}
Contradiction Precision::contradicts(const Plugin& other, const Bus&) const {
  const auto* scaler = dynamic_cast<const Scaler*>(&other);
  if (scaler == nullptr || !needs_scaler() || scaler->scales()) return {};
  return {"use", "needs a loss scaler, or small gradients vanish, and the scaler is " + scaler->id() +
                     "; add [scaler] use = \"dynamic\""};
}
bool Precision::needs_scaler() const {
  return false;
}
torch::Tensor Precision::forward(const std::function<torch::Tensor()>& body) {
  return body();
}
void Precision::collect(Run&) {}
void Precision::commit(Run& run) {
  for (const auto& parameter : run.parameters) {
    if (parameter.master.is_same(parameter.model)) continue;
    throw Error(
        "it has a master of its own for " + parameter.name +
            ", and no commit() brings that back into the model, which would never be trained; override commit()",
        Error::Kind::plugin);
  }
}
void Precision::release(Run&) const {}
std::string Precision::describe() const {
  return "";
}
std::string Precision::emulated() const {
  return "";
}

bool Scaler::scales() const {
  return true;
}
torch::Tensor Scaler::scale(const torch::Tensor& loss) {
  return loss;
}
void Scaler::unscale(Run&) {}
void Scaler::update(Run&) {}
Scaler::Current Scaler::current() const {
  return {};
}

bool Accumulation::gathers() const {
  return false;
}
std::int64_t Accumulation::batches_per_update(std::int64_t, std::int64_t, std::int64_t) {
  return 1;
}
bool Accumulation::can_shrink() const {
  return false;
}
bool Accumulation::shrink(Run&) {
  return false;
}

bool Optimizer::divides_gradients() const {
  return false;
}

bool Optimizer::steps_in_backward() const {
  return false;
}

bool Optimizer::updates_each_alone() const {
  return false;
}

bool Checkpoint::writes_shards() const {
  return false;
}
void Checkpoint::write_shard(const State&, Run&) {
  refuse("cannot save a state that ranks share out; use checkpoint/rolling, or distributed/ddp");
}

std::vector<std::string> Checkpoint::snapshots(const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code trouble;
  for (std::filesystem::directory_iterator entry(folder + "/checkpoints", trouble), end; !trouble && entry != end;
       entry.increment(trouble)) {
    if (const auto step = step_in(entry->path().filename().string()); step >= 0)
      found.emplace_back(step, entry->path());
  }
  if (trouble && trouble != std::errc::no_such_file_or_directory && trouble != std::errc::not_a_directory) {
    refuse(folder + "/checkpoints: cannot be read: " + trouble.message());
  }
  std::ranges::sort(found, std::ranges::greater());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  static thread_local bool is_asked = false;  // read() may ask for the newest in its turn
  if (!paths.empty() || is_asked) return paths;
  is_asked = true;
  const auto end = c10::make_scope_exit([] { is_asked = false; });
  TrainerRun run;
  run.output = folder;
  return read(run, "") ? std::vector{folder} : paths;
}

std::int64_t Distributed::rank() const {
  return 0;
}
std::int64_t Distributed::ranks() const {
  return 1;
}
void Distributed::all_reduce(Run&, torch::Tensor) {}
std::function<void()> Distributed::sum(torch::Tensor) {
  return [] {};
}
void Distributed::broadcast(const std::vector<std::vector<torch::Tensor>>&) {}
std::vector<std::string> Distributed::gather(const std::string& bytes) {
  return {bytes};
}
bool Distributed::shards_optimizer() const {
  return false;
}
std::vector<MetricInfo> Callback::measures() const {
  return {};
}

}  // namespace vernier
