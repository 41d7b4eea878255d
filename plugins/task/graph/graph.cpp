// graph: trains any model that Python exported with torch.export; data and loss are named here. plugins/task/graph/
// export.py shows the export.
//
// model                 required: a file of torch.export.save, format 8 (PyTorch 2.11), of a training program with a
//                       dynamic batch; "rank-{rank}.pt2": a file for each rank of distributed/model_parallel
// output = ""           the name of the tensor that counts, where forward() returns a dict, or its place in a tuple
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
// operators = []        libraries with the operators of your own that the model calls: TORCH_LIBRARY, and kernels for
//                       CPU and Autograd
//
// Whole numbers become int64 where forward() fails for their own dtype, as in torch.nn.Embedding. Checkpoints have the
// model's file in them, so that a trained one is used without it and without the data.
//
// Weights start as the file has them, not from [run] seed. save() of export.py writes programs of training and of
// evaluation into one file. Other files have one, which must be exported in training mode: dropout and batch
// normalisation then change in evaluation as torch.nn does it.
#include <vernier/draft/model_parts.h>
#include <vernier/exported_model.h>
#include <vernier/sdk.h>

#include "graph_network.h"
#include "operators.h"
#include "task/exported/exported_task.h"

namespace {

// Only a .pt2 file keeps its guards. examples: one tensor for each input; dimension 0 is the sample.
void refuse_guards_on_samples(const graph::GraphNetwork& network, const std::vector<torch::Tensor>& examples) {
  constexpr std::int64_t most = 1024;  // one sample is taken by what is exported for two or more
  for (std::int64_t samples = 2; samples <= most; ++samples) {
    std::vector<torch::Tensor> inputs;
    for (const auto& example : examples) {
      auto sizes = example.sizes().vec();
      sizes[0] = samples;
      inputs.push_back(torch::empty(sizes, torch::kMeta));
    }
    if (const auto guard = network.unmet(inputs); !guard.empty()) {
      vernier::refuse("the model was exported for inputs of which " + guard +
                      ", and this format takes any number of samples; write --format pt2, which checks it");
    }
  }
}

// Notes which tensors are parts, where several ranks hold the model together.
void take_parts(const graph::GraphNetwork& network, const std::string& path) {
  const auto& parts = network.parts();
  auto* const model = vernier::draft::ModelParts::current();
  if (!parts && model == nullptr) return;
  const auto refuse = [&](const std::string& what) { vernier::refuse("'" + path + "' " + what); };
  if (!parts) {
    refuse(
        "does not say which of its tensors are sharded, as [distributed] use = \"model_parallel\" needs; write them "
        "by save(…, sharded=[…]) of export.py, or train a whole model with use = \"ddp\"");
  } else if (model == nullptr) {
    refuse(c10::str("is the part of rank ", parts->rank, " of a model on ", parts->ranks,
                    " ranks, which train it together: vernier launch -n ", parts->ranks,
                    " run.toml, with [distributed] use = \"model_parallel\""));
  } else if (parts->rank != model->rank() || parts->ranks != model->ranks()) {
    refuse(c10::str("is the part of rank ", parts->rank, " of ", parts->ranks, ", and this is rank ", model->rank(),
                    " of ", model->ranks(), "; set [task] model = \"rank-{rank}.pt2\", and start ", parts->ranks,
                    " ranks"));
  } else {
    model->set(network.own_tensors());
  }
}

class GraphTask final : public exported::ExportedTask, public vernier::PythonModule, public vernier::Exportable {
 public:
  explicit GraphTask(vernier::Options& options)
      : ExportedTask(options, "graph", "file of torch.export.save that Python wrote"),
        output_(options.get("output", "", "name of the output that counts, where forward() returns several")),
        operators_(options.get("operators", std::vector<std::string>{},
                               "libraries of operators of your own (TORCH_LIBRARY), which the model calls")) {
    options.resumable("operators");  // the path may change
  }

  void check(const vernier::Run& run) override {
    ExportedTask::check(run);
    graph_network().refuse_taken_apart(run);
  }

  bool save_pt2(const std::string& file) const override {
    exported::write_bytes(file, graph_network().bytes());
    return true;
  }
  // Leaves the tracing to the caller.
  bool save_torchscript(const std::string&) const override {
    refuse_guards_on_samples(graph_network(), example(2).tensors);
    return false;
  }
  // The exported program computes in the dtypes of its file, whatever precision the training had.
  vernier::ExportedModel exported_model() override {
    auto bytes = graph_network().bytes();
    const auto file = torch::from_blob(bytes.data(), {std::ssize(bytes)}, torch::kUInt8);
    const auto written = std::make_shared<graph::GraphNetwork>(file.clone(), "the run's model", output_);
    written->to(network()->parameters().front().device());
    written->eval();
    auto examples = written->as_declared(example(2).tensors);
    refuse_guards_on_samples(*written, examples);
    return {*written,
            [written](const auto& inputs) { return written->forward(inputs); },
            std::move(examples),
            {},
            description(),
            {},
            classes()};
  }
  std::map<std::string, torch::Tensor> state_dict() const override { return graph_network().state_dict(); }

 private:
  const graph::GraphNetwork& graph_network() const { return dynamic_cast<const graph::GraphNetwork&>(*network()); }

  std::shared_ptr<exported::Network> network_of(const torch::Tensor& bytes, const std::string& path) override {
    graph::take_operators_of(operators_);
    auto network = std::make_shared<graph::GraphNetwork>(bytes, path, output_);
    exported::require_parameters(*network, path);
    take_parts(*network, path);
    if (!network->guessed().empty()) {
      warn("'", path, "' does not say what ", network->guessed(),
           " and the like do in evaluation; they are taken to be off. save() of export.py writes what they do");
    }
    if (network->trains_as_evaluated()) {
      warn("'", path,
           "' was exported in evaluation mode: its dropout and batch normalisation do nothing in training; "
           "call model.train() before torch.export.export()");
    }
    return network;
  }

  std::string output_;
  std::vector<std::string> operators_;
};

}  // namespace

VERNIER_PLUGIN(GraphTask, "graph", "1.0.0")
