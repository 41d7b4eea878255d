#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>
#include <vernier/linear_cross_entropy.h>

#include <cmath>
#include <optional>

#include "base/gradients_of_operators.h"
#include "cpu/blocked_softmax.h"
#include "gpu/gpu_library.h"
#include "trace/interception.h"

namespace vernier {

namespace {

using torch::autograd::variable_list;
using Given = std::optional<at::Tensor>;

// Bytes of the logits of one chunk of rows. A GPU needs large products.
std::int64_t chunk_bytes(const at::Tensor& input) {
  return (input.is_cpu() ? 52 : 512) << 20;
}
// Bytes of all logits from which on chunks are worth it on a GPU: their kernels are fast.
constexpr std::int64_t least_on_gpu = 32 << 20;
constexpr std::int64_t aligned_classes = 64;  // cuBLAS multiplies matrices of odd sizes three times as slowly
constexpr std::int64_t fewest_rows = 64;      // rows of a chunk: the weight is read once a chunk, its gradient written
constexpr std::int64_t block_classes = 4096;  // their weights and gradients fit into a CPU's third cache

at::Tensor given(const Given& tensor) {
  return tensor.value_or(at::Tensor());
}

// The targets, and how their losses are weighed.
struct Wanted {
  at::Tensor target, class_weight, sample_weight;  // [rows]
  bool sums;
  std::int64_t ignored;
  double smoothing;
  std::int64_t chunk_rows;  // 0: by memory
  at::ScalarType dtype;     // in which the layer computes
};

// All logits at once, by LibTorch's operators. logits: [rows, classes] in the wide dtype.
at::Tensor loss_of(const at::Tensor& logits, const Wanted& wanted) {
  const auto weight = wanted.class_weight.defined() ? Given(wanted.class_weight.to(logits.scalar_type())) : Given();
  const auto loss = [&](auto reduction) {
    return at::cross_entropy_loss(logits, wanted.target, weight, reduction, wanted.ignored, wanted.smoothing);
  };
  if (!wanted.sample_weight.defined()) return loss(wanted.sums ? at::Reduction::Sum : at::Reduction::Mean);
  const auto factors = wanted.sample_weight.to(logits.scalar_type());
  const auto sum = (loss(at::Reduction::None) * factors).sum();
  if (wanted.sums) return sum;
  const auto counts = wanted.target != wanted.ignored;
  const auto all = weight ? weight->index_select(0, wanted.target * counts) * factors : factors;
  return sum / (all * counts).sum();
}

at::Tensor widened(const at::Tensor& logits) {
  return logits.to(wide_of(logits.scalar_type()));
}

struct Gradients {
  at::Tensor input, weight, bias;  // in the wide dtype; undefined: not wanted
};

// Computes loss and gradients, chunk by chunk.
class ChunkedHead {
 public:
  ChunkedHead(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Wanted& wanted)
      : input_(input),
        weight_(weight),
        bias_(bias),
        wanted_(wanted),
        wide_(wide_of(wanted.dtype)),
        library_(gpu_library(input.device())) {
    if (!input.is_cpu()) prepare();
  }

  // wants: which gradients.
  at::Tensor run(const std::array<bool, 3>& wants, Gradients& gradients) {
    const auto options = input_.options().dtype(wide_);
    if (wants[0]) gradients.input = at::zeros(input_.sizes(), options);
    const auto classes = prepared_.defined() ? prepared_.size(0) : weight_.size(0);
    Gradients all;  // with those of the classes that only fill up
    if (wants[1]) all.weight = at::empty({classes, weight_.size(1)}, options);
    if (wants[2]) all.bias = at::zeros({classes}, options);
    if (wants[1]) gradients.weight = all.weight.narrow(0, 0, weight_.size(0));
    if (wants[2]) gradients.bias = all.bias.narrow(0, 0, weight_.size(0));
    const auto rows = counted_rows();
    const auto factors = factors_of(rows);
    const auto count = rows.target.size(0), size = chunk_rows(count);
    if (wants[1] && count == 0) gradients.weight.zero_();
    const auto scale = library_ != nullptr && wanted_.dtype == at::kHalf ? factors.slope_scale() : at::Tensor();
    auto loss = at::zeros({}, options.dtype(at::kDouble));
    if (!wanted_.sums) loss.masked_fill_(rows.counts.logical_not().all(), NAN);
    auto slopes_of_input = at::Tensor();
    for (std::int64_t first = 0; first < count; first += size) {
      const auto length = std::min(size, count - first);
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
      BlockedSoftmax softmax(part(rows.target), {part(factors.hit), part(factors.spread), part(factors.all)},
                             wanted_.class_weight, wanted_.smoothing, weight_.size(0), wanted_.dtype, library_);
      if (scale.defined()) softmax.scale_slopes(scale);
      const auto x =
          (rows.places.defined() ? input_.index_select(0, part(rows.places)) : part(input_)).to(wanted_.dtype);
      loss += compute(x, softmax, wants, first == 0, all, slopes_of_input);
      if (!wants[0]) continue;
      if (rows.places.defined()) {
        gradients.input.index_copy_(0, part(rows.places), slopes_of_input);
      } else {
        part(gradients.input).copy_(slopes_of_input);
      }
    }
    if (scale.defined()) {
      for (auto* gradient : {&gradients.input, &gradients.weight, &gradients.bias}) {
        if (gradient->defined()) gradient->div_(scale);
      }
    }
    return loss.to(wide_);
  }

 private:
  // On a GPU: weight and bias in the dtype of the products, with zeros for classes up to a size that cuBLAS likes.
  void prepare() {
    const auto classes = weight_.size(0), missing = (aligned_classes - classes % aligned_classes) % aligned_classes;
    prepared_ = weight_.to(wanted_.dtype);
    if (missing > 0) prepared_ = at::constant_pad_nd(prepared_, {0, 0, 0, missing});
    if (bias_.defined()) prepared_bias_ = at::constant_pad_nd(bias_.to(wanted_.dtype), {0, missing});
  }

  struct CountedRows {
    at::Tensor target, counts, sample_weight;
    at::Tensor places;  // indices of these rows among all; undefined: these are all rows
  };

  // On a CPU those that are not ignored. Elsewhere the host would wait for their number.
  CountedRows counted_rows() const {
    CountedRows rows{wanted_.target, wanted_.target != wanted_.ignored, wanted_.sample_weight, {}};
    if (!input_.is_cpu()) {
      rows.target = rows.target * rows.counts;
      return rows;
    }
    if (!rows.counts.all().item<bool>()) {
      rows.places = rows.counts.nonzero().squeeze(1);
      for (auto* tensor : {&rows.target, &rows.counts, &rows.sample_weight}) {
        if (tensor->defined()) *tensor = tensor->index_select(0, rows.places);
      }
    }
    const auto wrong = (rows.target < 0).logical_or(rows.target >= weight_.size(0));
    TORCH_CHECK_INDEX(!wrong.any().item<bool>(), "linear_cross_entropy: a target is not one of ", weight_.size(0),
                      " classes");
    return rows;
  }

  LossFactors factors_of(const CountedRows& rows) const {
    auto share = rows.counts.to(at::kDouble);
    if (rows.sample_weight.defined()) share = share * rows.sample_weight.to(at::kDouble);
    const auto classes = static_cast<double>(weight_.size(0));
    auto hit = share;
    auto all_classes = at::full({}, classes, share.options());
    if (wanted_.class_weight.defined()) {
      const auto of_class = wanted_.class_weight.to(at::kDouble);
      hit = share * of_class.index_select(0, rows.target);
      all_classes = of_class.sum();
    }
    const auto whole = wanted_.sums ? at::ones({}, share.options()) : divisor_of_mean(hit, rows.counts);
    hit = hit * (1 - wanted_.smoothing) / whole;
    const auto spread = share * (wanted_.smoothing / classes) / whole;
    return {hit, spread, hit + spread * all_classes};
  }

  std::int64_t chunk_rows(std::int64_t rows) const {
    if (wanted_.chunk_rows > 0) return wanted_.chunk_rows;
    const auto most = most_rows(input_, weight_, wanted_.dtype), chunks = (rows + most - 1) / most;
    return chunks < 2 ? std::max<std::int64_t>(rows, 1) : (rows + chunks - 1) / chunks;
  }

  // The classes of a block: the weights are in the dtype of the products.
  std::int64_t block_size() const { return prepared_.defined() ? prepared_.size(0) : block_classes; }
  at::Tensor block_of(const at::Tensor& x, std::int64_t first) const {
    return x.narrow(0, first, std::min(block_size(), x.size(0) - first));
  }
  at::Tensor weights_of(std::int64_t first) const {
    return prepared_.defined() ? prepared_ : block_of(weight_, first).to(wanted_.dtype);
  }
  at::Tensor bias_of(std::int64_t first) const {
    return prepared_bias_.defined() ? prepared_bias_ : block_of(bias_, first).to(wanted_.dtype);
  }

  // One chunk: all logits, then their slopes, from the last block to the first, whose weights the cache may still hold.
  at::Tensor compute(const at::Tensor& x, BlockedSoftmax& softmax, const std::array<bool, 3>& wants, bool is_first,
                     Gradients& gradients, at::Tensor& of_input) const {
    std::vector<at::Tensor> logits;
    const bool wants_any = wants[0] || wants[1] || wants[2];
    for (std::int64_t first = 0; first < weight_.size(0); first += block_size()) {
      const auto w = weights_of(first).t();
      auto block = bias_.defined() ? at::addmm(bias_of(first), x, w) : at::mm(x, w);
      softmax.add(block, first);
      if (wants_any) logits.push_back(std::move(block));
    }
    auto loss = softmax.loss();
    const auto inputs = x.to(softmax.slope_dtype());
    if (wants[0]) of_input = at::zeros(x.sizes(), x.options().dtype(wide_));
    for (auto i = std::ssize(logits) - 1; i >= 0; --i) {
      const auto first = i * block_size();
      const auto slopes = softmax.slopes(logits[static_cast<std::size_t>(i)], first);
      logits.pop_back();
      const auto part = [&](const at::Tensor& x, std::int64_t start) { return x.narrow(0, start, slopes.size(1)); };
      if (wants[0]) add_product(of_input, slopes, part(weights_of(first), 0), false);
      if (wants[1]) add_product(part(gradients.weight, first), slopes.t(), inputs, is_first);
      if (wants[2]) part(gradients.bias, first).add_(slopes.sum(0, false, wide_));
    }
    return loss;
  }

  // sum += a b, or = if is_first. LibTorch's products of 16-bit matrices have float32 sums on a GPU alone.
  void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, bool is_first) const {
    const auto right = b.to(a.scalar_type());
    if (a.is_cuda() && a.scalar_type() != wide_) {
      is_first ? at::mm_out(sum, a, right, wide_) : at::addmm_out(sum, sum, a, right, wide_);
    } else if (a.scalar_type() == wide_) {
      is_first ? at::mm_out(sum, a, right) : sum.addmm_(a, right);
    } else {
      const auto product = at::mm(a, right);
      is_first ? sum.copy_(product) : sum.add_(product);
    }
  }

 public:
  static std::int64_t most_rows(const at::Tensor& input, const at::Tensor& weight, at::ScalarType dtype) {
    const auto bytes_of_row = weight.size(0) * static_cast<std::int64_t>(c10::elementSize(dtype));
    return std::max(fewest_rows, chunk_bytes(input) / bytes_of_row);
  }

 private:
  at::Tensor input_, weight_, bias_;
  const Wanted& wanted_;
  at::ScalarType wide_;
  const gpu::Library* library_;
  at::Tensor prepared_, prepared_bias_;  // on a GPU
};

// Gradients are computed in forward, for the logits' sake, and scaled in backward. bias: empty if there is none, since
// apply() takes no undefined tensors.
struct LinearCrossEntropy final : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& maybe_bias, const Wanted& wanted,
                            bool is_recorded) {
    const auto bias = maybe_bias.numel() == 0 ? at::Tensor() : maybe_bias;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    Gradients gradients;
    const auto wants = [&](const at::Tensor& tensor) {
      return is_recorded && tensor.defined() && tensor.requires_grad();
    };
    auto loss = ChunkedHead(input, weight, bias, wanted).run({wants(input), wants(weight), wants(bias)}, gradients);
    context->save_for_backward({input, weight, bias, wanted.target, wanted.class_weight, wanted.sample_weight});
    auto& data = context->saved_data;
    data["gradients"] = std::vector<Given>{gradients.input, gradients.weight, gradients.bias};
    data["dtypes"] = std::vector<std::int64_t>{std::int64_t(input.scalar_type()), std::int64_t(weight.scalar_type()),
                                               std::int64_t(wanted.dtype)};
    data["sums"] = wanted.sums;
    data["ignored"] = wanted.ignored;
    data["smoothing"] = wanted.smoothing;
    return loss;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& above) {
    if (at::GradMode::is_enabled()) return by_operators(*context, above[0]);
    const bool is_kept = torch::autograd::get_current_graph_task_keep_graph();
    auto& data = context->saved_data;
    TORCH_CHECK(data.find("gradients") != data.end(),
                "linear_cross_entropy: backward was called a second time; give the first one retain_graph = true");
    const auto dtypes = data["dtypes"].toIntVector();
    variable_list results;
    for (const at::IValue& gradient : data["gradients"].toListRef()) {
      results.push_back(gradient.isTensor() ? gradient.toTensor() : at::Tensor());
    }
    if (!is_kept) data.erase("gradients");
    const bool is_one = above[0].is_cpu() && above[0].item<double>() == 1;
    for (std::size_t i = 0; i < results.size(); ++i) {
      auto& gradient = results[i];
      if (!gradient.defined()) continue;
      if (!is_one) gradient = is_kept ? gradient * above[0] : gradient.mul_(above[0]);
      gradient = gradient.to(static_cast<at::ScalarType>(dtypes[i == 0 ? 0 : 1]));
    }
    results.resize(5);
    return results;
  }

 private:
  // Has a derivative itself.
  static variable_list by_operators(torch::autograd::AutogradContext& context, const at::Tensor& above) {
    const auto saved = context.get_saved_variables();
    auto& data = context.saved_data;
    const auto dtype = static_cast<at::ScalarType>(data["dtypes"].toIntVector()[2]);
    const Wanted wanted{
        saved[3], saved[4], saved[5], data["sums"].toBool(), data["ignored"].toInt(), data["smoothing"].toDouble(),
        0,        dtype};
    auto results = gradients_of_operators({saved[0], saved[1], saved[2]}, {above}, [&](const variable_list& inputs) {
      const auto bias = inputs[2].defined() ? Given(inputs[2].to(dtype)) : Given();
      return variable_list{loss_of(widened(at::linear(inputs[0].to(dtype), inputs[1].to(dtype), bias)), wanted)};
    });
    results.resize(5);
    return results;
  }
};

at::ScalarType dtype_of(const at::Tensor& input) {
  const auto device = input.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device) && input.scalar_type() != at::kDouble;
  return casts ? at::autocast::get_autocast_dtype(device) : input.scalar_type();
}

// Gradients of 16-bit weights are added up in float32, which must cost less than all logits do.
bool is_worth_chunks(const at::Tensor& input, const at::Tensor& weight, at::ScalarType dtype) {
  const auto rows = input.size(0);
  if (gpu_library(input.device()) != nullptr) {
    return rows * weight.size(0) * static_cast<std::int64_t>(c10::elementSize(dtype)) > least_on_gpu;
  }
  if (rows <= ChunkedHead::most_rows(input, weight, dtype)) return false;
  return c10::elementSize(weight.scalar_type()) >= 4 || 10 * rows > 4 * weight.size(1);
}

// The kernel of the operator, below interception.
at::Tensor chunked(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target, const Given& bias,
                   const Given& class_weight, const Given& sample_weight, bool sums, std::int64_t ignored,
                   double smoothing, std::int64_t chunk_rows) {
  const Wanted wanted{target,  given(class_weight), given(sample_weight), sums,
                      ignored, smoothing,           chunk_rows,           dtype_of(input)};
  return LinearCrossEntropy::apply(input, weight, bias ? *bias : at::empty({0}, weight.options()), wanted,
                                   at::GradMode::is_enabled());
}

TORCH_LIBRARY_FRAGMENT(vernier, library) {
  library.def(
      "linear_cross_entropy(Tensor input, Tensor weight, Tensor target, Tensor? bias, Tensor? class_weight, "
      "Tensor? sample_weight, bool sums, int ignored, float smoothing, int chunk_rows) -> Tensor",
      &chunked);
}

void check_shapes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target) {
  TORCH_CHECK(weight.dim() == 2 && input.dim() > 1 && input.size(-1) == weight.size(1),
              "linear_cross_entropy: input [..., width] and weight [classes, width] have the shapes ", input.sizes(),
              " and ", weight.sizes());
  TORCH_CHECK(target.sizes() == input.sizes().slice(0, static_cast<std::size_t>(input.dim()) - 1),
              "linear_cross_entropy: the targets of an input ", input.sizes(), " have the shape ", target.sizes());
}

}  // namespace

torch::Tensor linear_cross_entropy(const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& target,
                                   const LinearCrossEntropyOptions& options) {
  check_shapes(input, weight, target);
  const auto maybe = [](const at::Tensor& x) { return x.defined() ? Given(x.flatten()) : Given(); };
  const auto bias = maybe(options.bias), classes = maybe(options.class_weight), samples = maybe(options.sample_weight);
  const auto rows = input.flatten(0, -2), targets = target.flatten();
  const auto dtype = dtype_of(input);
  const bool has_other_slopes = (classes && classes->requires_grad()) || (samples && samples->requires_grad()) ||
                                input._fw_grad(0).defined() || weight._fw_grad(0).defined();
  const bool is_asked_for = options.chunk_rows > 0 || is_worth_chunks(rows, weight, dtype);
  if (is_asked_for && !has_other_slopes && !is_changed(weight)) {
    static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("vernier::linear_cross_entropy", "");
    return handle.typed<decltype(chunked)>().call(rows, weight, targets, bias, classes, samples, options.sums,
                                                  options.ignore_index, options.label_smoothing, options.chunk_rows);
  }
  const Wanted wanted{targets,
                      given(classes),
                      given(samples),
                      options.sums,
                      options.ignore_index,
                      options.label_smoothing,
                      options.chunk_rows,
                      dtype};
  return loss_of(widened(at::linear(input, weight, bias).flatten(0, -2)), wanted);
}

}  // namespace vernier
