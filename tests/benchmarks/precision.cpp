// The cost and gain of a precision policy on a small GPT, one thread. Bars: on a CPU with AMX bf16 takes at most 1/1.5
// of fp32's time where PyTorch's autocast (attention = "fused") gains nothing; a rule that matches costs at most 1 %.
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include "compare.h"
#include "vernier_loop.h"

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  VernierLoop fp32(gpt_configuration(2, 16));
  VernierLoop fused(gpt_configuration(2, 16, {"precision.use=bf16", "precision.attention=fused"}));
  VernierLoop bf16(gpt_configuration(2, 16, {"precision.use=bf16"}));
  compare("GPT, 2 layers of 128, 16 windows of 128, one thread",
          {{"fp32", [&] { fp32.step(); }},
           {"bf16 as PyTorch's autocast", [&] { fused.step(); }},
           {"bf16", [&] { bf16.step(); }}},
          /*rounds=*/20, /*steps_a_round=*/2);

  VernierLoop ruled(gpt_configuration(2, 16, {"precision.rule=[{match=\"h.*.mlp.*\", use=\"fp32\"}]"}));
  compare("fp32 and a rule for the MLPs that says fp32",
          {{"no rule", [&] { fp32.step(); }}, {"a rule", [&] { ruled.step(); }}}, /*rounds=*/30, /*steps_a_round=*/2);

  std::vector<std::unique_ptr<VernierLoop>> micro_batches;
  for (const char* casts : {"none", "forward", "update"}) {
    micro_batches.push_back(std::make_unique<VernierLoop>(gpt_configuration(
        2, 16,
        {"precision.use=bf16", std::string("precision.weight_casts=") + casts, "accumulation.micro_batches=8"})));
  }
  compare("bf16 in 8 micro-batches, casts of weights",
          {{"none kept", [&] { micro_batches[0]->step(); }},
           {"kept for a forward pass", [&] { micro_batches[1]->step(); }},
           {"kept for the update", [&] { micro_batches[2]->step(); }}},
          /*rounds=*/20, /*steps_a_round=*/1);
}
