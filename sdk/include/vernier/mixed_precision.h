// The precision policies of the runner in one class: autocast in a dtype, and rules for single layers and operators. A
// policy of one's own may build on it.
#pragma once

#include <vernier/precision_rules.h>
#include <vernier/roles.h>

#include <functional>
#include <memory>
#include <string>

namespace vernier {

class CastCache;

// Reads the options
//   weight_casts = "forward"   forward | update | none: how long the 16-bit copy of a weight is kept
//   cast_inputs = false        the batch's floating-point tensors are cast before the task sees them
//   attention = "auto"         auto | fused | matmul: LibTorch's kernel as PyTorch has it, or attention_by_matmul();
//                              auto: by matmul on a CPU with AMX, up to a length of 512
//   [[precision.rule]]         PrecisionRules
class VERNIER_API MixedPrecision : public Precision, public Interceptor {
 public:
  // dtype: Half, BFloat16, or Float for no autocast; then only the rules lower anything.
  MixedPrecision(Options& options, torch::ScalarType dtype);
  ~MixedPrecision() override;

  bool needs_scaler() const override;  // where float16 is used, by the policy or by a rule
  void attach(Bus& bus) override;
  void prepare(Run& run) override;
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override;
  void commit(Run& run) override;

  // Sees the model's operations inside forward().
  Values call(const Operation& operation, Values arguments) override;

 protected:
  // For a rule with use = "fp8". The arguments are as the model gave them, autocast is on as in the rest of the model.
  virtual Values call_in_fp8(const Operation& operation, Values arguments);

  PrecisionRules& rules() { return rules_; }
  Layers& layers() { return layers_; }  // of run.model, from prepare on
  torch::ScalarType dtype() const { return dtype_; }
  torch::DeviceType device() const { return device_; }

 private:
  bool intercepts() const;
  Values run(const PrecisionRule* rule, const Operation& operation, Values arguments);
  bool attends_by_matmul(const torch::Tensor& query, const torch::Tensor& key) const;
  torch::Tensor cast(const torch::Tensor& tensor, torch::ScalarType dtype);
  void cast_all(const Operation& operation, Values& arguments, torch::ScalarType dtype);
  void cast_weights(Values& arguments);

  torch::ScalarType dtype_;
  torch::DeviceType device_ = torch::kCPU;
  std::string weight_casts_, attention_;
  bool cast_inputs_;
  PrecisionRules rules_;
  Layers layers_;
  std::unique_ptr<CastCache> casts_;
  bool has_matrix_unit_ = false, has_run_ = false, attends_ = false;  // of the model: it calls attention
};

}  // namespace vernier
