#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/fused_kernels.h>
#include <vernier/lab/random_rounding.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "random_last_bit.h"

namespace vernier {

namespace {

// A key that nothing else uses, below Autograd and above the CPU's kernels. So backward is seen, and operators that
// consist of others (`linear`) are seen as those.
constexpr auto rounding_key = c10::DispatchKey::CustomRNGKeyId;
constexpr auto below_rounding = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, rounding_key);

thread_local RandomRounding* guard_now = nullptr;

// Operators that make a tensor of constants, or one that is not written yet.
const std::unordered_set<std::string_view>& creating() {
  static const std::unordered_set<std::string_view> names = {
      "fill",       "fill_",     "zero_",     "full_like", "new_full",          "zeros_like", "ones_like",
      "empty_like", "new_empty", "new_zeros", "new_ones",  "new_empty_strided", "resize_",    "set_"};
  return names;
}

// Operators that are exact, and take no time in float64 this way.
const std::unordered_set<std::string_view>& exact() {
  static const std::unordered_set<std::string_view> names = {"clone",
                                                             "contiguous",
                                                             "lift",
                                                             "lift_fresh",
                                                             "index",
                                                             "gather",
                                                             "cat",
                                                             "stack",
                                                             "embedding",
                                                             "where",
                                                             "masked_fill",
                                                             "masked_fill_",
                                                             "relu",
                                                             "relu_",
                                                             "threshold_backward",
                                                             "max_pool2d_with_indices",
                                                             "neg",
                                                             "neg_",
                                                             "abs",
                                                             "sign",
                                                             "sort",
                                                             "topk",
                                                             "max",
                                                             "min",
                                                             "amax",
                                                             "amin",
                                                             "argmax",
                                                             "argmin",
                                                             "tril",
                                                             "triu",
                                                             "flip",
                                                             "roll",
                                                             "constant_pad_nd",
                                                             "repeat",
                                                             "index_select",
                                                             "eq",
                                                             "ne",
                                                             "lt",
                                                             "le",
                                                             "gt",
                                                             "ge",
                                                             "isnan",
                                                             "isinf",
                                                             "isfinite",
                                                             "_local_scalar_dense",
                                                             "equal"};
  return names;
}

// Facts from an operator's schema.
struct Traits {
  std::string name;  // without "aten::"
  bool is_left = false;
  bool reads = true;                 // false: its results do not depend on the numbers of its arguments
  std::vector<std::size_t> written;  // arguments that it changes
  std::vector<std::size_t> dtypes;   // arguments that say a dtype
  std::vector<bool> is_new;          // for each returned value: it is neither an argument nor a view of one
};

bool may_be_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) || type->str().find("Tensor") != std::string::npos;
}

Traits traits_from(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  Traits traits;
  traits.name = schema.name().substr(schema.name().find("::") + 2);
  bool has_outputs = false, has_dropout = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const auto* alias = argument.alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written.push_back(i);
    if (argument.real_type()->str().find("ScalarType") != std::string::npos) traits.dtypes.push_back(i);
    has_dropout |= argument.name() == "dropout_p";
  }
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    traits.is_new.push_back(alias == nullptr);
    traits.is_left |= alias != nullptr && !alias->isWrite();
    has_outputs |= may_be_tensors(result.type());
  }
  traits.is_left |= (!has_outputs && traits.written.empty()) || op.hasTag(at::Tag::inplace_view);
  const bool is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  traits.reads = creating().count(traits.name) == 0 && !(is_random && traits.name.ends_with('_'));
  traits.is_left |= (is_random && !has_dropout) || !traits.reads || exact().count(traits.name) != 0;
  return traits;
}

const Traits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Traits> known;
  const auto [found, is_new] = known.try_emplace(&op.schema());
  if (is_new) found->second = traits_from(op);
  return found->second;
}

// Calls the function with each tensor that a value holds.
template <class Function>
void for_each_tensor(const c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) function(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) function(tensor);
  } else if (value.isList()) {
    for (const auto& each : value.toListRef()) for_each_tensor(each, function);
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_complex() && !tensor.is_quantized();
}

// float64 for what is narrower. copies: integers too, because the operator writes to them.
c10::IValue widened(const c10::IValue& value, bool copies) {
  const auto of_tensor = [copies](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (has_last_bit(tensor.scalar_type())) return tensor.to(at::kDouble);
    return copies ? tensor.clone() : tensor;
  };
  if (value.isTensor()) return of_tensor(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(of_tensor(tensor));
    return list;
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) list.set(i, widened(value.toListRef()[i], copies));
    return list;
  }
  return value;
}

std::vector<at::Tensor> tensors_of(const Values& values) {
  std::vector<at::Tensor> all;
  for (const auto& value : values) for_each_tensor(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

// The tensors that the operator wrote, then those that it returned.
std::vector<at::Tensor> outputs_of(const Traits& traits, const Values& arguments, const Values& results) {
  std::vector<at::Tensor> all;
  const auto add = [&](const at::Tensor& tensor) { all.push_back(tensor); };
  for (const auto i : traits.written) for_each_tensor(arguments[i], add);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (traits.is_new[i]) for_each_tensor(results[i], add);
  }
  return all;
}

bool drops(const c10::OperatorHandle& op, const Values& arguments) {
  const auto index = op.schema().argumentIndexWithName("dropout_p");
  return index && arguments[static_cast<std::size_t>(*index)].toDouble() > 0;
}

}  // namespace

// Stands for all operators; a friend of RandomRounding.
struct RandomRoundingKernel {
  static void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  static bool computes(const c10::OperatorHandle& op, const Traits& traits, const Values& arguments);
  static std::vector<at::Tensor> wide_outputs(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                              const Traits& traits, const Values& arguments);
  static Values wide_arguments(const Traits& traits, const Values& arguments);
  static void round(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& wide);
};

bool RandomRoundingKernel::computes(const c10::OperatorHandle& op, const Traits& traits, const Values& arguments) {
  if (traits.is_left || drops(op, arguments)) return false;
  bool has_numbers = false, are_plain = true;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      are_plain = are_plain && is_plain(tensor);
      has_numbers |= has_last_bit(tensor.scalar_type());
    });
  }
  return has_numbers && are_plain;
}

// In the order of outputs_of(); empty if the operator has no kernel for float64.
std::vector<at::Tensor> RandomRoundingKernel::wide_outputs(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                                           const Traits& traits, const Values& arguments) {
  try {
    torch::jit::Stack wide(arguments.begin(), arguments.end());
    op.redispatchBoxed(keys, &wide);
    return outputs_of(traits, arguments, wide);
  } catch (const std::exception&) {
    return {};
  }
}

void RandomRoundingKernel::round(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& wide) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!has_last_bit(outputs[i].scalar_type())) continue;
    const bool has_wide = i < wide.size() && wide[i].scalar_type() == at::kDouble &&
                          wide[i].sizes() == outputs[i].sizes() && wide.size() == outputs.size();
    draw_last_bit(outputs[i], has_wide ? wide[i] : at::Tensor(), CountedNoise(guard_now->seed_, guard_now->drawn_++));
  }
}

Values RandomRoundingKernel::wide_arguments(const Traits& traits, const Values& arguments) {
  Values wide;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = std::ranges::find(traits.written, i) != traits.written.end();
    wide.push_back(widened(arguments[i], is_written));
  }
  for (const auto i : traits.dtypes) {
    if (wide[i].isInt() && has_last_bit(static_cast<at::ScalarType>(wide[i].toInt()))) {
      wide[i] = static_cast<std::int64_t>(at::kDouble);
    }
  }
  return wide;
}

// Operators that are left alone may call others, which are not. Their results are rounded before the listener is
// called.
void RandomRoundingKernel::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & below_rounding;
  if (guard_now == nullptr) return op.redispatchBoxed(below, stack);
  const auto& traits = traits_of(op);
  const Values arguments(stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  const bool computes_numbers = computes(op, traits, arguments);
  if (!computes_numbers) op.redispatchBoxed(below, stack);
  const c10::impl::ExcludeDispatchKeyGuard own(rounding_key);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto wide = computes_numbers ? wide_arguments(traits, arguments) : Values();
  if (computes_numbers) op.redispatchBoxed(below, stack);
  const Values results(stack->end() - static_cast<std::ptrdiff_t>(traits.is_new.size()), stack->end());
  const auto outputs = outputs_of(traits, arguments, results);
  const bool is_rounded = computes_numbers && std::ranges::any_of(outputs, [](const auto& tensor) {
                            return has_last_bit(tensor.scalar_type());
                          });
  if (is_rounded) {
    round(outputs, wide_outputs(op, below, traits, wide));
    ++guard_now->rounded_;
  }
  if (guard_now->listener_ == nullptr) return;
  const auto inputs = traits.reads ? tensors_of(arguments) : std::vector<at::Tensor>();
  guard_now->listener_->called({traits.name, inputs, outputs, is_rounded});
}

namespace {

// Called once in a process, when the first guard is made. The fallback serves operators that have kernels for backends
// alone. Those with a kernel for all backends would take that kernel for this key's.
void register_rounding() {
  static const bool is_registered = [] {
    static torch::Library all(torch::Library::IMPL, "_", rounding_key, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&RandomRoundingKernel::call>());
    static std::map<std::string, torch::Library> libraries;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !(op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                   op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional))) {
        continue;
      }
      const auto space = name.name.substr(0, name.name.find("::"));
      auto& library =
          libraries.try_emplace(space, torch::Library::IMPL, space, rounding_key, __FILE__, __LINE__).first->second;
      const auto overload = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&RandomRoundingKernel::call>());
    }
    return true;
  }();
  (void)is_registered;
}

}  // namespace

RoundingListener::~RoundingListener() = default;

RandomRounding::RandomRounding(std::uint64_t seed, RoundingListener* listener)
    : seed_(seed), listener_(listener), before_(guard_now), was_fused_(fused_kernels()) {
  register_rounding();
  if (was_fused_) use_fused_kernels(false);
  guard_now = this;
  c10::impl::tls_set_dispatch_key_included(rounding_key, true);
}

RandomRounding::~RandomRounding() {
  guard_now = before_;
  c10::impl::tls_set_dispatch_key_included(rounding_key, guard_now != nullptr);
  if (was_fused_) use_fused_kernels(true);
}

torch::Tensor with_random_last_bit(const torch::Tensor& tensor, std::uint64_t seed, std::uint64_t place) {
  if (!has_last_bit(tensor.scalar_type()) || !is_plain(tensor)) {
    refuse("with_random_last_bit: the tensor must be float32, bfloat16 or float16 on the CPU");
  }
  const c10::impl::ExcludeDispatchKeyGuard own(rounding_key);
  const at::NoGradGuard no_grad;
  auto copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
  draw_last_bit(copy, {}, CountedNoise(seed, place));
  return copy;
}

double digits_of(torch::ScalarType dtype) {
  const int bits = dtype == torch::kFloat64 ? 53 : dtype == torch::kBFloat16 ? 8 : dtype == torch::kFloat16 ? 11 : 24;
  return bits * std::log10(2.0);
}

double significant_digits(double mean_square, double variance, torch::ScalarType dtype) {
  if (!std::isfinite(mean_square) || !std::isfinite(variance)) return 0;
  if (variance <= 0) return digits_of(dtype);
  return std::clamp(0.5 * std::log10(mean_square / variance), 0.0, digits_of(dtype));
}

double significant_digits(const std::vector<double>& samples, torch::ScalarType dtype) {
  if (samples.size() < 2) refuse("significant_digits: the spread of fewer than 2 samples is not known");
  const auto count = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return significant_digits(mean * mean, squares / (count - 1), dtype);
}

}  // namespace vernier
