// The loop. It saves a checkpoint every 50 steps, and continues from the newest checkpoint in `folder`.
#pragma once

#include <torch/torch.h>
#include <vernier/toolkit.h>

#include <string>

inline void train(torch::nn::Sequential& model, const torch::Tensor& inputs, const torch::Tensor& labels,
                  std::int64_t steps, const std::string& folder) {
  vernier::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  vernier::Sampler sampler(inputs.size(0), /*seed=*/1);
  std::int64_t step = 0;
  if (const auto found = vernier::checkpoints_in(folder); !found.empty()) {
    const auto saved = vernier::read_checkpoint(found.front());
    step = saved.manifest.step;
    vernier::load_state_dict(*model, saved.model);
    optimizer.load_state_dict(saved.state.part("optimizer"));
    sampler.load_state_dict(saved.state.part("sampler"));
  }
  while (step < steps) {
    const auto rows = sampler.next(64);
    torch::Tensor loss;
    {
      const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);  // forward in bfloat16, weights in float32
      const auto outputs = model->forward(inputs.index_select(0, rows));
      loss = torch::nn::functional::cross_entropy(outputs, labels.index_select(0, rows));
    }
    optimizer.zero_grad();
    loss.backward();
    vernier::clip_grad_norm_(optimizer.gradients(), 1.0);
    optimizer.step();
    if (++step % 50 != 0) continue;
    vernier::State state;  // all that the next steps depend on, besides the model
    state.put("optimizer", optimizer.state_dict());
    state.put("sampler", sampler.state_dict());
    const auto path = folder + "/" + vernier::checkpoint_name(step);
    vernier::write_checkpoint(path, {.step = step}, vernier::state_dict(*model), state);
  }
}
