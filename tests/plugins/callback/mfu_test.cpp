// callback/mfu: its counts are those of torch.utils.flop_counter (tests/oracles/flops.py) and those by hand, whatever
// the step does, and its metrics agree with each other.
#include "../../../plugins/callback/mfu/flops.h"

#include "../../../plugins/callback/mfu/floor.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "oracle.h"
#include "small_run.h"
#include "thrown.h"

namespace mfu_test {

using vernier::Event;
using vernier::Run;

namespace {

torch::Tensor ones(std::vector<std::int64_t> shape, bool grad = true) {
  return at::ones(shape).requires_grad_(grad);
}

torch::Tensor recurrent(bool is_lstm) {
  const std::int64_t gates = is_lstm ? 4 : 3, layers = is_lstm ? 2 : 1, ways = is_lstm ? 2 : 1;
  std::vector<torch::Tensor> weights;
  for (std::int64_t i = 0; i < layers * ways; ++i) {
    weights.push_back(ones({gates * 3, i < ways ? 4 : 3 * ways}));
    weights.push_back(ones({gates * 3, 3}));
    weights.insert(weights.end(), 2, ones({gates * 3}));
  }
  const auto state = ones({layers * ways, 2, 3});
  if (!is_lstm) return std::get<0>(at::gru(ones({2, 5, 4}), state, weights, true, 1, 0.0, true, false, true));
  return std::get<0>(at::lstm(ones({5, 2, 4}), {state, state}, weights, true, 2, 0.0, true, true, false));
}

const std::map<std::string, std::function<torch::Tensor()>>& operations() {
  static const std::map<std::string, std::function<torch::Tensor()>> all = {
      {"linear",
       [] {
         return at::linear(ones({3, 5, 7}), ones({11, 7}), ones({11}));
       }},
      {"linear_first",
       [] {
         return at::linear(ones({3, 5, 7}, false), ones({11, 7}), ones({11}));
       }},
      {"linear_frozen",
       [] {
         return at::linear(ones({3, 5, 7}), ones({11, 7}, false));
       }},
      {"mm",
       [] {
         return at::mm(ones({3, 4}), ones({4, 5}));
       }},
      {"bmm",
       [] {
         return at::bmm(ones({2, 3, 4}), ones({2, 4, 5}));
       }},
      {"addmm",
       [] {
         return at::addmm(ones({5}), ones({3, 4}), ones({4, 5}));
       }},
      {"baddbmm",
       [] {
         return at::baddbmm(ones({2, 3, 5}), ones({2, 3, 4}), ones({2, 4, 5}));
       }},
      {"matmul",
       [] {
         return at::matmul(ones({2, 3, 4, 5}), ones({5, 6}));
       }},
      {"matmul_broadcast",
       [] {
         return at::matmul(ones({2, 1, 4, 5}), ones({3, 5, 6}));
       }},
      {"conv1d",
       [] {
         return at::conv1d(ones({2, 3, 9}), ones({5, 3, 3}), {}, 2);
       }},
      {"conv2d",
       [] {
         return at::conv2d(ones({2, 3, 8, 9}), ones({5, 3, 3, 2}), ones({5}), 2, 1);
       }},
      {"conv2d_first",
       [] {
         return at::conv2d(ones({2, 3, 8, 9}, false), ones({5, 3, 3, 2}));
       }},
      {"conv3d",
       [] {
         return at::conv3d(ones({2, 3, 4, 5, 6}), ones({2, 3, 2, 3, 2}));
       }},
      {"conv_transpose2d",
       [] {
         return at::conv_transpose2d(ones({2, 3, 4, 5}), ones({3, 6, 3, 2}), {}, 2);
       }},
      {"conv2d_grouped",
       [] {
         return at::convolution(ones({2, 6, 8, 9}), ones({4, 3, 3, 2}), {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 2);
       }},
      {"attention",
       [] {
         return at::scaled_dot_product_attention(ones({2, 3, 7, 4}), ones({2, 3, 9, 4}), ones({2, 3, 9, 4}));
       }},
      {"attention_frozen_key",
       [] {
         return at::scaled_dot_product_attention(ones({2, 3, 7, 4}), ones({2, 3, 9, 4}, false),
                                                 ones({2, 3, 9, 4}, false));
       }},
      {"einsum",
       [] {
         return at::einsum("bqhd,bkhd->bhqk", {ones({2, 5, 3, 4}), ones({2, 6, 3, 4})});
       }},
      {"einsum_implicit",
       [] {
         return at::einsum("...ij, jk", {ones({2, 3, 4}), ones({4, 5})});
       }},
      {"einsum_summed",
       [] {
         return at::einsum("ijm,jk->ik", {ones({3, 4, 2}), ones({4, 5})});
       }},
      {"einsum_no_product",
       [] {
         return at::einsum("i,j->ij", {ones({3}), ones({4})});
       }},
      {"lstm", [] { return recurrent(true); }},
      {"gru", [] { return recurrent(false); }},
      {"gru_cell",
       [] {
         return at::gru_cell(ones({2, 4}), ones({2, 3}), ones({9, 4}), ones({9, 3}), ones({9}), ones({9}));
       }},
  };
  return all;
}

// Points to a cache of its own for the time of a test.
struct Cache {
  Cache() { ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1); }
  ~Cache() { ::unsetenv("XDG_CACHE_HOME"); }
  TemporaryFolder folder;
};

// Sums what one call counts.
class Count final : public vernier::Interceptor {
 public:
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    auto results = operation.proceed(arguments);
    const auto flops = vernier::flops_of(operation.name(), arguments, results.front().toTensor());
    sum.forward += flops.forward;
    sum.backward += flops.backward;
    return results;
  }
  vernier::Flops sum;
};

// The metrics of each step of a run with the callback.
std::vector<std::map<std::string, double>> metrics_of(const std::vector<std::string>& texts) {
  std::vector<std::string> all = {"[run]\nsteps = 3\n[checkpoint]\nuse = 'none'\n[optimizer]\nuse = 'adamw'\n",
                                  "[[callback]]\nuse = 'mfu'\npeak = 1e9\n"};
  all.insert(all.end(), texts.begin(), texts.end());
  SmallRun small(from_toml(all));
  std::vector<std::map<std::string, double>> steps;
  small.on(Event::StepEnd, [&](Run& run) {
    steps.emplace_back();
    for (const auto* metric : run.metrics.set_now()) steps.back()[metric->name] = metric->value();
  });
  const auto outcome = small.train();
  REQUIRE_FALSE(outcome.error);
  CHECK(small.run.metrics.value("sol").has_value() == steps[1].contains("sol"));
  if (const auto sol = small.run.metrics.value("sol")) {  // the means of summary.json
    const double rate = *small.run.metrics.value("model_flops_per_second");
    const auto by_rate = [&](const char* metric) {
      return steps[1].at(metric) / steps[1].at("model_flops_per_second");
    };
    CHECK(*sol / rate == doctest::Approx(by_rate("sol")).epsilon(1e-6));
    CHECK(*small.run.metrics.value("mfu") / rate == doctest::Approx(by_rate("mfu")).epsilon(1e-6));
  }
  return steps;
}

const std::string mlp = R"(
[task]
use = "mlp"
inputs = 6
hidden = [5]
classes = 3
samples = 48
batch_size = 12
validation = 0.0
)";

std::string gpt(const TemporaryFolder& folder) {
  return "[task]\nuse = 'gpt'\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 16\nbatch_size = 4\nvalidation = 0\n"
         "sample_bytes = 0\ndata = ['" +
         folder.write("text", std::string(4000, 'a')) + "']\n";
}

double recorded(const Oracle& oracle, const std::string& name) {
  return oracle[name].sum().item<double>();
}

}  // namespace

TEST_CASE("mfu: counts of operators are those of PyTorch's flop counter, forward and backward") {
  const Oracle oracle("flops");
  vernier::Layers layers;
  for (const auto& [name, operation] : operations()) {
    CAPTURE(name);
    Count count;
    {
      const vernier::Intercept intercept(layers, count);
      operation();
    }
    const auto expected = oracle[name];
    CHECK(count.sum.forward == expected[0].item<double>());
    // PyTorch counts the gradient of a grouped weight as often as there are groups.
    const double backward = name == "conv2d_grouped" ? 2 * count.sum.forward : expected[1].item<double>();
    CHECK(count.sum.backward == backward);
  }
}

TEST_CASE("mfu: counts of operators that PyTorch's flop counter lacks are those by hand") {
  struct Case {
    std::function<torch::Tensor()> operation;
    double forward, backward;
  };
  const Case cases[] = {{[] {
                           return at::addbmm(ones({3, 5}), ones({2, 3, 4}), ones({2, 4, 5}));
                         },
                         2 * 2 * 3 * 4 * 5, 4 * 2 * 3 * 4 * 5},
                        {[] {
                           return at::mv(ones({3, 4}), ones({4}));
                         },
                         2 * 3 * 4, 4 * 3 * 4},
                        {[] {
                           return at::addmv(ones({3}), ones({3, 4}, false), ones({4}));
                         },
                         2 * 3 * 4, 2 * 3 * 4},
                        {[] {
                           return at::matmul(ones({4}), ones({4, 5}));
                         },
                         2 * 4 * 5, 4 * 4 * 5},
                        {[] {
                           return at::einsum("ab,bc,cd->ad", {ones({2, 3}), ones({3, 4}), ones({4, 5})});
                         },
                         2 * (2 * 3 * 4 + 2 * 4 * 5), 4 * (2 * 3 * 4 + 2 * 4 * 5)},
                        {[] {
                           return at::softmax(at::layer_norm(ones({3, 4}), {4}), 1);
                         },
                         0, 0}};
  vernier::Layers layers;
  for (const auto& each : cases) {
    Count count;
    {
      const vernier::Intercept intercept(layers, count);
      each.operation();
    }
    CHECK(count.sum.forward == each.forward);
    CHECK(count.sum.backward == each.backward);
  }
}

TEST_CASE("mfu: a step of a model counts what PyTorch counts, in every policy and however it is computed" *
          doctest::test_suite("text")) {
  const Oracle oracle("flops");
  const TemporaryFolder folder;
  // By hand: forward of both layers, their weights' gradients, and the gradient of what lies between.
  const double by_hand = 2.0 * 12 * (2 * (6 * 5 + 5 * 3) + 5 * 3);
  CHECK(recorded(oracle, "mlp") == by_hand);
  struct Case {
    std::string model;
    std::vector<std::string> texts;
  };
  const Case cases[] = {{"mlp", {mlp}},
                        {"mlp", {mlp, "[accumulation]\nuse = 'fixed'\nmicro_batches = 3\n"}},
                        {"mlp", {mlp, "[accumulation]\nuse = 'fixed'\nmicro_batch_size = 5\n"}},
                        {"mlp", {mlp, "[precision]\nuse = 'bf16'\nlevel = 'O2'\n"}},
                        {"mlp", {mlp, "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\n"}},
                        {"gpt", {gpt(folder)}},
                        {"gpt", {gpt(folder), "[precision]\nuse = 'bf16'\n"}},
                        {"gpt", {gpt(folder), "[precision]\nuse = 'fp8'\n"}},
                        {"gpt", {gpt(folder), "[task]\nrecompute = 'full'\n"}},
                        {"gpt", {gpt(folder), "[task]\nrecompute = 'selective'\n"}}};
  for (const auto& each : cases) {
    CAPTURE(each.texts.back());
    const auto steps = metrics_of(each.texts);
    REQUIRE(steps.size() == 3);
    for (const auto& step : steps) CHECK(step.at("model_flops") == recorded(oracle, each.model));
  }
}

TEST_CASE("mfu: a second pass over the batch counts too, and frozen weights do not") {
  const double once = metrics_of({mlp})[1].at("model_flops");
  CHECK(metrics_of({mlp, "[[callback]]\nuse = 'sam'\n"})[1].at("model_flops") == 2 * once);
  const auto steps =
      metrics_of({mlp, "[[callback]]\nuse = 'unfreeze'\ngroup = [{match = ['layers.0.*'], from = 1}]\n"});
  CHECK(steps[0].at("model_flops") < once);
  CHECK(steps[2].at("model_flops") == once);
}

TEST_CASE("mfu: the metrics agree with the time of the step and with the peak, given or measured") {
  for (const auto& step : metrics_of({mlp})) {
    const double rate = step.at("model_flops_per_second");
    CHECK(step.at("mfu") == doctest::Approx(rate / 1e9));
    CHECK(step.at("model_flops") / rate == doctest::Approx(step.at("step_time")).epsilon(0.5));
  }
  for (const auto* policy : {"fp32", "bf16"}) {
    const auto steps =
        metrics_of({mlp, "[[callback]]\nuse = 'mfu'\npeak = 0.0\n[precision]\nuse = '" + std::string(policy) + "'\n"});
    for (const auto& step : steps) {
      const double peak = step.at("model_flops_per_second") / step.at("mfu");
      CHECK(peak > 1e8);
      CHECK(peak < 1e15);
    }
  }
}

TEST_CASE("mfu: sol is the time that a given floor allows, as a share of that of the steps") {
  const Cache cache;
  for (const auto& step : metrics_of({mlp})) CHECK_FALSE(step.contains("sol"));
  const auto keep = [](const std::string& text) {
    const auto file = vernier::floor_file(at::get_num_threads());
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  // The model has 53 weights, each with a gradient and two averages, and AdamW saves a few numbers. Its memory fits
  // into the smallest.
  const double bytes = 4 * 4 * (6 * 5 + 5 + 5 * 3 + 3);
  keep("float32 1e6\nbfloat16 5e5\nmemory 65536 1e9 1e5\nmemory 1e6 1e9 1e3\n");
  const auto in_float32 = metrics_of({mlp}), in_bfloat16 = metrics_of({mlp, "[precision]\nuse = 'bf16'\n"});
  const auto floor_of = [](const auto& step) {
    return step.at("sol") * step.at("model_flops") / step.at("model_flops_per_second");
  };
  const double operations = in_float32[1].at("model_flops") / 1e6, moves = 2 * bytes / 1e5;
  CHECK(floor_of(in_float32[1]) == doctest::Approx(operations + moves).epsilon(0.02));
  CHECK(floor_of(in_bfloat16[1]) == doctest::Approx(2 * operations + moves).epsilon(0.02));
  CHECK(in_float32[1].at("mfu") == doctest::Approx(in_float32[1].at("model_flops_per_second") / 1e9));
  const auto unset = metrics_of({mlp, "[[callback]]\nuse = 'mfu'\npeak = 0.0\n"});
  CHECK(unset[1].at("mfu") == doctest::Approx(unset[1].at("model_flops_per_second") / 1e6));
  keep("float32 1e6\nmemory 65536 1e9\n");
  SmallRun damaged(from_toml({"[run]\nsteps = 1\n[checkpoint]\nuse = 'none'\n[optimizer]\nuse = 'adamw'\n", mlp,
                              "[[callback]]\nuse = 'mfu'\n"}));
  CHECK(says(thrown_by([&] { damaged.train(); }).text, "is damaged; remove it, or measure again"));
}

TEST_CASE("mfu: a floor that was measured is read again as it was") {
  const Cache cache;
  const auto measured = vernier::measure_floor(/*seconds=*/0);
  const auto kept = vernier::kept_floor(at::get_num_threads());
  REQUIRE(kept);
  CHECK_FALSE(vernier::kept_floor(at::get_num_threads() + 1));
  REQUIRE(kept->flops.size() == 3);
  REQUIRE(kept->memory.size() == 5);
  for (const auto& [dtype, rate] : measured.flops) {
    CHECK(rate > 1e8);
    CHECK(kept->flops.at(dtype) == doctest::Approx(rate).epsilon(1e-4));
  }
  for (const auto& [bytes, rates] : measured.memory) {
    CHECK(rates.read > 1e8);
    CHECK(rates.changed > 1e8);
  }
  CHECK(kept->seconds(1e9, torch::kFloat64, 0) == std::nullopt);
  std::filesystem::remove_all(cache.folder.path() / "vernier");
  CHECK(metrics_of({mlp, "[[callback]]\nuse = 'mfu'\nmeasure_floor = true\n"})[1].contains("sol"));
  cache.folder.write("file", "");
  ::setenv("XDG_CACHE_HOME", (cache.folder.path() / "file").c_str(), 1);
  CHECK(says(thrown_by([] { vernier::measure_floor(0); }).text, "set XDG_CACHE_HOME to a folder that can"));
}

}  // namespace mfu_test
