// Strangers' files that nest 100,000 deep, or whose values have other types: each reader takes them or refuses them in
// a line. Their values are copied and written by recursion.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "program.h"
#include "run_folder.h"

namespace deep_files_test {

using Words = std::vector<std::string>;
using Json = nlohmann::ordered_json;

namespace {

std::string deep(bool is_list) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += is_list ? "[" : "{\"a\":";
  text += "1";
  for (int i = 0; i < 100'000; ++i) text += is_list ? ']' : '}';
  return text;
}

std::string deep_toml(bool is_list) {
  std::string text = "a";
  if (is_list) return "a = " + std::string(100'000, '[') + std::string(100'000, ']') + "\n";
  for (int i = 0; i < 100'000; ++i) text += ".a";
  return text + " = 1\n";
}

constexpr const char* summary = R"({"name":"a","ended_by":"error","error":"boom","steps":3,"updates_applied":3,"amp":{},
"loss":{"final":1,"best":1},"validation_loss":{"final":1,"best":1},"validation":{"accuracy":{"final":1,"best":1,
"better":"higher"}},"metrics":{"accuracy":{"unit":"ms"}},"this_process":{"seconds":1,"times":{"forward":1}},
"digest":"x","versions":{"vernier":"1"},"configuration":{"task":{"use":"mlp"},"callback":[{"use":"sam","rho":1}]}})";

// It ends by itself, and an error is a line of its own words.
void check_end(Program& program) {
  const auto status = program.wait();
  const auto err = program.err();
  CHECK_MESSAGE((status >= 0 && status <= 6), status);
  CHECK_MESSAGE((status == 0 || (!err.empty() && is_one_line(err))), err.substr(0, 1000));
  CHECK_MESSAGE(err.find("json.exception") == std::string::npos, err.substr(0, 1000));
}

}  // namespace

TEST_CASE("deep files: no reader of a stranger's file crashes") {
  struct Case {
    std::string file, text;  // DEEP: the deep value
    Words words;
  };
  const std::string model = R"({"model_type":"llama","x":DEEP})", row = R"({"text":"a","label":DEEP})";
  const Case cases[] = {
      {"run/summary.json", R"({"ended_by":"done","steps":1,"configuration":{"task":DEEP}})", {"report", "run"}},
      {"run/summary.json", R"({"ended_by":"done","steps":1,"loss":{"best":DEEP}})", {"runs", "run"}},
      {"run/status.json", R"({"precision":"fp32","dtype":DEEP})", {"runs", "run"}},
      {"run/losses.jsonl", "{\"step\":1,\"notices\":[{\"name\":\"x\",\"y\":DEEP}]}\n", {"report", "run"}},
      {"run/evaluation.json", R"({"step":DEEP})", {"report", "run"}},
      {"run/compare.json", R"({"baseline":DEEP})", {"report", "run"}},
      {"run/config.toml", "TOML", {"report", "run"}},
      {"x.toml", "TOML", {"train", "x.toml"}},
      {"rows.json", "[" + row + "]", {"new", "toml", "rows.json"}},
      {"rows.jsonl", row + "\n", {"new", "toml", "rows.jsonl"}},
      {"model/config.json", model, {"new", "toml", "model", "rows.jsonl"}},
      {"model/config.json", model, {"generate", "model", "--prompt", "a"}},
      {"texts.jsonl",
       row + "\n",
       {"tokenize", "texts.jsonl", "--tokenizer", VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/gpt2", "--output",
        "t.bin"}},
  };
  for (const auto& [file, text, words] : cases) {
    for (const bool is_list : {true, false}) {
      CAPTURE(file);
      CAPTURE(words[0]);
      const TemporaryFolder folder;
      folder.write("run/losses.jsonl", "{\"step\":1,\"loss\":1}\n");
      auto whole = text == "TOML" ? deep_toml(is_list) : text;
      if (const auto at = whole.find("DEEP"); at != whole.npos) whole.replace(at, 4, deep(is_list));
      folder.write(file, whole);
      Program program(words, folder.path());
      check_end(program);
    }
  }
}

TEST_CASE("deep files: a summary whose values have other types is damaged, and named") {
  const TemporaryFolder folder;
  folder.write("run/losses.jsonl", "{\"step\":1,\"loss\":1}\n");
  const auto whole = Json::parse(summary);
  std::vector<Json> odd = {Json::array(), 5, "text", nullptr};
  const auto flat = whole.flatten();
  for (const auto& [pointer, ignored] : flat.items()) {
    for (auto at = Json::json_pointer(pointer); !at.empty(); at = at.parent_pointer()) {
      auto changed = whole;
      changed[at] = at.back().size() % 2 == 0 ? Json{{"~x", Json::array({1})}} : Json::array({5});
      odd.push_back(std::move(changed));
    }
  }
  int at = 0;
  Words words = {"runs", "all"};
  for (const auto& each : odd) {
    const auto name = "all/" + std::to_string(at++);
    folder.write(name + "/losses.jsonl", "{\"step\":1,\"loss\":1}\n");
    folder.write(name + "/summary.json", each.dump());
    if (at % 4 != 0) continue;
    Program program({"report", name}, folder.path());
    check_end(program);
    const auto err = program.err();
    CHECK_MESSAGE((err.empty() || err.find(name + "/summary.json: it is damaged") != std::string::npos), err);
  }
  Program program(words, folder.path());
  check_end(program);
}

}  // namespace deep_files_test
