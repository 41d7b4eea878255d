// Unscale, clip, step and update in two passes against PyTorch's four calls in a row, on the gradients of a 4-layer GPT
// (53 tensors, 3.4 million elements), one thread. Bar: at most 0.6 of the time of
// scaler.unscale_(optimizer); clip_grad_norm_(parameters, 1.0); scaler.step(optimizer); scaler.update() with
// AdamW(fused=True), where python3 has torch 2.11 (unscale_clip_step_rival.py). Beside them the same operators called
// from C++, which Python does not hold up. Then the bars, each met or missed.
//
//   unscale_clip_step [--check]     --check: exits with 1 where a bar is missed
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <vernier/grad_norm.h>
#include <vernier/grad_scaler.h>
#include <vernier/optim.h>

#include <cmath>
#include <string_view>

#include "compare.h"
#include "gpt_tensors.h"
#include "python_rival.h"

namespace {

constexpr double bar = 0.6;

using List = std::vector<torch::Tensor>;

// The operators that PyTorch's four calls run.
class FourCalls {
 public:
  explicit FourCalls(List parameters) : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      mean_.push_back(torch::zeros_like(parameter));
      square_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}, torch::kFloat32));
    }
  }
  void step() {
    const torch::NoGradGuard no_grad;
    List gradients;
    for (const auto& parameter : parameters_) gradients.push_back(parameter.grad());
    auto found_inf = torch::zeros({});
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf,
                                                   scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32));
    const auto norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
    const auto factor = ((norm + 1e-6).reciprocal() * 1.0).clamp_max(1.0);
    at::_foreach_mul_(gradients, factor);
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, mean_, square_, {}, steps_, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false,
                      {}, found_inf);
    at::_foreach_sub_(steps_, List(steps_.size(), found_inf));
    at::_amp_update_scale_(scale_, tracker_, found_inf, 2.0, 0.5, 2000);
  }

 private:
  List parameters_, mean_, square_, steps_;
  torch::Tensor scale_ = torch::full({}, 1.0F), tracker_ = torch::zeros({}, torch::kInt32);
};

double rounded(double ratio) {
  return std::round(ratio * 1000) / 1000;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checks = argc == 2 && std::string_view(argv[1]) == "--check";
  if (argc > 1 && !checks) {
    std::fprintf(stderr, "unscale_clip_step [--check]\n");
    return 2;
  }
  at::set_num_threads(1);
  Python python("unscale_clip_step_rival.py", {});
  std::string verdicts;
  bool is_missed = false;
  for (const double gradient : {1e-5, 1.0}) {
    const auto a = gpt_parameters(gradient), b = gpt_parameters(gradient), c = gpt_parameters(gradient);
    std::int64_t elements = 0;
    for (const auto& parameter : a) elements += parameter.numel();
    FourCalls pytorch(a);
    vernier::AdamW two(b, {.lr = 1e-3}), four(c, {.lr = 1e-3});
    vernier::GradScaler scaler(torch::kCPU, {.init_scale = 1}), separate(torch::kCPU, {.init_scale = 1});
    const std::string what = gradient < 1 ? "nothing to clip" : "clipped in each step";
    const auto title = c10::str(a.size(), " tensors, ", elements, " elements, ", what);
    std::vector<Rival> rivals = {{"PyTorch's four calls, their operators alone", [&] { pytorch.step(); }},
                                 {"GradScaler, four calls",
                                  [&] {
                                    separate.unscale_(four);
                                    vernier::clip_grad_norm_(four.gradients(), 1.0);
                                    separate.step(four);
                                    separate.update(1.0);
                                  }},
                                 {"GradScaler::clip_and_step", [&] {
                                    scaler.clip_and_step(two, 1.0);
                                    scaler.update(1.0);
                                  }}};
    if (python.has("four_calls")) {
      rivals.insert(rivals.begin(), {"PyTorch's four calls", {}, [&](int times) {
                                       python.call(c10::str("four_calls ", gradient, " ", times));
                                     }});
    }
    rivals = compare(title.c_str(), std::move(rivals), /*rounds=*/40, /*steps_a_round=*/5);
    const auto& ours = rivals.back();
    const bool is_measured = python.has("four_calls");
    const double ratio = ours.ratio(rivals.front());
    verdicts +=
        c10::str(!is_measured   ? "  not measured"
                 : ratio <= bar ? "  met   "
                                : "  MISSED",
                 "  clip_and_step, ", what, ", to PyTorch: ", is_measured ? rounded(ratio) : std::nan(""), ", at most ",
                 bar, "; to its operators alone: ", rounded(ours.ratio(rivals[is_measured ? 1 : 0])), "\n");
    is_missed |= is_measured && ratio > bar;
  }
  std::printf("bars (median of the ratios within a round)\n%s", verdicts.c_str());
  return checks && is_missed ? 1 : 0;
}
