// One of the rivals of peers.py: the training loop that a careful engineer writes by hand in LibTorch, with
// at::_fused_adamw_, LibTorch's autocast and PyTorch's rule of the gradient scaler.
//
//   peers_plain FOLDER fp32|bf16|fp16 BATCH_SIZE THREADS
//
// FOLDER has model.pt (TorchScript with its start weights), inputs.npy and targets.npy. A line on stdin is a number of
// steps to train; the answer is a line of JSON on stdout: {"seconds": 0.52, "losses": [2.31, 2.29]}.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/types.h>
#include <vernier/data/numpy.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

// LibTorch has no guard of its own for autocast.
class Autocast {
 public:
  explicit Autocast(std::optional<torch::ScalarType> dtype) : on_(dtype.has_value()) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, *dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }

 private:
  bool on_;
};

class Loop {
 public:
  Loop(const std::string& folder, const std::string& precision, std::int64_t batch_size)
      : model_(torch::jit::load(folder + "/model.pt")),
        inputs_(vernier::read_npy(folder + "/inputs.npy").clone().split(batch_size)),
        targets_(vernier::read_npy(folder + "/targets.npy").clone().split(batch_size)) {
    if (precision == "bf16") dtype_ = torch::kBFloat16;
    if (precision == "fp16") dtype_ = torch::kHalf;
    model_.train();
    for (const auto& parameter : model_.parameters()) {
      parameters_.push_back(parameter);
      mean_.push_back(torch::zeros_like(parameter));
      square_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat32));
    }
  }

  torch::Tensor step() {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    const auto loss = forward();
    (dtype_ == torch::kHalf ? loss * scale_ : loss).backward();
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    gradients.reserve(parameters_.size());
    for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
    dtype_ == torch::kHalf ? update_scaled(gradients) : update(gradients, {}, {});
    return loss.detach();
  }

 private:
  torch::Tensor forward() {
    const auto i = batch_++ % inputs_.size();
    const Autocast autocast(dtype_);
    const auto output = model_.forward({inputs_[i]}).toTensor();
    return at::cross_entropy_loss(output.flatten(0, -2), targets_[i].flatten());
  }

  void update(const std::vector<torch::Tensor>& gradients, const std::optional<torch::Tensor>& scale,
              const std::optional<torch::Tensor>& found_inf) {
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, mean_, square_, {}, steps_, /*lr=*/3e-4, 0.9, 0.999,
                      /*weight_decay=*/0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false, scale, found_inf);
    if (found_inf) at::_foreach_sub_(steps_, std::vector<torch::Tensor>(steps_.size(), *found_inf));
  }

  // GradScaler with a fused optimizer (torch/amp/grad_scaler.py): the optimizer divides by the scale itself.
  void update_scaled(const std::vector<torch::Tensor>& gradients) {
    auto found_inf = torch::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, torch::ones({1}));
    update(gradients, scale_, found_inf.squeeze());
    at::_amp_update_scale_(scale_, growth_, found_inf, 2.0, 0.5, 2000);
  }

  torch::jit::Module model_;
  std::vector<torch::Tensor> inputs_, targets_;
  std::optional<torch::ScalarType> dtype_;
  std::vector<torch::Tensor> parameters_, mean_, square_, steps_;
  torch::Tensor scale_ = torch::full({}, 65536.0), growth_ = torch::zeros({}, torch::kInt32);
  std::size_t batch_ = 0;
};

double now() {
  const auto* clock = std::getenv("PEERS_CLOCK");
  if (clock != nullptr && std::string_view(clock) == "cpu") return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void answer(Loop& loop, int steps) {
  std::vector<torch::Tensor> losses;
  const auto start = now();
  for (int i = 0; i < steps; ++i) losses.push_back(loop.step());
  const auto seconds = now() - start;
  std::cout << R"({"seconds": )" << seconds << R"(, "losses": [)";
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto loss = losses[i].item<double>();
    std::cout << (i > 0 ? ", " : "");
    std::isfinite(loss) ? std::cout << loss : std::cout << "NaN";
  }
  std::cout << "]}" << std::endl;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "usage: peers_plain FOLDER fp32|bf16|fp16 BATCH_SIZE THREADS\n";
    return 2;
  }
  try {
    at::set_num_threads(std::stoi(arguments[4]));
    // The executor would replace operators by its own; a loop written by hand calls them one by one.
    torch::jit::setGraphExecutorOptimize(false);
    Loop loop(arguments[1], arguments[2], std::stoll(arguments[3]));
    std::cout << std::setprecision(17) << R"({"ready": true})" << std::endl;
    for (int steps = 0; std::cin >> steps;) answer(loop, steps);
  } catch (const std::exception& exception) {
    std::string reason = exception.what();
    std::cerr << reason.substr(0, reason.find('\n')) << '\n';
    return 1;
  }
}
