// mlp: trains a small classifier of points around random centres, for tests and to measure what a step itself costs.
//
// inputs = 32, hidden = [32], classes = 10  widths of the layers, with relu between them
// samples = 1024      points, drawn from [run] seed
// batch_size = 8
// noise = 1.0         deviation of the points around their centre; that of the centres is 1
// dropout = 0, batch_norm = false   between the hidden layers
// recompute = "none"  full, selective: backward computes hidden layers again; see vernier/task_options.h
// order = "shuffled"  of the points in an epoch, or "sequential"
// validation = 0.1    share of the points held out; 0: none
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>
#include <vernier/draft/capture.h>
#include <vernier/exported_model.h>
#include <vernier/random_state.h>
#include <vernier/sdk.h>
#include <vernier/task_options.h>

#include <cmath>
#include <optional>

namespace {

using vernier::Batch;
using vernier::between;
using vernier::Options;
using vernier::Run;

constexpr double widest = 1e6;

// As nn::Linear, initialisation included, but from a generator of its own.
class Linear final : public torch::nn::Module {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, const at::Generator& generator) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
    weight = register_parameter("weight", torch::empty({outputs, inputs}).uniform_(-bound, bound, generator));
    bias = register_parameter("bias", torch::empty({outputs}).uniform_(-bound, bound, generator));
  }
  torch::Tensor weight, bias;
};

// As nn::BatchNorm1d. One sample, which has no deviation, is normalised as in evaluation.
class BatchNorm final : public torch::nn::Module {
 public:
  explicit BatchNorm(std::int64_t width)
      : weight(register_parameter("weight", torch::ones({width}))),
        bias(register_parameter("bias", torch::zeros({width}))),
        mean(register_buffer("running_mean", torch::zeros({width}))),
        variance(register_buffer("running_var", torch::ones({width}))) {}
  torch::Tensor forward(const torch::Tensor& x) const {
    if (!is_training() || x.size(0) == 1) {
      const auto dtype = weight.scalar_type();
      return at::batch_norm(x, weight, bias, mean.to(dtype), variance.to(dtype), false, 0, 1e-5, false);
    }
    mean.lerp_(x.detach().mean(0).to(mean.scalar_type()), 0.1);
    variance.lerp_(x.detach().var(0).to(variance.scalar_type()), 0.1);
    return at::batch_norm(x, weight, bias, {}, {}, true, 0, 1e-5, false);
  }
  torch::Tensor weight, bias, mean, variance;
};

class Network final : public torch::nn::Module {
 public:
  Network(const std::vector<std::int64_t>& widths, const at::Generator& generator, double dropout, bool normalises,
          std::optional<vernier::Keep> keep)
      : dropout_(dropout), keep_(keep) {
    torch::nn::ModuleList list;
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers_.push_back(std::make_shared<Linear>(widths[i], widths[i + 1], generator));
      list->push_back(layers_.back());
    }
    register_module("layers", list);
    for (std::size_t i = 1; normalises && i + 1 < widths.size(); ++i) {
      norms_.push_back(register_module("norm_" + std::to_string(i - 1), std::make_shared<BatchNorm>(widths[i])));
    }
  }

  torch::Tensor forward(torch::Tensor x) const {
    // The data are float32, the model may be in 16 bits. A callback may keep the weights as something else.
    if (x.scalar_type() != layers_[0]->bias.scalar_type()) x = x.to(layers_[0]->bias.scalar_type());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto part = [i, layer = layers_[i].get()](const torch::Tensor& y) {
        return at::linear(i > 0 ? at::relu(y) : y, layer->weight, layer->bias);
      };
      x = keep_ && at::GradMode::is_enabled() ? vernier::checkpoint(*keep_, part, x) : part(x);
      if (i + 1 == layers_.size()) break;
      if (!norms_.empty()) x = norms_[i]->forward(x);
      if (dropout_ > 0) x = at::dropout(x, dropout_, is_training());
    }
    return x;
  }

 private:
  double dropout_;
  std::optional<vernier::Keep> keep_;
  std::vector<std::shared_ptr<Linear>> layers_;
  std::vector<std::shared_ptr<BatchNorm>> norms_;
};

class Mlp final : public vernier::Task, public vernier::Exportable, public vernier::draft::Capturable {
 public:
  explicit Mlp(Options& options)
      : inputs_(options.get("inputs", 32, "numbers of a point", between(1, widest))),
        hidden_(
            options.get("hidden", std::vector<std::int64_t>{32}, "widths of the hidden layers", between(1, widest))),
        classes_(options.get("classes", 10, "centres of the points", between(2, widest))),
        samples_(options.get("samples", 1024, "points, those held out included", between(1, 1e9))),
        batch_size_(options.get("batch_size", 8, "points of an update", between(1, 1e9))),
        noise_(options.get("noise", 1.0, "deviation of the points around their centre", between(0, 1e6))),
        order_(vernier::read_order(options, "of the points in an epoch")),
        dropout_(options.get("dropout", 0.0, "share of each hidden layer's outputs that dropout sets to 0 in training",
                             between(0, 0.99))),
        normalises_(options.get("batch_norm", false, "batch normalisation after each hidden layer")),
        keep_(vernier::read_recompute(options)) {
    remember("", sampler_);
    const double share = options.get("validation", 0.1, "share of the points held out; 0: none", between(0, 0.9));
    held_out_ = static_cast<std::int64_t>(std::ceil(static_cast<double>(samples_) * share));
    if (training() < batch_size_) {
      options.refuse("samples",
                     c10::str("leaves ", training(), " to train on, less than a batch_size of ", batch_size_));
    }
  }

  void prepare(Run& run) override {
    const auto generator = vernier::own_generator(run.seed);
    std::vector<std::int64_t> widths = hidden_;
    widths.insert(widths.begin(), inputs_);
    widths.push_back(classes_);
    run.set_model(network_ = std::make_shared<Network>(widths, generator, dropout_, normalises_, keep_));
    draw_points(generator);
    sampler_.emplace(training(), run.seed, order_);
  }

  // As cheap as a hand-written loop: this task measures what the framework adds.
  Batch next() override {
    const auto numbers = sampler_->next(batch_size_);
    Batch batch;
    batch.samples = numbers.numel();
    batch.tensors.reserve(2);
    batch.tensors.push_back(points_.index_select(0, numbers));
    batch.tensors.push_back(labels_.index_select(0, numbers));
    const auto* first = numbers.const_data_ptr<std::int64_t>();
    batch.indices.assign(first, first + batch.samples);
    return batch;
  }
  std::string where(std::int64_t index) const override { return c10::str("point ", index); }

  std::int64_t batches_per_epoch() const override { return (training() + batch_size_ - 1) / batch_size_; }

  torch::Tensor loss(const Batch& micro_batch) override {
    return at::cross_entropy_loss(network_->forward(micro_batch.tensors[0]), micro_batch.tensors[1]);
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{"accuracy", vernier::Better::higher, "ratio", "share of the samples whose class is right", 0, 1}};
  }
  std::optional<std::vector<vernier::MetricInfo>> measures() const override {
    if (held_out_ == 0) return std::vector<vernier::MetricInfo>();
    return std::vector<vernier::MetricInfo>{{"validation_loss", vernier::Better::lower}, metrics().front()};
  }
  torch::Tensor validate(Run& run) override {
    if (held_out_ == 0) return {};
    const auto labels = labels_.narrow(0, training(), held_out_).to(run.device);
    const auto logits = network_->forward(points_.narrow(0, training(), held_out_).to(run.device));
    run.metrics.set("accuracy", (logits.argmax(1) == labels).to(torch::kFloat32).mean());
    return at::cross_entropy_loss(logits, labels);
  }

  vernier::ExportedModel exported_model() override {
    return vernier::exported_model(*network_, {torch::zeros({2, inputs_})}, std::make_index_sequence<1>());
  }

 private:
  std::int64_t training() const { return samples_ - held_out_; }

  void draw_points(const at::Generator& generator) {
    const auto centres = torch::empty({classes_, inputs_}).normal_(0.0, 1.0, generator);
    labels_ = torch::empty({samples_}, torch::kInt64).random_(0, classes_, generator);
    points_ = torch::empty({samples_, inputs_})
                  .normal_(0.0, 1.0, generator)
                  .mul_(noise_)
                  .add_(centres.index_select(0, labels_));
  }

  std::int64_t inputs_;
  std::vector<std::int64_t> hidden_;
  std::int64_t classes_, samples_, batch_size_;
  double noise_;
  vernier::Sampler::Order order_;
  double dropout_;
  bool normalises_;
  std::optional<vernier::Keep> keep_;
  std::int64_t held_out_ = 0;

  torch::Tensor points_, labels_;  // the held-out ones are last
  std::optional<vernier::Sampler> sampler_;
  std::shared_ptr<Network> network_;
};

}  // namespace

VERNIER_PLUGIN(Mlp, "mlp", "1.0.0")
