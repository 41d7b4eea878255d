#include "gpu_optimizers.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include "gpu/gpu_float8.h"
#include "gpu/gpu_norms.h"
#include "optim/kernels/counter_rng.h"
#include "stochastic_rounding.h"

namespace vernier {

namespace {

static_assert(static_cast<int>(AdamState::bfloat16) == static_cast<int>(gpu::Averages::bfloat16));
static_assert(static_cast<int>(AdamState::eight_bit) == static_cast<int>(gpu::Averages::eight_bit));

// Two slots are the state, two more the largest numbers of their blocks.
std::vector<gpu::Tensor> tensors_of(const UpdateLists& lists) {
  std::vector<gpu::Tensor> tensors(lists.parameters.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = tensors[i];
    tensor.count = lists.parameters[i].numel();
    tensor.parameter = lists.parameters[i].data_ptr<float>();
    tensor.gradient = lists.gradients[i].const_data_ptr<float>();
    for (std::size_t k = 0; k < lists.slots.size(); ++k) {
      if (k < 2) {
        tensor.state[k] = lists.slots[k][i].data_ptr();
      } else {
        tensor.largest[k - 2] = lists.slots[k][i].data_ptr<float>();
      }
    }
    if (!lists.steps.empty()) tensor.steps = lists.steps[i].const_data_ptr<float>();
  }
  return tensors;
}

const float* number_in(const MaybeTensor& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

// Calls launch(tensors, count, gate, stream) with the device of the parameters as the current one.
template <class Launch>
void on_device_of(const UpdateLists& lists, std::vector<gpu::Tensor> tensors, const MaybeTensor& grad_scale,
                  const MaybeTensor& found_inf, const char* kernel, const Launch& launch) {
  const auto device = lists.parameters.front().device();
  const c10::DeviceGuard guard(device);
  const gpu::Gate gate{number_in(found_inf), number_in(grad_scale)};
  require_launched(launch(tensors.data(), static_cast<std::int64_t>(tensors.size()), gate, stream_of(device)), kernel);
}

// Numbers of many magnitudes, always the same ones.
torch::Tensor some_numbers(std::int64_t count, double phase) {
  const auto places = at::arange(count, torch::kFloat64);
  return (at::sin(places * 1.7 + phase) * at::exp(at::sin(places * 0.31 + phase) * 6)).to(torch::kFloat32);
}

// The state of an optimizer after two updates of two tensors, which are not a whole number of blocks.
template <class Options, class Apply>
std::vector<torch::Tensor> after_two_updates(const Options& options, const c10::Device& device, const Apply& apply) {
  UpdateLists lists;
  for (const std::int64_t count : {9001, 4099}) {
    const auto parameter = some_numbers(count, 1).to(device);
    const auto rule = rule_of(options, at::empty({count}, torch::kFloat32));
    lists.parameters.push_back(parameter);
    lists.numbers.push_back(lists.numbers.size());
    if (rule.counts_steps) lists.steps.push_back(at::zeros({}, parameter.options()));
    lists.slots.resize(rule.slots.size());
    for (std::size_t k = 0; k < rule.slots.size(); ++k) lists.slots[k].push_back(rule.slots[k].like(parameter));
  }
  const auto scale = at::full({}, 4.0F, lists.parameters.front().options());
  for (int step = 0; step < 2; ++step) {
    for (auto& count : lists.steps) count.add_(1);
    lists.gradients.clear();  // LibTorch's kernel may divide them
    for (const auto& parameter : lists.parameters) {
      lists.gradients.push_back(some_numbers(parameter.numel(), 2).to(device));
    }
    apply(lists, scale);
  }
  auto all = lists.parameters;
  for (const auto& slot : lists.slots) {
    if (slot.front().scalar_type() == torch::kByte) continue;  // a code may be the next one
    all.insert(all.end(), slot.begin(), slot.end());
  }
  return all;
}

bool are_close(const std::vector<torch::Tensor>& ours, const std::vector<torch::Tensor>& right) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double bound = right[i].scalar_type() == torch::kBFloat16 ? 1e-2 : 1e-5;
    const auto host = ours[i].to(torch::kCPU, torch::kFloat32);
    if (!at::allclose(host, right[i].to(torch::kFloat32), bound, bound * 1e-2)) return false;
  }
  return true;
}

template <class Options, class OnGpu>
bool is_right(const Options& options, const c10::Device& device, const OnGpu& on_gpu) {
  const auto rule = rule_of(options, at::empty({5000}, torch::kFloat32));
  const auto right = after_two_updates(options, torch::kCPU, [&](const UpdateLists& lists, const torch::Tensor& scale) {
    rule.apply(lists, options.lr, scale, {});
  });
  return are_close(after_two_updates(options, device, on_gpu), right);
}

bool norms_are_right(const gpu::Library& library, const c10::Device& device) {
  const std::vector<torch::Tensor> host{some_numbers(40001, 3), some_numbers(7, 4)};
  const auto ours = inspect_on_gpu(library, {host[0].to(device), host[1].to(device)});
  const auto right = inspect_gradients(host);
  return at::allclose(ours.norm.cpu(), right.norm, 1e-12) && ours.found_inf.item<float>() == 0;
}

bool roundings_are_right(const gpu::Library& library, const c10::Device& device) {
  const auto master = some_numbers(9001, 5), right = at::empty_like(master, torch::kBFloat16);
  const auto on_device = master.to(device), weight = at::empty_like(on_device, torch::kBFloat16);
  const auto rest = at::empty_like(weight);
  round_on_host(master.const_data_ptr<float>(), right.mutable_data_ptr<c10::BFloat16>(), 9001, 7, 2, 3);
  round_at_random_on_gpu(library, {{on_device, weight, {}, 2}}, 7, 3);
  if (!at::equal(weight.cpu(), right)) return false;
  round_with_kahan_on_gpu(library, {{on_device, weight, rest, 0}}, {});
  const auto nearest = master.to(torch::kBFloat16);
  return at::equal(weight.cpu(), nearest) && at::equal(rest.cpu(), (master - nearest).to(torch::kBFloat16));
}

// Cross entropy of one block of classes.
bool softmax_is_right(const gpu::Library& library, const c10::Device& device) {
  constexpr std::int64_t rows = 3, classes = 2001;
  const auto logits = some_numbers(rows * classes, 6).view({rows, classes});
  const auto places = at::arange(rows) * 700;
  const auto shares = at::log_softmax(logits, 1);
  const auto right = shares.exp() - at::one_hot(places, classes);
  const auto x = logits.to(device, /*non_blocking=*/false, /*copy=*/true), target = places.to(device);
  const auto wide = x.options().dtype(torch::kFloat64);
  const auto largest = at::full({rows}, -INFINITY, x.options()), sums = at::zeros({rows}, wide);
  const auto chosen = at::zeros({rows}, wide), ones = at::ones({rows}, wide), zeros = at::zeros({rows}, wide);
  const auto* const targets = target.const_data_ptr<std::int64_t>();
  const auto kind = gpu::Kind::float32;
  const gpu::SoftmaxSums adding{x.const_data_ptr(),
                                kind,
                                rows,
                                classes,
                                /*stride=*/classes,
                                /*first=*/0,
                                targets,
                                largest.mutable_data_ptr<float>(),
                                sums.mutable_data_ptr<double>(),
                                chosen.mutable_data_ptr<double>(),
                                nullptr};
  require_launched(library.softmax_sums(adding, stream_of(device)), "softmax_sums");
  const auto losses = largest.to(torch::kFloat64) + sums.log() - chosen;
  const auto log_sums = sums.log().to(torch::kFloat32);
  const gpu::SoftmaxSlopes slopes{x.const_data_ptr(),
                                  x.mutable_data_ptr(),
                                  kind,
                                  rows,
                                  classes,
                                  classes,
                                  0,
                                  targets,
                                  largest.const_data_ptr<float>(),
                                  log_sums.const_data_ptr<float>(),
                                  ones.const_data_ptr<double>(),
                                  ones.const_data_ptr<double>(),
                                  zeros.const_data_ptr<double>()};
  require_launched(library.softmax_slopes(slopes, stream_of(device)), "softmax_slopes");
  const auto right_losses = shares.gather(1, places.unsqueeze(1)).squeeze(1).neg().to(torch::kFloat64);
  return at::allclose(losses.cpu(), right_losses, 1e-5) && at::allclose(x.cpu(), right, 1e-4, 1e-6);
}

gpu::AdamOptions shared_options(const auto& o, double lr) {
  return {lr, o.beta1, o.beta2, o.eps, /*l2=*/0, /*weight_decay=*/0, o.maximize};
}

}  // namespace

gpu::AdamOptions gpu_options(const AdamOptions& o, double lr) {
  auto options = shared_options(o, lr);
  options.l2 = o.weight_decay;
  return options;
}
gpu::AdamOptions gpu_options(const AdamWOptions& o, double lr) {
  auto options = shared_options(o, lr);
  options.weight_decay = o.weight_decay;
  return options;
}
gpu::LionOptions gpu_options(const LionOptions& o, double lr) {
  return {lr, o.beta1, o.beta2, o.weight_decay};
}
gpu::SGDOptions gpu_options(const SGDOptions& o, double lr) {
  return {lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize};
}

void adam_on_gpu(const gpu::Library& library, const gpu::AdamOptions& options, AdamState kept_in, std::uint64_t seed,
                 const UpdateLists& lists, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  auto tensors = tensors_of(lists);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CountedNoise noise(seed, lists.numbers[i]);
    tensors[i].noise_place = noise.place();
    tensors[i].noise_count = noise.count();
  }
  const auto count = static_cast<std::int64_t>(tensors.size());
  const auto scratch = at::empty({count * gpu::adam_scratch}, lists.parameters.front().options().dtype(torch::kByte));
  on_device_of(lists, std::move(tensors), grad_scale, found_inf, "adam",
               [&](auto* list, auto length, auto gate, auto stream) {
                 return library.adam(options, static_cast<gpu::Averages>(kept_in), list, length, gate,
                                     scratch.data_ptr(), stream);
               });
}

void lion_on_gpu(const gpu::Library& library, const gpu::LionOptions& options, const UpdateLists& lists,
                 const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  on_device_of(lists, tensors_of(lists), grad_scale, found_inf, "lion",
               [&](auto... arguments) { return library.lion(options, arguments...); });
}

void sgd_on_gpu(const gpu::Library& library, const gpu::SGDOptions& options, const UpdateLists& lists,
                const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  on_device_of(lists, tensors_of(lists), grad_scale, found_inf, "sgd",
               [&](auto... arguments) { return library.sgd(options, arguments...); });
}

Inspected inspect_on_gpu(const gpu::Library& library, const std::vector<torch::Tensor>& gradients) {
  const auto device = gradients.front().device();
  const c10::DeviceGuard guard(device);
  std::vector<torch::Tensor> kept;  // until the kernels are launched
  std::vector<gpu::Numbers> numbers;
  for (const auto& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const bool is_plain = gradient.is_non_overlapping_and_dense() && !gradient._is_zerotensor();
    const auto& plain = is_plain ? gradient : kept.emplace_back(gradient.clone(at::MemoryFormat::Contiguous));
    numbers.push_back({plain.const_data_ptr<float>(), plain.numel()});
  }
  const auto count = static_cast<std::int64_t>(numbers.size());
  const auto options = torch::dtype(torch::kFloat64).device(device);
  const auto norms = at::empty({count}, options), norm = at::empty({}, options);
  const auto scratch = at::empty({library.inspection_scratch(numbers.data(), count)}, options);
  const auto found_inf = at::empty({}, options.dtype(torch::kFloat32));
  const gpu::Inspection to{norms.data_ptr<double>(), norm.data_ptr<double>(), found_inf.data_ptr<float>(),
                           scratch.data_ptr<double>()};
  require_launched(library.inspect(numbers.data(), count, to, stream_of(device)), "inspect");
  return {found_inf, norm, norms};
}

namespace {

void round_on_gpu(const gpu::Library& library, const std::vector<HalfWeight>& weights, const gpu::Rounding& how) {
  if (weights.empty()) return;
  const auto device = weights.front().weight.device();
  const c10::DeviceGuard guard(device);
  std::vector<gpu::RoundedWeight> all;
  for (const auto& [master, weight, compensation, first] : weights) {
    const auto bits = [](const torch::Tensor& tensor) { return static_cast<std::uint16_t*>(tensor.data_ptr()); };
    all.push_back({weight.numel(), master.const_data_ptr<float>(), bits(weight),
                   compensation.defined() ? bits(compensation) : nullptr, first});
    weight.unsafeGetTensorImpl()->bump_version();
  }
  const auto count = static_cast<std::int64_t>(all.size());
  require_launched(library.round_weights(how, all.data(), count, stream_of(device)), "round_weights");
}

}  // namespace

void round_with_kahan_on_gpu(const gpu::Library& library, const std::vector<HalfWeight>& weights,
                             const torch::Tensor& skip) {
  round_on_gpu(library, weights, {.skip = skip.defined() ? skip.const_data_ptr<float>() : nullptr});
}

void round_at_random_on_gpu(const gpu::Library& library, const std::vector<HalfWeight>& weights, std::uint64_t seed,
                            std::uint64_t draw) {
  round_on_gpu(library, weights, {.is_stochastic = true, .seed = seed, .draw = draw});
}

std::string wrong_on_device(const gpu::Library& library, const c10::Device& device) {
  if (!norms_of_rows_are_right(library, device)) return "LayerNorm";
  const torch::NoGradGuard no_grad;
  for (const auto state : {AdamState::full, AdamState::bfloat16, AdamState::eight_bit}) {
    const AdamWOptions options{.state = state};
    const bool right = is_right(options, device, [&](const UpdateLists& lists, const torch::Tensor& scale) {
      adam_on_gpu(library, gpu_options(options, options.lr), state, options.seed, lists, scale, {});
    });
    if (!right) return "adamw";
  }
  const LionOptions of_lion{.weight_decay = 0.1};
  if (!is_right(of_lion, device, [&](const UpdateLists& lists, const torch::Tensor& scale) {
        lion_on_gpu(library, gpu_options(of_lion, of_lion.lr), lists, scale, {});
      })) {
    return "lion";
  }
  const SGDOptions of_sgd{.momentum = 0.9, .weight_decay = 0.1};
  if (!is_right(of_sgd, device, [&](const UpdateLists& lists, const torch::Tensor& scale) {
        sgd_on_gpu(library, gpu_options(of_sgd, of_sgd.lr), lists, scale, {});
      })) {
    return "sgd";
  }
  if (!norms_are_right(library, device)) return "norm";
  if (!roundings_are_right(library, device)) return "rounding of bfloat16 weights";
  if (!softmax_is_right(library, device)) return "cross entropy";
  return casts_are_right(library, device) ? "" : "cast to fp8";
}

}  // namespace vernier
