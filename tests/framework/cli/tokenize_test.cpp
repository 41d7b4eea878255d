// `vernier tokenize`: what it writes is what the tokenizer gives of the whole texts, and mistakes end in one line.
#include <doctest/doctest.h>
#include <vernier/text/token_data.h>
#include <vernier/text/tokenizer.h>

#include <cstring>
#include <filesystem>

#include "program.h"
#include "thrown.h"

namespace tokenize_test {

using Words = std::vector<std::string>;
using Ids = std::vector<vernier::TokenId>;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

struct Ended {
  int status;
  std::string out, err;
};

Ended tokenize(Words words, const TemporaryFolder& folder) {
  words.insert(words.begin(), "tokenize");
  Program program(std::move(words), folder.path());
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

Ids tokens_in(const std::string& path, std::size_t width = 2) {
  const auto bytes = read_text(path);
  Ids ids;
  for (std::size_t at = 0; at + width <= bytes.size(); at += width) {
    std::uint32_t id = 0;
    std::memcpy(&id, bytes.data() + at, width);
    ids.push_back(static_cast<vernier::TokenId>(id));
  }
  return ids;
}

// The ids of each text and the token behind it.
Ids expected(const std::string& style, const Words& texts, bool special = false) {
  const auto tokenizer = vernier::open_tokenizer(oracles + style);
  Ids all;
  for (const auto& text : texts) {
    const auto ids = tokenizer->encode(text, special);
    all.insert(all.end(), ids.begin(), ids.end());
    all.push_back(*tokenizer->end_of_text());
  }
  return all;
}

// Three megabytes, so that they are read in several parts.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) {
    text += "The model learns a language from texts, don't it? " + std::to_string(i * 7919) + "\n漢字 かな  <s> x\n";
  }
  return text;
}

}  // namespace

TEST_CASE("tokenize: files that gzip has packed are those that it packed") {
  const TemporaryFolder folder;
  const auto packed = std::string(VERNIER_SOURCE_DIR) + "/tests/sdk/text/language/members.jsonl.gz";
  const auto ended = tokenize({packed, "--tokenizer", oracles + "gpt2", "--output", folder / "a.bin"}, folder);
  CHECK_MESSAGE(ended.status == 0, ended.err);
  CHECK(tokens_in(folder / "a.bin") == expected("gpt2", {"one", "two", "three"}));
  const auto bytes = read_text(packed);
  folder.write("b.jsonl.gz", bytes.substr(0, bytes.size() - 9));
  const auto torn =
      tokenize({folder / "b.jsonl.gz", "--tokenizer", oracles + "gpt2", "--output", folder / "b.bin"}, folder);
  CHECK(torn.status == 2);
  CHECK(says(torn.err, "is a damaged or unfinished gzip file"));
}

TEST_CASE("tokenize: files of text become tokens, whatever their length and the number of threads") {
  const TemporaryFolder folder;
  const auto text = long_text();
  folder.write("a.txt", text);
  folder.write("b.txt", "short");
  folder.write("empty.txt", "");
  for (const std::string style : {"gpt2", "llama2", "llama2_metaspace", "qwen2"}) {
    CAPTURE(style);
    for (const std::string threads : {"1", "3"}) {
      const auto [status, out, err] = tokenize({"a.txt", "empty.txt", "b.txt", "--tokenizer", oracles + style,
                                                "--output", "tokens.bin", "--force", "--threads", threads},
                                               folder);
      REQUIRE_MESSAGE(status == 0, err);
      const auto note = read_text(folder / "tokens.bin.json");
      CHECK(note.find("\"type\": \"uint16\"") != std::string::npos);
      CHECK(note.find(vernier::open_tokenizer(oracles + style)->checksum()) != std::string::npos);
      const auto ids = tokens_in(folder / "tokens.bin");
      CHECK(ids == expected(style, {text, "short"}));
      CHECK(says(out, std::to_string(ids.size()) + " tokens, uint16, of 2 texts"));
    }
  }
  CHECK(!has_partial(folder.path()));
  const auto dataset = vernier::token_dataset(folder / "tokens.bin", {.length = 8, .vocabulary = 420});
  CHECK(dataset->size() > 1000);
}

TEST_CASE("tokenize: each line of JSON Lines is a text") {
  const TemporaryFolder folder;
  folder.write(
      "a.jsonl",
      "\xEF\xBB\xBF{\"text\": \"one\\u00e9\", \"body\": \"x\"}\n\n{\"text\": \"two <s> three\", \"body\": \"y z\"}");
  const Words rest = {"--tokenizer", oracles + "llama2", "--output", "tokens.bin", "--force"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), "a.jsonl");
    words.insert(words.end(), rest.begin(), rest.end());
    const auto ended = tokenize(words, folder);
    REQUIRE_MESSAGE(ended.status == 0, ended.err);
    return tokens_in(folder / "tokens.bin");
  };
  CHECK(with({}) == expected("llama2", {"oneé", "two <s> three"}));
  CHECK(with({"--field", "body"}) == expected("llama2", {"x", "y z"}));
  CHECK(with({"--special"}) == expected("llama2", {"oneé", "two <s> three"}, true));
  const auto tokenizer = vernier::open_tokenizer(oracles + "llama2");
  auto plain = tokenizer->encode_plain("oneé");
  const auto second = tokenizer->encode_plain("two <s> three");
  plain.insert(plain.end(), second.begin(), second.end());
  CHECK(with({"--plain", "--end", "none"}) == plain);
}

TEST_CASE("tokenize: trains the tokenizer that the package trains") {
  const TemporaryFolder folder;
  const auto [status, out, err] = tokenize({oracles + "corpus.txt", "--train", "--vocabulary", "400", "--tokenizer",
                                            "made", "--output", "tokens.bin", "--threads", "2"},
                                           folder);
  REQUIRE_MESSAGE(status == 0, err);
  CHECK(says(out, "trained made: 400 tokens, 143 merges"));
  for (const auto* name : {"vocab.json", "merges.txt"}) {
    CHECK(read_text(folder / ("made/" + std::string(name))) == read_text(oracles + "trained/" + name));
  }
  const auto tokenizer = vernier::open_tokenizer(folder / "made");
  CHECK(tokenizer->end_of_text() == 0);
  auto ids = tokens_in(folder / "tokens.bin");
  REQUIRE(ids.back() == 0);
  ids.pop_back();
  CHECK(tokenizer->decode(ids) == read_text(oracles + "corpus.txt"));
}

TEST_CASE("tokenize: mistakes end in one line and leave no file") {
  const std::string gpt2 = oracles + "gpt2";
  struct Case {
    Words words;
    std::string message;
  };
  const Case cases[] = {
      {{"--tokenizer", gpt2, "--output", "x"}, "name the files to read; see vernier tokenize --help"},
      {{"a.txt", "--output", "x"}, "name the tokenizer's folder with --tokenizer"},
      {{"a.txt", "--tokenizer", gpt2}, "name the file to write with --output"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "x", "--threads", "0"}, "--threads is 0, and must be from 1 to 1024"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "x", "--invalid", "drop"},
       "--invalid is replace or refuse, not 'drop'"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "x", "--end", "<no>"}, "'" + gpt2 + "' has no token '<no>'"},
      {{"none.txt", "--tokenizer", gpt2, "--output", "x"}, "'none.txt'"},
      {{"empty.txt", "--tokenizer", gpt2, "--output", "x"}, "the files have no text"},
      {{"bad.txt", "--tokenizer", gpt2, "--output", "x"},
       "'bad.txt' is not UTF-8 at byte 1500003; mend it, or give --invalid replace"},
      {{"bad.jsonl", "--tokenizer", gpt2, "--output", "x"}, "'bad.jsonl' line 2 is not JSON"},
      {{"a.jsonl", "--tokenizer", gpt2, "--output", "x", "--field", "body"},
       "'a.jsonl' line 1: the field 'body' is missing or no text; name another with --field"},
      {{"a.txt", "--train", "--vocabulary", "10", "--tokenizer", "made"}, "a vocabulary of 10 cannot be trained"},
      {{"empty.txt", "--train", "--tokenizer", "made"}, "the files have no text to train on"},
      {{"a.txt", "--train", "--tokenizer", "made", "--special-token", ""}, "--special-token '' is empty; leave it out"},
      {{"a.txt", "--train", "--tokenizer", "made", "--special-token", "<a>", "--special-token", "<a>"},
       "--special-token '<a>' is given twice; give it once"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "x", "--special-token", "<a>"},
       "--special-token is for --train; add --train, or leave it out"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "x", "--vocabulary", "300"},
       "--vocabulary is for --train; add --train, or leave it out"},
      {{"a.txt", "--tokenizer", gpt2, "--output", "none/x"}, "none/x: there is no folder none"},
  };
  const TemporaryFolder folder;
  folder.write("a.txt", "text");
  folder.write("empty.txt", "");
  folder.write("a.jsonl", "{\"text\": \"a\"}\n");
  folder.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  std::string words;
  while (words.size() < 1'500'003) words += "ab ";
  folder.write("bad.txt", words + "\xFF more");
  for (const auto& [given, message] : cases) {
    CAPTURE(message);
    const auto [status, out, err] = tokenize(given, folder);
    CHECK(status == 2);
    CHECK_MESSAGE(err.starts_with("vernier: " + message), err);
    CHECK(std::ranges::count(err, '\n') == 1);
    CHECK(!std::filesystem::exists(folder / "x"));
    CHECK(!has_partial(folder.path()));
  }
}

TEST_CASE("tokenize: bytes that are not UTF-8 are replaced if that is asked for") {
  const TemporaryFolder folder;
  folder.write("bad.txt", "a\xFF b\xE4\xBD");
  const auto ended =
      tokenize({"bad.txt", "--tokenizer", oracles + "gpt2", "--output", "x", "--invalid", "replace"}, folder);
  REQUIRE_MESSAGE(ended.status == 0, ended.err);
  CHECK(tokens_in(folder / "x") == expected("gpt2", {"a\xEF\xBF\xBD b\xEF\xBF\xBD"}));
}

}  // namespace tokenize_test
