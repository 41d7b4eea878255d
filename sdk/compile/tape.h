// A tape of the operators that a piece of work calls below autograd, and a watch over what no recording can repeat.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <vernier/abi.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace vernier {

// The operators that a piece of work calls below autograd, with their arguments and results. The tape holds the memory
// of all arguments and results, so equal storages are one memory. What does not pass LibTorch's dispatcher is not on
// the tape. Main thread only, and backward passes that it starts.
class VERNIER_API Tape {
 public:
  using Values = std::vector<c10::IValue>;
  struct Call {
    c10::OperatorHandle op;
    Values arguments, results;  // tensors are aliases, whose sizes and strides no later operator in place changes
  };

  // Calls work, and adds the operators that it calls. Throws what work throws, or Error if they make more than a
  // gibibyte, all of which the tape holds; the tape is then of no use.
  void record(const std::function<void()>& work);
  const std::vector<Call>& calls() const { return calls_; }
  std::vector<Call> take() { return std::move(calls_); }

  // Calls the operator again, on the same memory: results have the memory of the recording. Numbers of the host are
  // those of the recording, and random operators draw new numbers.
  static void repeat(const Call& call);

 private:
  static void note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Values* stack);
  static Tape* recording;
  std::vector<Call> calls_;
  std::size_t bytes_ = 0;  // the memory that the operators have made
};

// While it lives, it looks at the operators of this thread and of its backward passes. One lives at a time.
class VERNIER_API Watch {
 public:
  Watch();
  ~Watch();
  Watch(Watch&&) = delete;

  const std::string& trouble() const { return trouble_; }  // why a recording cannot repeat the operators; "" if it can
  std::vector<c10::Storage> read() const;                  // storages that existed before the first operator

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext*);
  void look_at_copy(c10::ArrayRef<const c10::IValue> inputs);

  static Watch* current;
  at::CallbackHandle handle_;
  std::string trouble_;
  std::map<const void*, c10::Storage> read_;
  std::unordered_set<const void*> made_;
};

// Returns what identifies the memory of a tensor; null if it has none.
VERNIER_API const void* memory_of(const at::Tensor& tensor);

// Calls look(tensor) for each tensor of the values, lists of tensors included.
VERNIER_API void each_tensor(c10::ArrayRef<c10::IValue> values, const std::function<void(const at::Tensor&)>& look);

}  // namespace vernier
