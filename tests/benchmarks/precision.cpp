// The cost and gain of a precision policy on a small GPT, one thread. Bars: on a CPU with AMX bf16 takes at most 1/1.5
// of fp32's time where PyTorch's autocast (attention = "fused") gains nothing; a rule that matches costs at most 1 %;
// adaptive, after it has decided, takes at most 2 % more than the better one of fp32 and bf16, on a small model too.
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include "compare.h"
#include "vernier_loop.h"

namespace {

void compare_adaptive(const char* title, const std::vector<std::string>& configuration, int rounds, int steps_a_round) {
  std::vector<std::unique_ptr<VernierLoop>> loops;
  for (const char* precision : {"fp32", "bf16", "adaptive"}) {
    auto sets = configuration;
    sets.insert(sets.end(), {std::string("precision.use=") + precision, "checkpoint.use=none"});
    loops.push_back(std::make_unique<VernierLoop>(sets));
    loops.back()->train(3);  // adaptive decides after its third step
  }
  const auto rivals = compare(title,
                              {{"fp32", [&] { loops[0]->step(); }},
                               {"bf16", [&] { loops[1]->step(); }},
                               {"adaptive, after it has decided", [&] { loops[2]->step(); }}},
                              rounds, steps_a_round);
  const auto& better = rivals[0].median() < rivals[1].median() ? rivals[0] : rivals[1];
  std::printf("  adaptive takes %.3f of the time of the better one, %s\n", rivals[2].ratio(better),
              better.name.c_str());
}

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  compare_adaptive("MLP of 1386 weights, one thread", {"task.use=mlp", "optimizer.use=adamw"}, /*rounds=*/200,
                   /*steps_a_round=*/20);
  compare_adaptive("GPT, 2 layers of 128, 16 windows of 128, one thread", gpt_configuration(2, 16), /*rounds=*/40,
                   /*steps_a_round=*/1);

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
