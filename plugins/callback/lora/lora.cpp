// lora: trains two small matrices beside the weight of each chosen linear layer, and nothing else. A layer then
// computes base(x) + scale * B(A(dropout(x))), where A is [rank, inputs], B [outputs, rank], and scale = alpha / rank.
//   rank = 8
//   alpha = 8.0
//   dropout = 0.0           of the input of A, in training
//   targets = []            layers by name, * for any text: ["*.q_proj", "*.mlp.*"]; none: as in PEFT *.q_proj and
//                           *.v_proj, *.qkv_proj or *.c_attn
//   modules_to_save = []    layers by name that are trained whole beside the adapters, such as a new head; none: score,
//                           the new head of task/text, if the model has one and it gets no adapter
//   fan_in_fan_out = false  true for a model that stores its weights as [inputs, outputs], such as task/gpt
//   rslora = false          scale = alpha / sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732)
//   dora = false            each row of a layer's weight is scaled to a length of its own, which is trained too (Liu et
//                           al. 2024, arXiv:2402.09353)
//   adapter = ""            a folder of PEFT, whose adapter is trained on; it says all of the above but dropout and
//                           fan_in_fan_out, which are its own unless they are given
//   base = "model"          the chosen layers' own weights: as the model has them, in 8 bits, "int8" or "fp8", or in 4,
//                           "nf4", with a scale for each 64 elements, row after row
// All other weights of the model are frozen. A and B are parameters of it, "h.0.attn.c_attn.lora_A.weight", as are the
// lengths of dora, "h.0.attn.c_attn.lora_magnitude_vector.weight", and so are part of checkpoints. They are float32
// unless the precision lowers the model's weights (level O2 or O3). B begins at 0, and A with the numbers of PEFT after
// torch.manual_seed([run] seed). `vernier export --format peft` writes them as a folder of PEFT; the other formats have
// them merged into the weights. Sources: Hu et al., LoRA, ICLR 2022; peft/tuners/lora of Hugging Face's PEFT 0.21.
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <vernier/draft/capture.h>
#include <vernier/json_text.h>
#include <vernier/linear_call.h>
#include <vernier/model_adapter.h>
#include <vernier/name_pattern.h>
#include <vernier/precision_rules.h>
#include <vernier/published_model.h>
#include <vernier/random_state.h>
#include <vernier/safetensors.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "adapter_folder.h"
#include "compact_weight.h"

namespace {

using vernier::between;
using vernier::Error;
using vernier::Event;
using vernier::Run;

const std::string lengths_name = "lora_magnitude_vector";
const std::array<std::string, 3> own_parts = {"lora_A", "lora_B", lengths_name};  // modules of a layer

// torch.nn.init.kaiming_uniform_(a=sqrt(5)) of a matrix with so many inputs.
torch::Tensor kaiming_uniform(std::int64_t outputs, std::int64_t inputs, const at::Generator& generator) {
  const double gain = std::sqrt(2.0 / (1 + std::pow(std::sqrt(5.0), 2)));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(inputs)));
  return at::empty({outputs, inputs}, torch::kFloat32).uniform_(-bound, bound, generator);
}

// Holds A, B, or the lengths of rows.
class Matrix final : public torch::nn::Module {
 public:
  explicit Matrix(torch::Tensor value) : weight(register_parameter("weight", std::move(value))) {}
  torch::Tensor weight;
};

// A linear layer whose weight is made for each use and not kept for backward.
class CompactLinear final : public torch::autograd::Function<CompactLinear> {
 public:
  using Weight = std::function<torch::Tensor(torch::ScalarType)>;  // [outputs, inputs]
  using Base = std::function<torch::Tensor(const torch::Tensor& input)>;

  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input, const Base& base,
                               const Weight& weight) {
    context->saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(weight));
    context->saved_data["dtype"] = static_cast<std::int64_t>(input.scalar_type());
    return base(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& gradient = gradients[0];
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["weight"].toCapsule());
    const auto of_input = at::matmul(gradient, kept->weight(gradient.scalar_type()));
    return {of_input.to(static_cast<torch::ScalarType>(context->saved_data["dtype"].toInt())), {}, {}};
  }

 private:
  struct Kept final : torch::CustomClassHolder {
    explicit Kept(Weight that) : weight(std::move(that)) {}
    Weight weight;
  };
};

class Lora final : public vernier::Callback,
                   public vernier::Interceptor,
                   public vernier::ModelAdapter,
                   public vernier::draft::Capturable {
 public:
  explicit Lora(vernier::Options& options)
      : rank_(options.get("rank", 8, "rows of A, columns of B", between(1, 65536))),
        alpha_(options.get("alpha", 8.0, "what they add is multiplied by alpha / rank", vernier::at_least(0))),
        dropout_(options.get("dropout", 0.0, "of the input of A, in training", between(0, 0.99))),
        patterns_(options.get("targets", std::vector<std::string>{},
                              "layers by name, * for any text; none: *.q_proj and *.v_proj, *.qkv_proj or *.c_attn")),
        whole_(options.get("modules_to_save", std::vector<std::string>{},
                           "layers by name that are trained whole; none: score, if the model has one")),
        fan_in_fan_out_(options.get("fan_in_fan_out", false, "the model stores its weights as [inputs, outputs]")),
        rslora_(options.get("rslora", false, "alpha / sqrt(rank) instead of alpha / rank")),
        dora_(options.get("dora", false, "the rows of a weight get lengths of their own, which are trained too")),
        folder_(options.get("adapter", "", "a folder of PEFT, whose adapter is trained on")),
        base_(options.choose("base", "model", {"model", "int8", "fp8", "nf4"},
                             "what the chosen layers' own weights are kept as; model: as they are")),
        options_(options) {
    for (const char* key : {"rank", "alpha", "targets", "modules_to_save", "rslora", "dora"}) {
      if (!folder_.empty() && options.given(key)) options.refuse(key, "is what `adapter` says; leave it out");
    }
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run&) { guard_.emplace(layers_, *this); });
    bus.on(Event::LossReady, [this](Run&) {
      guard_.reset();
      refuse_unmet();
    });
    bus.on(Event::RunFailed, [this](Run&) { guard_.reset(); });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus&) const override {
    if (&other == this || dynamic_cast<const vernier::ModelAdapter*>(&other) == nullptr) return {};
    return {"targets", "are for one adapter of the model, and " + other.id() + " is another; leave one of them out"};
  }

  torch::Tensor evaluate(Run&, const std::function<torch::Tensor()>& body) override {
    guard_.reset();
    const vernier::Intercept intercept(layers_, *this);
    return body();
  }

  void adapt(Run& run) override {
    model_ = run.model;
    if (!folder_.empty()) begin_with_folder();
    const auto generator = vernier::own_generator(run.seed);
    vernier::Tensors weights;
    for (const auto& [layer, weight] : chosen()) {
      add(layer, weight, generator);
      weights[layer + ".weight"] = weight;
    }
    choose_whole();
    for (auto& target : targets_) {
      if (base_ != "model") make_compact(target);
      if (dora_) add_lengths(target);
    }
    std::int64_t count = 0;
    for (auto& weight : run.model->parameters()) weight.set_requires_grad(false);
    for (auto& entry : run.model->named_parameters()) {
      const bool is_own = std::ranges::any_of(
          own_parts, [&](const std::string& part) { return entry.key().ends_with("." + part + ".weight"); });
      if (is_own || is_whole(entry.key())) entry.value().set_requires_grad(true);
      if (is_own) count += entry.value().numel();
    }
    if (adapter_) put_adapter();
    layers_ = vernier::Layers(weights);
    // The order of layers_.
    std::ranges::sort(targets_, {}, [](const Target& target) { return target.layer + ".weight"; });
    info(targets_.size(), " layers get ", count, " parameters; the weights of the model are frozen",
         whole_.empty() ? "" : " but those of " + vernier::some_of(whole_));
  }

  bool changes(std::string_view layer) const override { return !layer.empty(); }  // it sees its targets alone
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    if (operation.layer_index() < 0 || is_merged_) return operation.proceed(std::move(arguments));
    auto& target = targets_.at(static_cast<std::size_t>(operation.layer_index()));
    const auto call = vernier::linear_call(operation, arguments);
    if (!call) {
      if (operation.name().starts_with("embedding")) {
        options_.refuse("targets", "has " + target.layer + ", which is an embedding; leave it out");
      }
      if (target.compact) refuse_other_use(target, operation);
      return operation.proceed(std::move(arguments));
    }
    refuse_other_layout(target, call->weight);
    target.is_met = true;
    const auto base_of = [&](const torch::Tensor& input) {
      auto own = arguments;
      own[operation.name() == "addmm" ? 1 : 0] = input;
      if (!target.compact) return operation.proceed(std::move(own))[0].toTensor();
      return compact_base(operation, std::move(own), *call, *target.compact);
    };
    return {with_adapter(target, *call, base_of)};
  }

  void merge() override {
    is_merged_ = true;  // call() knows weights by their memory, which is freed below and used again
    const torch::NoGradGuard no_grad;
    for (auto& target : targets_) {
      auto sum = adapted_weight(target);
      if (dora_) sum *= (target.lengths / sum.norm(2, 1)).unsqueeze(1);
      if (target.compact) std::exchange(target.compact, std::nullopt)->expand();
      target.weight.copy_(fan_in_fan_out_ ? sum.t() : sum);
      for (const auto& part : own_parts) {
        if (part != lengths_name || dora_) target.module->unregister_module(part);
      }
    }
  }

  void write_adapter(const std::string& folder, const vernier::PublishedModel* published) const override {
    const auto name_of = [&](const std::string& name) { return published ? published->published_name(name) : name; };
    vernier::Tensors tensors;
    auto targets = nlohmann::json::array();
    for (const auto& target : targets_) {
      for (const auto& layer : tied_to(target.layer)) {
        const auto name = name_of(layer);
        targets.push_back(name);
        const auto part = "base_model.model." + name + ".";
        tensors[part + "lora_A.weight"] = target.a.detach().to(torch::kFloat32);
        tensors[part + "lora_B.weight"] = target.b.detach().to(torch::kFloat32);
        if (dora_) tensors[part + lengths_name] = target.lengths.detach().to(torch::kFloat32);
      }
    }
    // PEFT copies each layer of modules_to_save, so a tied one is written under each of its names.
    std::set<std::string> whole;
    bool is_tied = false;
    const auto ties = published ? published->ties() : std::map<std::string, std::string>();
    for (const auto& layer : whole_) {
      const auto names = tied_to(layer);
      is_tied = is_tied || names.size() > 1;
      for (const auto& name : names) whole.insert(name_of(name));
    }
    for (const auto& [name, tensor] : whole_tensors()) {
      for (const auto& layer : tied_to(name.substr(0, name.rfind('.')))) {
        const auto published_name = name_of(layer), part = name.substr(name.rfind('.'));
        tensors["base_model.model." + published_name + part] = tensor;
        for (const auto& [other, own] : ties) {
          if (own != published_name) continue;
          tensors["base_model.model." + other + part] = tensor;
          whole.insert(other);
          is_tied = true;
        }
      }
    }
    nlohmann::ordered_json config = {
        {"peft_type", "LORA"},
        {"task_type", published ? nlohmann::json(published->task_type()) : nlohmann::json()},
        {"base_model_name_or_path", published ? published->published_folder() : ""},
        {"r", rank_},
        {"lora_alpha", alpha_},
        {"lora_dropout", dropout_},
        {"target_modules", targets},
        {"fan_in_fan_out", fan_in_fan_out_},
        {"use_rslora", rslora_},
        {"use_dora", dora_},
        {"bias", "none"},
        {"modules_to_save", whole_.empty() ? nlohmann::json() : nlohmann::json(whole)},
        {"inference_mode", true},
        {"init_lora_weights", true},
    };
    if (is_tied) config["ensure_weight_tying"] = true;
    std::filesystem::create_directories(folder);
    std::ofstream file(folder + "/adapter_config.json");
    if (!(file << vernier::json_text(config, 2) << '\n').flush())
      throw Error(folder + "/adapter_config.json: cannot be written");
    vernier::save_safetensors(folder + "/adapter_model.safetensors", tensors, vernier::Metadata{{"format", "pt"}});
  }

 private:
  struct Target {
    std::string layer;
    std::shared_ptr<torch::nn::Module> module;
    torch::Tensor weight, a, b;
    torch::Tensor lengths = {};  // dora: one length per output
    std::optional<lora::CompactWeight> compact = {};
    bool is_met = false;
  };

  void make_compact(Target& target) const {
    try {
      target.compact.emplace(*target.module, target.weight, lora::form_of(base_));
    } catch (const Error& error) {
      options_.refuse("base", "cannot keep " + target.layer + " in 4 bits: " + vernier::message(error) +
                                  "; leave it out of `targets`, or set base = \"int8\"");
    }
  }

  double scale() const {
    const auto rank = static_cast<double>(rank_);
    return alpha_ / (rslora_ ? std::sqrt(rank) : rank);
  }

  // The weight with the effect of A and B, [outputs, inputs], in float32 and without a gradient.
  torch::Tensor adapted_weight(const Target& target) const {
    const torch::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto stored = target.compact ? target.compact->as(torch::kFloat32) : target.weight.to(torch::kFloat32);
    const auto added = at::matmul(target.b.to(torch::kFloat32), target.a.to(torch::kFloat32)) * scale();
    return (fan_in_fan_out_ ? stored.t() : stored) + added;
  }

  // The output of a layer. base_of: the layer alone. The lengths of rows have no gradient but by their own factors.
  torch::Tensor with_adapter(const Target& target, const vernier::LinearCall& call,
                             const std::function<torch::Tensor(const torch::Tensor&)>& base_of) const {
    const auto base = base_of(call.input);
    const bool drops = dropout_ > 0 && model_->is_training();
    auto x = call.input.to(target.a.scalar_type());
    if (drops) x = at::dropout(x, dropout_, /*train=*/true);
    const auto added = at::linear(at::linear(x, target.a), target.b) * scale();
    if (!dora_) return (base + added).to(base.scalar_type());
    const auto factor = target.lengths / adapted_weight(target).norm(2, 1);
    auto product = drops ? base_of(x.to(call.input.scalar_type())) : base;
    if (call.bias.defined()) product = product - call.bias;
    return (base + (factor - 1) * product + factor * added).to(base.scalar_type());
  }

  // The layer with the numbers that its bits stand for. Autocast rounds them, and the input, where it applies.
  static torch::Tensor compact_base(const vernier::Operation& operation, vernier::Values arguments,
                                    const vernier::LinearCall& linear, const lora::CompactWeight& compact) {
    const auto place = operation.name() == "addmm" ? 2 : 1, of_input = operation.name() == "addmm" ? 1 : 0;
    const auto given = arguments[place].toTensor();
    const auto base = [&](const torch::Tensor& input) {
      arguments[of_input] = input;
      arguments[place] = compact.like(given, input.scalar_type());
      return operation.proceed(std::move(arguments))[0].toTensor();
    };
    const auto weight = [&compact, view = linear.weight](torch::ScalarType type) { return compact.like(view, type); };
    return CompactLinear::apply(linear.input, CompactLinear::Base(base), CompactLinear::Weight(weight));
  }

  // The layers with a matrix that fit the patterns, in the order of the model.
  std::vector<std::pair<std::string, torch::Tensor>> chosen() const {
    const std::string end = ".weight";
    std::vector<std::pair<std::string, torch::Tensor>> layers;
    std::vector<std::string> names;
    for (const auto& entry : model_->named_parameters()) {
      if (!entry.key().ends_with(end) || entry.value().dim() != 2) continue;
      names.push_back(entry.key().substr(0, entry.key().size() - end.size()));
      layers.emplace_back(names.back(), entry.value());
    }
    if (adapter_) {
      std::erase_if(layers, [&](const auto& layer) { return !adapter_->has_matrices(layer.first); });
    } else {
      const auto patterns = patterns_.empty() ? patterns_for(names) : patterns_;
      for (const auto& pattern : patterns) vernier::matching(names, pattern, options_, "targets", "linear layer");
      std::erase_if(layers, [&](const auto& layer) { return !vernier::matches_any(patterns, layer.first); });
    }
    std::set<const c10::TensorImpl*> seen;  // a tied layer has one adapter
    std::erase_if(layers, [&](const auto& layer) { return !seen.insert(layer.second.unsafeGetTensorImpl()).second; });
    return layers;
  }

  // The layers that have the weight of this one; it is the first.
  std::vector<std::string> tied_to(const std::string& layer) const {
    std::vector<std::string> layers = {layer};
    const auto all = model_->named_parameters();
    const auto* weight = all.find(layer + ".weight");
    for (const auto& entry : all) {
      const auto& name = entry.key();
      if (weight == nullptr || name == layer + ".weight" || !name.ends_with(".weight")) continue;
      if (entry.value().is_same(*weight)) layers.push_back(name.substr(0, name.rfind('.')));
    }
    return layers;
  }

  vernier::Tensors whole_tensors() const {
    vernier::Tensors tensors;
    const auto add = [&](const auto& entries) {
      for (const auto& entry : entries) {
        if (is_whole(entry.key())) tensors[entry.key()] = entry.value().detach();
      }
    };
    add(model_->named_parameters());
    add(model_->named_buffers());
    return tensors;
  }

  std::vector<std::string> patterns_for(const std::vector<std::string>& names) const {
    const auto has = [&](const std::string& pattern) {
      return std::ranges::any_of(names, [&](const auto& name) { return vernier::matches_any({pattern}, name); });
    };
    if (has("*.q_proj") && has("*.v_proj")) return {"*.q_proj", "*.v_proj"};
    for (const char* fused : {"*.qkv_proj", "*.c_attn"}) {
      if (has(fused)) return {fused};
    }
    options_.refuse(
        "targets",
        "must be given: the model has none of *.q_proj and *.v_proj, *.qkv_proj and *.c_attn. Its layers are " +
            vernier::some_of(names));
  }

  // The layers that have parameters, by name.
  std::vector<std::string> layer_names() const {
    std::vector<std::string> names;
    for (const auto& entry : model_->named_modules("", /*include_self=*/false)) {
      if (!entry.value()->parameters().empty()) names.push_back(entry.key());
    }
    return names;
  }

  void begin_with_folder() {
    adapter_.emplace(folder_);
    const auto& shape = adapter_->shape();
    rank_ = shape.rank, alpha_ = shape.alpha, rslora_ = shape.rslora, dora_ = shape.dora;
    if (!options_.given("dropout")) dropout_ = shape.dropout;
    if (!options_.given("fan_in_fan_out")) fan_in_fan_out_ = shape.fan_in_fan_out;
    adapter_->find_layers(layer_names());
    whole_ = adapter_->whole();
  }

  void put_adapter() {
    for (auto& target : targets_) {
      for (const auto& layer : tied_to(target.layer)) {
        if (!adapter_->has_matrices(layer)) continue;
        adapter_->put(layer, "lora_A.weight", target.a);
        adapter_->put(layer, "lora_B.weight", target.b);
        if (dora_) adapter_->put(layer, lengths_name, target.lengths);
      }
    }
    const auto modules = model_->named_modules();
    for (const auto& layer : whole_) {
      const auto put = [&](const auto& tensors) {
        for (const auto& entry : tensors) adapter_->put(layer, entry.key(), entry.value());
      };
      put(modules[layer]->named_parameters(/*recurse=*/false));
      put(modules[layer]->named_buffers(/*recurse=*/false));
    }
    adapter_->refuse_unused();
    adapter_.reset();
  }

  // The layers that the option means, by name.
  void choose_whole() {
    auto names = layer_names();
    const bool is_target = std::ranges::count(targets_, "score", &Target::layer) > 0;
    if (whole_.empty() && !adapter_ && !is_target && std::ranges::count(names, "score") > 0) whole_ = {"score"};
    for (const auto& pattern : whole_) vernier::matching(names, pattern, options_, "modules_to_save", "layer");
    std::erase_if(names, [&](const auto& name) { return !vernier::matches_any(whole_, name); });
    whole_ = names;
    for (const auto& target : targets_) {
      if (is_whole(target.layer + ".weight")) {
        options_.refuse("modules_to_save",
                        "has " + target.layer + ", which gets an adapter; leave it out of one of both");
      }
    }
  }

  bool is_whole(const std::string& parameter) const {
    return std::ranges::any_of(whole_, [&](const auto& layer) { return parameter.starts_with(layer + "."); });
  }

  // PEFT makes two linear layers first and draws A once more.
  void add(const std::string& layer, const torch::Tensor& weight, const at::Generator& generator) {
    const auto inputs = weight.size(fan_in_fan_out_ ? 0 : 1), outputs = weight.size(fan_in_fan_out_ ? 1 : 0);
    kaiming_uniform(rank_, inputs, generator);
    kaiming_uniform(outputs, rank_, generator);
    const auto module = model_->named_modules()[layer];
    const auto a =
        module->register_module("lora_A", std::make_shared<Matrix>(kaiming_uniform(rank_, inputs, generator)));
    const auto b = module->register_module("lora_B", std::make_shared<Matrix>(at::zeros({outputs, rank_})));
    targets_.push_back({layer, module, weight, a->weight, b->weight});
  }

  void add_lengths(Target& target) {
    const auto lengths = std::make_shared<Matrix>(adapted_weight(target).norm(2, 1));
    target.lengths = target.module->register_module(lengths_name, lengths)->weight;
  }

  [[noreturn]] void refuse_other_use(const Target& target, const vernier::Operation& operation) const {
    options_.refuse("base", c10::str("is for linear layers, and the model uses the weight of ", target.layer, " in ",
                                     operation.name(), "; leave it out of `targets`"));
  }

  void refuse_other_layout(const Target& target, const torch::Tensor& weight) const {
    const auto stored = fan_in_fan_out_ ? target.weight.t() : target.weight;
    if (stored.sizes() == weight.sizes() && stored.strides() == weight.strides()) return;
    options_.refuse("fan_in_fan_out", c10::str("must be ", fan_in_fan_out_ ? "false" : "true",
                                               " for this model: it stores the weight of ", target.layer,
                                               fan_in_fan_out_ ? " as [outputs, inputs]" : " as [inputs, outputs]"));
  }

  void refuse_unmet() const {
    for (const auto& target : targets_) {
      if (!target.is_met) options_.refuse("targets", "has " + target.layer + ", which the model never calls");
    }
  }

  std::int64_t rank_;
  double alpha_, dropout_;
  std::vector<std::string> patterns_, whole_;
  bool fan_in_fan_out_, rslora_, dora_, is_merged_ = false;
  std::string folder_, base_;
  std::optional<lora::AdapterFolder> adapter_;  // while adapt() puts it into the model
  vernier::Options options_;                    // for messages

  std::shared_ptr<torch::nn::Module> model_;
  std::vector<Target> targets_;
  vernier::Layers layers_;  // the weights of targets_, in the same order
  std::optional<vernier::Intercept> guard_;
};

}  // namespace

VERNIER_PLUGIN(Lora, "lora", "1.0.0")
