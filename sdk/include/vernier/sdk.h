// All that a plugin may include. Needs LibTorch and the standard library, nothing else.
#pragma once

#include <vernier/activation_checkpoint.h>
#include <vernier/amp_stats.h>
#include <vernier/autocast.h>
#include <vernier/capsule.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/copy.h>
#include <vernier/error.h>
#include <vernier/float8_linear.h>
#include <vernier/grad_norm.h>
#include <vernier/grad_scaler.h>
#include <vernier/half_weights.h>
#include <vernier/hardware.h>
#include <vernier/loss_scale.h>
#include <vernier/memory.h>
#include <vernier/optim.h>
#include <vernier/recompute_budget.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>
#include <vernier/sampler.h>
