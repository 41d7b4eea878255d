// PyTorch's torch.utils.checkpoint for C++: backward recomputes activations instead of reading them from memory.
//
//   x = vernier::checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
//   x = vernier::checkpoint(vernier::Keep::matmuls, …, x);  // more memory, less computation
//
// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace vernier {

using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

// Selects what is kept from a function's first call.
//   inputs   Only its inputs.
//   matmuls  Its inputs and the results of its matrix products, convolutions and attention. The second call computes
//            only the cheap operations: norms, activation functions, dropout, sums, casts. PyTorch calls this selective
//            checkpointing. Attention with dropout is recomputed, because it draws random numbers.
enum class Keep { inputs, matmuls };

// Calls the function without recording a graph, and again in backward with a graph. `keep` selects what is kept from
// the first call. The second call sees the same random numbers (CPU, and the GPU of the inputs), autocast and
// interceptors (layers.h) as the first one. So results and gradients have the same bits as without checkpointing, if
// the function has no state of its own. Only a parameter that several calls share has its gradients summed in another
// order.
//
// The second call runs on the thread of backward. The graph keeps the function and its captures alive. Pass tensors
// that change between the two calls as inputs. Interceptors and their Layers must live until backward is done. Inputs
// may be undefined. Do not change inputs or outputs in place: autograd treats them as separate memory. Floating-point
// outputs require gradients wherever gradients are recorded. Calls may be nested. Exceptions of either call pass
// through. Only first derivatives with backward() are supported, because the second call adds to the parameters'
// .grad(). torch::autograd::grad() and create_graph throw Error.
VERNIER_API std::vector<torch::Tensor> checkpoint_all(const TensorFunction& function,
                                                      const std::vector<torch::Tensor>& inputs,
                                                      Keep keep = Keep::inputs);

// The same for a function of tensors that returns one tensor or a vector of tensors.
template <class Function, class... Inputs>
auto checkpoint(Keep keep, Function function, const Inputs&... inputs) {
  using Result = std::invoke_result_t<Function&, const Inputs&...>;
  constexpr bool is_one = std::is_same_v<Result, torch::Tensor>;
  static_assert((std::is_same_v<Inputs, torch::Tensor> && ...), "inputs are tensors; capture the rest");
  const auto on_list = [function]<std::size_t... I>(std::index_sequence<I...>) {
    return TensorFunction([function](const std::vector<torch::Tensor>& list) mutable {
      if constexpr (is_one) {
        return std::vector<torch::Tensor>{function(list[I]...)};
      } else {
        return function(list[I]...);
      }
    });
  };
  auto results = checkpoint_all(on_list(std::index_sequence_for<Inputs...>()), {inputs...}, keep);
  if constexpr (is_one) {
    return results.front();
  } else {
    return results;
  }
}

template <class Function, class... Inputs>
auto checkpoint(Function function, const Inputs&... inputs) {
  return checkpoint(Keep::inputs, std::move(function), inputs...);
}

}  // namespace vernier
