// The toolkit for training loops of your own: mixed precision, optimizers, memory, diagnosis, files. It needs LibTorch
// and the standard library only, and neither TOML, plugins nor the runner. examples/own_loop shows it. Headers for
// authors of plugins are included one by one: mixed_precision.h, precision_rules.h, unscale.h, capsule.h,
// checkpoint_split.h, culprit.h, step_result.h, task_options.h. So are those of packs: data/, text/, graph/, lab/.
#pragma once

// Mixed precision: autocast, loss scaling, 16-bit weights, and what the device computes fast.
#include <vernier/add_norm.h>
#include <vernier/amp_stats.h>
#include <vernier/attention.h>
#include <vernier/autocast.h>
#include <vernier/grad_scaler.h>
#include <vernier/half_weights.h>
#include <vernier/hardware.h>
#include <vernier/linear_cross_entropy.h>
#include <vernier/loss_scale.h>

// Faster products and element-wise kernels on a CPU.
#include <vernier/fused_kernels.h>
#include <vernier/matmul.h>

// fp8: quantization, and linear layers that compute in it.
#include <vernier/float8.h>
#include <vernier/float8_linear.h>

// Optimizers that fuse an update into one pass, micro-batches, gradient norms and clipping, the average of the weights.
#include <vernier/accumulator.h>
#include <vernier/ema.h>
#include <vernier/grad_norm.h>
#include <vernier/optim.h>
#include <vernier/optim_options.h>
#include <vernier/optim_tensor_options.h>
#include <vernier/schedule.h>

// Memory: counting and limiting it, and recomputing activations to save it.
#include <vernier/activation_checkpoint.h>
#include <vernier/memory.h>
#include <vernier/memory_ledger.h>
#include <vernier/recompute_budget.h>

// Diagnosis: operators by layer, ranges of tensors, and the origin of inf and NaN.
#include <vernier/amp_compatibility.h>
#include <vernier/layers.h>
#include <vernier/linear_call.h>
#include <vernier/non_finite_tracer.h>
#include <vernier/tensor_range.h>

// The order of the samples.
#include <vernier/sampler.h>

// State to save, and files: weights, checkpoints and checksums, files that a user names, folders.
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/copy.h>
#include <vernier/data_file.h>
#include <vernier/folders.h>
#include <vernier/safetensors.h>
#include <vernier/state.h>
#include <vernier/whole_file.h>
