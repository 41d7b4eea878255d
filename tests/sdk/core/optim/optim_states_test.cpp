// Adam's averages in bfloat16 and in 8 bits.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/linear.h>
#include <vernier/error.h>
#include <vernier/optim.h>

#include <cmath>
#include <random>
#include <string>

#include "optim/adam_operators.h"
#include "optim/block_quantisation.h"
#include "optim/kernels/counter_rng.h"
#include "oracle.h"

namespace optim_states_test {

using vernier::AdamState;
using vernier::AdamW;
using vernier::BlockQuantisation;
using vernier::Error;
using Parameters = std::vector<torch::Tensor>;

namespace {

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

BlockQuantisation::Packed pack_on_host(const BlockQuantisation& quantisation, const torch::Tensor& numbers) {
  auto codes = at::empty({numbers.numel()}, at::kByte);
  auto largest = at::empty({BlockQuantisation::blocks(numbers.numel())}, at::kFloat);
  quantisation.kernel().pack(numbers.const_data_ptr<float>(), numbers.numel(), codes.mutable_data_ptr<std::uint8_t>(),
                             largest.mutable_data_ptr<float>());
  return {codes, largest};
}

torch::Tensor unpack_on_host(const BlockQuantisation& quantisation, const BlockQuantisation::Packed& packed) {
  auto numbers = at::empty({packed.codes.numel()}, at::kFloat);
  quantisation.kernel().unpack(packed.codes.const_data_ptr<std::uint8_t>(), packed.largest.const_data_ptr<float>(),
                               packed.codes.numel(), numbers.mutable_data_ptr<float>());
  return numbers;
}

// Blocks of many magnitudes, the last of any size.
torch::Tensor any_numbers(std::mt19937& random, bool is_signed) {
  const auto size = 1 + static_cast<std::int64_t>(random() % 3000);
  auto numbers = at::randn({size}) * at::pow(10, at::rand({size}) * static_cast<double>(random() % 20) - 9);
  return is_signed ? numbers : numbers.abs();
}

}  // namespace

TEST_CASE("optim states: 8 bits are torchao's, but that a square which is not 0 does not become 0") {
  const Oracle oracle("adam8bit");
  for (const bool is_signed : {true, false}) {
    const std::string name = is_signed ? "signed." : "unsigned.";
    const auto& quantisation = BlockQuantisation::of(is_signed);
    const auto map = at::from_blob(const_cast<float*>(quantisation.kernel().numbers().data()), {256}, at::kFloat);
    CHECK(torch::allclose(map, oracle[name + "map"], 2.5e-7, 0));
    const auto &numbers = oracle[name + "numbers"], &largest = oracle[name + "absmax"];
    auto codes = oracle[name + "codes"];
    if (!is_signed) codes = at::where((codes == 0).logical_and(numbers > 0), at::ones_like(codes), codes);
    for (const auto& packed : {pack_on_host(quantisation, numbers), quantisation.pack(numbers)}) {
      CHECK(packed.codes.equal(codes));
      CHECK(packed.largest.equal(at::where(largest <= 1e-12F, at::zeros_like(largest), largest)));
    }
  }
}

TEST_CASE("optim states: a number becomes the nearest of its block, on the host and by operators") {
  std::mt19937 random(5);
  torch::manual_seed(5);
  for (int round = 0; round < 100; ++round) {
    const bool is_signed = round % 2 == 0;
    const auto& quantisation = BlockQuantisation::of(is_signed);
    const auto map = at::from_blob(const_cast<float*>(quantisation.kernel().numbers().data()), {256}, at::kFloat);
    const auto numbers = any_numbers(random, is_signed);
    CAPTURE(numbers.numel());
    const auto packed = pack_on_host(quantisation, numbers), by_operators = quantisation.pack(numbers);
    CHECK(packed.codes.equal(by_operators.codes));
    CHECK(packed.largest.equal(by_operators.largest));
    const auto back = unpack_on_host(quantisation, packed);
    CHECK(same_bits(back, quantisation.unpack(packed)));

    const auto block = at::arange(numbers.numel()).div(BlockQuantisation::block, "floor");
    const auto scale = packed.largest.index({block}).to(at::kDouble);
    const auto distances = (numbers.to(at::kDouble).unsqueeze(1) - scale.unsqueeze(1) * map.to(at::kDouble)).abs();
    const auto nearest = distances.amin(1);
    const auto ours = (numbers.to(at::kDouble) - back.to(at::kDouble)).abs();
    auto is_nearest = ours <= nearest + numbers.abs() * 1e-6;
    if (!is_signed) is_nearest = is_nearest.logical_or((packed.codes == 1).logical_and(numbers > 0));
    CHECK(is_nearest.all().item<bool>());
    if (!is_signed) CHECK(back.gt(0).equal(numbers.gt(0)));
  }
}

TEST_CASE("optim states: a nan makes its block nan, zeros stay zeros") {
  for (const bool is_signed : {true, false}) {
    const auto& quantisation = BlockQuantisation::of(is_signed);
    auto numbers = at::ones({600});
    numbers[300] = NAN;
    numbers.slice(0, 512).zero_();
    for (const auto& packed : {pack_on_host(quantisation, numbers), quantisation.pack(numbers)}) {
      const auto back = unpack_on_host(quantisation, packed);
      CHECK(back.slice(0, 0, 256).equal(at::ones({256})));
      CHECK(back.slice(0, 256, 512).isnan().all().item<bool>());
      CHECK(back.slice(0, 512).equal(at::zeros({88})));
    }
  }
}

namespace {

// All magnitudes at which a code starts or that a code stands for, each with its neighbours in float32, in blocks whose
// largest number is `most`. The last block is smaller than any vector.
torch::Tensor borders(const BlockQuantisation& quantisation, bool is_signed, float most) {
  std::vector<float> numbers;
  const auto& map = quantisation.kernel().numbers();
  for (std::size_t i = 0; i + 1 < map.size(); ++i) {
    const auto border = static_cast<float>((static_cast<double>(map[i]) + map[i + 1]) / 2);
    for (const float middle : {border, map[i]}) {
      float below = middle * most;
      for (int k = 0; k < 3; ++k) below = std::nextafter(below, -INFINITY);
      for (int k = 0; k < 7; ++k, below = std::nextafter(below, INFINITY)) {
        if (numbers.size() % BlockQuantisation::block == 0) numbers.push_back(is_signed && i % 2 == 0 ? -most : most);
        numbers.push_back(below);
      }
    }
  }
  while (numbers.size() % BlockQuantisation::block != 0) numbers.push_back(numbers.size() % 2 == 0 ? 0.0F : -0.0F);
  numbers.insert(numbers.end(), {most, most / 3, most / 1000});
  return torch::tensor(numbers, at::kFloat).clamp(-most, most);
}

}  // namespace

TEST_CASE("optim states: the host's codes are the operators' at each border, for blocks of any magnitude") {
  std::vector<float> largest = {1.0F,  0x1.fffffep0F, 0x1.000002p0F, 1e-3F,  7e20F,
                                3e38F, 2e-12F,        1e-25F,        1e-36F, 1e-41F};
  std::mt19937 random(8);
  for (int i = 0; i < 40; ++i)
    largest.push_back(std::ldexp(1.0F + static_cast<float>(random() % 8388608) / 8388608, i - 20));
  for (const bool is_signed : {true, false}) {
    const auto& quantisation = BlockQuantisation::of(is_signed);
    for (const float most : largest) {
      CAPTURE(is_signed);
      CAPTURE(most);
      const auto numbers = borders(quantisation, is_signed, most);
      const auto packed = pack_on_host(quantisation, numbers), by_operators = quantisation.pack(numbers);
      CHECK(packed.codes.equal(by_operators.codes));
      CHECK(packed.largest.equal(by_operators.largest));
      CHECK(same_bits(unpack_on_host(quantisation, packed), quantisation.unpack(packed)));
    }
  }
}

TEST_CASE("optim states: each code stands for the same number on the host and by operators") {
  for (const bool is_signed : {true, false}) {
    const auto& quantisation = BlockQuantisation::of(is_signed);
    for (const float most : {1.0F, 0.3F, 5e-39F, 3e38F, 0.0F, INFINITY, NAN}) {
      CAPTURE(is_signed);
      CAPTURE(most);
      const BlockQuantisation::Packed all{at::arange(256, at::kByte), torch::full({1}, most)};
      CHECK(same_bits(unpack_on_host(quantisation, all), quantisation.unpack(all)));
    }
  }
}

namespace {

std::int64_t bytes(const vernier::State& state) {
  std::int64_t sum = 0;
  for (const auto& [name, tensor] : state.tensors) {
    const bool is_number = name == "parameters" || name.ends_with("/step") || name.ends_with("/lr");
    if (!is_number) sum += static_cast<std::int64_t>(tensor.nbytes());
  }
  return sum;
}

const std::vector<AdamState> small_states = {AdamState::bfloat16, AdamState::eight_bit};

// Two that are kept in fewer bits, one of them with a rest of a block; two that 8 bits leave alone, as one is small and
// one not contiguous.
Parameters make_parameters() {
  torch::manual_seed(9);
  return {torch::randn({64, 96}).requires_grad_(), torch::randn({101, 70}).requires_grad_(),
          torch::randn({33}).requires_grad_(), torch::randn({70, 101}).t().requires_grad_()};
}

void set_gradients(const Parameters& parameters, int step, double scale = 1) {
  torch::manual_seed(500 + step);
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() =
        (torch::randn(parameter.sizes()) * scale).as_strided(parameter.sizes(), parameter.strides());
  }
}

vernier::State copy_of(const vernier::State& state) {
  vernier::State copy;
  for (const auto& [name, tensor] : state.tensors) copy.put(name, tensor.clone());
  return copy;
}

bool same_bits(const vernier::State& a, const vernier::State& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    if (!b.has(name)) return false;
    if (tensor.is_floating_point() ? !::same_bits(tensor, b.tensor(name)) : !tensor.equal(b.tensor(name))) return false;
  }
  return true;
}

bool same_bits(const Parameters& a, const Parameters& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!::same_bits(a[i].detach(), b[i].detach())) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("optim states: 8 bits are a quarter of float32's bytes and a block's number, bfloat16 half") {
  const auto held = [](AdamState kept_in) {
    const auto parameters = make_parameters();
    AdamW optimizer(parameters, {.state = kept_in});
    set_gradients(parameters, 0);
    optimizer.step();
    return bytes(optimizer.state_dict());
  };
  constexpr std::int64_t large = 64 * 96 + 70 * 101, left_alone = 33 + 70 * 101, blocks = 24 + 28;
  CHECK(held(AdamState::full) == 2 * 4 * (large + left_alone));
  CHECK(held(AdamState::bfloat16) == 2 * 2 * (large + left_alone));
  CHECK(held(AdamState::eight_bit) == 2 * (large + 4 * blocks) + 2 * 4 * left_alone);
}

TEST_CASE("optim states: the same bits with one thread and with two, and after a stop") {
  for (const auto kept_in : small_states) {
    const auto parameters = make_parameters(), others = make_parameters();
    const vernier::AdamWOptions options{.lr = 0.01, .state = kept_in, .seed = 7};
    AdamW optimizer(parameters, options);
    auto other = std::make_unique<AdamW>(others, options);
    for (int step = 0; step < 12; ++step) {
      set_gradients(parameters, step);
      set_gradients(others, step);
      optimizer.step();
      {
        const Threads two(2);
        other->step();
      }
      CHECK(same_bits(parameters, others));
      CHECK(same_bits(optimizer.state_dict(), other->state_dict()));
      if (step != 5) continue;
      const auto state = copy_of(other->state_dict());
      other = std::make_unique<AdamW>(others, options);
      other->load_state_dict(state);
    }
  }
}

TEST_CASE("optim states: found_inf changes nothing, grad_scale divides, groups are apart") {
  for (const auto kept_in : small_states) {
    const auto parameters = make_parameters(), plain = make_parameters();
    const vernier::AdamWOptions one{.lr = 0.01, .state = kept_in}, two{.lr = 0.02, .weight_decay = 0, .state = kept_in};
    AdamW optimizer(std::vector<AdamW::Group>{{{parameters[0], parameters[2]}, one}, {{parameters[1]}, two}});
    AdamW reference(std::vector<AdamW::Group>{{{plain[0], plain[2]}, one}, {{plain[1]}, two}});
    for (int step = 0; step < 6; ++step) {
      set_gradients(parameters, step);
      parameters[0].mutable_grad()[3][4] = NAN;
      const auto before = copy_of(optimizer.state_dict());
      if (step > 0) {
        optimizer.step(torch::ones({}), torch::full({}, 8.0F));
        CHECK(same_bits(optimizer.state_dict(), before));
      }
      set_gradients(parameters, step, 8);
      set_gradients(plain, step);
      optimizer.step(torch::zeros({}), torch::full({}, 8.0F));
      reference.step();
      CHECK(same_bits(parameters, plain));
      CHECK(same_bits(optimizer.state_dict(), reference.state_dict()));
    }
  }
}

// The widest kernels leave maximize to others, so this compares them.
TEST_CASE("optim states: to maximize the negative has the bits of minimizing, in tensors of any size") {
  torch::manual_seed(10);
  for (const auto kept_in : small_states) {
    Parameters parameters, others;
    for (std::int64_t size = 1; size < 70; ++size) {
      parameters.push_back(torch::randn({size < 60 ? size : 97 * size}).requires_grad_());
      others.push_back(parameters.back().detach().clone().requires_grad_());
    }
    AdamW optimizer(parameters, {.lr = 0.01, .state = kept_in}),
        other(others, {.lr = 0.01, .maximize = true, .state = kept_in});
    for (int step = 0; step < 4; ++step) {
      CAPTURE(step);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        auto gradient = torch::randn_like(parameters[i]) * std::pow(10.0, static_cast<double>(i % 30) - 20);
        if (step > 0 && i % 10 == 3) gradient[0] = step == 1 ? INFINITY : step == 2 ? NAN : 0.0F;
        parameters[i].mutable_grad() = gradient;
        others[i].mutable_grad() = -gradient;
      }
      const auto scale = torch::full({}, step % 2 == 0 ? 1.0F : 3.0F);
      optimizer.step(torch::zeros({}), scale);
      other.step(torch::zeros({}), scale);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        CHECK(::same_bits(parameters[i].detach().nan_to_num(), others[i].detach().nan_to_num()));
      }
      auto a = copy_of(optimizer.state_dict()), b = copy_of(other.state_dict());
      for (auto* state : {&a, &b}) {
        for (auto& [name, tensor] : state->tensors) {
          if (tensor.is_floating_point()) tensor = tensor.nan_to_num();
        }
      }
      CHECK(same_bits(a, b));
    }
  }
}

// Runs the operators of a GPU on the host.
TEST_CASE("optim states: operators give what the host's own pass gives") {
  const Threads one(1);
  for (const auto kept_in : small_states) {
    torch::manual_seed(3);
    const auto parameter = torch::randn({97, 63}).requires_grad_();  // whole blocks of codes and a rest
    const auto other = parameter.detach().clone();
    AdamW optimizer({parameter}, {.lr = 0.01, .state = kept_in, .seed = 5});
    const bool is_coded = kept_in == AdamState::eight_bit;
    const auto dtype = is_coded ? at::kByte : at::kBFloat16;
    vernier::UpdateLists lists{{other}, {}, {at::zeros({}, at::kFloat)}, {}, {0}};
    for (int i = 0; i < 2; ++i) lists.slots.push_back({at::zeros({97, 63}, dtype)});
    for (int i = 0; i < 2 && is_coded; ++i) lists.slots.push_back({at::zeros({24}, at::kFloat)});
    const auto kernel = [](const auto& found_inf) {
      return [found_inf](const auto& p, const auto& g, const auto& mean, const auto& square, const auto& step) {
        at::_fused_adamw_(p, g, mean, square, at::TensorList(), step, 0.01, 0.9, 0.999, 0.01, 1e-8, false, false,
                          std::nullopt, found_inf);
      };
    };
    for (int step = 0; step < 5; ++step) {
      const auto gradient = torch::randn({97, 63});
      parameter.mutable_grad() = gradient.clone();
      optimizer.step();
      lists.gradients = {gradient};
      const auto before = lists.slots[0][0].clone(), weights = other.clone();
      const auto none = std::optional(torch::zeros({})), found = std::optional(torch::ones({}));
      if (step == 2) {
        vernier::adam_by_operators(kept_in, 5, lists, found, kernel(found));
        CHECK(lists.slots[0][0].equal(before));
        CHECK(other.equal(weights));
      }
      lists.steps[0].add_(1);
      vernier::adam_by_operators(kept_in, 5, lists, none, kernel(none));
      const auto state = optimizer.state_dict();
      CHECK(::same_bits(parameter.detach(), other));
      CHECK(state.tensor("0/exp_avg").equal(lists.slots[0][0]));
      CHECK(state.tensor("0/exp_avg_sq").equal(lists.slots[1][0]));
      if (is_coded) CHECK(state.tensor("0/exp_avg_sq_absmax").equal(lists.slots[3][0]));
    }
  }
}

TEST_CASE("optim states: AdamW in 8 bits goes torchao's way") {
  const Oracle oracle("adam8bit");
  auto parameter = oracle["start"].clone().requires_grad_();
  const auto& target = oracle["target"];
  AdamW optimizer({parameter}, {.lr = 0.01, .weight_decay = 0.1, .state = AdamState::eight_bit});
  const auto distance_to = [&](const std::string& name) {
    return (parameter.detach() - oracle[name]).abs().mean().item<double>();
  };
  for (int step = 1; step <= 100; ++step) {
    parameter.mutable_grad() = (parameter.detach() - target) * (1 + 0.25 * ((step - 1) % 5));
    optimizer.step();
    if (step == 1) {
      const auto state = optimizer.state_dict();
      CHECK(distance_to("adamw8bit.1.parameter") <= 1e-7);
      const auto equal = state.tensor("0/exp_avg").eq(oracle["adamw8bit.1.exp_avg"]).to(at::kDouble).mean();
      CHECK(equal.item<double>() >= 0.999);
      CHECK(torch::allclose(state.tensor("0/exp_avg_absmax"), oracle["adamw8bit.1.exp_avg_absmax"], 1e-5));
      CHECK(torch::allclose(state.tensor("0/exp_avg_sq_absmax"), oracle["adamw8bit.1.exp_avg_sq_absmax"], 1e-5));
    } else if (step == 10 || step == 100) {
      const auto at = "." + std::to_string(step) + ".parameter";
      const auto off = distance_to("adamw8bit" + at), from_float32 = distance_to("adamw" + at);
      CAPTURE(off);
      CHECK(off <= from_float32 / 10);
    }
  }
}

TEST_CASE("optim states: rounding is without bias, and each step, element, parameter and seed has noise of its own") {
  // A mean that decays by a thousandth a step: bfloat16 rounded to nearest would stand still.
  constexpr std::int64_t size = 20000;
  auto parameter = torch::zeros({size}).requires_grad_();
  AdamW optimizer({parameter}, {.lr = 0, .beta1 = 0.999, .state = AdamState::bfloat16, .seed = 3});
  parameter.mutable_grad() = torch::full({size}, 1.0F);
  optimizer.step();
  parameter.mutable_grad() = torch::zeros({size});
  const double start = optimizer.state_dict().tensor("0/exp_avg").to(at::kDouble).mean().item<double>();
  CHECK(start == doctest::Approx(1e-3).epsilon(1e-3));
  for (int step = 0; step < 300; ++step) optimizer.step();
  const double expected = 1e-3 * std::pow(0.999, 300);
  const auto mean = optimizer.state_dict().tensor("0/exp_avg").to(at::kDouble);
  // Each step adds at most half a last place, 2^-9 of the number, of standard deviation: 300 of them, over 20,000.
  const double deviation = expected * std::sqrt(300.0 / size) / 512;
  CHECK(std::abs(mean.mean().item<double>() - expected) <= 5 * deviation);
  CHECK(mean.std().item<double>() > 0);

  const auto draw = [](std::uint64_t seed, std::uint64_t number, std::uint32_t step) {
    vernier::CountedNoise noise(seed, number);
    noise.set_step(step);
    std::vector<double> bits;
    for (std::uint32_t i = 0; i < 4096; ++i) bits.push_back(noise(i) & 0xffff), bits.push_back(noise(i) >> 16);
    return torch::tensor(bits, at::kDouble) / 65536;
  };
  const auto correlation = [](const torch::Tensor& a, const torch::Tensor& b) {
    return (((a - 0.5) * (b - 0.5)).mean() * 12).item<double>();
  };
  const auto first = draw(1, 2, 3);
  const double limit = 5 / std::sqrt(8192.0);
  CHECK(correlation(first, first) == doctest::Approx(1).epsilon(0.05));
  CHECK(std::abs(correlation(first, first.roll(1))) <= limit);
  CHECK(std::abs(correlation(first, first.roll(2))) <= limit);
  for (const auto& other : {draw(1, 2, 4), draw(1, 3, 3), draw(2, 2, 3), draw(1, 2, 3 + (1 << 16))}) {
    CHECK(std::abs(other.mean().item<double>() - 0.5) <= 5 * std::sqrt(1.0 / 12 / 8192));
    CHECK(std::abs(correlation(first, other)) <= limit);
  }
}

TEST_CASE("optim states: a network trains as with float32 averages") {
  const Threads one(1);
  const auto loss_after = [](AdamState kept_in, double beta1) {
    torch::manual_seed(1);
    torch::nn::Linear first(32, 256), second(256, 256), third(256, 8);
    Parameters parameters;
    for (const auto& layer : {first, second, third}) {
      for (const auto& parameter : layer->parameters()) parameters.push_back(parameter);
    }
    const auto teacher = torch::randn({32, 8});
    AdamW optimizer(parameters, {.lr = 1e-3, .beta1 = beta1, .state = kept_in});
    double sum = 0;
    for (int step = 0; step < 400; ++step) {
      const auto x = torch::randn({32, 32});
      const auto y = third(torch::tanh(second(torch::tanh(first(x)))));
      const auto loss = torch::mse_loss(y, x.matmul(teacher).sin());
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step >= 350) sum += loss.item<double>() / 50;
    }
    return sum;
  };
  const double full = loss_after(AdamState::full, 0.9), worse = loss_after(AdamState::full, 0.0);
  CAPTURE(full);
  CAPTURE(worse);
  for (const auto kept_in : small_states) {
    const double loss = loss_after(kept_in, 0.9);
    CAPTURE(loss);
    CHECK(std::abs(loss / full - 1) <= 0.02);
  }
}

TEST_CASE("optim states: a state of another kind is loaded as this one keeps it") {
  const std::vector<AdamState> all = {AdamState::full, AdamState::bfloat16, AdamState::eight_bit};
  for (const auto from : all) {
    for (const auto to : all) {
      CAPTURE(static_cast<int>(from));
      CAPTURE(static_cast<int>(to));
      const auto parameters = make_parameters(), others = make_parameters();
      AdamW saved(parameters, {.lr = 0.01, .state = from}), loaded(others, {.lr = 0.01, .state = to});
      AdamW back(make_parameters(), {.lr = 0.01});
      for (int step = 0; step < 3; ++step) {
        set_gradients(parameters, step);
        saved.step();
      }
      loaded.load_state_dict(copy_of(saved.state_dict()));
      if (from == to) CHECK(same_bits(saved.state_dict(), loaded.state_dict()));
      back.load_state_dict(loaded.state_dict());
      AdamW exact(make_parameters(), {.lr = 0.01});
      exact.load_state_dict(saved.state_dict());
      const double tolerance = from == to || to == AdamState::full ? 0 : to == AdamState::bfloat16 ? 0x1p-8 : 0.01;
      for (const auto& [name, tensor] : exact.state_dict().tensors) {
        CAPTURE(name);
        const auto difference = (back.state_dict().tensor(name) - tensor).to(at::kDouble).abs().max().item<double>();
        const bool is_count = name == "parameters" || name.ends_with("/step");
        CHECK(difference <= (is_count ? 0 : tolerance * tensor.to(at::kDouble).abs().max().item<double>()));
      }
    }
  }
}

TEST_CASE("optim states: a state goes with its elements from one memory layout to another") {
  const auto weight = [](at::MemoryFormat format) {
    torch::manual_seed(4);
    return torch::randn({32, 16, 3, 3}).contiguous(format).requires_grad_();
  };
  for (const auto kept_in : {AdamState::full, AdamState::bfloat16, AdamState::eight_bit}) {
    for (const auto& [from, to] : {std::pair{at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast},
                                   std::pair{at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}}) {
      CAPTURE(static_cast<int>(kept_in));
      const auto one = weight(from), other = weight(to);
      AdamW saved({one}, {.state = kept_in}), loaded({other}, {.state = kept_in});
      one.mutable_grad() = torch::randn({32, 16, 3, 3}).contiguous(from);
      saved.step();
      vernier::State written;  // a file has the elements in the usual order
      for (const auto& [name, tensor] : saved.state_dict().tensors) written.put(name, tensor.contiguous());
      loaded.load_state_dict(written);
      AdamW exact({weight(from)}), back({weight(from)});
      exact.load_state_dict(saved.state_dict());
      back.load_state_dict(loaded.state_dict());
      for (const char* name : {"0/exp_avg", "0/exp_avg_sq"}) {
        const auto mean = exact.state_dict().tensor(name);
        const double tolerance = kept_in == AdamState::eight_bit ? 0.01 * mean.abs().max().item<double>() : 0;
        CHECK((back.state_dict().tensor(name) - mean).abs().max().item<double>() <= tolerance);
      }
    }
  }
}

TEST_CASE("optim states: codes without their blocks' numbers, or of another shape, are refused") {
  const auto parameters = make_parameters();
  AdamW optimizer(parameters, {.state = AdamState::eight_bit});
  set_gradients(parameters, 0);
  optimizer.step();
  const auto good = copy_of(optimizer.state_dict());
  AdamW full(make_parameters());
  const auto refused = [&](const vernier::State& state, const char* why) {
    CHECK_THROWS_WITH_AS(optimizer.load_state_dict(state), doctest::Contains(why), Error);
    CHECK(same_bits(optimizer.state_dict(), good));
    CHECK_THROWS_AS(full.load_state_dict(state), Error);
  };
  auto state = good;
  state.tensors.erase("0/exp_avg_absmax");
  refused(state, "0/exp_avg_absmax");
  state = good;
  state.tensors["0/exp_avg_sq_absmax"] = torch::zeros({23});
  refused(state, "'0/exp_avg_sq_absmax' as CPUFloatType [23]");
  state = good;
  state.tensors["0/exp_avg"] = good.tensor("0/exp_avg").t().contiguous();
  refused(state, "'0/exp_avg' as CPUByteType [96, 64]");
}

TEST_CASE("optim states: what has no small kind is refused") {
  const auto refused = [](torch::Tensor parameter, vernier::AdamWOptions options, const char* why) {
    CHECK_THROWS_WITH_AS(AdamW({parameter.requires_grad_()}, options), doctest::Contains(why), Error);
  };
  refused(torch::ones({5000}), {.amsgrad = true, .state = AdamState::eight_bit}, "amsgrad keeps a third average");
  refused(torch::ones({5000}, at::kDouble), {.state = AdamState::eight_bit},
          "averages in 8 bits are for float32 parameters, and one is Double");
  refused(torch::ones({5}, at::kBFloat16), {.state = AdamState::bfloat16},
          "averages in bfloat16 are for float32 parameters, and one is BFloat16");
}

}  // namespace optim_states_test
