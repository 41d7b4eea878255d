#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>
#include <vernier/attention.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/hardware.h>
#include <vernier/mixed_precision.h>

#include <utility>

#include "base/processor.h"
#include "cast_cache.h"
#include "cpu/blocked_attention.h"
#include "float8_layers.h"
#include "trace/interception.h"

namespace vernier {

namespace {

constexpr std::int64_t longest_by_matmul = 512;  // its memory grows with the square

// Why no speed is to be expected; "": it may be had. docs/guides/precision.md has the measurements.
std::string speed_of(torch::ScalarType dtype, const Hardware& hardware, torch::DeviceType device, bool is_emulated) {
  if (is_emulated) return "no speed: fp8 is emulated here, and slower than bf16";
  const bool is_fast = dtype == torch::kBFloat16 ? hardware.bf16 : hardware.fp16;
  if (!is_fast) return "no speed: this machine multiplies float32 as fast";
  return dtype == torch::kFloat16 && device == torch::kCPU ? "often no speed: few CPU kernels are fast in it" : "";
}

torch::ScalarType dtype_of(PrecisionRule::Use use) {
  if (use == PrecisionRule::Use::fp32) return torch::kFloat32;
  return use == PrecisionRule::Use::bf16 ? torch::kBFloat16 : torch::kFloat16;
}

const char* name_of(torch::ScalarType dtype) {
  if (dtype == torch::kFloat32) return "fp32";
  return dtype == torch::kBFloat16 ? "bf16" : "fp16";
}

// Returns whether autocast would cast the tensor: float64 stays as it is.
bool is_castable(const torch::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const auto dtype = tensor.scalar_type();
  return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
}

// These operators change their running averages in place, so those must not be copies. Their kernels take a 16-bit
// input beside float32 weights.
bool keeps_its_weights(std::string_view op) {
  return op == "batch_norm" || op == "instance_norm";
}

// Operators that autocast lowers, so that a weight's copy may be made here instead.
bool is_lowered_by_autocast(std::string_view op) {
  return op == "linear" || op == "matmul" || op == "mm" || op == "addmm" || op.starts_with("conv");
}

HalfWeights::Update update_of(const std::string& level, const std::string& rounding) {
  using Update = HalfWeights::Update;
  if (level == "O2") return Update::masters;
  return rounding == "kahan" ? Update::kahan : rounding == "stochastic" ? Update::stochastic : Update::nearest;
}

// Reads `level` and `rounding`. At O0 the dtype becomes float32.
std::optional<HalfWeights> read_weights(Options& options, torch::ScalarType& dtype, MixedPrecision::Levels levels) {
  if (levels == MixedPrecision::Levels::none) return std::nullopt;
  if (levels == MixedPrecision::Levels::float32) {
    options.choose("level", "O1", {"O0", "O1"}, "both are the model's dtype; O2 and O3 are for bf16 and fp16");
    return std::nullopt;
  }
  const auto level =
      options.choose("level", "O1", {"O0", "O1", "O2", "O3"},
                     "O0: float32; O1: autocast; O2: 16-bit weights, float32 master weights; O3: 16-bit weights");
  const auto rounding = options.choose("rounding", "nearest", {"nearest", "stochastic", "kahan"},
                                       "how an update gets into O3's weights; the last two for bfloat16");
  if (level != "O3" && rounding != "nearest") options.refuse("rounding", "is for level O3, and this is " + level);
  if (level == "O0") dtype = torch::kFloat32;
  if (level == "O0" || level == "O1") return std::nullopt;
  if (dtype == torch::kFloat32) options.refuse("level", level + " is for bf16 and fp16: it keeps weights in 16 bits");
  try {
    return HalfWeights(dtype, update_of(level, rounding));
  } catch (const Error& error) {
    options.refuse("rounding", error.what());
  }
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

MixedPrecision::MixedPrecision(Options& options, torch::ScalarType dtype, Levels levels)
    : dtype_(dtype),
      weights_(read_weights(options, dtype_, levels)),
      weight_casts_(options.choose("weight_casts", "forward", {"forward", "update", "none"},
                                   "how long the copy of a weight in another dtype is kept")),
      attention_(options.choose("attention", "auto", {"auto", "fused", "matmul"},
                                "LibTorch's kernel, or two products and a softmax; auto: the faster one")),
      cast_inputs_(options.get("cast_inputs", false, "floating-point tensors of the batch are cast beforehand")),
      rules_(options),
      casts_(std::make_unique<CastCache>()),
      float8_(std::make_unique<Float8Layers>(float8_recipe("delayed"), false)) {
  if (levels == Levels::all) read_modes(options);
  if (levels == Levels::none) return;  // a rule for all operations would leave nothing to choose for
  const bool casts_outputs = options.get("cast_outputs", false, "results of operations without a rule become float32");
  const bool is_off = (levels == Levels::float32 || dtype_ != dtype) && !is_mixed();  // by the options alone
  if (const bool has_mode = autocast_mode_ != "default"; is_off && (casts_outputs || has_mode)) {
    options.refuse(casts_outputs ? "cast_outputs" : "autocast_mode",
                   "has no effect where everything is computed in float32; leave it out");
  }
  if (casts_outputs && weights_) {
    options.refuse("cast_outputs",
                   "is for level O1: at O2 and O3 the weights have 16 bits, and take inputs of 16 bits");
  }
  if (!casts_outputs) return;
  PrecisionRule rule;
  rule.cast_outputs = true;
  rules_.add(std::move(rule));
}

void MixedPrecision::read_modes(Options& options) {
  autocast_mode_ = options.choose("autocast_mode", "default", {"default", "training", "inference"},
                                  "where O1 computes in the dtype: everywhere, or not in validation, or only there");
  fallback_ = options.choose("fallback", "none", {"none", "float32"},
                             "what to compute in where the device multiplies the dtype no faster than float32");
  if (autocast_mode_ == "default") return;
  if (weights_) options.refuse("autocast_mode", "is for level O1: at O2 and O3 the weights themselves have 16 bits");
  if (autocast_mode_ == "inference" && cast_inputs_) {
    options.refuse("autocast_mode", "\"inference\" trains in float32, for which cast_inputs leaves too few bits");
  }
}

MixedPrecision::~MixedPrecision() = default;

void MixedPrecision::use_float8(Float8Recipe recipe, bool spare_first_and_last) {
  recipe_ = recipe;
  float8_ = std::make_unique<Float8Layers>(std::move(recipe), spare_first_and_last);
  is_float8_ = dtype_ != torch::kFloat32;  // not at O0
}

bool MixedPrecision::uses_float8() const {
  return is_float8_ || rules_.uses(PrecisionRule::Use::fp8);
}

bool MixedPrecision::is_mixed() const {
  if (was_mixed_) return *was_mixed_;
  return dtype_ != torch::kFloat32 || uses_float8() || rules_.uses(PrecisionRule::Use::bf16) ||
         rules_.uses(PrecisionRule::Use::fp16);
}

bool MixedPrecision::has_float32() const {
  return !weights_ || weights_->has_float32();
}

bool MixedPrecision::needs_scaler() const {
  return dtype_ == torch::kFloat16 || rules_.uses(PrecisionRule::Use::fp16);
}

// The ranges of fp8 end with an update. commit() would be too early: it comes after each pass of an update.
void MixedPrecision::attach(Bus& bus) {
  if (uses_float8()) bus.on(Event::UpdateDone, [this](Run&) { float8_->end_update(); });
  if (!cast_inputs_) return;
  bus.on(Event::BatchReady, [this](Run& run) {
    for (auto& tensor : run.micro_batch.tensors) {
      if (is_castable(tensor)) tensor = tensor.to(dtype_);
    }
  });
}

// Before the weights are lowered.
void MixedPrecision::fall_back() {
  const auto hardware = hardware_of(device_);
  const bool can = dtype_ == torch::kBFloat16 ? hardware.bf16 : dtype_ == torch::kFloat16 ? hardware.fp16 : true;
  const bool has_all = can && (hardware.fp8 || !uses_float8());
  if (fallback_ == "none" || has_all) return;
  info("in float32, as `fallback` says: ", hardware.can());
  dtype_ = torch::kFloat32;
  is_float8_ = false;
  weights_.reset();
}

namespace {
void set_masters(Run& run, const std::vector<Parameter>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].master.is_same(run.parameters[i].master)) run.set_master(i, parameters[i].master);
  }
}
}  // namespace

void MixedPrecision::prepare(Run& run) {
  device_ = run.device.type();
  fall_back();
  has_matrix_unit_ = device_ == torch::kCPU && cpu_has("amx_bf16");  // tile instructions for 16-bit products
  layers_ = Layers(*run.model);
  rules_.prepare(layers_);
  if (weights_) {
    auto parameters = run.parameters;
    weights_->prepare(*run.model, parameters, run.seed,
                      [this](const std::string& name) { return rules_.keep_float32(name); });
    set_masters(run, parameters);
  }
  if (!uses_float8()) return;
  const auto reason = float8_refusal(recipe_, run.device);
  if (!reason.empty()) throw Error("precision in fp8 " + reason, Error::Kind::configuration);
}

bool MixedPrecision::casts_alone() const {
  return !uses_float8() && weight_casts_ != "update";
}

bool MixedPrecision::intercepts() const {
  const bool is_slow = has_matrix_unit_ && dtype_ != torch::kFloat32 && !has_blocked_attention();  // LibTorch's
  const bool by_matmul = attention_ == "matmul" || (attention_ == "auto" && is_slow);
  const bool has_attention = attends_ || !has_run_;
  return is_float8_ || !rules_.empty() || weight_casts_ == "update" || (by_matmul && has_attention);
}

bool MixedPrecision::is_off_here() const {
  if (autocast_mode_ == "default") return false;
  return (autocast_mode_ == "training") != torch::GradMode::is_enabled();
}

torch::Tensor MixedPrecision::forward(const std::function<torch::Tensor()>& body) {
  was_mixed_ = dtype_ != torch::kFloat32 && !is_off_here();
  if (is_off_here()) return body();
  // With rules, autocast brings all other operations to one dtype, even if that is float32.
  const bool is_seen = intercepts();
  const Autocast autocast(device_, dtype_, is_seen || dtype_ != torch::kFloat32, weight_casts_ != "none");
  const bool in_float8 = uses_float8() && torch::GradMode::is_enabled() && float8_->knows_ends();
  torch::Tensor result;
  if (is_seen) {
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
  if (in_float8 && !std::exchange(are_layers_logged_, true)) log_float8();
  return result;
}

void MixedPrecision::log_float8() const {
  const auto layers = float8_->summary(name_of(dtype_));
  if (float8_->empty()) return warn(layers);
  info(layers, device_ == torch::kCPU ? "; emulated on this CPU: the same numbers, but slower than bf16" : "");
}

// Casts of weights give the bits that autocast gives.
bool MixedPrecision::changes(std::string_view layer) const {
  return (is_float8_ && !float8_->is_spared(std::string(layer))) || !rules_.empty();
}

void MixedPrecision::end_of_recomputation() {
  if (weight_casts_ != "update") casts_->clear();
}

void MixedPrecision::collect(Run&) {
  if (weights_) weights_->collect();
}

void MixedPrecision::commit(Run& run) {
  casts_->clear();  // copies of weights that have changed
  if (weights_) weights_->commit(run.skip_update);
}

// Releases a copy of the weights, since this policy stays in its role if its replacement is refused.
void MixedPrecision::release(Run& run) const {
  casts_->clear();
  auto weights = weights_;
  if (!weights) return;
  auto parameters = run.parameters;
  weights->release(parameters);
  set_masters(run, parameters);
}

std::string MixedPrecision::emulated() const {
  return uses_float8() && device_ == torch::kCPU ? "fp8" : "";
}

State MixedPrecision::save() const {
  auto state = weights_ ? weights_->state_dict() : State{};
  state.put("float8", float8_->state_dict());
  return state;
}

void MixedPrecision::load(const State& state) {
  casts_->clear();  // copies of weights that may have changed
  auto of_weights = state;
  std::erase_if(of_weights.tensors, [](const auto& entry) { return entry.first.starts_with("float8/"); });
  if (weights_) weights_->load_state_dict(of_weights);
  float8_->load_state_dict(state.part("float8"), dtype_);
}

std::string MixedPrecision::describe() const {
  const std::string fp8 = is_float8_ ? "; linear layers in fp8 (" + recipe_.name + ")" : "";
  const std::string rules = rules_.empty() ? "" : "; layers by rules of their own";
  if (dtype_ == torch::kFloat32) return "mixed precision is off, every operation in the model's dtype" + fp8 + rules;
  const bool is_emulated = uses_float8() && device_ == torch::kCPU;
  const bool has_masters = weights_ && !weights_->state_dict().part("master").tensors.empty();
  const auto slow = speed_of(dtype_, hardware_of(device_), device_, is_emulated);
  return std::string(dtype_ == torch::kBFloat16 ? "bfloat16" : "float16") + " autocast" +
         (!weights_     ? " (O1) over the model's weights"
          : has_masters ? " (O2)"
                        : " (O3)") +
         (weights_ ? " over weights in 16 bits" : "") + fp8 + rules + (slow.empty() ? "" : "; " + slow);
}

Values MixedPrecision::call(const Operation& operation, Values arguments) {
  static const PrecisionRule none;
  const auto* rule = rules_.find(operation);
  const bool is_new = is_training_forward() && !is_recomputing();
  const auto is_linear = [&] {
    return operation.name() == "linear_cross_entropy" || linear_call(operation, arguments).has_value();
  };
  if (is_float8_ && !float8_->knows_ends() && is_new && operation.layer_index() >= 0 && is_linear())
    float8_->meet(std::string(operation.layer()));
  return apply(rule != nullptr ? *rule : none, operation, std::move(arguments));
}

Values MixedPrecision::apply(const PrecisionRule& rule, const Operation& operation, Values arguments) {
  const bool is_policy = rule.use == PrecisionRule::Use::policy || rule.use == PrecisionRule::Use::fp8;
  Values results;
  if (auto in_float8 = is_policy ? run_in_float8(rule, operation, arguments) : std::nullopt) {
    was_mixed_ = true;
    results = std::move(*in_float8);
  } else if (is_policy) {
    if (weight_casts_ == "update" && is_lowered_by_autocast(operation.name())) cast_weights(arguments);
    results = run(rule, operation, std::move(arguments));
  } else {
    if (rule.use != PrecisionRule::Use::fp32) was_mixed_ = true;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    cast_all(operation, arguments, dtype_of(rule.use));
    results = run(rule, operation, std::move(arguments));
  }
  if (rule.cast_outputs) {
    change_tensors(results,
                   [](const auto& tensor) { return is_castable(tensor) ? tensor.to(torch::kFloat32) : tensor; });
  }
  return results;
}

// Returns nothing where the operation is not a linear layer or stays out of fp8: then it runs as without fp8.
std::optional<Values> MixedPrecision::run_in_float8(const PrecisionRule& rule, const Operation& operation,
                                                    const Values& arguments) {
  const bool by_rule = rule.use == PrecisionRule::Use::fp8;
  if (!by_rule && !is_float8_) return std::nullopt;
  const auto linear = linear_call(operation, arguments);
  if (!linear || layers_.find(linear->weight) < 0) return std::nullopt;
  auto output = float8_->forward(std::string(operation.layer()), *linear, dtype_, by_rule);
  if (!output) return std::nullopt;
  return Values{std::move(*output)};
}

Values MixedPrecision::run(const PrecisionRule& rule, const Operation& operation, Values arguments) {
  if (operation.name() != "scaled_dot_product_attention") return operation.proceed(std::move(arguments));
  attends_ = true;
  auto query = arguments[0].toTensor(), key = arguments[1].toTensor(), value = arguments[2].toTensor();
  const bool by_matmul = rule.kernel == PrecisionRule::Kernel::policy ? attends_by_matmul(query, key)
                                                                      : rule.kernel == PrecisionRule::Kernel::matmul;
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
  return has_matrix_unit_ && !has_blocked_attention() && query.scalar_type() == torch::kBFloat16 &&
         query.size(-2) <= longest_by_matmul && key.size(-2) <= longest_by_matmul;
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
