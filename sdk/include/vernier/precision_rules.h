// Which operations of a model compute in which dtype: the [[precision.rule]] tables.
#pragma once

#include <c10/core/ScalarType.h>
#include <vernier/layers.h>
#include <vernier/options.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

// Those of the names that a pattern matches, * and ? as in a shell. Where it matches none, the option that has it is
// refused, with the nearest names. what: "layer".
VERNIER_API std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& pattern,
                                              const Options& options, const char* key, const std::string& what);

// What a rule asks of the operations that it matches.
struct VERNIER_API PrecisionRule {
  enum class Use { policy, fp32, bf16, fp16, fp8 };
  std::string match = "*";    // layers by name, with * and ? as in a shell; "*": every operation, of a layer or not
  std::string op;             // one of operators(); empty: any
  Use use = Use::policy;      // policy: as the rest of the model
  bool cast_outputs = false;  // results go on in float32
  // For scaled_dot_product_attention: attention_by_matmul(), LibTorch's kernel, or as the policy has it.
  enum class Kernel { policy, fused, matmul } kernel = Kernel::policy;
  std::optional<Options> options;  // its table, for refusals; none where a program made the rule
};

// The first rule that matches an operation holds for it. Main thread only.
class VERNIER_API PrecisionRules {
 public:
  PrecisionRules() = default;
  // Reads the tables of `rule`:
  //   rule.match = "*"             "h.*.mlp.*"
  //   rule.op = ""                 "softmax"
  //   rule.use = "policy"          policy | fp32 | bf16 | fp16 | fp8
  //   rule.cast_outputs = false
  //   rule.kernel = "policy"       policy | fused | matmul, for scaled_dot_product_attention
  explicit PrecisionRules(Options& options);

  void add(PrecisionRule rule);  // behind the others
  bool empty() const { return rules_.empty(); }
  bool uses(PrecisionRule::Use use) const;

  // Learns the layers. Refuses a rule that matches none, naming the nearest.
  void prepare(const Layers& layers);
  // Whether the first rule that is for all operators of a parameter's layer asks for fp32.
  bool keep_float32(const std::string& parameter) const;
  // After prepare: the rule for an operation, or nullptr.
  const PrecisionRule* find(const Operation& operation);
  // After the model has run once: refuses a rule whose operator it never called, naming those it calls.
  void refuse_unmatched() const;

 private:
  struct Decision {
    bool known = false;
    int rule = -1;
  };
  std::vector<PrecisionRule> rules_;
  std::vector<std::string> layers_;
  std::vector<Decision> decisions_;  // by operator and layer, made when they are first met
  std::vector<bool> matched_;        // of rules_
};

}  // namespace vernier
