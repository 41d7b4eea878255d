// A trained language model is used without its data and the folders that it came from, and its export has all files.
#include <doctest/doctest.h>
#include <vernier/text/tokenizer.h>

#include <filesystem>

#include "learned_bytes.h"
#include "run_folder.h"
#include "thrown.h"

namespace whole_model_test {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string tokenizers = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

// A Llama that has learned "abc abc<|end|>" by heart, with a tokenizer of a folder of its own.
struct LearnedTexts : RunFolder {
  explicit LearnedTexts(const std::string& line = R"({"text": "abc abc<|end|> never never"})",
                        const std::string& added_tokens = "")
      : RunFolder(R"(
[run]
steps = 100
output = "out"
threads = 1
device = "cpu"
[task]
use = "llama"
folder = "bare"
tokenizer = "tok"
weights = "random"
data = ["d.jsonl"]
validation_share = 0.0
context = 48
batch_size = 4
[optimizer]
use = "adamw"
learning_rate = 1e-2
)") {
    fs::create_directories(at("tok"));
    fs::copy_file(tokenizers + "llama3/tokenizer.json", at("tok/tokenizer.json"));
    folder.write("bare/config.json",
                 R"({"model_type": "llama", "vocab_size": 406, "hidden_size": 32, "intermediate_size": 64,
                     "num_hidden_layers": 1, "num_attention_heads": 4, "tie_word_embeddings": true})");
    if (!added_tokens.empty()) folder.write("tok/added_tokens.json", added_tokens);
    std::string lines;
    for (int i = 0; i < 8; ++i) lines += line + "\n";
    folder.write("d.jsonl", lines);
    REQUIRE_MESSAGE(train({"--quiet"}) == 0, err);
  }
  void leave_all_behind() const {
    for (const char* name : {"bare", "tok", "d.jsonl"}) fs::remove_all(at(name));
  }
  std::string called(const Words& words, int status = 0) {
    CHECK_MESSAGE(call(words) == status, err);
    return out;
  }
  std::string generated(const std::string& model, const std::string& prompt, Words more = {}) {
    Words words = {"generate", model, "--prompt", prompt, "--temperature", "0", "--max-tokens", "12"};
    words.insert(words.end(), more.begin(), more.end());
    return called(words);
  }
};

}  // namespace

TEST_CASE("whole model: generate, export and evaluate work without data and folders") {
  LearnedTexts run;
  run.leave_all_behind();
  CHECK(run.generated("out", "abc").starts_with(" abc never never\n"));
  run.called({"export", "out", "--format", "huggingface", "--output", "model"});
  CHECK(read_text(run.at("model/tokenizer.json")) == read_text(tokenizers + "llama3/tokenizer.json"));
  CHECK(run.generated("model", "abc").starts_with(" abc never never\n"));
  fs::rename(run.at("model"), run.at("2024"));
  CHECK(run.generated("2024", "abc").starts_with(" abc never never\n"));
  run.folder.write("other.jsonl", "{\"text\": \"abc abc<|end|> never never\"}\n{\"text\": \"never abc\"}\n");
  CHECK(run.called({"evaluate", "out", "--set", "task.data=[\"other.jsonl\"]"}).find("perplexity") !=
        std::string::npos);
  CHECK(run.called({"evaluate", "out"}, 2).empty());
  CHECK(is_one_line(run.err));
}

TEST_CASE("whole model: generation_config.json ends completions and gives defaults") {
  LearnedTexts run;
  run.called({"export", "out", "--format", "huggingface", "--output", "model"});
  CHECK(run.generated("model", "abc abc") == " never never\n");
  run.folder.write("model/generation_config.json", R"({"eos_token_id": [402, 403]})");
  CHECK(run.generated("model", "abc abc") == "\n");
  run.folder.write("model/generation_config.json", R"({"eos_token_id": 5, "do_sample": false, "max_new_tokens": 2,
      "top_k": 50, "num_beams": 4, "use_cache": true, "length_penalty": 1.0, "early_stopping": "never",
      "min_new_tokens": 2, "typical_p": 0.5})");
  run.called({"generate", "model", "--prompt", "abc"});
  CHECK(run.err ==
        "vernier: by the model's generation_config.json: beams 4, early-stopping never, max-tokens 2, min-tokens 2\n"
        "vernier: of the model's generation_config.json, this is not applied: typical_p = 0.5\n");
  run.called({"generate", "model", "--prompt", "abc", "--temperature", "0.5"});
  CHECK(run.err.starts_with("vernier: by the model's generation_config.json: top-k 50, max-tokens 2, min-tokens 2\n"));
  run.called({"generate", "model", "--prompt", "abc", "--top-k", "5"}, 2);
  CHECK(run.err.find("num_beams of the model's generation_config.json, and --beams 1 does without") !=
        std::string::npos);
  run.folder.write("model/generation_config.json", R"({"do_sample": false, "max_time": 3.5, "renormalize_logits": true,
      "top_k": 50})");
  run.called({"generate", "model", "--prompt", "abc", "--top-p", "0.5"}, 2);
  CHECK_MESSAGE(run.err.find("--top-p is for draws, and the model's generation_config.json takes the likeliest tokens; "
                             "--temperature 1 draws") != std::string::npos,
                run.err);
  run.called({"generate", "model", "--prompt", "abc", "--top-p", "0.5", "--temperature", "1"});
  for (const char* ignored : {"max_time = 3.5", "renormalize_logits = true"}) {
    CHECK_MESSAGE(run.err.find(ignored) != std::string::npos, run.err);
  }
  run.folder.write("model/generation_config.json", R"({"temperature": "warm"})");
  run.called({"generate", "model", "--prompt", "abc"}, 2);
  CHECK(run.err.find("temperature is \"warm\", and must be a number from 0 to 1000") != std::string::npos);
  CHECK(is_one_line(run.err));
  run.folder.write("model/config.json", "{\"model_type\": \"llama\",\n}\n");
  run.called({"generate", "model", "--prompt", "abc"}, 2);
  CHECK(run.err.find("line 2, column 1") != std::string::npos);
  CHECK(is_one_line(run.err));
}

TEST_CASE("whole model: an answer ends where the messages of its chat ended") {
  LearnedTexts run(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "abc never"}]})",
                   R"({"<|im_start|>": 404, "<|im_end|>": 405})");
  const std::string question = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  CHECK(run.generated("out", question) == "abc never\n");
  CHECK(run.generated("out", "a", {"--chat"}) == "abc never\n");
  CHECK(run.generated("out", R"([{"role": "user", "content": "a"}])", {"--chat"}) == "abc never\n");
  run.called({"export", "out", "--format", "torchscript", "--output", "model.pt"});
  run.called({"export", "out", "--format", "huggingface", "--output", "model"});
  CHECK(nlohmann::json::parse(read_text(run.at("model/generation_config.json")))["eos_token_id"] ==
        nlohmann::json::array({405}));
  CHECK(run.generated("model", question) == "abc never\n");
  CHECK(run.generated("model", "a", {"--chat"}) == "abc never\n");
  fs::remove(run.at("model/chat_template.jinja"));
  run.called({"generate", "model", "--chat", "--prompt", "a"}, 2);
  CHECK(run.err.find("the model's folder has no template for chats") != std::string::npos);
  run.folder.write("tok/chat_template.jinja", "{{ '<|start_header_id|>' + messages[0].role }}");
  CHECK(run.train({"--quiet", "--set", "task.chat=chatml"}) == 2);
  CHECK_MESSAGE(run.err.find("has a chat template of its own; set chat = \"auto\"") != std::string::npos, run.err);
  CHECK(is_one_line(run.err));
  const std::string own =
      "{% for m in messages %}{{ '<|im_start|>' + m.role[0] + '<|im_start|>' + m.content }}"
      "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>a<|im_start|>{% endif %}";
  run.folder.write("tok/chat_template.jinja", "{% if %}");  // plain texts need no template
  CHECK(run.train({"--quiet", "--set", "run.output=none", "--set", "run.steps=1"}) == 2);
  CHECK_MESSAGE(run.err.find("the chat template, line 1") != std::string::npos, run.err);
  run.folder.write("texts.jsonl", "{\"text\": \"abc\"}\n");
  CHECK(run.train({"--quiet", "--set", "run.output=texts", "--set", "run.steps=1", "--set",
                   "task.data=[\"texts.jsonl\"]"}) == 0);
  run.folder.write("tok/chat_template.jinja", own);
  // The folder's template takes the place of a style.
  CHECK_MESSAGE(run.train({"--quiet", "--set", "run.output=own"}) == 0, run.err);
  CHECK(run.generated("own", "a", {"--chat"}) == "abc never\n");
  CHECK(run.train({"--set", "run.output=cut", "--set", "run.steps=1", "--set", "task.context=10"}) == 0);
  CHECK_MESSAGE(
      run.err.find("8 chats by the folder's template, 0 prompts; 8 are longer than context = 10, and lose what "
                   "they would learn behind it; answers end with <|im_end|>") != std::string::npos,
      run.err);
  run.called({"export", "own", "--format", "huggingface", "--output", "own-model"});
  CHECK(read_text(run.at("own-model/chat_template.jinja")) == own);
  CHECK(nlohmann::json::parse(read_text(run.at("own-model/generation_config.json")))["eos_token_id"] ==
        nlohmann::json::array({405}));
  CHECK(run.generated("own-model", "a", {"--chat"}) == "abc never\n");
}

TEST_CASE("whole model: a model over bytes generates without its text, and is evaluated on all of another") {
  learned_bytes::Learned run;
  const auto text = read_text(run.at("text.txt"));
  fs::remove(run.at("text.txt"));
  CHECK(run.call({"generate", "out", "--prompt", "abcdefg", "--temperature", "0", "--max-tokens", "5"}) == 0);
  CHECK(run.out == "hijab\n");
  CHECK(run.call({"export", "out", "--format", "safetensors", "--output", "out.safetensors"}) == 0);
  run.folder.write("other.txt", text.substr(0, 200));
  CHECK(run.call({"evaluate", "out", "--set", "task.data=[\"other.txt\"]"}) == 0);
  CHECK(run.out.find("bits_per_byte") != std::string::npos);
  CHECK(run.err.find("so all are held out") != std::string::npos);
  CHECK(run.call({"evaluate", "out"}) == 2);
  CHECK(is_one_line(run.err));
  run.folder.write("text.txt", text);
  CHECK(run.call({"evaluate", "out"}) == 0);
  for (const std::string more : {"", "more"}) {
    run.folder.write("text.txt", text + more);
    CHECK(run.call({"evaluate", "out", "--set", "task.validation=0.4"}) == 2);
    CHECK_MESSAGE(run.err.find("'text.txt': the model was trained on it") != std::string::npos, run.err);
  }
}

TEST_CASE("whole model: tokens of all files of a folder are found in texts") {
  const TemporaryFolder folder;
  const auto encoded = [&] { return vernier::open_tokenizer(folder.path())->encode("<|im_start|>abc<|im_end|>"); };
  using Ids = std::vector<vernier::TokenId>;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    fs::copy_file(tokenizers + "gpt2_files/" + name, folder / name);
  }
  // As transformers has them.
  folder.write("added_tokens.json", R"({"<|im_start|>": 420, "<|im_end|>": 421})");
  CHECK(encoded() == Ids{420, 65, 66, 67, 421});
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  CHECK(vernier::open_tokenizer(folder.path())->end_of_text() == 421);
  CHECK(vernier::open_tokenizer(folder.path())->decode(Ids{420, 65, 421}) == "<|im_start|>a");
  CHECK(vernier::open_tokenizer(folder.path())->is_added(420));
  CHECK(!vernier::open_tokenizer(folder.path())->is_added(65));
  fs::remove(folder / "added_tokens.json");
  fs::remove(folder / "special_tokens_map.json");
  folder.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<|im_start|>",
      "added_tokens_decoder": {"420": {"content": "<|im_start|>", "special": true},
                               "421": {"content": "<|im_end|>"}}})");
  CHECK(encoded() == Ids{420, 420, 65, 66, 67, 421});
  const auto config = read_text(folder / "tokenizer_config.json");
  // As in the package: a token whose white space the one before it has taken is there all the same.
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"420": {"content": "<a>", "special": true, "rstrip": true},
                                            "421": {"content": " b", "special": true},
                                            "422": {"content": " ", "special": true}}})");
  for (const auto& [text, ids] : std::vector<std::pair<std::string, Ids>>{
           {"<a> b", {420, 421}}, {"<a>b", {420, 66}}, {"<a>   b", {420, 422, 422, 421}}}) {
    CAPTURE(text);
    CHECK(vernier::open_tokenizer(folder.path())->encode(text) == ids);
  }
  folder.write("tokenizer_config.json", config);
  const auto deep = "{\"a\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  struct {
    const char *file, *text, *refused;
  } const cases[] = {
      {"added_tokens.json", R"({"<|x|>": 422})", "is not in added_tokens_decoder of tokenizer_config.json"},
      {"added_tokens.json", R"({"<|im_end|>": 422})", "`<|im_end|>` has the id 422, and the same token in"},
      {"added_tokens.json", R"({"<|im_end|>": "x"})", "is not a whole number"},
      {"added_tokens.json", "{\"a\": 1,}", "is not JSON at line 1, column 9"},
      {"added_tokens.json", deep.c_str(), "the list of added tokens is nested too deeply"},
      {"tokenizer_config.json", R"({"pad_token": "[PAD]"})", "`pad_token` is not in the vocabulary"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"420": {"content": "a b"}, "423": {"content": "c d"}}})",
       "has the id 423, and the next free one is 421"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"5": {"content": "<|y|>"}}})", "has the id of the token"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<|y|>"}}})", "is not an id"},
      {"tokenizer_config.json", R"({"do_lower_case": true})", "`do_lower_case` is not what the normalizer"},
      {"tokenizer_config.json", R"({"split_special_tokens": true})", "is true, and Vernier does not have it"},
      {"tokenizer_config.json", R"({"add_bos_token": true})", "is true, and no file names the token bos_token"},
  };
  for (const auto& [file, text, refused] : cases) {
    const auto before = read_text(folder / file);
    folder.write(file, text);
    const auto thrown = thrown_by(encoded);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.find(refused) != std::string::npos, thrown.text);
    fs::remove(folder / file);
    if (!before.empty()) folder.write(file, before);
  }
}

}  // namespace whole_model_test
