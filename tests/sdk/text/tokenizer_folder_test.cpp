// Folders that are damaged, or ask for what Vernier does not have, end in one line.
#include <doctest/doctest.h>
#include <vernier/tokenizer.h>

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
      {"gpt2", "/model/type", "Unigram", "`model.type` is 'Unigram'; Vernier has tokenizers of the type 'BPE' only"},
      {"gpt2", "/model/dropout", 0.1, "`model.dropout` drops merges at random; set it to null"},
      {"gpt2", "/model/end_of_word_suffix", "</w>",
       "`model.end_of_word_suffix` is not empty, and Vernier does not have it"},
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
      {"gpt2", "/added_tokens/0/single_word", true, "`added_tokens[0]` has `single_word`, which Vernier does not have"},
      {"gpt2", "/added_tokens/0/content", "", "`added_tokens[0]` is an empty token"},
      {"gpt2", "/added_tokens/0/content", "new", "`added_tokens[0]` has the id of the token '<|endoftext|>'"},
      {"gpt2", "/added_tokens/0/special", 1, "`added_tokens[0].special` is neither true nor false"},
  };
  check_changes(changes);
}

TEST_CASE("tokenizer folder: each style that Vernier does not have has its line") {
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  const Change changes[] = {
      {"gpt2", "/normalizer", Json::object({{"type", "NFKC"}}),
       "`normalizer` is of the type 'NFKC' here; Vernier has NFC with ByteLevel"},
      {"gpt2", "/decoder", Json(nullptr), "`decoder` is missing; ByteLevel is needed"},
      {"gpt2", "/decoder/type", "Fuse", "`decoder` is of the type 'Fuse' here; Vernier has ByteLevel"},
      {"gpt2", "/pre_tokenizer", byte_level,
       "`pre_tokenizer` has `use_regex` false, and no Split before it cuts the text"},
      {"gpt2", "/pre_tokenizer", Json(nullptr),
       "it has the normalizer '' and the pre_tokenizer ''; Vernier has those of"
       " GPT-2, Llama 2, Llama 3 and Qwen 2"},
      {"gpt2", "/post_processor", Json::object({{"type", "BertProcessing"}}),
       "`post_processor` is of the type 'BertProcessing'; Vernier has ByteLevel, Sequence and TemplateProcessing"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+",
       "`pre_tokenizer.pretokenizers[0].pattern.Regex` is a regular expression that Vernier does not know; it has those"
       " of GPT-2, Llama 3, Qwen 2"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed",
       "`pre_tokenizer.pretokenizers[0].behavior` is 'Removed', and Vernier has 'Isolated' only"},
      {"llama3", "/post_processor/processors/1/special_tokens", Json::object(),
       "`post_processor.processors[1].single[0]` is the token '<|endoftext|>', which `special_tokens` lacks"},
      {"llama2", "/model/vocab/<0x41>", gone, "`model.vocab` lacks the byte <0x41>"},
      {"llama2", "/decoder/decoders/0/content", "_", "`decoder.decoders[0].content` is '_', and Vernier has ' ' only"},
      {"llama2", "/decoder/decoders/3/start", 2, "`decoder.decoders[3]` strips more than one space at the beginning"},
      {"llama2_metaspace", "/pre_tokenizer/prepend_scheme", "last",
       "`pre_tokenizer.prepend_scheme` is not always, first or never"},
      {"unknown_apart", "/model/unk_token", Json(nullptr),
       "`model` has neither `byte_fallback` nor `unk_token` for other characters"},
  };
  check_changes(changes);
}

TEST_CASE("tokenizer folder: files that are missing or no JSON") {
  struct Case {
    std::vector<std::pair<std::string, std::string>> files;
    std::string message;  // FOLDER is the path
  };
  const auto vocab = read_text(oracles + "gpt2_files/vocab.json");
  const auto gpt2 = read_text(oracles + "gpt2/tokenizer.json");
  const Case cases[] = {
      {{}, "'FOLDER' has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt"},
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

}  // namespace tokenizer_folder_test
