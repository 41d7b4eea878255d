#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/text/language_data.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "thrown.h"

namespace template_chats_test {

namespace {

using Json = nlohmann::json;

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/";

// A tokenizer's folder with further special tokens and a chat template.
class Folder {
 public:
  Folder(const std::string& style, const Json& tokens) {
    auto json = Json::parse(read_text(oracles + "tokenizers/" + style + "/tokenizer.json"));
    if (style == "gpt2") {  // one token for two line breaks, which a text beside them divides
      json["model"]["vocab"]["\u010A\u010A"] = json["model"]["vocab"].size();
      json["model"]["merges"].push_back({"\u010A", "\u010A"});
    }
    auto id = json["model"]["vocab"].size();
    for (const auto& token : json["added_tokens"]) id = std::max(id, token["id"].get<std::size_t>() + 1);
    for (const auto& token : tokens) {
      json["added_tokens"].push_back({{"id", id++},
                                      {"content", token},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    }
    folder_.write("tokenizer.json", json.dump());
    tokenizer_ = vernier::open_tokenizer(folder_.path());
  }
  void set_template(const std::string& source) {
    const Json config = {{"chat_template", source}, {"bos_token", "<|bos|>"}, {"eos_token", "<|eos|>"}};
    folder_.write("tokenizer_config.json", config.dump());
  }
  vernier::LanguageDataOptions options() const { return {.length = 8192, .template_folder = folder_.path()}; }
  const vernier::Tokenizer& tokenizer() const { return *tokenizer_; }
  // The inputs of a chat, and "1" or "0" for each: whether the next one is learned.
  std::pair<Json, std::string> read(const Json& messages) const {
    const auto file = folder_.write("a.jsonl", Json({{"messages", messages}}).dump());
    const auto data = vernier::read_language_data(*tokenizer_, file, options());
    vernier::Random random(1, 0, 0);
    const auto row = data.dataset->get(0, random);
    auto ids = Json::array();
    std::string learned;
    for (std::int64_t i = 0; i < data.tokens; ++i) {
      ids.push_back(row[0][i].item<std::int64_t>());
      learned += row[1][i].item<std::int64_t>() == -100 ? '0' : '1';
    }
    return {ids, learned};
  }

 private:
  TemporaryFolder folder_;
  std::shared_ptr<const vernier::Tokenizer> tokenizer_;
};

Json without_last(const Json& ids) {
  return Json(Json::array_t(ids.begin(), ids.end() - 1));
}

}  // namespace

TEST_CASE("oracle template chats: tokens and the assistant's tokens are those of apply_chat_template") {
  const auto* real = std::getenv("VERNIER_CHAT_TOKENS");
  const auto recorded = Json::parse(read_text(real != nullptr ? real : oracles + "chat_tokens.json"));
  int equal = 0, refused = 0, others = 0;
  for (const auto& each : recorded) {
    Folder folder(each["style"], each["tokens"]);
    for (const char* kind : {"marked", "plain"}) {
      folder.set_template(each[kind]);
      CAPTURE(each["name"].get<std::string>() + ", " + each["style"].get<std::string>() + ", " + kind);
      for (const auto& chat : each["chats"]) {
        CAPTURE(chat["messages"].dump());
        const auto thrown = thrown_by([&] {
          const auto [ids, learned] = folder.read(chat["messages"]);
          CHECK(ids == without_last(chat["ids"]));
          const bool is_equal = learned == chat["mask"].get<std::string>().substr(1);
          ++(is_equal ? equal : others);
          // trl's marks differ in whether a line break behind an answer is learned.
          if (real == nullptr || kind == std::string("marked")) CHECK(is_equal);
          if (real != nullptr && !is_equal) MESSAGE(learned, " ", chat["mask"].get<std::string>().substr(1));
        });
        if (thrown.text.empty()) continue;
        ++refused;
        if (real != nullptr) MESSAGE(thrown.text);
        // Here the system's text moves to the last question, which is not known before.
        CHECK_MESSAGE((each["name"] == "system at last" || real != nullptr), thrown.text);
        CHECK_MESSAGE(thrown.text.find("hides where the answer in message") != std::string::npos, thrown.text);
        CHECK(kind == std::string("plain"));
      }
    }
  }
  if (real != nullptr) MESSAGE(equal, " equal, ", refused, " refused, ", others, " others");
  CHECK(equal > 10 * refused);
}

TEST_CASE("template chats: the end of an answer, weights, and templates that cannot be learned from") {
  Folder folder("gpt2", {"<|im_start|>", "<|im_end|>", "<|bos|>", "<|eos|>"});
  const std::string chatml =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const auto end = [&](const std::string& source) {
    folder.set_template(source);
    return vernier::end_of_answer(folder.tokenizer(), folder.options());
  };
  CHECK(end(chatml) == "<|im_end|>");
  CHECK(end("{{ messages[0].content }}: {{ messages[1].content }}") == "");
  CHECK(end("{% for m in messages %}{% generation %}{{ m.content + '<|eos|>\n' }}{% endgeneration %}{% endfor %}") ==
        "<|eos|>");
  CHECK(end("{{ raise_exception('no') }}") == "");
  CHECK(vernier::end_of_answer(folder.tokenizer(), {.chat = vernier::ChatStyle::llama3}) == "<|eot_id|>");

  folder.set_template(chatml);
  Json chat = Json::array({{{"role", "user"}, {"content", "a"}},
                           {{"role", "assistant"}, {"content", "bb"}, {"weight", 0}},
                           {{"role", "assistant"}, {"content", "c"}}});
  const auto learned = folder.read(chat).second;
  CHECK(learned.find("1") > learned.size() / 2);

  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{% for m in messages %}{{ m.content + m.content }}{% endfor %}", "hides where the answer in message 3"},
      {"{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
       "hides where the answer in message"},
      {"{{ strftime_now('%Y') }}", "a run must not depend on the day, so write a fixed date there"},
      {"{{ raise_exception('no system') }}", "a.jsonl' line 1: "},
      {"{% if %}", "the chat template, line 1"}};
  for (const auto& [source, reason] : wrong) {
    CAPTURE(source);
    folder.set_template(source);
    const auto thrown = thrown_by([&] { folder.read(chat); });
    CHECK_MESSAGE(thrown.text.find(reason) != std::string::npos, thrown.text);
  }
  auto options = folder.options();
  options.template_folder = oracles;
  const TemporaryFolder data;
  const auto file = data.write("a.jsonl", Json({{"messages", chat}}).dump());
  const auto thrown = thrown_by([&] { vernier::read_language_data(folder.tokenizer(), file, options); });
  CHECK_MESSAGE(thrown.text.find("has no chat template") != std::string::npos, thrown.text);
}

}  // namespace template_chats_test
