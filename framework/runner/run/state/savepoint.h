// A copy in memory of what a run is made of, to which it can go back.
#pragma once

#include <torch/types.h>
#include <vernier/host.h>
#include <vernier/plugin.h>
#include <vernier/random_state.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace vernier {

// The parts that a savepoint copies besides StepState, Counters and the random generators.
struct Scope {
  std::vector<Plugin*> plugins;  // their save()
  std::vector<torch::Tensor> buffers;
  std::vector<torch::Tensor> weights;     // not copied: restore() refuses if one was written
  bool keeps_gradients = false;           // the tensors are not copied, and are put back by reference
  std::uint64_t copy_up_to = UINT64_MAX;  // bytes of a buffer or a plugin's tensor; larger ones are not copied
};

class Savepoint {
 public:
  // Copies the run. Reuses the memory of the last copy. `scope` must live until the savepoint is cleared.
  void take(const TrainerRun& run, const Scope& scope);
  // Makes the run what it was. Throws Error, and changes nothing, where a tensor that was not copied has been written
  // since. Plugins may keep the tensors that they load: take() again before a second restore().
  void restore(TrainerRun& run);
  void restore_copies();                                    // restores buffers alone
  void accept(const std::vector<torch::Tensor>& put_back);  // these were written, and are what they were
  void clear();                                             // all but the memory
  bool is_taken() const { return scope_ != nullptr; }
  bool is_unwritten() const { return std::ranges::none_of(unwritten_, was_written); }  // uncopied tensors are unchanged

 private:
  struct Unwritten {
    torch::Tensor tensor;
    std::int64_t version;
    c10::Storage memory;  // set_data() replaces it, and the version stays; null if the tensor had none
  };
  static Unwritten now(const torch::Tensor& tensor);
  static bool was_written(const Unwritten& each);
  torch::Tensor copy(const torch::Tensor& live);
  bool leave(const torch::Tensor& live, bool is_copied);
  const Scope* scope_ = nullptr;
  StepState step_;
  Counters counters_;
  RandomState random_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies_;     // live buffers, and their copies
  std::vector<Parameter> parameters_;                               // with their gradients:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> gradients_;  // copies of the gradients of `model` and `master`
  std::vector<std::pair<Plugin*, State>> plugins_;
  std::vector<Unwritten> unwritten_;   // tensors that are not copied
  std::vector<torch::Tensor> memory_;  // memory of the copies, in their order
  std::size_t next_ = 0;               // index in memory_
};

}  // namespace vernier
