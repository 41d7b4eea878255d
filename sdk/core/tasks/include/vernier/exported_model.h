// A task's model as a function of its inputs, for the verbs that write it for other programs (`vernier export`).
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// The codes of the texts of an input.
struct TextCodes {
  std::map<std::string, std::int64_t> codes;
  std::int64_t other = 0;  // code of any other text
};

// The ONNX file takes images as other programs decode them: uint8 [samples, height, width, colours], or clips with the
// frames before the height. forward() takes them with the colours before the height.
struct ImageInput {
  // The file takes images of any size. The shorter side becomes `size` pixels, and the middle square is taken, to the
  // bit as resize_shorter() and center_crop() do it. 0: images have the size of the example.
  std::int64_t size = 0;
};

// A model as a function of its inputs, with what others shall know of it.
struct ExportedModel {
  const torch::nn::Module& module;  // has the weights
  std::function<torch::Tensor(const std::vector<torch::Tensor>& inputs)> forward;
  // One tensor for each input; dimension 0 is the sample. The file takes any number of samples.
  std::vector<torch::Tensor> examples;
  std::vector<std::string> inputs = {};  // names of the inputs; by default "input", or "input_1" and so on
  std::string description = {};          // any text; metadata of the ONNX file
  // By name, the inputs that are texts in the ONNX file. Their examples, and the inputs of forward(), are int64 codes.
  std::map<std::string, TextCodes> texts = {};
  // The names of the classes, where the output is logits [samples, classes]: the ONNX file then has the outputs
  // "class", texts, and "probabilities" as well.
  std::vector<std::string> classes = {};
  std::optional<ImageInput> images = {};  // set if the first input is images
};

// A task that is not built on SupervisedTask derives from it, for `vernier export --format onnx` and pt2.
class VERNIER_API Exportable {
 public:
  virtual ~Exportable() = default;
  virtual ExportedModel exported_model() = 0;  // after Task::prepare
};

// A task whose ONNX file takes other inputs than its module, such as the columns of a table, derives from it.
class VERNIER_API OnnxExportable {
 public:
  virtual ~OnnxExportable() = default;
  virtual ExportedModel onnx_model() = 0;  // after Task::prepare
};

// A task whose model is a torch.nn.Module of Python derives from it, for `vernier export --format safetensors`.
class VERNIER_API PythonModule {
 public:
  virtual ~PythonModule() = default;
  // Returns the tensors of the module's state_dict(): tied ones under each of their names, no buffers that are not
  // persistent.
  virtual std::map<std::string, torch::Tensor> state_dict() const = 0;
};

// The forward() of a module with the examples as arguments.
template <class Model, std::size_t... place>
ExportedModel exported_model(Model& model, std::vector<torch::Tensor> examples, std::index_sequence<place...>) {
  return {model, [&model](const auto& inputs) -> torch::Tensor { return model.forward(inputs.at(place)...); },
          std::move(examples)};
}

}  // namespace vernier
