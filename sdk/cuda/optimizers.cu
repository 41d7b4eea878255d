// The optimizers of the library. Also compiled for the host (host_library.cpp).
#include "functions.h"

#include "adam.h"
#include "momentum.h"

namespace vernier::gpu {

namespace {

static_assert(sizeof(AdamStep) == adam_scratch);
static_assert(sizeof(AdamInCodes) <= 4096 && sizeof(SGD) <= 4096, "arguments of a kernel");

#if defined(__CUDACC__)
__constant__ CodeTable tables_on_device[2] = {code_table(true), code_table(false)};
const CodeTable* code_tables() {
  void* address = nullptr;
  return cudaGetSymbolAddress(&address, tables_on_device) == cudaSuccess ? static_cast<const CodeTable*>(address)
                                                                         : nullptr;
}
#else
constexpr CodeTable tables_on_host[2] = {code_table(true), code_table(false)};
const CodeTable* code_tables() {
  return tables_on_host;
}
#endif

AdamFactors factors_of(const AdamOptions& o) {
  AdamFactors factors{};
  factors.sign = o.maximize ? -1.0F : 1.0F;
  factors.l2 = static_cast<float>(o.l2);
  factors.decay = static_cast<float>(std::fma(-o.lr, o.weight_decay, 1.0));
  factors.mean_share = static_cast<float>(1 - o.beta1);
  factors.beta2 = static_cast<float>(o.beta2);
  factors.square_share = static_cast<float>(1 - o.beta2);
  factors.eps = static_cast<float>(o.eps);
  factors.adds_l2 = factors.l2 != 0;
  return factors;
}

Trouble prepare(const AdamOptions& o, const Tensor* tensors, std::int64_t count, AdamStep* to, Stream stream) {
  constexpr unsigned most = 256;
  for (std::int64_t start = 0; start < count; start += most) {
    AdamPreparation<most> kernel{};
    kernel.lr = o.lr;
    kernel.beta1 = o.beta1;
    kernel.beta2 = o.beta2;
    kernel.count = static_cast<std::int32_t>(least(most, count - start));
    kernel.to = to + start;
    for (std::int32_t i = 0; i < kernel.count; ++i) {
      kernel.steps[i] = tensors[start + i].steps;
      kernel.noise[i] = tensors[start + i].noise_count;
    }
    const auto trouble = launch(kernel, (kernel.count + kernel.threads - 1) / kernel.threads, stream);
    if (trouble != nullptr) return trouble;
  }
  return nullptr;
}

template <class Kernel, class Fill>
Trouble update(const Tensor* tensors, std::int64_t count, Stream stream, const Fill& fill) {
  return in_launches<Tensor, 48, 8192>(tensors, count, [&](const auto& chunks, auto blocks, auto start) {
    Kernel kernel{};
    kernel.chunks = chunks;
    fill(kernel, start);
    return launch(kernel, blocks, stream);
  });
}

}  // namespace

Trouble adam(const AdamOptions& options, Averages averages, const Tensor* tensors, std::int64_t count, Gate gate,
             void* scratch, Stream stream) {
  auto* const steps = static_cast<AdamStep*>(scratch);
  if (const auto trouble = prepare(options, tensors, count, steps, stream); trouble != nullptr) return trouble;
  const auto factors = factors_of(options);
  const auto fill = [&](auto& kernel, std::int64_t start) {
    kernel.factors = factors;
    kernel.steps = steps + start;
    kernel.gate = gate;
  };
  if (averages == Averages::full) return update<Adam<InFloat32>>(tensors, count, stream, fill);
  if (averages == Averages::bfloat16) return update<Adam<InBfloat16>>(tensors, count, stream, fill);
  const auto* const tables = code_tables();
  if (tables == nullptr) return "the tables of 8-bit codes are not on the device";
  return update<AdamInCodes>(tensors, count, stream, [&](auto& kernel, std::int64_t start) {
    fill(kernel, start);
    kernel.tables = tables;
  });
}

Trouble lion(const LionOptions& o, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream) {
  const LionFactors factors{static_cast<float>(o.beta1),
                            static_cast<float>(1 - o.beta1),
                            static_cast<float>(o.beta2),
                            static_cast<float>(1 - o.beta2),
                            static_cast<float>(1 - o.lr * o.weight_decay),
                            static_cast<float>(o.lr)};
  return update<Lion>(tensors, count, stream, [&](auto& kernel, std::int64_t) {
    kernel.factors = factors;
    kernel.gate = gate;
  });
}

Trouble sgd(const SGDOptions& o, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream) {
  const SGDFactors factors{static_cast<float>(o.lr),
                           static_cast<float>(o.momentum),
                           static_cast<float>(1 - o.dampening),
                           static_cast<float>(o.weight_decay),
                           o.maximize ? -1.0F : 1.0F,
                           o.momentum != 0,
                           o.nesterov,
                           o.weight_decay != 0};
  return update<SGD>(tensors, count, stream, [&](auto& kernel, std::int64_t) {
    kernel.factors = factors;
    kernel.gate = gate;
  });
}

}  // namespace vernier::gpu
