// The header that a plugin includes: the roles, the run and its control, and the toolkit. It needs LibTorch and the
// standard library only. The page for plugin authors is docs/write-a-plugin.md.
#pragma once

// The role that the plugin fills, the run that it sees, and its events.
#include <vernier/callback.h>
#include <vernier/event.h>
#include <vernier/plugin.h>
#include <vernier/roles.h>
#include <vernier/run.h>

// Requests to the trainer.
#include <vernier/between_steps.h>
#include <vernier/control.h>

// Options from the TOML, errors, saved state, metrics and notices.
#include <vernier/error.h>
#include <vernier/metrics.h>
#include <vernier/options.h>
#include <vernier/state.h>

// The data of an update, and the parameters that it changes.
#include <vernier/batch.h>
#include <vernier/parameter.h>

// Base class of tasks that have a model, data and a loss.
#include <vernier/supervised_task.h>

// Base class and [[precision.rule]] tables for precision policies.
#include <vernier/mixed_precision.h>
#include <vernier/precision_rules.h>

// The toolkit, which training loops of your own use as well.
#include <vernier/toolkit.h>
