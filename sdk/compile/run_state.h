// The parts of a run that a recording of forward and backward depends on or changes.
#pragma once

#include <torch/nn/module.h>
#include <vernier/host.h>
#include <vernier/random_state.h>

#include <memory>
#include <string>
#include <vector>

namespace vernier::compile {

std::vector<torch::Tensor> clones(const std::vector<torch::Tensor>& tensors);
std::vector<torch::Tensor> gradients_of(const Run& run);
void set_gradients(const Run& run, const std::vector<torch::Tensor>& gradients);
bool has_any(const std::vector<torch::Tensor>& tensors);
std::vector<const void*> addresses(const std::vector<torch::Tensor>& tensors);

// Returns whether a weight has a hook. A hook runs on the host, so a recorded graph would not call it.
bool has_hook(const torch::Tensor& weight);

// Counts the references to each gradient and to its storage, without those of the parameter.
std::vector<std::size_t> holders(const Run& run, const std::vector<torch::Tensor>& gradients);

// Returns the state of the generator of the run's device.
torch::Tensor random_of(const Run& run);

// The parts of a model that a recording depends on: the memory of weights and buffers, weights that are frozen or
// hooked, and modules that are not in training mode. As addresses, because these are compared in each step.
struct Marks {
  explicit Marks(const torch::nn::Module& model);
  std::vector<const void*> now() const;
  std::string flags() const;  // the same text without addresses, so that a resumed run gives an equal one
  std::vector<torch::Tensor> weights, buffers;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<const void*> recorded;
};

// Keeps gradients, written buffers, random generators and the micro-batch as they were when it was made.
class PutBack {
 public:
  explicit PutBack(TrainerRun& run);
  ~PutBack() { now(); }
  PutBack(PutBack&&) = delete;

  void now();
  bool has_gradients() const { return has_any(gradients_); }
  std::vector<torch::Tensor> written() const;  // the buffers that were written before the last call of now()

 private:
  struct Buffer {
    torch::Tensor live, copy;
    std::int64_t version;
    bool is_written;
  };
  TrainerRun& run_;
  Batch batch_;
  std::vector<torch::Tensor> gradients_, sums_;
  std::vector<Buffer> buffers_;
  RandomState random_;
};

}  // namespace vernier::compile
