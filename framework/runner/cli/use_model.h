// `vernier evaluate`, `vernier predict` and `vernier export`: what a trained run's model is used for. They read the
// run's folder and write nothing into it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "run/prepared.h"
#include "wiring/host.h"

namespace vernier {

// Returns the run with the weights of its newest checkpoint, or of the one at `path`. Data and model are made anew,
// with `sets` changed in the configuration. allow_other_data: the run's data need not be those that it was trained
// with.
std::unique_ptr<Prepared> load_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                                   const std::atomic<int>& stop, bool allow_other_data = false);

// Validates the model of a run, or of one of its checkpoints, and prints the metrics. sets: changes of the run's
// configuration, such as other data. Returns the exit code.
int evaluate_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                 const std::atomic<int>& stop);

// Reads samples from `input` and writes what the task predicts for each to `output`: CSV, NumPy or JSON Lines by its
// ending.
int predict_with_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                     const std::atomic<int>& stop, const std::string& input, const std::string& output);

// Writes the model to `output`. format: "torchscript", "safetensors", "python", "huggingface" for a published model, or
// "peft" for what an adapter added to one. Other formats than that have the adapter merged into the weights.
int export_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
               const std::atomic<int>& stop, const std::string& format, const std::string& output);

}  // namespace vernier
