// Tokenizers of each style against the packages that they are made for: tests/oracles/bpe.py, more_tokenizers.py.
#include <doctest/doctest.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "long_form.h"
#include "python.h"
#include "text/text_tokenizer.h"
#include "text/unicode/unicode.h"
#include "thrown.h"

namespace tokenizer_test {

using Json = nlohmann::json;
using vernier::TokenId;
using Ids = std::vector<TokenId>;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";
const std::string styles[] = {"gpt2",         "gpt2_prefix",      "llama3",        "qwen2",         "llama2",
                              "llama2_added", "llama2_metaspace", "words_unknown", "unknown_apart", "gemma2",
                              "o200k",        "tekken",           "deepseek",      "starcoder",     "all_splits"};
const std::string more_styles[] = {"bert",        "bert_cased",    "bert_vocab",  "many_steps",
                                   "word_level",  "clip",          "openai_gpt",  "t5",
                                   "xlm_roberta", "unigram_bytes", "sp_unigram",  "sp_unigram_bytes",
                                   "sp_folded",   "sp_bpe",        "sp_bpe_user", "tekken_file"};
// A text goes in one part through expressions that are not matched by hand, and where sums go over all of it.
const std::string whole_styles[] = {"o200k",      "tekken",    "deepseek",    "starcoder",     "all_splits",
                                    "bert_cased", "clip",      "many_steps",  "word_level",    "xlm_roberta",
                                    "sp_unigram", "sp_folded", "sp_bpe_user", "unigram_bytes", "sp_unigram_bytes",
                                    "tekken_file"};
const std::string exact_styles[] = {
    "gpt2",   "llama3",   "o200k",
    "tekken", "deepseek", "starcoder"};  // these change no text: they add no space and normalize nothing

std::vector<std::string> all_styles() {
  std::vector<std::string> all(std::begin(styles), std::end(styles));
  all.insert(all.end(), std::begin(more_styles), std::end(more_styles));
  return all;
}

Json read_json(const std::string& path) {
  return Json::parse(read_text(path));
}

std::string random_text(std::mt19937& random, std::size_t characters) {
  static const std::vector<std::string> hard = {" ",   "  ",   "\n",  "\r\n", "\t",   "\u00A0", "\u3000",  "a",
                                                "the", "'s",   "'RE", "12",   "4567", "é",      "e\u0301", "中",
                                                "文",  "🙂", "<|",  "<s>",  "▁",    ".",      "!?"};
  std::string text;
  while (characters-- > 0) {
    if (random() % 3 != 0) {
      text += hard[random() % hard.size()];
      continue;
    }
    const auto code = static_cast<char32_t>(random() % (random() % 2 == 0 ? 0x3000 : 0x110000));
    if (code < 0xD800 || code > 0xDFFF) vernier::append_utf8(text, code);
  }
  return text;
}

// One recorded text: [ids, ids of the plain text, decoded without special tokens, with them].
void check_case(const vernier::Tokenizer& tokenizer, const std::string& text, const Json& recorded) {
  CAPTURE(text);
  const auto ids = recorded[0].get<Ids>();
  CHECK(tokenizer.encode(text) == ids);
  CHECK(tokenizer.encode_plain(text) == recorded[1].get<Ids>());
  CHECK(tokenizer.decode(ids) == recorded[2].get<std::string>());
  CHECK(tokenizer.decode(ids, true) == recorded[3].get<std::string>());
}

// The ids of a text that comes in parts, each cut where the tokenizer says that it may be.
Ids in_parts(const vernier::TextTokenizer& tokenizer, std::string_view text, std::mt19937& random) {
  Ids ids;
  bool is_first = true;
  std::size_t begin = 0;
  for (std::size_t end = 0; end < text.size();) {
    end = std::min(text.size(), end + 1 + random() % 40);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    const auto waiting = text.substr(begin, end - begin);
    const auto size = end == text.size() ? waiting.size() : tokenizer.last_cut(waiting);
    if (size == 0) continue;
    tokenizer.encode_part(waiting.substr(0, size), is_first ? vernier::Place::beginning : vernier::Place::continued,
                          false, ids);
    is_first = false;
    begin += size;
  }
  return ids;
}

}  // namespace

TEST_CASE("tokenizer: ids and texts are those of the package") {
  const auto texts = read_json(oracles + "texts.json").get<std::vector<std::string>>();
  for (const auto& style : all_styles()) {
    CAPTURE(style);
    const auto tokenizer = vernier::open_tokenizer(oracles + style);
    const auto cases = read_json(oracles + "cases/" + style + ".json");
    REQUIRE(cases.size() == texts.size());
    for (int again = 0; again < 2; ++again) {  // the second time from the cache of pieces
      for (std::size_t i = 0; i < texts.size(); ++i) check_case(*tokenizer, texts[i], cases[i]);
    }
  }
}

TEST_CASE("tokenizer: a long text has the ids of sentencepiece, whose sums are rounded ever more") {
  const auto texts = read_json(oracles + "texts.json").get<std::vector<std::string>>();
  std::string text;
  for (std::size_t i = 0; i < 60 * texts.size(); ++i) {
    text += (i == 0 ? "" : " ") + texts[(i * 7 + i / texts.size()) % texts.size()];
  }
  const auto all = read_json(oracles + "long.json");
  for (const std::string style : {"sp_unigram", "sp_unigram_bytes", "sp_folded", "sp_bpe", "sp_bpe_user"}) {
    CAPTURE(style);
    const auto& recorded = all.at(style);
    const auto ids = vernier::open_tokenizer(oracles + style)->encode(text);
    std::uint64_t number = 0;
    for (const auto id : ids) number = number * 1'000'003 + static_cast<std::uint64_t>(id);
    CHECK(ids.size() == recorded[0].get<std::size_t>());
    CHECK(number == recorded[1].get<std::uint64_t>());
  }
}

TEST_CASE("tokenizer: more random texts, where the packages are here") {
  for (const std::string script : {"bpe.py", "more_tokenizers.py"}) {
    if (!has_python(script == "bpe.py" ? "tokenizers" : "tokenizers, sentencepiece, tiktoken")) {
      MESSAGE("skipped: python3 has not the packages of " << script << " here");
      continue;
    }
    const TemporaryFolder folder;
    std::string out;
    const auto options = " --more more.json " + std::to_string(is_long() ? 200000 : 4000) + " 11";
    REQUIRE_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/oracles/" + script + options, folder.path(), out) == 0, out);
    const auto recorded = read_json(folder / "more.json");
    const auto texts = recorded["texts"].get<std::vector<std::string>>();
    for (const auto& [style, cases] : recorded["styles"].items()) {
      CAPTURE(style);
      const auto tokenizer = vernier::open_tokenizer(oracles + style);
      REQUIRE(cases.size() == texts.size());
      for (std::size_t i = 0; i < texts.size(); ++i) check_case(*tokenizer, texts[i], cases[i]);
    }
  }
}

TEST_CASE("tokenizer: a text is the text of its tokens") {
  std::mt19937 random(17);
  for (const auto& style : exact_styles) {
    CAPTURE(style);
    const auto tokenizer = vernier::open_tokenizer(oracles + style);
    for (int i = 0; i < 5000; ++i) {
      const auto text = random_text(random, random() % 40);
      CAPTURE(text);
      CHECK(tokenizer->decode(tokenizer->encode_plain(text)) == text);
    }
  }
}

TEST_CASE("tokenizer: a text in parts has the ids of the whole") {
  std::mt19937 random(23);
  for (const auto& style : all_styles()) {
    CAPTURE(style);
    const auto tokenizer = vernier::open_text_tokenizer(oracles + style);
    std::size_t cuts = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto text = random_text(random, 1 + random() % 60) + " and more words of a text";
      CAPTURE(text);
      CHECK(in_parts(*tokenizer, text, random) == tokenizer->encode(text, false));
      cuts += tokenizer->last_cut(text) > 0 ? 1 : 0;
    }
    CHECK((cuts > 1000) != (std::ranges::find(whole_styles, style) != std::end(whole_styles)));
  }
}

TEST_CASE("tokenizer: long pieces take time as their length") {
  const auto tokenizer = vernier::open_tokenizer(oracles + "gpt2");
  std::string text;
  while (text.size() < 2'000'000) text += "abab";
  const auto ids = tokenizer->encode(text);
  CHECK(tokenizer->decode(ids) == text);
}

TEST_CASE("tokenizer: several threads at once get the same ids") {
  const auto tokenizer = vernier::open_tokenizer(oracles + "llama2");
  std::mt19937 random(29);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(random_text(random, 30));
  std::vector<Ids> expected;
  for (const auto& text : texts) expected.push_back(tokenizer->encode(text));
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (std::size_t j = 0; j < texts.size(); ++j) wrong += tokenizer->encode(texts[j]) == expected[j] ? 0 : 1;
    });
  }
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("tokenizer: tokens by name, the end of a text, and what the folder adds") {
  struct Case {
    const char* style;
    std::int64_t vocabulary;
    const char* token;
    std::optional<TokenId> id, end;
  };
  const Case cases[] = {{"gpt2", 420, "<|endoftext|>", 0, 0},
                        {"gpt2", 420, "no such token", std::nullopt, 0},
                        {"gpt2_prefix", 334, "<mask>", 330, 1},
                        {"llama3", 404, "<|end|>", 403, 402},
                        {"llama2", 483, "<0xE4>", 231, 2}};
  for (const auto& [style, vocabulary, token, id, end] : cases) {
    CAPTURE(style);
    const auto tokenizer = vernier::open_tokenizer(oracles + style);
    CHECK(tokenizer->vocabulary() == vocabulary);
    CHECK(tokenizer->id(token) == id);
    CHECK(tokenizer->end_of_text() == end);
  }
  const auto llama = vernier::open_tokenizer(oracles + "llama2");
  const auto with = llama->encode("a"), without = llama->encode("a", false);
  CHECK(with.size() == without.size() + 1);
  CHECK(with.front() == 1);
}

TEST_CASE("tokenizer: vocab.json and merges.txt alone give the same as tokenizer.json") {
  const auto files = vernier::open_tokenizer(oracles + "gpt2_files"), json = vernier::open_tokenizer(oracles + "gpt2");
  for (const auto& text : read_json(oracles + "texts.json").get<std::vector<std::string>>()) {
    CAPTURE(text);
    CHECK(files->encode(text) == json->encode(text));
  }
  CHECK(files->end_of_text() == 0);
}

TEST_CASE("tokenizer: what is not a text, and ids that are none") {
  const auto tokenizer = vernier::open_tokenizer(oracles + "gpt2");
  CHECK(thrown_by([&] { tokenizer->encode("abc\xFF"); }) == configuration("the text to encode is not UTF-8 at byte 3"));
  const auto ids = tokenizer->encode("中");
  REQUIRE(ids.size() > 1);
  CHECK(tokenizer->decode({{ids.front()}}) == "\xEF\xBF\xBD");
  CHECK(tokenizer->decode({{-1, 420, 1 << 30}}).empty());
}

}  // namespace tokenizer_test
