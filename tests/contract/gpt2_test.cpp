// GPT-2 as it is published, by `vernier checkpoint import` and [run] init_from, is in a run of task/gpt the model that
// Hugging Face's GPT2LMHeadModel makes of it, and goes out again. How that was recorded: tests/oracles/README.md.
#include <doctest/doctest.h>
#include <vernier/layers.h>

#include <atomic>

#include "oracle.h"
#include "prepared.h"
#include "program.h"
#include "python.h"
#include "same_tensors.h"
#include "small_run.h"

using vernier::Tensors;

namespace {

// Settings of a processor moved logits and loss by 4e-7.
constexpr double tolerance = 1e-5;

constexpr const char* configuration = R"([run]
steps = 1
device = "cpu"
threads = 1
output = "out"
init_from = "imported.safetensors"
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

bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias");
}

// As save_pretrained writes them.
Tensors saved_by_transformers(const Tensors& published) {
  Tensors tensors;
  for (const auto& [name, tensor] : published) {
    if (!is_mask(name)) tensors["transformer." + name] = tensor;
  }
  return tensors;
}

// As programs have them that made Linear of GPT-2's Conv1D, with the head as a tensor of its own.
Tensors as_linear(const Tensors& published) {
  Tensors tensors;
  for (const auto& [name, tensor] : published) {
    const bool is_weight = name.starts_with("h.") && tensor.dim() == 2;
    tensors[name] = is_weight ? tensor.t().contiguous() : tensor;
  }
  tensors["lm_head.weight"] = published.at("wte.weight").clone();
  return tensors;
}

void call_in(const TemporaryFolder& folder, const std::vector<std::string>& words) {
  Program program(words, folder.path());
  const int status = program.wait();
  REQUIRE_MESSAGE(status == 0, program.err());
}

void import_into(const TemporaryFolder& folder, const Tensors& tensors, const std::string& to) {
  vernier::save_safetensors(folder / "given.safetensors", tensors, {{"format", "pt"}});
  call_in(folder, {"checkpoint", "import", "given.safetensors", to, "--layout", "gpt2"});
}

// The run that begins with imported.safetensors, stopped before its first step.
class Begun {
 public:
  explicit Begun(const TemporaryFolder& folder, const std::string& more = "") {
    auto table = from_toml({configuration, more});
    const auto path = [&](const char* name) { return vernier::Value{folder / name, "test.toml:1"}; };
    std::get<vernier::Table>(table.at("run").data).insert_or_assign("init_from", path("imported.safetensors"));
    std::get<vernier::Table>(table.at("task").data)
        .insert_or_assign("data", vernier::Value{vernier::Array{path("text")}, "test.toml:1"});
    prepared_ = vernier::prepare(std::move(table), "gpt2", built_plugins(), stop_, false);
    batch_ = prepared_->wiring->task->next();
  }

  struct Answer {
    torch::Tensor logits;
    double loss;
  };
  // Of its first batch; the logits are what the head gives.
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

struct Imported {
  Imported() {
    folder.write("text", bytes_of(oracle["text"]));
    folder.write("run.toml", configuration);
    import_into(folder, published(oracle), "imported.safetensors");
  }
  Oracle oracle{"gpt2_logits"};
  TemporaryFolder folder;
};

}  // namespace

TEST_CASE("oracle gpt2: an imported model has the logits and the loss of GPT2LMHeadModel") {
  const Imported imported;
  const auto& oracle = imported.oracle;
  const auto found = Begun(imported.folder).answer();
  CHECK(found.logits.sizes() == oracle["logits"].sizes());
  CHECK(distance(found.logits, oracle["logits"]) <= tolerance);
  CHECK(found.loss == doctest::Approx(oracle["loss"].item<double>()).epsilon(tolerance));
  CHECK(distance(Begun(imported.folder, "[task]\nheads = 4\n").answer().logits, oracle["logits"]) > 0.01);
}

TEST_CASE("oracle gpt2: no tensor could be swapped, turned or left out unseen") {
  const Imported imported;
  const torch::NoGradGuard no_grad;
  Begun begun(imported.folder);
  REQUIRE(begun.run().parameters.size() == 28);
  for (const auto& parameter : begun.run().parameters) {
    CAPTURE(parameter.name);
    const auto& weight = parameter.model;
    const auto right = weight.clone();
    const auto moves = [&](const torch::Tensor& wrong) {
      weight.copy_(wrong);
      CHECK(distance(begun.answer().logits, imported.oracle["logits"]) > 1000 * tolerance);
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
  CHECK(distance(begun.answer().logits, imported.oracle["logits"]) <= tolerance);
}

TEST_CASE("oracle gpt2: every published layout becomes the same weights, which a run gives back as they came") {
  const Imported imported;
  const auto& folder = imported.folder;
  const auto given = published(imported.oracle);
  Tensors wanted = given;
  CHECK(std::erase_if(wanted, [](const auto& entry) { return is_mask(entry.first); }) == 2);
  check_equal(vernier::load_safetensors(folder / "imported.safetensors"), wanted);
  import_into(folder, saved_by_transformers(given), "saved.safetensors");
  check_equal(vernier::load_safetensors(folder / "saved.safetensors"), wanted);
  import_into(folder, as_linear(given), "linear.safetensors");
  check_equal(vernier::load_safetensors(folder / "linear.safetensors"), wanted);

  call_in(folder, {"train", "run.toml", "--quiet"});
  call_in(folder, {"checkpoint", "export", "out", "model.py"});
  check_equal(vernier::load_safetensors(folder / "model.safetensors"), wanted);
  std::string out;
  CHECK_MESSAGE(python("-m py_compile model.py", folder.path(), out) == 0, out);
  const auto text = read_text(folder / "model.py");
  CHECK(text.find("\nHEADS = 2\n") != std::string::npos);
  CHECK(text.find("    def forward(self, tokens):\n") != std::string::npos);
  if (!has_python("torch, safetensors")) {
    MESSAGE("python3 has no torch with safetensors here: the exported model's forward is not tried");
    return;
  }
  folder.write("use.py", R"(import torch
from model import Model
from safetensors.torch import load_file, save_file

tokens = torch.tensor(list(open("text", "rb").read()[:-1])).view(2, 16)
model = Model()
save_file({"logits": model(tokens).detach(), "short": model(tokens[:, :5]).detach()}, "logits.safetensors")
)");
  REQUIRE_MESSAGE(python("use.py", folder.path(), out) == 0, out);
  const auto found = vernier::load_safetensors(folder / "logits.safetensors");
  CHECK(distance(found.at("logits"), imported.oracle["logits"]) <= tolerance);
  CHECK(distance(found.at("short"), imported.oracle["logits"].narrow(1, 0, 5)) <= tolerance);
}
