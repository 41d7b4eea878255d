// The networks of task/sequence.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct Plan {
  std::string model = "lstm";  // "lstm", "gru", "transformer"
  std::int64_t width = 64, layers = 1, heads = 4;
  double dropout = 0;
  std::int64_t steps = 0, features = 0;
  std::vector<std::int64_t> output;  // shape of a sample's output
  bool has_classes = false;          // the outputs are logits
  // A forecast at the level of its window: after so many steps the series repeats itself. 0: at that of the training.
  std::int64_t season = 0;
  std::vector<std::int64_t> outputs;  // features that such a forecast predicts
};

// Calls a part of the network, perhaps once more in backward: SupervisedTask::recomputed().
using Part = std::function<torch::Tensor(const torch::Tensor&)>;
using Recomputed = std::function<torch::Tensor(const Part& part, const torch::Tensor& x)>;

class SequenceNetwork : public torch::nn::Module {
 public:
  SequenceNetwork(const Plan& plan, Recomputed recomputed);
  // Output [samples, output…] of sequences [samples, steps, features]. Both are in the units of the data.
  torch::Tensor forward(const torch::Tensor& sequences);
  // Sets, in float64, what the inputs, and outputs that are no logits, are normalized with. Shapes: [features], and one
  // that broadcasts with `output`.
  void set_norm(const torch::Tensor& input_mean, const torch::Tensor& input_std, const torch::Tensor& output_mean,
                const torch::Tensor& output_std);
  const torch::Tensor& output_mean() const { return output_mean_; }
  const torch::Tensor& output_std() const { return output_std_; }

 protected:
  virtual torch::Tensor summary(const torch::Tensor& x) = 0;  // [samples, width] of [samples, steps, features]
  void make_head(std::int64_t width);                         // the last part of the constructor
  const Recomputed& recomputed() const { return recomputed_; }

 private:
  torch::Tensor forecast(const torch::Tensor& window);
  torch::Tensor outputs_of(const torch::Tensor& unit);  // the outputs before they are scaled; unit: normalized inputs
  Plan plan_;
  Recomputed recomputed_;
  torch::Tensor input_mean_, input_std_, output_mean_, output_std_, weight_, bias_;
};

// LibTorch's default generator draws its weights.
std::shared_ptr<SequenceNetwork> make_network(const Plan& plan, Recomputed recomputed);

// The same in PyTorch, with the same names.
std::string python_source(const Plan& plan);
