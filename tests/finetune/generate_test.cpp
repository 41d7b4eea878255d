// `vernier generate`, called as a person would.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "learned_bytes.h"
#include "published_folder.h"
#include "run_folder.h"

namespace generate_test {

using published_folder::PublishedFolder;
using Words = std::vector<std::string>;

using learned_bytes::Learned;

namespace {

const std::string tokenizers = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/";

}  // namespace

TEST_CASE("generate: continues a prompt with the model of a run, as the options say") {
  Learned run;
  const Words greedy = {"--prompt", "abcdefg", "--temperature", "0", "--max-tokens", "14"};
  const auto with = [&](Words more) {
    Words words = greedy;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  CHECK(run.generated(greedy) == "hijabcdefghija");
  CHECK(run.generated(with({"--no-cache"})) == "hijabcdefghija");
  CHECK(run.generated(with({"--stop", "cde", "--stop", "cx"})) == "hijab");
  CHECK(run.generated({"--prompt", "abcdefg", "--top-k", "1", "--max-tokens", "6"}) == "hijabc");
  CHECK(run.generated({"--prompt", "abcdefg", "--top-p", "0.01", "--max-tokens", "6"}) == "hijabc");
  CHECK(run.generated({"--prompt", "abcdefg", "--min-p", "1", "--max-tokens", "6"}) == "hijabc");
  CHECK(run.generated(with({"--set", "precision.use=bf16"})).starts_with("hij"));
  // Draws follow from the seed.
  const auto wild = [&](const char* seed) {
    return run.generated({"--prompt", "abc", "--temperature", "3", "--max-tokens", "25", "--seed", seed});
  };
  CHECK(wild("1") == wild("1"));
  CHECK(wild("1") != wild("2"));
  // Beyond the positions of the model.
  CHECK(run.generated({"--prompt", "abcdefg", "--temperature", "0"}).size() == 32 - 7 + 1);
  CHECK(run.err.find("as long as the model has positions") != std::string::npos);
  CHECK(run.generated({"--prompt", "abcdefg", "--temperature", "0", "--slide"}).size() == 100);
  CHECK(run.err.empty());
}

TEST_CASE("generate: a file of prompts gets completions, each as if it were alone") {
  Learned run;
  run.folder.write("in.jsonl", "{\"prompt\": \"abc\", \"id\": 7}\n\n{\"prompt\": \"efg\"}\n");
  const Words more = {"--max-tokens", "12", "--temperature", "0.5", "--stop", "j"};
  Words words = {"generate", "out", "--input", "in.jsonl", "--output", "out.jsonl"};
  words.insert(words.end(), more.begin(), more.end());
  REQUIRE_MESSAGE(run.call(words) == 0, run.err);
  CHECK(run.out == "out.jsonl: 2 completions\n");
  std::ifstream file(run.at("out.jsonl"));
  std::string first, second;
  std::getline(file, first);
  std::getline(file, second);
  const auto json = nlohmann::json::parse(first), other = nlohmann::json::parse(second);
  CHECK(json["id"] == 7);
  CHECK(json["prompt"] == "abc");
  Words alone = {"--prompt", "efg", "--seed", "4"};  // 1 + line 3
  alone.insert(alone.end(), more.begin(), more.end());
  CHECK(run.generated(alone) == other["completion"].get<std::string>());
  CHECK(json["end"] == "stop");
  CHECK(json["tokens"] == json["completion"].get<std::string>().size() + 1);
  CHECK_FALSE(has_partial(run.folder.path()));
  // The same lines on standard output.
  words.erase(words.begin() + 4, words.begin() + 6);
  REQUIRE(run.call(words) == 0);
  CHECK(run.out == read_text(run.at("out.jsonl")));
}

TEST_CASE(
    "generate: lines get the same completions in batches, several each, log-probabilities, or the best of beams") {
  Learned run;
  std::string lines;
  for (int i = 0; i < 9; ++i)
    lines += "{\"prompt\": \"" + std::string("abcdefghijabcdefghij").substr(i, 1 + i % 4) + "\"}\n";
  run.folder.write("in.jsonl", lines);
  const auto out = [&](Words words) {
    words.insert(words.begin(), {"generate", "out", "--input", "in.jsonl", "--max-tokens", "15"});
    REQUIRE_MESSAGE(run.call(words) == 0, run.err);
    std::vector<nlohmann::json> all;
    std::istringstream text(run.out);
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line));
    CHECK(all.size() == 9);
    return all;
  };
  const auto alone = out({"--temperature", "2"});
  CHECK(alone == out({"--temperature", "2", "--batch", "4"}));
  const auto several = out({"--temperature", "3", "--count", "3", "--batch", "7"});
  CHECK(several[0]["completions"].size() == 3);
  CHECK(several[0]["completions"][0]["completion"] != several[0]["completions"][1]["completion"]);
  const auto likely = out({"--temperature", "0", "--logprobs", "2"});
  CHECK(likely[0]["logprobs"].size() == 15);
  const auto& token = likely[0]["logprobs"][0];
  CHECK(token["token"] == "b");
  CHECK(token["logprob"].get<double>() > std::log(0.9));
  CHECK(token["top"][0]["token"] == "b");
  CHECK(token["top"].size() == 2);
  CHECK(out({"--temperature", "0", "--logprobs", "0"})[0]["logprobs"][0].contains("top") == false);
  const auto beams = out({"--beams", "3", "--count", "2"});
  CHECK(beams[0]["completions"][0]["completion"] == likely[0]["completion"]);
  CHECK(beams[0]["completions"][0]["score"].get<double>() > beams[0]["completions"][1]["score"].get<double>());
  CHECK(out({"--beams", "2", "--stop", "f"})[0]["end"] == "stop");
  CHECK(out({"--beams", "2", "--stop", "f"})[0]["completion"] == "bcde");
  CHECK(out({"--temperature", "0", "--no-repeat-ngram", "3"})[0]["completion"] != likely[0]["completion"]);
}

TEST_CASE("generate: a signal leaves no part of a file") {
  Learned run;
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += "{\"prompt\": \"abc\"}\n";
  run.folder.write("in.jsonl", lines);
  Program program(
      {"generate", "out", "--input", "in.jsonl", "--output", "out.jsonl", "--max-tokens", "29", "--no-cache"},
      run.folder.path());
  REQUIRE(program.wait_until([&] { return has_partial(run.folder.path()); }));
  program.send(SIGINT);
  CHECK(program.wait() == 2);
  CHECK(program.err().find("stopped") != std::string::npos);
  CHECK(is_one_line(program.err()));
  CHECK_FALSE(has_partial(run.folder.path()));
  CHECK_FALSE(std::filesystem::exists(run.at("out.jsonl")));
}

TEST_CASE("generate: mistakes end in one line") {
  Learned run;
  run.folder.write("wrong.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
  run.folder.write("torn.jsonl", "{\"prompt\": \"a\"\n");
  run.folder.write("empty.jsonl", "\n");
  run.folder.write("deep.jsonl", std::string(200'000, '['));
  run.folder.write("deeper.jsonl",
                   "{\"prompt\": \"a\", \"x\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}");
  run.folder.write("long.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"" + std::string(40, 'b') + "\"}\n");
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"out"}, "give either --prompt TEXT or --input FILE.jsonl"},
      {{"out", "--prompt", "a", "--input", "b"}, "give either"},
      {{"out", "--prompt", "a", "--output", "b"}, "--output is for --input"},
      {{"--prompt", "a"}, "name one run"},
      {{"out", "more", "--prompt", "a"}, "name one run"},
      {{"nowhere", "--prompt", "a"}, "nowhere: there is no such run or checkpoint"},
      {{"out", "--prompt", ""}, "the prompt is empty"},
      {{"out", "--prompt", std::string(33, 'a')}, "has 33 tokens, and the model has positions for 32"},
      {{"out", "--prompt", "a", "--temperature", "-1"}, "--temperature is -1, and must be from 0 to 1000"},
      {{"out", "--prompt", "a", "--top-p", "0"}, "--top-p is 0"},
      {{"out", "--prompt", "a", "--min-p", "2"}, "--min-p is 2"},
      {{"out", "--prompt", "a", "--top-k", "x"}, "see vernier generate --help"},
      {{"out", "--prompt", "a", "--max-tokens", "0"}, "--max-tokens is 0"},
      {{"out", "--prompt", "a", "--stop", ""}, "--stop needs a text"},
      {{"out", "--prompt", "a", "--tokenizer", "none"}, "none"},
      {{"out", "--prompt", "a", "--set", "task.layer=2"}, "layer"},
      {{"out", "--input", "none.jsonl"}, "none.jsonl: cannot be read"},
      {{"out", "--input", "wrong.jsonl", "--output", "o"}, "wrong.jsonl:2: must be a JSON object with a text in"},
      {{"out", "--prompt", "a", "--count", "2"}, "--count is for --input"},
      {{"out", "--prompt", "a", "--logprobs", "2"}, "--logprobs is for --input"},
      {{"out", "--prompt", "a", "--tokens", "f"}, "--tokens is for --listen"},
      {{"out", "--input", "long.jsonl", "--chat"}, "--chat is for --prompt"},
      {{"out", "--prompt", "a", "--chat"}, "the model's folder has no template for chats"},
      {{"out", "--prompt", "a", "--beams", "2", "--temperature", "1"}, "--temperature is for draws"},
      {{"out", "--prompt", "a", "--beams", "2", "--slide"}, "--slide and --beams do not go together"},
      {{"out", "--input", "long.jsonl", "--beams", "2", "--count", "3"}, "2 beams give as many texts at most"},
      {{"out", "--input", "long.jsonl", "--beams", "2", "--batch", "3"}, "--batch and --beams do not go together"},
      {{"out", "--prompt", "a", "--length-penalty", "2"}, "--length-penalty is for --beams"},
      {{"out", "--prompt", "a", "--beams", "2", "--early-stopping", "2"}, "must be no, yes or never"},
      {{"out", "--listen", "1.2.3.4:80"}, "is reached by other machines"},
      {{"out", "--listen", "here"}, "is not an address with a port"},
      {{"out", "--listen", "127.0.0.1:0", "--beams", "2"}, "--beams and --listen do not go together: requests draw"},
      {{"out", "--listen", "127.0.0.1:0", "--length-penalty", "2"}, "--length-penalty and --listen do not go together"},
      {{"out", "--listen", "127.0.0.1:0", "--seed", "2"}, "a request has its own \"seed\""},
      {{"out", "--chat", "--prompt", "[]"}, "\"messages\" must be an array"},
      {{"out", "--chat", "--prompt", R"([{"role": "user"}])"}, "message 1 has no text in \"content\""},
      {{"out", "--chat", "--prompt", R"([{"role": "user", "content": "a"})"}, "--prompt begins as JSON, and is not"},
      {{"out", "--input", "deep.jsonl"}, "deep.jsonl:1: must be a JSON object"},
      {{"out", "--input", "deeper.jsonl"}, "deeper.jsonl:1: must be a JSON object"},
      {{"out", "--input", "torn.jsonl", "--output", "o"}, "torn.jsonl:1: must be a JSON object"},
      {{"out", "--input", "empty.jsonl", "--output", "o"}, "empty.jsonl: has no line with a prompt"},
      {{"out", "--input", "wrong.jsonl", "--output", "wrong.jsonl"}, "wrong.jsonl"},
      {{"out", "--input", "long.jsonl", "--output", "o"}, "long.jsonl:2: the prompt has 40 tokens"},
  };
  for (const auto& [words, message] : cases) {
    const auto text = run.refused(words);
    CHECK_MESSAGE(text.find(message) != std::string::npos, text, " should have: ", message);
  }
  CHECK_FALSE(std::filesystem::exists(run.at("o")));
  CHECK_FALSE(has_partial(run.folder.path()));
}

TEST_CASE("generate: takes a published folder, with its tokenizer, another one, or numbers") {
  for (const char* variant : {"gpt2", "llama_grouped"}) {
    CAPTURE(variant);
    const PublishedFolder given(variant);
    RunFolder folder("");
    const auto model = given.folder / "model";
    const auto generate = [&](Words words) {
      words.insert(words.begin(), {"generate", model, "--max-tokens", "6"});
      const int status = folder.call(words);
      CHECK_MESSAGE(status == 0, folder.err);
      return folder.out;
    };
    const auto numbers = generate({"--prompt", "4 14 23", "--temperature", "0"});
    CHECK(numbers == generate({"--prompt", "4 14 23", "--temperature", "0", "--no-cache"}));
    CHECK(std::count(numbers.begin(), numbers.end(), ' ') == 6);
    // Ids below 29 of this tokenizer are punctuation.
    const auto punctuation = generate({"--prompt", "!\"#", "--tokenizer", tokenizers + "gpt2"});
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      std::error_code none;
      std::filesystem::copy_file(tokenizers + "gpt2/" + file, std::filesystem::path(model) / file, none);
    }
    CHECK(generate({"--prompt", "!\"#"}) == punctuation);
    CHECK(folder.call({"generate", model, "--prompt", "words"}) == 2);
    CHECK(folder.err.find("is it another model's tokenizer?") != std::string::npos);
  }
}

TEST_CASE("generate: a task without a language model is refused") {
  RunFolder folder("[run]\nsteps = 2\noutput = 'out'\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'adamw'\n");
  REQUIRE(folder.train({"--quiet"}) == 0);
  CHECK(folder.call({"generate", "out", "--prompt", "a"}) == 2);
  CHECK(folder.err ==
        "vernier: generate is for tasks with a language model, and task/mlp has none; see "
        "docs/guides/finetune.md\n");
}

}  // namespace generate_test
