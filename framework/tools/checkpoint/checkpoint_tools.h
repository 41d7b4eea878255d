// `vernier checkpoint`: lists, verifies and shows checkpoints, and moves weights in and out, without a run.
#pragma once

#include "common/verb.h"

namespace vernier {

Verb checkpoint_verb();

}  // namespace vernier
