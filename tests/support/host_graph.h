// A graph of the CPU, for tests of what a GPU records: it notes each operator below autograd with its arguments, and
// repeats them on the same memory. As in a CUDA graph, numbers of the host are those of the recording, random operators
// draw new ones, and what does not pass LibTorch's dispatcher is not repeated.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpu/device_graph.h"

class HostGraph final : public vernier::DeviceGraph {
 public:
  static inline int made = 0, replays = 0;

  // Forgets the counts.
  static vernier::MakeDeviceGraph maker() {
    made = replays = 0;
    return [] {
      made += 1;
      return std::make_unique<HostGraph>();
    };
  }

  void capture(const std::function<void()>& work) override {
    static auto* const library = [] {
      auto* all = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
      all->fallback(torch::CppFunction::makeFromBoxedFunction<&note>());
      return all;
    }();
    (void)library;
    const c10::impl::IncludeDispatchKeyGuard noted(key);
    recording_ = this;
    try {
      work();
    } catch (...) {
      recording_ = nullptr;
      throw;
    }
    recording_ = nullptr;
  }

  void replay() override {
    replays += 1;
    const at::AutoDispatchBelowAutograd no_graph;
    const c10::impl::ExcludeDispatchKeyGuard no_interceptors(c10::DispatchKey::TESTING_ONLY_GenericMode);
    for (const auto& call : calls_) {
      Values stack = aliases(call.arguments);
      call.op.callBoxed(stack);
      for (std::size_t i = 0; i < stack.size(); ++i) put(stack[i], call.results[i]);
    }
  }

 private:
  // A key below autograd that nothing else uses in a process without recomputed activations.
  static constexpr auto key = c10::DispatchKey::Fake;
  using Values = std::vector<c10::IValue>;
  struct Call {
    c10::OperatorHandle op;
    Values arguments, results;
  };

  static void note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Values* stack) {
    const c10::impl::ExcludeDispatchKeyGuard inner(key);
    const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    auto arguments = aliases({stack->end() - count, stack->end()});
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    if (recording_ == nullptr) return;
    recording_->calls_.push_back({op, std::move(arguments), aliases({stack->end() - results, stack->end()})});
  }

  // The same memory, whose sizes and strides no later operator in place changes.
  static Values aliases(Values values) {
    const auto alias = [](const torch::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      return torch::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(/*version_counter=*/0, false));
    };
    for (auto& value : values) {
      if (value.isTensor()) {
        value = alias(value.toTensor());
      } else if (value.isTensorList()) {
        auto all = value.toTensorVector();
        for (auto& tensor : all) tensor = alias(tensor);
        value = all;
      }
    }
    return values;
  }

  // Results have the memory of the recording. A view has it already.
  static void put(const c10::IValue& now, const c10::IValue& recorded) {
    if (now.isTensorList()) {
      const auto all = now.toTensorVector(), memory = recorded.toTensorVector();
      for (std::size_t i = 0; i < all.size(); ++i) put(all[i], memory[i]);
    } else if (now.isTensor() && now.toTensor().defined()) {
      const auto &tensor = now.toTensor(), &memory = recorded.toTensor();
      if (tensor.const_data_ptr() != memory.const_data_ptr()) memory.copy_(tensor);
    }
  }

  static inline HostGraph* recording_ = nullptr;
  std::vector<Call> calls_;
};
