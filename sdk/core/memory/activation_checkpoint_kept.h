// The results that activation checkpointing with Keep::matmuls keeps for the recomputation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>
#include <vernier/layers.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vernier {

// The results of matrix products, convolutions and attention, in the order of the calls.
class KeptResults {
 public:
  // Call it between the two calls of the function. An output may share storage with a kept result; after this, in-place
  // changes of the output are noticed.
  void watch(const std::vector<torch::Tensor>& outputs);

 private:
  friend class KeptResultsGuard;
  struct Call {
    c10::OperatorHandle op;
    Values results;                       // empty if one was changed in place
    std::vector<std::uint32_t> versions;  // versions of its tensors after the first call
    bool is_valid() const;
  };
  std::vector<Call> calls_;
};

// While it lives, on this thread: the first time it keeps results, the second time it returns them instead of calling
// kernels. It recomputes results that were changed in place, and everything after a call that differs from the first
// time. It works below autograd, so the operators' graph and derivatives are unchanged.
class KeptResultsGuard {
 public:
  enum class Time { first, second };
  KeptResultsGuard(KeptResults& kept, Time time);
  ~KeptResultsGuard();
  KeptResultsGuard(const KeptResultsGuard&) = delete;
  KeptResultsGuard& operator=(const KeptResultsGuard&) = delete;

  // For the kernels; `guard` may be nullptr. Takes the arguments from the stack and puts the results on it.
  static void call(KeptResultsGuard* guard, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   torch::jit::Stack& stack);
  static void forget(KeptResultsGuard* guard, const torch::Tensor& changed);

 private:
  void keep(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack);
  bool answer(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  KeptResults& kept_;
  Time time_;
  std::size_t next_ = 0;  // the second time: index of the next call
  KeptResultsGuard* before_;
  KeptResultsGuard* outer_;  // guard of the enclosing checkpoint, whose recomputation includes this one
  bool included_before_;
};

}  // namespace vernier
