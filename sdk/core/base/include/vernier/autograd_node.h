// Differences between the versions of LibTorch that Vernier builds with.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace vernier {

// Makes a node of autograd's graph, owned as the graph owns it: by a std::shared_ptr in LibTorch 2.11, by an
// intrusive_ptr in 2.15. deleteNode(), found by its argument, frees long graphs without recursion.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  using Owner = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Owner, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace vernier
