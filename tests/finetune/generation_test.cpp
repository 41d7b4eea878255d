// How texts are continued: the rules and draws of transformers, and the cache, which changes no token.
// tests/oracles/README.md says how the reference was recorded.
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <vernier/generation.h>

#include <functional>

#include "loaded_task.h"
#include "oracle.h"
#include "published_folder.h"
#include "thrown.h"
#include "tools/generate/text_stream.h"

namespace generation_test {

using published_folder::PublishedFolder;
using vernier::GenerationEnd;
using vernier::GenerationOptions;
using vernier::KeyValueCache;
using vernier::Sampling;
using vernier::TokenId;
using Tokens = std::vector<TokenId>;

namespace {

constexpr double tolerance = 1e-5;

Sampling sampling_of(const torch::Tensor& rule) {
  const auto number = [&](int i) { return rule[i].item<double>(); };
  return {number(0), number(1), static_cast<std::int64_t>(number(2)), number(3), number(4)};
}

Tokens tokens_of(const torch::Tensor& tensor) {
  Tokens tokens;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tokens.push_back(tensor[i].item<TokenId>());
  return tokens;
}

vernier::LanguageModel& model_of(LoadedTask& task) {
  task.run.model->eval();
  return dynamic_cast<vernier::LanguageModel&>(*task.task);
}

struct Text {
  Tokens tokens;
  GenerationEnd end;
};

Text text_of(vernier::LanguageModel& model, Tokens prompt, const GenerationOptions& options, std::uint64_t seed = 1) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Text text{prompt, GenerationEnd::caller};
  text.end = vernier::generate(model, prompt, options, torch::kCPU, generator, [&](TokenId token) {
    text.tokens.push_back(token);
    return true;
  });
  return text;
}

// A model whose next token follows from the number of tokens before it.
struct Scripted final : vernier::LanguageModel {
  explicit Scripted(Tokens script, bool bytes = true) : script_(std::move(script)), bytes_(bytes) {}
  std::int64_t vocabulary() const override { return 256; }
  std::int64_t longest() const override { return 0; }
  std::string tokenizer_folder() const override { return ""; }
  bool reads_bytes() const override { return bytes_; }
  torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache* cache) override {
    const auto seen = tokens.size(0) + (cache == nullptr ? 0 : cache->length());
    if (cache != nullptr) cache->end_pass(tokens.size(0));
    auto logits = torch::zeros({256});
    logits[script_.at(static_cast<std::size_t>(seen) - 1)] = 9;
    return logits;
  }

 private:
  Tokens script_;
  bool bytes_;
};

Tokens bytes_in(const std::string& text) {
  Tokens bytes;
  for (const unsigned char byte : text) bytes.push_back(byte);
  return bytes;
}

}  // namespace

TEST_CASE("oracle generation: scores have the bits of transformers, and draws are the same") {
  const Oracle oracle("generation");
  const auto& rules = oracle["rules"];
  REQUIRE(oracle["logits"].size(0) == 2 * rules.size(0));
  for (std::int64_t row = 0; row < 2 * rules.size(0); ++row) {
    CAPTURE(row);
    const auto scores =
        vernier::sampling_scores(oracle["logits"][row], oracle["seen"][row], sampling_of(rules[row / 2]));
    CHECK(same_bits(scores, oracle["scores"][row]));
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 + row));
    for (std::int64_t draw = 0; draw < oracle["draws"].size(1); ++draw) {
      const auto drawn = scores.softmax(0).unsqueeze(0).multinomial(1, false, generator).item<std::int64_t>();
      CHECK(drawn == oracle["draws"][row][draw].item<std::int64_t>());
    }
  }
}

TEST_CASE("oracle generation: whole texts are those of transformers, with the cache and without it") {
  const Oracle oracle("generation");
  for (const std::string variant : {"gpt2", "gpt2_by_layer", "llama", "llama_grouped", "llama_biases"}) {
    CAPTURE(variant);
    const PublishedFolder given(variant);
    auto task = given.load();
    auto& model = model_of(task);
    const auto& texts = oracle[variant + ".texts"];
    const auto prompt = tokens_of(oracle[variant + ".prompt"]);
    for (std::int64_t i = 0; i < texts.size(0); ++i) {
      for (const bool caches : {true, false}) {
        CAPTURE(caches);
        GenerationOptions options;
        options.sampling = sampling_of(oracle["text_rules"][i]);
        options.max_tokens = texts.size(1) - std::ssize(prompt);
        options.uses_cache = caches;
        const auto text = text_of(model, prompt, options, static_cast<std::uint64_t>(7 + i));
        CHECK(text.tokens == tokens_of(texts[i]));
        CHECK(text.end == GenerationEnd::max_tokens);
      }
    }
  }
}

TEST_CASE("generation: logits through the cache are those of the whole text, in passes of any length") {
  const torch::NoGradGuard no_grad;
  const Oracle models("published_models");
  for (const auto& variant : published_folder::variants_of(models)) {
    CAPTURE(variant);
    const PublishedFolder given(variant);
    auto task = given.load();
    auto& model = model_of(task);
    const auto text = models["tokens"][0];
    const auto most = model.cacheable() == 0 ? text.size(0) : std::min(text.size(0), model.cacheable());
    KeyValueCache cache;
    for (const std::int64_t pass : {5, 1, 1, 3, 1, 4, 1}) {
      const auto seen = cache.length();
      if (seen + pass > most) break;
      const auto cached = model.next_logits(text.slice(0, seen, seen + pass), &cache);
      CHECK(cache.length() == seen + pass);
      CHECK(distance(cached, model.next_logits(text.slice(0, 0, seen + pass), nullptr)) <= tolerance);
    }
    CHECK(cache.length() >= 10);
  }
}

TEST_CASE("generation: where positions turn otherwise in longer texts, the cache is left and the tokens stay") {
  const PublishedFolder given("llama_dynamic");  // from 16 tokens on
  auto task = given.load();
  auto& model = model_of(task);
  CHECK(model.cacheable() == 16);
  GenerationOptions options;
  options.max_tokens = 40;
  const auto cached = text_of(model, {4, 14, 23}, options);
  options.uses_cache = false;
  CHECK(cached.tokens == text_of(model, {4, 14, 23}, options).tokens);
  CHECK(cached.tokens.size() == 43);
}

TEST_CASE("generation: a text ends at the model's last position, or slides on with the same tokens as without cache") {
  const PublishedFolder given("gpt2");  // 24 positions
  auto task = given.load();
  auto& model = model_of(task);
  GenerationOptions options;
  options.max_tokens = 60;
  auto text = text_of(model, {1, 2, 3}, options);
  CHECK(text.end == GenerationEnd::longest);
  CHECK(text.tokens.size() == 25);  // the last position predicts one more
  options.slides = true;
  text = text_of(model, {1, 2, 3}, options);
  CHECK(text.end == GenerationEnd::max_tokens);
  CHECK(text.tokens.size() == 63);
  options.uses_cache = false;
  CHECK(text_of(model, {1, 2, 3}, options).tokens == text.tokens);
  // By hand: each token from the last 24.
  options.sampling.temperature = 0;
  const auto greedy = text_of(model, {1, 2, 3}, options).tokens;
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 40; i < greedy.size(); ++i) {
    const Tokens last(greedy.begin() + static_cast<std::ptrdiff_t>(i) - 24,
                      greedy.begin() + static_cast<std::ptrdiff_t>(i));
    const auto logits = model.next_logits(torch::tensor(last, torch::kInt64), nullptr);
    CHECK(logits.argmax().item<TokenId>() == greedy[i]);
  }
}

TEST_CASE("generation: prompts that the model cannot read are refused in one line") {
  const PublishedFolder given("gpt2");
  auto task = given.load();
  auto& model = model_of(task);
  const auto refused = [&](Tokens prompt, bool slides = false) {
    GenerationOptions options;
    options.slides = slides;
    return refusal([&] { text_of(model, std::move(prompt), options); });
  };
  CHECK(contains(refused({}), "the prompt is empty"));
  CHECK(contains(refused({3, 29}), "has the token 29, and the model's vocabulary is 0 to 28"));
  CHECK(contains(refused({-1}), "has the token -1"));
  CHECK(contains(refused(Tokens(25, 1)), "has 25 tokens, and the model has positions for 24"));
  CHECK(refused(Tokens(24, 1)).empty());
  CHECK(refused(Tokens(25, 1), true).empty());
}

TEST_CASE("generation: a token that ends the text is not passed on, and a diverged model has none") {
  Scripted model({0, 7, 8, 9, 10});
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.ends = {9, 200};
  const auto text = text_of(model, {1, 2}, options);
  CHECK(text.tokens == Tokens{1, 2, 7, 8});
  CHECK(text.end == GenerationEnd::end_token);
  const PublishedFolder given("gpt2");
  auto task = given.load();
  const torch::NoGradGuard no_grad;
  torch::Tensor(task.parameter("ln_f.weight")).fill_(NAN);
  for (const double temperature : {0.0, 1.0}) {
    options.sampling.temperature = temperature;
    CHECK(text_of(model_of(task), {1}, options).end == GenerationEnd::not_finite);
  }
}

TEST_CASE("generation: a stream prints whole characters, and never a part of a stop word") {
  struct Case {
    std::string text;
    std::vector<std::string> stops;
    std::vector<std::string> pieces;  // printed token by token
    std::string stopped;
  };
  const std::vector<Case> cases = {
      {"abc", {}, {"a", "b", "c"}, ""},
      {"a\n\nb", {"\n\n"}, {"a"}, "\n\n"},
      {"a\nb", {"\n\n"}, {"a", "\nb"}, ""},
      {"xENDy", {"END", "ENDING"}, {"x"}, "END"},
      {"EEND", {"END"}, {"E"}, "END"},
      {"abab!", {"aba!"}, {"ab", "ab!"}, ""},
      {"caffé!", {}, {"c", "a", "f", "f", "é", "!"}, ""},
      {"xE", {"END"}, {"x", "E"}, ""},
      {"Q", {"Q"}, {}, "Q"},
  };
  Scripted model({});
  const vernier::Codec codec(model, "");
  for (const auto& [text, stops, pieces, stopped] : cases) {
    CAPTURE(text);
    std::vector<std::string> printed;
    vernier::TextStream stream(codec, bytes_in("prompt "), stops, [&](const auto& piece) { printed.push_back(piece); });
    bool goes_on = true;
    for (const auto byte : bytes_in(text)) {
      if (goes_on) goes_on = stream.add(byte);
    }
    stream.finish();
    CHECK(printed == pieces);
    CHECK(goes_on == stopped.empty());
    std::string all;
    for (const auto& piece : pieces) all += piece;
    CHECK(stream.text() == all);
  }
}

TEST_CASE("generation: texts become tokens by a tokenizer, as bytes, or as numbers") {
  const std::string folder = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";
  Scripted bytes({}), numbers({}, false);
  CHECK(vernier::Codec(bytes, "").encode("aé") == Tokens{97, 0xC3, 0xA9});
  CHECK(vernier::Codec(numbers, "").encode(" 5\t17 ") == Tokens{5, 17});
  CHECK(vernier::Codec(numbers, "").decode(Tokens{5, 17}) == "5 17 ");
  for (const char* wrong : {"five", "5,6", "5x", "99999999999"}) {
    CHECK(contains(refusal([&] { vernier::Codec(numbers, "").encode(wrong); }), std::string(wrong).substr(0, 3)));
  }
  const std::string text = "It's  naïve — 漢字!";
  for (const std::string style : {"gpt2", "llama2", "llama3", "qwen2"}) {
    CAPTURE(style);
    const vernier::Codec codec(bytes, folder + style);
    const auto tokens = codec.encode(text);
    // Token by token, behind the first word, it is the text.
    const auto prompt = codec.encode("It's");
    std::string printed;
    vernier::TextStream stream(codec, prompt, {}, [&](const auto& piece) { printed += piece; });
    for (auto i = prompt.size(); i < tokens.size(); ++i) stream.add(tokens[i]);
    stream.finish();
    CHECK("It's" + printed == text);
    CHECK(codec.end_of_text().has_value());
    CHECK_FALSE(codec.special("a").has_value());
  }
  CHECK(vernier::Codec(bytes, folder + "gpt2").special("<|endoftext|>").has_value());
}

}  // namespace generation_test
