// Writes a model for other programs: ONNX, or a file of torch.export. A library of its own, vernier::graph.
//
//   vernier::export_onnx(*model, {torch::rand({2, 3, 32, 32})}, "model.onnx");
//   vernier::export_pt2(*model, {torch::rand({2, 3, 32, 32})}, "model.pt2");
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/abi.h>

#include <concepts>
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
  std::int64_t other = 0;  // of any other text
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
  std::optional<ImageInput> images = {};  // what the first input is
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

// Runs the model in evaluation mode for a few batches, and writes the operators that it calls. Call it with the model
// in evaluation mode, outside of autocast. Throws Error that names the layer where an operator has no counterpart,
// where forward() decides by the numbers of its input or changes a buffer, and where it calls other operators for
// another batch.
//
// onnx: opset 20 of the operators, and ai.onnx.ml for texts; weights below 2 GB. Operators without a counterpart are
// named all at once.
VERNIER_API void export_onnx(const ExportedModel& model, const std::string& path);
// pt2: for torch.export.load of PyTorch 2.11, and task/graph. Dropout and batch normalization are those of evaluation.
VERNIER_API void export_pt2(const ExportedModel& model, const std::string& path);

// The forward() of a module with the examples as arguments.
template <class Model, std::size_t... place>
ExportedModel exported_model(Model& model, std::vector<torch::Tensor> examples, std::index_sequence<place...>) {
  return {model, [&model](const auto& inputs) -> torch::Tensor { return model.forward(inputs.at(place)...); },
          std::move(examples)};
}

template <class Model>
concept TakesOneTensor = requires(Model& model, torch::Tensor x) {
  { model.forward(x) } -> std::same_as<torch::Tensor>;
};

template <TakesOneTensor Model>
void export_onnx(Model& model, std::vector<torch::Tensor> examples, const std::string& path) {
  export_onnx(exported_model(model, std::move(examples), std::make_index_sequence<1>()), path);
}

template <TakesOneTensor Model>
void export_pt2(Model& model, std::vector<torch::Tensor> examples, const std::string& path) {
  export_pt2(exported_model(model, std::move(examples), std::make_index_sequence<1>()), path);
}

}  // namespace vernier
