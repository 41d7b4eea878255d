#include "network.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/plugin.h>
#include <vernier/unchanged.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace exported {

using vernier::refuse;

torch::Tensor Network::try_two(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  const auto all = parameters();
  const auto first = std::ranges::find_if(
      all, [](const auto& tensor) { return tensor.is_floating_point() && tensor.element_size() > 1; });
  std::vector<torch::Tensor> inputs;
  constexpr std::int64_t most = 1024;
  for (std::int64_t samples = 2; samples <= most && (inputs.empty() || !unmet(inputs).empty()); ++samples) {
    inputs.clear();
    for (const auto& tensor : tensors) {
      const auto some = tensor.narrow(0, 0, std::min<std::int64_t>(samples, tensor.size(0)));
      inputs.push_back(some.is_floating_point() && first != all.end() ? some.to(first->scalar_type()) : some);
    }
  }
  const vernier::Unchanged unchanged(*this);
  const auto leave = c10::make_scope_exit([&] { train(true); });
  eval();
  return forward(inputs).clone();  // it may be a buffer
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

void write_bytes(const std::string& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw vernier::Error(file + ": cannot be written; the disk may be full");
}

void require_parameters(const Network& network, const std::string& path) {
  const auto parameters = network.parameters();
  if (std::ranges::any_of(parameters, [](const auto& parameter) { return parameter.requires_grad(); })) return;
  refuse("'" + path + "' has no parameters to train; do not freeze the model before saving it");
}

void rethrow_failure(const std::exception& error, const std::vector<torch::Tensor>& inputs) {
  if (dynamic_cast<const vernier::Error*>(&error) != nullptr || vernier::is_out_of_memory(std::current_exception()))
    throw;
  vernier::log(vernier::Level::debug, "task", error.what());
  throw vernier::Error("forward() of the model fails for " + shapes_of(inputs) + ": " + vernier::message(error));
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
  if (dtype == torch::kFloat32) return "float32";
  if (dtype == torch::kFloat64) return "float64";
  if (dtype == torch::kInt64) return "int64";
  if (dtype == torch::kInt32) return "int32";
  return dtype == torch::kUInt8 ? "uint8" : c10::toString(dtype);
}

}  // namespace exported
