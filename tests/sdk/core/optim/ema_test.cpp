// The average of the weights: PyTorch's numbers, skipped updates, saved and loaded.
#include <doctest/doctest.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/ema.h>
#include <vernier/error.h>

#include <random>

#include "optim/ema_operators.h"
#include "oracle.h"
#include "same_tensors.h"
#include "temporary_folder.h"

namespace ema_test {

using vernier::Ema;
using vernier::EmaOptions;
using vernier::Error;

namespace {

constexpr std::int64_t oracle_steps = 60;

// The tensors of the oracle: flattened and concatenated there.
std::vector<torch::Tensor> tensors_in(const torch::Tensor& flat, torch::ScalarType dtype) {
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {7}, {3, 5}, {2, 3, 4}, {9, 11}};
  std::vector<torch::Tensor> all;
  std::int64_t first = 0;
  for (const auto& shape : shapes) {
    const auto count = c10::multiply_integers(shape);
    all.push_back(flat.narrow(0, first, count).reshape(shape).to(dtype));
    first += count;
  }
  return all;
}

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return torch::cat(rows);
}

std::vector<torch::Tensor> random_weights(torch::ScalarType dtype) {
  return {torch::randn({5, 3}).to(dtype),
          torch::randn({2, 3, 4, 4}).to(dtype, false, false, at::MemoryFormat::ChannelsLast),
          torch::randn({}).to(dtype)};
}

// The average by operators, as a GPU computes it.
struct ByOperators {
  explicit ByOperators(const EmaOptions& of) : options(of) {}
  void update(const std::vector<torch::Tensor>& weights, const torch::Tensor& skip_update = {}) {
    for (std::size_t i = tensors.size(); i < weights.size(); ++i) {
      const auto dtype = weights[i].scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
      tensors.push_back(torch::zeros_like(weights[i], dtype));
    }
    vernier::average_by_operators(options, tensors, updates, weights, skip_update);
  }

  EmaOptions options;
  std::vector<torch::Tensor> tensors;
  torch::Tensor updates = torch::zeros({}, torch::kInt64);
};

}  // namespace

TEST_CASE("ema: PyTorch's AveragedModel, bit for bit") {
  const Oracle oracle("ema");
  const struct {
    const char* name;
    EmaOptions options;
    torch::ScalarType dtype = torch::kFloat32;
  } cases[] = {{"slow", {0.999, false}},
               {"quick", {0.9, false}},
               {"mostly_new", {0.25, false}},
               {"warmup", {0.999, true}},
               {"warmup_ends", {0.7, true}},
               {"bf16", {0.9, false}, torch::kBFloat16},
               {"double", {0.999, true}, torch::kFloat64}};
  for (const auto& [name, options, dtype] : cases) {
    CAPTURE(name);
    Ema average(options);
    ByOperators by_operators(options);
    int compared = 0;
    for (std::int64_t n = 0; n < oracle_steps; ++n) {
      const auto weights = tensors_in(oracle["weights"][n], dtype);
      average.update(weights);
      by_operators.update(weights);
      const auto key = name + std::string(".") + std::to_string(n + 1);
      if (!oracle.has(key)) continue;
      ++compared;
      if (at::get_cpu_capability().starts_with("AVX")) CHECK(same_bits(flat(average.tensors()), oracle[key]));
      CHECK(distance(flat(average.tensors()), oracle[key]) < 2e-7);
      CHECK(distance(flat(by_operators.tensors), oracle[key]) < 1e-6);
    }
    CHECK(compared == 4);
  }
}

TEST_CASE("ema: of whole numbers the newest ones are kept, as counts of a batch norm") {
  for (const auto dtype : {torch::kInt64, torch::kInt32, torch::kUInt8, torch::kBool}) {
    CAPTURE(dtype);
    const auto weights = [&](int n) {
      return std::vector<torch::Tensor>{torch::full({}, n, dtype), torch::full({3}, n, torch::kFloat32)};
    };
    Ema host({.decay = 0.5});
    ByOperators device({.decay = 0.5});
    device.tensors = {torch::zeros({}, dtype), torch::zeros({3})};
    for (const int n : {0, 1, 2}) {
      host.update(weights(n));
      device.update(weights(n));
    }
    const auto skipped = torch::ones({});
    host.update(weights(0), skipped);
    device.update(weights(0), skipped);
    for (const auto& tensors : {host.tensors(), device.tensors}) {
      CHECK(tensors[0].equal(torch::full({}, 2, dtype)));
      CHECK(tensors[1].equal(torch::full({3}, 1.25)));
    }
    Ema resumed({.decay = 0.5});
    resumed.load_state_dict(host.state_dict());
    resumed.update(weights(4));
    CHECK(resumed.tensors()[0].equal(torch::full({}, 4, dtype)));
    CHECK(resumed.tensors()[1].equal(torch::full({3}, 2.625)));
  }
}

TEST_CASE("ema: an update that is skipped moves no bit, with and without the host's knowing of it") {
  torch::manual_seed(4);
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const EmaOptions options{static_cast<double>(random() % 1000) / 1000, random() % 2 == 0};
    const auto dtype = random() % 2 == 0 ? torch::kFloat32 : torch::kBFloat16;
    Ema host(options);
    ByOperators device(options);
    std::int64_t applied = 0;
    for (int n = 0; n < 12; ++n) {
      const std::vector<torch::Tensor> weights = {torch::randn({5, 3}).to(dtype), torch::randn({4}).t().to(dtype)};
      const bool is_skipped = random() % 3 == 0;
      const auto found_inf = is_skipped ? torch::ones({}) : random() % 2 == 0 ? torch::zeros({}) : torch::Tensor();
      std::vector<torch::Tensor> before;
      for (const auto& tensor : device.tensors) before.push_back(tensor.clone());
      host.update(weights, found_inf);
      device.update(weights, found_inf);
      applied += is_skipped ? 0 : 1;
      CHECK(host.updates().item<std::int64_t>() == applied);
      CHECK(device.updates.item<std::int64_t>() == applied);
      CHECK(host.is_empty() == (applied == 0));
      for (std::size_t i = 0; i < weights.size(); ++i) {
        CHECK((host.tensors()[i].scalar_type() == torch::kFloat32));
        CHECK(torch::allclose(host.tensors()[i], device.tensors[i], 1e-5, 1e-6));
        if (is_skipped && !before.empty()) CHECK(torch::equal(before[i], device.tensors[i]));
        if (applied == 1 && !is_skipped) CHECK(torch::equal(device.tensors[i], weights[i].to(torch::kFloat32)));
      }
    }
  }
}

TEST_CASE("ema: written to a checkpoint and loaded at any update, the next updates are the same bits") {
  torch::manual_seed(8);
  const TemporaryFolder folder;
  const auto path = folder / "step-00000001";
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    for (const int saved_after : {0, 1, 5}) {
      CAPTURE(saved_after);
      const EmaOptions options{.decay = 0.8, .warmup = true};
      Ema whole(options), resumed(options);
      resumed.update({torch::ones({2})});  // an average from before, to be replaced
      for (int n = 0; n < 10; ++n) {
        if (n == saved_after) {
          vernier::write_checkpoint(path, {}, {}, whole.state_dict());
          resumed.load_state_dict(vernier::read_checkpoint(path).state);
          check_equal(resumed.state_dict().tensors, whole.state_dict().tensors);
        }
        const auto weights = random_weights(dtype);
        const auto skip = torch::full({}, n % 3 == 1 ? 1.0F : 0.0F);
        whole.update(weights, skip);
        if (n < saved_after) continue;
        resumed.update(weights, skip);
        check_equal(resumed.state_dict().tensors, whole.state_dict().tensors);
      }
      for (std::size_t i = 0; i < 3; ++i) CHECK(resumed.tensors()[i].strides() == whole.tensors()[i].strides());
    }
  }
}

TEST_CASE("ema: a loaded average is a copy, and is copied into weights of any dtype") {
  Ema average({.decay = 0.5}), other({.decay = 0.5});
  const auto leaf = torch::ones({3}).requires_grad_();
  average.update({leaf});
  other.load_state_dict(average.state_dict());
  average.update({torch::zeros({3})});
  CHECK(average.tensors()[0].eq(0.5).all().item<bool>());
  CHECK(other.tensors()[0].eq(1).all().item<bool>());
  const auto half = torch::zeros({3}, torch::kHalf);
  average.copy_to({half});
  CHECK(half.eq(0.5).all().item<bool>());
  average.copy_to({leaf});
  CHECK(leaf.eq(0.5).all().item<bool>());
  other.load_state_dict({});
  CHECK(other.is_empty());
  CHECK(other.state_dict().tensors.empty());
}

TEST_CASE("ema: what cannot be averaged is refused with the reason, and changes nothing") {
  CHECK_THROWS_WITH_AS(Ema({.decay = 1}), "the decay of an average is 1: it must be at least 0 and below 1", Error);
  CHECK_THROWS_AS(Ema({.decay = -0.1}), Error);
  CHECK_THROWS_AS(Ema({.decay = NAN}), Error);
  Ema average;
  CHECK_THROWS_WITH_AS(average.copy_to({torch::ones({2})}), "there is no average yet: call update() first", Error);
  average.update({torch::ones({2})});
  CHECK_THROWS_WITH_AS(average.update({torch::ones({3})}), doctest::Contains("weight 0 is [2], and the weight is [3]"),
                       Error);
  CHECK_THROWS_WITH_AS(average.update({}), doctest::Contains("of 1 tensors, and there are 0 weights"), Error);
  CHECK_THROWS_AS(average.copy_to({torch::ones({2}), torch::ones({2})}), Error);
  auto state = average.state_dict();
  state.put("average/2", torch::ones({2}));
  CHECK_THROWS_WITH_AS(average.load_state_dict(state), doctest::Contains("has no 'average/1'"), Error);
  state.tensors.erase("updates");
  CHECK_THROWS_WITH_AS(average.load_state_dict(state), doctest::Contains("has no 'updates'"), Error);
  CHECK(average.updates().item<std::int64_t>() == 1);
  CHECK(average.tensors()[0].eq(1).all().item<bool>());
}

}  // namespace ema_test
