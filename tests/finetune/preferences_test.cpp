// Preferences in task/gpt and task/llama: what TRL's DPOTrainer computes. tests/oracles/README.md says how the
// reference was recorded.
#include <ATen/ops/cross_entropy_loss.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/supervised_task.h>
#include <vernier/model_adapter.h>
#include <vernier/published_model.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle.h"
#include "run_folder.h"
#include "same_tensors.h"
#include "small_run.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace preferences_test {

namespace {

constexpr double tolerance = 1e-5;
const std::string tokenizer = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/gpt2";

// The options of each recorded case, as dpo.py has them.
struct Case {
  const char *name, *model, *options;
  int pairs = 2;
};
constexpr Case cases[] = {
    {"gpt2", "gpt2", "objective = 'dpo'\nbeta = 0.3\n"},
    {"llama", "llama", "objective = 'dpo'\nbeta = 0.5\n"},
    {"gemma2", "gemma2", "objective = 'dpo'\nbeta = 0.3\n"},
    {"ipo", "llama", "objective = 'ipo'\nbeta = 0.2\n"},
    {"hinge", "gpt2", "objective = 'hinge'\nbeta = 0.3\n"},
    {"smooth", "llama", "objective = 'dpo'\nbeta = 0.5\nlabel_smoothing = 0.2\n", 1},
    {"lora", "llama", "objective = 'dpo'\nbeta = 0.5\n"},
};
constexpr const char* lora = "[[callback]]\nuse = 'lora'\nrank = 2\nalpha = 4.0\ntargets = ['*.q_proj', '*.v_proj']\n";
constexpr const char* no_checkpoint = "[checkpoint]\nuse = 'none'\n";

const Oracle& oracle() {
  static const Oracle all("dpo");
  return all;
}

vernier::Tensors part_of(const std::string& begin) {
  vernier::Tensors part;
  for (const auto& [name, tensor] : oracle().tensors()) {
    if (name.starts_with(begin)) part[name.substr(begin.size())] = tensor;
  }
  return part;
}

// A folder with a model and the pairs, and the run that trains it.
struct Given {
  explicit Given(const Case& which) {
    const std::string model = which.model;
    folder.write("base/config.json", bytes_of(oracle()[model + ".config"]));
    vernier::save_safetensors(folder / "base/model.safetensors", part_of(model + ".base."));
    folder.write("pairs.jsonl", bytes_of(oracle()["pairs"]));
    toml = std::string("[run]\nsteps = 4\ndevice = 'cpu'\nthreads = 1\noutput = 'out'\n[task]\nuse = '") +
           (model == "gpt2" ? "gpt" : "llama") + "'\nfolder = '" + (folder / "base") + "'\ndata = ['" +
           (folder / "pairs.jsonl") + "']\nvalidation = ['" + (folder / "pairs.jsonl") + "']\ntokenizer = '" +
           tokenizer + "'\ncontext = 63\norder = 'sequential'\nbatch_size = " + std::to_string(which.pairs) + "\n" +
           which.options + "[optimizer]\nuse = 'adamw'\nlearning_rate = 1e-2\nweight_decay = 0.0\n" +
           (std::string(which.name) == "lora" ? lora : "");
  }
  TemporaryFolder folder;
  std::string toml;
};

// The loss and the four rewards of each step.
torch::Tensor trained(SmallRun& run) {
  std::vector<torch::Tensor> steps;
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
    std::vector<double> numbers = {now.loss.item<double>()};
    for (const auto* name : {"rewards_chosen", "rewards_rejected", "rewards_margins", "rewards_accuracies"}) {
      numbers.push_back(now.metrics.value(name).value());
    }
    steps.push_back(torch::tensor(numbers));
  });
  run.train();
  return at::stack(steps);
}

torch::Tensor reference_of(SmallRun& run, const std::string& set) {
  return run.wiring->task->save().tensor("learned/references/" + set + "/log_probabilities");
}

}  // namespace

TEST_CASE("oracle dpo: losses, rewards, gradients and log-probabilities are TRL's") {
  for (const auto& which : cases) {
    CAPTURE(which.name);
    const Given given(which);
    const std::string name = which.name;
    SmallRun run(from_toml({given.toml + no_checkpoint}), given.folder.path());
    const auto gradients = part_of(name + ".gradient.");
    run.on(vernier::Event::GradientsReady, [&](vernier::Run& now) {
      if (now.step > 0) return;
      const auto& published = dynamic_cast<const vernier::PublishedModel&>(*run.wiring->task);
      std::size_t met = 0;
      for (const auto& parameter : now.parameters) {
        const auto found = gradients.find(published.published_name(parameter.name));
        if (found == gradients.end()) continue;
        ++met;
        CAPTURE(parameter.name);
        CHECK(distance(parameter.model.grad(), found->second) <= tolerance);
      }
      CHECK(met == gradients.size());
    });
    const auto steps = trained(run);
    CHECK(distance(reference_of(run, "training"), oracle()[name + ".reference"]) <= 5 * tolerance);
    const double allowed = name == "ipo" ? 3 * tolerance : tolerance;  // ipo's losses are around 6
    CHECK_MESSAGE(distance(steps.select(1, 0), oracle()[name + ".losses"]) <= allowed, steps);
    CHECK_MESSAGE(distance(steps.narrow(1, 1, 4), oracle()[name + ".rewards"]) <= 5 * tolerance, steps);
    CHECK(torch::equal(reference_of(run, "training"), reference_of(run, "held_out")));
  }
}

TEST_CASE("preferences: a resumed run has the same bits, and an evaluation the reference of the run") {
  const Given given(cases[std::size(cases) - 1]);  // with LoRA
  RunFolder whole(given.toml), parts(given.toml);
  const auto train = [](RunFolder& run, std::vector<std::string> more) {
    more.insert(more.end(), {"--quiet", "--set=accumulation.micro_batches=2"});
    REQUIRE_MESSAGE(run.train(more) == 0, run.err);
  };
  train(whole, {});
  train(parts, {"--set=run.steps=2"});
  train(parts, {"--resume"});
  CHECK(parts.summary()["digest"] == whole.summary()["digest"]);
  REQUIRE_MESSAGE(parts.call({"evaluate", "out"}) == 0, parts.err);
  CHECK_MESSAGE(says(parts.out, "rewards_accuracies"), parts.out);
  const auto other = given.folder.write("other.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  CHECK(parts.call({"evaluate", "out", "--set=task.data=['" + other + "']", "--set=task.validation=[]"}) == 2);
  CHECK_MESSAGE(says(parts.err, "that model is gone"), parts.err);
}

TEST_CASE("language task: smooth labels are PyTorch's, in training alone") {
  for (const auto* model : {"llama", "gemma2"}) {  // gemma2 caps its logits
    CAPTURE(model);
    const Given given({"smooth", model, "label_smoothing = 0.25\n"});
    given.folder.write("pairs.jsonl", "{\"text\": \"one two three\"}\n");
    SmallRun run(from_toml({given.toml}), given.folder.path());
    auto& task = dynamic_cast<vernier::SupervisedTask&>(*run.wiring->task);
    const auto batch = task.next();
    const auto logits = task.forward(batch).flatten(0, 1);
    const auto targets = batch.tensors[1].flatten();
    const auto loss_of = [&](double smoothing) {
      return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, -100, smoothing).item<double>();
    };
    CHECK(std::abs(task.loss(batch).item<double>() - loss_of(0.25)) <= tolerance);
    const torch::NoGradGuard no_grad;
    CHECK(std::abs(task.validate(run.run).item<double>() - loss_of(0)) <= tolerance);
  }
}

TEST_CASE("preferences: what does not fit is refused in one line") {
  struct Wrong {
    const char *sets, *message;
  };
  constexpr Wrong all[] = {
      {"beta = 0.1\n", "is for objective = \"dpo\""},
      {"objective = 'dpo'\npacking = true\n", "is for objective = \"likelihood\""},
      {"objective = 'ipo'\nlabel_smoothing = 0.1\n", "`label_smoothing`"},
      {"objective = 'dpo'\nlabel_smoothing = 0.5\n", "must be below 0.5"},
      {"objective = 'dpo'\nfields = {chosen = 'chosen'}\n", "belong together"},
  };
  for (const auto& [sets, message] : all) {
    CAPTURE(message);
    const Given given({"wrong", "llama", sets});
    const auto thrown = thrown_by([&] { SmallRun run(from_toml({given.toml}), given.folder.path()); });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, message), thrown.text);
  }
}

}  // namespace preferences_test
