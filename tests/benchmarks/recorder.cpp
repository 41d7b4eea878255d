// What callback/flight_recorder adds to a step of a small GPT (4 layers, width 128) while nothing happens, what a step
// costs of which the layers' ranges are sampled (one in `every`), and what it adds to a step of the 32-32-10 network,
// where only overhead counts. Bar: at most 1 % of the GPT's step.
#include <torch/utils.h>

#include "compare.h"
#include "vernier_loop.h"

namespace {

void compare_with(const char* title, const std::vector<std::string>& sets, int rounds, int steps) {
  auto recorded = sets, sampled = sets, clipped = sets, both = sets;
  sampled.push_back("callback.flight_recorder.every=1");
  recorded.push_back("callback.flight_recorder.every=100");
  clipped.push_back("callback.clip_norm.max_norm=1.0");
  both.push_back("callback.clip_norm.max_norm=1.0");
  both.push_back("callback.flight_recorder.every=100");
  VernierLoop plain(sets), with(recorded), sample(sampled), clip(clipped), clip_with(both);
  compare(title,
          {{"without", [&] { plain.step(); }},
           {"flight_recorder", [&] { with.step(); }},
           {"flight_recorder, each step sampled", [&] { sample.step(); }}},
          rounds, steps);
  compare(title, {{"clip_norm", [&] { clip.step(); }}, {"clip_norm, flight_recorder", [&] { clip_with.step(); }}},
          rounds, steps);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  compare_with("GPT, 4 layers of 128, 8 x 128 bytes, float32, one thread", gpt_configuration(4, 8), /*rounds=*/12,
               /*steps=*/3);
  compare_with("32-32-10 network, batch 8, float32, one thread",
               {"task.use=mlp", "task.samples=1024", "task.validation=0.0", "optimizer.use=adamw"}, /*rounds=*/40,
               /*steps=*/200);
}
