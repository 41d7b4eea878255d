// format: rounds the operands of all matrix products and convolutions to number formats, in forward and in backward,
// and adds up the products in float32, or as a matrix unit with a shorter accumulator does. So it tries formats and
// units that this machine does not have: the numbers are theirs, the speed is not. docs/guides/formats.md has the
// formats and recipes; configs/precision/formats has presets.
//
//   forward = "e4m3"             number format of x, w and g: a name of `vernier formats`, or of one of your own
//                                (below); fp32: they are not rounded
//   operands = {}                quantizers by operand: x, w, g, or y.x, y.w, dx.g, dx.w, dw.x, dw.g. weight:
//                                each update rounds the weights themselves. state: it rounds the optimizer's averages.
//                                A value is the name of a format or a plugin, or a table with use, from, and options:
//                                docs/guides/quantizers.md
//   rotate = {}                  {y = 0, dx = 0, dw = 0, signs = "fixed"}: numbers that a rotation of both operands
//                                mixes, a power of two; 0: none. signs = "drawn": anew for each product
//   layers = []                  [[precision.layers]] tables: layers with other operands. The first that matches counts
//     layers.match = "*"           names of layers
//     layers.first = 0             of them those in so many first blocks, and so many last ones; a block is what has
//     layers.last = 0              a number in its name, as h.0
//     layers.operands = {}         as above; what is not named stays
//     layers.rotate = {}           as above
//   unit = {}                    emulated matrix unit that adds up products, as {use = "h100"}; none: float32
//     unit.use = ""                v100 | a100 | ada | h100 | b200 | cdna2 | cdna3 | amx | avx512_bf16 | arm_bfdot;
//     fp32;
//                                  empty: of the options that follow
//     unit.fraction = 13           fraction bits to which the products of a step are cut, up to 31
//     unit.chunk = 32              products that one step adds
//     unit.result = "fp32"         what a step adds to: fp32 | fp16
//     unit.promote_every = 0       products after which the sum goes to a float32 one, a multiple of chunk; 0: never
//     unit.y, unit.dx, unit.dw     tables of the same, for one product
//   otherwise = "fp32"           dtype of everything else: fp32 | bf16
//   measure_every = 0            steps between measurements of what rounding does, by layer and operand; 0: none
//   format = []                  [[precision.format]] tables, your own formats:
//     format.name                  required: for the options above
//     format.element = ""          a number format by name; empty: of the seven options that follow
//     format.exponent = 4          bits
//     format.mantissa = 3          bits
//     format.bias = 7              of the exponent; by default 2^(exponent - 1) - 1
//     format.nan = "one"           which codes are NaN: none | ieee | one (the largest) | negative_zero
//     format.infinities = false    by default true for "ieee"
//     format.subnormals = true     false: numbers below the least normal one become 0 or that one
//     format.saturate = true       what is beyond becomes the largest number; by default for at most 8 bits
//     format.block = 0             numbers along the summed dimension that share a scale; 0: none
//     format.scale = "e8m0"        format of a block's scale; fp32: it is not rounded
//     format.rule = "floor"        floor | ceil | even | rceil; nearest, for scales that are not powers of two
//     format.tensor_scale = false  the tensor has a float32 scale besides
// A rule of [[precision.rule]] with use = "fp32", "bf16" or "fp16" keeps layers and operators out. The other options
// are those of vernier/mixed_precision.h, without level and rounding, and of vernier/precision_rules.h.
//
// Stochastic rounding draws from LibTorch's generator, as dropout does.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <vernier/control.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/linear_call.h>
#include <vernier/mixed_precision.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <set>

#include "directions.h"
#include "names.h"
#include "operands.h"
#include "products.h"
#include "quantizer_laws.h"
#include "stored.h"
#include "unit.h"
#include "unrounded.h"

namespace {

using namespace formats;
using vernier::Operation;
using vernier::Options;
using vernier::PrecisionRule;
using vernier::Run;
using vernier::TensorFormat;
using vernier::Values;

torch::ScalarType otherwise_of(Options& options) {
  const auto word = options.choose("otherwise", "fp32", {"fp32", "bf16"}, "dtype of everything that is not rounded");
  return word == "bf16" ? torch::kBFloat16 : torch::kFloat32;
}

class Format final : public vernier::MixedPrecision {
 public:
  explicit Format(Options& options) : MixedPrecision(options, otherwise_of(options), Levels::none) {
    const Names names(options);
    read_recipes(options, names);
    read_units(options, products_->recipes());
    measure_every_ =
        options.get("measure_every", 0, "steps between measurements of the rounding; 0: none", vernier::at_least(0));
    options.resumable("measure_every");
  }

  bool is_mixed() const override { return has_rounded_ || MixedPrecision::is_mixed(); }
  std::string describe() const override {
    const bool has_unit = std::ranges::any_of(products_->recipes(), [](const auto& each) { return each.has_unit(); });
    const std::string sums = has_unit ? ", sums of a matrix unit" : "";
    return "products of operands in " + title_ + sums + ", emulated: the numbers are the format's, the speed is not";
  }
  std::string emulated() const override { return title_; }
  bool changes(std::string_view) const override { return true; }

  std::vector<vernier::MetricInfo> metrics() const override {
    std::vector<vernier::MetricInfo> all = {
        {.name = "format_sqnr",
         .unit = "dB",
         .meaning = "squares of the numbers over those of their rounding errors; format_sqnr/h.0.mlp/x"},
        {.name = "format_saturated",
         .unit = "ratio",
         .meaning = "share of the numbers beyond the largest of their format and scale"},
        {.name = "format_flushed", .unit = "ratio", .meaning = "share of the numbers that become 0 and were not"},
        {.name = "format_used_codes",
         .unit = "ratio",
         .meaning = "share of the codes of a format of up to 16 bits that occur"},
        {.name = "format_amax", .meaning = "largest magnitude of the numbers"},
        {.name = "format_scale_spread",
         .meaning = "log2 of the largest magnitude of any block over the least one; blocks of zeros are left out"},
        {.name = "format_full_blocks",
         .unit = "ratio",
         .meaning = "share of the blocks with a number at the largest of the format"},
        {.name = "format_gradient_to_noise",
         .meaning =
             "norm of the layer's gradient without rounding over that of what rounding adds; below 1.73 rounding "
             "slows training"},
        {.name = "format_direction",
         .meaning = "cosine of the layer's gradient and that without rounding; format_direction/h.0.mlp"}};
    for (const auto& [place, quantizer] : quantizers_) {
      for (auto& info : quantizer->metrics()) all.push_back(std::move(info));
    }
    return all;
  }
  void attach(vernier::Bus& bus) override {
    MixedPrecision::attach(bus);
    bus.on(vernier::Event::StepBegin, [this](Run& run) { begin(run); });
    if (measure_every_ != 0) {
      bus.on(vernier::Event::GradientsReady, [this](Run& run) {
        if (is_due(run)) directions_ = directions_of(run, layers_, is_exact_);
      });
    }
    if (averages_) {
      bus.on(vernier::Event::UpdateDone, [this](Run& run) {
        if (is_applied(run)) averages_->round(run, [&](const auto& name) { return stored(name, Slot::state); });
      });
    }
    for (const auto& [place, quantizer] : quantizers_) {
      quantizer->attach(bus);
      bus.on(vernier::Event::UpdateDone, [&of = *quantizer](Run&) { of.end_update(); });
    }
    bus.on(vernier::Event::StepEnd, [this](Run& run) { end(run); });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    auto found = averages_ ? StoredAverages::contradicts(other) : vernier::Contradiction();
    return found.option.empty() ? MixedPrecision::contradicts(other, bus) : found;
  }

  void prepare(Run& run) override {
    MixedPrecision::prepare(run);
    for (auto& recipe : products_->recipes()) prepare_rotations(recipe, run.seed);
    for (const auto& [place, quantizer] : quantizers_) vernier::HostApi::prepare(*quantizer, run);
    layers_of_model_ = vernier::Layers(*run.model);
    find_parts();
    if (has_weights_) round_weights(run);
    if (measure_every_ != 0 && run.control != nullptr) run.control->want_rerun(*this);
    if (!run.device.is_cpu()) info("numbers of ", run.device, " are rounded on the CPU, so a step takes longer");
  }

  void check(const Run& run) override {
    MixedPrecision::check(run);
    for (const auto& [place, quantizer] : quantizers_) quantizer->check(run);
    for (const auto& recipe : products_->recipes()) {
      for (int i = 0; i < vernier::slot_count; ++i) {
        const auto slot = static_cast<Slot>(i);
        const auto& quantizer = recipe.at(slot).quantizer;
        const bool is_strange = quantizer != nullptr && dynamic_cast<FormatQuantizer*>(quantizer.get()) == nullptr;
        if (is_strange) try_quantizer(*quantizer, slot);
      }
    }
  }

  void commit(Run& run) override {
    MixedPrecision::commit(run);
    if (has_weights_ && is_applied(run)) round_weights(run);
  }

  vernier::State save() const override {
    auto state = MixedPrecision::save();
    for (const auto& [place, quantizer] : quantizers_) state.put("quantizer/" + place, quantizer->save());
    return state;
  }
  void load(const vernier::State& state) override {
    MixedPrecision::load(state);
    for (const auto& [place, quantizer] : quantizers_) quantizer->load(state.part("quantizer/" + place));
  }

  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    has_rounded_ = false;
    std::set<std::string> found;
    auto result = [&] {
      const Unrounded unrounded(layers_of_model_, found);
      return MixedPrecision::forward(body);
    }();
    name_unrounded(found);
    return result;
  }

  Values call(const Operation& operation, Values arguments) override {
    static const PrecisionRule none;
    const auto* rule = rules().find(operation);
    if (rule == nullptr) rule = &none;
    if (rule->use != PrecisionRule::Use::policy || is_exact_) {
      Unrounded::settle();
      return apply(*rule, operation, std::move(arguments));
    }
    if (auto output = rounded(operation, arguments)) {
      has_rounded_ = true;
      if (!is_written_ && operation.layer_index() >= 0) layers_.emplace(operation.layer());
      return {rule->cast_outputs ? output->to(torch::kFloat32) : output->to(dtype())};
    }
    if (adds_products(operation.name())) refuse_named(*rule);
    return apply(*rule, operation, std::move(arguments));
  }

 protected:
  bool intercepts() const override { return true; }

 private:
  void read_recipes(Options& options, const Names& names) {
    refuse_misplaced(options);
    const auto forward =
        options.get("forward", "e4m3", "format of x, w and g, where `operands` names none; fp32: not rounded");
    names.require(options, "forward", forward);
    auto& recipes = products_->recipes();
    read_operands(options, names, forward, "", recipes.emplace_back(), quantizers_);
    read_layers(options, names, forward);
    const auto any_rounds = [&](Slot slot) {
      return std::ranges::any_of(recipes, [&](const auto& each) { return each.rounds(slot); });
    };
    has_weights_ = any_rounds(Slot::weight);
    if (any_rounds(Slot::state)) averages_.emplace(options);
    title_ = forward;
    if (options.given("operands") || options.given("layers")) title_ += ", but for `operands`";
    if (std::ranges::all_of(recipes, [](const auto& each) { return each.is_exact(); })) {
      options.refuse("forward", "is fp32, and nothing else is rounded; take [precision] use = \"fp32\"");
    }
  }

  // Refuses options of operands in the table of the policy, where many look for them.
  static void refuse_misplaced(const Options& options) {
    constexpr std::pair<const char*, const char*> all[] = {
        {"backward", "g = \"e5m2\""},
        {"weight_gradient", "dw.x = \"bf16\", dw.g = \"bf16\""},
        {"weights", "weight = \"bf16\""},
        {"optimizer_state", "state = \"bf16\""},
        {"rounding", "x = {rounding = \"stochastic\"}, w = {rounding = \"stochastic\"}"},
        {"backward_rounding", "g = {rounding = \"stochastic\"}"},
        {"random_bits", "g = {rounding = \"stochastic\", random_bits = 8}"},
        {"headroom", "g = {use = \"mxfp4\", rounding = \"stochastic\", headroom = 0.75}"},
        {"scale_rule", "x = {use = \"mxfp8\", scale_rule = \"rceil\"}"},
        {"square_weights", "w = {use = \"nvfp4\", square_weights = true}"},
        {"scaling", "x = {scaling = \"none\"}, w = \"delayed\""},
        {"amax_history_len", "x = {use = \"delayed\", amax_history_len = 16}"},
        {"amax_compute", "x = {use = \"delayed\", amax_compute = \"most_recent\"}"}};
    if (options.given("accumulate")) {
      options.refuse("accumulate", "is not an option; write unit = {fraction = 13, promote_every = 128}");
    }
    for (const auto& [key, example] : all) {
      if (options.given(key)) {
        options.refuse(key, std::string("is an option of operands; write operands = {") + example + "}");
      }
    }
  }

  // Layers with a recipe of their own; the first table that a layer matches counts.
  struct Part {
    std::string match;
    std::int64_t first, last;
    Options options;  // for error messages
  };
  void read_layers(Options& options, const Names& names, const std::string& forward) {
    options.tables("layers", "layers with other operands", [&](Options& one) {
      const auto match = one.get("match", "*", "names of layers, with * and ? as in a shell");
      const auto first = one.get("first", 0, "of them those in so many first blocks", vernier::at_least(0));
      const auto last = one.get("last", 0, "of them those in so many last blocks", vernier::at_least(0));
      auto recipe = products_->recipes().front();
      read_operands(one, names, forward, "layers." + std::to_string(parts_.size()) + ".", recipe, quantizers_);
      products_->recipes().push_back(recipe);
      parts_.push_back({match, first, last, one});
    });
  }

  // Gives each layer its recipe. A block is what has a number in its name, as h.0 of h.0.mlp.c_fc.
  void find_parts() {
    const auto& names = layers_of_model_.names();
    std::vector<std::string> blocks;
    for (const auto& name : names) {
      const auto block = block_of(name);
      if (!block.empty() && std::ranges::find(blocks, block) == blocks.end()) blocks.push_back(block);
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& [match, first, last, options] = parts_[i];
      if (first + last > 0 && blocks.empty()) {
        options.refuse(first > 0 ? "first" : "last",
                       "counts blocks with a number in their names, as h.0, and this "
                       "model has none; write `match`");
      }
      for (const auto& name : vernier::matching(names, match, options, "match", "layer")) {
        const auto at = std::ranges::find(blocks, block_of(name)) - blocks.begin();
        const auto count = std::ssize(blocks);
        const bool is_there = at < count && (at < first || at >= count - last);
        if (is_there || first + last == 0) recipe_of_.try_emplace(name, &products_->recipes()[i + 1]);
      }
    }
  }
  static std::string block_of(const std::string& layer) {
    for (std::size_t at = 0, dot = 0; dot != std::string::npos; at = dot + 1) {
      dot = layer.find('.', at);
      const auto word = layer.substr(at, dot - at);
      if (!word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; })) {
        return layer.substr(0, dot);
      }
    }
    return "";
  }
  const Recipe& recipe_of(const std::string& layer) const {
    const auto found = recipe_of_.find(layer);
    return found != recipe_of_.end() ? *found->second : products_->recipes().front();
  }

  // Returns nothing for an operator that is not covered.
  std::optional<torch::Tensor> rounded(const Operation& operation, const Values& arguments) {
    const auto name = operation.name();
    const std::string layer(operation.layer().empty() ? name : operation.layer());
    const auto& recipe = recipe_of(layer);
    if (recipe.is_exact()) {
      Unrounded::settle();
      return std::nullopt;
    }
    if (const auto linear = vernier::linear_call(operation, arguments)) {
      const auto rows = linear->input.reshape({-1, linear->input.size(-1)});
      auto sizes = linear->input.sizes().vec();
      sizes.back() = linear->weight.size(0);
      Unrounded::settle();
      return with_bias(Products::matmul(products_, recipe, layer, rows, linear->weight.t(), true), linear->bias)
          .view(sizes);
    }
    const auto tensor = [&](std::size_t i) { return arguments[i].toTensor(); };
    if (name == "matmul" || name == "mm" || name == "bmm" || name == "mv")
      return product(recipe, layer, tensor(0), tensor(1));
    if (name == "linear") {
      const auto y = product(recipe, layer, tensor(0), tensor(1).t());
      return y ? with_bias(*y, arguments[2].toOptional<torch::Tensor>().value_or(torch::Tensor())) : y;
    }
    if ((name == "addmm" || name == "addmv" || name == "baddbmm") && arguments.size() == 5) {
      const auto y = product(recipe, layer, tensor(1), tensor(2));
      const auto beta = arguments[3].toScalar(), alpha = arguments[4].toScalar();
      if (!y) return y;
      return beta.equal(0) ? *y * alpha : *y * alpha + tensor(0) * beta;
    }
    if (name == "conv1d" || name == "conv2d" || name == "conv3d") return convolved(recipe, layer, arguments);
    return std::nullopt;
  }

  // Matrices or vectors, as matmul takes them.
  std::optional<torch::Tensor> product(const Recipe& recipe, const std::string& layer, const torch::Tensor& a,
                                       const torch::Tensor& b) {
    if (!is_float(a) || !is_float(b) || a.dim() == 0 || b.dim() == 0) return std::nullopt;
    Unrounded::settle();
    auto y = Products::matmul(products_, recipe, layer, a.dim() == 1 ? a.unsqueeze(0) : a,
                              b.dim() == 1 ? b.unsqueeze(-1) : b, false);
    if (b.dim() == 1) y = y.squeeze(-1);
    return a.dim() == 1 ? y.squeeze(b.dim() == 1 ? -1 : -2) : y;
  }

  static torch::Tensor with_bias(const torch::Tensor& product, const torch::Tensor& bias) {
    return bias.defined() ? product + bias : product;
  }

  // Arguments: input, weight, bias, stride, padding (numbers, "same" or "valid"), dilation, groups.
  std::optional<torch::Tensor> convolved(const Recipe& recipe, const std::string& layer, const Values& arguments) {
    auto input = arguments[0].toTensor();
    const auto weight = arguments[1].toTensor();
    if (!is_float(input) || !is_float(weight)) return std::nullopt;
    const auto dimensions = weight.dim() - 2;
    const auto numbers = [&](const c10::IValue& value) {
      auto list = value.toIntVector();
      if (list.size() == 1) list.assign(static_cast<std::size_t>(dimensions), list[0]);
      return list;
    };
    Products::Convolution shape{numbers(arguments[3]), {}, numbers(arguments[5]), arguments[6].toInt()};
    if (!arguments[4].isString()) {
      shape.padding = numbers(arguments[4]);
    } else {
      const bool is_same = arguments[4].toStringRef() == "same";
      if (is_same && std::ranges::any_of(shape.stride, [](auto step) { return step != 1; })) return std::nullopt;
      std::vector<std::int64_t> ends;  // LibTorch puts what is odd behind the end
      for (std::int64_t i = 0; i < dimensions; ++i) {
        const auto all = is_same ? shape.dilation[static_cast<std::size_t>(i)] * (weight.size(i + 2) - 1) : 0;
        shape.padding.push_back(all / 2);
        ends.insert(ends.begin(), {0, all % 2});
      }
      if (std::ranges::count(ends, 1) != 0) input = at::constant_pad_nd(input, ends);
    }
    const bool is_single = input.dim() == weight.dim() - 1;
    if (is_single) input = input.unsqueeze(0);
    Unrounded::settle();
    auto output = Products::convolution(products_, recipe, layer, input, weight, shape);
    if (const auto bias = arguments[2].toOptional<torch::Tensor>(); bias && bias->defined()) {
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(weight.dim()), 1);
      sizes[1] = bias->size(0);
      output = output + bias->view(sizes);
    }
    return is_single ? output.squeeze(0) : output;
  }

  // A skipped update leaves weights and averages as they are.
  static bool is_applied(const Run& run) { return !run.skip_update.defined() || run.skip_update.item<double>() == 0; }
  // Returns what rounds the weight of this name or its averages, or null.
  vernier::Quantizer* stored(const std::string& parameter, Slot slot) {
    if (rules().keep_float32(parameter)) return nullptr;
    const auto dot = parameter.rfind('.');
    return recipe_of(dot == std::string::npos ? "" : parameter.substr(0, dot)).at(slot).quantizer.get();
  }

  void round_weights(Run& run) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : run.parameters) {
      const auto& weight = parameter.model;
      auto* const quantizer = stored(parameter.name, Slot::weight);
      if (!is_float(weight) || weight.dim() < 2 || quantizer == nullptr) continue;
      round_stored(weight, Slot::weight, parameter.name, *quantizer, quantizer->draws() ? drawn_seed() : 0);
    }
  }

  // A rule that gives the format to an operator which has none.
  static void refuse_named(const PrecisionRule& rule) {
    if (rule.op.empty() || rule.kernel != PrecisionRule::Kernel::policy || !rule.options) return;
    rule.options->refuse("op", "is \"" + rule.op + "\", which precision/format does not round; write use = \"fp32\"");
  }

  // Logs the operators that were not rounded and are not named yet. Called after each forward.
  void name_unrounded(std::set<std::string>& found) {
    std::erase_if(found, [this](const std::string& name) { return !named_.insert(name).second; });
    if (found.empty()) return;
    info("not rounded, because this policy has no format for them: ", c10::Join(", ", found));
  }

  bool is_due(const Run& run) const { return measure_every_ != 0 && run.step % measure_every_ == 0; }

  void begin(Run& run) { products_->measure(is_due(run)); }

  // Writes the names of the rounded layers to <run.output>/formats.toml, for `vernier compare --formats`.
  void write_layers(const Run& run) {
    if (std::exchange(is_written_, true)) return;
    if (const auto uneven = products_->take_uneven(); !uneven.empty()) {
      info("blocks do not divide what these products sum over, so the last one is shorter: ",
           vernier::some_of({uneven.begin(), uneven.end()}));
    }
    if (run.output.empty()) return;
    if (run.control != nullptr && run.control->rank() > 0) return;
    const auto path = run.output + "/formats.toml";
    std::ofstream out(path);
    out << "# The layers whose products precision/format rounds.\nlayers = [";
    const char* between = "";
    for (const auto& layer : layers_) {
      out << between << '"' << layer << '"';
      between = ", ";
    }
    if (!(out << "]\n").flush()) warn(path, ": cannot be written");
  }

  // Writes format_sqnr/LAYER/OPERAND and its kin of a measured step.
  void end(Run& run) {
    write_layers(run);
    products_->measure(false);
    for (const auto& [name, loss] : products_->losses()) {
      const auto set = [&, &on = name](const char* metric, double value) {
        run.metrics.set((std::string(metric) + "/" + on).c_str(), value);
      };
      set("format_sqnr", loss.errors > 0 ? 10 * std::log10(loss.squares / loss.errors) : HUGE_VAL);
      set("format_saturated", loss.saturated / loss.numbers);
      set("format_flushed", loss.flushed / loss.numbers);
      if (loss.element) set("format_used_codes", loss.codes.share_of(*loss.element));
      set("format_amax", loss.largest);
      if (loss.blocks == 0) continue;
      set("format_full_blocks", loss.full_blocks / loss.blocks);
      if (loss.most_of_block > 0) set("format_scale_spread", std::log2(loss.most_of_block / loss.least_of_block));
    }
    for (const auto& [layer, angle] : directions_) {
      run.metrics.set(("format_direction/" + layer).c_str(), angle.cosine());
      run.metrics.set(("format_gradient_to_noise/" + layer).c_str(), angle.over_noise());
    }
    products_->losses().clear();
    directions_.clear();
  }

  std::shared_ptr<Products> products_ = std::make_shared<Products>();
  std::vector<Placed> quantizers_;
  std::vector<Part> parts_;                         // by [[precision.layers]]
  std::map<std::string, const Recipe*> recipe_of_;  // the layers that have one of their own
  std::optional<StoredAverages> averages_;
  std::string title_;
  std::int64_t measure_every_ = 0;
  vernier::Layers layers_of_model_;
  std::set<std::string> layers_, named_;           // rounded; said not to be rounded
  bool is_written_ = false, has_rounded_ = false;  // has_rounded_: in the last forward()
  bool has_weights_ = false;                       // each update rounds weights
  bool is_exact_ = false;                          // nothing is rounded, to compare gradients
  std::map<std::string, Angle> directions_;
};

}  // namespace

VERNIER_PLUGIN(Format, "format", "1.0.0")
