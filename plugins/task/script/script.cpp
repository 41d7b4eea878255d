// script: trains any model that Python exported as TorchScript; data and loss are named here. plugins/task/script/
// export.py shows the export.
//
// model                 required: a file of torch.jit.script(module).save(path), or of torch.jit.trace
// inputs                required: a source (vernier/data_source.h) for each argument of forward(), such as
//                       "x.npy", "x.npz:x", "x.safetensors:x", "x.csv:a,b"; or one folder that has a folder of images
//                       for each class: float32 [3, height, width] from 0 to 1
// target = ""           a source; a folder of images has its own
// validation_inputs = [], validation_target = ""  the held-out ones, in the same form
// validation_share = 0.1  share held out without validation_inputs, drawn from [run] seed
// size = 0              pixels of a side of a folder's images: the shorter side is resized to it, and the middle is
//                       taken; 0: as they are
// loss = "cross_entropy"  logits, labels; "nll": log-probabilities, labels; "mse", "l1", "huber": numbers;
//                       "bce": logits, 0 or 1; "output": forward() gets the target last and returns the loss itself
// metrics = []          of the outputs: accuracy, top_5 (any k), f1, perplexity, auc, mae, rmse, r2
// batch_size = 32
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2  see vernier/supervised_task.h
// recompute = "none"    nothing else is possible here
//
// Weights start as the file has them, not from [run] seed. Use torch.jit.script where forward() has dropout or other
// branches: tracing keeps the one that it saw.
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_nd.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/module.h>
#include <vernier/data_source.h>
#include <vernier/images.h>
#include <vernier/predictor.h>
#include <vernier/sdk.h>
#include <vernier/supervised_task.h>
#include <vernier/task_options.h>
#include <vernier/transforms.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

namespace {

using vernier::Batch;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::refuse;
using vernier::Run;

// A part of a script: its tensors under its names.
class Part : public torch::nn::Module {
 public:
  explicit Part(const torch::jit::Module& script) {
    for (const auto& entry : script.named_parameters(/*recurse=*/false)) {
      register_parameter(entry.name, entry.value, entry.value.requires_grad());
    }
    for (const auto& entry : script.named_buffers(/*recurse=*/false)) register_buffer(entry.name, entry.value);
    for (const auto& entry : script.named_children()) register_module(entry.name, std::make_shared<Part>(entry.value));
  }
};

class Script final : public Part {
 public:
  explicit Script(const torch::jit::Module& script) : Part(script), script_(script) {}
  void train(bool on) override {
    Part::train(on);
    script_.train(on);
  }
  torch::Tensor forward(const std::vector<torch::Tensor>& inputs) {
    const auto output = script_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
    if (output.isTensor()) return output.toTensor();
    refuse("forward() of the model returns " + output.tagKind() + "; it must return one tensor");
  }
  const torch::jit::Module& script() const { return script_; }

 private:
  torch::jit::Module script_;
};

std::shared_ptr<Script> read_script(const std::string& path) {
  // The executor's own backward of aten::linear would not be seen by interceptors, and has other last bits.
  torch::jit::setGraphExecutorOptimize(false);
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) refuse("'" + path + "' is not a file; export a model to it first");
  std::shared_ptr<Script> model;
  try {
    model = std::make_shared<Script>(torch::jit::load(path, torch::kCPU));
  } catch (const std::exception& exception) {
    const auto reason = vernier::message(exception);
    refuse("'" + path + "' cannot be read as TorchScript: " + reason.substr(0, reason.find(". ")) +
           "; write it with torch.jit.script(model).save(path)");
  }
  for (const auto& parameter : model->parameters()) {
    if (parameter.requires_grad()) return model;
  }
  refuse("'" + path + "' has no parameters to train; do not freeze the model before saving it");
}

// Outputs with as many numbers as the targets, in their shape.
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

class ScriptTask final : public vernier::SupervisedTask, public vernier::Predictor {
 public:
  explicit ScriptTask(Options& options)
      : SupervisedTask(options, 32),
        model_(options.require<std::string>("model", "TorchScript file that Python wrote")),
        inputs_(options.require<std::vector<std::string>>(
            "inputs",
            "source of each argument of forward(), such as x.npy, x.npz:x, x.csv:a,b; or a folder of images")),
        target_(options.get("target", "", "source of the labels or numbers; a folder of images has its own")),
        held_out_inputs_(
            options.get("validation_inputs", std::vector<std::string>{}, "those held out, in the same form")),
        held_out_target_(options.get("validation_target", "", "their labels or numbers")),
        share_(options.get("validation_share", 0.1, "share held out without validation_inputs", between(0, 0.9))),
        size_(options.get("size", 0, "pixels of a side of a folder's images; 0: as they are", between(0, 65536))),
        loss_(options.choose("loss", "cross_entropy", {"cross_entropy", "nll", "mse", "l1", "huber", "bce", "output"},
                             "of output and target; output: forward() gets the target last and returns the loss")),
        metrics_(options.get("metrics", std::vector<std::string>{},
                             "of outputs and targets: accuracy, top_5, f1, perplexity, auc, mae, rmse, r2")) {
    check(options);
  }

  void build(Run& run) override {
    network_ = read_script(model_);
    DatasetPtr training = read(inputs_, target_), held_out;
    if (!held_out_inputs_.empty()) {
      held_out = read(held_out_inputs_, held_out_target_);
    } else if (share_ > 0) {
      std::tie(training, held_out) = vernier::split(training, share_, run.seed);
    }
    if (training->size() == 0) refuse("'" + inputs_[0] + "' has no sample left to train on; hold out less");
    set_training(training);
    if (held_out) add_validation(held_out);
    // With loss = "output" the model takes all tensors of a batch, and needs no target.
    const auto arguments = inputs_.size() + (loss_ == "output" && has_target() ? 1 : 0);
    set_model(network_, [network = network_.get(), arguments](const Batch& batch) {
      const auto end = batch.tensors.begin() + static_cast<std::ptrdiff_t>(std::min(arguments, batch.tensors.size()));
      return network->forward(std::vector<torch::Tensor>(batch.tensors.begin(), end));
    });
    set_loss([this](const auto& output, const auto& target) { return loss_of(output, target); },
             has_target() ? inputs_.size() : 0);
    for (const auto& name : metrics_) {
      vernier::require_fitting_metric(name, has_labels() ? vernier::Predicts::classes : vernier::Predicts::scores,
                                      classes_);
      add_metric(vernier::metric_by_name(name, std::max<std::int64_t>(classes_, 2)));
    }
  }

  // A source for the first input, or a file with the same part in it; an image or a folder of images.
  DatasetPtr read_inputs(const std::string& path) override {
    if (loss_ == "output") {
      refuse("loss = \"output\": the model returns its loss, so there is nothing to predict; export the model instead");
    }
    if (inputs_.size() > 1) {
      refuse("the model takes " + std::to_string(inputs_.size()) + " inputs, and '" + path + "' names one");
    }
    if (is_folder(inputs_[0])) return pixels(vernier::image_files(path, 3).dataset);
    const auto source = read_finite(vernier::same_part(inputs_[0], path));
    return vernier::dataset_of({source.tensor}, source.name, vernier::fingerprint_of({source.tensor}));
  }

  std::vector<Column> predict(const Batch& batch) override {
    const auto output = forward(batch);
    if (loss_ == "bce") return {{"probability", output.to(torch::kFloat32).sigmoid()}};
    if (!has_labels() || output.dim() != 2) return {{"output", output}};
    // Outputs beyond the words are of no class. Of log-probabilities, softmax changes nothing.
    const auto known = words_.empty() ? output : output.narrow(1, 0, std::ssize(words_));
    const auto chances = known.to(torch::kFloat32).softmax(1);
    return {{"class", chances.argmax(1), words_}, {"probability", chances, {}, words_}};
  }

  // The trained script itself, so that its branches stay.
  bool save_torchscript(const std::string& file) const override {
    std::ostringstream bytes;  // its own writer of files ends the process where the disk is full
    network_->script().save(bytes);
    std::ofstream out(file, std::ios::binary);
    out << bytes.str();
    if (!out.flush()) throw vernier::Error(file + ": cannot be written; the disk may be full");
    return true;
  }

 private:
  static bool is_folder(const std::string& path) {
    std::error_code none;
    return std::filesystem::is_directory(path, none);
  }
  bool has_labels() const { return loss_ == "cross_entropy" || loss_ == "nll"; }
  bool has_target() const { return !target_.empty() || is_folder(inputs_[0]); }

  void check(const Options& options) const {
    if (inputs_.empty()) return;  // the options are only described
    vernier::refuse_recompute(options);
    if (is_folder(inputs_[0]) && inputs_.size() > 1) options.refuse("inputs", "has a folder of images and others");
    if (is_folder(inputs_[0]) && !target_.empty()) options.refuse("target", "is for files; a folder has its classes");
    if (!has_target() && loss_ != "output") options.refuse("target", "is needed for loss = \"" + loss_ + "\"");
    if (!held_out_inputs_.empty() && held_out_inputs_.size() != inputs_.size()) {
      options.refuse("validation_inputs",
                     c10::str("has ", held_out_inputs_.size(), " sources, and `inputs` has ", inputs_.size()));
    }
    if (!target_.empty() && held_out_inputs_.empty() != held_out_target_.empty()) {
      options.refuse("validation_inputs", "and `validation_target` are given both or not at all");
    }
    if (loss_ == "output" && !metrics_.empty())
      options.refuse("metrics", "need outputs, and the model returns its loss");
  }

  static vernier::Source read_finite(const std::string& name) {
    auto source = vernier::read_source(name);
    if (!source.words.empty()) refuse("'" + name + "' has words; inputs are numbers");
    vernier::require_finite(source);
    return source;
  }

  DatasetPtr pixels(const DatasetPtr& images) const {
    return vernier::transform(vernier::of_one_size(images, size_), {vernier::to_float()});
  }

  DatasetPtr read(const std::vector<std::string>& inputs, const std::string& target) {
    if (is_folder(inputs[0])) {
      const auto folder = vernier::image_folder(inputs[0], {.classes = words_});
      words_ = folder.classes;
      classes_ = std::ssize(words_);
      return pixels(folder.dataset);
    }
    std::vector<torch::Tensor> tensors;
    for (const auto& name : inputs) tensors.push_back(read_finite(name).tensor);
    if (!target.empty()) tensors.push_back(read_target(target));
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].size(0) == tensors[0].size(0)) continue;
      refuse(c10::str("'", inputs[0], "' has ", tensors[0].size(0), " samples, and '",
                      i < inputs.size() ? inputs[i] : target, "' ", tensors[i].size(0)));
    }
    return vernier::dataset_of(tensors, inputs[0], vernier::fingerprint_of(tensors));
  }

  torch::Tensor read_target(const std::string& name) {
    const auto source = vernier::read_source(name, words_);
    if (has_labels()) {
      const auto labels = vernier::labels_of(source, classes_);
      if (classes_ == 0) classes_ = vernier::classes_of(source, labels), words_ = source.words;
      return labels;
    }
    if (!source.words.empty()) refuse("'" + name + "' has words; they are for loss = \"cross_entropy\" or \"nll\"");
    vernier::require_finite(source);
    if (loss_ == "output") return source.tensor;
    const auto numbers = source.tensor.to(torch::kFloat32);
    if (loss_ == "bce" && ((numbers < 0) | (numbers > 1)).any().item<bool>()) {
      refuse("'" + name + "' has numbers below 0 or above 1; loss = \"bce\" takes probabilities");
    }
    return numbers;
  }

  torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) const {
    if (loss_ == "output") return output.mean();
    if (has_labels()) {
      require_logits(output, classes_);
      return loss_ == "nll" ? at::nll_loss_nd(output, target) : at::cross_entropy_loss(output, target);
    }
    const auto numbers = as_target(output, target);
    if (loss_ == "mse") return at::mse_loss(numbers, target);
    if (loss_ == "l1") return at::l1_loss(numbers, target);
    if (loss_ == "huber") return at::huber_loss(numbers, target);
    return at::binary_cross_entropy_with_logits(numbers, target);
  }

  std::string model_;
  std::vector<std::string> inputs_;
  std::string target_;
  std::vector<std::string> held_out_inputs_;
  std::string held_out_target_;
  double share_;
  std::int64_t size_;
  std::string loss_;
  std::vector<std::string> metrics_;

  std::shared_ptr<Script> network_;
  std::int64_t classes_ = 0;
  std::vector<std::string> words_;  // for the labels
};

}  // namespace

VERNIER_PLUGIN(ScriptTask, "script", "1.0.0")
