#include <vernier/error.h>

#include "torchscript.h"

namespace vernier {

void save_torchscript(const std::string&, torch::nn::Module&, SupervisedTask&, torch::Device) {
  refuse("this Vernier was built without TorchScript (-DVERNIER_TORCHSCRIPT=OFF); export to pt2 or onnx");
}

}  // namespace vernier
