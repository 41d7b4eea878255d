// A run of task/gpt that begins with GPT-2's published weights computes what Hugging Face's GPT2LMHeadModel computes.
// plugins/task/gpt/model.py loads exported weights into PyTorch.
// tests/oracles/README.md says how the reference was recorded.
#include <doctest/doctest.h>
#include <vernier/layers.h>

#include <atomic>
#include <filesystem>

#include "oracle.h"
#include "program.h"
#include "python.h"
#include "run/prepared.h"
#include "same_tensors.h"
#include "small_run.h"

using vernier::Tensors;

namespace {

// Processors differ by 4e-7 in logits and loss.
constexpr double tolerance = 1e-5;

constexpr const char* configuration = R"([run]
steps = 1
device = "cpu"
threads = 1
output = "out"
init_from = "weights.safetensors"
[task]
use = "gpt"
data = ["text"]
order = "sequential"
validation = 0.0
batch_size = 2
layers = 2
heads = 2
width = 16
context = 16
[optimizer]
use = "sgd"
learning_rate = 0.0
)";

// As OpenAI's file has them, with the causal masks.
Tensors published(const Oracle& oracle) {
  const std::string prefix = "published.";
  Tensors tensors;
  for (const auto& [name, tensor] : oracle.tensors()) {
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = tensor;
  }
  return tensors;
}

// As task/gpt has them.
Tensors without_masks(Tensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.ends_with(".attn.bias"); });
  return tensors;
}

void call_in(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  Program program(words, folder.path());
  const int status = program.wait();
  REQUIRE_MESSAGE(status == 0, program.err());
}

const std::string scripts = VERNIER_SOURCE_DIR "/plugins/task/gpt/";

// The run that begins with weights.safetensors, stopped before its first step.
class Begun {
 public:
  explicit Begun(const TemporaryFolder& folder, const std::string& more = "") {
    auto table = from_toml({configuration, more});
    const auto path = [&](const char* name) { return vernier::Value{folder / name, "test.toml:1"}; };
    std::get<vernier::Table>(table.at("run").data).insert_or_assign("init_from", path("weights.safetensors"));
    std::get<vernier::Table>(table.at("task").data)
        .insert_or_assign("data", vernier::Value{vernier::Array{path("text")}, "test.toml:1"});
    prepared_ = vernier::prepare(std::move(table), "gpt2", built_plugins(), stop_, [](auto&&...) { return false; });
    batch_ = prepared_->wiring->task->next();
  }

  struct Answer {
    torch::Tensor logits;
    double loss;
  };
  // The answer to the first batch. The logits are the output of the head.
  Answer answer() {
    struct Head final : vernier::Interceptor {
      vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
        auto results = operation.proceed(std::move(arguments));
        if (operation.name() == "linear" && operation.layer() == "wte") logits = results[0].toTensor();
        return results;
      }
      torch::Tensor logits;
    } head;
    const torch::NoGradGuard no_grad;
    vernier::Layers layers(*prepared_->run.model);
    const vernier::Intercept intercept(layers, head);
    const auto loss = prepared_->wiring->task->loss(batch_).item<double>();
    REQUIRE(head.logits.defined());
    return {head.logits, loss};
  }
  vernier::Run& run() { return prepared_->run; }

 private:
  std::atomic<int> stop_ = 0;
  std::unique_ptr<vernier::Prepared> prepared_;
  vernier::Batch batch_;
};

struct Published {
  Published() {
    folder.write("text", bytes_of(oracle["text"]));
    folder.write("run.toml", configuration);
    vernier::save_safetensors(folder / "weights.safetensors", without_masks(published(oracle)));
  }
  Oracle oracle{"gpt2_logits"};
  TemporaryFolder folder;
};

}  // namespace

TEST_CASE("oracle gpt2: with the published weights task/gpt has the logits and the loss of GPT2LMHeadModel") {
  const Published given;
  const auto& oracle = given.oracle;
  const auto found = Begun(given.folder).answer();
  CHECK(found.logits.sizes() == oracle["logits"].sizes());
  CHECK(distance(found.logits, oracle["logits"]) <= tolerance);
  CHECK(found.loss == doctest::Approx(oracle["loss"].item<double>()).epsilon(tolerance));
  CHECK(distance(Begun(given.folder, "[task]\nheads = 4\n").answer().logits, oracle["logits"]) > 0.01);
}

TEST_CASE("oracle gpt2: no tensor could be swapped, turned or left out unseen") {
  const Published given;
  const torch::NoGradGuard no_grad;
  Begun begun(given.folder);
  REQUIRE(begun.run().parameters.size() == 28);
  for (const auto& parameter : begun.run().parameters) {
    CAPTURE(parameter.name);
    const auto& weight = parameter.model;
    const auto right = weight.clone();
    const auto moves = [&](const torch::Tensor& wrong) {
      weight.copy_(wrong);
      CHECK(distance(begun.answer().logits, given.oracle["logits"]) > 1000 * tolerance);
      weight.copy_(right);
    };
    moves(right.flip(0));
    moves(parameter.name.find("ln_") != std::string::npos && parameter.name.ends_with("weight")
              ? torch::ones_like(right)
              : torch::zeros_like(right));
    if (weight.dim() == 2 && weight.size(0) == weight.size(1)) moves(right.t());
    for (const auto& other : begun.run().parameters) {
      if (other.name > parameter.name && other.model.sizes() == weight.sizes()) moves(other.model);
    }
  }
  CHECK(distance(begun.answer().logits, given.oracle["logits"]) <= tolerance);
}

TEST_CASE("oracle gpt2: a run gives the weights back as they came, and model.py has their logits") {
  const Published given;
  const auto& folder = given.folder;
  call_in(folder, {"train", "run.toml", "--quiet"});
  call_in(folder, {"checkpoint", "export", "out", "exported.safetensors"});
  check_equal(vernier::load_safetensors(folder / "exported.safetensors"), without_masks(published(given.oracle)));
  if (!has_python("torch, safetensors")) {
    MESSAGE("python3 has no torch with safetensors here: model.py is not tried");
    return;
  }
  folder.write("use.py", "import sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, '" + scripts + R"(')
import torch
from model import load
from safetensors.torch import save_file

tokens = torch.tensor(list(open("text", "rb").read()[:-1])).view(2, 16)
model = load("exported.safetensors", heads=2)
save_file({"logits": model(tokens).detach(), "short": model(tokens[:, :5]).detach()}, "logits.safetensors")
)");
  std::string out;
  REQUIRE_MESSAGE(python("use.py", folder.path(), out) == 0, out);
  const auto found = vernier::load_safetensors(folder / "logits.safetensors");
  CHECK(distance(found.at("logits"), given.oracle["logits"]) <= tolerance);
  CHECK(distance(found.at("short"), given.oracle["logits"].narrow(1, 0, 5)) <= tolerance);
}
