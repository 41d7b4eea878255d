// layers: measures each layer of the model in some steps, as metrics named by kind and layer: layer_grad_norm/h.0.mlp.
//   every = 10         steps between measurements
//   gradients = true   layer_grad_norm, layer_grad_max: 2-norm and largest magnitude of the layer's gradients
//   updates = true     layer_update_ratio: 2-norm of the update over that of the weights; update_ratio: of all weights.
//                      It copies the weights in measured steps
//   precision = true   layer_precision: significant bits of the layer's results in forward: 24 for float32, 11 for
//                      float16, 8 for bfloat16; the fewest, if it has several
// Gradients are those after unscaling; put it before clip_norm to see them before clipping. Nothing waits for a GPU.
// The ratio is that of A. Karpathy's "recipe": about 1e-3 is usual, and a layer far from the others deserves a look.
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <torch/nn/module.h>
#include <vernier/layers.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

namespace {

using vernier::Event;
using vernier::Run;
using vernier::Values;

// Significant bits of a number of this type; 0 if the type is not floating-point.
int significant_bits(torch::ScalarType type) {
  static const std::map<torch::ScalarType, int> bits = {{torch::kFloat64, 53},      {torch::kFloat32, 24},
                                                        {torch::kFloat16, 11},      {torch::kBFloat16, 8},
                                                        {torch::kFloat8_e4m3fn, 4}, {torch::kFloat8_e5m2, 3}};
  const auto found = bits.find(type);
  return found == bits.end() ? 0 : found->second;
}

// Sees the results of the operations that use a layer's weights.
class Dtypes final : public vernier::Interceptor {
 public:
  bool changes(std::string_view) const override { return false; }
  explicit Dtypes(const torch::nn::Module& model) : layers(model), bits(layers.names().size(), 0) {}
  Values call(const vernier::Operation& operation, Values arguments) override {
    const auto layer = operation.layer_index();
    auto results = operation.proceed(std::move(arguments));
    if (layer >= 0 && !results.empty() && results[0].isTensor() && results[0].toTensor().defined()) {
      auto& fewest = bits[static_cast<std::size_t>(layer)];
      const int now = significant_bits(results[0].toTensor().scalar_type());
      if (now > 0) fewest = fewest == 0 ? now : std::min(fewest, now);
    }
    return results;
  }
  vernier::Layers layers;
  std::vector<int> bits;  // by layer; 0: not seen
};

torch::Tensor norm_of(const std::vector<torch::Tensor>& norms) {
  return at::stack(norms).norm();
}

// In float32 at least.
std::vector<torch::Tensor> norms_of(const std::vector<torch::Tensor>& tensors, double order) {
  const bool are_double = tensors[0].scalar_type() == torch::kFloat64;
  return at::_foreach_norm(tensors, order, are_double ? torch::kFloat64 : torch::kFloat32);
}

class LayerMetrics final : public vernier::Callback {
 public:
  explicit LayerMetrics(vernier::Options& options)
      : every_(options.get("every", 10, "steps between measurements", vernier::at_least(1))),
        gradients_(options.get("gradients", true, "norm and largest magnitude of each layer's gradients")),
        updates_(options.get("updates", true, "size of the update over that of the weights; copies the weights")),
        precision_(options.get("precision", true, "significant bits of each layer's results in forward")) {}

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "update_ratio", .unit = "ratio", .meaning = "2-norm of the update over that of the weights"},
            {.name = "layer_grad_norm", .meaning = "2-norm of the layer's gradients; layer_grad_norm/h.0.mlp"},
            {.name = "layer_grad_max", .meaning = "largest magnitude of the layer's gradients"},
            {.name = "layer_update_ratio",
             .unit = "ratio",
             .meaning = "2-norm of the layer's update over that of its weights"},
            {.name = "layer_precision",
             .meaning = "significant bits of the layer's results: 24 float32, 11 float16, 8 bfloat16"}};
  }
  void attach(vernier::Bus& bus) override {
    if (precision_) {
      bus.on(Event::BatchReady, [this](Run& run) { begin_forward(run); });
      bus.on(Event::LossReady, [this](Run&) { forward_.reset(); });
    }
    bus.on(Event::GradientsReady, [this](Run& run) {
      if (is_due(run)) measure(run);
    });
    if (updates_) {
      bus.on(Event::UpdateDone, [this](Run& run) {
        if (is_due(run)) measure_update(run);
      });
    }
    bus.on(Event::StepEnd, [this](Run&) { end(); });
    bus.on(Event::RunFailed, [this](Run&) { end(); });
  }

 private:
  bool is_due(const Run& run) const { return (run.step + 1) % every_ == 0; }

  void end() {
    forward_.reset();
    dtypes_.reset();
    before_.clear();
  }

  // For each micro-batch; the first one shows what the others do.
  void begin_forward(const Run& run) {
    forward_.reset();
    if (!is_due(run) || dtypes_) return;
    dtypes_ = std::make_unique<Dtypes>(*run.model);
    forward_ = std::make_unique<vernier::Intercept>(dtypes_->layers, *dtypes_);
  }

  void measure(Run& run) {
    const torch::NoGradGuard no_grad;
    forward_.reset();
    const vernier::Layers layers(*run.model);
    if (dtypes_) set_precision(run);
    if (gradients_) measure_gradients(run, layers);
    if (!updates_) return;
    before_.clear();
    for (const auto& parameter : run.parameters) before_.push_back(parameter.best().clone());
  }

  void set_precision(Run& run) {
    for (std::size_t i = 0; i < dtypes_->bits.size(); ++i) {
      if (dtypes_->bits[i] > 0)
        set(run, "layer_precision", dtypes_->layers.names()[i], static_cast<double>(dtypes_->bits[i]));
    }
    dtypes_.reset();
  }

  void measure_gradients(Run& run, const vernier::Layers& layers) {
    run.gradients();  // divides them, with the bits that the optimizer gets
    std::vector<torch::Tensor> gradients;
    std::vector<int> of_layer;
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (!gradient.defined() || gradient.numel() == 0) continue;
      gradients.push_back(gradient.is_sparse() ? gradient.coalesce().values() : gradient);
      of_layer.push_back(layers.find(parameter.model));
    }
    if (gradients.empty()) return;
    const auto norms = by_layer(norms_of(gradients, 2), of_layer);
    const auto largest = by_layer(norms_of(gradients, std::numeric_limits<double>::infinity()), of_layer);
    for (const auto& [layer, values] : norms) set(run, "layer_grad_norm", layers.names()[layer], norm_of(values));
    for (const auto& [layer, values] : largest) {
      set(run, "layer_grad_max", layers.names()[layer], at::stack(values).max());
    }
  }

  void measure_update(Run& run) {
    if (before_.size() != run.parameters.size()) return;
    const torch::NoGradGuard no_grad;
    const vernier::Layers layers(*run.model);
    std::vector<torch::Tensor> weights, updates;
    std::vector<int> of_layer;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const auto& parameter = run.parameters[i];
      if (before_[i].numel() == 0) continue;
      weights.push_back(before_[i]);
      updates.push_back(parameter.best() - before_[i].to(parameter.best().scalar_type()));
      of_layer.push_back(layers.find(parameter.model));
    }
    if (weights.empty()) return;
    const auto sizes = norms_of(weights, 2), changes = norms_of(updates, 2);
    run.metrics.set("update_ratio", norm_of(changes) / norm_of(sizes));
    const auto changed = by_layer(changes, of_layer);
    for (const auto& [layer, values] : by_layer(sizes, of_layer)) {
      set(run, "layer_update_ratio", layers.names()[layer], norm_of(changed.at(layer)) / norm_of(values));
    }
  }

  // A parameter that is of no layer is left out.
  static std::map<std::size_t, std::vector<torch::Tensor>> by_layer(const std::vector<torch::Tensor>& values,
                                                                    const std::vector<int>& of_layer) {
    std::map<std::size_t, std::vector<torch::Tensor>> all;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (of_layer[i] >= 0) all[static_cast<std::size_t>(of_layer[i])].push_back(values[i]);
    }
    return all;
  }

  template <class Value>
  static void set(Run& run, const char* kind, const std::string& layer, Value value) {
    run.metrics.set((std::string(kind) + '/' + layer).c_str(), std::move(value));
  }

  std::int64_t every_;
  bool gradients_, updates_, precision_;
  // Within a measured step:
  std::unique_ptr<Dtypes> dtypes_;
  std::unique_ptr<vernier::Intercept> forward_;
  std::vector<torch::Tensor> before_;  // the weights, by parameter
};

}  // namespace

VERNIER_PLUGIN(LayerMetrics, "layers", "1.0.0")
