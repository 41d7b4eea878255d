// Draws one byte after the other; sample.h describes the rule.
#include "sample.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace gpt {

namespace {

constexpr double coldest = 1e-6;  // below, the quotient of two logits may overflow

// Returns nothing where the logits are not finite: a diverged network has no next byte.
std::optional<char> draw(torch::Tensor logits, const Sampling& sampling, at::Generator generator) {
  logits = logits.to(torch::kCPU, torch::kFloat32);
  if (!logits.isfinite().all().item<bool>()) return std::nullopt;
  if (sampling.temperature == 0) return static_cast<char>(logits.argmax().item<std::int64_t>());
  logits = (logits - logits.max()) / std::max(sampling.temperature, coldest);
  if (sampling.top_k > 0 && sampling.top_k < vocabulary) {
    const auto least = std::get<0>(logits.topk(sampling.top_k)).min();
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return static_cast<char>(logits.softmax(0).multinomial(1, false, generator).item<std::int64_t>());
}

}  // namespace

std::string continuation(Network& network, const Sampling& sampling, std::int64_t context, torch::Device device,
                         at::Generator generator) {
  std::string text = sampling.prompt;
  for (std::int64_t i = 0; i < sampling.bytes; ++i) {
    const auto seen = std::min<std::int64_t>(context, static_cast<std::int64_t>(text.size()));
    auto tokens = torch::from_blob(text.data() + text.size() - seen, {1, seen}, torch::kUInt8);
    const auto logits = network.next_token(tokens.to(torch::kInt64).to(device))[0];
    const auto next = draw(logits, sampling, generator);
    if (!next) {
      text += "… (the model gives no finite probabilities)";
      break;
    }
    text.push_back(*next);
  }
  return text.substr(sampling.prompt.size());
}

}  // namespace gpt
