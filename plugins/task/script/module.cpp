#include "module.h"

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace script {

using vernier::refuse;

Part::Part(const torch::jit::Module& script) {
  for (const auto& entry : script.named_parameters(/*recurse=*/false)) {
    register_parameter(entry.name, entry.value, entry.value.requires_grad());
  }
  for (const auto& entry : script.named_buffers(/*recurse=*/false)) register_buffer(entry.name, entry.value);
  for (const auto& entry : script.named_children()) register_module(entry.name, std::make_shared<Part>(entry.value));
}

void Script::train(bool on) {
  Part::train(on);
  script_.train(on);
}

torch::Tensor Script::forward(const std::vector<torch::Tensor>& inputs) {
  c10::IValue output;
  try {
    output = script_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
  } catch (const vernier::Error&) {
    throw;
  } catch (const std::exception& error) {
    if (vernier::is_out_of_memory(std::current_exception())) throw;
    vernier::log(vernier::Level::debug, "task/script", error.what());
    throw vernier::Error("forward() of the model fails for " + shapes_of(inputs) + ": " + vernier::message(error));
  }
  if (output.isTensor()) return output.toTensor();
  refuse("forward() of the model returns " + output.tagKind() + "; it must return one tensor");
}

torch::Tensor Script::try_two(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  const auto dtype = parameters().front().scalar_type();
  std::vector<torch::Tensor> inputs;
  for (const auto& tensor : tensors) {
    const auto two = tensor.narrow(0, 0, std::min<std::int64_t>(2, tensor.size(0)));
    inputs.push_back(two.is_floating_point() && at::isFloatingType(dtype) ? two.to(dtype) : two);
  }
  eval();
  try {
    auto output = forward(inputs);
    train(true);
    return output;
  } catch (...) {
    train(true);
    throw;
  }
}

void Script::write(const std::string& file) const {
  std::ostringstream bytes;  // its own writer of files ends the process where the disk is full
  script_.save(bytes);
  std::ofstream out(file, std::ios::binary);
  out << bytes.str();
  if (!out.flush()) throw vernier::Error(file + ": cannot be written; the disk may be full");
}

torch::Tensor bytes_of(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) refuse("'" + path + "' is not a file; export a model to it first");
  std::ifstream in(path, std::ios::binary);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, none));
  auto bytes = torch::empty({size}, torch::kUInt8);
  if (!in.read(static_cast<char*>(bytes.mutable_data_ptr()), size)) refuse("'" + path + "' cannot be read");
  return bytes;
}

std::shared_ptr<Script> script_of(const torch::Tensor& bytes, const std::string& path) {
  // The executor's own backward of aten::linear would not be seen by interceptors, and has other last bits.
  torch::jit::setGraphExecutorOptimize(false);
  std::shared_ptr<Script> model;
  try {
    std::istringstream in({static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())});
    model = std::make_shared<Script>(torch::jit::load(in, torch::kCPU));
  } catch (const std::exception& exception) {
    const auto reason = vernier::message(exception);
    refuse("'" + path + "' cannot be read as TorchScript: " + reason.substr(0, reason.find(". ")) +
           "; write it with torch.jit.script(model).save(path)");
  }
  const auto parameters = model->parameters();
  if (std::ranges::any_of(parameters, [](const auto& parameter) { return parameter.requires_grad(); })) return model;
  refuse("'" + path + "' has no parameters to train; do not freeze the model before saving it");
}

torch::Tensor as_target(const torch::Tensor& output, const torch::Tensor& target) {
  if (output.numel() == target.numel()) return output.reshape(target.sizes());
  refuse(c10::str("the model returns ", output.sizes(), " for a batch, and the target is ", target.sizes(),
                  "; this loss needs as many numbers of both"));
}

void require_logits(const torch::Tensor& output, std::int64_t classes) {
  if (output.dim() >= 2 && output.size(1) >= classes) return;
  refuse(c10::str("the model returns ", output.sizes(), " for a batch, and the labels need [samples, ", classes,
                  "] or more"));
}

std::string shapes_of(const std::vector<torch::Tensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors) {
    text += c10::str(text.empty() ? "" : ", ", name_of(tensor.scalar_type()), " ", tensor.sizes());
  }
  return text;
}

std::string name_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat32:
      return "float32";
    case torch::kFloat64:
      return "float64";
    case torch::kInt64:
      return "int64";
    case torch::kInt32:
      return "int32";
    case torch::kUInt8:
      return "uint8";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace script
