// The loop that docs/guides/toolkit.md shows. It saves every 50 steps, and begins where the newest checkpoint in
// `folder` ends.
#pragma once

#include <torch/nn.h>
#include <vernier/toolkit.h>

#include <string>

inline void train(torch::nn::Sequential& model, const torch::Tensor& inputs, const torch::Tensor& labels,
                  torch::Device device, std::int64_t steps, const std::string& folder) {
  vernier::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  vernier::GradScaler scaler(device);
  vernier::Accumulator accumulator(/*micro_batches=*/2);
  vernier::Ema average({.decay = 0.99});
  vernier::Sampler sampler(inputs.size(0), /*seed=*/1);
  auto random = at::globalContext().defaultGenerator(device);
  std::int64_t step = 0;
  if (const auto found = vernier::checkpoints_in(folder); !found.empty()) {
    const auto saved = vernier::read_checkpoint(found.front());
    step = saved.manifest.step;
    vernier::load_state_dict(*model, saved.model);
    optimizer.load_state_dict(saved.state.part("optimizer"));
    scaler.load_state_dict(saved.state.part("scaler"));
    average.load_state_dict(saved.state.part("average"));
    sampler.load_state_dict(saved.state.part("sampler"));
    random.set_state(saved.state.tensor("random"));
  }
  while (step < steps) {
    const auto rows = sampler.next(32);
    torch::Tensor loss;
    {
      const vernier::Autocast autocast(device.type(), torch::kHalf);
      const auto outputs = model->forward(inputs.index_select(0, rows).to(device));
      loss = torch::nn::functional::cross_entropy(outputs, labels.index_select(0, rows).to(device));
    }
    scaler.scale(accumulator.share(loss)).backward();
    if (!accumulator.should_update()) continue;
    scaler.unscale_(optimizer);
    vernier::clip_grad_norm_(optimizer.gradients(), 1.0);
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    average.update(model->parameters());
    if (++step % 50 != 0) continue;
    vernier::State state;
    state.put("optimizer", optimizer.state_dict());
    state.put("scaler", scaler.state_dict());
    state.put("average", average.state_dict());
    state.put("sampler", sampler.state_dict());
    state.put("random", random.get_state());
    const auto path = folder + "/" + vernier::checkpoint_name(step);
    vernier::write_checkpoint(path, {.step = step}, vernier::state_dict(*model), state);
  }
}
