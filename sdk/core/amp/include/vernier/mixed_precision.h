// The base class of the precision policies: autocast in a dtype, and rules for single layers and operators. A policy of
// your own may derive from it.
#pragma once

#include <vernier/float8_linear.h>
#include <vernier/half_weights.h>
#include <vernier/precision_rules.h>
#include <vernier/roles.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace vernier {

class CastCache;
class Float8Layers;

// Reads the options
//   level = "O1"               O0: float32, with everything else in place; O1: autocast; O2: weights in 16 bits with
//                              float32 master weights; O3: weights in 16 bits. A rule with fp32 keeps a layer's weights
//   rounding = "nearest"       of O3's updates: nearest | stochastic | kahan, the last two for bfloat16 (HalfWeights)
//   weight_casts = "forward"   forward | update | none: how long the 16-bit copy of a weight is kept
//   autocast_mode = "default"  default | training | inference: of O1, where forward() computes in the dtype; training:
//                              validation is in float32; inference: only validation is not
//   fallback = "none"          none | float32: what to compute in where the dtype gains no speed
//   cast_inputs = false        casts the batch's floating-point tensors before the task sees them
//   cast_outputs = false       casts results of operations that no rule matches to float32
//   attention = "auto"         auto | fused | matmul: LibTorch's kernel as in PyTorch, or attention_by_matmul();
//                              auto: by matmul on a CPU with AMX, up to a length of 512, where fused_kernels.h is off
//   rule = []                  [[precision.rule]] tables of vernier/precision_rules.h
class VERNIER_API MixedPrecision : public Precision, public Interceptor {
 public:
  // Values of the option `level`. float32: O0 and O1, which are the same then; none: there is no such option. Without
  // O3 there is no option `rounding`.
  enum class Levels { all, float32, none };
  // dtype: Half, BFloat16, or Float for no autocast; then only the rules lower anything.
  MixedPrecision(Options& options, torch::ScalarType dtype, Levels levels = Levels::all);
  ~MixedPrecision() override;

  bool is_mixed() const override;
  bool has_float32() const override;
  bool needs_scaler() const override;  // true where the policy or a rule uses float16
  void attach(Bus& bus) override;
  void prepare(Run& run) override;
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override;
  void collect(Run& run) override;
  void commit(Run& run) override;
  void release(Run& run) const override;
  std::string describe() const override;
  std::string emulated() const override;
  State save() const override;  // an override of save() and load() calls these
  void load(const State& state) override;
  // Called for the model's operations inside forward().
  Values call(const Operation& operation, Values arguments) override;
  bool changes(std::string_view layer) const override;
  void end_of_recomputation() override;

 protected:
  // For the constructor of a policy that computes linear layers in fp8, unless a rule says otherwise. With
  // spare_first_and_last the layers that the model calls first and last stay out; the first training forward then runs
  // without fp8, to find them. Rules with use = "fp8" take this recipe too; without this call they take
  // float8_recipe("delayed").
  void use_float8(Float8Recipe recipe, bool spare_first_and_last);

  // For draft::Capturable of a policy that adds nothing to this class. False in fp8, whose scales are chosen by the
  // host, and where casts outlive forward().
  bool casts_alone() const;
  virtual bool intercepts() const;  // whether forward() has to see the operations; false costs nothing
  // Runs an operation as a rule says; call() does so with the first rule that matches.
  Values apply(const PrecisionRule& rule, const Operation& operation, Values arguments);
  PrecisionRules& rules() { return rules_; }
  torch::ScalarType dtype() const { return dtype_; }

 private:
  void read_modes(Options& options);
  void fall_back();
  bool is_off_here() const;
  bool uses_float8() const;
  void log_float8() const;
  Values run(const PrecisionRule& rule, const Operation& operation, Values arguments);
  std::optional<Values> run_in_float8(const PrecisionRule& rule, const Operation& operation, const Values& arguments);
  bool attends_by_matmul(const torch::Tensor& query, const torch::Tensor& key) const;
  torch::Tensor cast(const torch::Tensor& tensor, torch::ScalarType dtype);
  void cast_all(const Operation& operation, Values& arguments, torch::ScalarType dtype);
  void cast_weights(Values& arguments);

  torch::ScalarType dtype_;
  torch::DeviceType device_ = torch::kCPU;
  std::optional<HalfWeights> weights_;  // O2 and O3
  std::string autocast_mode_ = "default", fallback_ = "none", weight_casts_, attention_;
  bool cast_inputs_;
  PrecisionRules rules_;
  Layers layers_;
  std::unique_ptr<CastCache> casts_;
  Float8Recipe recipe_ = float8_recipe("delayed");
  std::unique_ptr<Float8Layers> float8_;
  bool is_float8_ = false, are_layers_logged_ = false;  // the policy itself is fp8; the log has named the layers
  std::optional<bool> was_mixed_;                       // in the last forward()
  bool has_matrix_unit_ = false, has_run_ = false, attends_ = false;  // attends_: the model calls attention
};

}  // namespace vernier
