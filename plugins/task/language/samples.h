// Texts that each validation writes into the log.
#pragma once

#include <vernier/options.h>
#include <vernier/text/generation.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace language {

// Reads the options of the samples, which task.h lists.
class Samples {
 public:
  explicit Samples(vernier::Options& options);

  // asks: the model learns chats, so that a prompt is what a user asks. Throws Error if there are prompts and the model
  // has no tokenizer, or if a prompt is empty or too long.
  void open(const vernier::LanguageModel& model, bool asks);
  // A text for each prompt, the prompt with what follows it, safe to print. Gradients are off. They follow from the
  // seed, and change no random number of the run.
  std::vector<std::string> write(vernier::LanguageModel& model, torch::Device device, std::uint64_t seed) const;

 private:
  std::vector<std::string> prompts_;
  std::vector<std::vector<vernier::TokenId>> tokens_;  // the prompts, encoded
  vernier::GenerationOptions options_;
  std::shared_ptr<const vernier::Tokenizer> tokenizer_;
};

}  // namespace language
