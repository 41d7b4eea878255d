// The operations of a model, seen by the name of the layer whose weight they use. It works for every model, torch::nn,
// a user's own modules or TorchScript, since it looks where all of them meet: at LibTorch's dispatcher.
//
//   struct Count final : vernier::Interceptor {
//     vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
//       ++calls[std::string(operation.layer())];
//       return operation.proceed(std::move(arguments));
//     } … } count;
//   vernier::Layers layers(*model);
//   std::optional<vernier::Intercept> intercept(std::in_place, layers, count);
//   loss = criterion(model->forward(input), target);
//   intercept.reset();  // before backward(), which would be seen too
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <vernier/state.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vernier {

using Values = std::vector<c10::IValue>;

// "h.0.mlp.c_fc.weight" is a weight of the layer "h.0.mlp.c_fc".
class VERNIER_API Layers {
 public:
  Layers() = default;
  explicit Layers(const torch::nn::Module& model);
  explicit Layers(const Tensors& parameters);  // by dotted name, as torch::jit::Module::named_parameters() has them

  // In the order of the parameters, each once. A weight that two layers share belongs to the first.
  const std::vector<std::string>& names() const { return names_; }
  // The index in names() of the layer with a parameter in the tensor's storage (its transpose, a slice of it), or -1.
  int find(const torch::Tensor& tensor) const;
  // Looks where the parameters are now. Every guard does it, for set_data() gives a weight new storage.
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

// One call of an operator, on its way to its kernel. Valid while the interceptor is asked.
class VERNIER_API Operation {
 public:
  std::string_view name() const { return name_; }  // "linear", one of operators()
  int id() const { return id_; }                   // its index there
  std::string_view layer() const;                  // whose weight is among the arguments, or ""
  int layer_index() const { return layer_; }       // in Layers::names(), or -1
  const c10::OperatorHandle& handle() const { return *handle_; }  // a copy can be called later
  // What would have happened: the next interceptor, at last the kernel. Takes all arguments of the schema in its order
  // and returns the results. May be called several times, or not at all.
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
  // Called instead of the operator, on the thread that called it, with autocast and autograd as they were. Operators that
  // it calls itself are not intercepted. Returns the operator's results; what throws ends the model's forward.
  virtual Values call(const Operation& operation, Values arguments) = 0;
  // After calls that came once more, in backward (activation_checkpoint.h): copies made for them are not needed.
  virtual void end_of_recomputation();
};

// While it lives, operators() on this thread go through the interceptor. Guards nest: the first one made is asked first,
// its proceed() asks the next. Outermost operators are seen (`linear`, not the `addmm` in it), no in-place variants.
class VERNIER_API Intercept {
 public:
  Intercept(Layers& layers, Interceptor& interceptor);
  ~Intercept();
  Intercept(const Intercept&) = delete;
  Intercept& operator=(const Intercept&) = delete;

 private:
  const Interceptor* interceptor_;
};

// What can be intercepted, by the names of torch.ops.aten.
VERNIER_API const std::vector<std::string>& operators();

}  // namespace vernier
