#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/graph/graph_export.h>

#include <fstream>

#include "capture.h"
#include "onnx.h"
#include "pt2.h"

namespace vernier {

namespace {

void write(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  if (!(out << bytes).flush()) throw Error(path + ": cannot be written; the disk may be full");
}

std::vector<std::string> names_of(const ExportedModel& model) {
  if (model.inputs.size() == model.examples.size()) return model.inputs;
  if (!model.inputs.empty()) refuse("inputs has another number of names than examples has tensors");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.examples.size(); ++i) {
    names.push_back(model.examples.size() == 1 ? "input" : "input_" + std::to_string(i + 1));
  }
  return names;
}

graph::Graph graph_of(const ExportedModel& model, const graph::Keeps& keeps = {}) {
  if (model.module.is_training()) refuse("the model is in training mode; call eval() first");
  return graph::capture(model.module, model.forward, model.examples, keeps);
}

}  // namespace

void export_onnx(const ExportedModel& model, const std::string& path) {
  write(path, graph::onnx_bytes(graph_of(model, graph::has_rule), names_of(model), model));
}

void export_pt2(const ExportedModel& model, const std::string& path) {
  write(path, graph::pt2_bytes(graph_of(model), names_of(model)));
}

}  // namespace vernier
