// Rules of operators that move, cut, join and make tensors.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>
#include <optional>

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

Sizes written_sizes(const Value& value) {
  auto sizes = value.sizes;
  if (c10::isComplexType(value.dtype())) sizes.push_back({2});
  return sizes;
}

Sizes sizes_in(const Call& call, const char* argument) {
  Sizes all;
  auto items = call.at(argument).items;
  if (call.at(argument).kind == Argument::Kind::size) items = {call.at(argument)};
  for (const auto& item : items) {
    const bool is_size = item.kind == Argument::Kind::size;
    all.push_back(is_size ? item.size : Size{item.constant.toScalar().toLong()});
  }
  if (!all.empty()) return all;
  for (const auto number : call.integers(argument)) all.push_back({number});
  return all;
}

namespace {

std::vector<std::int64_t> order_of(std::size_t dimensions) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < dimensions; ++i) order.push_back(static_cast<std::int64_t>(i));
  return order;
}

void reshape(Call& call) {
  const auto& from = call.value("self");
  if (call.has("dtype")) {  // the bits stay, as a cast leaves them for bytes of bools alone
    const bool is_cast = from.dtype() == torch::kBool && c10::isIntegralType(call.dtype(), /*includeBool=*/true);
    const bool is_same = call.integer("dtype") == static_cast<int>(from.dtype());
    if (from.sizes != call.result().sizes || (!is_cast && !is_same)) {
      call.refuse("it reads the bits in another dtype; take --format pt2");
    }
    return call.set(call.name("self", call.dtype()));
  }
  call.set(reshaped(call, call.name("self"), written_sizes(call.result())));
}

void transpose(Call& call) {
  const auto dimensions = call.value("self").sizes.size();
  auto order = order_of(dimensions);
  if (call.has("dim0")) {
    std::swap(order[static_cast<std::size_t>(call.dimension("dim0", dimensions))],
              order[static_cast<std::size_t>(call.dimension("dim1", dimensions))]);
  } else if (call.has("dims")) {
    order = call.dimensions("dims", dimensions);
  } else {
    std::ranges::reverse(order);  // t
  }
  if (c10::isComplexType(call.dtype())) order.push_back(std::ssize(order));
  call.set(transposed(call, call.name("self"), order));
}

void expand(Call& call) {
  call.set(call.onnx.add("Expand", {call.name("self"), call.onnx.sizes(written_sizes(call.result()))}));
}

void repeat(Call& call) {
  auto sizes = call.value("self").sizes;
  const auto repeats = sizes_in(call, "repeats");
  const bool is_longer = repeats.size() > sizes.size();
  while (sizes.size() < repeats.size()) sizes.insert(sizes.begin(), Size{1});
  const auto x = is_longer ? reshaped(call, call.name("self"), sizes) : call.name("self");
  call.set(call.onnx.add("Tile", {x, call.onnx.sizes(repeats)}));
}

// Each element so many times: a dimension behind `dim` is widened, and joined with it.
void repeat_interleave(Call& call) {
  if (call.overload() != "self_int" || !call.has("dim")) call.refuse("it repeats by a tensor, or over all dimensions");
  const auto& from = call.value("self").sizes;
  const auto place = call.dimension("dim", from.size()) + 1;
  auto widened = from;
  widened.insert(widened.begin() + place, sizes_in(call, "repeats").at(0));
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

// The parts have the sizes that LibTorch gave them.
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
  const auto bound = [&](const char* name, std::int64_t other) {
    return call.onnx.sizes(call.has(name) ? sizes_in(call, name) : Sizes{{other}});
  };
  const auto start = bound("start", 0), end = bound("end", std::numeric_limits<std::int64_t>::max());
  call.set(call.onnx.add("Slice", {call.name("self"), start, end, call.onnx.ints({axis}), bound("step", 1)}));
}

void index_select(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(call.onnx.add("Gather", {call.name("self"), call.name("index")}, {{"axis", axis}}));
}

void gather(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(call.onnx.add("GatherElements", {call.name("self"), call.name("index")}, {{"axis", axis}}));
}

// For x[:, rows, columns], `axes` holds the dimensions 1 and 2, and `by` the names of rows and columns. A mask that
// does not depend on the input is the places where it is true.
struct Indexed {
  std::vector<std::int64_t> axes;
  Names by;
  std::vector<Sizes> sizes;
  std::optional<std::size_t> mask;  // it depends on the input
};

Indexed indexed_by(Call& call) {
  Indexed indexed;
  std::int64_t axis = 0;
  for (const auto& item : call.at("indices").items) {
    if (item.kind != Argument::Kind::value) {
      ++axis;
      continue;
    }
    const auto& index = call.onnx.value(item.value);
    const auto add = [&](const Name& name, const Sizes& sizes) {
      indexed.axes.push_back(axis++), indexed.by.push_back(name), indexed.sizes.push_back(sizes);
    };
    const bool is_mask = index.dtype() == torch::kBool || index.dtype() == torch::kUInt8;
    if (is_mask && index.kind == Value::Kind::constant) {
      for (const auto& places : index.tensor.nonzero().unbind(1))
        add(call.onnx.tensor(places.contiguous()), {{places.numel()}});
    } else {
      const auto name = call.onnx.name_of(item.value);
      if (is_mask) indexed.mask = item.value;
      add(is_mask || index.dtype() == torch::kInt64 ? name : call.onnx.cast(name, torch::kInt64), index.sizes);
    }
  }
  if (indexed.axes.empty()) call.refuse("it has no index");
  return indexed;
}

// For several indices, the indexed dimensions come first: [index…, before…, after…]. `places` has [index…, axes].
struct Places {
  std::vector<std::int64_t> order, back;  // order gives that form, and back gives [before…, index…, after…]
  Sizes common;                           // the sizes that all indices have together
  Name places;
};

Places places_of(Call& call, const Indexed& indexed) {
  Places all{indexed.axes, {}, {}, {}};
  const auto& axes = indexed.axes;
  for (const auto axis : order_of(call.value("self").sizes.size())) {
    if (std::ranges::find(axes, axis) == axes.end()) all.order.push_back(axis);
  }
  if (indexed.mask) call.refuse("it has a mask as index that depends on the input");
  for (const auto& sizes : indexed.sizes) {
    if (sizes.size() > all.common.size()) all.common.insert(all.common.begin(), sizes.size() - all.common.size(), {1});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (auto& size = all.common[all.common.size() - sizes.size() + i]; size == Size{1}) size = sizes[i];
    }
  }
  Names parts;
  for (const auto& index : indexed.by) {
    const auto name = call.onnx.add("Expand", {index, call.onnx.sizes(all.common)});
    parts.push_back(call.onnx.add("Unsqueeze", {name, call.onnx.ints({-1})}));
  }
  all.places = call.onnx.add("Concat", parts, {{"axis", std::int64_t{-1}}});
  // Neighbours go back to where they were.
  const auto first = axes.back() - axes.front() + 1 == std::ssize(axes) ? axes.front() : 0;
  const auto count = std::ssize(all.common), rest = std::ssize(all.order) - std::ssize(axes);
  for (std::int64_t i = 0; i < first; ++i) all.back.push_back(count + i);
  for (std::int64_t i = 0; i < count; ++i) all.back.push_back(i);
  for (auto i = first; i < rest; ++i) all.back.push_back(count + i);
  return all;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return back;
}

// x[:, index]
void index(Call& call) {
  const auto indexed = indexed_by(call);
  if (indexed.axes.size() == 1 && !indexed.mask) {
    return call.set(call.onnx.add("Gather", {call.name("self"), indexed.by[0]}, {{"axis", indexed.axes[0]}}));
  }
  const auto at = places_of(call, indexed);
  call.set(
      transposed(call, call.onnx.add("GatherND", {transposed(call, call.name("self"), at.order), at.places}), at.back));
}

// x[:, index] = values
void index_put(Call& call) {
  const auto indexed = indexed_by(call);
  const auto& self = call.value("self").sizes;
  const auto values = call.name("values", call.dtype());
  const bool adds = call.flag("accumulate");
  if (indexed.mask) {
    // Numbers for each place where the mask is true would be as many as the input decides.
    auto sizes = call.onnx.value(*indexed.mask).sizes;
    const auto& given = call.value("values").sizes;
    const auto rest = std::ssize(self) - std::ssize(sizes) - indexed.axes[0];
    const bool is_one = std::ranges::all_of(given, [](auto& of) { return of == Size{1}; });
    if (adds || indexed.axes.size() > 1 || (!is_one && std::ssize(given) > rest)) {
      call.refuse("it writes another number to each place of a mask; write torch.where(mask, values, x)");
    }
    sizes.insert(sizes.begin(), static_cast<std::size_t>(indexed.axes[0]), Size{1});
    sizes.resize(self.size(), Size{1});
    const auto mask = reshaped(call, call.onnx.cast(indexed.by[0], torch::kBool), sizes);
    const auto fitting = is_one ? reshaped(call, values, {}) : values;
    return call.set(chosen(call, mask, fitting, call.name("self")));
  }
  const auto at = places_of(call, indexed);
  auto sizes = at.common;
  for (auto axis = at.order.begin() + std::ssize(indexed.axes); axis != at.order.end(); ++axis) {
    sizes.push_back(self[static_cast<std::size_t>(*axis)]);
  }
  Sizes wanted;  // x[:, index] has them
  for (const auto place : at.back) wanted.push_back(sizes[static_cast<std::size_t>(place)]);
  const auto updates = transposed(call, call.onnx.add("Expand", {values, call.onnx.sizes(wanted)}), inverse(at.back));
  const auto written = call.onnx.add("ScatterND", {transposed(call, call.name("self"), at.order), at.places, updates},
                                     {{"reduction", std::string(adds ? "add" : "none")}});
  call.set(transposed(call, written, inverse(at.order)));
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

}  // namespace

void add_shape_rules(Rules& rules) {
  for (const char* name : {"view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten", "squeeze",
                           "unsqueeze", "view_copy"}) {
    rules.emplace(name, reshape);
  }
  rules.insert({
      {"transpose", transpose},
      {"permute", transpose},
      {"t", transpose},
      {"expand", expand},
      {"repeat", repeat},
      {"repeat_interleave", repeat_interleave},
      {"cat", cat},
      {"stack", stack},
      {"split", split},
      {"split_with_sizes", split},
      {"unsafe_split", split},
      {"unsafe_chunk", split},
      {"unbind", unbind},
      {"select", select},
      {"slice", slice},
      {"index_select", index_select},
      {"gather", gather},
      {"index", index},
      {"index_put", index_put},
      {"roll", roll},
      {"flip", flip},
      {"embedding", embedding},
      {"zeros", filled<0>},
      {"zero", filled<0>},
      {"empty", filled<0>},
      {"new_empty", filled<0>},
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
  });
}

}  // namespace vernier::graph
