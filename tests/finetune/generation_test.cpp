// How texts are continued: the rules and draws of transformers, and the cache, which changes no token.
// tests/oracles/README.md says how the reference was recorded.
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/text/generation.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "loaded_task.h"
#include "oracle.h"
#include "published_folder.h"
#include "text/unicode/unicode.h"
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
  return {.repetition_penalty = number(0),
          .temperature = number(1),
          .top_k = static_cast<std::int64_t>(number(2)),
          .top_p = number(3),
          .min_p = number(4)};
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
    const auto seen = tokens.size(1) + (cache == nullptr ? 0 : cache->length());
    if (cache != nullptr) cache->end_pass(tokens.size(1));
    auto logits = torch::zeros({1, 256});
    logits[0][script_.at(static_cast<std::size_t>(seen) - 1)] = 9;
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

// As GenerationConfig of transformers has them.
GenerationOptions options_of(const nlohmann::json& given) {
  GenerationOptions options;
  options.max_tokens = 15;
  options.sampling.temperature = 0;
  options.sampling.repetition_penalty = given.value("repetition_penalty", 1.0);
  options.sampling.no_repeat_ngram = given.value("no_repeat_ngram_size", 0);
  options.min_tokens = given.value("min_new_tokens", 0);
  options.min_length = given.value("min_length", 0);
  const auto ends = given.value("eos_token_id", nlohmann::json::array());
  options.ends = ends.is_array() ? ends.get<Tokens>() : Tokens{ends.get<TokenId>()};
  return options;
}

vernier::BeamOptions beams_of(const nlohmann::json& given) {
  using Early = vernier::BeamOptions::Early;
  vernier::BeamOptions beams;
  beams.beams = given["num_beams"];
  beams.length_penalty = given.value("length_penalty", 1.0);
  const auto early = given.value("early_stopping", nlohmann::json(false));
  beams.early_stopping = early.is_string() ? Early::never : early.get<bool>() ? Early::yes : Early::no;
  return beams;
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

TEST_CASE("oracle generation: beams, limits of the length and log-probabilities are those of transformers") {
  const auto searches = nlohmann::json::parse(bytes_of(Oracle("generation")["searches"]));
  REQUIRE(searches.size() == 55);
  std::map<std::string, std::unique_ptr<PublishedFolder>> folders;
  std::map<std::string, std::unique_ptr<LoadedTask>> tasks;
  for (const auto& search : searches) {
    const auto variant = search["variant"].get<std::string>();
    if (!tasks.contains(variant)) {
      folders[variant] = std::make_unique<PublishedFolder>(variant);
      tasks[variant] = std::make_unique<LoadedTask>(published_folder::task_of(variant), folders[variant]->table());
    }
    auto& model = model_of(*tasks[variant]);
    const auto& given = search["options"];
    CAPTURE(search.dump());
    const auto prompt = search["prompt"].get<Tokens>();
    GenerationOptions options = options_of(given);
    std::vector<Tokens> texts;
    std::vector<double> numbers;
    if (!given.contains("num_beams")) {
      options.likeliest = 1;
      texts.emplace_back();
      vernier::Generation one(model, options, torch::kCPU);
      const auto take = [&](const vernier::GeneratedToken& token) {
        texts[0].push_back(token.id);
        numbers.push_back(token.log_probability);
        return token.likeliest.size() == 1;
      };
      one.add(prompt, {}, {{take, [](GenerationEnd) {}}});
      while (one.size() > 0) one.step();
    } else {
      for (const bool caches : {false, true}) {
        options.uses_cache = caches;
        texts.clear();
        numbers.clear();
        for (const auto& text : vernier::search_beams(model, prompt, options, beams_of(given), torch::kCPU)) {
          if (std::ssize(texts) == given["num_return_sequences"]) break;
          texts.push_back(text.tokens);
          numbers.push_back(text.score);
        }
        CHECK(texts == search["texts"].get<std::vector<Tokens>>());
      }
    }
    CHECK(texts == search["texts"].get<std::vector<Tokens>>());
    const auto expected = search[given.contains("num_beams") ? "scores" : "logprobs"].get<std::vector<double>>();
    REQUIRE(numbers.size() == expected.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(numbers[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  }
}

TEST_CASE("generation: texts of a batch are those that each has alone, whenever they come and end") {
  for (const std::string variant :
       {"gpt2", "llama_grouped", "llama_dynamic", "mistral", "gemma2", "gemma3", "smollm3"}) {
    CAPTURE(variant);
    const PublishedFolder given(variant);
    auto task = given.load();
    auto& model = model_of(task);
    for (const bool slides : {false, true}) {
      GenerationOptions options;
      options.max_tokens = 20;
      options.ends = {2, 13};
      options.slides = slides;
      std::vector<Text> alone, together(9);
      vernier::Generation all(model, options, torch::kCPU);
      for (std::size_t i = 0; i < together.size(); ++i) {
        auto& text = together[i];
        Tokens prompt;
        for (std::size_t j = 0; j < 1 + (i * 5) % 7; ++j) prompt.push_back(static_cast<TokenId>((i + 3 * j) % 29));
        alone.push_back(text_of(model, prompt, options, i));
        text.tokens = prompt;
        all.add(prompt, at::make_generator<at::CPUGeneratorImpl>(i),
                {{[&](const vernier::GeneratedToken& token) {
                    text.tokens.push_back(token.id);
                    return true;
                  },
                  [&](GenerationEnd end) { text.end = end; }}});
        if (i % 2 == 1) all.step();  // some are there already
      }
      while (all.size() > 0) all.step();
      for (std::size_t i = 0; i < together.size(); ++i) {
        CHECK(together[i].tokens == alone[i].tokens);
        CHECK(together[i].end == alone[i].end);
      }
    }
  }
}

TEST_CASE("generation: several texts behind one prompt draw in turn, and equal each other where nothing is drawn") {
  const PublishedFolder given("llama");
  auto task = given.load();
  GenerationOptions options;
  options.max_tokens = 10;
  const auto texts_of = [&](std::uint64_t seed) {
    std::vector<Tokens> texts(4);
    std::vector<vernier::Generation::Text> takers;
    for (auto& text : texts) {
      takers.push_back({[&](const vernier::GeneratedToken& token) {
                          text.push_back(token.id);
                          return true;
                        },
                        [](GenerationEnd) {}});
    }
    vernier::Generation all(model_of(task), options, torch::kCPU);
    all.add({4, 14, 23}, at::make_generator<at::CPUGeneratorImpl>(seed), takers);
    while (all.size() > 0) all.step();
    return texts;
  };
  const auto drawn = texts_of(1);
  CHECK(drawn == texts_of(1));
  CHECK(drawn != texts_of(2));
  CHECK(std::set<Tokens>(drawn.begin(), drawn.end()).size() == 4);
  options.sampling.temperature = 0;
  const auto likeliest = texts_of(1);
  CHECK(std::set<Tokens>(likeliest.begin(), likeliest.end()).size() == 1);
  CHECK(likeliest[0].size() == 10);
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
      const auto cached = model.next_logits(text.slice(0, seen, seen + pass).unsqueeze(0), &cache);
      CHECK(cache.length() == seen + pass);
      CHECK(distance(cached, model.next_logits(text.slice(0, 0, seen + pass).unsqueeze(0), nullptr)) <= tolerance);
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
    const auto logits = model.next_logits(torch::tensor(last, torch::kInt64).unsqueeze(0), nullptr);
    CHECK(logits.argmax().item<TokenId>() == greedy[i]);
  }
}

TEST_CASE("generation: a long prompt is read in pieces, with the token of the whole, and ends at any layer") {
  const torch::NoGradGuard no_grad;
  const PublishedFolder given("llama");
  auto task = given.load();
  auto& model = model_of(task);
  Tokens prompt;
  for (int i = 0; i < 2100; ++i) prompt.push_back(i * i % model.vocabulary());
  GenerationOptions options;
  options.max_tokens = 1;
  options.sampling.temperature = 0;
  const auto whole =
      model.next_logits(torch::tensor(std::vector<std::int64_t>(prompt.begin(), prompt.end())).unsqueeze(0), nullptr);
  CHECK(text_of(model, prompt, options).tokens.back() == whole.argmax().item<TokenId>());
  // Returns the number of texts that begin where the question is answered with true `most` times.
  int asked = 0;
  const auto begun = [&](int most) {
    asked = 0;
    vernier::Generation texts(model, options, torch::kCPU);
    texts.add(prompt, at::make_generator<at::CPUGeneratorImpl>(1), {{[](const auto&) { return true; }, [](auto) {}}},
              [&] { return asked++ < most; });
    return texts.size();
  };
  CHECK(begun(1'000'000) == 1);
  const int layers = asked;
  CHECK(layers >= 5);  // pieces of 512 tokens
  CHECK(layers % 5 == 0);
  for (const int most : {0, 1, layers - 1}) {
    CHECK(begun(most) == 0);
    CHECK(asked == most + 1);
  }
  vernier::BeamOptions beams;
  int left = 2;  // true before the first token and at the first layer
  beams.goes_on = [&] { return left-- > 0; };
  CHECK(vernier::search_beams(model, prompt, options, beams, torch::kCPU).empty());
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

// A tokenizer whose tokens are bytes, too: a part of a character makes U+FFFD of each byte before it, which may be
// printed.
TEST_CASE("generation: what a stream has printed is the text, wherever it is cut, also within bytes of a character") {
  Scripted model({});
  const std::string folder = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";
  const vernier::Codec codec(model, folder + "llama2");
  const auto prompt = codec.encode("It's");
  const auto byte = [&](int value) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(value));
    return codec.id(name);
  };
  const auto text_of = [&](const Tokens& tokens) {
    std::string printed;
    vernier::TextStream stream(codec, prompt, {}, [&](const auto& piece) { printed += piece; });
    for (const auto token : tokens) stream.add(token);
    stream.finish();
    CHECK(printed == stream.text());
    CHECK(vernier::with_replacements(printed) == printed);
    return printed;
  };
  const auto a = byte('A').value(), b = byte('B').value(), first = byte(0xC3).value(), last = byte(0xA9).value();
  const auto word = codec.encode("It's so").back();
  CHECK(text_of({a, b, first}) == "AB\uFFFD");
  CHECK(text_of({a, b, first, last}) == "ABé");
  CHECK(text_of({a, b, first, word, a}) == "AB\uFFFDoA");
  CHECK(text_of({a, first, last, first}) == "Aé\uFFFD");
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    Tokens tokens;
    for (auto length = random() % 12; length > 0; --length) {
      const TokenId some[] = {a, b, first, last, word, byte(static_cast<int>(random() % 256)).value()};
      tokens.push_back(some[random() % std::size(some)]);
    }
    CAPTURE(tokens);
    text_of(tokens);
  }
}

// As OpenAI counts: a token begins with the first character that it has a part of.
TEST_CASE("generation: tokens have their bytes, and their places in characters of the text") {
  Scripted model({});
  const auto check = [](const vernier::Codec& codec, const std::string& prompt, const std::string& text) {
    CAPTURE(text);
    const auto begin = codec.encode(prompt), all = codec.encode(prompt + text);
    vernier::TextStream stream(codec, begin, {}, [](const auto&) {});
    for (auto i = begin.size(); i < all.size(); ++i) stream.add(all[i]);
    stream.finish();
    std::string before;
    for (std::size_t i = 0; i + begin.size() < all.size(); ++i) {
      const auto whole = before.substr(0, before.size() - vernier::unfinished_utf8(before));
      const auto is_first = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
      CHECK(stream.offset(i) == static_cast<std::size_t>(std::ranges::count_if(whole, is_first)));
      before += codec.bytes(all[begin.size() + i]).value();
    }
    CHECK(before == codec.decode(all).substr(codec.decode(begin).size()));  // qwen2 composes e and its accent
  };
  for (const char* text : {" café 😀 abc", " 😀😀", " naïve — 漢字!", " e\u0301 𝔘𝔫𝔦", "\n\n x"}) {
    for (const std::string style : {"gpt2", "llama2", "llama3", "qwen2"}) {
      CAPTURE(style);
      check(vernier::Codec(model, VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/" + style), "It's", text);
    }
    check(vernier::Codec(model, ""), "It's", text);
  }
  // Bytes that never become a character are one U+FFFD each, or together where they could have begun one.
  const std::pair<const char*, std::vector<std::size_t>> broken[] = {{"a\xFF\xFE b", {0, 1, 2, 3, 4}},
                                                                     {"\xF0\x9F", {0, 0}},
                                                                     {"\xF0\x9F"
                                                                      "a",
                                                                      {0, 0, 1}},
                                                                     {"\xC3\xC3\xA9", {0, 1, 1}}};
  const vernier::Codec codec(model, "");
  for (const auto& [text, offsets] : broken) {
    CAPTURE(text);
    vernier::TextStream stream(codec, bytes_in("x"), {}, [](const auto&) {});
    for (const auto byte : bytes_in(text)) stream.add(byte);
    for (std::size_t i = 0; i < offsets.size(); ++i) CHECK(stream.offset(i) == offsets[i]);
  }
}

}  // namespace generation_test
