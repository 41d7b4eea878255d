#include <ATen/cpu/Utils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <vernier/attention.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/mixed_precision.h>

#include "cast_cache.h"

namespace vernier {

namespace {

constexpr std::int64_t longest_by_matmul = 512;  // its memory grows with the square

// Tile instructions for 16-bit products.
bool has_matrix_unit(torch::DeviceType device) {
  if (device != torch::kCPU) return false;
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find("amx_bf16");
  return found != capabilities.end() && found->second.toBool();
}

torch::ScalarType dtype_of(PrecisionRule::Use use) {
  if (use == PrecisionRule::Use::fp32) return torch::kFloat32;
  return use == PrecisionRule::Use::bf16 ? torch::kBFloat16 : torch::kFloat16;
}

// As autocast sees it: float64 is left alone.
bool is_castable(const torch::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const auto dtype = tensor.scalar_type();
  return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
}

// Their running averages are changed in place and must not be copies; the kernels take a 16-bit input beside them.
bool keeps_its_weights(std::string_view op) {
  return op == "batch_norm" || op == "instance_norm";
}

// What autocast would lower, so that a weight's copy may be made here instead.
bool is_lowered_by_autocast(std::string_view op) {
  return op == "linear" || op == "matmul" || op == "mm" || op == "addmm" || op.starts_with("conv");
}

template <class Change>
void change_tensors(Values& values, const Change& change) {
  for (auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<torch::Tensor> changed;
      for (const torch::Tensor& tensor : value.toTensorList()) changed.push_back(change(tensor));
      value = std::move(changed);
    }
  }
}

}  // namespace

MixedPrecision::MixedPrecision(Options& options, torch::ScalarType dtype)
    : dtype_(dtype),
      weight_casts_(options.choose("weight_casts", "forward", {"forward", "update", "none"},
                                   "how long the copy of a weight in another dtype is kept")),
      attention_(options.choose("attention", "auto", {"auto", "fused", "matmul"},
                                "LibTorch's kernel, or two products and a softmax; auto: the faster one")),
      cast_inputs_(options.get("cast_inputs", false, "floating-point tensors of the batch are cast beforehand")),
      rules_(options),
      casts_(std::make_unique<CastCache>()) {}

MixedPrecision::~MixedPrecision() = default;

bool MixedPrecision::needs_scaler() const {
  return dtype_ == torch::kFloat16 || rules_.uses(PrecisionRule::Use::fp16);
}

void MixedPrecision::attach(Bus& bus) {
  if (!cast_inputs_) return;
  bus.on(Event::BatchReady, [this](Run& run) {
    for (auto& tensor : run.piece.tensors) {
      if (is_castable(tensor)) tensor = tensor.to(dtype_);
    }
  });
}

void MixedPrecision::prepare(Run& run) {
  device_ = run.device.type();
  has_matrix_unit_ = has_matrix_unit(device_);
  layers_ = Layers(*run.model);
  rules_.prepare(layers_);
}

bool MixedPrecision::intercepts() const {
  const bool by_matmul =
      attention_ == "matmul" || (attention_ == "auto" && has_matrix_unit_ && dtype_ != torch::kFloat32);
  const bool has_attention = attends_ || !has_run_;
  return !rules_.empty() || weight_casts_ == "update" || (by_matmul && has_attention);
}

torch::Tensor MixedPrecision::forward(const std::function<torch::Tensor()>& body) {
  // With rules, what they leave alone has to be brought to one dtype, be it float32.
  const bool casts = dtype_ != torch::kFloat32 || !rules_.empty();
  const Autocast autocast(device_, dtype_, casts, weight_casts_ != "none");
  torch::Tensor result;
  if (intercepts()) {
    const Intercept intercept(layers_, *this);
    result = body();
  } else {
    result = body();
  }
  if (weight_casts_ != "update" || !torch::GradMode::is_enabled()) casts_->clear();
  if (!has_run_ && torch::GradMode::is_enabled()) {
    has_run_ = true;
    rules_.refuse_unmatched();
  }
  return result;
}

void MixedPrecision::commit(Run&) {
  casts_->clear();  // the weights are about to change, or have
}

Values MixedPrecision::call(const Operation& operation, Values arguments) {
  const auto* rule = rules_.find(operation);
  const auto use = rule != nullptr ? rule->use : PrecisionRule::Use::policy;
  Values results;
  if (use == PrecisionRule::Use::fp8) {
    results = call_in_fp8(operation, std::move(arguments));
  } else if (use == PrecisionRule::Use::policy) {
    if (weight_casts_ == "update" && is_lowered_by_autocast(operation.name())) cast_weights(arguments);
    results = run(rule, operation, std::move(arguments));
  } else {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    cast_all(operation, arguments, dtype_of(use));
    results = run(rule, operation, std::move(arguments));
  }
  if (rule != nullptr && rule->cast_outputs) {
    change_tensors(results,
                   [](const auto& tensor) { return is_castable(tensor) ? tensor.to(torch::kFloat32) : tensor; });
  }
  return results;
}

Values MixedPrecision::call_in_fp8(const Operation& operation, Values) {
  throw Error("this policy has no fp8", Error::Kind::configuration);
}

Values MixedPrecision::run(const PrecisionRule* rule, const Operation& operation, Values arguments) {
  if (operation.name() != "scaled_dot_product_attention") return operation.proceed(std::move(arguments));
  attends_ = true;
  auto query = arguments[0].toTensor(), key = arguments[1].toTensor(), value = arguments[2].toTensor();
  const auto kernel = rule != nullptr ? rule->kernel : PrecisionRule::Kernel::policy;
  const bool by_matmul =
      kernel == PrecisionRule::Kernel::policy ? attends_by_matmul(query, key) : kernel == PrecisionRule::Kernel::matmul;
  if (!by_matmul) return operation.proceed(std::move(arguments));
  if (arguments[7].toBool() && query.size(-3) != key.size(-3)) {  // grouped queries
    const auto share = query.size(-3) / key.size(-3);
    key = key.repeat_interleave(share, -3);
    value = value.repeat_interleave(share, -3);
  }
  return {attention_by_matmul(query, key, value, arguments[3].toOptional<torch::Tensor>().value_or(torch::Tensor()),
                              arguments[4].toDouble(), arguments[5].toBool(), arguments[6].toOptional<double>())};
}

bool MixedPrecision::attends_by_matmul(const torch::Tensor& query, const torch::Tensor& key) const {
  if (attention_ != "auto") return attention_ == "matmul";
  return has_matrix_unit_ && query.scalar_type() == torch::kBFloat16 && query.size(-2) <= longest_by_matmul &&
         key.size(-2) <= longest_by_matmul;
}

torch::Tensor MixedPrecision::cast(const torch::Tensor& tensor, torch::ScalarType dtype) {
  if (!is_castable(tensor) || tensor.scalar_type() == dtype) return tensor;
  const bool is_weight = weight_casts_ != "none" && layers_.find(tensor) >= 0;
  return is_weight ? casts_->cast(tensor, dtype) : tensor.to(dtype);
}

void MixedPrecision::cast_all(const Operation& operation, Values& arguments, torch::ScalarType dtype) {
  if (keeps_its_weights(operation.name())) {
    arguments[0] = cast(arguments[0].toTensor(), dtype);
  } else {
    change_tensors(arguments, [&](const auto& tensor) { return cast(tensor, dtype); });
  }
}

void MixedPrecision::cast_weights(Values& arguments) {
  change_tensors(arguments,
                 [&](const auto& tensor) { return layers_.find(tensor) >= 0 ? cast(tensor, dtype_) : tensor; });
}

}  // namespace vernier
