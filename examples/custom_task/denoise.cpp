// denoise: trains a small convolutional network to remove noise from signals. The dataset makes its signals itself.
// length = 64    numbers of a signal
// noise = 0.5    deviation of the noise
// signals = 2000 in an epoch
// The options of every SupervisedTask come with it: `vernier plugins task/denoise` prints them.
#include <torch/torch.h>
#include <vernier/data/supervised_task.h>
#include <vernier/sdk.h>

// Sample i is {signal with noise, signal}. The signal depends on i alone, the noise on the epoch too.
class Signals final : public vernier::Dataset {
 public:
  Signals(std::int64_t size, std::int64_t length, double noise) : size_(size), length_(length), noise_(noise) {}
  std::int64_t size() const override { return size_; }
  vernier::Sample get(std::int64_t index, vernier::Random& random) const override {
    const auto time = torch::linspace(0, 6.28, length_);
    const auto clean = torch::sin(time * (1 + index % 7) + index) + 0.5 * torch::sin(time * (index % 3) + 2 * index);
    return {clean + noise_ * torch::randn({length_}, random.generator()), clean};
  }

 private:
  std::int64_t size_, length_;
  double noise_;
};

// 1 - the error of the output over that of the noise: 0 is as bad as no network, 1 is perfect.
class Removed final : public vernier::Metric {
 public:
  std::string name() const override { return "noise_removed"; }
  void reset() override { error_ = spread_ = torch::zeros({}, torch::kFloat64); }
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    error_ = error_ + (output - target).square().sum().to(error_);
    spread_ = spread_ + target.numel();
  }
  torch::Tensor value() const override { return 1 - error_ / spread_ / (noise * noise); }
  double noise = 1;

 private:
  torch::Tensor error_, spread_;
};

class Network final : public torch::nn::Module {
 public:
  Network() {
    for (const auto& [in, out] : {std::pair(1, 16), std::pair(16, 16), std::pair(16, 1)}) {
      layers_->push_back(torch::nn::Conv1d(torch::nn::Conv1dOptions(in, out, 7).padding(3)));
    }
    register_module("layers", layers_);
  }
  torch::Tensor forward(const torch::Tensor& signal) {  // [samples, length]
    auto x = signal.unsqueeze(1);
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      x = layers_->at<torch::nn::Conv1dImpl>(i).forward(i == 0 ? x : torch::relu(x));
    }
    return x.squeeze(1);
  }

 private:
  torch::nn::ModuleList layers_;
};

class Denoise final : public vernier::SupervisedTask {
 public:
  explicit Denoise(vernier::Options& options)
      : SupervisedTask(options),
        length_(options.get("length", 64, "numbers of a signal", vernier::between(1, 1e6))),
        signals_(options.get("signals", 2000, "signals in an epoch", vernier::between(1, 1e9))),
        noise_(options.get("noise", 0.5, "deviation of the noise", vernier::above(0))) {}

  void build(vernier::Run&) override {
    set_training(std::make_shared<Signals>(signals_, length_, noise_));
    add_validation(std::make_shared<Signals>(200, length_, noise_));
    add_validation(std::make_shared<Signals>(200, length_, 2 * noise_), "loud");
    set_model(std::make_shared<Network>());
    set_loss([](const auto& output, const auto& target) { return at::mse_loss(output, target); });
    auto removed = std::make_unique<Removed>();
    removed->noise = noise_;
    add_metric(std::move(removed));
  }

 private:
  std::int64_t length_, signals_;
  double noise_;
};

VERNIER_PLUGIN(Denoise, "denoise", "1.0.0")
