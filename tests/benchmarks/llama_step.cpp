// A step of a small Llama in a plain LibTorch loop: LibTorch's kernels against those of vernier/fused_kernels.h.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <vernier/autocast.h>
#include <vernier/fused_kernels.h>
#include <vernier/matmul.h>

#include <filesystem>
#include <fstream>

#include "compare.h"
#include "plain_loop.h"
#include "task/llama/families.h"

namespace {

constexpr std::int64_t batch = 8, time = 128;

std::shared_ptr<language::Network> network() {
  const std::string folder = VERNIER_BINARY_DIR "/llama_step";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 688,
             "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4})";
  return llama::family().make(language::Config(folder), /*dropout=*/-1, /*seed=*/1);
}

PlainLoop plain_loop(torch::ScalarType weights, bool casts) {
  const auto model = network();
  model->to(weights);
  return PlainLoop(model->parameters(), [model, casts] {
    const auto windows = torch::randint(model->vocabulary(), {batch, time + 1}, torch::kInt64);
    const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16, casts);
    const auto logits = model->forward(windows.narrow(1, 0, time));
    return at::cross_entropy_loss(logits.view({-1, model->vocabulary()}), windows.narrow(1, 1, time).reshape(-1));
  });
}

}  // namespace

int main() {
  vernier::use_matmul();
  at::set_num_threads(1);
  const std::tuple<const char*, torch::ScalarType, bool> ways[] = {{"float32", torch::kFloat32, false},
                                                                   {"bf16 autocast", torch::kFloat32, true},
                                                                   {"bf16 weights", torch::kBFloat16, false}};
  for (const auto& [name, weights, casts] : ways) {
    auto loop = plain_loop(weights, casts);
    const auto with = [&](bool fused) {
      return [&loop, fused] {
        vernier::use_fused_kernels(fused);
        loop.step();
      };
    };
    compare(c10::str("Llama, 4 layers of 256, 8 texts of 128, ", name).c_str(),
            {{"LibTorch", with(false)}, {"Vernier", with(true)}}, /*rounds=*/12, /*steps_a_round=*/2);
  }
}
