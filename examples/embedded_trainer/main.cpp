// Vernier's trainer in an ordinary LibTorch program: a task of its own, TOML in the code, mixed precision that is
// switched off and on while it trains, and a second trainer that resumes the run.
#include <torch/torch.h>
#include <vernier/data/supervised_task.h>
#include <vernier/sdk.h>
#include <vernier/trainer.h>

#include <filesystem>
#include <iostream>

// Points of two rings; the model says on which one a point lies.
class Rings final : public vernier::SupervisedTask {
 public:
  explicit Rings(vernier::Options& options) : SupervisedTask(options) {}
  void build(vernier::Run& run) override {
    const auto ring = torch::randint(2, {2048}), angle = 6.2832 * torch::rand({2048});
    const auto radius = 1 + ring + 0.2 * torch::randn({2048});
    const auto points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
    const auto [training, held_out] = vernier::split(vernier::tensor_dataset({points, ring}), 0.1, run.seed);
    set_training(training);
    add_validation(held_out);
    set_model(torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2)));
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    add_metric(vernier::accuracy());
  }
};

constexpr const char* configuration = R"(
[run]
steps = 300
validate_every = 100
output = "embedded_trainer_run"
[precision]
use = "bf16"
[optimizer]
use = "adamw"
learning_rate = 0.01
)";

std::unique_ptr<vernier::Trainer> make_trainer() {
  auto trainer = std::make_unique<vernier::Trainer>(vernier::TrainerOptions{.toml = configuration});
  vernier::Options options("task/rings", {{"batch_size", {std::int64_t{64}, ""}}}, "main.cpp");
  trainer->use(std::make_unique<Rings>(options), options);
  return trainer;
}

int main() try {
  std::filesystem::remove_all("embedded_trainer_run");
  auto trainer = make_trainer();
  for (int step = 0; step < 100; ++step) trainer->train_step();
  trainer->use_mixed_precision(false);
  for (int step = 0; step < 100; ++step) trainer->train_step();
  trainer->use_mixed_precision(true);
  trainer->save();
  const auto outcome = trainer->train();
  std::cout << outcome.steps << " steps, loss " << *outcome.loss << ", " << 100 * trainer->metrics().at("accuracy")
            << "% right; in mixed precision " << trainer->amp().amp_steps() << " of 300 steps\n";

  auto resumed = make_trainer();
  resumed->resume("embedded_trainer_run/checkpoints/step-00000200");
  resumed->train();
  bool same = true;
  for (const auto& weight : trainer->model().named_parameters()) {
    same = same && torch::equal(weight.value(), resumed->model().named_parameters()[weight.key()]);
  }
  std::cout << "resumed from step 200: " << (same ? "the same weights" : "OTHER WEIGHTS") << '\n';
  return same ? 0 : 1;
} catch (const vernier::Error& error) {
  std::cerr << error.what() << '\n';
  return static_cast<int>(error.kind());
}
