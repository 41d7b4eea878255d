// [run] engine = "compiled" against the operators and, for 32-32-10, a plain LibTorch loop: processor time of one
// thread. Bars: at most 0.12 of the plain loop for 32-32-10, 0.25 of the operators for a table, and never more than
// them.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <torch/utils.h>
#include <vernier/fused_kernels.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "compare.h"
#include "plain_loop.h"
#include "vernier_loop.h"

namespace {

// A table of made-up flats, as examples/data/flats.sh writes one.
std::string flats() {
  const auto file = std::filesystem::temp_directory_path() / "vernier-compiled-flats.csv";
  std::ofstream out(file);
  out << "city,rooms,square_metres,built,furnished,heating,balcony,rent\n";
  for (int i = 0; i < 3200; ++i) {
    out << (i % 3 == 0 ? "Bern," : "Basel,") << 1 + i % 5 << ',' << 30 + i % 97 << ',' << 1900 + i % 120 << ','
        << (i % 2 == 0 ? "yes," : "no,") << (i % 5 == 0 ? "gas," : "oil,") << (i % 7 == 0 ? "yes," : "no,")
        << 300 + 17 * (i % 97) + 100 * (i % 5) << '\n';
  }
  return file.string();
}

// A series of 32 columns, for an LSTM.
std::string waves() {
  const auto file = std::filesystem::temp_directory_path() / "vernier-compiled-waves.csv";
  std::ofstream out(file);
  for (int column = 0; column < 32; ++column) out << (column == 0 ? "x" : ",x") << column;
  out << '\n';
  for (int row = 0; row < 2112; ++row) {
    for (int column = 0; column < 32; ++column) out << (column == 0 ? "" : ",") << std::sin(0.01 * row * (1 + column));
    out << '\n';
  }
  return file.string();
}

PlainLoop plain_loop() {
  const auto weight1 = torch::randn({32, 32}).mul_(0.1).requires_grad_(), bias1 = torch::zeros({32}).requires_grad_();
  const auto weight2 = torch::randn({10, 32}).mul_(0.1).requires_grad_(), bias2 = torch::zeros({10}).requires_grad_();
  const auto points = torch::randn({1024, 32}), labels = torch::randint(10, {1024}, torch::kInt64);
  auto order = std::make_shared<torch::Tensor>(torch::randperm(1024));
  auto position = std::make_shared<std::int64_t>(0);
  return PlainLoop({weight1, bias1, weight2, bias2}, [=] {
    if (*position == 1024) {
      *order = torch::randperm(1024);
      *position = 0;
    }
    const auto numbers = order->narrow(0, *position, 8);
    *position += 8;
    const auto input = points.index_select(0, numbers), target = labels.index_select(0, numbers);
    return at::cross_entropy_loss(at::linear(at::relu(at::linear(input, weight1, bias1)), weight2, bias2), target);
  });
}

// The arguments name the networks to run. Without arguments, all run.
std::vector<std::string> chosen;

void compare_engines(const std::string& title, const std::vector<std::string>& sets, int steps_a_round,
                     std::vector<Rival> rivals = {}) {
  const auto is_in_title = [&](const std::string& word) { return title.find(word) != std::string::npos; };
  if (!chosen.empty() && std::ranges::none_of(chosen, is_in_title)) return;
  VernierLoop operators(sets), compiled(sets, /*undo_failed_steps=*/true, /*is_compiled=*/true);
  for (int i = 0; i < 8; ++i) compiled.step();  // recorded, compared and compiled
  operators.step();
  rivals.push_back({"operators", [&] { operators.step(); }});
  rivals.push_back({"compiled", [&] { compiled.step(); }});
  rivals.push_back({"operators, gradients alone", [&] { operators.gradients(); }});
  rivals.push_back({"compiled, gradients alone", [&] { compiled.gradients(); }});
  compare(title.c_str(), std::move(rivals), /*rounds=*/40, steps_a_round, processor_seconds);
}

}  // namespace

int main(int count, char** words) {
  chosen.assign(words + 1, words + count);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::use_fused_kernels(true);
  vernier::set_log_sink([](vernier::Level, const std::string& who, const std::string& text) {
    if (text.find("program") != std::string::npos || text.find("engine") != std::string::npos) {
      std::printf("%s: %s\n", who.c_str(), text.c_str());
    }
  });
  const std::string adamw = "optimizer.use=adamw";
  auto plain = plain_loop();
  compare_engines("mlp 32-32-10, batch 8", {"task.use=mlp", "task.samples=1024", "task.validation=0.0", adamw}, 300,
                  {{"plain LibTorch loop, _fused_adamw_", [&] { plain.step(); }}});
  compare_engines("table of flats, 64-64, batch 32",
                  {"task.use=tabular", "task.data=" + flats(), "task.target=rent", "task.hidden=[64, 64]",
                   "task.batch_size=32", adamw},
                  100);
  compare_engines("mlp 784-512-512-10, batch 128",
                  {"task.use=mlp", "task.inputs=784", "task.hidden=[512, 512]", "task.batch_size=128",
                   "task.samples=2048", "task.validation=0.0", adamw},
                  4);
  compare_engines(
      "lstm 32 to 128, 64 steps, batch 32",
      {"task.use=sequence", "task.kind=forecast", "task.data=" + waves(), "task.context=64", "task.horizon=1",
       "task.validation_share=0.0", "task.model=lstm", "task.width=128", "task.batch_size=32", adamw},
      2);
  compare_engines("gpt 2 x 128, 16 windows of 128", gpt_configuration(/*layers=*/2, /*batch_size=*/16), 1);
}
