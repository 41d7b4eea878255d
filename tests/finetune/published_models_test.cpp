// task/llama and task/gpt read published folders, compute what Hugging Face's transformers computes of them, and write
// them back. tests/oracles/README.md says how the reference was recorded.
#include <doctest/doctest.h>
#include <vernier/data/supervised_task.h>
#include <vernier/published_model.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "loaded_task.h"
#include "oracle.h"
#include "published_folder.h"
#include "same_tensors.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace published_models_test {

using vernier::Table;
using vernier::Tensors;
using Json = nlohmann::json;

namespace {

using published_folder::task_of;
using published_folder::variants_of;
using published_folder::weights_of;
using Folder = published_folder::PublishedFolder;

// Relative to the largest logit or gradient. Attention in another order moves them by 2e-6.
constexpr double tolerance = 1e-5;

torch::Tensor logits_of(const LoadedTask& task, const vernier::Batch& batch) {
  return static_cast<vernier::SupervisedTask&>(*task.task).forward(batch);
}

const vernier::PublishedModel& published(const LoadedTask& task) {
  return dynamic_cast<const vernier::PublishedModel&>(*task.task);
}

// In the order of their published names.
torch::Tensor gradients_of(const LoadedTask& task) {
  Tensors gradients;
  for (const auto& parameter : task.run.parameters) {
    gradients[published(task).published_name(parameter.name)] = parameter.model.grad().flatten();
  }
  std::vector<torch::Tensor> all;
  for (const auto& [name, gradient] : gradients) all.push_back(gradient);
  return at::cat(all);
}

void check_as_recorded(const LoadedTask& task, const Oracle& oracle, const std::string& variant) {
  const auto batch = task->next();
  CHECK(batch.tokens == batch.tensors[0].numel());
  CHECK(distance(logits_of(task, batch), oracle[variant + ".logits"]) <= tolerance);
  const auto loss = task->loss(batch);
  CHECK(std::abs(loss.item<double>() - oracle[variant + ".loss"].item<double>()) <= tolerance);
  loss.backward();
  const auto gradients = gradients_of(task);
  REQUIRE(gradients.sizes() == oracle[variant + ".gradients"].sizes());
  CHECK(distance(gradients, oracle[variant + ".gradients"]) <= tolerance);
}

}  // namespace

TEST_CASE("oracle published models: logits, loss and gradients of every variant are those of transformers") {
  const Oracle oracle("published_models");
  const auto variants = variants_of(oracle);
  REQUIRE(variants.size() == 61);
  for (const auto& variant : variants) {
    CAPTURE(variant);
    const Folder given(variant);
    check_as_recorded(given.load(), oracle, variant);
  }
}

TEST_CASE("oracle published models: blocks that are computed again in backward change no number") {
  for (const char* variant : {"gpt2", "llama", "gemma2", "smollm3_window"}) {
    CAPTURE(variant);
    const Folder given(variant);
    check_as_recorded(given.load({{"recompute", value("full")}}), given.oracle, variant);
  }
}

TEST_CASE("published models: a folder that is written back has the same tensors, names and logits") {
  for (const auto& variant :
       {"gpt2", "gpt2_untied", "llama", "llama_tied", "llama_biases", "mistral", "qwen2", "qwen3", "phi3_long", "gemma",
        "gemma2", "gemma3", "olmo2", "olmo3", "glm", "stablelm", "cohere", "smollm3", "granite"}) {
    CAPTURE(variant);
    const Folder given(variant);
    given.folder.write("model/tokenizer.json", "{}");
    const auto task = given.load();
    published(task).write_published(given.folder / "back");
    check_equal(vernier::load_safetensors(given.folder / "back/model.safetensors"), weights_of(given.oracle, variant));
    auto config = Json::parse(read_text(given.folder / "back/config.json"));
    CHECK(config["dtype"] == "float32");
    config.erase("dtype");
    CHECK(config == Json::parse(bytes_of(given.oracle[std::string(variant) + ".config"])));
    CHECK(read_text(given.folder / "back/tokenizer.json") == "{}");
    check_as_recorded(given.load({{"folder", value(given.folder / "back")}}), given.oracle, variant);
  }
}

TEST_CASE("published models: layers and adapters have the names that PEFT looks for") {
  const std::vector<std::array<const char*, 3>> all = {
      {"gpt2", "h.0.attn.c_attn", "transformer.h.0.attn.c_attn"},
      {"gpt2_untied", "lm_head", "lm_head"},
      {"gpt2_untied", "lm_head.lora_A.weight", "lm_head.lora_A.weight"},
      {"llama", "lm_head", "lm_head"},
      {"llama", "lm_head.weight", "lm_head.weight"},
      {"llama", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj"},
      {"phi3", "model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.qkv_proj"}};
  for (const auto& [variant, name, expected] : all) {
    CAPTURE(name);
    const Folder given(variant);
    CHECK(published(given.load()).published_name(name) == expected);
  }
}

TEST_CASE("published models: older and other forms of the same weights are read") {
  const auto check = [](const char* variant, const std::function<void(Json&, Tensors&)>& change) {
    const Folder given(variant, change);
    check_as_recorded(given.load(), given.oracle, variant);
  };
  const auto without = [](Tensors& weights, const std::string& prefix) {
    Tensors shorter;
    for (const auto& [name, tensor] : weights) {
      shorter[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = tensor;
    }
    weights = shorter;
  };
  check("gpt2", [&](Json&, Tensors& weights) { without(weights, "transformer."); });
  check("llama", [&](Json&, Tensors& weights) { without(weights, "model."); });
  check("gpt2", [](Json&, Tensors& weights) {
    weights["transformer.h.0.attn.bias"] = torch::ones({1, 1, 4, 4});
    weights["transformer.h.0.attn.masked_bias"] = torch::ones({});
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone();
  });
  check("llama",
        [](Json&, Tensors& weights) { weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch::ones({4}); });
  check("llama", [](Json& config, Tensors& weights) {
    for (auto& [name, tensor] : weights) tensor = tensor.to(torch::kFloat64);
    config["num_key_value_heads"] = nullptr;
    config["pretraining_tp"] = 1;
  });
}

TEST_CASE("published models: shards are read as the index names them") {
  const Folder given("llama");
  const auto weights = weights_of(given.oracle, "llama");
  const auto half = std::next(weights.begin(), 9);
  Json map;
  for (auto each = weights.begin(); each != weights.end(); ++each) {
    map[each->first] = std::distance(weights.begin(), each) < 9 ? "a.safetensors" : "b.safetensors";
  }
  const auto write = [&] {
    given.folder.write("model/model.safetensors.index.json",
                       Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
  };
  vernier::save_safetensors(given.folder / "model/a.safetensors", {weights.begin(), half});
  vernier::save_safetensors(given.folder / "model/b.safetensors", {half, weights.end()});
  std::filesystem::remove(given.folder / "model/model.safetensors");
  write();
  check_as_recorded(given.load(), given.oracle, "llama");
  map["model.norm.weight"] = "../b.safetensors";
  write();
  CHECK(contains(given.refusal_of(), "must be the name of a file in this folder"));
  std::filesystem::remove(given.folder / "model/b.safetensors");
  map["model.norm.weight"] = "b.safetensors";
  write();
  CHECK(contains(given.refusal_of(), "b.safetensors"));
}

TEST_CASE("published models: a malformed folder ends in one line that names file and tensor") {
  struct Malformed {
    const char* variant;
    std::function<void(Json&, Tensors&)> change;
    const char* message;
  };
  const std::string query = "model.layers.1.self_attn.q_proj.weight";
  const std::vector<Malformed> all = {
      {"llama", [&](Json&, Tensors& w) { w.erase(query); }, "have no tensor model.layers.1.self_attn.q_proj.weight"},
      {"llama",
       [&](Json&, Tensors& w) {
         w[query] = torch::ones({16, 8});
       },
       "is [16, 8], and must be [16, 16]"},
      {"llama",
       [&](Json&, Tensors& w) {
         w[query] = torch::ones({16, 16}, torch::kInt64);
       },
       "has the dtype Long"},
      {"llama", [](Json&, Tensors& w) { w["model.extra"] = torch::ones({2}); }, "'model.extra': is not one of the"},
      {"llama", [](Json&, Tensors& w) { w["norm.weight"] = torch::ones({16}); }, "is there twice"},
      {"llama", [](Json&, Tensors& w) { w["model.norm.weight"] = torch::full({16}, std::nan("")); },
       "model.safetensors: tensor 'model.norm.weight': has a number that is not finite"},
      {"llama",
       [](Json&, Tensors& w) {
         w["lm_head.weight"] = torch::full({29, 16}, 1e39, torch::kFloat64);
       },
       "'lm_head.weight': has a number that is not finite"},
      {"gpt2",
       [](Json&, Tensors& w) {
         w["lm_head.weight"] = torch::ones({29, 8});
       },
       "differs from the token embedding"},
      {"gpt2", [](Json& c, Tensors&) { c.erase("model_type"); }, "model_type is missing, and must be \"gpt2\""},
      {"gpt2", [](Json& c, Tensors&) { c["model_type"] = "bloom"; }, "model_type is \"bloom\""},
      {"gpt2", [](Json& c, Tensors&) { c["n_embd"] = "wide"; }, "n_embd is \"wide\", and must be a whole number"},
      {"gpt2", [](Json& c, Tensors&) { c["n_layer"] = -1; }, "n_layer is -1, and must be a whole number"},
      {"gpt2", [](Json& c, Tensors&) { c["n_head"] = 3; }, "n_head is 3, which does not divide n_embd, 8"},
      {"gpt2", [](Json& c, Tensors&) { c["activation_function"] = "mish"; }, "is \"mish\", and must be one of gelu,"},
      {"gpt2", [](Json& c, Tensors&) { c["add_cross_attention"] = true; }, "has no encoder"},
      {"gpt2", [](Json& c, Tensors&) { c["sliding_window"] = 4; }, "sliding_window is 4, and gpt2 has no windows"},
      {"granite", [](Json& c, Tensors&) { c["sliding_window"] = 4; },
       "sliding_window is 4, and granite has no windows"},
      {"gpt2", [](Json& c, Tensors&) { c["quantization_config"] = Json::object(); }, "weights are quantised"},
      {"gpt2", [](Json& c, Tensors&) { c["n_positions"] = 7; }, "tensor 'transformer.wpe.weight': is [24, 8]"},
      {"llama", [](Json& c, Tensors&) { c["num_key_value_heads"] = 3; }, "which does not divide num_attention_heads"},
      {"llama", [](Json& c, Tensors&) { c["head_dim"] = 7; }, "need an even width"},
      {"llama",
       [](Json& c, Tensors&) {
         c["rope_scaling"] = {{"type", "longrope"}};
       },
       "must be default, linear,"},
      {"llama",
       [](Json& c, Tensors&) {
         c["rope_scaling"] = {{"type", "linear"}};
       },
       "rope_scaling.factor is missing"},
      {"llama", [](Json& c, Tensors&) { c["rope_parameters"] = 3; }, "rope_parameters is 3, and must be an object"},
      {"llama", [](Json& c, Tensors&) { c["tie_word_embeddings"] = "no"; }, "must be true or false"},
      {"llama", [](Json& c, Tensors&) { c = Json::array(); }, "is not a JSON object"},
      {"llama", [](Json& c, Tensors&) { c["model_type"] = "bloom"; },
       "must be one of \"llama\", \"mistral\", \"qwen2\""},
      {"llama", [](Json& c, Tensors&) { c["model_type"] = "bloom"; },
       "\n  export.save(model, [], \"model.pt2\", kwargs={\"input_ids\": tokens, \"labels\": tokens})"},
      {"llama", [](Json& c, Tensors&) { c["pad_token_id"] = 29; }, "pad_token_id is 29, and must be below 29"},
      {"stablelm", [](Json& c, Tensors&) { c["qk_layernorm"] = true; }, "qk_layernorm is true, and norms of queries"},
      {"mistral", [](Json& c, Tensors&) { c["sliding_window"] = "six"; }, "sliding_window is \"six\""},
      {"qwen3_types", [](Json& c, Tensors&) { c["layer_types"] = {"full_attention"}; },
       "must name the type of each of 2 layers"},
      {"qwen3_types",
       [](Json& c, Tensors&) {
         c["layer_types"] = {"full_attention", "chunked_attention"};
       },
       "this task has full_attention and sliding_attention"},
      {"qwen3_types", [](Json& c, Tensors&) { c["use_sliding_window"] = false; }, "sliding_window gives no window"},
      {"qwen3_types", [](Json& c, Tensors&) { c["layer_types"] = 3; }, "layer_types is 3, and must be a list of texts"},
      {"phi3_long", [](Json& c, Tensors&) { c["rope_scaling"]["long_factor"] = {1.0}; }, "must have 2 numbers"},
      {"phi3_long",
       [](Json& c, Tensors&) { c["rope_scaling"]["type"] = "linear", c["rope_scaling"].erase("rope_type"); },
       "must be default or longrope for this model"},
      {"phi3_partial", [](Json& c, Tensors&) { c["partial_rotary_factor"] = 0.4; }, "an even number of a head's 8"},
      {"gemma", [](Json& c, Tensors&) { c["use_bidirectional_attention"] = true; }, "a causal model sees the tokens"},
      {"gemma3",
       [](Json& c, Tensors&) {
         c["rope_parameters"] = {{"rope_theta", 3.0}};
       },
       "must have full_attention and"},
      {"gemma3", [](Json& c, Tensors&) { c["model_type"] = "gemma3"; }, "model_type is \"gemma3\", and must be one of"},
      {"smollm3_window", [](Json& c, Tensors&) { c["no_rope_layers"] = {1}; },
       "must have a number for each of 2 layers"},
  };
  for (const auto& [variant, change, message] : all) {
    const auto text = Folder(variant, change).refusal_of();
    CHECK_MESSAGE(contains(text, message), text, " is the error, and should have: ", message);
    const auto first = text.substr(0, text.find('\n'));
    CHECK((first == text || first.ends_with(":")));  // lines of Python may follow
  }
}

TEST_CASE("published models: files that are missing or no tokens of the model are refused") {
  const Folder given("gpt2");
  CHECK(contains(given.refusal_of({{"folder", value("meta-llama/none")}}), "models are not downloaded"));
  CHECK(contains(given.refusal_of({{"context", value(25)}}), "has positions for 24 tokens"));
  given.folder.write("large.bin", std::string(100, '\x1d'));
  const auto large = list<std::string>({given.folder / "large.bin"});
  const auto batch_of_large = [&] { given.load({{"data", large}, {"token_type", value("uint8")}})->next(); };
  CHECK(contains(thrown_by(batch_of_large).text, "has the token 29"));
  given.folder.write("model/model.safetensors", "torn");
  CHECK(contains(given.refusal_of(), "model.safetensors"));
  std::filesystem::remove(given.folder / "model/model.safetensors");
  CHECK(contains(given.refusal_of(), "Set weights = \"random\""));
  for (const char* name : {"model/pytorch_model.bin.index.json", "model/pytorch_model.bin"}) {
    given.folder.write(name, "");
    CHECK(contains(given.refusal_of(), "save it with safetensors in Python"));
    std::filesystem::remove(given.folder / name);
  }
}

TEST_CASE("published models: config.json alone is enough for random weights, which follow from the seed") {
  for (const char* variant : {"gpt2_untied", "llama"}) {
    CAPTURE(variant);
    const Folder given(variant);
    std::filesystem::remove(given.folder / "model/model.safetensors");
    const auto table = given.table({{"weights", value("random")}});
    const LoadedTask task(task_of(variant), table, 3), same(task_of(variant), table, 3),
        other(task_of(variant), table, 4);
    for (const auto& [name, weight, master, frozen, owned] : task.run.parameters) {
      CAPTURE(name);
      CHECK(torch::equal(weight, same.parameter(name)));
      if (weight.dim() == 1) {
        CHECK(torch::all(weight == (name.ends_with("weight") ? 1 : 0)).item<bool>());
      } else {
        CHECK(weight.std().item<double>() < 0.03);
        CHECK_FALSE(torch::equal(weight, other.parameter(name)));
      }
    }
  }
}

TEST_CASE("published models: training lowers the loss, and a validation reports the perplexity") {
  const Folder given("llama_grouped");
  auto task = given.load({{"validation", list<std::string>({given.folder / "tokens.bin"})}});
  const double before = task.validate();
  CHECK(task.run.metrics.value("perplexity").value() == doctest::Approx(std::exp(before)));
  for (int i = 0; i < 10; ++i) task.descend(task->next(), 0.1);
  CHECK(task.validate() < before - 0.5);
}

}  // namespace published_models_test
