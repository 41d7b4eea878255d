#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <vernier/layers.h>

#include <algorithm>

#include "interception.h"

namespace vernier {

namespace {

// A key that nothing else uses and that stands above Autocast and Autograd, so that a kernel under it sees what the
// model called, and what it calls in turn is cast and differentiated as always.
constexpr auto key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local std::vector<Link> chain;
thread_local Pass pass = Pass::plain;

}  // namespace

const std::vector<std::string>& operators() {
  static const std::vector<std::string> names = {
      // products and convolutions
      "linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "einsum", "bilinear", "conv1d",
      "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "_convolution",
      "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "embedding",
      "embedding_bag",
      // norms
      "layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm",
      // activations
      "softmax", "log_softmax", "gelu", "silu", "relu", "leaky_relu", "elu", "prelu", "tanh", "sigmoid", "softplus",
      "mish", "hardswish", "glu", "dropout",
      // pointwise and sums
      "add", "sub", "mul", "div", "exp", "log", "pow", "sqrt", "rsqrt", "sum", "mean", "prod", "cumsum", "logsumexp",
      "norm", "linalg_vector_norm", "cat", "stack", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d",
      // losses
      "cross_entropy_loss", "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
      "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "cosine_similarity", "cdist",
      // of this library (vernier/linear_cross_entropy.h)
      "linear_cross_entropy"};
  return names;
}

// Called by the kernel below; a friend of Operation.
struct Interception {
  static Operation first(const std::string& name, int id, const c10::OperatorHandle& handle) {
    Operation operation;
    operation.name_ = name;
    operation.id_ = id;
    operation.handle_ = &handle;
    return operation;
  }

  static Values ask(Operation operation, std::size_t depth, Values arguments) {
    operation.depth_ = depth;
    if (depth == chain.size()) {
      operation.handle_->callBoxed(&arguments);
      return arguments;
    }
    operation.layer_ = layer_of(*chain[depth].layers, arguments);
    return chain[depth].interceptor->call(operation, std::move(arguments));
  }

  static int layer_of(const Layers& layers, const Values& arguments) {
    for (const auto& argument : arguments) {
      if (argument.isTensor()) {
        if (const int layer = layers.find(argument.toTensor()); layer >= 0) return layer;
      } else if (argument.isTensorList()) {
        for (const at::Tensor& tensor : argument.toTensorList()) {
          if (const int layer = layers.find(tensor); layer >= 0) return layer;
        }
      }
    }
    return -1;
  }
};

namespace {

// Takes the arguments from the stack and puts the results on it, for one overload of one operator.
class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const std::string& name, int id) : name_(name), id_(id) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard below(key);
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(handle.schema().arguments().size());
    Values arguments(std::make_move_iterator(first), std::make_move_iterator(stack->end()));
    stack->erase(first, stack->end());
    for (auto& result : Interception::ask(Interception::first(name_, id_, handle), 0, std::move(arguments))) {
      stack->push_back(std::move(result));
    }
  }

 private:
  const std::string& name_;
  int id_;
};

// Once in a process, when the first guard is made: a program that makes none pays nothing.
void register_kernels() {
  static const bool registered = [] {
    static torch::Library all(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    static torch::Library aten(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    static torch::Library own(torch::Library::IMPL, "vernier", key, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFallthrough());
    std::unordered_map<std::string, int> ids;
    for (const auto& name : operators()) {
      const bool is_own = name == "linear_cross_entropy";
      ids.emplace((is_own ? "vernier::" : "aten::") + name, static_cast<int>(ids.size()));
    }
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto id = ids.find(name.name);
      const auto handle = dispatcher.findSchema(name);
      if (id == ids.end() || !handle || handle->schema().is_mutable()) continue;
      const auto overload = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      auto& library = name.name.starts_with("aten::") ? aten : own;
      library.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(
                                         operators()[static_cast<std::size_t>(id->second)], id->second)));
    }
    return true;
  }();
  (void)registered;
}

}  // namespace

Layers::Layers(const torch::nn::Module& model) {
  for (const auto& entry : model.named_parameters()) add(entry.key(), entry.value());
  refresh();
}

Layers::Layers(const Tensors& parameters) {
  for (const auto& [name, tensor] : parameters) add(name, tensor);
  refresh();
}

void Layers::add(const std::string& parameter, const torch::Tensor& tensor) {
  const auto dot = parameter.rfind('.');
  const auto name = dot == std::string::npos ? "" : parameter.substr(0, dot);
  auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) found = names_.insert(found, name);
  parameters_.push_back({tensor, static_cast<int>(found - names_.begin()), nullptr});
}

void Layers::refresh() {
  const bool is_current = std::all_of(parameters_.begin(), parameters_.end(), [](const Weight& weight) {
    return weight.tensor.storage().unsafeGetStorageImpl() == weight.storage;
  });
  if (is_current) return;
  by_storage_.clear();
  for (auto& weight : parameters_) {
    weight.storage = weight.tensor.storage().unsafeGetStorageImpl();
    by_storage_.emplace(weight.storage, weight.layer);
  }
}

int Layers::find(const torch::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto found = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  return found == by_storage_.end() ? -1 : found->second;
}

std::string_view Operation::layer() const {
  return layer_ < 0 ? std::string_view() : chain[depth_].layers->names()[static_cast<std::size_t>(layer_)];
}

Values Operation::proceed(Values arguments) const {
  return Interception::ask(*this, depth_ + 1, std::move(arguments));
}

Interceptor::~Interceptor() = default;

bool Interceptor::changes(std::string_view) const {
  return true;
}

void Interceptor::end_of_recomputation() {}

Intercept::Intercept(Layers& layers, Interceptor& interceptor) : interceptor_(&interceptor) {
  register_kernels();
  layers.refresh();
  chain.push_back({&layers, &interceptor});
  c10::impl::tls_set_dispatch_key_included(key, true);
}

// Guards that listeners hold from one event to another go in the order in which they came.
Intercept::~Intercept() {
  const auto own = [this](const Link& link) { return link.interceptor == interceptor_; };
  const auto link = std::find_if(chain.rbegin(), chain.rend(), own);
  if (link != chain.rend()) chain.erase(link.base() - 1);  // else this thread has put up another chain meanwhile
  c10::impl::tls_set_dispatch_key_included(key, !chain.empty());
}

std::vector<Link> intercepting() {
  return c10::impl::tls_is_dispatch_key_included(key) && !c10::impl::tls_is_dispatch_key_excluded(key)
             ? chain
             : std::vector<Link>();
}

bool is_changed(const torch::Tensor& weight) {
  return std::ranges::any_of(intercepting(), [&](const Link& link) {
    const int layer = link.layers->find(weight);
    return link.interceptor->changes(layer < 0 ? "" : link.layers->names()[static_cast<std::size_t>(layer)]);
  });
}

InterceptAgain::InterceptAgain(std::vector<Link> links)
    : before_(std::exchange(chain, std::move(links))), included_before_(c10::impl::tls_is_dispatch_key_included(key)) {
  c10::impl::tls_set_dispatch_key_included(key, !chain.empty());
}

InterceptAgain::~InterceptAgain() {
  for (const auto& link : chain) link.interceptor->end_of_recomputation();
  chain = std::move(before_);
  c10::impl::tls_set_dispatch_key_included(key, included_before_);
}

bool is_training_forward() {
  return torch::GradMode::is_enabled() || pass == Pass::first;
}

bool is_recomputing() {
  return pass == Pass::second;
}

PassGuard::PassGuard(Pass now) : before_(pass) {
  if (pass != Pass::second) pass = now;  // passes nested in a second forward are part of it
}

PassGuard::~PassGuard() {
  pass = before_;
}

}  // namespace vernier
