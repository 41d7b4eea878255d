#include "torchscript.h"

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/module.h>
#include <vernier/autocast.h>
#include <vernier/data/predictor.h>
#include <vernier/error.h>
#include <vernier/unchanged.h>

#include <optional>
#include <sstream>

#include "output/output.h"

namespace vernier {

namespace {

// The same tree of names, which shares the tensors. Each module gets a class of its own.
torch::jit::Module scripted(const torch::nn::Module& module, const std::string& name,
                            const std::shared_ptr<torch::jit::CompilationUnit>& unit) {
  torch::jit::Module copy(c10::QualifiedName(name), unit, /*shouldMangle=*/true);
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    copy.register_parameter(entry.key(), entry.value(), /*is_buffer=*/false);
  }
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
    copy.register_parameter(entry.key(), entry.value(), /*is_buffer=*/true);
  }
  for (const auto& child : module.named_children()) {
    copy.register_module(child.key(), scripted(*child.value(), name + "_" + child.key(), unit));
  }
  return copy;
}

// A literal of TorchScript.
std::string literal(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\\' || c == '"') quoted += '\\';
    quoted += c == '\n' ? "\\n" : std::string(1, c);
  }
  return quoted + '"';
}

// Writes a script, with a method describe() that returns the task's description.
void write_script(const std::string& file, torch::jit::Module script, const Predictor* task) {
  const auto description = task == nullptr ? "" : task->description();
  if (!description.empty() && !script.find_method("describe")) {
    script.define("def describe(self) -> str:\n  return " + literal(description) + "\n");
  }
  std::ostringstream bytes;  // its own writer of files ends the process where the disk is full
  script.save(bytes);
  write_file(file, bytes.str());
}

torch::jit::Stack inputs_of(const Batch& batch) {
  return {batch.tensors.begin(), batch.tensors.end()};
}

}  // namespace

void save_torchscript(const std::string& file, torch::nn::Module& model, SupervisedTask& task, torch::Device device) {
  const auto* own = dynamic_cast<const Predictor*>(&task);
  if (own != nullptr && own->save_torchscript(file)) return write_script(file, torch::jit::load(file), own);
  const Autocast without(device.type(), torch::kFloat, /*enabled=*/false);
  const auto forward = [&](torch::jit::Stack inputs) {
    Batch batch;
    for (auto& input : inputs) batch.tensors.push_back(input.toTensor());
    batch.samples = batch.tensors.at(0).size(0);
    return task.forward(batch);
  };
  std::optional<Unchanged> unchanged(model);  // until the file has the buffers
  auto script = scripted(model, "__torch__.Model", std::make_shared<torch::jit::CompilationUnit>());
  const auto traced = torch::jit::tracer::trace(
      inputs_of(task.example(2).to(device)),
      [&](torch::jit::Stack inputs) { return torch::jit::Stack{forward(std::move(inputs))}; },
      [](const torch::Tensor&) { return ""; }, /*strict=*/true, /*force_outplace=*/false, &script);
  const c10::QualifiedName name(*script.type()->name(), "forward");
  script.type()->addMethod(script._ivalue()->compilation_unit()->create_function(name, traced.first->graph));
  unchanged.reset();
  script.eval();
  write_script(file, script, own);

  const auto batch = task.example(3).to(device);
  const auto expected = forward(inputs_of(batch));
  torch::Tensor output;
  try {
    output = torch::jit::load(file, device).forward(inputs_of(batch)).toTensor();
  } catch (const std::exception&) {  // an undefined output counts as a difference
  }
  if (output.defined() && output.sizes() == expected.sizes() && output.allclose(expected, 1e-4, 1e-5)) return;
  throw Error(
      task.id() +
          " cannot be exported to TorchScript: its model computes something else on a batch of 3 samples "
          "than on the traced one of 2. Tracing keeps sizes as numbers: write flatten(1) for view({x.size(0), -1})",
      Error::Kind::configuration);
}

}  // namespace vernier
