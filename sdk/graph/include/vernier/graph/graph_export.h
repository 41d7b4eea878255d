// Writes a model for other programs: ONNX, or a file of torch.export. A library of its own, vernier::graph.
//
//   vernier::export_onnx(*model, {torch::rand({2, 3, 32, 32})}, "model.onnx");
//   vernier::export_pt2(*model, {torch::rand({2, 3, 32, 32})}, "model.pt2");
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <vernier/exported_model.h>

#include <concepts>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

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

// While it lives, the operators that this thread calls are no part of the file: a model checks its input, for example.
class Unrecorded {
 public:
  // A key that nothing else uses, above Autocast and Autograd: a kernel under it sees what the model called.
  static constexpr auto key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

 private:
  c10::impl::ExcludeDispatchKeyGuard unrecorded_{key};
};

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
