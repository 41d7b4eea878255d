// A loop of your own with Vernier's toolkit: mixed precision with loss scaling, clipping, a fused AdamW, and a model
// that is saved and loaded again. Nothing here knows of plugins, TOML or the runner.
#include <torch/nn.h>
#include <vernier/toolkit.h>

#include <iostream>

namespace nn = torch::nn;

namespace {

vernier::Tensors weights_of(const nn::Module& module) {
  vernier::Tensors weights;
  for (const auto& entry : module.named_parameters()) weights[entry.key()] = entry.value().detach();
  return weights;
}

nn::Sequential make_model() {
  return nn::Sequential(nn::Linear(16, 64), nn::ReLU(), nn::Linear(64, 4));
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const auto inputs = torch::randn({1024, 16});
  const auto labels = inputs.matmul(torch::randn({16, 4})).argmax(1);

  auto model = make_model();
  vernier::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  vernier::GradScaler scaler(torch::kCPU);

  for (int step = 1; step <= 200; ++step) {
    const auto batch = torch::randint(inputs.size(0), {64}, torch::kInt64);
    torch::Tensor loss;
    {
      const vernier::Autocast autocast(torch::kCPU, torch::kHalf);
      const auto logits = model->forward(inputs.index_select(0, batch));
      loss = nn::functional::cross_entropy(logits, labels.index_select(0, batch));
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    const auto norm = vernier::clip_grad_norm_(optimizer.gradients(), 1.0);
    scaler.step(optimizer);
    scaler.update();
    if (step % 40 == 0) {
      std::cout << "step " << step << "  loss " << loss.item<float>() << "  gradient norm " << norm.item<float>()
                << "  scale " << scaler.get_scale() << '\n';
    }
  }

  // Any program that knows safetensors reads this file.
  const std::string path = "own_loop.safetensors";
  vernier::save_safetensors(path, weights_of(*model), {{"steps", "200"}});
  auto copy = make_model();
  const auto saved = vernier::load_safetensors(path);
  {
    const torch::NoGradGuard no_grad;
    for (auto& entry : copy->named_parameters()) entry.value().copy_(saved.at(entry.key()));
  }
  const bool equal = torch::equal(copy->forward(inputs), model->forward(inputs));
  std::cout << "saved to " << path << ", loaded again: " << (equal ? "the same outputs" : "OTHER OUTPUTS") << '\n';
  return equal ? 0 : 1;
}
