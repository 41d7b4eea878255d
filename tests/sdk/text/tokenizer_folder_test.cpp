// Folders that are damaged, or ask for what Vernier does not have, end in one line.
#include <doctest/doctest.h>
#include <vernier/text/tokenizer.h>

#include <nlohmann/json.hpp>
#include <span>

#include "temporary_folder.h"
#include "thrown.h"

namespace tokenizer_folder_test {

using Json = nlohmann::json;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

struct Change {
  const char* style;
  const char* pointer;  // to the value in tokenizer.json that is replaced
  Json value;           // discarded: the value is taken away
  const char* message;  // without the path
};

const Json gone = Json::value_t::discarded;

Thrown opened(const TemporaryFolder& folder) {
  return thrown_by([&] { vernier::open_tokenizer(folder.path()); });
}

Thrown changed(const Change& change) {
  auto json = Json::parse(read_text(oracles + change.style + "/tokenizer.json"));
  const Json::json_pointer place(change.pointer);
  if (change.value.is_discarded()) {
    json[place.parent_pointer()].erase(place.back());
  } else {
    json[place] = change.value;
  }
  const TemporaryFolder folder;
  const auto path = folder.write("tokenizer.json", json.dump());
  auto thrown = opened(folder);
  if (const auto at = thrown.text.find(path); at == 1) thrown.text.erase(0, path.size() + 4);
  return thrown;
}

void check_changes(std::span<const Change> changes) {
  for (const auto& change : changes) {
    CAPTURE(std::string(change.pointer));
    const auto thrown = changed(change);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.starts_with(change.message), thrown.text);
    CHECK(thrown.text.find('\n') == std::string::npos);
  }
}

}  // namespace

TEST_CASE("tokenizer folder: each damage of the model and its tokens has its line") {
  const Change changes[] = {
      {"gpt2", "/model", gone, "`model` is not a JSON object"},
      {"gpt2", "/model/type", "Other", "`model.type` is 'Other'; Vernier has BPE, WordPiece, WordLevel and Unigram"},
      {"bert", "/model/unk_token", Json(nullptr), "`model` has no `unk_token` for words that tokens do not cover"},
      {"bert", "/model/unk_token", "none", "`model.unk_token` is not in the vocabulary"},
      {"bert", "/model/new_thing", 1, "`model` has the member 'new_thing', which Vernier does not know"},
      {"t5", "/model/unk_id", Json(nullptr), "`model` has no `unk_id` for characters that are not tokens"},
      {"t5", "/model/unk_id", 1000, "`model.unk_id` is not the id of a token"},
      {"t5", "/model/vocab", Json::array(), "`model.vocab` has not between 1 and 16777216 tokens"},
      {"t5", "/model/vocab/5/0", "</s>", "`model.vocab[5]` is the token '</s>', which has the id 2 already"},
      {"t5", "/model/vocab/5/1", "high", "`model.vocab[5][1]` is not a number"},
      {"unigram_bytes", "/model/vocab/70/0", "other", "`model.vocab` lacks the byte <0x43>"},
      {"gpt2", "/model/dropout", 0.1, "`model.dropout` drops merges at random; set it to null"},
      {"gpt2", "/model/continuing_subword_prefix", "##",
       "`model.continuing_subword_prefix` is not empty, and Vernier does not have it"},
      {"gpt2", "/model/end_of_word_suffix", "</w>", "`model.vocab` lacks the byte 0, 'Ā</w>'; all 256 are needed"},
      {"gpt2", "/model/vocab", Json::object(), "`model.vocab` is empty"},
      {"gpt2", "/model/vocab", Json::array(), "`model.vocab` is not a JSON object of tokens and their ids"},
      {"gpt2", "/model/vocab/a", -1, "`model.vocab` gives the token 'a' no id from 0 to 16777215"},
      {"gpt2", "/model/vocab/a", 1 << 24, "`model.vocab` gives the token 'a' no id from 0 to 16777215"},
      {"gpt2", "/model/vocab/a", gone, "`model.merges["},
      {"gpt2", "/model/vocab/\u010A", gone, "`model.vocab` lacks the byte 10, '\u010A'; all 256 are needed"},
      {"gpt2", "/model/merges/3", Json::array({"a", "zzz"}),
       "`model.merges[3]` has the token 'zzz', which the vocabulary lacks"},
      {"gpt2", "/model/merges/3", "a b", "`model.merges[3]` is not an array"},
      {"gpt2", "/model/merges", Json::array({"a b c"}),
       "`model.merges[0]` is not two tokens with a space between them"},
      {"gpt2", "/model/merges", Json::array({"ab"}), "`model.merges[0]` is not two tokens with a space between them"},
      {"gpt2", "/model/unk_token", "nothing", "`model.unk_token` is not in the vocabulary"},
      {"gpt2", "/model/new_thing", 1, "`model` has the member 'new_thing', which Vernier does not know"},
      {"gpt2", "/new_thing", 1, "it has the member 'new_thing', which Vernier does not know"},
      {"gpt2", "/added_tokens/0/id", 5, "`added_tokens[0]` has the id 5, and the same token in"},
      {"gpt2", "/added_tokens/0/content", "", "`added_tokens[0]` is an empty token"},
      {"gpt2", "/added_tokens/0/content", "new", "`added_tokens[0]` has the id of the token '<|endoftext|>'"},
      {"gpt2", "/added_tokens/0/special", 1, "`added_tokens[0].special` is neither true nor false"},
  };
  check_changes(changes);
}

TEST_CASE("tokenizer folder: each style that Vernier does not have has its line") {
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto of_type = [](const char* type) { return Json::object({{"type", type}}); };
  const Change changes[] = {
      {"gpt2", "/normalizer", of_type("ByteLevel"), "`normalizer` is of the type 'ByteLevel'; Vernier has NFC, NFD,"},
      {"gpt2", "/normalizer", Json::object({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}),
       "`normalizer.pattern.String` is empty"},
      {"t5", "/normalizer/precompiled_charsmap", "abc",
       "`normalizer.precompiled_charsmap` is not base64: its length is not a multiple of 4"},
      {"t5", "/normalizer/precompiled_charsmap",
       "ab?=", "`normalizer.precompiled_charsmap` is not base64: it has another character"},
      {"t5", "/normalizer/precompiled_charsmap", "AAAA",
       "`normalizer.precompiled_charsmap` is too short for a map of characters"},
      {"t5", "/normalizer/precompiled_charsmap", "EAAAAAAA",
       "`normalizer.precompiled_charsmap` says that its table has 16 bytes, and 2 follow"},
      {"gpt2", "/decoder", of_type("CTC"), "`decoder` is of the type 'CTC'; Vernier has ByteLevel, Replace,"},
      {"gpt2", "/pre_tokenizer", of_type("UnicodeScripts"), "`pre_tokenizer` is of the type 'UnicodeScripts'; Vernier"},
      {"gpt2", "/pre_tokenizer",
       Json::object({{"type", "Sequence"}, {"pretokenizers", {byte_level, of_type("Whitespace")}}}),
       "`pre_tokenizer.pretokenizers[1]` stands behind ByteLevel, which must be the last one"},
      {"gpt2", "/pre_tokenizer", Json(nullptr),
       "`model` has neither `byte_fallback` nor `unk_token` for other characters"},
      {"bert", "/pre_tokenizer", byte_level,
       "`pre_tokenizer` has ByteLevel, which Vernier has with a model of the type 'BPE' only"},
      {"t5", "/pre_tokenizer/prepend_scheme", "first",
       "`pre_tokenizer.prepend_scheme` is 'first' behind a step that may remove the beginning of a text"},
      {"gpt2", "/post_processor", Json::object({{"type", "Other"}}),
       "`post_processor` is of the type 'Other'; Vernier"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Taken",
       "`pre_tokenizer.pretokenizers[0].behavior` is 'Taken', and must be one of `tokenizers`, such as Isolated"},
      {"llama3", "/post_processor/processors/1/special_tokens", Json::object(),
       "`post_processor.processors[1].single[0]` is the token '<|endoftext|>', which `special_tokens` lacks"},
      {"llama2", "/model/vocab/<0x41>", gone, "`model.vocab` lacks the byte <0x41>"},
      {"llama2", "/decoder/decoders/3/content", "ab", "`decoder.decoders[3].content` is not one character"},
      {"llama2", "/decoder/decoders/3/start", -1, "`decoder.decoders[3].start` is negative"},
      {"gpt2", "/decoder", Json::object({{"type", "BPEDecoder"}, {"suffix", ""}}), "`decoder.suffix` is empty"},
      {"llama2_metaspace", "/pre_tokenizer/prepend_scheme", "last",
       "`pre_tokenizer.prepend_scheme` is not always, first or never"},
      {"unknown_apart", "/model/unk_token", Json(nullptr),
       "`model` has neither `byte_fallback` nor `unk_token` for other characters"},
  };
  check_changes(changes);
}

TEST_CASE("tokenizer folder: an expression that two engines read in different ways has its line") {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\bword)", "has '\\b', which Vernier does not have"},
      {R"(\h+)", "has '\\h', which"},
      {R"(\p{N}{1,3}+)", "has '}+', which"},
      {R"(a{2}?)", "has '}?', which"},
      {R"(a{,3})", "has '{,', which"},
      {R"((?i:a|(b\p{Lu})))", "has the property 'Lu' behind (?i, which"},
      {R"((?m:a.b))", "has '(?m', which"},
      {R"(a(?i)b|c)", "has '(?i', which"},
      {R"(\xE4)", "has bytes by '\\x', which"},
      {R"([+-\p{L}])", "has a range that ends in a class of"},
      {R"(\p{Greek})", "has the property 'Greek', which"},
      {R"(\pL)", "has a property without braces, which"},
      {R"([a[bc]])", "has a class in a class, which"},
      {R"([a-z&&[^b]])", "has '&&' in a class, which"},
      {R"([]a])", "has a class that begins with ']', which"},
      {R"([ab)", "has a class without end, which"},
      {R"((?~ab))", "has '(?~', which"},
      {R"((ab)", "cannot be read: missing closing parenthesis"}};
  for (const auto& [regex, message] : cases) {
    const Change change{"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", regex,
                        "`pre_tokenizer.pretokenizers[0].pattern.Regex` is a regular expression that "};
    const auto thrown = changed(change);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.starts_with(change.message + std::string(message)), thrown.text);
  }
}

TEST_CASE("tokenizer folder: files that are missing or no JSON") {
  struct Case {
    std::vector<std::pair<std::string, std::string>> files;
    std::string message;  // FOLDER is the path
  };
  const auto vocab = read_text(oracles + "gpt2_files/vocab.json");
  const auto gpt2 = read_text(oracles + "gpt2/tokenizer.json"), bert = read_text(oracles + "bert/tokenizer.json");
  auto lower = Json::parse(gpt2);
  lower["normalizer"] = {{"type", "Lowercase"}};
  const auto sentence_piece = read_text(oracles + "sp_bpe/tokenizer.model");
  const Case cases[] = {
      {{}, "'FOLDER' has no tokenizer: neither tokenizer.json, vocab.json and merges.txt, tokenizer.model, tekken"},
      {{{"tokenizer.model", "\x0A"}}, "'FOLDER/tokenizer.model': it ends in the middle of a field"},
      {{{"tokenizer.model", "\x0B"}}, "'FOLDER/tokenizer.model': it has a field of an unknown kind"},
      {{{"tokenizer.model", ""}}, "'FOLDER/tokenizer.model': it has not between 1 and 16777216 tokens"},
      {{{"tokenizer.model",
         {"\x0A\x08\x0A\x01"
          "a\x15\0\0\xC0\x7F",
          10}}},
       "'FOLDER/tokenizer.model': it has a score that is not finite"},
      {{{"tokenizer.model",
         "\x0A\x05\x0A\x01"
         "a\x08\x07"}},
       "'FOLDER/tokenizer.model': it has a token that is empty"},
      {{{"tokenizer.model", "IQ== 0\nIg== 1\n"}},
       "'FOLDER/tokenizer.model': it lacks the expression that cuts a text, and is none of the vocabularies"},
      {{{"own.tiktoken", "IQ== 0\nIg==\n"}}, "'FOLDER/own.tiktoken': it has in line 2 no token in base64 and its rank"},
      {{{"a.tiktoken", ""}, {"b.tiktoken", ""}}, "'FOLDER' has two files of tiktoken; keep one of them"},
      {{{"tekken.json", "{}"}}, "'FOLDER/tekken.json': `config` is not a JSON object"},
      {{{"vocab.txt", "[PAD]\n[UNK]\n"}}, "'FOLDER/vocab.txt' lacks the token '[SEP]'"},
      {{{"vocab.txt", "a\na\n"}}, "'FOLDER/vocab.txt': line 2 is a token that is there already"},
      {{{"tokenizer.json", bert}, {"tokenizer_config.json", "{\"do_lower_case\": false}"}},
       "'FOLDER/tokenizer_config.json': `do_lower_case` is not what the normalizer of the tokenizer does"},
      {{{"tokenizer.json", lower.dump()}, {"tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}"}},
       "'FOLDER/tokenizer_config.json': `tokenizer_class` is 'Qwen2Tokenizer', whose normalizer is NFC in"},
      {{{"tokenizer.json", lower.dump()}, {"tokenizer_config.json", "{\"tokenizer_class\": \"GPT2TokenizerFast\"}"}},
       "'FOLDER/tokenizer_config.json': `tokenizer_class` is 'GPT2TokenizerFast', which has no normalizer in"},
      {{{"tokenizer.json", gpt2}, {"tokenizer_config.json", "{\"do_lower_case\": true}"}},
       "'FOLDER/tokenizer_config.json': `do_lower_case` is not what the normalizer of the tokenizer does"},
      {{{"tokenizer.model", sentence_piece}, {"tokenizer_config.json", "{\"tokenizer_class\": \"T5Tokenizer\"}"}},
       "'FOLDER/tokenizer_config.json': `tokenizer_class` is 'T5Tokenizer'; Vernier has LlamaTokenizer and Gemma"},
      {{{"tokenizer.json", "{"}}, "'FOLDER/tokenizer.json': the tokenizer is not JSON"},
      {{{"tokenizer.json", "[]"}}, "'FOLDER/tokenizer.json': it is not a JSON object"},
      {{{"tokenizer.json", "{\"model\": \"\xFF\"}"}}, "'FOLDER/tokenizer.json': the tokenizer is not JSON"},
      {{{"vocab.json", vocab}}, "'FOLDER/merges.txt'"},
      {{{"vocab.json", "{}"}, {"merges.txt", ""}}, "'FOLDER/vocab.json': it is empty"},
      {{{"vocab.json", "{\"a\": 0}"}, {"merges.txt", ""}}, "'FOLDER/vocab.json': it lacks the byte 0, 'Ā'"},
      {{{"vocab.json", vocab}, {"merges.txt", "#version: 0.2\na b c\n"}},
       "'FOLDER/merges.txt': line 2 is not two tokens with a space between them"},
      {{{"vocab.json", vocab}, {"merges.txt", "a zzz\n"}},
       "'FOLDER/merges.txt': `line 1` has the token 'zzz', which the vocabulary lacks"},
      {{{"tokenizer.json", gpt2}, {"tokenizer_config.json", "{\"add_prefix_space\": true}"}},
       "'FOLDER/tokenizer_config.json': `add_prefix_space` differs from `pre_tokenizer.add_prefix_space` of tokenizer"},
      {{{"vocab.json", vocab}, {"merges.txt", ""}, {"tokenizer_config.json", "{\"tokenizer_class\": \"XTokenizer\"}"}},
       "'FOLDER/tokenizer_config.json': `tokenizer_class` is 'XTokenizer'; Vernier has GPT2Tokenizer and "
       "Qwen2Tokenizer"},
      {{{"tokenizer.json", gpt2}, {"tokenizer_config.json", "{\"eos_token\": \"</s>\"}"}},
       "'FOLDER/tokenizer_config.json': `eos_token` is not in the vocabulary"},
  };
  for (const auto& [files, message] : cases) {
    CAPTURE(message);
    const TemporaryFolder folder;
    for (const auto& [name, text] : files) folder.write(name, text);
    auto expected = message;
    expected.replace(expected.find("FOLDER"), 6, folder.path().string());
    const auto thrown = opened(folder);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.starts_with(expected), thrown.text);
  }
}

TEST_CASE("tokenizer folder: steps that make ever more of a text end in one line") {
  Json steps = Json::array();
  for (int i = 0; i < 60; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  const std::string reason = "the tokenizer makes more than 64 times as many bytes of a text";
  for (const bool decodes : {false, true}) {
    auto json = Json::parse(read_text(oracles + "gpt2/tokenizer.json"));
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", decodes ? Json::array() : steps}};
    if (decodes) json["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
    const TemporaryFolder folder;
    folder.write("tokenizer.json", json.dump());
    const auto thrown = thrown_by([&] {
      const auto tokenizer = vernier::open_tokenizer(folder.path());  // opening applies the decoder to each token
      const auto ids = tokenizer->encode("banana");
      tokenizer->decode(ids);
    });
    CHECK_MESSAGE(thrown.text.starts_with(reason), thrown.text);
  }
}

TEST_CASE("tokenizer folder: a token with a character that stands for no byte never matches bytes") {
  auto json = Json::parse(read_text(oracles + "gpt2/tokenizer.json"));
  json["model"]["ignore_merges"] = true;
  const TemporaryFolder folder;
  const auto ids = [&] {
    folder.write("tokenizer.json", json.dump());
    return vernier::open_tokenizer(folder.path())->encode("\u4e2d");
  };
  const auto before = ids();
  json["model"]["vocab"]["\u4e2d"] = 100'000;  // the tokens of "\u4e2d" are three others
  CHECK(ids() == before);
}

TEST_CASE("tokenizer folder: tokenizer_config.json names the token that ends a text") {
  const auto gpt2 = read_text(oracles + "gpt2/tokenizer.json");
  for (const auto* config : {R"({"eos_token": "a"})", R"({"eos_token": {"content": "a"}})"}) {
    const TemporaryFolder folder;
    folder.write("tokenizer.json", gpt2);
    folder.write("tokenizer_config.json", config);
    const auto tokenizer = vernier::open_tokenizer(folder.path());
    CHECK(tokenizer->end_of_text() == tokenizer->id("a"));
  }
}

TEST_CASE("tokenizer folder: tokens with names of the model are special ones") {
  const auto gpt2 = read_text(oracles + "gpt2/tokenizer.json");
  for (const auto* config : {R"({"image_token": "a"})", R"({"extra_special_tokens": {"image": "a"}})",
                             R"({"extra_special_tokens": ["a"]})", R"({"additional_special_tokens": ["a"]})"}) {
    CAPTURE(std::string(config));
    const TemporaryFolder folder;
    folder.write("tokenizer.json", gpt2);
    folder.write("tokenizer_config.json", config);
    const auto tokenizer = vernier::open_tokenizer(folder.path());
    CHECK(tokenizer->decode(tokenizer->encode("banana")) == "bnn");
  }
}

TEST_CASE("tokenizer folder: vocab.json and merges.txt are used as their class has it") {
  const TemporaryFolder folder;
  for (const char* name : {"vocab.json", "merges.txt"}) folder.write(name, read_text(oracles + "gpt2_files/" + name));
  const auto ids_with = [&](const char* name) {
    folder.write("tokenizer_config.json", Json{{"tokenizer_class", name}}.dump());
    return vernier::open_tokenizer(folder.path())->encode("DON'T e\u0301 12");
  };
  const auto gpt2 = vernier::open_tokenizer(oracles + "gpt2");
  CHECK(ids_with("GPT2Tokenizer") == gpt2->encode("DON'T e\u0301 12"));
  CHECK(ids_with("Qwen2Tokenizer") == ids_with("Qwen2TokenizerFast"));
  // NFC, and no run of digits: what the rule of GPT-2 makes of the pieces, one by one.
  std::vector<vernier::TokenId> expected;
  for (const char* piece : {"DON", "'T", " \u00e9", " ", "1", "2"}) {
    const auto ids = gpt2->encode(piece);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  CHECK(ids_with("Qwen2Tokenizer") == expected);
}

TEST_CASE("tokenizer folder: the files beside tokenizer.model and vocab.txt count") {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", read_text(oracles + "sp_bpe/tokenizer.model"));
  const auto plain = vernier::open_tokenizer(folder.path())->encode("the model <s>");
  folder.write(
      "tokenizer_config.json",
      Json{{"tokenizer_class", "LlamaTokenizer"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}
          .dump());
  const auto named = vernier::open_tokenizer(folder.path());
  const auto ids = named->encode("the model <s>");
  CHECK(ids.front() == 1);  // by default of the class
  CHECK(ids.back() == 1);   // written in the text
  CHECK(plain.back() != 1);
  CHECK(named->end_of_text() == 2);
  CHECK(named->decode(ids, true).ends_with("<s>"));

  const TemporaryFolder bert;
  bert.write("vocab.txt", read_text(oracles + "bert_vocab/vocab.txt"));
  bert.write("tokenizer_config.json", R"({"do_lower_case": false, "tokenizer_class": "BertTokenizer"})");
  const auto cased = vernier::open_tokenizer(bert.path());
  CHECK(cased->decode(cased->encode("the Model")) == "the");  // no token for M
}

}  // namespace tokenizer_folder_test
