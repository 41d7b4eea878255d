// A run of task/gpt that begins with GPT-2's published weights computes what Hugging Face's GPT2LMHeadModel computes.
// plugins/task/gpt/convert.py converts every published layout, and model.py loads exported weights into PyTorch.
// tests/oracles/README.md says how the reference was recorded.
#include <doctest/doctest.h>
#include <vernier/layers.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>

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

// As save_pretrained writes them.
Tensors saved_by_transformers(const Tensors& published) {
  Tensors tensors;
  for (const auto& [name, tensor] : without_masks(published)) tensors["transformer." + name] = tensor;
  return tensors;
}

// As programs write them that made Linear of GPT-2's Conv1D, with the head as a separate tensor.
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

const std::string scripts = VERNIER_SOURCE_DIR "/plugins/task/gpt/";

// Runs convert.py. Returns 0 if it succeeds; out: its output.
int convert(const TemporaryFolder& folder, const std::string& files, std::string& out) {
  return python("'" + scripts + "convert.py' " + files, folder.path(), out);
}

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

TEST_CASE("oracle gpt2: convert.py makes the same weights of every published layout") {
  if (!has_python("json")) {
    MESSAGE("python3 is not here: convert.py is not tried");
    return;
  }
  const Published given;
  const auto& folder = given.folder;
  const auto weights = published(given.oracle), wanted = without_masks(weights);
  CHECK(weights.size() == wanted.size() + 2);
  const auto check_converted = [&](const Tensors& tensors, const std::string& lines) {
    const auto half = std::next(tensors.begin(), 9);  // as two shards
    vernier::save_safetensors(folder / "1.safetensors", Tensors(tensors.begin(), half));
    vernier::save_safetensors(folder / "2.safetensors", Tensors(half, tensors.end()));
    std::filesystem::remove(folder / "new.safetensors");
    std::string out;
    CHECK(convert(folder, "1.safetensors 2.safetensors new.safetensors", out) == 0);
    CHECK(out == "new.safetensors: 28 tensors\n  GPT-2: 2 layers, width 16, context 16, vocabulary 256\n" + lines);
    check_equal(vernier::load_safetensors(folder / "new.safetensors"), wanted);
  };
  check_converted(wanted, "");
  check_converted(weights, "  left out 2 causal masks\n");
  check_converted(saved_by_transformers(weights), "");
  check_converted(as_linear(weights),
                  "  transposed 8 weights\n  left out 2 causal masks\n"
                  "  left out lm_head.weight, which equals wte.weight\n");
  Tensors half;
  for (const auto& [name, tensor] : as_linear(weights)) half[name] = tensor.to(torch::kBFloat16);
  vernier::save_safetensors(folder / "half.safetensors", half);
  std::string out;
  CHECK(convert(folder, "half.safetensors from_half.safetensors", out) == 0);
  for (const auto& [name, tensor] : vernier::load_safetensors(folder / "from_half.safetensors")) {
    CHECK(tensor.equal(wanted.at(name).to(torch::kBFloat16)));
  }
}

TEST_CASE("oracle gpt2: convert.py refuses what is not GPT-2, naming file and tensor") {
  if (!has_python("json")) {
    MESSAGE("python3 is not here: convert.py is not tried");
    return;
  }
  const Published given;
  const auto& folder = given.folder;
  const auto refusal = [&](const std::function<void(Tensors&)>& change) {
    auto tensors = published(given.oracle);
    change(tensors);
    vernier::save_safetensors(folder / "x", tensors);
    std::string out;
    CHECK(convert(folder, "x new.safetensors", out) != 0);
    CHECK_FALSE(std::filesystem::exists(folder / "new.safetensors"));
    return out;
  };
  CHECK(refusal([](Tensors& t) { t.erase("wte.weight"); }) ==
        "convert.py: x: has no tensor 'wte.weight', so it does not have GPT-2's layout\n");
  CHECK(refusal([](Tensors& t) { t.erase("h.1.mlp.c_fc.bias"); }) ==
        "convert.py: x: has no tensor 'h.1.mlp.c_fc.bias'\n");
  CHECK(refusal([](Tensors& t) { t["h.1.ln_2.weight"] = torch::ones({5}); }) ==
        "convert.py: x: tensor 'h.1.ln_2.weight': is [5], and must be [16]\n");
  CHECK(refusal([](Tensors& t) { t["adapter"] = torch::ones({5}); }) ==
        "convert.py: x: tensor 'adapter': is not one of GPT-2's\n");
  CHECK(refusal([](Tensors& t) { t["lm_head.weight"] = t["wte.weight"] + 1; }) ==
        "convert.py: x: tensor 'lm_head.weight': differs from 'wte.weight'; task/gpt has one tensor for both\n");
  CHECK(refusal([](Tensors& t) { t["transformer.wte.weight"] = t["wte.weight"]; }) ==
        "convert.py: x: tensor 'wte.weight': there are two of this name\n");
  std::string out;
  CHECK(convert(folder, "weights.safetensors run.toml", out) != 0);
  CHECK(out == "convert.py: run.toml: exists already; name another file\n");
  CHECK(convert(folder, "run.toml new.safetensors", out) != 0);
  CHECK(out.starts_with("convert.py: run.toml: is not a safetensors file"));
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
