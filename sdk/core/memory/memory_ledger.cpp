#include <ATen/record_function.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/memory_ledger.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "allocation_reports.h"

namespace vernier {

namespace {

enum class Phase { none, forward, backward, update };
constexpr const char* names_of_phases[] = {"", "forward", "backward", "update"};

struct Block {
  std::int64_t number = 0;  // in the order of allocation: addresses come again
  std::int64_t bytes = 0;
  int layer = -1;
  bool of_weights = false;
};

const void* address_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().data() : nullptr;
}

using Addresses = std::unordered_set<const void*>;
using Storages = std::unordered_set<const c10::StorageImpl*>;

// The bytes of a tensor's storage, 0 where it was counted before.
std::int64_t count_once(const torch::Tensor& tensor, Storages& counted) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  return counted.insert(storage).second ? static_cast<std::int64_t>(storage->nbytes()) : 0;
}

// The mark of an operator whose arguments are made of weights alone.
struct OfWeights final : at::ObserverContext {};

std::int64_t sum_of(const std::vector<MemoryUse::Part>& parts) {
  std::int64_t sum = 0;
  for (const auto& part : parts) sum += part.bytes;
  return sum;
}

}  // namespace

// Called by the allocators and operators. Backward runs on other threads if there is a GPU.
class MemoryLedger::Followed final : public c10::MemoryReportingInfoBase {
 public:
  Followed(Layers& layers, c10::Device device) : layers_(layers), device_(device) {}

  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* address, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (device.type() != device_.type()) return;
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::none) return;
    if (bytes > 0) {
      blocks_[address] = {next_++, bytes, layer_, false};
      now_ += bytes;
      if (now_ <= peak_) return;
      peak_ = now_;
      peak_in_ = phase_;
    } else if (const auto freed = blocks_.extract(address); !freed.empty()) {  // else: older than the ledger
      now_ -= freed.mapped().bytes;
    }
  }

  // Called before an operator. Returns true if all its tensor arguments are weights or made from weights.
  bool enter(c10::ArrayRef<const c10::IValue> inputs) {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::forward) return false;
    bool any = false, only_weights = true;
    const auto look = [&](const torch::Tensor& tensor) {
      if (!tensor.defined()) return;
      if (const int layer = layers_.find(tensor); layer >= 0) {
        layer_ = layer;
        any = true;
      } else if (tensor.numel() > 1) {
        const auto found = blocks_.find(address_of(tensor));
        const bool of_weights = found != blocks_.end() && found->second.of_weights;
        any |= of_weights;
        only_weights &= of_weights;
      }
    };
    for (const auto& input : inputs) {
      if (input.isTensor()) {
        look(input.toTensor());
      } else if (input.isTensorList()) {
        for (const torch::Tensor& tensor : input.toTensorList()) look(tensor);
      } else if (input.isOptionalTensorList()) {
        only_weights = false;
      }
    }
    return any && only_weights;
  }

  void leave(const std::vector<c10::IValue>& outputs) {
    const std::lock_guard lock(mutex_);
    for (const auto& output : outputs) {
      if (!output.isTensor()) continue;
      const auto found = blocks_.find(address_of(output.toTensor()));
      if (found != blocks_.end()) found->second.of_weights = true;
    }
  }

  void begin(Phase phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
    if (phase == Phase::backward) {
      alive_after_forward_.clear();
      for (const auto& [address, block] : blocks_) {
        if (block.number >= mark_ || block.of_weights) alive_after_forward_.emplace_back(address, block);
      }
    } else {
      layer_ = -1;
      mark_ = next_;
    }
  }

  // Returns the blocks that were alive when forward ended: copies made of weights, and by layer the others that are
  // freed by now.
  void saved(std::int64_t& copies, std::vector<std::int64_t>& by_layer) {
    const std::lock_guard lock(mutex_);
    copies = 0;
    by_layer.assign(layers_.names().size() + 1, 0);
    for (const auto& [address, block] : alive_after_forward_) {
      const auto now = blocks_.find(address);
      const bool is_alive = now != blocks_.end() && now->second.number == block.number;
      if (block.of_weights) copies += block.bytes;
      if (!block.of_weights && !is_alive) by_layer[static_cast<std::size_t>(block.layer + 1)] += block.bytes;
    }
    alive_after_forward_.clear();
  }

  // Bytes that are alive and were made since the ledger began, except gradients and copies.
  struct Left {
    std::int64_t masters = 0, update = 0, others = 0;
  };
  Left left(const Addresses& gradients, const Addresses& masters) {
    const std::lock_guard lock(mutex_);
    Left left;
    for (const auto& [address, block] : blocks_) {
      if (gradients.count(address) != 0 || block.of_weights) continue;
      const bool of_update = phase_ == Phase::update && block.number >= mark_;
      (masters.count(address) != 0 ? left.masters : of_update ? left.update : left.others) += block.bytes;
    }
    return left;
  }

  Phase phase() const { return phase_; }
  c10::Device device() const { return device_; }
  std::int64_t peak() const { return peak_; }
  const char* peak_in() const { return names_of_phases[static_cast<std::size_t>(peak_in_)]; }

 private:
  Layers& layers_;
  c10::Device device_;
  std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;  // alive, by address
  std::vector<std::pair<const void*, Block>> alive_after_forward_;
  std::int64_t next_ = 0, mark_ = 0, now_ = 0, peak_ = 0;
  int layer_ = -1;
  Phase phase_ = Phase::none, peak_in_ = Phase::forward;
};

// In place from follow() to stop().
struct MemoryLedger::Guards {
  explicit Guards(const std::shared_ptr<Followed>& followed) : allocator(followed) {
    observed = followed.get();
    callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION}));
  }
  ~Guards() {
    at::removeCallback(callback);
    observed = nullptr;
  }

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    if (observed == nullptr || !observed->enter(function.inputs())) return nullptr;
    return std::make_unique<OfWeights>();
  }
  static void leave(const at::RecordFunction& function, at::ObserverContext* context) {
    if (observed != nullptr && context != nullptr) observed->leave(function.outputs());
  }

  static thread_local Followed* observed;
  AllocationReports allocator;
  at::CallbackHandle callback = 0;
};
thread_local MemoryLedger::Followed* MemoryLedger::Guards::observed = nullptr;

std::int64_t MemoryUse::bytes(std::string_view part) const {
  const auto found = std::ranges::find(parts, part, &Part::name);
  return found == parts.end() ? 0 : found->bytes;
}

MemoryLedger::MemoryLedger(const torch::nn::Module& model, std::vector<torch::Tensor> masters)
    : model_(model), layers_(model) {
  hold("weights", model.parameters());
  hold("buffers", model.buffers());
  for (auto& master : masters) {
    if (layers_.find(master) < 0) masters_.push_back(std::move(master));
  }
  hold("masters", masters_);
}

MemoryLedger::~MemoryLedger() = default;

void MemoryLedger::hold(const std::string& part, const std::vector<torch::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += count_once(tensor, counted_);
  hold(part, bytes);
}

void MemoryLedger::hold(const std::string& part, std::int64_t bytes) {
  if (bytes > 0) use_.parts.push_back({part, bytes});
}

bool MemoryLedger::can_follow() {
  return AllocationReports::receiver() == nullptr;
}

void MemoryLedger::follow() {
  if (followed_ != nullptr) return;
  if (!can_follow()) {
    throw Error("memory cannot be followed: a profiler or another ledger does so already; take them one after another");
  }
  layers_.refresh();
  const auto parameters = model_.parameters();
  Storages counted;
  gradients_before_ = 0;
  for (const auto& parameter : parameters) gradients_before_ += count_once(parameter.grad(), counted);
  for (const auto& master : masters_) gradients_before_ += count_once(master.grad(), counted);
  followed_ = std::make_shared<Followed>(layers_, parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].device());
  guards_ = std::make_unique<Guards>(followed_);
}

// Called by each first begin. Counts what a GPU's allocator holds for libraries, and for tensors that nobody names.
void MemoryLedger::begin() {
  follow();
  const auto device = followed_->device();
  if (followed_->phase() == Phase::none && !device.is_cpu()) allocated_before_ = allocated_memory(device).now;
}

void MemoryLedger::begin_forward() {
  begin();
  if (followed_->phase() == Phase::backward) end_backward();
  followed_->begin(Phase::forward);
}

void MemoryLedger::begin_backward() {
  if (followed_ != nullptr) followed_->begin(Phase::backward);
}

void MemoryLedger::begin_update() {
  begin();
  if (followed_->phase() == Phase::backward) end_backward();
  followed_->begin(Phase::update);
}

void MemoryLedger::end_backward() {
  std::int64_t copies = 0;
  std::vector<std::int64_t> by_layer;
  followed_->saved(copies, by_layer);
  std::vector<MemoryUse::Part> layers;
  for (std::size_t i = 0; i < by_layer.size(); ++i) {
    if (by_layer[i] > 0) layers.push_back({i == 0 ? "" : layers_.names()[i - 1], by_layer[i]});
  }
  if (sum_of(layers) < sum_of(use_.layers)) return;
  use_.layers = std::move(layers);
  std::erase_if(use_.parts, [](const auto& part) { return part.name == "weight copies"; });
  if (copies > 0) use_.parts.push_back({"weight copies", copies});
}

MemoryUse MemoryLedger::stop() {
  if (followed_ == nullptr) throw Error("the memory ledger was stopped and had not begun; call begin_forward() first");
  if (followed_->phase() == Phase::backward) end_backward();
  guards_.reset();
  auto use = use_;
  std::int64_t before = gradients_before_, gradients = 0;
  for (const auto& part : use.parts) before += part.name == "weight copies" ? 0 : part.bytes;
  Addresses of_gradients, of_masters;
  Storages counted;
  const auto add_gradient = [&](const torch::Tensor& tensor) {
    gradients += count_once(tensor.grad(), counted);
    of_gradients.insert(address_of(tensor.grad()));
  };
  for (const auto& parameter : model_.parameters()) add_gradient(parameter);
  for (const auto& master : masters_) add_gradient(master);
  for (const auto& master : masters_) of_masters.insert(address_of(master));
  const auto left = followed_->left(of_gradients, of_masters);
  const auto add = [&use](const char* name, std::int64_t bytes) {
    const auto known = std::find_if(use.parts.begin(), use.parts.end(), [&](auto& part) { return part.name == name; });
    if (known != use.parts.end()) known->bytes += bytes;
    if (known == use.parts.end() && bytes > 0) use.parts.push_back({name, bytes});
  };
  add("gradients", gradients);
  add("activations", sum_of(use.layers));
  // An optimizer whose state exists already does not allocate it in this update.
  add(use.bytes("optimizer") > 0 ? "other" : "optimizer", left.update);
  add("other", left.others);
  add("masters", left.masters);  // the update alone makes these masters
  add("other", std::max<std::int64_t>(0, allocated_before_ - before));
  before = std::max(before, allocated_before_);
  use.peak = before + followed_->peak();
  use.peak_in = followed_->peak_in();
  followed_.reset();
  return use;
}

namespace {

struct Row {
  std::string name;
  std::vector<std::int64_t> bytes;  // one number for each column
};

struct Table {
  std::size_t columns;
  std::vector<Row> rows = {};
  Row& row(const std::string& name) {
    const auto found = std::ranges::find(rows, name, &Row::name);
    return found != rows.end() ? *found : rows.emplace_back(Row{name, std::vector<std::int64_t>(columns)});
  }
};

std::int64_t largest(const Row& row) {
  return *std::max_element(row.bytes.begin(), row.bytes.end());
}

std::vector<Row> rows_of_layers(const std::vector<std::pair<std::string, MemoryUse>>& columns, std::size_t limit) {
  Table table{columns.size()};
  std::map<std::string, std::set<std::string>> members;  // the layers in each row
  for (std::size_t i = 0; i < columns.size(); ++i) {
    for (const auto& [layer, bytes] : columns[i].second.layers) {
      const auto name = layer.empty() ? "(before the first layer)" : folded(layer);
      table.row(name).bytes[i] += bytes;
      members[name].insert(layer);
    }
  }
  auto& rows = table.rows;
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return largest(a) > largest(b); });
  for (auto& row : rows) {
    if (const auto count = members[row.name].size(); count > 1) row.name += " x" + std::to_string(count);
  }
  if (rows.size() > limit + 1) {
    Row rest{std::to_string(rows.size() - limit) + " more", std::vector<std::int64_t>(columns.size())};
    for (std::size_t i = limit; i < rows.size(); ++i) {
      for (std::size_t c = 0; c < columns.size(); ++c) rest.bytes[c] += rows[i].bytes[c];
    }
    rows.resize(limit);
    rows.push_back(std::move(rest));
  }
  return std::move(rows);
}

std::string line(std::string name, const std::vector<std::string>& cells) {
  constexpr std::size_t width_of_names = 34, width_of_cells = 12;
  name.resize(std::max(name.size(), width_of_names), ' ');
  for (const auto& cell : cells)
    name += std::string(cell.size() < width_of_cells ? width_of_cells - cell.size() : 1, ' ') + cell;
  return name + '\n';
}

}  // namespace

std::string folded(const std::string& layer) {
  std::string text;
  for (std::size_t first = 0; first <= layer.size();) {
    const auto dot = std::min(layer.find('.', first), layer.size());
    const auto word = layer.substr(first, dot - first);
    const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    text += (first == 0 ? "" : ".") + (is_number ? "*" : word);
    first = dot + 1;
  }
  return text;
}

std::string memory_table(const std::vector<std::pair<std::string, MemoryUse>>& columns, std::size_t rows) {
  Table parts{columns.size()};
  std::vector<std::string> titles, peaks, moments;
  // In one order, whatever the columns have; the activations come last, their layers below them.
  for (const char* first : {"weights", "buffers", "masters", "weight copies", "gradients", "optimizer"})
    parts.row(first);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto& [title, use] = columns[i];
    titles.push_back(title);
    peaks.push_back(memory_text(use.peak));
    moments.push_back(use.peak_in);
    for (const auto& part : use.parts) {
      if (part.name != "activations") parts.row(part.name).bytes[i] += part.bytes;
    }
  }
  auto& activations = parts.row("activations, saved for backward");
  for (std::size_t i = 0; i < columns.size(); ++i) activations.bytes[i] = columns[i].second.bytes("activations");
  const auto cells = [](const Row& row) {
    std::vector<std::string> texts;
    for (const auto bytes : row.bytes) texts.push_back(bytes > 0 ? memory_text(bytes) : "-");
    return texts;
  };
  std::string text = line("memory", titles);
  for (const auto& row : parts.rows) {
    if (largest(row) > 0) text += line("  " + row.name, cells(row));
  }
  for (const auto& row : rows_of_layers(columns, rows)) text += line("    " + row.name, cells(row));
  text += line("  peak", peaks);
  return text + line("    in", moments);
}

}  // namespace vernier
