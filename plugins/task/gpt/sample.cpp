// Draws one byte after the other; sample.h describes the rule.
#include "sample.h"

#include <algorithm>
#include <cstdio>
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

// The length of the UTF-8 character that begins here; 0 where none begins or where it is a control character.
std::size_t character(const std::string& text, std::size_t at) {
  auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto first = byte(at);
  if (first < 0x80) return first == '\n' || first == '\t' || (first >= 0x20 && first != 0x7f) ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0u) != 0x80u) return 0;
    code = code << 6 | (byte(at + i) & 0x3fu);
  }
  constexpr std::uint32_t smallest[] = {0xa0, 0x800, 0x10000};  // below: too long a form; U+0080 … U+009F: control
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return first <= 0xf4 && code >= smallest[length - 2] && code <= 0x10ffff && !surrogate ? length : 0;
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

std::string printable(const std::string& bytes) {
  std::string result;
  for (std::size_t at = 0; at < bytes.size();) {
    if (const auto length = character(bytes, at)) {
      result.append(bytes, at, length);
      at += length;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(bytes[at++]));
      result += escape;
    }
  }
  return result;
}

}  // namespace gpt
