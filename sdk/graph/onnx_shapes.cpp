// Rules of operators that move, cut, join and make tensors.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "onnx_rules.h"

namespace vernier::graph {

// One size that depends on the batch is what is left over: -1.
Name reshaped(Call& call, const Name& name, const Sizes& sizes) {
  std::vector<std::int64_t> numbers;
  for (const auto& size : sizes) numbers.push_back(size.is_per_sample ? -1 : size.number);
  const bool is_simple = std::ranges::count(numbers, -1) <= 1 && std::ranges::count(numbers, 0) == 0;
  return call.onnx.add("Reshape", {name, is_simple ? call.onnx.ints(numbers) : call.onnx.sizes(sizes)});
}

Name transposed(Call& call, const Name& name, const std::vector<std::int64_t>& order) {
  return call.onnx.add("Transpose", {name}, {{"perm", order}});
}

namespace {

std::vector<std::int64_t> order_of(std::size_t dimensions) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < dimensions; ++i) order.push_back(static_cast<std::int64_t>(i));
  return order;
}

void reshape(Call& call) {
  call.set(reshaped(call, call.name("self"), call.result().sizes));
}

// movedim: the others keep their order.
std::vector<std::int64_t> moved(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to,
                                std::size_t dimensions) {
  std::vector<std::int64_t> order(dimensions, -1);
  for (std::size_t i = 0; i < from.size(); ++i) order[static_cast<std::size_t>(to[i])] = from[i];
  std::int64_t next = 0;
  for (auto& place : order) {
    while (std::ranges::find(from, next) != from.end()) ++next;
    if (place < 0) place = next++;
  }
  return order;
}

void transpose(Call& call) {
  const auto dimensions = call.value("self").sizes.size();
  auto order = order_of(dimensions);
  if (call.has("dim0")) {
    std::swap(order[static_cast<std::size_t>(call.dimension("dim0", dimensions))],
              order[static_cast<std::size_t>(call.dimension("dim1", dimensions))]);
  } else if (call.has("source")) {
    order = moved(call.dimensions("source", dimensions), call.dimensions("destination", dimensions), dimensions);
  } else if (call.has("dims")) {
    order = call.dimensions("dims", dimensions);
  } else {
    std::ranges::reverse(order);  // t
  }
  call.set(transposed(call, call.name("self"), order));
}

void expand(Call& call) {
  call.set(call.onnx.add("Expand", {call.name("self"), call.onnx.sizes(call.result().sizes)}));
}

void repeat(Call& call) {
  auto sizes = call.value("self").sizes;
  const auto repeats = call.integers("repeats");
  const bool is_longer = repeats.size() > sizes.size();
  while (sizes.size() < repeats.size()) sizes.insert(sizes.begin(), Size{1});
  const auto x = is_longer ? reshaped(call, call.name("self"), sizes) : call.name("self");
  call.set(call.onnx.add("Tile", {x, call.onnx.ints(repeats)}));
}

// Each element so many times: a dimension behind `dim` is widened, and joined with it.
void repeat_interleave(Call& call) {
  if (call.overload() != "self_int" || !call.has("dim")) call.refuse("it repeats by a tensor, or over all dimensions");
  const auto& from = call.value("self").sizes;
  const auto place = call.dimension("dim", from.size()) + 1;
  auto widened = from;
  widened.insert(widened.begin() + place, Size{call.integer("repeats")});
  const auto x = call.onnx.add("Unsqueeze", {call.name("self"), call.onnx.ints({place})});
  call.set(reshaped(call, call.onnx.add("Expand", {x, call.onnx.sizes(widened)}), call.result().sizes));
}

Names names_of(Call& call, const char* list) {
  Names names;
  for (const auto value : call.values(list)) {
    const auto name = call.onnx.name_of(value);
    names.push_back(call.onnx.value(value).dtype() == call.dtype() ? name : call.onnx.cast(name, call.dtype()));
  }
  return names;
}

void cat(Call& call) {
  const auto axis = call.dimension("dim", call.result().sizes.size());
  call.set(call.onnx.add("Concat", names_of(call, "tensors"), {{"axis", axis}}));
}

void stack(Call& call) {
  const auto axis = call.dimension("dim", call.result().sizes.size());
  auto names = names_of(call, "tensors");
  for (auto& name : names) name = call.onnx.add("Unsqueeze", {name, call.onnx.ints({axis})});
  call.set(call.onnx.add("Concat", names, {{"axis", axis}}));
}

Name sliced(Call& call, const Name& name, std::int64_t axis, std::int64_t start, std::int64_t end,
            std::int64_t step = 1) {
  return call.onnx.add(
      "Slice", {name, call.onnx.ints({start}), call.onnx.ints({end}), call.onnx.ints({axis}), call.onnx.ints({step})});
}

// split, chunk, tensor_split: the parts have the sizes that LibTorch gave them.
void split(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto x = call.name("self");
  std::int64_t start = 0;
  for (const auto slot : call.slots()) {
    const auto size = call.onnx.value(slot).sizes[static_cast<std::size_t>(axis)];
    if (size.is_per_sample) call.refuse("it splits the samples");
    call.onnx.set_name(slot, sliced(call, x, axis, start, start + size.number));
    start += size.number;
  }
}

Name picked(Call& call, const Name& name, std::int64_t axis, std::int64_t index) {
  return call.onnx.add("Gather", {name, call.onnx.number(static_cast<double>(index), torch::kInt64)}, {{"axis", axis}});
}

void unbind(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto x = call.name("self");
  std::int64_t index = 0;
  for (const auto slot : call.slots()) call.onnx.set_name(slot, picked(call, x, axis, index++));
}

void select(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(picked(call, call.name("self"), axis, call.integer("index")));
}

void slice(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto last = std::numeric_limits<std::int64_t>::max();
  const auto start = call.has("start") ? call.integer("start") : 0;
  const bool is_whole = call.has("end") && call.at("end").kind == Argument::Kind::size &&
                        call.at("end").size == call.value("self").sizes[static_cast<std::size_t>(axis)];
  const auto end = call.has("end") && !is_whole ? call.integer("end") : last;
  call.set(sliced(call, call.name("self"), axis, start, end, call.has("step") ? call.integer("step") : 1));
}

void narrow(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto& length = call.at("length");
  if (length.kind == Argument::Kind::size) {
    if (length.size != call.value("self").sizes[static_cast<std::size_t>(axis)]) call.refuse("it cuts the samples");
    return call.set(call.name("self"));
  }
  const auto start = call.integer("start");
  call.set(sliced(call, call.name("self"), axis, start, start + call.integer("length")));
}

void index_select(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(call.onnx.add("Gather", {call.name("self"), call.name("index")}, {{"axis", axis}}));
}

void gather(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(call.onnx.add("GatherElements", {call.name("self"), call.name("index")}, {{"axis", axis}}));
}

// x[:, rows, columns]: the indexed dimensions come first, and go back if they are neighbours.
void index_by_several(Call& call, const std::vector<std::int64_t>& axes, const std::vector<std::size_t>& chosen) {
  const auto rank = call.value("self").sizes.size();
  std::size_t index_rank = 0;
  for (const auto value : chosen) index_rank = std::max(index_rank, call.onnx.value(value).sizes.size());
  const bool are_neighbours = axes.back() - axes.front() + 1 == std::ssize(axes);
  const auto first = are_neighbours ? axes.front() : 0;
  const auto begin = call.result().sizes.begin() + first;
  const Sizes common(begin, begin + static_cast<std::ptrdiff_t>(index_rank));
  Names parts;
  for (const auto value : chosen) {
    auto name = call.onnx.name_of(value);
    if (call.onnx.value(value).dtype() != torch::kInt64) name = call.onnx.cast(name, torch::kInt64);
    name = call.onnx.add("Expand", {name, call.onnx.sizes(common)});
    parts.push_back(call.onnx.add("Unsqueeze", {name, call.onnx.ints({-1})}));
  }
  auto order = axes;
  for (const auto axis : order_of(rank)) {
    if (std::ranges::find(axes, axis) == axes.end()) order.push_back(axis);
  }
  const auto places = call.onnx.add("Concat", parts, {{"axis", std::int64_t{-1}}});
  auto found = call.onnx.add("GatherND", {transposed(call, call.name("self"), order), places});
  if (first > 0) {  // [index…, before…, after…] to [before…, index…, after…]
    std::vector<std::int64_t> back;
    const auto count = static_cast<std::int64_t>(index_rank);
    for (std::int64_t i = 0; i < first; ++i) back.push_back(count + i);
    for (std::int64_t i = 0; i < count; ++i) back.push_back(i);
    for (auto i = count + first; i < std::ssize(call.result().sizes); ++i) back.push_back(i);
    found = transposed(call, found, back);
  }
  call.set(found);
}

// x[:, index]
void index(Call& call) {
  std::vector<std::int64_t> axes;
  std::vector<std::size_t> chosen;
  const auto& items = call.at("indices").items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != Argument::Kind::value) continue;
    if (call.onnx.value(items[i].value).dtype() == torch::kBool) call.refuse("it has a mask as index");
    axes.push_back(static_cast<std::int64_t>(i)), chosen.push_back(items[i].value);
  }
  if (axes.empty()) call.refuse("it has no index");
  if (axes.size() > 1) return index_by_several(call, axes, chosen);
  call.set(call.onnx.add("Gather", {call.name("self"), call.onnx.name_of(chosen[0])}, {{"axis", axes[0]}}));
}

// torch.roll: what leaves at one end comes in at the other.
void roll(Call& call) {
  const auto& sizes = call.value("self").sizes;
  const auto shifts = call.integers("shifts"), axes = call.dimensions("dims", sizes.size());
  if (axes.size() != shifts.size()) call.refuse("it rolls all dimensions as one");
  auto x = call.name("self");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto size = sizes[static_cast<std::size_t>(axes[i])];
    if (size.is_per_sample) call.refuse("it rolls the samples");
    const auto cut = size.number - ((shifts[i] % size.number) + size.number) % size.number;
    x = call.onnx.add("Concat", {sliced(call, x, axes[i], cut, size.number), sliced(call, x, axes[i], 0, cut)},
                      {{"axis", axes[i]}});
  }
  call.set(x);
}

void flip(Call& call) {
  const auto axes = call.dimensions("dims", call.value("self").sizes.size());
  const std::vector<std::int64_t> last(axes.size(), -1), before(axes.size(), std::numeric_limits<std::int64_t>::min());
  call.set(call.onnx.add("Slice", {call.name("self"), call.onnx.ints(last), call.onnx.ints(before),
                                   call.onnx.ints(axes), call.onnx.ints(last)}));
}

void embedding(Call& call) {
  call.set(call.onnx.add("Gather", {call.name("weight"), call.name("indices")}, {{"axis", std::int64_t{0}}}));
}

template <int number>
void filled(Call& call) {
  call.set(call.onnx.add("Expand", {call.onnx.number(number, call.dtype()), call.onnx.sizes(call.result().sizes)}));
}

void full(Call& call) {
  call.set(call.onnx.add("Expand", {call.name("fill_value", call.dtype()), call.onnx.sizes(call.result().sizes)}));
}

void arange(Call& call) {
  const auto dtype = call.dtype();
  const auto start = call.has("start") ? call.name("start", dtype) : call.onnx.number(0, dtype);
  const auto step = call.has("step") ? call.name("step", dtype) : call.onnx.number(1, dtype);
  auto end = call.name("end", dtype);
  if (call.at("end").kind == Argument::Kind::size) end = call.onnx.add("Squeeze", {end});
  call.set(call.onnx.add("Range", {start, end, step}));
}

template <int is_upper>
void triangle(Call& call) {
  const auto diagonal = static_cast<double>(call.integer("diagonal"));
  call.set(call.onnx.add("Trilu", {call.name("self"), call.onnx.number(diagonal, torch::kInt64)},
                         {{"upper", std::int64_t{is_upper}}}));
}

// Pads are written from the last dimension on, before and after each.
void pad(Call& call) {
  const auto given = call.integers("pad");
  const auto dimensions = call.value("self").sizes.size();
  std::vector<std::int64_t> pads(2 * dimensions);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto dimension = dimensions - 1 - i / 2;
    pads[dimension + (i % 2 == 0 ? 0 : dimensions)] = given[i];
  }
  auto mode = call.has("mode") ? call.text("mode") : std::string("constant");
  if (mode == "replicate") mode = "edge";
  if (mode == "circular") mode = "wrap";
  const auto value = call.has("value") ? call.name("value", call.dtype()) : call.onnx.number(0, call.dtype());
  call.set(call.onnx.add("Pad", {call.name("self"), call.onnx.ints(pads), mode == "constant" ? value : Name()},
                         {{"mode", mode}}));
}

void pixel_shuffle(Call& call) {
  call.set(call.onnx.add("DepthToSpace", {call.name("self")},
                         {{"blocksize", call.integer("upscale_factor")}, {"mode", std::string("CRD")}}));
}

void diff(Call& call) {
  if (call.integer("n") != 1) call.refuse("its n is not 1");
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto last = std::numeric_limits<std::int64_t>::max();
  Names parts;
  for (const char* part : {"prepend", "self", "append"}) {
    if (call.has(part)) parts.push_back(call.name(part, call.dtype()));
  }
  const auto x = parts.size() == 1 ? parts[0] : call.onnx.add("Concat", parts, {{"axis", axis}});
  call.set(call.onnx.add("Sub", {sliced(call, x, axis, 1, last), sliced(call, x, axis, 0, -1)}));
}

}  // namespace

void add_shape_rules(Rules& rules) {
  for (const char* name : {"view", "reshape", "_unsafe_view", "_reshape_alias", "view_as", "reshape_as", "flatten",
                           "unflatten", "squeeze", "unsqueeze", "view_copy"}) {
    rules.emplace(name, reshape);
  }
  rules.insert({
      {"transpose", transpose},
      {"permute", transpose},
      {"movedim", transpose},
      {"t", transpose},
      {"numpy_T", transpose},
      {"expand", expand},
      {"expand_as", expand},
      {"repeat", repeat},
      {"repeat_interleave", repeat_interleave},
      {"cat", cat},
      {"concat", cat},
      {"stack", stack},
      {"split", split},
      {"split_with_sizes", split},
      {"chunk", split},
      {"tensor_split", split},
      {"unbind", unbind},
      {"select", select},
      {"slice", slice},
      {"narrow", narrow},
      {"index_select", index_select},
      {"gather", gather},
      {"index", index},
      {"roll", roll},
      {"flip", flip},
      {"embedding", embedding},
      {"zeros", filled<0>},
      {"empty_like", filled<0>},
      {"zeros_like", filled<0>},
      {"new_zeros", filled<0>},
      {"ones", filled<1>},
      {"ones_like", filled<1>},
      {"new_ones", filled<1>},
      {"full", full},
      {"full_like", full},
      {"new_full", full},
      {"arange", arange},
      {"tril", triangle<0>},
      {"triu", triangle<1>},
      {"pad", pad},
      {"constant_pad_nd", pad},
      {"pixel_shuffle", pixel_shuffle},
      {"diff", diff},
  });
}

}  // namespace vernier::graph
