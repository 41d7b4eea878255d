// task/text on a published model's folder. tests/oracles/README.md says how the reference was recorded.
#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/model_adapter.h>
#include <vernier/published_model.h>
#include <vernier/safetensors.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "loaded_data_task.h"
#include "oracle.h"
#include "python.h"
#include "same_tensors.h"
#include "small_run.h"
#include "task_cases.h"
#include "temporary_folder.h"

namespace text_heads_test {

using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* variants[] = {"gpt2", "gpt2_untied", "llama_grouped", "qwen3", "phi3", "gemma"};

// A folder with a recorded model, which has a head of three classes already, and a table of texts.
struct HeadFolder {
  explicit HeadFolder(const std::string& name) : variant(name) {
    fs::create_directories(model());
    std::ofstream(model() + "/config.json") << bytes_of(oracle[variant + ".config"]);
    const auto tokenizer = bytes_of(oracle[variant + ".tokenizer"]);
    fs::copy(VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/" + tokenizer + "/tokenizer.json", model());
    const auto start = variant + ".weight.";
    for (const auto& [key, tensor] : oracle.tensors()) {
      if (key.starts_with(start)) weights[key.substr(start.size(), key.find(' ') - start.size())] = tensor;
    }
    vernier::save_safetensors(model() + "/model.safetensors", weights);
    std::string rows = "text,label\n";
    const auto texts = Json::parse(bytes_of(oracle["texts"]));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      rows += texts[i].dump() + "," + std::array{"a", "b", "c"}.at(i % 3) + "\n";
    }
    folder.write("texts.csv", rows);
  }
  std::string model() const { return folder / "model"; }
  vernier::Table options(const std::string& more = "") const {
    return options_of(folder / "texts.csv", "folder = '" + model() + "'; validation_share = 0; " + more);
  }
  torch::Tensor logits_of(const LoadedTask& task) const {
    const torch::NoGradGuard no_grad;
    const auto inputs = predictor(task).read_inputs(folder / "texts.csv");
    return supervised(task).forward(supervised(task).loader_of(inputs).next());
  }

  Oracle oracle{"text_heads"};
  TemporaryFolder folder;
  std::string variant;
  vernier::Tensors weights;
};

// The task with the recorded head in the place of the new one.
struct LoadedHead : LoadedTask {
  explicit LoadedHead(const HeadFolder& given) : LoadedTask("text", given.options()) {
    const torch::NoGradGuard no_grad;
    run.model->named_parameters()["score.weight"].copy_(given.weights.at("score.weight"));
    run.model->eval();
  }
};

}  // namespace

TEST_CASE("text: a published model with a head says what transformers says, whatever a batch is filled up with") {
  for (const auto* variant : variants) {
    CAPTURE(variant);
    const HeadFolder given(variant);
    const LoadedHead task(given);
    CHECK(distance(given.logits_of(task), given.oracle[given.variant + ".logits"]) <= 1e-5);
    const auto& published = dynamic_cast<const vernier::PublishedModel&>(*task.task);
    for (const auto& parameter : task.run.parameters) {
      CAPTURE(parameter.name);
      CHECK(given.weights.contains(published.published_name(parameter.name)));
    }
    const auto written = given.folder / "written";
    published.write_published(written);
    const auto tensors = vernier::load_safetensors(written + "/model.safetensors");
    CHECK(tensors.size() == given.weights.size());
    for (const auto& [name, tensor] : given.weights) CHECK(tensors.at(name).equal(tensor));
    std::ifstream file(written + "/config.json");
    const auto config = Json::parse(file);
    CHECK(config.at("id2label") == Json{{"0", "a"}, {"1", "b"}, {"2", "c"}});
    CHECK(config.at("problem_type") == "single_label_classification");
  }
}

TEST_CASE("text: transformers would take the token that ends a text for padding, so the export is refused") {
  const HeadFolder given("llama_grouped");
  const auto path = given.model() + "/tokenizer.json";
  auto tokenizer = Json::parse(std::ifstream(path));
  auto& around = tokenizer["post_processor"]["processors"][1]["single"];
  std::swap(around[0], around[1]);  // the token stands behind the text
  given.folder.write("model/tokenizer.json", tokenizer.dump());
  auto config = Json::parse(bytes_of(given.oracle["llama_grouped.config"]));
  const auto id = tokenizer["post_processor"]["processors"][1]["special_tokens"].front()["ids"][0];
  config["eos_token_id"] = id;
  given.folder.write("model/config.json", config.dump());
  const LoadedHead task(given);
  const auto& published = dynamic_cast<const vernier::PublishedModel&>(*task.task);
  CHECK(says(refusal([&] { published.write_published(given.folder / "written"); }), "which is pad_token_id"));
  config["pad_token_id"] = 0;
  given.folder.write("model/config.json", config.dump());
  const LoadedHead other(given);
  CHECK(refusal([&] {
          dynamic_cast<const vernier::PublishedModel&>(*other.task).write_published(given.folder / "written");
        }) == "");
}

TEST_CASE("text: transformers reads the folder that is written") {
  if (!has_python("torch, transformers")) return;
  const HeadFolder given("llama_grouped");
  const LoadedHead task(given);
  dynamic_cast<const vernier::PublishedModel&>(*task.task).write_published(given.folder / "written");
  std::string out;
  CHECK_MESSAGE(python("'" VERNIER_SOURCE_DIR "/tests/plugins/task/texts/read_head.py'", given.folder.path(), out) == 0,
                out);
}

TEST_CASE("text: what a published model cannot do is refused in one line") {
  const HeadFolder given("gpt2");
  const auto refused = [&](const std::string& more) {
    return refusal([&] { LoadedTask("text", given.options(more)); });
  };
  CHECK(says(refused("width = 8"), "`width` is for an encoder of your own, and `folder` names a model"));
  CHECK(says(refused("vocabulary = 300"), "`vocabulary` is for an encoder of your own"));
  CHECK(says(refused("tokenizer = 'nowhere'"), "nowhere"));
  const auto with = [&](const std::string& name, const std::string& text) {
    given.folder.write("model/" + name, text);
    return refused("");
  };
  auto config = Json::parse(bytes_of(given.oracle["gpt2.config"]));
  given.folder.write("texts.csv", "text,label\n\"\",a\nb,b\n");
  CHECK(says(refused("missing_words = []"), "line 2"));
  given.folder.write("texts.csv", "text,label\nsome words that are long,a\nb,b\n");
  config["n_positions"] = 4;
  given.folder.write("model/config.json", config.dump());
  CHECK(says(refused("length = 8"), "positions for 4; set length = 4"));
  config["model_type"] = "bert";
  CHECK(says(with("config.json", config.dump()), "bert"));
}

TEST_CASE("text: an adapter trains the new head whole") {
  const HeadFolder given("llama_grouped");
  LoadedHead task(given);
  const auto adapter = make_plugin<vernier::Callback>("callback/lora", {});
  auto& lora = dynamic_cast<vernier::ModelAdapter&>(*adapter);
  lora.adapt(task.run);
  std::vector<std::string> trained;
  for (const auto& entry : task.run.model->named_parameters()) {
    if (entry.value().requires_grad() && entry.key().find("lora") == std::string::npos) trained.push_back(entry.key());
  }
  CHECK(trained == std::vector<std::string>{"score.weight"});
  lora.write_adapter(given.folder / "adapter", dynamic_cast<const vernier::PublishedModel*>(task.task.get()));
  std::ifstream file(given.folder / "adapter/adapter_config.json");
  const auto config = Json::parse(file);
  CHECK(config.at("task_type") == "SEQ_CLS");
  CHECK(config.at("modules_to_save") == Json{"score"});
  const auto tensors = vernier::load_safetensors(given.folder / "adapter/adapter_model.safetensors");
  CHECK(tensors.contains("base_model.model.score.weight"));
  CHECK(tensors.contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
}

}  // namespace text_heads_test
