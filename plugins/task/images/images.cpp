// images: trains a small convolutional network with batch normalization on images and labels in IDX files (idx.h). An
// example is MNIST; many other data sets have the same format.
//
// images, labels        required: IDX files, packed by gzip or not; sizes are taken from them
// validation_images = "", validation_labels = ""  the held-out ones; "": no validation
// classes = 10          labels are 0 … classes - 1
// batch_size = 64
// channels = 16         of the first convolution; the second has twice as many
// order = "shuffled"    of the images in an epoch, or "sequential"
// max_bytes = 4000000000  the most bytes of a file's elements, unpacked; a file with more is refused before it is read
//
// Batch normalization (Ioffe and Szegedy 2015) takes its statistics over a micro-batch. So accumulation, which is exact
// elsewhere, gives slightly different numbers here.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <vernier/checksum.h>
#include <vernier/sdk.h>

#include <cmath>
#include <optional>
#include <utility>

#include "idx.h"

namespace {

using vernier::Batch;
using vernier::between;
using vernier::Options;
using vernier::Run;

class Network final : public torch::nn::Module {
 public:
  Network(torch::IntArrayRef image, std::int64_t channels, std::int64_t classes, std::uint64_t seed)
      : conv_1_(convolution("conv_1", 1, channels)),
        norm_1_(register_module("norm_1", torch::nn::BatchNorm2d(channels))),
        conv_2_(convolution("conv_2", channels, 2 * channels)),
        norm_2_(register_module("norm_2", torch::nn::BatchNorm2d(2 * channels))),
        classify_(
            register_module("classify", torch::nn::Linear(2 * channels * (image[0] / 4) * (image[1] / 4), classes))) {
    initialise(seed);
  }

  // Logits [batch, classes] of images [batch, height, width], uint8.
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = images.unsqueeze(1).to(conv_1_->weight.scalar_type()).div_(255);
    x = at::max_pool2d(at::relu(norm_1_->forward(conv_1_->forward(x))), 2);
    x = at::max_pool2d(at::relu(norm_2_->forward(conv_2_->forward(x))), 2);
    return at::linear(x.flatten(1), classify_->weight, classify_->bias);
  }

 private:
  // Without a bias, which the normalisation would take away again.
  torch::nn::Conv2d convolution(const char* name, std::int64_t inputs, std::int64_t outputs) {
    return register_module(name,
                           torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, 3).padding(1).bias(false)));
  }

  // As LibTorch does it, but from the seed alone.
  void initialise(std::uint64_t seed) {
    torch::NoGradGuard no_grad;
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    for (const auto& weight : {conv_1_->weight, conv_2_->weight, classify_->weight}) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(weight[0].numel()));
      weight.uniform_(-bound, bound, generator);
    }
    classify_->bias.zero_();
  }

  torch::nn::Conv2d conv_1_;
  torch::nn::BatchNorm2d norm_1_;
  torch::nn::Conv2d conv_2_;
  torch::nn::BatchNorm2d norm_2_;
  torch::nn::Linear classify_;
};

struct Data {
  torch::Tensor images, labels;  // uint8 [n, height, width], uint8 [n]
  std::int64_t count() const { return labels.defined() ? labels.size(0) : 0; }
  Batch take(const torch::Tensor& numbers) const {
    auto classes = labels.index_select(0, numbers).to(torch::kInt64);
    return {{images.index_select(0, numbers), std::move(classes)}, numbers.numel(), 0};
  }
};

class Images final : public vernier::Task {
 public:
  explicit Images(Options& options)
      : images_(options.require<std::string>("images", "IDX file of images to train on")),
        labels_(options.require<std::string>("labels", "IDX file of their labels")),
        held_out_images_(options.get("validation_images", "", "IDX file of images held out; none: no validation")),
        held_out_labels_(options.get("validation_labels", "", "IDX file of their labels")),
        classes_(options.get("classes", 10, "labels are 0 to classes - 1", between(2, 256))),
        batch_size_(options.get("batch_size", 64, "images of an update", between(1, 1e9))),
        channels_(
            options.get("channels", 16, "of the first convolution; the second has twice as many", between(1, 65536))),
        order_(vernier::read_order(options, "of the images in an epoch")),
        max_bytes_(options.get("max_bytes", 4'000'000'000, "the most bytes of a file, unpacked; more are refused",
                               vernier::at_least(1))) {
    if (held_out_images_.empty() != held_out_labels_.empty()) {
      options.refuse("validation_images", "and `validation_labels` are given both or not at all");
    }
  }

  void prepare(Run& run) override {
    training_ = read(images_, labels_);
    if (!held_out_images_.empty()) held_out_ = read(held_out_images_, held_out_labels_);
    check_sizes();
    checksum_ = checksum();
    sampler_.emplace(training_.count(), run.seed, order_);
    network_ = std::make_shared<Network>(training_.images.sizes().slice(1), channels_, classes_, run.seed);
    run.model = network_;
    info(training_.count(), " images of ", training_.images.size(1), " x ", training_.images.size(2), ", ",
         held_out_.count(), " held out");
  }

  Batch next() override { return training_.take(sampler_->next(batch_size_)); }

  std::int64_t batches_per_epoch() const override { return (training_.count() + batch_size_ - 1) / batch_size_; }

  torch::Tensor loss(const Batch& micro_batch) override {
    return at::cross_entropy_loss(network_->forward(micro_batch.tensors[0]), micro_batch.tensors[1]);
  }

  torch::Tensor validate(Run& run) override {
    if (held_out_.count() == 0) return {};
    auto sum = torch::zeros({}, torch::TensorOptions(run.device).dtype(torch::kFloat32));
    auto right = sum.clone();
    for (const auto& numbers : torch::arange(held_out_.count()).split(batch_size_)) {
      if (run.is_stopping()) return {};
      const auto batch = held_out_.take(numbers).to(run.device);
      const auto logits = network_->forward(batch.tensors[0]);
      sum += at::cross_entropy_loss(logits, batch.tensors[1]).to(torch::kFloat32) * batch.samples;
      right += (logits.argmax(1) == batch.tensors[1]).sum();
    }
    run.metrics.set("accuracy", right / held_out_.count());
    return sum / held_out_.count();
  }

  vernier::State save() const override {
    auto state = sampler_->state_dict();
    state.put("checksum", checksum_);
    return state;
  }

  void load(const vernier::State& state) override {
    sampler_->load_state_dict(state);
    if (state.text("checksum") != checksum_) {
      refuse("the images or labels have changed since this run was saved; give the same files, or start a new run");
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& reason) {
    throw vernier::Error(reason, vernier::Error::Kind::configuration);
  }

  Data read(const std::string& images, const std::string& labels) const {
    Data data{read_idx(images, 3, max_bytes_), read_idx(labels, 1, max_bytes_)};
    if (data.images.size(0) != data.count()) {
      refuse(c10::str("'", images, "' has ", data.images.size(0), " images, '", labels, "' ", data.count(), " labels"));
    }
    if (data.count() == 0) refuse("'" + labels + "' has no labels");
    if (const auto largest = data.labels.max().item<std::int64_t>(); largest >= classes_) {
      refuse(c10::str("'", labels, "' has a label ", largest, "; with classes = ", classes_, " the largest is ",
                      classes_ - 1));
    }
    return data;
  }

  // Of all that was read, whichever way its files were packed.
  std::string checksum() const {
    vernier::Checksum sum;
    for (const auto& tensor : {training_.images, training_.labels, held_out_.images, held_out_.labels}) {
      if (tensor.defined()) sum.add(tensor.const_data_ptr(), tensor.nbytes());
    }
    return sum.digits();
  }

  void check_sizes() const {
    const auto size = training_.images.sizes().slice(1);
    if (size[0] < 4 || size[1] < 4) {
      refuse(c10::str("'", images_, "' has images of ", size, "; two poolings need 4 x 4 at least"));
    }
    if (held_out_.count() > 0 && held_out_.images.sizes().slice(1) != size) {
      refuse(c10::str("'", held_out_images_, "' has images of ", held_out_.images.sizes().slice(1),
                      ", those to train on are ", size));
    }
  }

  std::string images_, labels_, held_out_images_, held_out_labels_;
  std::int64_t classes_, batch_size_, channels_;
  vernier::Sampler::Order order_;
  std::int64_t max_bytes_;

  Data training_, held_out_;
  std::string checksum_;  // of both
  std::optional<vernier::Sampler> sampler_;
  std::shared_ptr<Network> network_;
};

}  // namespace

VERNIER_PLUGIN(Images, "images", "1.0.0")
