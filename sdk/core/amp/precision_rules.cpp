#include <vernier/error.h>
#include <vernier/name_pattern.h>
#include <vernier/precision_rules.h>

#include <algorithm>
#include <set>

namespace vernier {

namespace {

constexpr const char* attention = "scaled_dot_product_attention";

// Operations without a layer, such as a softmax, are matched too.
bool matches_all(const PrecisionRule& rule) {
  return rule.match == "*";
}

PrecisionRule::Use use_named(const std::string& name) {
  if (name == "fp32") return PrecisionRule::Use::fp32;
  if (name == "bf16") return PrecisionRule::Use::bf16;
  if (name == "fp16") return PrecisionRule::Use::fp16;
  return name == "fp8" ? PrecisionRule::Use::fp8 : PrecisionRule::Use::policy;
}

PrecisionRule read_rule(Options& options) {
  PrecisionRule rule;
  rule.match = options.get("match", "*", "layers by name, with * and ?, as h.*.mlp.*; *: any operation");
  rule.op = options.get("op", "", "operator, as softmax; empty: all that use a weight of the layer");
  rule.use = use_named(options.choose("use", "policy", {"policy", "fp32", "bf16", "fp16", "fp8"},
                                      "dtype of the operation; policy: as the rest of the model"));
  rule.cast_outputs = options.get("cast_outputs", false, "results are cast to float32");
  const auto kernel = options.choose("kernel", "policy", {"policy", "fused", "matmul"},
                                     "of scaled_dot_product_attention: LibTorch's, or two products and a softmax");
  if (kernel != "policy")
    rule.kernel = kernel == "fused" ? PrecisionRule::Kernel::fused : PrecisionRule::Kernel::matmul;
  rule.options = options;
  return rule;
}

void refuse_contradictions(const PrecisionRule& rule, const Options& options) {
  const auto& names = operators();
  if (!rule.op.empty() && std::find(names.begin(), names.end(), rule.op) == names.end()) {
    const auto near = nearest(rule.op, names);
    options.refuse(
        "op", "is \"" + rule.op + "\", and no operator of that name can be seen" +
                  (near.empty() ? "; take a name of torch.ops.aten, as linear" : "; did you mean \"" + near + "\"?"));
  }
  const bool is_product = rule.op == "linear" || rule.op == "addmm" || rule.op == "mm" || rule.op == "matmul";
  if (rule.use == PrecisionRule::Use::fp8 && !rule.op.empty() && !is_product) {
    options.refuse("op", "is \"" + rule.op + "\", and fp8 is for linear layers; take `op` away, or use = \"bf16\"");
  }
  if (rule.kernel != PrecisionRule::Kernel::policy && rule.op != attention) {
    options.refuse("kernel", std::string("is for attention only; add op = \"") + attention + "\"");
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 8); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 8 ? ", …" : "");
}

// The layer that is nearest to a pattern, with a star for each number where the pattern has stars.
std::string nearest_layer(const std::string& pattern, const std::vector<std::string>& layers) {
  std::set<std::string> shapes;  // "h.0.attn" and "h.1.attn" are both "h.*.attn"
  for (const auto& layer : layers) {
    std::string shape;
    for (const char c : layer) {
      const bool is_digit = c >= '0' && c <= '9';
      if (!is_digit) shape += c;
      if (is_digit && !shape.ends_with('*')) shape += '*';
    }
    shapes.insert(pattern.find('*') == std::string::npos ? layer : shape);
  }
  return nearest(pattern, {shapes.begin(), shapes.end()});
}

std::string no_match(const std::vector<std::string>& names, const std::string& pattern, const std::string& what) {
  const auto near = nearest_layer(pattern, names);
  return "is \"" + pattern + "\", and no " + what + " of this model has such a name; " +
         (near.empty() ? "it has " : "did you mean \"" + near + "\"? It has ") + listed(names);
}

}  // namespace

std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& pattern,
                                  const Options& options, const char* key, const std::string& what) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const auto& name) { return matches(pattern, name); });
  if (found.empty()) options.refuse(key, no_match(names, pattern, what));
  return found;
}

PrecisionRules::PrecisionRules(Options& options) {
  options.tables("rule", "dtypes by layer and operator; the first that matches an operation holds", [&](Options& one) {
    auto rule = read_rule(one);
    refuse_contradictions(rule, one);
    add(std::move(rule));
  });
}

void PrecisionRules::add(PrecisionRule rule) {
  rules_.push_back(std::move(rule));
  matched_.push_back(false);
}

bool PrecisionRules::uses(PrecisionRule::Use use) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule.use == use; });
}

void PrecisionRules::prepare(const Layers& layers) {
  layers_ = layers.names();
  decisions_.assign(operators().size() * (layers_.size() + 1), {});
  for (const auto& rule : rules_) {
    const bool is_met = matches_all(rule) || std::any_of(layers_.begin(), layers_.end(),
                                                         [&](const auto& layer) { return matches(rule.match, layer); });
    if (is_met) continue;
    const auto reason = no_match(layers_, rule.match, "layer");
    if (rule.options) rule.options->refuse("match", reason);
    throw Error("precision rule: `match` " + reason, Error::Kind::configuration);
  }
}

bool PrecisionRules::keep_float32(const std::string& parameter) const {
  const auto dot = parameter.rfind('.');
  const auto layer = dot == std::string::npos ? "" : parameter.substr(0, dot);
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const auto& one) {
    return one.op.empty() && (matches_all(one) || matches(one.match, layer));
  });
  return rule != rules_.end() && rule->use == PrecisionRule::Use::fp32;
}

const PrecisionRule* PrecisionRules::find(const Operation& operation) {
  const auto index = static_cast<std::size_t>(operation.id()) * (layers_.size() + 1) +
                     static_cast<std::size_t>(operation.layer_index() + 1);
  auto& decision = decisions_.at(index);
  if (!decision.known) {
    decision.known = true;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const bool of_layer = matches_all(rules_[i]) ||
                            (operation.layer_index() >= 0 && matches(rules_[i].match, std::string(operation.layer())));
      if (!of_layer || (!rules_[i].op.empty() && rules_[i].op != operation.name())) continue;
      if (decision.rule < 0) decision.rule = static_cast<int>(i);
      matched_[i] = true;  // also where an earlier one holds: it is not a misspelling
    }
  }
  return decision.rule < 0 ? nullptr : &rules_[static_cast<std::size_t>(decision.rule)];
}

void PrecisionRules::refuse_unmatched() const {
  std::vector<std::string> called;
  for (std::size_t op = 0; op < operators().size(); ++op) {
    const auto first = decisions_.begin() + static_cast<std::ptrdiff_t>(op * (layers_.size() + 1));
    const bool is_called = std::any_of(first, first + static_cast<std::ptrdiff_t>(layers_.size() + 1),
                                       [](const Decision& decision) { return decision.known; });
    if (is_called) called.push_back(operators()[op]);
  }
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (matched_[i] || !rules_[i].options) continue;
    const auto& rule = rules_[i];
    const std::string what = rule.op.empty()     ? "no operation used a weight of these layers"
                             : matches_all(rule) ? "the model does not call " + rule.op
                                                 : "no " + rule.op + " used a weight of these layers";
    rule.options->refuse(rule.op.empty() ? "match" : "op", "matches nothing: " + what + "; it calls " + listed(called));
  }
}

}  // namespace vernier
