// The loss of an update of texts is the mean over the tokens that it learns, in whatever batches it is computed.
#include <doctest/doctest.h>

#include <cmath>

#include "run_folder.h"

namespace token_weights_test {

namespace {

using Words = std::vector<std::string>;

// Four samples that learn two tokens, then four that learn many.
struct UnevenTexts : RunFolder {
  UnevenTexts()
      : RunFolder(R"(
[run]
steps = 1
output = "out"
threads = 1
device = "cpu"
[task]
use = "llama"
folder = "m"
weights = "random"
data = ["d.jsonl"]
context = 64
batch_size = 8
packing = false
order = "sequential"
validation_share = 0.0
[optimizer]
use = "sgd"
learning_rate = 1.0
[[callback]]
use = "clip_norm"
max_norm = 1e9
[[monitor]]
use = "jsonl"
)") {
    std::filesystem::create_directories(at("m"));
    std::filesystem::copy_file(VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/llama3/tokenizer.json",
                               at("m/tokenizer.json"));
    folder.write("m/config.json",
                 R"({"model_type": "llama", "vocab_size": 404, "hidden_size": 32, "intermediate_size": 64,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": true})");
    std::string lines;
    for (int i = 0; i < 4; ++i) lines += "{\"prompt\":\"p q r s t u v w x y z \",\"completion\":\" a\"}\n";
    for (int i = 0; i < 4; ++i) {
      lines +=
          "{\"prompt\":\"p\",\"completion\":\" never abc abc never abc never abc abc never never never abc abc "
          "abc\"}\n";
    }
    folder.write("d.jsonl", lines);
  }
  static Words sets_of(const Words& sets) {
    Words words = {"--quiet"};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    return words;
  }
  nlohmann::json trained(const Words& sets) {
    std::filesystem::remove_all(at("out"));
    REQUIRE_MESSAGE(train(sets_of(sets)) == 0, err);
    std::istringstream lines(read_text(at("out/losses.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      auto json = nlohmann::json::parse(line);
      if (json.contains("grad_norm")) return json;
    }
    return {};
  }
};

}  // namespace

TEST_CASE("token weights: loss and gradient of an update are those of one batch, with every accumulation") {
  UnevenTexts run;
  const std::string target = "accumulation.use=target", of_8 = "accumulation.target_effective_batch_size=8";
  const std::vector<Words> cases = {
      {},
      {"accumulation.micro_batches=4"},
      {"task.batch_size=4", target, of_8},
      {"task.batch_size=2", target, of_8, "accumulation.micro_batch_size=3"},
      {"task.batch_size=4", target, of_8, "accumulation.micro_batch_size=8"},
      {"task.batch_size=4", "accumulation.use=schedule", "accumulation.effective_batch_size=[8]"},
      {"accumulation.use=fit", "accumulation.largest=3"},
  };
  for (const auto& sets : cases) {
    CAPTURE(sets);
    const auto line = run.trained(sets);
    CHECK(line["loss"].get<double>() == doctest::Approx(6.028315).epsilon(1e-6));
    CHECK(line["grad_norm"].get<double>() == doctest::Approx(2.906396).epsilon(1e-5));
  }
  for (const char* accumulation : {"fixed", "target", "fit"}) {
    Words sets = {std::string("accumulation.use=") + accumulation, "accumulation.weight=tokens",
                  "accumulation.weight_column=1"};
    if (accumulation == std::string("target")) sets.push_back(of_8);
    CHECK(run.train(UnevenTexts::sets_of(sets)) == 2);
    CHECK(is_one_line(run.err));
    CHECK_MESSAGE(run.err.find("task/llama weighs them itself; leave it out") != std::string::npos, run.err);
  }
}

}  // namespace token_weights_test
