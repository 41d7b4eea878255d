// Lion, with the bits of its kernel for the CPU (sdk/core/optim/kernels/element_kernel.h), and SGD, with those of
// LibTorch's kernel for a CPU with fused multiplication (aten/src/ATen/native/cpu/FusedSGDKernel.cpp).
#pragma once

#include "../core/gpu/library.h"
#include "elements.h"

namespace vernier::gpu {

struct LionFactors {
  float beta1, share1, beta2, share2, decay, lr;  // share: 1 - beta; decay: the weight is multiplied by it
};

struct LionRule {
  struct Loaded {
    float weight, gradient, mean;
  };
  const LionFactors& n;
  GradientScale scaled;
  float *parameter, *means;
  const float* gradient;

  VERNIER_BOTH Loaded load(std::int64_t i) const { return {parameter[i], gradient[i], means[i]}; }
  VERNIER_BOTH void update(std::int64_t i, const Loaded& it) const {
    const float g = scaled(it.gradient), way = it.mean * n.beta1 + g * n.share1;
    means[i] = it.mean * n.beta2 + g * n.share2;
    const float sign = way > 0 ? 1.0F : way < 0 ? -1.0F : way;  // 0 and NaN stay
    parameter[i] = it.weight * n.decay - n.lr * sign;
  }
};

using MomentumChunks = Chunks<Tensor, 48, 8192>;

struct Lion {
  static constexpr unsigned threads = 256;
  struct Shared {};
  MomentumChunks chunks;
  LionFactors factors;
  Gate gate;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    if (is_skipped(gate.found_inf)) return;
    const auto place = chunks.at(block.index);
    const Tensor& tensor = chunks.items[place.item];
    const LionRule rule{factors, gradient_scale(gate.grad_scale, 1.0F), tensor.parameter,
                        static_cast<float*>(tensor.state[0]), tensor.gradient};
    block.each([&](unsigned thread) { update_elements<threads>(place, thread, rule); });
  }
};

struct SGDFactors {
  float lr, momentum, share, weight_decay, sign;  // share: 1 - dampening
  bool has_momentum, nesterov, decays;
};

struct SGDRule {
  struct Loaded {
    float weight, gradient, moved;
  };
  const SGDFactors& n;
  GradientScale scaled;
  float *parameter, *buffer;
  const float* gradient;
  bool is_first;      // takes its gradient undampened
  std::int64_t last;  // from there on the order of the sum is another one

  VERNIER_BOTH Loaded load(std::int64_t i) const {
    return {parameter[i], gradient[i], n.has_momentum && !is_first ? buffer[i] : 0.0F};
  }
  VERNIER_BOTH void update(std::int64_t i, const Loaded& it) const {
    float g = scaled(it.gradient);
    if (n.decays) g = multiply_add(it.weight, n.weight_decay, g);
    if (n.has_momentum) {
      const float moved = is_first    ? g
                          : i >= last ? multiply_add(it.moved, n.momentum, g * n.share)
                                      : multiply_add(g, n.share, it.moved * n.momentum);
      buffer[i] = moved;
      g = n.nesterov ? multiply_add(moved, n.momentum, g) : moved;
    }
    parameter[i] = multiply_add(-g, n.lr, it.weight);
  }
};

struct SGD {
  static constexpr unsigned threads = 256;
  struct Shared {};
  MomentumChunks chunks;
  SGDFactors factors;
  Gate gate;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    if (is_skipped(gate.found_inf)) return;
    const auto place = chunks.at(block.index);
    const Tensor& tensor = chunks.items[place.item];
    const bool is_first = tensor.steps != nullptr && *tensor.steps <= 1;
    const SGDRule rule{factors,
                       gradient_scale(gate.grad_scale, factors.sign),
                       tensor.parameter,
                       static_cast<float*>(tensor.state[0]),
                       tensor.gradient,
                       is_first,
                       tensor.count - tensor.count % 8};
    block.each([&](unsigned thread) { update_elements<threads>(place, thread, rule); });
  }
};

}  // namespace vernier::gpu
