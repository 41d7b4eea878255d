#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/data_loader.h>
#include <vernier/text/language_data.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "thrown.h"

namespace language_data_test {

using Ids = std::vector<std::int64_t>;
using Json = nlohmann::json;
using vernier::LanguageData;
using vernier::TokenId;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";
const std::string forms = VERNIER_SOURCE_DIR "/tests/sdk/text/language/";

// A tokenizer, by default of GPT-2's style, with the special tokens of both styles of chats.
class ChatTokenizer {
 public:
  explicit ChatTokenizer(const std::string& style = "gpt2") {
    auto json = Json::parse(read_text(oracles + style + "/tokenizer.json"));
    auto id = static_cast<TokenId>(json["model"]["vocab"].size());
    for (const auto& token : json["added_tokens"]) id = std::max(id, token["id"].get<TokenId>() + 1);
    for (const auto* name : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                             "<|end_header_id|>", "<|eot_id|>"}) {
      auto token = json["added_tokens"][0];
      token["id"] = id++;
      token["content"] = name;
      json["added_tokens"].push_back(token);
    }
    folder_.write("tokenizer.json", json.dump());
    tokenizer_ = vernier::open_tokenizer(folder_.path());
  }
  const vernier::Tokenizer& operator*() const { return *tokenizer_; }
  Ids encode(const std::string& text) const {
    const auto ids = tokenizer_->encode(text);
    return {ids.begin(), ids.end()};
  }

 private:
  TemporaryFolder folder_;
  std::shared_ptr<const vernier::Tokenizer> tokenizer_;
};

struct Row {
  Ids inputs, targets, positions, segments;
};

Row row_of(const LanguageData& data, std::int64_t index) {
  vernier::Random random(1, 0, index);
  const auto sample = data.dataset->get(index, random);
  REQUIRE(sample.size() == 4);
  Row row;
  Ids* const columns[] = {&row.inputs, &row.targets, &row.positions, &row.segments};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto* first = sample[i].const_data_ptr<std::int64_t>();
    columns[i]->assign(first, first + sample[i].numel());
  }
  return row;
}

// A text of a row: its tokens, of which the first is not a target, and the targets that are not learned as -1.
struct Seen {
  Ids tokens, learned;
};

std::vector<Seen> texts_in(const Row& row) {
  std::vector<Seen> texts;
  for (std::size_t i = 0; i < row.inputs.size() && row.segments[i] > 0; ++i) {
    if (row.positions[i] == 0) texts.push_back({{row.inputs[i]}, {}});
    REQUIRE(row.segments[i] == static_cast<std::int64_t>(texts.size()));
    REQUIRE(row.positions[i] == static_cast<std::int64_t>(texts.back().learned.size()));
    if (row.positions[i] > 0) texts.back().tokens.push_back(row.inputs[i]);
    texts.back().learned.push_back(row.targets[i] == -100 ? -1 : row.targets[i]);
  }
  return texts;
}

// The file of one line has one text; what of it is learned, decoded.
std::string learned_of(const ChatTokenizer& tokenizer, const Json& line, vernier::LanguageDataOptions options) {
  const TemporaryFolder folder;
  options.length = 256;
  const auto data = vernier::read_language_data(*tokenizer, folder.write("a.jsonl", line.dump()), options);
  REQUIRE(data.dataset->size() == 1);
  const auto texts = texts_in(row_of(data, 0));
  REQUIRE(texts.size() == 1);
  std::vector<TokenId> learned;
  for (const auto id : texts[0].learned) {
    if (id >= 0) learned.push_back(static_cast<TokenId>(id));
  }
  CHECK(data.learned == static_cast<std::int64_t>(learned.size()));
  return (*tokenizer).decode(learned, true);
}

}  // namespace

TEST_CASE("language data: packed rows have every text once, each in a segment of its own") {
  const ChatTokenizer tokenizer;
  const TemporaryFolder folder;
  std::string lines;
  std::multimap<Ids, int> expected;  // tokens of a text without its last
  for (int i = 0; i < 60; ++i) {
    std::string text = "text " + std::to_string(i);
    for (int j = 0; j < i * 7 % 23; ++j) text += " language";
    lines += Json({{"text", text}}).dump() + "\n";
    expected.emplace(tokenizer.encode(text), i);
  }
  for (const bool packs : {true, false}) {
    CAPTURE(packs);
    const auto data =
        vernier::read_language_data(*tokenizer, folder.write("a.jsonl", lines), {.length = 64, .packs = packs});
    CHECK(data.texts == 60);
    auto missing = expected;
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < data.dataset->size(); ++i) {
      for (const auto& [seen, learned] : texts_in(row_of(data, i))) {
        const auto found = missing.find(seen);
        REQUIRE(found != missing.end());
        missing.erase(found);
        Ids next(seen.begin() + 1, seen.end());
        next.push_back(*(*tokenizer).end_of_text());
        CHECK(learned == next);
        tokens += static_cast<std::int64_t>(seen.size());
      }
    }
    CHECK(missing.empty());
    CHECK(data.tokens == tokens);
    CHECK(data.learned == tokens);
    CHECK(data.dataset->size() <= (packs ? tokens / 64 + 2 : 60));
  }
}

TEST_CASE("language data: what is learned of prompts and chats") {
  const ChatTokenizer tokenizer;
  const Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", "the <|im_end|> text"}},
                                               {{"role", "assistant"}, {"content", " a model"}},
                                               {{"role", "user"}, {"content", "and"}},
                                               {{"role", "assistant"}, {"content", "tokens"}}})}};
  const Json prompt = {{"prompt", "the model "}, {"completion", "learns"}};
  struct Case {
    Json line;
    vernier::LanguageDataOptions options;
    std::string learned;
  };
  using vernier::ChatStyle;
  const Case cases[] = {
      {{{"text", "a model"}}, {}, " model<|endoftext|>"},
      {{{"text", "a model<|endoftext|>"}}, {}, " model<|endoftext|>"},
      {prompt, {}, " learns<|endoftext|>"},
      {{{"prompt", "a"}, {"completion", " model"}}, {}, " model<|endoftext|>"},
      {{{"prompt", "a"}, {"completion", " model"}}, {.learns_all = true}, " model<|endoftext|>"},
      {chat, {}, " a model<|im_end|>tokens<|im_end|>"},
      {chat, {.chat = ChatStyle::llama3}, "a model<|eot_id|>tokens<|eot_id|>"},
      {chat,
       {.learns_all = true},
       "user\nthe <|im_end|> text<|im_end|>\n<|im_start|>assistant\n a "
       "model<|im_end|>\n<|im_start|>user\nand<|im_end|>\n"
       "<|im_start|>assistant\ntokens<|im_end|>\n"},
      {chat,
       {.learns_all = true, .chat = ChatStyle::llama3},
       "<|start_header_id|>user<|end_header_id|>\n\nthe <|im_end|> text<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\na model<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nand<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\ntokens<|eot_id|>"},
  };
  for (const auto& [line, options, learned] : cases) {
    CAPTURE(line.dump());
    CHECK(learned_of(tokenizer, line, options) == learned);
  }
  // The text of a message is never a special token: each of the two ends of messages is there once for each message.
  const TemporaryFolder folder;
  const auto data = vernier::read_language_data(*tokenizer, folder.write("a.jsonl", chat.dump()), {.length = 64});
  const auto row = row_of(data, 0);
  CHECK(std::ranges::count(row.inputs, std::int64_t{*(*tokenizer).id("<|im_end|>")}) == 4);
}

TEST_CASE("language data: the forms of a line, and what is refused of them") {
  const ChatTokenizer tokenizer;
  for (const auto& one : Json::parse(read_text(forms + "forms.json"))) {
    const auto line = one["line"].dump();
    CAPTURE(line);
    const TemporaryFolder folder;
    vernier::LanguageDataOptions options{.length = 256, .instructions_as_chat = one.value("as_chat", false)};
    if (one.contains("fields")) options.fields = one["fields"];
    if (one.contains("roles")) options.roles = one["roles"];
    const auto path = folder.write("a.jsonl", line);
    if (one.contains("refused")) {
      const auto thrown = thrown_by([&] { vernier::read_language_data(*tokenizer, path, options); });
      const auto reason = one["refused"].get<std::string>();
      CHECK(thrown.kind == 2);
      CHECK_MESSAGE(thrown.text.starts_with(reason.starts_with("fields")
                                                ? reason
                                                : "'" + path + "' line 1" + (reason[0] == ':' ? "" : " ") + reason),
                    thrown.text);
      continue;
    }
    const auto data = vernier::read_language_data(*tokenizer, path, options);
    const auto ids = tokenizer.encode(one["text"]);
    const auto row = row_of(data, 0);
    REQUIRE(data.tokens == std::ssize(ids) - 1);
    CHECK(std::equal(ids.begin(), ids.end() - 1, row.inputs.begin()));
    CHECK(learned_of(tokenizer, one["line"], options) == one["learned"].get<std::string>());
  }
}

TEST_CASE("language data: an array, and packed files, have the texts of the same lines") {
  const ChatTokenizer tokenizer;
  const TemporaryFolder folder;
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n";
  const auto expected = vernier::read_language_data(*tokenizer, folder.write("a.jsonl", lines), {.length = 4});
  const auto array = "\xEF\xBB\xBF [ {\"text\": \"one\"},\n{\"text\": \"two\"} , {\"text\":\"three\"}\n]\n";
  const std::string files[] = {folder.write("lines.json", lines), folder.write("array.json", array),
                               forms + "members.jsonl.gz"};
  for (const auto& file : files) {
    CAPTURE(file);
    const auto data = vernier::read_language_data(*tokenizer, file, {.length = 4});
    CHECK(data.dataset->fingerprint() == expected.dataset->fingerprint());
    const std::string unit = file.ends_with("array.json") ? "element" : "line";
    CHECK(data.dataset->where(0).starts_with("'" + file + "' " + unit));
  }
  const auto hard =
      folder.write("hard.json", Json::array({{{"text", "a]\"},{\\"}, {"more", {{{"b", 1}}, {}}}}}).dump());
  CHECK(vernier::read_language_data(*tokenizer, hard, {}).texts == 1);
  const auto half = read_text(forms + "members.jsonl.gz");
  const std::pair<std::string, std::string> refused[] = {
      {"[{\"text\": \"a\"}", "' ends within its JSON array; make it again"},
      {"[{\"text\": \"a\"}] {", "' has text behind its JSON array"},
      {"[{\"text\": \"a\"},]", "' element 2: the element is not JSON"},
      {"[\"a\"]", "' element 1 is not a JSON object"},
      {"[]", "' has no text with a token to learn"},
      {half.substr(0, half.size() - 9), "' is a damaged or unfinished gzip file; make it again"},
      {half + "more", "' is a damaged or unfinished gzip file; make it again"},
      {half.substr(0, 20), "' is a damaged or unfinished gzip file; make it again"}};
  for (const auto& [bytes, message] : refused) {
    const auto path = folder.write("b.json", bytes);
    const auto thrown = thrown_by([&] { vernier::read_language_data(*tokenizer, path, {}); });
    CHECK_MESSAGE(thrown.text.find(message) != std::string::npos, thrown.text);
  }
}

TEST_CASE("language data: a chat has the tokens of the rendered template, in every style of tokenizers") {
  const Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", "\u3000\u65e5 two\u00a0\u2028\n"}},
                                               {{"role", "assistant"}, {"content", " yo  "}}})}};
  const std::pair<vernier::ChatStyle, std::string> rendered[] = {
      {vernier::ChatStyle::chatml,
       "<|im_start|>user\n\u3000\u65e5 two\u00a0\u2028\n<|im_end|>\n<|im_start|>assistant\n yo  <|im_end|>\n"},
      {vernier::ChatStyle::llama3,
       "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n\u65e5 two<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nyo<|eot_id|>"}};
  for (const char* style : {"gpt2", "gpt2_prefix", "llama2", "llama2_metaspace", "words_unknown", "qwen2"}) {
    CAPTURE(style);
    const ChatTokenizer tokenizer(style);
    const TemporaryFolder folder;
    const auto file = folder.write("a.jsonl", chat.dump());
    for (const auto& [chat_style, text] : rendered) {
      const auto data = vernier::read_language_data(*tokenizer, file, {.length = 256, .chat = chat_style});
      const auto ids = (*tokenizer).encode(text, /*special=*/false);
      CHECK(data.tokens == std::ssize(ids) - 1);  // the first is not predicted
      const auto row = row_of(data, 0);
      CHECK(std::equal(ids.begin(), ids.end() - 1, row.inputs.begin()));
    }
  }
}

TEST_CASE("language data: a long text goes on in the next row, of a prompt the rest is left out") {
  const ChatTokenizer tokenizer;
  const TemporaryFolder folder;
  std::string words = "a";
  for (int i = 0; i < 40; ++i) words += " model";
  const auto whole = tokenizer.encode(words);
  const auto text = vernier::read_language_data(*tokenizer, folder.write("a.txt", words), {.length = 16});
  CHECK(text.learned == static_cast<std::int64_t>(whole.size()));
  CHECK(text.dataset->size() == (static_cast<std::int64_t>(whole.size()) + 15) / 16);
  const auto first = row_of(text, 0);
  CHECK(first.inputs == Ids(whole.begin(), whole.begin() + 16));
  CHECK(first.targets == Ids(whole.begin() + 1, whole.begin() + 17));
  const auto lines = Json({{"prompt", "a"}, {"completion", words.substr(1)}}).dump() + "\n" +
                     Json({{"prompt", words}, {"completion", " text"}}).dump();
  const auto prompts = vernier::read_language_data(*tokenizer, folder.write("b.jsonl", lines), {.length = 16});
  CHECK(prompts.learned == 16);
  CHECK(prompts.texts == 1);
  CHECK(prompts.left_out == 1);
  CHECK(prompts.cut == 1);
}

TEST_CASE("language data: several sources by their shares, and a loader that goes on where it was") {
  const ChatTokenizer tokenizer;
  const TemporaryFolder folder;
  std::vector<vernier::DatasetPtr> sources;
  for (const int count : {5, 50}) {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += Json({{"text", "text " + std::to_string(i)}}).dump() + "\n";
    sources.push_back(vernier::read_language_data(*tokenizer, folder.write(std::to_string(count) + ".jsonl", lines),
                                                  {.length = 8, .packs = false})
                          .dataset);
  }
  const auto weights = vernier::mixture_weights(sources, {3, 1});
  CHECK(weights.numel() == 55);
  CHECK(weights.narrow(0, 0, 5).sum().item<double>() == doctest::Approx(3));
  CHECK(weights.narrow(0, 5, 50).sum().item<double>() == doctest::Approx(1));
  const auto all = vernier::concat(sources);
  vernier::DataLoader loader(all, {.batch_size = 4, .weights = weights}),
      other(all, {.batch_size = 4, .weights = weights});
  for (int i = 0; i < 5; ++i) loader.next();
  other.load_state_dict(loader.state_dict());
  for (int i = 0; i < 30; ++i) {
    const auto a = loader.next(), b = other.next();
    for (std::size_t k = 0; k < 4; ++k) CHECK(a.tensors[k].equal(b.tensors[k]));
  }
}

TEST_CASE("language data: mistakes name file and line") {
  const ChatTokenizer tokenizer;
  struct Case {
    std::string name, bytes, message;
    vernier::LanguageDataOptions options = {};
  };
  const Case cases[] = {
      {"a.jsonl", "{\"text\": \"a\"}\n{", "'PATH' line 2: the line is not JSON"},
      {"a.jsonl", "[]", "'PATH' line 1 is not a JSON object"},
      {"a.txt", "abc\xFF", "'PATH': the text to encode is not UTF-8 at byte 3"},
      {"a.jsonl", "\n", "'PATH' has no text with a token to learn"},
      {"a.txt", "abc", "rows of 0 tokens cannot be made; at least 1", {.length = 0}},
  };
  for (const auto& [name, bytes, message, options] : cases) {
    CAPTURE(message);
    const TemporaryFolder folder;
    const auto path = folder.write(name, bytes);
    auto expected = message;
    if (const auto at = expected.find("PATH"); at != std::string::npos) expected.replace(at, 4, path);
    const auto thrown = thrown_by([&] { vernier::read_language_data(*tokenizer, path, options); });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.starts_with(expected), thrown.text);
  }
  CHECK(thrown_by([&] { vernier::mixture_weights({}, {1.0}); }).kind == 2);
  const auto nothing = vernier::tensor_dataset({torch::zeros({0, 1})});
  CHECK(thrown_by([&] { vernier::mixture_weights({nothing}, {1.0}); }).text ==
        "dataset 0 has no samples, and the share 1");

  const TemporaryFolder folder;
  const auto path = folder.write("long.jsonl", "\n");
  std::filesystem::resize_file(path, 300 << 20);  // a hole, which takes no room
  const auto thrown = thrown_by([&] { vernier::read_language_data(*tokenizer, path, {}); });
  CHECK_MESSAGE(thrown.text.starts_with("'" + path + "' line 2 has 314572799 bytes; divide it"), thrown.text);
}

namespace {

// The compared parts of both answers of a pair, and the text before them.
struct Answers {
  std::string prompt, chosen, rejected;
  bool operator==(const Answers&) const = default;
};

Answers answers_of(const ChatTokenizer& tokenizer, const vernier::PreferenceData& data, std::int64_t index) {
  vernier::Random random(1, 0, index);
  const auto sample = data.dataset->get(index, random);
  Answers answers;
  for (const std::int64_t row : {0, 1}) {
    std::vector<TokenId> before, compared;
    const auto *inputs = sample[0][row].const_data_ptr<std::int64_t>(),
               *targets = sample[1][row].const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < sample[0].size(1); ++i) {
      if (compared.empty() && (i == 0 || targets[i - 1] < 0)) before.push_back(static_cast<TokenId>(inputs[i]));
      if (targets[i] >= 0) compared.push_back(static_cast<TokenId>(targets[i]));
    }
    const auto count = sample[2][row].item<std::int64_t>();  // behind them the row is filled up
    CHECK(sample[0][row].slice(0, count).eq(0).all().item<bool>());
    CHECK((count > 0 && inputs[count - 1] != 0));
    CHECK(sample[1][row].slice(0, count).lt(0).all().item<bool>());
    const auto text = (*tokenizer).decode(before, true);
    if (row == 1) CHECK(text == answers.prompt);
    answers.prompt = text;
    (row == 0 ? answers.chosen : answers.rejected) = (*tokenizer).decode(compared, true);
  }
  return answers;
}

}  // namespace

TEST_CASE("preference data: the forms of TRL give the same answers behind the same prompt") {
  const ChatTokenizer tokenizer;
  const std::string head = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const Answers chat = {head, "yes<|im_end|>", "no<|im_end|>"};
  const std::string user = R"({"role": "user", "content": "hi"})", yes = R"({"role": "assistant", "content": "yes"})",
                    no = R"({"role": "assistant", "content": "no"})";
  const std::string whole = R"("chosen": [)" + user + ", " + yes + R"(], "rejected": [)" + user + ", " + no + "]";
  struct Form {
    std::string line;
    Answers answers;
    std::map<std::string, std::string> fields = {};
  };
  const std::vector<Form> forms = {
      {R"({"prompt": "a b", "chosen": " c", "rejected": " d e"})", {"a b", " c<|endoftext|>", " d e<|endoftext|>"}},
      {R"({"prompt": [)" + user + R"(], "chosen": [)" + yes + R"(], "rejected": [)" + no + "]}", chat},
      {"{" + whole + "}", chat},
      {R"({"prompt": "hi", )" + whole + "}", chat, {{"chosen", "chosen"}, {"rejected", "rejected"}}},
      {R"({"q": "a", "w": " b", "l": " c"})",
       {"a", " b<|endoftext|>", " c<|endoftext|>"},
       {{"prompt", "q"}, {"chosen", "w"}, {"rejected", "l"}}},
  };
  const TemporaryFolder folder;
  for (const auto& [line, answers, fields] : forms) {
    CAPTURE(line);
    const auto data = vernier::read_preference_data(*tokenizer, folder.write("a.jsonl", line + "\n"),
                                                    {.length = 64, .fields = fields});
    REQUIRE(data.dataset->size() == 1);
    const auto found = answers_of(tokenizer, data, 0);
    CHECK(found.prompt == answers.prompt);
    CHECK(found.chosen == answers.chosen);
    CHECK(found.rejected == answers.rejected);
    CHECK(data.dataset->where(0) == "'" + (folder / "a.jsonl") + "' line 1");
  }
}

TEST_CASE("preference data: pairs without an answer are left out or refused, with their line") {
  const ChatTokenizer tokenizer;
  const TemporaryFolder folder;
  const std::string good = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  const std::string late = R"({"prompt": "one two three four five six seven", "chosen": "b", "rejected": "c"})";
  const auto data =
      vernier::read_preference_data(*tokenizer, folder.write("a.jsonl", late + "\n" + good), {.length = 4});
  CHECK(data.dataset->size() == 1);
  CHECK(data.left_out == 1);
  CHECK(data.dataset->where(0) == "'" + (folder / "a.jsonl") + "' line 2");
  const std::pair<std::string, const char*> wrong[] = {
      {R"({"prompt": "a", "completion": "b"})", "a preference has chosen and rejected"},
      {R"({"chosen": "b", "rejected": "c"})", "the field 'prompt' is missing"},
      {R"({"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": []})",
       "so that the prompt is not read"},
      {late, "has no pair of answers"},
  };
  for (const auto& [line, message] : wrong) {
    const auto path = folder.write("a.jsonl", line);
    const auto thrown = thrown_by([&] { vernier::read_preference_data(*tokenizer, path, {.length = 4}); });
    CHECK_MESSAGE(says(thrown.text, message), thrown.text);
    CHECK_MESSAGE(says(thrown.text, "a.jsonl"), thrown.text);
  }
}

}  // namespace language_data_test
