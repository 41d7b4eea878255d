// AdamW's step with averages in bfloat16 and in 8 bits against float32, on the tensors of a 4-layer GPT (53 tensors,
// 3.4 million elements), one thread and two. Bar: each at most 1.3 of the time with float32 averages on one thread.
//
//   averages [--check]     --check: exits with 1 where a bar is missed
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <vernier/optim.h>

#include <memory>
#include <string_view>

#include "compare.h"
#include "gpt_tensors.h"

namespace {

constexpr double bar = 1.3;

struct Kind {
  const char* name;
  vernier::AdamState state;
};
constexpr Kind kinds[] = {{"averages in float32", vernier::AdamState::full},
                          {"in bfloat16", vernier::AdamState::bfloat16},
                          {"in 8 bits", vernier::AdamState::eight_bit}};

std::vector<Rival> measured(int threads) {
  at::set_num_threads(threads);
  std::vector<Rival> steps;
  for (const auto& kind : kinds) {
    auto optimizer =
        std::make_shared<vernier::AdamW>(gpt_parameters(1), vernier::AdamWOptions{.lr = 1e-3, .state = kind.state});
    steps.push_back({kind.name, [optimizer] { optimizer->step(); }});
  }
  const auto title = c10::str("AdamW::step, threads: ", threads);
  return compare(title.c_str(), std::move(steps), /*rounds=*/60, /*steps_a_round=*/3);
}

}  // namespace

int main(int argc, char** argv) {
  const bool checks = argc == 2 && std::string_view(argv[1]) == "--check";
  if (argc > 1 && !checks) {
    std::fprintf(stderr, "averages [--check]\n");
    return 2;
  }
  const auto alone = measured(1);
  measured(2);
  bool is_missed = false;
  std::printf("bars (median of the ratios within a round)\n");
  for (std::size_t i = 1; i < alone.size(); ++i) {
    const double ratio = alone[i].ratio(alone.front());
    is_missed |= ratio > bar;
    std::printf("  %s  averages %s to float32, one thread: %.3f, at most %.1f\n", ratio <= bar ? "met   " : "MISSED",
                alone[i].name.c_str(), ratio, bar);
  }
  return checks && is_missed ? 1 : 0;
}
