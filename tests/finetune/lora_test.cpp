// callback/lora trains what Hugging Face's PEFT trains, and writes what PEFT reads. tests/oracles/README.md says how
// the reference was recorded.
#include <c10/util/Float8_e4m3fn.h>
#include <doctest/doctest.h>
#include <vernier/data/supervised_task.h>
#include <vernier/model_adapter.h>
#include <vernier/published_model.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compact_weight.h"
#include "loaded_task.h"
#include "oracle.h"
#include "run_folder.h"
#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"

namespace lora_test {

using vernier::Tensors;

namespace {

constexpr double tolerance = 1e-5;

// The options of each recorded case, as lora.py has them.
struct Case {
  const char *name, *task, *options;
};
constexpr Case cases[] = {
    {"llama", "llama", "rank = 3\nalpha = 6.0\ntargets = ['*.q_proj', '*.v_proj', '*.down_proj']\n"},
    {"gpt2", "gpt",
     "rank = 2\nalpha = 5.0\ntargets = ['*.c_attn', '*.c_proj']\nfan_in_fan_out = true\nrslora = true\n"},
    {"dropout", "gpt", "rank = 2\nalpha = 4.0\nfan_in_fan_out = true\ndropout = 0.3\n"},
    {"dora", "llama", "rank = 3\nalpha = 6.0\ntargets = ['*.q_proj', '*.down_proj']\ndora = true\n"},
    {"dora_dropout", "gpt",
     "rank = 2\nalpha = 4.0\nfan_in_fan_out = true\ndropout = 0.3\ndora = true\nmodules_to_save = ['lm_head']\n"},
};

// The recorded tensors whose names begin so, without the beginning.
Tensors part_of(const Oracle& oracle, const std::string& begin) {
  Tensors part;
  for (const auto& [name, tensor] : oracle.tensors()) {
    if (name.starts_with(begin)) part[name.substr(begin.size())] = tensor;
  }
  return part;
}

// A folder with the base model of a case, its tokens, and the run that trains an adapter of it.
struct Given {
  explicit Given(const Case& which) : name(which.name) {
    folder.write("base/config.json", bytes_of(oracle[name + ".config"]));
    vernier::save_safetensors(folder / "base/model.safetensors", part_of(oracle, name + ".base."));
    folder.write("tokens.bin", bytes_of(oracle["tokens"].to(torch::kInt16)));
    const std::string task = std::string("[task]\nuse = '") + which.task + "'\nfolder = '" + (folder / "base") +
                             "'\ndata = ['" + (folder / "tokens.bin") + "']\nvalidation = ['" +
                             (folder / "tokens.bin") + "']\ncontext = 12\nbatch_size = 2\norder = 'sequential'\n";
    toml = "[run]\nsteps = 5\ndevice = 'cpu'\nthreads = 1\noutput = 'out'\n" + task +
           "[optimizer]\nuse = 'adamw'\nlearning_rate = 1e-2\nweight_decay = 0.0\n[[callback]]\nuse = 'lora'\n" +
           which.options;
  }
  Oracle oracle{"lora"};
  TemporaryFolder folder;
  std::string name, toml;
};

vernier::ModelAdapter& adapter_of(SmallRun& run) {
  for (auto* plugin : run.wiring->plugins()) {
    if (auto* adapter = dynamic_cast<vernier::ModelAdapter*>(plugin)) return *adapter;
  }
  FAIL("the run has no adapter");
  std::abort();
}

// The tensors that PEFT would read.
Tensors written_by(SmallRun& run, const std::string& folder) {
  const auto* published = dynamic_cast<const vernier::PublishedModel*>(run.wiring->task.get());
  REQUIRE(published != nullptr);
  adapter_of(run).write_adapter(folder, published);
  return vernier::load_safetensors(folder + "/adapter_model.safetensors");
}

Tensors weights_of(const vernier::Run& run) {
  Tensors weights;
  for (const auto& entry : run.model->named_parameters()) {
    if (entry.key().find("lora_") == std::string::npos) weights[entry.key()] = entry.value().detach().clone();
  }
  return weights;
}

std::vector<double> losses_of(SmallRun& run) {
  std::vector<double> losses;
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) { losses.push_back(now.loss.item<double>()); });
  torch::manual_seed(2);  // the seed of dropout is the script's
  run.train();
  return losses;
}

}  // namespace

TEST_CASE("oracle lora: start, losses, trained matrices and merged logits are PEFT's") {
  for (const auto& which : cases) {
    CAPTURE(which.name);
    const Given given(which);
    const auto& oracle = given.oracle;
    SmallRun run(from_toml({given.toml + "[checkpoint]\nuse = 'none'\n"}), given.folder.path());
    check_equal(written_by(run, given.folder / "start"), part_of(oracle, given.name + ".start."));
    const auto before = weights_of(run.run);
    const auto losses = losses_of(run);
    const auto wanted = oracle[given.name + ".losses"];
    REQUIRE(std::ssize(losses) == wanted.numel());
    CHECK(distance(torch::tensor(losses), wanted) <= tolerance);
    if (given.toml.find("modules_to_save") == std::string::npos) check_equal(weights_of(run.run), before);
    const auto end = written_by(run, given.folder / "end");
    for (const auto& [name, tensor] : part_of(oracle, given.name + ".end.")) {
      CAPTURE(name);
      REQUIRE(end.count(name) == 1);
      CHECK(distance(end.at(name), tensor) <= 10 * tolerance);
    }
    adapter_of(run).merge();
    run.run.model->eval();
    const auto tokens = oracle["tokens"].unfold(0, 12, 12).narrow(0, 0, 2).contiguous();
    const torch::NoGradGuard no_grad;
    const auto logits = static_cast<vernier::SupervisedTask&>(*run.wiring->task).forward({{tokens}, 2, 24});
    CHECK(distance(logits, oracle[given.name + ".logits"]) <= tolerance);
    for (const auto& entry : run.run.model->named_parameters()) CHECK(before.count(entry.key()) == 1);
  }
}

TEST_CASE("oracle lora: an adapter of PEFT is trained on as PEFT does, with its matrices, rows and whole layers") {
  for (const auto& which : cases) {
    CAPTURE(which.name);
    const Given given(which);
    const auto tensors = part_of(given.oracle, given.name + ".end.");
    given.folder.write("adapter/adapter_config.json", bytes_of(given.oracle[given.name + ".adapter"]));
    vernier::save_safetensors(given.folder / "adapter/adapter_model.safetensors", tensors);
    const auto toml =
        given.toml.substr(0, given.toml.find("rank =")) + "adapter = '" + (given.folder / "adapter") + "'\n";
    SmallRun run(from_toml({toml + "[checkpoint]\nuse = 'none'\n"}), given.folder.path());
    check_equal(written_by(run, given.folder / "start"), tensors);
    CHECK(distance(torch::tensor(losses_of(run)), given.oracle[given.name + ".again"]) <= tolerance);
  }
}

TEST_CASE("lora: an adapter that is not known in full is refused by name") {
  const Given given(cases[0]);
  const auto config = nlohmann::json::parse(bytes_of(given.oracle["llama.adapter"]));
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";
  struct Wrong {
    nlohmann::json change;
    std::string removed, added;
    const char* message;
  };
  const std::vector<Wrong> all = {
      {{{"peft_type", "LOHA"}}, "", "", "peft_type"},
      {{{"bias", "all"}}, "", "", "bias is \"all\""},
      {{{"rank_pattern", {{"q_proj", 4}}}}, "", "", "rank_pattern"},
      {{{"of_tomorrow", true}}, "", "", "of_tomorrow"},
      {{{"init_lora_weights", "pissa"}}, "", "", "init_lora_weights"},
      {{{"lora_alpha", nullptr}}, "", "", "lora_alpha"},
      {{{"r", 2}}, "", "", "must be [2"},
      {{{"use_dora", true}}, "", "", "lora_magnitude_vector"},
      {{}, layer + "lora_B.weight", "", "lora_B.weight"},
      {{}, "", layer + "lora_C.weight", "lora_C.weight"},
      {{}, "", "base_model.model.other.lora_A.weight", "the layer 'other'"},
  };
  for (const auto& [change, removed, added, message] : all) {
    CAPTURE(message);
    auto changed = config;
    if (change.is_object()) changed.update(change);
    auto tensors = part_of(given.oracle, "llama.end.");
    tensors.erase(removed);
    if (!added.empty()) tensors[added] = torch::ones({3, 4});
    given.folder.write("adapter/adapter_config.json", changed.dump());
    vernier::save_safetensors(given.folder / "adapter/adapter_model.safetensors", tensors);
    const auto toml =
        given.toml.substr(0, given.toml.find("rank =")) + "adapter = '" + (given.folder / "adapter") + "'\n";
    const auto thrown = thrown_by([&] { SmallRun run(from_toml({toml}), given.folder.path()); });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, message), thrown.text);
    CHECK_MESSAGE(says(thrown.text, given.folder / "adapter"), thrown.text);
  }
}

TEST_CASE("lora: the folder for PEFT has what its reader would take defaults for") {
  const Given given(cases[1]);
  SmallRun run(from_toml({given.toml}), given.folder.path());
  written_by(run, given.folder / "adapter");
  const auto config = nlohmann::json::parse(read_text(given.folder / "adapter/adapter_config.json"));
  CHECK(config["peft_type"] == "LORA");
  CHECK(config["task_type"] == "CAUSAL_LM");
  CHECK(config["r"] == 2);
  CHECK(config["lora_alpha"] == 5.0);
  CHECK(config["use_rslora"] == true);
  CHECK(config["fan_in_fan_out"] == true);
  CHECK(config["bias"] == "none");
  CHECK(config["base_model_name_or_path"] == given.folder / "base");
  CHECK(config["target_modules"].size() == 6);
  CHECK(config["target_modules"][0] == "transformer.h.0.attn.c_attn");
}

// PEFT copies each layer of modules_to_save: peft 0.21 gives the run's loss with both names alone.
TEST_CASE("lora: the adapter of a tied model has its embedding under each name, and is read again") {
  struct Tied {
    const Case& which;
    const char *pattern, *embedding;
  };
  for (const auto& [which, pattern, embedding] :
       {Tied{cases[0], "*embed_tokens", "model.embed_tokens"}, Tied{cases[1], "*wte", "transformer.wte"}}) {
    CAPTURE(which.name);
    const Given given(which);
    auto config = nlohmann::json::parse(bytes_of(given.oracle[given.name + ".config"]));
    config["tie_word_embeddings"] = true;
    given.folder.write("base/config.json", config.dump());
    auto base = part_of(given.oracle, given.name + ".base.");
    base.erase("lm_head.weight");
    vernier::save_safetensors(given.folder / "base/model.safetensors", base);
    SmallRun run(from_toml({given.toml + "modules_to_save = ['" + pattern + "']\n"}), given.folder.path());
    run.train();
    const auto written = written_by(run, given.folder / "adapter");
    const std::string prefix = "base_model.model.";
    REQUIRE(written.contains(prefix + "lm_head.weight"));
    CHECK(written.at(prefix + "lm_head.weight").equal(written.at(prefix + embedding + ".weight")));
    const auto said = nlohmann::json::parse(read_text(given.folder / "adapter/adapter_config.json"));
    CHECK(said["modules_to_save"] == nlohmann::json{"lm_head", embedding});
    CHECK(said["ensure_weight_tying"] == true);
    const auto toml =
        given.toml.substr(0, given.toml.find("rank =")) + "adapter = '" + (given.folder / "adapter") + "'\n";
    SmallRun again(from_toml({toml + "[checkpoint]\nuse = 'none'\n"}), given.folder.path());
    check_equal(written_by(again, given.folder / "again"), written);
  }
}

TEST_CASE("lora: only its matrices train, also in 16 bits and where blocks are computed again") {
  const Given given(cases[0]);
  const auto trained = [&](const std::string& more) {
    SmallRun run(from_toml({given.toml, "[checkpoint]\nuse = 'none'\n" + more}), given.folder.path());
    CHECK(run.run.parameters.size() == 6);
    for (const auto& parameter : run.run.parameters) CHECK(parameter.name.find(".lora_") != std::string::npos);
    return losses_of(run);
  };
  const auto plain = trained("");
  CHECK(trained("[task]\nrecompute = 'full'\n") == plain);
  for (const char* level : {"O1", "O2"}) {
    CAPTURE(level);
    const auto losses = trained(std::string("[precision]\nuse = 'bf16'\nlevel = '") + level + "'\n");
    CHECK(distance(torch::tensor(losses), torch::tensor(plain)) < 2e-2);
    CHECK(losses != plain);
  }
}

namespace {

// The nearest of the 16 numbers that bitsandbytes has.
float nearest_nf4(float number) {
  static const auto table = Oracle("lora")["nf4.table"];
  const auto* first = table.const_data_ptr<float>();
  return *std::min_element(first, first + 16,
                           [&](float a, float b) { return std::abs(a - number) < std::abs(b - number); });
}

// A matrix that was stored in 8 or 4 bits, one element after the other, with a scale for each 64 of them.
torch::Tensor stored(const torch::Tensor& matrix, const std::string& base) {
  auto result = matrix.to(torch::kFloat32).contiguous().clone();
  auto* numbers = result.mutable_data_ptr<float>();
  for (std::int64_t begin = 0; begin < result.numel(); begin += 64) {
    float largest = 0;
    const auto end = std::min<std::int64_t>(begin + 64, result.numel());
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(numbers[i]));
    const float scale = largest > 0 ? largest / (base == "int8" ? 127.0F : base == "fp8" ? 448.0F : 1.0F) : 1.0F;
    for (std::int64_t i = begin; i < end; ++i) {
      const float steps = numbers[i] / scale;
      numbers[i] = scale * (base == "int8"  ? std::nearbyint(steps)
                            : base == "fp8" ? static_cast<float>(c10::Float8_e4m3fn(steps))
                                            : nearest_nf4(steps));
    }
  }
  return result;
}

// The published name, with or without the prefix of the family.
torch::Tensor& weight_of(Tensors& weights, const std::string& layer) {
  const auto name = layer + ".weight", prefix = std::string("transformer.");
  return weights.count(name) == 1 ? weights.at(name) : weights.at(name.substr(prefix.size()));
}

}  // namespace

TEST_CASE("lora: a base in 8 or 4 bits trains as the numbers do that it stands for, and is exported with them") {
  for (const auto& which : {cases[0], cases[1]}) {
    for (const std::string base : {"int8", "fp8", "nf4"}) {
      CAPTURE(which.name);
      CAPTURE(base);
      const Given given(which);
      const std::string no_checkpoint = "[checkpoint]\nuse = 'none'\n";
      SmallRun compact(from_toml({given.toml + "base = '" + base + "'\n" + no_checkpoint}), given.folder.path());
      auto numbers = part_of(given.oracle, given.name + ".base.");
      const std::string begin = "base_model.model.", end = ".lora_A.weight";
      for (const auto& [name, tensor] : written_by(compact, given.folder / "start")) {
        if (!name.ends_with(end)) continue;
        const auto layer = name.substr(begin.size(), name.size() - begin.size() - end.size());
        auto& weight = weight_of(numbers, layer);
        weight = stored(weight, base);
      }
      std::int64_t bytes = 0, elements = 0;
      for (const auto& entry : compact.run.model->named_parameters()) {
        if (c10::isIntegralType(entry.value().scalar_type(), false)) {
          bytes += static_cast<std::int64_t>(entry.value().nbytes());
          elements += entry.value().numel();
        }
      }
      CHECK(bytes == elements);  // nf4 stores two numbers in a byte
      CHECK(elements > 0);
      vernier::save_safetensors(given.folder / "base/model.safetensors", numbers);
      SmallRun plain(from_toml({given.toml + no_checkpoint}), given.folder.path());
      CHECK(distance(torch::tensor(losses_of(compact)), torch::tensor(losses_of(plain))) <= tolerance);
      const auto trained = written_by(compact, given.folder / "end");
      for (const auto& [name, tensor] : written_by(plain, given.folder / "end")) {
        CHECK(distance(trained.at(name), tensor) <= 10 * tolerance);
      }
      adapter_of(compact).merge();
      adapter_of(plain).merge();
      const auto merged = weights_of(compact.run);
      for (const auto& [name, tensor] : weights_of(plain.run)) {
        CAPTURE(name);
        REQUIRE(merged.count(name) == 1);
        CHECK(distance(merged.at(name), tensor) <= 10 * tolerance);
      }
      CHECK(compact.run.model->buffers().size() == plain.run.model->buffers().size());
    }
  }
}

TEST_CASE("lora: a base in 8 or 4 bits has a scale for each 64 elements, in rows that 64 does not divide too") {
  torch::manual_seed(5);
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{6, 200}, {32, 128}, {3, 10}, {5, 66},
                                                          {4, 64},  {3, 2},    {1, 66}};
  for (const auto& [rows, columns] : shapes) {
    for (const std::string base : {"int8", "fp8", "nf4"}) {
      CAPTURE(columns);
      CAPTURE(base);
      torch::nn::Module module;
      const auto original = torch::randn({rows, columns}), matrix = original.clone(), wanted = stored(original, base);
      lora::CompactWeight weight(module, matrix, lora::form_of(base));
      CHECK(matrix.numel() == rows * columns / (base == "nf4" ? 2 : 1));
      CHECK(module.named_buffers()["base_scale.weight"].numel() == (rows * columns + 63) / 64);
      CHECK(torch::equal(weight.as(torch::kFloat32), wanted));
      CHECK(torch::equal(weight.like(matrix.t(), torch::kBFloat16), wanted.to(torch::kBFloat16).t()));
      weight.expand();
      CHECK(torch::equal(matrix, wanted));
    }
  }
}

TEST_CASE("lora: the buffer of a base in 8 bits has its scales") {
  const std::string mlp =
      "[run]\nsteps = 1\ndevice = 'cpu'\noutput = 'out'\n[task]\nuse = 'mlp'\ninputs = 128\nhidden = [32]\n"
      "[optimizer]\nuse = 'sgd'\n[checkpoint]\nuse = 'none'\n";
  const TemporaryFolder folder;
  SmallRun plain(from_toml({mlp}), folder.path());
  const auto original = plain.run.model->named_parameters()["layers.0.weight"].detach();
  for (const std::string base : {"int8", "fp8"}) {
    const auto lora = "[[callback]]\nuse = 'lora'\ntargets = ['layers.0']\nbase = '" + base + "'\n";
    SmallRun compact(from_toml({mlp + lora}), folder.path());
    auto codes = compact.run.model->named_parameters()["layers.0.weight"].detach();
    if (base == "fp8") codes = codes.view(torch::kFloat8_e4m3fn);
    const auto scale = compact.run.model->named_buffers()["layers.0.base_scale.weight"];
    CHECK(scale.sizes() == std::vector<std::int64_t>{64});
    const auto numbers = codes.to(torch::kFloat32).view({64, 64}) * scale.unsqueeze(-1);
    CHECK(torch::equal(numbers.view({32, 128}), stored(original, base)));
    compact.train();
  }
}

TEST_CASE("oracle lora: a weight in nf4 has the bytes, the scales and the numbers of bitsandbytes") {
  const Oracle oracle("lora");
  torch::nn::Module module;
  const auto matrix = oracle["nf4.matrix"].clone();
  lora::CompactWeight weight(module, matrix, lora::Form::nf4);
  CHECK(torch::equal(matrix, oracle["nf4.codes"]));
  const auto zero = oracle["nf4.largest"] == 0;  // any scale is right there
  CHECK(
      torch::equal(module.named_buffers()["base_scale.weight"], oracle["nf4.largest"].masked_fill(zero, 1).flatten()));
  CHECK(torch::equal(weight.as(torch::kFloat32), oracle["nf4.numbers"]));
  CHECK(torch::equal(weight.like(matrix.t(), torch::kBFloat16), oracle["nf4.numbers"].to(torch::kBFloat16).t()));
  weight.expand();
  CHECK(torch::equal(matrix, oracle["nf4.numbers"]));
  CHECK(module.buffers().empty());
  CHECK_THROWS_WITH_AS(lora::CompactWeight(module, torch::ones({2, 3}), lora::Form::nf4),
                       doctest::Contains("the rows have 3"), vernier::Error);
}

TEST_CASE("lora: with a base in 4 or 8 bits a resumed run has the same bits, in 16 bits and in micro-batches too") {
  const Given given(cases[0]);
  const std::pair<std::string, std::string> runs[] = {
      {"nf4", ""}, {"int8", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n[accumulation]\nmicro_batches = 2\n"}};
  for (const auto& [base, more] : runs) {
    const auto toml = given.toml + "base = '" + base + "'\n" + more;
    RunFolder whole(toml), parts(toml);
    REQUIRE_MESSAGE(whole.train({"--quiet"}) == 0, whole.err);
    REQUIRE_MESSAGE(parts.train({"--quiet", "--set=run.steps=3"}) == 0, parts.err);
    REQUIRE_MESSAGE(parts.train({"--quiet", "--resume"}) == 0, parts.err);
    CHECK(parts.summary()["digest"] == whole.summary()["digest"]);
    REQUIRE_MESSAGE(parts.call({"export", "out", "--format", "huggingface", "--output", "merged"}) == 0, parts.err);
    CHECK(vernier::load_safetensors(parts.at("merged/model.safetensors")).size() ==
          part_of(given.oracle, given.name + ".base.").size());
  }
}

TEST_CASE("lora: what does not fit is refused in one line") {
  struct Wrong {
    int which;
    const char *options, *message;
  };
  constexpr Wrong all[] = {
      {0, "targets = ['*.qproj']\n", "`targets`"},
      {0, "adapter = 'x'\nrank = 4\n", "is what `adapter` says"},
      {0, "targets = ['*.embed_tokens']\n", "which is an embedding"},
      {0, "fan_in_fan_out = true\n", "stores the weight of model.layers.0.self_attn.q_proj as [outputs, inputs]"},
      {1, "fan_in_fan_out = false\n", "must be true for this model"},
      {0, "[[callback]]\nuse = 'lora'\n", "are for one adapter of the model"},
  };
  for (const auto& [which, options, message] : all) {
    CAPTURE(message);
    const Given given(cases[which]);
    const auto begin = given.toml.substr(0, given.toml.find("rank ="));
    const auto thrown = thrown_by([&] {
      SmallRun run(from_toml({begin + options + "[checkpoint]\nuse = 'none'\n"}), given.folder.path());
      run.train();
    });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, message), thrown.text);
    CHECK(thrown.text.find('\n') == std::string::npos);
  }
}

TEST_CASE("lora: export merges the adapter into the published model, or writes it apart") {
  for (const auto& which : {cases[0], cases[1]}) {
    CAPTURE(which.name);
    const Given given(which);
    RunFolder run(given.toml);
    REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
    const auto call = [&](const std::string& format) {
      return run.call({"export", "out", "--format", format, "--output", format});
    };
    REQUIRE_MESSAGE(call("huggingface") == 0, run.err);
    REQUIRE_MESSAGE(call("peft") == 0, run.err);
    REQUIRE_MESSAGE(call("safetensors") == 0, run.err);
    const auto merged = vernier::load_safetensors(run.at("huggingface/model.safetensors"));
    const auto base = part_of(given.oracle, given.name + ".base.");
    REQUIRE(merged.size() == base.size());
    CHECK(vernier::load_safetensors(run.at("safetensors")).size() == base.size());
    CHECK(vernier::load_safetensors(run.at("peft/adapter_model.safetensors")).size() ==
          part_of(given.oracle, given.name + ".end.").size());
    LoadedTask again(which.task, {{"folder", value(run.at("huggingface").string())},
                                  {"data", list<std::string>({given.folder / "tokens.bin"})},
                                  {"validation", list<std::string>({given.folder / "tokens.bin"})},
                                  {"context", value(12)}});
    const double loss = run.summary()["validation_loss"]["final"].get<double>();
    CHECK(again.validate() == doctest::Approx(loss).epsilon(tolerance));
  }
}

}  // namespace lora_test
