#include <ATen/SequenceNumber.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/non_finite_tracer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string_view>
#include <tuple>

#include "tracer_seen.h"

namespace vernier {

namespace {

using Named = std::vector<std::pair<std::string, torch::Tensor>>;

std::atomic<NonFiniteTracer::Seen*> current = nullptr;
thread_local std::vector<int> at_work;  // operations and nodes that have begun on this thread

struct Context final : at::ObserverContext {
  explicit Context(int index) : index(index) {}
  int index;
};

const c10::StorageImpl* storage_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.is_sparse()) {  // without an operator, because it would be recorded
    return storage_of(static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->values());
  }
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

void add_tensors(const c10::IValue& value, const std::string& name, Named& tensors) {
  const auto add = [&](const torch::Tensor& tensor, const std::string& as) {
    if (tensor.defined()) tensors.emplace_back(as, tensor);
  };
  if (value.isTensor()) {
    add(value.toTensor(), name);
  } else if (value.isTensorList()) {
    int i = 0;
    for (const torch::Tensor& tensor : value.toTensorList()) add(tensor, c10::str(name, "[", i++, "]"));
  } else if (value.isOptionalTensorList()) {
    int i = 0;
    for (const std::optional<torch::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor) add(*tensor, c10::str(name, "[", i, "]"));
      ++i;
    }
  }
}

// "addmm" of "aten::addmm"; of a node "AddmmBackward0".
std::string short_name(std::string_view name) {
  constexpr std::string_view engine = "autograd::engine::evaluate_function: ";
  if (name.starts_with(engine)) return std::string(name.substr(engine.size()));
  const auto colons = name.rfind("::");
  return std::string(colons == std::string_view::npos ? name : name.substr(colons + 2));
}

// Operators to which the memory's content before does not matter.
bool overwrites(const std::string& name) {
  static const std::vector<std::string> all = {"copy_",   "fill_", "zero_",      "normal_", "uniform_",
                                               "random_", "set_",  "bernoulli_", "resize_", "exponential_"};
  return std::ranges::find(all, name) != all.end();
}

bool allocates(const std::string& name) {
  return name.starts_with("empty") || name.starts_with("new_empty") || name == "resize_" || name == "resize_as_" ||
         name == "set_";
}

}  // namespace

NonFiniteTracer::Seen::Seen(const torch::nn::Module& model, bool keep_outputs)
    : layers(model), keep_outputs(keep_outputs) {
  layers.refresh();
  for (const auto& entry : model.named_buffers())
    names[storage_of(entry.value())] = {entry.key(), SeenBuffer::Kind::buffer};
  for (const auto& entry : model.named_parameters()) {
    names[storage_of(entry.value())] = {entry.key(), SeenBuffer::Kind::parameter};
  }
  names.erase(nullptr);
}

int NonFiniteTracer::Seen::buffer_for(const torch::Tensor& tensor) {
  const auto* storage = storage_of(tensor);
  if (storage == nullptr) return -1;
  const auto [place, is_new] = buffer_of.emplace(storage, static_cast<int>(buffers.size()));
  if (is_new) {
    auto& buffer = buffers.emplace_back();
    if (const auto name = names.find(storage); name != names.end()) std::tie(buffer.name, buffer.kind) = name->second;
  }
  return place->second;
}

SeenTensor NonFiniteTracer::Seen::look(const std::string& name, const torch::Tensor& tensor, bool is_read) {
  SeenTensor seen;
  seen.name = name;
  seen.buffer = buffer_for(tensor);
  if (seen.buffer >= 0) {
    const auto& buffer = buffers[static_cast<std::size_t>(seen.buffer)];
    seen.writers = static_cast<int>(buffer.writers.size());
    is_read = is_read && !buffer.is_raw;
  }
  seen.is_read = is_read;
  seen.range = ranges.size();
  ranges.push_back({is_read ? measure_range(tensor) : torch::Tensor(), tensor.scalar_type(), {}});
  return seen;
}

int NonFiniteTracer::Seen::layer_in(const Named& tensors) const {
  for (const auto& [name, tensor] : tensors) {
    if (const int found = layers.find(tensor); found >= 0) return found;
  }
  return -1;
}

void NonFiniteTracer::Seen::find_layer(SeenOperation& operation, const Named& tensors, const Place& place) {
  const auto* parent = operation.parent < 0 ? nullptr : &operations[static_cast<std::size_t>(operation.parent)];
  if (operation.is_node) {
    const auto forward = by_sequence_.find(place);
    if (operation.name.find("AccumulateGrad") != std::string::npos) {
      operation.layer = -2;
    } else if (forward != by_sequence_.end()) {
      const auto& of = operations[static_cast<std::size_t>(forward->second)];
      operation.layer = of.layer;
      operation.is_after = of.is_after;
      layer = of.layer;
      // The engine's record around the node knows no number; hooks on what comes back to the layer ran in it.
      if (parent == nullptr || !parent->is_node || parent->name != operation.name) return;
      for (auto i = static_cast<std::size_t>(operation.parent); i < operations.size(); ++i) {
        operations[i].layer = operation.layer;
        operations[i].is_after = operation.is_after;
      }
    } else {
      operation.layer = parent != nullptr ? parent->layer : layer;
      operation.is_after = true;
    }
    return;
  }
  // A block that is computed again in backward (vernier::checkpoint) has its own layers, as in forward; before the
  // first of them `layer` is that of its node.
  const bool is_forward_again = parent != nullptr && parent->is_node && c10::GradMode::is_enabled();
  if (parent != nullptr && !is_forward_again && (parent->is_node || !parent->is_after)) {
    operation.layer = parent->layer;
    operation.is_after = parent->is_after;
    return;
  }
  const int found = layer_in(tensors);
  if (found >= 0) layer = found;
  operation.layer = layer;
  operation.is_after = found < 0;
}

int NonFiniteTracer::Seen::begin(const at::RecordFunction& function) {
  const std::lock_guard lock(mutex);
  SeenOperation operation;
  operation.name = short_name(function.name());
  operation.parent = at_work.empty() ? -1 : at_work.back();
  operation.is_node = function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
                      std::string_view(function.name()).starts_with("autograd::engine::evaluate_function");
  is_backward |= operation.is_node;
  operation.is_backward = is_backward;
  operation.micro_batch = std::max(micro_batch, 0);
  const int index = static_cast<int>(operations.size());
  const auto schema = operation.is_node ? std::nullopt : function.operator_schema();
  Named tensors, written;
  std::vector<bool> is_read;
  const auto inputs = function.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool is_known = schema && i < schema->arguments().size();
    const auto name = is_known ? schema->arguments()[i].name() : c10::str("input ", i);
    const auto* alias = is_known ? schema->arguments()[i].alias_info() : nullptr;
    const bool is_written = alias != nullptr && alias->isWrite();
    const auto before = tensors.size();
    add_tensors(inputs[i], name, tensors);
    const bool is_out = is_known && schema->arguments()[i].is_out();
    is_read.resize(tensors.size(), !(is_written && (is_out || overwrites(operation.name))));
    // Schemas do not say that running statistics are written.
    const bool is_statistic = name == "running_mean" || name == "running_var";
    if (is_written || (is_statistic && !is_backward)) {
      written.insert(written.end(), tensors.begin() + static_cast<std::ptrdiff_t>(before), tensors.end());
    }
    operation.fills_minus_inf |= inputs[i].isDouble() && std::isinf(inputs[i].toDouble()) && inputs[i].toDouble() < 0;
  }
  find_layer(operation, tensors, {function.forwardThreadId(), function.seqNr()});
  if (!operation.is_node) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      operation.inputs.push_back(look(tensors[i].first, tensors[i].second, is_read[i]));
    }
    if (c10::GradMode::is_enabled()) {
      const auto next = static_cast<std::int64_t>(at::sequence_number::peek());
      by_sequence_[{at::RecordFunction::currentThreadId(), next}] = index;
    }
    if (!written.empty()) written_[index] = std::move(written);
  }
  operations.push_back(std::move(operation));
  at_work.push_back(index);
  return index;
}

void NonFiniteTracer::Seen::end(const at::RecordFunction& function, int index) {
  const std::lock_guard lock(mutex);
  if (const auto place = std::ranges::find(at_work, index); place != at_work.end()) at_work.erase(place, at_work.end());
  if (operations[static_cast<std::size_t>(index)].is_node) return;
  Named results;
  int number = 0;
  for (const auto& output : function.outputs()) {
    add_tensors(output, number == 0 ? "output" : c10::str("output ", number), results);
    ++number;
  }
  Named written;
  if (const auto found = written_.find(index); found != written_.end()) {
    written = std::move(found->second);
    written_.erase(found);
  }
  const auto has = [](const Named& list, const torch::Tensor& tensor) {
    return std::ranges::any_of(list, [&](const auto& each) { return storage_of(each.second) == storage_of(tensor); });
  };
  for (const auto& each : written) {
    if (!has(results, each.second)) results.push_back(each);
  }
  auto& operation = operations[static_cast<std::size_t>(index)];
  const bool is_raw = allocates(operation.name);
  for (const auto& [name, tensor] : results) {
    const int known = buffer_for(tensor);
    const bool is_written = has(written, tensor);
    const bool is_view =
        std::ranges::any_of(operation.inputs, [&](const SeenTensor& input) { return input.buffer == known; });
    if (known >= 0 && !is_written && !is_view) {  // new memory, perhaps at an address that was there before
      const auto& before = buffers[static_cast<std::size_t>(known)];
      if (before.kind == SeenBuffer::Kind::other) {
        buffer_of.erase(storage_of(tensor));
        names.erase(storage_of(tensor));
      }
    }
    const int now = buffer_for(tensor);
    if (now >= 0 && (is_written || !is_view)) {
      buffers[static_cast<std::size_t>(now)].is_raw = is_raw;
      buffers[static_cast<std::size_t>(now)].writers.push_back(index);
    }
    operation.outputs.push_back(look(name, tensor, !is_raw));
    const auto dtype = tensor.scalar_type();
    if (c10::isFloatingType(dtype) && !is_raw) {
      const double step = dtype == torch::kFloat8_e4m3fn ? 0x1p-3
                          : dtype == torch::kFloat8_e5m2 ? 0x1p-2
                          : dtype == torch::kBFloat16    ? 0x1p-7
                          : dtype == torch::kHalf        ? 0x1p-10
                          : dtype == torch::kFloat       ? 0x1p-23
                                                         : 0x1p-52;
      epsilon = std::max(epsilon, step);
    }
  }
  if (!results.empty()) keep(operation, results.front().second);
}

const SeenOperation* NonFiniteTracer::Seen::node_of(int operation) const {
  for (int i = operation; i >= 0; i = operations[static_cast<std::size_t>(i)].parent) {
    if (operations[static_cast<std::size_t>(i)].is_node) return &operations[static_cast<std::size_t>(i)];
  }
  return nullptr;
}

// Operations since the last node of the previous micro-batch belong to this one.
void NonFiniteTracer::Seen::begin_micro_batch() {
  micro_batch += 1;
  for (int i = static_cast<int>(operations.size()) - 1; is_backward && i >= 0 && node_of(i) == nullptr; --i) {
    auto& operation = operations[static_cast<std::size_t>(i)];
    operation.micro_batch = micro_batch;
    operation.is_backward = false;
    operation.layer = -1;
    operation.is_after = true;
  }
  is_backward = false;
  layer = -1;
  layers.refresh();
}

// The outermost operation that brings a layer's weight and an activation together.
void NonFiniteTracer::Seen::keep(const SeenOperation& operation, const torch::Tensor& tensor) {
  if (operation.is_backward || operation.is_after || operation.layer < 0 || !tensor.is_floating_point()) return;
  if (operation.parent >= 0) {
    const auto& parent = operations[static_cast<std::size_t>(operation.parent)];
    if (parent.is_node || (!parent.is_after && parent.layer >= 0)) return;
  }
  const bool has_activation = std::ranges::any_of(operation.inputs, [&](const SeenTensor& input) {
    return input.buffer >= 0 && buffers[static_cast<std::size_t>(input.buffer)].kind != SeenBuffer::Kind::parameter &&
           ranges[input.range].measured.defined();
  });
  if (!has_activation) return;
  torch::Tensor value;
  if (keep_outputs) {
    const at::DisableRecordFunctionGuard unrecorded;
    const torch::NoGradGuard no_grad;
    value = tensor.detach().to(torch::kCPU, torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
  }
  outputs.push_back(
      {layers.names()[static_cast<std::size_t>(operation.layer)], operation.name, operation.micro_batch, {}, value});
  ranges_of_outputs.push_back(operation.outputs.front().range);
}

void NonFiniteTracer::Seen::resolve() {
  const at::DisableRecordFunctionGuard unrecorded;
  std::vector<torch::Tensor> far;
  for (const auto& each : ranges) {
    if (each.measured.defined() && !each.measured.is_cpu()) far.push_back(each.measured);
  }
  torch::Tensor brought;
  if (!far.empty()) brought = torch::stack(far).to(torch::kCPU);
  std::int64_t row = 0;
  for (auto& each : ranges) {
    if (!each.measured.defined()) continue;
    const auto measured = each.measured.is_cpu() ? each.measured : brought[row++];
    each.range = range_from(measured.const_data_ptr<double>(), each.dtype);
    each.measured.reset();
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].range = ranges[ranges_of_outputs[i]].range;
}

struct NonFiniteTracer::Guards {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto* seen = current.load();
    return seen != nullptr ? std::make_unique<Context>(seen->begin(function)) : nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    auto* seen = current.load();
    if (seen != nullptr && context != nullptr) seen->end(function, static_cast<Context*>(context)->index);
  }
  Guards() {
    at::RecordFunctionCallback both(begin, end);
    both.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    callback = at::addThreadLocalCallback(both);
  }
  ~Guards() {
    at::removeCallback(callback);
    current = nullptr;
    at_work.clear();
  }
  at::CallbackHandle callback = 0;
};

NonFiniteTracer::NonFiniteTracer(const torch::nn::Module& model, bool keep_outputs)
    : seen_(std::make_shared<Seen>(model, keep_outputs)) {
  Seen* none = nullptr;
  if (!current.compare_exchange_strong(none, seen_.get())) {
    throw Error("another NonFiniteTracer is active in this process; only one can be active at a time");
  }
  at_work.clear();
  guards_ = std::make_unique<Guards>();
}

NonFiniteTracer::~NonFiniteTracer() = default;

void NonFiniteTracer::hold(const std::string& name, const torch::Tensor& tensor) {
  const std::lock_guard lock(seen_->mutex);
  if (const auto* storage = storage_of(tensor)) seen_->names[storage] = {name, SeenBuffer::Kind::batch};
}

void NonFiniteTracer::begin_forward() {
  const std::lock_guard lock(seen_->mutex);
  seen_->begin_micro_batch();
}

void NonFiniteTracer::stop() {
  guards_.reset();
  seen_->resolve();
}

const std::vector<LayerOutput>& NonFiniteTracer::outputs() const {
  return seen_->outputs;
}

std::int64_t NonFiniteTracer::operations() const {
  return static_cast<std::int64_t>(seen_->operations.size());
}

double NonFiniteTracer::coarsest_epsilon() const {
  return seen_->epsilon;
}

}  // namespace vernier
