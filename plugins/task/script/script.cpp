// script: trains any model that Python exported as TorchScript; data and loss are named here. plugins/task/script/
// export.py shows the export.
//
// model                 required: a file of torch.jit.script(module).save(path), or of torch.jit.trace
// inputs                required: a source (vernier/data/data_source.h) for each argument of forward(), such as
//                       "x.npy", "x.npz:x", "x.safetensors:x", "x.csv:a,b"; a CSV column of words becomes codes; or
//                       one folder that has a folder of images for each class: float32 [3, height, width] from 0 to 1;
//                       or one folder of images, and a folder of masks, PNG files of the same names, as target
// target = ""           a source of shape [samples]. For logits [samples, classes, …] or [samples, …, classes] it holds
//                       the label of each pixel or token, [samples, …]. A folder of images in classes brings its own
// ignore_index = -100   label that the loss and the metrics ignore
// class_weights = []    weight of each class in the loss, as PyTorch's `weight`; of the loss "bce" its `pos_weight`
// validation_inputs = [], validation_target = ""  the held-out ones, in the same form
// validation_share = 0.1  share held out without validation_inputs, drawn from [run] seed
// size = 0              pixels of a side of a folder's images: the shorter side is resized to it, and the middle is
//                       taken; 0: as they are
// loss = "cross_entropy"  logits, labels; "nll": log-probabilities, labels; "mse", "l1", "huber": numbers;
//                       "bce": logits, 0 or 1; "output": forward() gets the target last and returns the loss itself
// metrics = []          of the outputs: accuracy, top_5 (any k), f1, dice, iou, perplexity, auc, mae, rmse, r2; of
//                       labels by pixel or token they are accuracy and iou, if none is named
// types = {}, missing = "refuse", separator = "", decimal = ".", thousands = "", encoding = "utf-8", header = true,
// missing_words = ["NA", "N/A", "NaN", "nan", "NULL", "null", "#N/A", "n/a", "NaT", "?"]
// skip_lines = 0        of CSV files, as of task/tabular; missing: "refuse", "zero" or "previous"
// batch_size = 32
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = ""  see vernier/data/supervised_task.h
// recompute = "none"    nothing else is possible here
//
// Whole numbers become int64 where forward() fails for their own dtype, as in torch.nn.Embedding. Checkpoints have the
// model's file in them, so that a trained one is used without it and without the data.
//
// Weights start as the file has them, not from [run] seed. Use torch.jit.script where forward() has dropout or other
// branches: tracing keeps the one that it saw.
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>
#include <vernier/sdk.h>

#include <sstream>
#include <vector>

#include "task/exported/exported_task.h"

namespace {

using exported::Network;
using vernier::refuse;

struct Buffer {
  torch::jit::Module owner;
  std::string name;
  torch::Tensor tensor;
};

// Registers the tensors of a part of a script under their names.
void add(torch::nn::Module& part, const torch::jit::Module& script, std::vector<Buffer>& buffers) {
  for (const auto& entry : script.named_parameters(/*recurse=*/false)) {
    part.register_parameter(entry.name, entry.value, entry.value.requires_grad());
  }
  for (const auto& entry : script.named_buffers(/*recurse=*/false)) {
    part.register_buffer(entry.name, entry.value);
    buffers.push_back({script, entry.name, entry.value});
  }
  for (const auto& entry : script.named_children()) {
    add(*part.register_module(entry.name, std::make_shared<torch::nn::Module>()), entry.value, buffers);
  }
}

// Refuses SetAttr, and GetAttr for a change in place, of an attribute that checkpoints do not have.
void require_kept(const torch::jit::Node& node) {
  const auto type = node.input(0)->type()->cast<c10::ClassType>();
  if (!type || !type->is_module()) return;
  const auto& name = node.s(c10::attr::name);
  const auto slot = type->getAttributeSlot(name);
  if (type->is_buffer(slot) || (type->is_parameter(slot) && node.kind() == c10::prim::GetAttr)) return;
  refuse("forward() of the model changes self." + name + ", which checkpoints do not have; keep it in a buffer: " +
         "self.register_buffer('" + name + "', torch.zeros((), dtype=torch.int64))");
}

void require_kept(const torch::jit::Block& block) {
  for (const auto* node : block.nodes()) {
    for (const auto* inner : node->blocks()) require_kept(*inner);
    if (node->kind() == c10::prim::SetAttr) require_kept(*node);
    const auto* schema = node->maybeSchema();
    for (std::size_t i = 0; schema != nullptr && i < schema->arguments().size(); ++i) {
      const auto* from = node->input(i)->node();
      if (schema->is_mutable({c10::SchemaArgType::input, i}) && from->kind() == c10::prim::GetAttr) require_kept(*from);
    }
  }
}

class Script final : public Network {
 public:
  explicit Script(const torch::jit::Module& script) : script_(script) {
    if (const auto forward = script.find_method("forward")) {
      const auto graph = forward->graph()->copy();
      torch::jit::Inline(*graph);
      require_kept(*graph->block());
    }
    add(*this, script, buffers_);
  }

  void train(bool on) override {
    Network::train(on);
    script_.train(on);
  }

  torch::Tensor forward(const std::vector<torch::Tensor>& inputs) override {
    c10::IValue output;
    try {
      output = script_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
    } catch (const std::exception& error) {
      exported::rethrow_failure(error, inputs);
    }
    take_buffers();
    if (output.isTensor()) return output.toTensor();
    refuse("forward() of the model returns " + output.tagKind() + "; it must return one tensor");
  }

  void write(const std::string& file) const {
    std::ostringstream bytes;  // its own writer of files ends the process where the disk is full
    script_.save(bytes);
    exported::write_bytes(file, bytes.str());
  }

 private:
  // `self.count = self.count + 1` makes another tensor; the registered one, which checkpoints have, gets its numbers.
  void take_buffers() {
    const torch::NoGradGuard no_grad;
    for (auto& [owner, name, tensor] : buffers_) {
      const auto now = owner.attr(name).toTensor();
      if (now.is_same(tensor)) continue;
      now.sizes() == tensor.sizes() ? void(tensor.copy_(now)) : tensor.set_data(now.detach());
      owner.setattr(name, tensor);
    }
  }

  torch::jit::Module script_;
  std::vector<Buffer> buffers_;
};

class ScriptTask final : public exported::ExportedTask {
 public:
  explicit ScriptTask(vernier::Options& options)
      : ExportedTask(options, "script", "TorchScript file that Python wrote") {}

  // The trained script itself, so that its branches stay.
  bool save_torchscript(const std::string& file) const override {
    dynamic_cast<const Script&>(*network()).write(file);
    return true;
  }

 private:
  std::shared_ptr<Network> network_of(const torch::Tensor& bytes, const std::string& path) override {
    vernier::refuse_foreign_code("the TorchScript in '" + path + "'");
    // The executor's own backward of aten::linear would not be seen by interceptors, and has other last bits.
    torch::jit::setGraphExecutorOptimize(false);
    torch::jit::Module script;
    try {
      std::istringstream in(
          {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())});
      script = torch::jit::load(in, torch::kCPU);
    } catch (const std::exception& exception) {
      const auto reason = vernier::message(exception);
      refuse("'" + path + "' cannot be read as TorchScript: " + reason.substr(0, reason.find(". ")) +
             "; write it with torch.jit.script(model).save(path)");
    }
    auto model = std::make_shared<Script>(script);
    exported::require_parameters(*model, path);
    return model;
  }
};

}  // namespace

VERNIER_PLUGIN(ScriptTask, "script", "1.0.0")
