// A process group, as in torch.distributed: collectives of c10d with Gloo or NCCL.
#pragma once

#include <vernier/tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous.h"

namespace ddp {

// One thread at a time: the main one, or autograd's while that waits. All ranks call the same functions in the same
// order. Each throws vernier::Error if a rank does not answer within the timeout, or at once if its connection breaks;
// the text names the rank. No function may be called after that.
class Group {
 public:
  // Waits until all ranks are there. Throws vernier::Error::Kind::configuration if ranks disagree about their number,
  // or if a rank is there twice. is_stopping: asked while it waits; returns an empty pointer if it says yes.
  static std::unique_ptr<Group> join(const Rendezvous& rendezvous, const std::function<bool()>& is_stopping);
  ~Group();

  // Begins to sum each tensor over all ranks, in place; contiguous, all on the CPU or all on the rank's GPU, of equal
  // shapes and dtypes on all ranks. The function that it returns waits until they are summed. is_read: false if
  // this rank adds its tensors and does not need the sums; what its tensors then hold is not defined.
  std::function<void()> sum(const std::vector<torch::Tensor>& tensors, bool is_read = true);
  // of_ranks[r]: values of rank r, which replace those of the others. Tensors that have fewer bytes than
  // `bucket_bytes` are sent together.
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks, std::int64_t bucket_bytes);
  std::vector<std::string> gather(const std::string& bytes);
  // Lets the functional collectives of c10d run over the same connections, on the CPU, as the group "0": that of all
  // ranks. Until the end of this object.
  void register_collectives();
  // True if the ranks share memory of one machine; the same on all ranks.
  bool shares_memory() const;
  // Empty if tensors on GPUs are sent by NCCL, or if the ranks train on the CPU. Else the reason why they are copied to
  // the CPU instead.
  const std::string& why_without_nccl() const;

 private:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  std::function<void()> sum_copies(const std::vector<torch::Tensor>& tensors);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
