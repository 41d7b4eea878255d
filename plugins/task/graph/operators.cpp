#include "operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>
#include <vernier/graph/graph_export.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "collectives.h"

namespace graph {

namespace {

using at::Tensor;
using vernier::refuse;

void require(bool holds, const char* what) {
  if (!holds) refuse(what);
}

// Reads numbers of the host. An exported graph has no check of them.
template <class Read>
auto unrecorded(const Read& read) {
  const vernier::Unrecorded only_checked;
  return read();
}

bool are_within(const Tensor& numbers, std::int64_t least, std::int64_t most) {
  return unrecorded([&] { return at::all((numbers >= least).logical_and(numbers <= most)).item<bool>(); });
}

bool are_finite(const Tensor& numbers) {
  return unrecorded([&] { return at::all(numbers.isfinite()).item<bool>(); });
}

bool is_whole(const Tensor& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

// Makes a copy that no other operator can change before the backward pass reads it.
void keep(at::IValue& argument) {
  argument = argument.toTensor().clone();
}

// torch.nn.functional refuses it in Python. The operator would make the running variance NaN.
void batch_norm(const Call& call) {
  const auto& input = call["input"].toTensor();
  if (call["training"].toBool() && input.dim() > 1 && input.numel() == input.size(1)) {
    refuse("needs more than 1 value per channel in training");
  }
}

// The kernels read the sums of bags by the offsets, and rows by the indices.
void embedding_bag(const Call& call) {
  const auto &weight = call["weight"].toTensor(), &indices = call["indices"].toTensor(),
             &offsets = call["offsets"].toTensor();
  require(weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 && is_whole(indices) && is_whole(offsets),
          "needs a matrix of weights, and indices and offsets that are vectors of whole numbers");
  require(are_within(indices, 0, weight.size(0) - 1), "has indices that are not rows of the weights");
  const auto count = indices.size(0);
  const bool has_last = call["include_last_offset"].toBool();
  const bool do_grow = unrecorded([&] {
    return are_within(offsets, 0, count) && are_within(offsets.diff(), 0, count) &&
           (offsets.numel() == 0 ? !has_last && count == 0 : offsets[0].item<std::int64_t>() == 0) &&
           (!has_last || offsets[-1].item<std::int64_t>() == count);
  });
  require(do_grow, "has offsets that do not grow from 0 to the number of indices");
  const auto& weights = call["per_sample_weights"];
  require(weights.isNone() || weights.toTensor().sizes() == indices.sizes(), "needs a weight for each index");
  keep(call["indices"]), keep(call["offsets"]);
}

Tensor lengths_of(const at::IValue& lengths) {
  if (lengths.isTensor()) return lengths.toTensor().to(at::kCPU);
  return at::tensor(lengths.toIntVector(), at::kLong);
}

// Checks the lengths, targets and blank, because the kernels read as many targets as the lengths say, and one
// probability for each.
void ctc_loss(const Call& call) {
  const auto& log_probs = call["log_probs"].toTensor();
  const auto& targets = call["targets"].toTensor();
  require(log_probs.is_floating_point() && (log_probs.dim() == 2 || log_probs.dim() == 3) && log_probs.numel() > 0,
          "needs log-probabilities of the form [time, batch, class] or [time, class]");
  require(is_whole(targets) && (targets.dim() == 1 || targets.dim() == 2), "needs targets that are whole numbers");
  const auto samples = log_probs.dim() == 3 ? log_probs.size(1) : 1;
  const auto given = lengths_of(call["input_lengths"]), wanted = lengths_of(call["target_lengths"]);
  require(is_whole(given) && is_whole(wanted) && given.dim() <= 1 && wanted.dim() <= 1 && given.numel() == samples &&
              wanted.numel() == samples,
          "needs a length of the input and of the target for each sample");
  const auto width = targets.dim() == 2 ? targets.size(1) : targets.size(0);
  require(are_within(given, 0, log_probs.size(0)) && are_within(wanted, 0, width),
          "has lengths beyond its input or its targets");
  Tensor read = targets;
  if (targets.dim() == 2) {
    require(targets.size(0) == samples, "needs a row of targets for each sample");
    const auto places = at::arange(width, targets.options());
    read = targets.masked_select(places < wanted.to(targets.device()).reshape({-1, 1}));
  } else {
    const auto count = wanted.sum().item<std::int64_t>();
    require(count <= width, "has lengths beyond its targets");
    read = targets.narrow(0, 0, count);
  }
  const auto classes = log_probs.size(-1);
  require(are_within(read, 0, classes - 1), "has targets that are not classes");
  const auto blank = call["blank"].toInt();
  require(blank >= 0 && blank < classes, "has a blank that is not a class");
  keep(call["targets"]);
  for (const char* lengths : {"input_lengths", "target_lengths"}) {
    if (call[lengths].isTensor()) keep(call[lengths]);
  }
}

// The kernel reads a gain for each slice of the direction.
void weight_norm(const Call& call) {
  const auto &direction = call["v"].toTensor(), &gain = call["g"].toTensor();
  const auto dim = call["dim"].toInt();
  if (dim == -1 && gain.dim() == 0) return;  // one gain for all
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(direction.dim()), 1);
  const bool fits = dim >= 0 && dim < direction.dim() && direction.numel() > 0;
  if (fits) sizes[static_cast<std::size_t>(dim)] = direction.size(dim);
  require(fits && gain.sizes() == sizes && gain.scalar_type() == direction.scalar_type(),
          "needs a gain for each slice of its weight");
}

// The kernel writes ranges and scales for the tensor, or for each of its slices, wherever they are.
void moving_average(const Call& call) {
  const auto& self = call["self"].toTensor();
  const auto axis = call["ch_axis"].toInt();
  const bool has_slices = call["per_row_fake_quant"].toBool();
  require(self.numel() > 0 && (!has_slices || (axis >= 0 && axis < self.dim())),
          "needs numbers, and a dimension of them");
  for (const char* name : {"running_min", "running_max", "scale", "zero_point"}) {
    require(call[name].toTensor().numel() == (has_slices ? self.size(axis) : 1),
            "needs a range and a scale for each slice");
  }
  for (const char* name : {"observer_on", "fake_quant_on"})
    require(call[name].toTensor().numel() == 1, "needs one flag");
}

// The backward pass of LibTorch reads outside its memory if a number is NaN.
void finite_grid(const Call& call) {
  require(are_finite(call["grid"].toTensor()), "needs a grid of finite numbers");
}
void finite(const Call& call) {
  require(are_finite(call["self"].toTensor()), "needs finite numbers");
}

void not_empty(const Call& call) {
  require(call["self"].toTensor().numel() > 0, "needs numbers");
}

template <std::size_t count>
void padding_of(const Call& call) {
  require(call["padding"].toListRef().size() == count, "needs two paddings for each dimension");
}

// The kernels compute the reach of a window, and the size of the result, in numbers of 32 or 64 bits that overflow.
void window(const Call& call) {
  constexpr std::int64_t most = 1 << 24, farthest = 1 << 30;
  const auto numbers_of = [&](const char* name) {
    std::vector<std::int64_t> numbers;
    if (!call.schema.argumentIndexWithName(name) || !call[name].isList()) return numbers;
    for (const auto& each : call[name].toListRef()) numbers.push_back(each.toInt());
    return numbers;
  };
  const auto kernel = numbers_of("kernel_size"), dilation = numbers_of("dilation");
  for (const char* name : {"kernel_size", "stride", "padding", "dilation", "output_size"}) {
    require(std::ranges::all_of(numbers_of(name), [](auto number) { return number >= 0 && number <= most; }),
            "has a window, stride, padding or size that is below 0 or above 2^24");
  }
  for (std::size_t i = 0; i < kernel.size() && !dilation.empty(); ++i) {
    require(kernel[i] * dilation[std::min(i, dilation.size() - 1)] <= farthest, "has a window that is wider than 2^30");
  }
}

// Refuses the least whole number of a dtype, which the processor cannot divide by -1.
void not_least(const Call& call) {
  const bool has_mode = call.schema.argumentIndexWithName("rounding_mode").has_value();
  const bool divides = call.schema.name().starts_with("aten::div");
  if (divides && (!has_mode || call["rounding_mode"].isNone())) return;
  const auto& self = call["self"].toTensor();
  const auto& other = call["other"];
  const auto type =
      other.isTensor() ? at::result_type(self, other.toTensor()) : at::result_type(self, other.toScalar());
  if (type != at::kInt && type != at::kLong) return;
  const std::int64_t least =
      type == at::kInt ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
  const auto has_least = [&](const Tensor& tensor) {
    return unrecorded([&] { return at::any(tensor == least).item<bool>(); });
  };
  const bool is_least =
      has_least(self) || (other.isTensor() ? has_least(other.toTensor()) : other.isInt() && other.toInt() == least);
  require(!is_least, "cannot divide the least number of its dtype");
}

void attention(const Call& call) {
  const auto &query = call["query"].toTensor(), &key = call["key"].toTensor(), &value = call["value"].toTensor();
  require(query.dim() >= 2 && key.dim() == query.dim() && value.dim() == query.dim() &&
              query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2),
          "needs keys of the query's width, and as many values as keys");
  if (!call["enable_gqa"].toBool()) return;  // otherwise the heads of the query are divided by the number of the others
  require(query.dim() >= 3 && key.size(-3) > 0 && value.size(-3) > 0 && query.size(-3) % key.size(-3) == 0 &&
              query.size(-3) % value.size(-3) == 0,
          "needs heads of the keys and of the values that divide those of the query");
}

// The kernels of oneDNN trust the shapes of all weights.
void recurrent(const Call& call) {
  const auto name = call.schema.name();
  const bool is_lstm = name == "aten::lstm";
  const auto gates = is_lstm ? 4 : name == "aten::gru" ? 3 : 1;
  const auto& input = call["input"].toTensor();
  std::vector<Tensor> states = is_lstm ? call["hx"].toTensorVector() : std::vector{call["hx"].toTensor()};
  const auto weights = call["params"].toTensorVector();
  const auto layers = call["num_layers"].toInt();
  const bool has_biases = call["has_biases"].toBool();
  const std::int64_t directions = call["bidirectional"].toBool() ? 2 : 1;
  require(input.dim() == 3 && states.size() == (is_lstm ? 2 : 1) && states[0].dim() == 3 && states.back().dim() == 3,
          "needs an input and states of three dimensions");
  const auto out = states[0].size(2), hidden = states.back().size(2);
  const std::size_t each = 2 + (has_biases ? 2 : 0) + (out != hidden ? 1 : 0);
  require(layers > 0 && static_cast<std::size_t>(layers) <= weights.size() &&
              weights.size() == each * static_cast<std::size_t>(layers * directions),
          "needs weights for each layer and direction");
  for (const auto& state : states) {
    require(state.size(0) == layers * directions && state.size(1) == input.size(call["batch_first"].toBool() ? 0 : 1) &&
                state.scalar_type() == states[0].scalar_type(),
            "needs a state for each layer, direction and sample");
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const bool is_first = static_cast<std::int64_t>(i / each) < directions;
    std::vector<std::int64_t> sizes = {gates * hidden};
    if (i % each == 0) sizes.push_back(is_first ? input.size(2) : out * directions);
    if (i % each == 1) sizes.push_back(out);
    if (out != hidden && i % each == each - 1) sizes = {out, hidden};
    require(weights[i].sizes() == sizes, "has a weight of another shape than its state and input need");
    require(weights[i].scalar_type() == weights[0].scalar_type(), "has weights of several dtypes");
  }
}

// Each name, the overloads that are allowed, and what is done beside a call.
struct Row {
  std::string_view name, overloads;
  Rule rule = {};
};
constexpr Rule fill = {.is_filled = true};

const Row rows[] = {
#include "operators.inc"
};

// The operators of libraries that users named, with their libraries, which are never closed.
std::unordered_map<c10::OperatorName, std::string>& taken_operators() {
  static std::unordered_map<c10::OperatorName, std::string> all;
  return all;
}

// The libraries of the task whose graph is read now: another one in this process may have named more.
std::set<std::string>& named_libraries() {
  static std::set<std::string> named;
  return named;
}

void take_operators_of_one(const std::string& library) {
  auto& taken = taken_operators();
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto before = dispatcher.getAllOpNames();
  const std::unordered_set<c10::OperatorName> known(before.begin(), before.end());
  vernier::open_library(library);  // a library that is open already stays as it is
  const auto file = std::filesystem::canonical(library).string();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!known.contains(name)) taken.emplace(name, file);
  }
  const bool has_some = std::ranges::any_of(taken, [&](const auto& each) { return each.second == file; });
  if (!has_some) refuse("the library '" + library + "' registers no operators; TORCH_LIBRARY does");
  named_libraries().insert(file);
}

// "aten.add.Tensor" is the overload Tensor of aten::add, and "mine.twice.default" the only one of mine::twice.
std::optional<c10::OperatorName> name_of(const std::string& target) {
  const auto first = target.find('.'), last = target.rfind('.');
  if (first == std::string::npos || first == last) return std::nullopt;
  const auto overload = target.substr(last + 1);
  return c10::OperatorName(target.substr(0, first) + "::" + target.substr(first + 1, last - first - 1),
                           overload == "default" ? "" : overload);
}

}  // namespace

c10::IValue& Call::operator[](const char* name) const {
  const auto place = schema.argumentIndexWithName(name);
  TORCH_CHECK(place, "the schema has no ", name);
  return arguments.at(static_cast<std::size_t>(*place));
}

std::optional<c10::OperatorHandle> operator_of(const std::string& target) {
  const auto name = name_of(target);
  return name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
}

bool is_of_library(const std::string& target) {
  const auto name = name_of(target);
  return name && taken_operators().contains(*name);
}

const Rule* rule_of(const std::string& target) {
  static const Rule none, of_collectives{&check_collective};
  if (is_collective(target)) return &of_collectives;
  const auto name = name_of(target);
  if (!name) return nullptr;
  const auto taken = taken_operators().find(*name);
  if (taken != taken_operators().end() && named_libraries().contains(taken->second)) return &none;
  const auto overload = target.substr(target.rfind('.') + 1);
  for (const auto& row : rows) {
    if (name->name != "aten::" + std::string(row.name)) continue;
    std::istringstream words{std::string(row.overloads)};
    for (std::string word; words >> word;) {
      if (word == overload) return &row.rule;
    }
  }
  return nullptr;
}

void take_operators_of(const std::vector<std::string>& libraries) {
  named_libraries().clear();
  for (const auto& library : libraries) take_operators_of_one(library);
}

std::vector<std::string> all_targets() {
  std::vector<std::string> all;
  for (const auto& row : rows) {
    std::istringstream words{std::string(row.overloads)};
    for (std::string word; words >> word;) all.push_back(c10::str("aten.", row.name, ".", word));
  }
  return all;
}

}  // namespace graph
