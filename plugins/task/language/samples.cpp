#include "samples.h"

#include <vernier/error.h>
#include <vernier/random_state.h>
#include <vernier/text/language_data.h>

namespace language {

using vernier::between;

Samples::Samples(vernier::Options& options)
    : prompts_(options.get("sample_prompts", std::vector<std::string>{},
                           "texts that each validation continues, in the log")) {
  options_.max_tokens = options.get("sample_tokens", 50, "tokens of such a text at most", between(1, 1e6));
  auto& sampling = options_.sampling;
  sampling.temperature =
      options.get("temperature", 0.8, "of the samples; 0: always the likeliest token", between(0, 1000));
  sampling.top_k = options.get("top_k", 0, "samples draw among the k likeliest tokens; 0: all", between(0, 1e9));
  sampling.top_p = options.get("top_p", 1.0, "samples draw among the fewest tokens whose probabilities sum up to it",
                               between(1e-9, 1));
  if (!prompts_.empty()) return;
  for (const char* key : {"sample_tokens", "temperature", "top_k", "top_p"}) {
    if (options.given(key)) options.refuse(key, "is for samples; give `sample_prompts`");
  }
}

void Samples::open(const vernier::LanguageModel& model, bool asks) {
  if (prompts_.empty()) return;
  const auto folder = model.tokenizer_folder();
  if (folder.empty()) vernier::refuse("sample_prompts needs a tokenizer; name its folder with `tokenizer`");
  tokenizer_ = vernier::open_tokenizer(folder);
  if (const auto end = tokenizer_->end_of_text()) options_.ends = {*end};
  for (const auto& word : model.end_words()) {
    if (const auto end = tokenizer_->id(word)) options_.ends.push_back(*end);
  }
  for (const auto& prompt : prompts_) {
    const auto chat = asks ? vernier::text_of_question(prompt, model.chat_template(), folder) : "";
    tokens_.push_back(asks && !prompt.empty() ? tokenizer_->encode(chat, false) : tokenizer_->encode(prompt));
    const auto size = std::ssize(tokens_.back());
    if (size > 0 && (model.longest() == 0 || size <= model.longest())) continue;
    vernier::refuse(c10::str("sample_prompts: \"", prompt, "\" has ", size, " tokens, and must have ",
                             model.longest() == 0 ? "one at least" : c10::str("1 to ", model.longest())));
  }
}

std::vector<std::string> Samples::write(vernier::LanguageModel& model, torch::Device device, std::uint64_t seed) const {
  std::vector<std::string> texts;
  for (const auto& prompt : tokens_) {
    auto tokens = prompt;
    const auto generator = vernier::own_generator(seed);
    const auto end = vernier::generate(model, tokens, options_, device, generator, [&](vernier::TokenId token) {
      tokens.push_back(token);
      return true;
    });
    auto text = vernier::printable(tokenizer_->decode(tokens), "\n\t");
    if (end == vernier::GenerationEnd::not_finite) text += "… (the model gives no finite probabilities)";
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace language
