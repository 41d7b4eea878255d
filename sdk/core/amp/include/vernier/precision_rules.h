// The [[precision.rule]] tables: which operations of a model compute in which dtype.
#pragma once

#include <c10/core/ScalarType.h>
#include <vernier/layers.h>
#include <vernier/options.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

// Returns the names that match a pattern with * and ?, as in a shell. If there are none, it refuses the option `key`
// and suggests the nearest names. what: the word for a name in this message, "layer".
VERNIER_API std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& pattern,
                                              const Options& options, const char* key, const std::string& what);

// One rule: the operations that it matches, and how they are computed.
struct VERNIER_API PrecisionRule {
  enum class Use { policy, fp32, bf16, fp16, fp8 };
  std::string match = "*";    // names of layers, with * and ? as in a shell; "*" matches all operations
  std::string op;             // one of operators(); empty: any
  Use use = Use::policy;      // policy: the dtype of the rest of the model
  bool cast_outputs = false;  // true: results are converted to float32
  // For scaled_dot_product_attention: the policy's choice, LibTorch's kernel, or attention_by_matmul().
  enum class Kernel { policy, fused, matmul } kernel = Kernel::policy;
  std::optional<Options> options;  // the rule's table, for error messages; none if a program made the rule
};

// An ordered list of rules: the first one that matches an operation applies. Main thread only.
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

  void add(PrecisionRule rule);  // appends
  bool empty() const { return rules_.empty(); }
  bool uses(PrecisionRule::Use use) const;

  // Call it once the model exists. Throws Error for a rule that matches no layer, and suggests the nearest.
  void prepare(const Layers& layers);
  // Returns whether the first rule for all operators of the parameter's layer has use = "fp32".
  bool keep_float32(const std::string& parameter) const;
  // After prepare(): returns the rule for an operation, or nullptr.
  const PrecisionRule* find(const Operation& operation);
  // Call it after the model has run once. Throws Error for a rule that matched no operation, and lists the operators
  // that the model calls. Rules without `options` are not checked.
  void refuse_unmatched() const;

 private:
  struct Decision {
    bool known = false;
    int rule = -1;
  };
  std::vector<PrecisionRule> rules_;
  std::vector<std::string> layers_;
  std::vector<Decision> decisions_;  // by operator and layer, made at the first call
  std::vector<bool> matched_;        // by rule: it has matched
};

}  // namespace vernier
