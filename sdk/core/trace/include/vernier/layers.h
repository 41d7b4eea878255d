// Intercepts the operators of a model, by the layer whose weight they use. It works for torch::nn, your own modules and
// TorchScript, because all of them call operators through LibTorch's dispatcher.
//
//   struct Count final : vernier::Interceptor {
//     vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
//       ++calls[std::string(operation.layer())];
//       return operation.proceed(std::move(arguments));
//     } … } count;
//   vernier::Layers layers(*model);
//   { vernier::Intercept intercept(layers, count); loss = criterion(model->forward(input), target); }  // not backward
#pragma once

#include <vernier/state.h>
#include <vernier/tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace c10 {
struct IValue;  // <ATen/core/ivalue.h>
class OperatorHandle;
}  // namespace c10
namespace vernier {

using Values = std::vector<c10::IValue>;

// The layers of a model: "h.0.mlp.c_fc.weight" is a weight of the layer "h.0.mlp.c_fc".
class VERNIER_API Layers {
 public:
  Layers() = default;
  explicit Layers(const torch::nn::Module& model);
  explicit Layers(const Tensors& parameters);  // by dotted name, as torch::jit::Module::named_parameters() gives

  // Each layer once, in the order of the parameters. A weight that two layers share belongs to the first.
  const std::vector<std::string>& names() const { return names_; }
  // The index in names() of the layer whose parameter shares storage with the tensor, or -1.
  int find(const torch::Tensor& tensor) const;
  // Looks up the parameters' storage again. Every Intercept calls it, because set_data() changes the storage.
  void refresh();

 private:
  void add(const std::string& parameter, const torch::Tensor& tensor);
  struct Weight {
    torch::Tensor tensor;
    int layer;
    const c10::StorageImpl* storage;
  };
  std::vector<std::string> names_;
  std::vector<Weight> parameters_;
  std::unordered_map<const c10::StorageImpl*, int> by_storage_;
};

// One call of an operator. Valid within Interceptor::call.
class VERNIER_API Operation {
 public:
  std::string_view name() const { return name_; }                 // "linear", one of operators()
  int id() const { return id_; }                                  // its index in operators()
  std::string_view layer() const;                                 // the layer whose weight is an argument, or ""
  int layer_index() const { return layer_; }                      // in Layers::names(), or -1
  const c10::OperatorHandle& handle() const { return *handle_; }  // may be copied and called later
  // Calls the next interceptor, or the kernel after the last one. Takes all arguments of the schema in order and
  // returns the results. May be called several times or not at all.
  Values proceed(Values arguments) const;

 private:
  friend struct Interception;
  std::string_view name_;
  int id_ = 0, layer_ = -1;
  std::size_t depth_ = 0;
  const c10::OperatorHandle* handle_ = nullptr;
};

class VERNIER_API Interceptor {
 public:
  virtual ~Interceptor();
  // Called instead of the operator, on the caller's thread, with the caller's autocast and autograd state. Returns the
  // operator's results. Operators that it calls are not intercepted. Exceptions pass to the operator's caller.
  virtual Values call(const Operation& operation, Values arguments) = 0;
  // Returns false if call() returns what proceed() returns for products with this layer's weight. Asked by functions
  // that compute a layer and what follows it at once, which is then seen as one operation of the layer.
  virtual bool changes(std::string_view layer) const;
  // Called after a recomputation in backward (activation_checkpoint.h), whose copies are no longer needed.
  virtual void end_of_recomputation();
};

// While it lives, calls of operators() on this thread go to the interceptor. The first guard made is called first, and
// its proceed() calls the next. Inner calls (the `addmm` in `linear`) and in-place variants are not intercepted.
class VERNIER_API Intercept {
 public:
  Intercept(Layers& layers, Interceptor& interceptor);
  ~Intercept();
  Intercept(const Intercept&) = delete;
  Intercept& operator=(const Intercept&) = delete;

 private:
  const Interceptor* interceptor_;
};

// The operators that can be intercepted, by their names in torch.ops.aten or torch.ops.vernier.
VERNIER_API const std::vector<std::string>& operators();

}  // namespace vernier
