// Continues prompts with a model, as the settings of a call or of a request say.
#pragma once

#include <vernier/text/generation.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec.h"

namespace vernier {

class ChatTemplate;

struct GenerationSettings {
  GenerationOptions options;
  BeamOptions beams{.beams = 1};  // 1: no beam search
  std::vector<std::string> stops;
  std::uint64_t seed = 1;
  std::int64_t count = 1;           // completions of each prompt
  std::int64_t batch = 1;           // texts in one forward pass
  std::int64_t longest_prompt = 0;  // tokens of a request's prompt; 0: any
};

struct Completion {
  std::string text;
  std::int64_t tokens = 0;
  GenerationEnd end = GenerationEnd::max_tokens;
  std::vector<GeneratedToken> log_probabilities = {};  // one for each token, if requested
  std::vector<std::size_t> offsets = {};               // characters of the text before each of these
  std::optional<double> score = {};                    // score of beam search
};

// A prompt, and what becomes of its completions.
struct PromptJob {
  std::string where;  // before errors: "prompts.jsonl:7"; or ""
  std::vector<TokenId> prompt;
  std::uint64_t more_seed = 0;
  // Called with each piece of a text; the last one may be "". fresh: the tokens since the last piece, with
  // log-probabilities if asked for; offsets: theirs.
  std::function<void(std::size_t index, const std::string& text, std::span<const GeneratedToken> fresh,
                     std::span<const std::size_t> offsets)>
      print = {};
  std::function<void(std::vector<Completion>)> done;  // called once
  std::function<bool()> is_wanted =
      {};  // false ends the texts; asked before each token and each piece of a long prompt
};

class Generator {
 public:
  // tokenizer: its folder, or "" for what the model says of itself. stop_signal: 0 until the program is to end.
  Generator(LanguageModel& model, torch::Device device, const std::string& tokenizer,
            const std::atomic<int>& stop_signal);
  ~Generator();

  const Codec& codec() const { return codec_; }
  const LanguageModel& model() const { return model_; }
  // The tokens of the text in "prompt", or of the chat in "messages" up to where its answer begins. Throws Error, with
  // the place, for what cannot be read.
  std::vector<TokenId> tokens_of(const nlohmann::ordered_json& object, const std::string& where) const;
  std::string text_of_chat(const nlohmann::ordered_json& messages, const std::string& where) const;

  // Takes jobs until there are none, several at a time. Throws Error where a signal stops the program, and where the
  // model diverged.
  void run(const GenerationSettings& settings, const std::function<std::optional<PromptJob>()>& next) const;

 private:
  struct Texts;
  GenerationOptions options_of(const GenerationSettings& settings) const;
  void search(const GenerationSettings& settings, const PromptJob& job) const;
  void begin(const GenerationSettings& settings, PromptJob job, Generation& texts) const;
  void require_no_signal() const;

  LanguageModel& model_;
  torch::Device device_;
  Codec codec_;
  std::unique_ptr<const ChatTemplate> chats_;
  std::vector<TokenId> ends_;  // tokens that end every text
  const std::atomic<int>& stop_signal_;
};

}  // namespace vernier
