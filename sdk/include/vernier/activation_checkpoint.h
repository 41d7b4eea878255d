// PyTorch's torch.utils.checkpoint for C++: what backward needs is computed again there instead of being kept.
//
//   x = vernier::checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
//   x = vernier::checkpoint(vernier::Keep::matmuls, …, x);  // more memory, less work
//
// Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace vernier {

using TensorFunction = std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>;

// What is kept of a function's first call, besides its inputs: what its matrix products, convolutions and attention
// returned, so that the second call computes the cheap rest alone (norms, activation functions, dropout, sums, casts).
// PyTorch calls it selective checkpointing. Attention with dropout is computed again, for it draws numbers.
enum class Keep { inputs, matmuls };

// Calls the function without recording a graph, and once more in backward, with one. Of the first call only the inputs
// are kept, and what `keep` says. The second sees the same random numbers (CPU, and the GPU of the inputs), the same
// autocast and the same interceptors (layers.h) as the first, whatever holds where backward is called: results and
// gradients have the bits that they had without, if the function has no other memory. (A parameter that several calls
// share has its gradients added up in another order.)
//
// The function is called on the thread of backward, keeps alive what it captures, and must read tensors that change
// between the two calls from its inputs. Interceptors and their Layers must live until backward is done. Inputs may be
// undefined, outputs share no memory with them for autograd: change neither in place. Where gradients are recorded,
// floating-point outputs require them. May be nested. Exceptions of either call pass through. Once differentiable, and
// with backward() alone: torch::autograd::grad() and a graph of the gradients throw Error, for the parameters' gradients
// are added to .grad() on the way.
VERNIER_API std::vector<torch::Tensor> checkpoint_all(const TensorFunction& function,
                                                      const std::vector<torch::Tensor>& inputs,
                                                      Keep keep = Keep::inputs);

// The same for a function of tensors that returns a tensor or a vector of them.
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
