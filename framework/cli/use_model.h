// `vernier evaluate`, `vernier predict` and `vernier export`: what a trained run's model is used for. They read the
// run's folder and write nothing into it.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "wiring/host.h"

namespace vernier {

// Validates the model of a run, or of one of its checkpoints, and prints the metrics. sets: changes of the run's
// configuration, such as other data. Returns the exit code.
int evaluate_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                 const std::atomic<int>& stop);

// Reads samples from `input` and writes what the task predicts for each to `output`: CSV, NumPy or JSON Lines by its
// ending.
int predict_with_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                     const std::atomic<int>& stop, const std::string& input, const std::string& output);

// Writes the model to `output`. format: "torchscript", "safetensors" or "python".
int export_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
               const std::atomic<int>& stop, const std::string& format, const std::string& output);

}  // namespace vernier
