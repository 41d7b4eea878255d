// A copy in memory of what a run is made of, to which it can go back.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>
#include <vernier/plugin.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace vernier {

// The parts that a savepoint copies besides StepState, Counters and the random generators.
struct Scope {
  enum class Gradients { ignored, kept, copied };  // kept: the tensors stand still, and are put back by reference

  std::vector<Plugin*> plugins;  // their save()
  std::vector<torch::Tensor> buffers;
  std::vector<torch::Tensor> weights;  // copied where copies_weights; else restore() refuses if one was written
  bool copies_weights = false;
  Gradients gradients = Gradients::ignored;
  std::uint64_t copy_up_to = UINT64_MAX;  // bytes of a buffer or a plugin's tensor; larger ones are not copied
};

class Savepoint {
 public:
  // Copies the run. Reuses the memory of the last copy. `scope` must live until the savepoint is cleared.
  void take(const Run& run, const Scope& scope);
  // Makes the run what it was. Throws Error, and changes nothing, where a tensor that was not copied has been written
  // since. Plugins may keep the tensors that they load: take() again before a second restore().
  void restore(Run& run);
  bool is_unwritten() const;  // whether nothing that was not copied has been written since
  void accept(const std::vector<torch::Tensor>& put_back);  // these were written, and are what they were
  void clear();                                             // all but the memory
  bool is_taken() const { return scope_ != nullptr; }

 private:
  using Pair = std::pair<torch::Tensor, torch::Tensor>;  // live, and its copy
  struct Unwritten {
    torch::Tensor tensor;
    std::int64_t version;
    c10::Storage memory;  // which set_data() replaces, and the version stays; null where the tensor had none
  };
  static bool was_written(const Unwritten& each);
  torch::Tensor copy(const torch::Tensor& live);
  bool leave(const torch::Tensor& live, bool is_copied);
  void take_gradients(const Run& run);
  void take_plugins(const Run& run);
  void take_generators(const Run& run);
  void restore_gradients(Run& run);
  void restore_generators(const Run& run) const;

  const Scope* scope_ = nullptr;
  StepState step_;
  Counters counters_;
  at::mt19937 cpu_engine_;
  std::optional<float> cpu_float_;
  std::optional<double> cpu_double_;
  torch::Tensor device_generator_;
  std::vector<Pair> copies_;                               // buffers and weights
  std::vector<Parameter> parameters_;                      // with their gradients:
  std::vector<std::pair<torch::Tensor, Pair>> gradients_;  // of `model`; of `master`
  std::vector<std::pair<Plugin*, State>> plugins_;
  std::vector<Unwritten> unwritten_;   // what is not copied
  std::vector<torch::Tensor> memory_;  // of the copies, in their order
  std::size_t next_ = 0;               // in memory_
};

}  // namespace vernier
