#include "activation_checkpoint_kept.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

namespace vernier {

namespace {

// A key that nothing else uses, below Autograd and above the backends. PyTorch's selective checkpointing stands there
// too, as a mode in Python (torch/utils/checkpoint.py).
constexpr auto key = c10::DispatchKey::Fake;
constexpr auto below_key = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);

// Operators that take long, by the names that are called: `linear` and `matmul` have become products of matrices.
constexpr std::array<std::string_view, 13> kept_operators = {"mm",
                                                             "addmm",
                                                             "bmm",
                                                             "baddbmm",
                                                             "addbmm",
                                                             "_scaled_mm",
                                                             "_grouped_mm",
                                                             "convolution",
                                                             "_scaled_dot_product_flash_attention",
                                                             "_scaled_dot_product_flash_attention_for_cpu",
                                                             "_scaled_dot_product_efficient_attention",
                                                             "_scaled_dot_product_cudnn_attention",
                                                             "_scaled_dot_product_fused_attention_overrideable"};

thread_local KeptResultsGuard* current = nullptr;

// The argument of this name; nullptr where the operator has none.
c10::IValue* argument(const c10::OperatorHandle& op, torch::jit::Stack& stack, const char* name) {
  const auto& schema = op.schema();
  const auto index = schema.argumentIndexWithName(name);
  if (!index) return nullptr;
  return &stack[stack.size() - schema.arguments().size() + static_cast<std::size_t>(*index)];
}

// If recomputation skipped these draws, the next operation would get their random numbers.
bool is_random(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto* dropout = argument(op, stack, "dropout_p");
  return dropout != nullptr && dropout->toDouble() > 0;
}

const c10::StorageImpl* storage_of(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

template <class Function>
void for_each_tensor(const Values& values, const Function& function) {
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) function(value.toTensor());
  }
}

std::vector<std::uint32_t> versions_of(const Values& values) {
  std::vector<std::uint32_t> versions;
  for_each_tensor(values, [&](const torch::Tensor& tensor) {
    versions.push_back(tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()));
  });
  return versions;
}

// Called instead of the operators above.
class Product final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard without_what_it_calls(key);
    KeptResultsGuard::call(current, op, keys & below_key, *stack);
  }
};

// Called instead of operators that change an argument. A view that LibTorch calls unsafe, as matmul returns it, has a
// version of its own, and kernels change their results without counting. So it is looked at here, and not left to
// versions.
class InPlace final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      const auto& value = (*stack)[stack->size() - arguments.size() + i];
      if (value.isTensor()) KeptResultsGuard::forget(current, value.toTensor());
      if (!value.isTensorList()) continue;
      for (const torch::Tensor& tensor : value.toTensorList()) KeptResultsGuard::forget(current, tensor);
    }
    op.redispatchBoxed(keys & below_key, stack);
  }
};

// Once in a process, when something is kept for the first time.
void register_kernels() {
  static const bool registered = [] {
    static torch::Library all(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    static torch::Library aten(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    // A tape of operators (sdk/compile/tape.h) may have one, which passes on what it does not record.
    if (!dispatcher.hasBackendFallbackForDispatchKey(key)) all.fallback(torch::CppFunction::makeFallthrough());
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!name.name.starts_with("aten::") || !op) continue;
      const auto overload = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      const auto base = std::string_view(name.name).substr(6);
      if (op->schema().is_mutable()) {
        aten.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<InPlace>()));
      } else if (std::find(kept_operators.begin(), kept_operators.end(), base) != kept_operators.end()) {
        aten.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Product>()));
      }
    }
    return true;
  }();
  (void)registered;
}

}  // namespace

bool KeptResults::Call::is_valid() const {
  return !results.empty() && versions_of(results) == versions;
}

void KeptResults::watch(const std::vector<torch::Tensor>& outputs) {
  for (auto& call : calls_) {
    for_each_tensor(call.results, [&](const torch::Tensor& tensor) {
      for (const auto& output : outputs) {
        if (storage_of(output) == nullptr || storage_of(output) != storage_of(tensor)) continue;
        torch::autograd::impl::set_version_counter(tensor, torch::autograd::impl::version_counter(output));
      }
    });
    call.versions = versions_of(call.results);
  }
}

KeptResultsGuard::KeptResultsGuard(KeptResults& kept, Time time)
    : kept_(kept),
      time_(time),
      before_(current),
      outer_(time == Time::first ? current : nullptr),
      included_before_(c10::impl::tls_is_dispatch_key_included(key)) {
  register_kernels();
  current = this;
  c10::impl::tls_set_dispatch_key_included(key, true);
}

KeptResultsGuard::~KeptResultsGuard() {
  current = before_;
  c10::impl::tls_set_dispatch_key_included(key, included_before_);
}

void KeptResultsGuard::call(KeptResultsGuard* guard, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                            torch::jit::Stack& stack) {
  if (guard == nullptr) return op.redispatchBoxed(below, &stack);
  if (is_random(op, stack)) return call(guard->outer_, op, below, stack);
  if (guard->time_ == Time::first) return guard->keep(op, below, stack);
  if (!guard->answer(op, stack)) call(guard->outer_, op, below, stack);
}

void KeptResultsGuard::keep(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  // Backward will need what forward without a graph would not compute.
  if (auto* wanted = argument(op, stack, "compute_log_sumexp")) *wanted = true;
  call(outer_, op, below, stack);
  const auto count = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  kept_.calls_.push_back({op, Values(stack.end() - count, stack.end()), {}});
}

bool KeptResultsGuard::answer(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (next_ >= kept_.calls_.size()) return false;
  const auto& kept = kept_.calls_[next_++];
  if (!(kept.op == op)) next_ = kept_.calls_.size();
  if (!(kept.op == op) || !kept.is_valid()) return false;
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack.end());
  for (const auto& value : kept.results) {
    // A tensor of its own, which gets a history: backward may come a second time.
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    stack.push_back(is_tensor ? c10::IValue(value.toTensor().variable_data()) : value);
  }
  return true;
}

void KeptResultsGuard::forget(KeptResultsGuard* guard, const torch::Tensor& changed) {
  const auto* storage = storage_of(changed);
  if (storage == nullptr) return;
  for (; guard != nullptr; guard = guard->outer_) {
    if (guard->time_ == Time::second) continue;
    for (auto& call : guard->kept_.calls_) {
      bool is_changed = false;
      for_each_tensor(call.results, [&](const torch::Tensor& kept) { is_changed |= storage_of(kept) == storage; });
      if (is_changed) call.results.clear();
    }
  }
}

}  // namespace vernier
