// Results of a part of forward that are kept for when it is computed again: activation checkpointing, Keep::matmuls.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <vernier/layers.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vernier {

// What matrix products, convolutions and attention returned, in the order of the calls.
class KeptResults {
 public:
  // Between the two times: `outputs` of the function may lie in the same storage as what is kept, and who changes them
  // in place is to be noticed.
  void watch(const std::vector<torch::Tensor>& outputs);
  void clear() { calls_.clear(); }

 private:
  friend class KeptResultsGuard;
  struct Call {
    c10::OperatorHandle op;
    Values results;                       // none where one was changed in place
    std::vector<std::uint32_t> versions;  // of its tensors, when the first time was over
    bool is_valid() const;
  };
  std::vector<Call> calls_;
};

// While it lives, on this thread: the first time results are kept, the second time they are the answers, and no kernel
// is called. What was changed in place meanwhile, and what comes after a call that differs from the first time's, is
// computed. Autograd stands above: graph and formulas are those that the operators have.
class KeptResultsGuard {
 public:
  enum class Time { first, second };
  KeptResultsGuard(KeptResults& kept, Time time);
  ~KeptResultsGuard();
  KeptResultsGuard(const KeptResultsGuard&) = delete;
  KeptResultsGuard& operator=(const KeptResultsGuard&) = delete;

  // For the kernels, in which `guard` may be nullptr. Takes the arguments from the stack and puts the results on it.
  static void call(KeptResultsGuard* guard, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   torch::jit::Stack& stack);
  static void forget(KeptResultsGuard* guard, const torch::Tensor& changed);

 private:
  void keep(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack);
  bool answer(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  KeptResults& kept_;
  Time time_;
  std::size_t next_ = 0;  // the second time, of the calls
  KeptResultsGuard* before_;
  KeptResultsGuard* outer_;  // answers what is kept here: a checkpoint within one, which is computed again
  bool included_before_;
};

}  // namespace vernier
