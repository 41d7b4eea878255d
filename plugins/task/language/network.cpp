#include "network.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/linear_cross_entropy.h>
#include <vernier/random_state.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace language {

namespace {

// Repeats each head of keys or values for its group of queries. LibTorch's fast kernel for a CPU takes equal numbers of
// heads alone.
torch::Tensor for_each_query(const torch::Tensor& x, std::int64_t heads) {
  if (x.size(1) == heads) return x;
  return x.unsqueeze(2).expand({-1, -1, heads / x.size(1), -1, -1}).flatten(1, 2);
}

// Element [i, past + j] is true if token i sees token past + j: bool [time, past + time]. window: as for AttentionMask.
torch::Tensor causal_mask(std::int64_t past, std::int64_t time, std::int64_t window, torch::Device device) {
  const auto before = at::ones({time, past + time}, torch::TensorOptions(device).dtype(torch::kBool)).tril(past);
  return window == 0 ? before : before.triu(past - window + 1);
}

// Softmax in float32 of capped scores, which scaled_dot_product_attention does not have.
torch::Tensor capped_attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                               const AttentionMask& mask, double dropout, double scale, double cap) {
  const auto allowed = mask.allowed.defined()
                           ? mask.allowed
                           : causal_mask(key.size(2) - query.size(2), query.size(2), 0, query.device());
  auto scores = capped(at::matmul(query, key.transpose(2, 3)) * scale, cap);
  scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  auto weights = scores.softmax(-1, torch::kFloat32).to(query.scalar_type());
  if (dropout > 0) weights = at::dropout(weights, dropout, /*train=*/true);
  return at::matmul(weights, value);
}

}  // namespace

torch::Tensor gelu_by_tanh(const torch::Tensor& x) {
  return at::gelu(x, "tanh");
}

AttentionMask::AttentionMask(const Texts& texts, std::int64_t window) : cache(texts.cache) {
  const auto time = texts.tokens.size(1), past = texts.past();
  if (past + time <= window) window = 0;  // all is within it
  if (texts.segments.defined()) {
    const auto is_same = texts.segments.unsqueeze(2) == texts.segments.unsqueeze(1);
    allowed = is_same.logical_and(causal_mask(0, time, window, is_same.device())).unsqueeze(1);
  } else if (const auto begins = texts.begins(); begins.defined()) {
    const auto columns = at::arange(past + time, begins.options());
    const auto is_own = (columns >= begins.unsqueeze(1)).view({-1, 1, 1, past + time});
    allowed = causal_mask(past, time, window, begins.device()).logical_and(is_own);
  } else if (past == 0 && window == 0) {
    is_causal = true;
  } else if (time > 1 || window > 0) {
    allowed = causal_mask(past, time, window, texts.tokens.device()).unsqueeze(0).unsqueeze(0);
  }
}

torch::Tensor capped(const torch::Tensor& x, double cap) {
  return at::tanh(x / cap) * cap;
}

torch::Tensor attend(const torch::Tensor& query, torch::Tensor key, torch::Tensor value, const AttentionMask& mask,
                     std::int64_t layer, double dropout, std::optional<double> scale, double cap) {
  if (mask.cache != nullptr) std::tie(key, value) = mask.cache->add(layer, key, value);
  const auto heads = query.size(1);
  key = for_each_query(key, heads);
  value = for_each_query(value, heads);
  if (cap > 0) {
    const auto own_scale = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
    return capped_attention(query, key, value, mask, dropout, own_scale, cap);
  }
  return at::scaled_dot_product_attention(query, key, value,
                                          mask.allowed.defined() ? std::optional(mask.allowed) : std::nullopt, dropout,
                                          mask.is_causal, scale);
}

torch::Tensor Network::logits(const torch::Tensor& features) const {
  return at::linear(features, head());
}

void Network::drop_head() {
  if (!is_tied()) unregister_module("lm_head");
  release_head();
  has_head_ = false;
}

torch::Tensor Network::forward(const Texts& texts) {
  return logits(features(texts));
}

torch::Tensor Network::loss(const Texts& texts, const torch::Tensor& targets, double label_smoothing) {
  if (has_linear_logits()) {
    vernier::LinearCrossEntropyOptions options;
    options.label_smoothing = label_smoothing;
    return vernier::linear_cross_entropy(features(texts), head(), targets, options);
  }
  return at::cross_entropy_loss(forward(texts).flatten(0, 1), targets.flatten(), {}, at::Reduction::Mean, -100,
                                label_smoothing);
}

// The slopes of the sums are known only when all sums are, and the head's product with each text is made twice for
// that.
torch::Tensor Network::loss_of_sums(const Texts& texts, const torch::Tensor& targets, const OfSums& loss) {
  if (!has_linear_logits()) {
    const auto losses = at::cross_entropy_loss(forward(texts).flatten(0, 1).to(torch::kFloat32), targets.flatten(), {},
                                               at::Reduction::None);
    return loss(losses.view(targets.sizes()).sum(1));
  }
  const auto x = features(texts);
  vernier::LinearCrossEntropyOptions options;
  options.sums = true;
  std::vector<torch::Tensor> each;
  {
    const torch::NoGradGuard no_grad;
    for (std::int64_t i = 0; i < targets.size(0); ++i) {
      each.push_back(vernier::linear_cross_entropy(x[i], head(), targets[i], options));
    }
  }
  const auto sums = at::stack(each);
  if (!at::GradMode::is_enabled()) return loss(sums);
  const auto leaf = sums.detach().requires_grad_();
  const auto value = loss(leaf);
  const auto slopes = torch::autograd::grad({value}, {leaf})[0];
  options.sample_weight = slopes.unsqueeze(1).expand_as(targets);
  const auto line = vernier::linear_cross_entropy(x, head(), targets, options);
  return value.detach() + (line - line.detach());
}

torch::Tensor Network::next_logits(Texts texts) {
  if (const auto begins = texts.begins(); begins.defined()) {
    const auto columns = at::arange(texts.past(), texts.past() + texts.tokens.size(1), begins.options());
    texts.positions = columns - begins.unsqueeze(1);
  }
  const auto last = features(texts).select(1, -1);
  if (texts.cache != nullptr) texts.cache->end_pass(texts.tokens.size(1));
  return logits(last);
}

torch::Tensor add_matrix(torch::nn::Module& module, const std::string& name, std::int64_t rows, std::int64_t columns) {
  const auto part = module.register_module(name, std::make_shared<torch::nn::Module>());
  return part->register_parameter("weight", torch::empty({rows, columns}));
}

void draw_weights(torch::nn::Module& model, std::uint64_t seed,
                  const std::function<double(const std::string& name)>& deviation) {
  const torch::NoGradGuard no_grad;
  const auto generator = vernier::own_generator(seed);
  for (auto& parameter : model.named_parameters()) {
    if (parameter.value().dim() != 2) continue;
    parameter.value().normal_(0.0, deviation(parameter.key()), generator);
  }
}

}  // namespace language
