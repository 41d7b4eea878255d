// The gradients of functional collectives, which torch.distributed registers in Python alone: the adjoints of linear
// maps of what all ranks have. Without them LibTorch goes on with other gradients, and warns.
#include "collectives.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>

#include <array>

namespace graph {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using vernier::draft::ModelParts;
using Gradients = torch::autograd::variable_list;

namespace {

const std::string space = "_c10d_functional", sum = "sum";

template <class... Arguments>
Tensor call(const char* name, const Tensor& input, Arguments... arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((space + "::" + name).c_str(), "");
  return op.typed<Tensor(const Tensor&, Arguments...)>().call(input, std::move(arguments)...);
}

Tensor waited(const Tensor& tensor) {
  return call("wait_tensor", tensor);
}

// Each takes as many arguments behind the tensor as its operator, and waits: a graph may read the result before its own
// wait_tensor. Backward calls operators with gradients again.
struct AllReduce : Function<AllReduce> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const std::string& op,
                        const std::string& group) {
    context->saved_data["group"] = group;
    const at::AutoDispatchBelowAutograd below;
    return waited(call("all_reduce", input, op, group));
  }
  static Gradients backward(AutogradContext* context, const Gradients& gradients) {
    return {
        waited(call("all_reduce", gradients[0].contiguous(), sum, context->saved_data["group"].toStringRef())), {}, {}};
  }
};

struct AllGather : Function<AllGather> {
  static Tensor forward(AutogradContext* context, const Tensor& input, std::int64_t ranks, const std::string& group) {
    context->saved_data["ranks"] = ranks;
    context->saved_data["group"] = group;
    const at::AutoDispatchBelowAutograd below;
    return waited(call("all_gather_into_tensor", input.contiguous(), ranks, group));
  }
  static Gradients backward(AutogradContext* context, const Gradients& gradients) {
    return {waited(call("reduce_scatter_tensor", gradients[0].contiguous(), sum, context->saved_data["ranks"].toInt(),
                        context->saved_data["group"].toStringRef())),
            {},
            {}};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const std::string& op, std::int64_t ranks,
                        const std::string& group) {
    context->saved_data["ranks"] = ranks;
    context->saved_data["group"] = group;
    const at::AutoDispatchBelowAutograd below;
    return waited(call("reduce_scatter_tensor", input.contiguous(), op, ranks, group));
  }
  static Gradients backward(AutogradContext* context, const Gradients& gradients) {
    return {waited(call("all_gather_into_tensor", gradients[0].contiguous(), context->saved_data["ranks"].toInt(),
                        context->saved_data["group"].toStringRef())),
            {},
            {},
            {}};
  }
};

// Gloo copies into the tensor while it waits, which autograd must not see.
struct Wait : Function<Wait> {
  static Tensor forward(AutogradContext*, const Tensor& tensor) {
    const at::AutoDispatchBelowAutograd below;
    return waited(tensor);
  }
  static Gradients backward(AutogradContext*, const Gradients& gradients) { return gradients; }
};

Tensor all_reduce(const Tensor& input, std::string op, std::string group) {
  return AllReduce::apply(input, op, group);
}
Tensor wait(const Tensor& tensor) {
  return Wait::apply(tensor);
}
Tensor all_gather(const Tensor& input, std::int64_t ranks, std::string group) {
  return AllGather::apply(input, ranks, group);
}
Tensor reduce_scatter(const Tensor& input, std::string op, std::int64_t ranks, std::string group) {
  return ReduceScatter::apply(input, op, ranks, group);
}

}  // namespace

TORCH_LIBRARY_IMPL(_c10d_functional, Autograd, library) {
  library.impl("all_reduce", &all_reduce);
  library.impl("all_gather_into_tensor", &all_gather);
  library.impl("reduce_scatter_tensor", &reduce_scatter);
  library.impl("wait_tensor", &wait);
}

bool is_collective(const std::string& target) {
  constexpr std::array known = {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor"};
  return std::ranges::any_of(known, [&](const char* one) { return target == space + "." + one + ".default"; });
}

std::string trouble_with_collective(const std::map<std::string, c10::IValue>& constants) {
  const auto* parts = ModelParts::current();
  if (parts == nullptr) {
    return "is of several ranks that hold one model together; train it by vernier launch -n RANKS run.toml, with "
           "[distributed] use = \"model_parallel\"";
  }
  for (const auto& [name, value] : constants) {
    if (name == "reduce_op" && value != c10::IValue(sum)) {
      return "takes the \"" + value.toStringRef() +
             "\" of the ranks, which has no gradient here; take the \"sum\", and divide it for a mean";
    }
    if (name == "group_name" && value != c10::IValue("0")) {
      return "is of the group \"" + value.toStringRef() +
             "\", and a run has the group \"0\", that of all ranks; export the model with the default process group";
    }
    if (name == "group_size" && value != c10::IValue(parts->ranks())) {
      return c10::str("is of ", value.toInt(), " ranks, and the run has ", parts->ranks());
    }
  }
  return "";
}

void check_collective(const Call& call) {
  const auto* parts = ModelParts::current();
  if (parts == nullptr || !call.schema.argumentIndexWithName("group_size")) return;
  const auto& input = call["input"].toTensor();
  const bool scatters = call.schema.argumentIndexWithName("reduce_op").has_value();
  if (input.dim() > 0 && (!scatters || input.size(0) % parts->ranks() == 0)) return;
  vernier::refuse(c10::str("gets a tensor of the shape ", input.sizes(), ", whose first dimension cannot be ",
                           scatters ? "divided among " : "put together from ", parts->ranks(), " ranks"));
}

}  // namespace graph
