// The plugin contract: what every plugin includes. It needs LibTorch and the standard library only. The tools for
// tasks, policies and loops are headers of the toolkit, included one by one. docs/guides/write-a-plugin.md is the page
// for authors.
#pragma once

// The role that the plugin fills, the run that it sees, and its events.
#include <vernier/callback.h>
#include <vernier/distributed.h>
#include <vernier/event.h>
#include <vernier/model_adapter.h>
#include <vernier/plugin.h>
#include <vernier/roles.h>
#include <vernier/run.h>
#include <vernier/task.h>

// Requests to the trainer.
#include <vernier/between_steps.h>
#include <vernier/control.h>

// Options from the TOML, errors, saved state, metrics and notices.
#include <vernier/amp_stats.h>
#include <vernier/error.h>
#include <vernier/metrics.h>
#include <vernier/options.h>
#include <vernier/state.h>

// The data of an update, and the parameters that it changes.
#include <vernier/batch.h>
#include <vernier/parameter.h>
