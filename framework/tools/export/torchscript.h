// A model as a TorchScript file, which LibTorch and PyTorch load without Vernier.
#pragma once

#include <vernier/data/supervised_task.h>

#include <string>

namespace vernier {

// Traces the task's forward() on its training samples, without autocast, and writes the result. The file's forward()
// takes the tensors of a batch without the target. It is loaded again and compared on a batch of another size; throws
// Error if its outputs differ. Called within an evaluation.
void save_torchscript(const std::string& file, torch::nn::Module& model, SupervisedTask& task, torch::Device device);

}  // namespace vernier
