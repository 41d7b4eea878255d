#include "tape.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace vernier {

namespace {

// A key below autograd that nothing else uses in a process without recomputed activations.
constexpr auto tape_key = c10::DispatchKey::Fake;

constexpr std::size_t most_bytes = std::size_t{1} << 30;

Tape::Values aliases(Tape::Values values) {
  const auto alias = [](const torch::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return torch::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(/*version_counter=*/0, false));
  };
  for (auto& value : values) {
    if (value.isTensor()) {
      value = alias(value.toTensor());
    } else if (value.isTensorList()) {
      auto all = value.toTensorVector();
      for (auto& tensor : all) tensor = alias(tensor);
      value = all;
    }
  }
  return values;
}

// Puts a result into the memory of the recording. A view has it already.
void put(const c10::IValue& now, const c10::IValue& recorded) {
  if (now.isTensorList()) {
    const auto all = now.toTensorVector(), memory = recorded.toTensorVector();
    for (std::size_t i = 0; i < all.size(); ++i) put(all[i], memory[i]);
  } else if (now.isTensor() && now.toTensor().defined()) {
    const auto &tensor = now.toTensor(), &memory = recorded.toTensor();
    if (tensor.const_data_ptr() != memory.const_data_ptr()) memory.copy_(tensor);
  }
}

// Operators that make the host wait, as a recording does not allow.
constexpr std::array waiting = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"};

}  // namespace

Watch* Watch::current = nullptr;

Watch::Watch() {
  current = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

Watch::~Watch() {
  at::removeCallback(handle_);
  current = nullptr;
}

std::vector<c10::Storage> Watch::read() const {
  std::vector<c10::Storage> all;
  for (const auto& [key, storage] : read_) all.push_back(storage);
  return all;
}

std::unique_ptr<at::ObserverContext> Watch::begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (current->trouble_.empty() && std::ranges::find(waiting, name) != waiting.end()) {
    current->trouble_ = c10::str(name, " makes the host wait for the device");
  }
  if (name == "aten::copy_") current->look_at_copy(function.inputs());
  each_tensor(function.inputs(), [](const torch::Tensor& tensor) {
    const auto* key = memory_of(tensor);
    if (key != nullptr && !current->made_.contains(key)) current->read_.emplace(key, tensor.storage());
  });
  return nullptr;
}

void Watch::end(const at::RecordFunction& function, at::ObserverContext*) {
  each_tensor(function.outputs(), [](const torch::Tensor& tensor) {
    const auto* key = memory_of(tensor);
    if (key != nullptr && !current->read_.contains(key)) current->made_.insert(key);
  });
}

// A recording would read the host's memory of the first time again.
void Watch::look_at_copy(c10::ArrayRef<const c10::IValue> inputs) {
  const auto &to = inputs.at(0).toTensor(), &from = inputs.at(1).toTensor();
  if (to.device().type() != from.device().type()) trouble_ = "a tensor is copied between host and device";
}

Tape* Tape::recording = nullptr;

void Tape::record(const std::function<void()>& work) {
  // Kernels that keep results of products have this key too.
  if (c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "").hasKernelForDispatchKey(tape_key)) {
    throw Error("activations are computed again");
  }
  static const auto library = [] {
    torch::Library all(torch::Library::IMPL, "_", tape_key, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&note>());
    return all;
  }();
  const c10::impl::IncludeDispatchKeyGuard noted(tape_key);
  recording = this;
  try {
    work();
  } catch (...) {
    recording = nullptr;
    throw;
  }
  recording = nullptr;
}

void Tape::note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Values* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, tape_key);
  if (recording == nullptr) return op.redispatchBoxed(below, stack);
  const c10::impl::ExcludeDispatchKeyGuard inner(tape_key);
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  auto arguments = aliases({stack->end() - count, stack->end()});
  op.redispatchBoxed(below, stack);
  const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  std::unordered_set<const void*> known;
  each_tensor(arguments, [&](const at::Tensor& tensor) { known.insert(memory_of(tensor)); });
  each_tensor(Values(stack->end() - results, stack->end()), [&](const at::Tensor& tensor) {
    if (memory_of(tensor) == nullptr || !known.insert(memory_of(tensor)).second) return;
    recording->bytes_ += tensor.storage().nbytes();
  });
  if (recording->bytes_ > most_bytes) {
    throw Error("its operators make more than a gibibyte, and recordings are for smaller networks");
  }
  recording->calls_.push_back({op, std::move(arguments), aliases({stack->end() - results, stack->end()})});
}

void Tape::repeat(const Call& call) {
  const at::AutoDispatchBelowAutograd no_graph;
  const c10::impl::ExcludeDispatchKeyGuard no_interceptors(c10::DispatchKey::TESTING_ONLY_GenericMode);
  Values stack = aliases(call.arguments);
  call.op.callBoxed(stack);
  for (std::size_t i = 0; i < stack.size(); ++i) put(stack[i], call.results[i]);
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

void each_tensor(c10::ArrayRef<c10::IValue> values, const std::function<void(const at::Tensor&)>& look) {
  for (const auto& value : values) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const torch::Tensor& tensor : value.toTensorVector()) look(tensor);
    } else if (value.isList()) {  // optional tensors are a list, too
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) look(item.toTensor());
      }
    }
  }
}

}  // namespace vernier
