// format: rounds the operands of all matrix products and convolutions to number formats, in forward and in backward,
// and adds up the products in float32, or as a matrix unit with a shorter accumulator does. So it tries formats and
// units that this machine does not have: the numbers are theirs, the speed is not. docs/guides/formats.md has the
// formats and recipes; configs/precision/formats has presets.
//
//   forward = "e4m3"             format of x and w in y = x w: a name of `vernier formats`, or of a
//                                [[precision.format]]; fp32: they are not rounded
//   backward = "auto"            format of g, the gradient of y, in dx = g wᵀ; auto: as `forward`
//   weight_gradient = "auto"     format of both operands in dw = xᵀ g; auto: x in `forward`, g in `backward`
//   scaling = "auto"             of formats without blocks. tensor: a tensor has one float32 scale, from its largest
//                                magnitude; delayed: from those of earlier updates; none; auto: tensor for formats
//                                of at most 8 bits, else none
//   amax_history_len = 1024      delayed: updates in the history of magnitudes
//   amax_compute = "max"         delayed: the scale comes from the largest of them, or from the "most_recent"
//   scale_rule = "auto"          of block scales that are powers of two: floor | ceil | even | rceil; auto: that of
//                                the format
//   rounding = "nearest"         of x and w: nearest | away | zero | stochastic
//   backward_rounding = "auto"   of g; auto: as `rounding`
//   random_bits = 23             of stochastic rounding, for each number
//   uneven_blocks = "shorter"    if the block size does not divide the reduced dimension, the last block is shorter,
//                                and the log names the layers; refuse: the run ends at the first such layer
//   square_weights = false       blocks of weights are square, so that w and wᵀ have the same codes
//   headroom = 1.0               scales are for this share of the format's largest number, so that stochastic rounding
//                                has room above a block's maximum
//   operands = {}                quantizers by operand: x, w, g, or y.x, y.w, dx.g, dx.w, dw.x, dw.g. Each is the name
//                                of a format, or a table with use, from, and options: docs/guides/quantizers.md
//   rotate = {}                  {y = 0, dx = 0, dw = 0, signs = "fixed"}: numbers that a rotation of both operands
//                                mixes, a power of two; 0: none. signs = "drawn": anew for each product
//   layers = []                  [[precision.layers]] tables: layers with other operands. The first that matches counts
//     layers.match = "*"           names of layers
//     layers.first = 0             of them those in so many first blocks, and so many last ones; a block is what has
//     layers.last = 0              a number in its name, as h.0
//     layers.operands = {}         as above; what is not named stays
//     layers.rotate = {}           as above
//   accumulate = {}              emulated sums of products, as {mantissa = 13, promote_every = 128}; none: float32
//     accumulate.mantissa          required: fraction bits of the accumulator, up to 23
//     accumulate.promote_every = 0 products after which it is added to a float32 sum, a multiple of chunk; 0: never
//     accumulate.chunk = 32        products that one step of the unit adds
//   weights = "fp32"             format to which each update rounds the weights themselves; fp32: they stay exact
//   optimizer_state = "fp32"     format to which each update rounds the averages of the optimizer; fp32: not
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

#include "accumulate.h"
#include "directions.h"
#include "names.h"
#include "operands.h"
#include "products.h"
#include "quantizer_laws.h"
#include "stored.h"
#include "unrounded.h"

namespace {

using namespace formats;
using vernier::Operation;
using vernier::Options;
using vernier::PrecisionRule;
using vernier::Run;
using vernier::TensorFormat;
using vernier::Values;

constexpr const char* automatic = "auto";

torch::ScalarType otherwise_of(Options& options) {
  const auto word = options.choose("otherwise", "fp32", {"fp32", "bf16"}, "dtype of everything that is not rounded");
  return word == "bf16" ? torch::kBFloat16 : torch::kFloat32;
}

class Format final : public vernier::MixedPrecision {
 public:
  explicit Format(Options& options) : MixedPrecision(options, otherwise_of(options), Levels::none) {
    const Names names(options);
    read_formats(options, names);
    accumulator_ = read_accumulate(options, products_->recipes());
    for (auto& recipe : products_->recipes()) recipe.accumulator = accumulator_;
    measure_every_ =
        options.get("measure_every", 0, "steps between measurements of the rounding; 0: none", vernier::at_least(0));
    options.resumable("measure_every");
  }

  bool is_mixed() const override { return has_rounded_ || MixedPrecision::is_mixed(); }
  std::string describe() const override {
    std::string sums;
    if (const auto& a = accumulator_) sums = ", sums with " + std::to_string(a->mantissa) + " fraction bits";
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
        if (is_applied(run)) averages_->round(run, stored_draw_, [&](const auto& name) { return !is_kept(name); });
      });
    }
    for (const auto& [place, quantizer] : quantizers_) {
      quantizer->attach(bus);
      bus.on(vernier::Event::UpdateDone, [&of = *quantizer](Run&) { of.end_update(); });
    }
    bus.on(vernier::Event::StepEnd, [this](Run& run) { end(run); });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    auto found = averages_ ? averages_->contradicts(other) : vernier::Contradiction();
    return found.option.empty() ? MixedPrecision::contradicts(other, bus) : found;
  }

  void prepare(Run& run) override {
    MixedPrecision::prepare(run);
    for (auto& recipe : products_->recipes()) prepare_rotations(recipe, run.seed);
    for (const auto& [place, quantizer] : quantizers_) vernier::HostApi::prepare(*quantizer, run);
    layers_of_model_ = vernier::Layers(*run.model);
    find_parts();
    if (weights_) round_weights(run);
    if (measure_every_ != 0 && run.control != nullptr) run.control->want_rerun(*this);
    if (!run.device.is_cpu()) info("numbers of ", run.device, " are rounded on the CPU, so a step takes longer");
  }

  void check(const Run& run) override {
    MixedPrecision::check(run);
    for (const auto& [place, quantizer] : quantizers_) quantizer->check(run);
    for (const auto& recipe : products_->recipes()) {
      for (const auto slot : slots) {
        const auto& quantizer = recipe.at(slot).quantizer;
        const bool is_strange = quantizer != nullptr && dynamic_cast<FormatQuantizer*>(quantizer.get()) == nullptr;
        if (is_strange) try_quantizer(*quantizer, slot);
      }
    }
  }

  void commit(Run& run) override {
    MixedPrecision::commit(run);
    if (weights_ && is_applied(run)) round_weights(run);
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
  void read_formats(Options& options, const Names& names) {
    const auto forward = options.get("forward", "e4m3", "format of x and w in y = x w; fp32: not rounded");
    auto backward = options.get("backward", automatic, "format of the gradient of y in dx = g w; auto: as forward");
    if (backward == automatic) backward = forward;
    const auto for_dw =
        options.get("weight_gradient", automatic, "format of both operands in dw; auto: as in y and dx");
    const auto weights = options.get("weights", unrounded, "format to which each update rounds the weights");
    const auto averages =
        options.get("optimizer_state", unrounded, "format to which each update rounds the optimizer's averages");
    const auto of_forward = RoundingOptions::read(options, {});
    auto of_backward = of_forward;
    of_backward.rounding =
        options.choose("backward_rounding", automatic, {"auto", "nearest", "away", "zero", "stochastic"},
                       "of the gradient of y; auto: as rounding");
    if (of_backward.rounding == automatic) of_backward.rounding = of_forward.rounding;
    const bool is_own = for_dw != automatic;
    std::vector<std::shared_ptr<FormatQuantizer>> all;
    const auto rounding = [&](const char* key, const std::string& name, const RoundingOptions& how) {
      const auto format = names.of(options, key, name);
      if (format) all.push_back(std::make_shared<FormatQuantizer>(options, key, *format, how));
      return format ? all.back() : nullptr;
    };
    const auto placed = [&](const char* place, std::shared_ptr<FormatQuantizer> made) {
      if (made != nullptr) quantizers_.push_back({place, made});
      return made;
    };
    const auto x = placed("forward", rounding("forward", forward, of_forward));
    const auto g = placed("backward", rounding("backward", backward, of_backward));
    const auto for_dw_of = [&](const char* place, const std::string& usual, const auto& made, const auto& how) {
      return !is_own || for_dw == usual ? made : placed(place, rounding("weight_gradient", for_dw, how));
    };
    const auto x_for_dw = for_dw_of("weight_gradient.x", forward, x, of_forward);
    const auto g_for_dw = for_dw_of("weight_gradient.g", backward, g, of_backward);
    auto& recipe = products_->recipes().emplace_back();
    recipe.at(Slot::y_x).quantizer = recipe.at(Slot::y_w).quantizer = recipe.at(Slot::dx_w).quantizer = x;
    recipe.at(Slot::dx_g).quantizer = g;
    recipe.at(Slot::dw_x).quantizer = x_for_dw;
    recipe.at(Slot::dw_g).quantizer = g_for_dw;
    const auto of_stored = [&](const char* key, const std::string& name) {
      const auto made = rounding(key, name, of_forward);
      return made != nullptr ? OptionalFormat(made->format()) : std::nullopt;
    };
    weights_ = of_stored("weights", weights);
    if (const auto stored = of_stored("optimizer_state", averages)) averages_.emplace(options, *stored);
    refuse_unused(options, of_forward, all, x.get());
    stored_draw_ = {vernier::rounding_named(of_forward.rounding), 0, static_cast<int>(of_forward.random_bits)};
    const auto dw = is_own ? for_dw : forward;
    const Usual of_x{forward, of_forward}, of_g{backward, of_backward};
    const Usuals usuals{of_x, of_x, of_g, of_x, {dw, of_forward}, {is_own ? for_dw : backward, of_backward}};
    read_operands(options, names, usuals, "", recipe, quantizers_);
    read_layers(options, names, usuals);
    title_ = forward + (backward == forward ? "" : ", gradients in " + backward);
    if (is_own) title_ += ", weight gradients in " + for_dw;
    if (options.given("operands") || options.given("layers")) title_ += ", but for `operands`";
    const bool is_exact = std::ranges::all_of(products_->recipes(), [](const auto& each) { return each.is_exact(); });
    if (is_exact && !weights_ && !averages_) {
      options.refuse("forward", "is fp32, and nothing else is rounded; take [precision] use = \"fp32\"");
    }
  }

  // Layers with a recipe of their own; the first table that a layer matches counts.
  struct Part {
    std::string match;
    std::int64_t first, last;
    Options options;  // for error messages
  };
  void read_layers(Options& options, const Names& names, const Usuals& usuals) {
    options.tables("layers", "layers with other operands", [&](Options& one) {
      const auto match = one.get("match", "*", "names of layers, with * and ? as in a shell");
      const auto first = one.get("first", 0, "of them those in so many first blocks", vernier::at_least(0));
      const auto last = one.get("last", 0, "of them those in so many last blocks", vernier::at_least(0));
      auto recipe = products_->recipes().front();
      read_operands(one, names, usuals, "layers." + std::to_string(parts_.size()) + ".", recipe, quantizers_);
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
  bool is_kept(const std::string& parameter) { return rules().keep_float32(parameter); }

  void round_weights(Run& run) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : run.parameters) {
      const auto& weight = parameter.model;
      if (!is_float(weight) || weight.dim() < 2 || is_kept(parameter.name)) continue;
      round_stored(weight, *weights_, drawn(stored_draw_));
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
    }
    for (const auto& [layer, cosine] : directions_) run.metrics.set(("format_direction/" + layer).c_str(), cosine);
    products_->losses().clear();
    directions_.clear();
  }

  std::shared_ptr<Products> products_ = std::make_shared<Products>();
  std::vector<Placed> quantizers_;
  std::vector<Part> parts_;                         // by [[precision.layers]]
  std::map<std::string, const Recipe*> recipe_of_;  // the layers that have one of their own
  std::optional<vernier::ProductAccumulator> accumulator_;
  OptionalFormat weights_;
  vernier::Draw stored_draw_;  // the rounding of weights and averages
  std::optional<StoredAverages> averages_;
  std::string title_;
  std::int64_t measure_every_ = 0;
  vernier::Layers layers_of_model_;
  std::set<std::string> layers_, named_;           // rounded; said not to be rounded
  bool is_written_ = false, has_rounded_ = false;  // has_rounded_: in the last forward()
  bool is_exact_ = false;                          // nothing is rounded, to compare gradients
  std::map<std::string, double> directions_;
};

}  // namespace

VERNIER_PLUGIN(Format, "format", "1.0.0")
