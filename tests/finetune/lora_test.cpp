// callback/lora trains what Hugging Face's PEFT trains, and writes what PEFT reads. tests/oracles/README.md says how
// the reference was recorded.
#include <doctest/doctest.h>
#include <vernier/model_adapter.h>
#include <vernier/published_model.h>
#include <vernier/supervised_task.h>

#include <filesystem>
#include <nlohmann/json.hpp>

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

// What PEFT would read.
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
  torch::manual_seed(2);  // of dropout, as in the script
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
    check_equal(weights_of(run.run), before);
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

TEST_CASE("lora: what does not fit is refused in one line") {
  struct Wrong {
    int which;
    const char *options, *message;
  };
  constexpr Wrong all[] = {
      {0, "targets = ['*.qproj']\n", "`targets`"},
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
