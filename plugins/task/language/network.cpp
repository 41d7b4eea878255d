#include "network.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <tuple>

namespace language {

namespace {

// Repeats each head of keys or values for its group of queries. LibTorch's fast kernel for a CPU takes equal numbers of
// heads alone.
torch::Tensor for_each_query(const torch::Tensor& x, std::int64_t heads) {
  if (x.size(1) == heads) return x;
  const auto batch = x.size(0), key_heads = x.size(1), time = x.size(2), width = x.size(3);
  return x.unsqueeze(2).expand({batch, key_heads, heads / key_heads, time, width}).reshape({batch, heads, time, width});
}

// Element [i, past + j] is true if token i sees token past + j: bool [time, past + time].
torch::Tensor causal_mask(std::int64_t past, std::int64_t time, torch::Device device) {
  return at::ones({time, past + time}, torch::TensorOptions(device).dtype(torch::kBool)).tril(past);
}

}  // namespace

Sight::Sight(const Texts& texts) : cache(texts.cache) {
  const auto time = texts.tokens.size(1), past = texts.past();
  if (texts.segments.defined()) {
    const auto is_same = texts.segments.unsqueeze(2) == texts.segments.unsqueeze(1);
    mask = is_same.logical_and(causal_mask(0, time, is_same.device())).unsqueeze(1);
  } else if (past == 0) {
    is_causal = true;
  } else if (time > 1) {
    mask = causal_mask(past, time, texts.tokens.device()).unsqueeze(0).unsqueeze(0);
  }
}

torch::Tensor attend(const torch::Tensor& query, torch::Tensor key, torch::Tensor value, const Sight& sight,
                     std::int64_t layer, double dropout, std::optional<double> scale) {
  if (sight.cache != nullptr) std::tie(key, value) = sight.cache->add(layer, key, value);
  const auto heads = query.size(1);
  return at::scaled_dot_product_attention(query, for_each_query(key, heads), for_each_query(value, heads),
                                          sight.mask.defined() ? std::optional(sight.mask) : std::nullopt, dropout,
                                          sight.is_causal, scale);
}

torch::Tensor Network::next_logits(const Texts& text) {
  const auto last = features(text).select(1, -1);
  if (text.cache != nullptr) text.cache->end_pass(text.tokens.size(1));
  return logits(last)[0];
}

torch::Tensor add_matrix(torch::nn::Module& module, const std::string& name, std::int64_t rows, std::int64_t columns) {
  const auto part = module.register_module(name, std::make_shared<torch::nn::Module>());
  return part->register_parameter("weight", torch::empty({rows, columns}));
}

void draw_weights(torch::nn::Module& model, std::uint64_t seed,
                  const std::function<double(const std::string& name)>& deviation) {
  const torch::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& parameter : model.named_parameters()) {
    if (parameter.value().dim() != 2) continue;
    parameter.value().normal_(0.0, deviation(parameter.key()), generator);
  }
}

}  // namespace language
