// The header that a training loop of your own includes: mixed precision, optimizers, memory, diagnosis and files. It
// needs LibTorch and the standard library only, and neither TOML, plugins nor the runner. examples/own_loop shows it.
#pragma once

// Mixed precision: autocast, loss scaling, 16-bit weights, and what the device computes fast.
#include <vernier/amp_stats.h>
#include <vernier/attention.h>
#include <vernier/autocast.h>
#include <vernier/grad_scaler.h>
#include <vernier/half_weights.h>
#include <vernier/hardware.h>
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

// Memory: counting and limiting it, and recomputing activations to save it.
#include <vernier/activation_checkpoint.h>
#include <vernier/memory.h>
#include <vernier/memory_ledger.h>
#include <vernier/recompute_budget.h>

// Diagnosis: operators by layer, ranges of tensors, and the origin of inf and NaN.
#include <vernier/layers.h>
#include <vernier/non_finite_tracer.h>
#include <vernier/tensor_range.h>

// Data: datasets, their files, changes of images, batches, the order of the samples, metrics of a model's outputs.
#include <vernier/csv.h>
#include <vernier/data_loader.h>
#include <vernier/dataset.h>
#include <vernier/evaluation.h>
#include <vernier/images.h>
#include <vernier/language_data.h>
#include <vernier/numpy.h>
#include <vernier/readers.h>
#include <vernier/sampler.h>
#include <vernier/transforms.h>

// Text to tokens and back.
#include <vernier/tokenizer.h>

// State to save, and files: weights, checkpoints and checksums.
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/safetensors.h>
#include <vernier/state.h>
