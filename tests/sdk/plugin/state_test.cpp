#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/plugin.h>
#include <vernier/state.h>

#include <cmath>
#include <limits>
#include <optional>

#include "thrown.h"

namespace state_test {

using vernier::State;

TEST_CASE("state: numbers and texts are exact") {
  State state;
  for (const std::int64_t value : {std::int64_t{0}, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max(), std::int64_t{9007199254740993}}) {
    state.put("integer", value);
    CHECK(state.integer("integer") == value);
  }
  state.put("int", -3);
  CHECK(state.integer("int") == -3);
  state.put("size", std::size_t{7});
  CHECK(state.integer("size") == 7);
  state.put("float", 0.1F);
  CHECK(state.real("float") == 0.1F);
  state.put("largest", std::numeric_limits<std::uint64_t>::max());
  std::uint64_t largest = 0;
  state.get("largest", largest, torch::kCPU);
  CHECK(largest == std::numeric_limits<std::uint64_t>::max());
  int small = 5;
  state.put("far", std::int64_t{1} << 40);
  CHECK(thrown_by([&] { state.get("far", small, torch::kCPU); }).text ==
        "the saved 'far' is 1099511627776, which does not fit into the member");
  CHECK(small == 5);
  for (const double value : {0.1, -0.0, 5e-324, 1.7976931348623157e308, HUGE_VAL}) {
    state.put("real", value);
    CHECK(state.real("real") == value);
    CHECK(std::signbit(state.real("real")) == std::signbit(value));
  }
  state.put("real", std::nan(""));
  CHECK(std::isnan(state.real("real")));
  for (const std::string& value :
       {std::string(), std::string("a\0b", 3), std::string("\xff\xfe"), std::string(10000, 'x')}) {
    state.put("text", value);
    CHECK(state.text("text") == value);
  }
}

TEST_CASE("state: tensors are shared, not copied") {
  State state;
  const auto tensor = torch::zeros({2});
  state.put("t", tensor);
  tensor.fill_(3);
  CHECK(state.tensor("t").is_same(tensor));
}

TEST_CASE("state: parts are taken out as they were put in") {
  State inner;
  inner.put("a", std::int64_t{1});
  inner.put("b/c", std::int64_t{2});
  State outer;
  outer.put("plugin/x", inner);
  outer.put("plugin/x#2", inner);
  outer.put("plugin/xy/a", std::int64_t{3});
  CHECK(outer.tensors.size() == 5);
  const State part = outer.part("plugin/x");
  CHECK(part.tensors.size() == 2);
  CHECK(part.integer("a") == 1);
  CHECK(part.integer("b/c") == 2);
  CHECK(part.part("b").integer("c") == 2);
  CHECK(outer.part("plugin").tensors.size() == 5);
  CHECK(outer.part("plug").tensors.empty());
  CHECK(outer.has("plugin/xy/a"));
  inner.put("a", 5);
  outer.put("plugin/x", inner);
  CHECK(outer.tensors.size() == 5);
  CHECK(outer.integer("plugin/x/a") == 5);
  CHECK(inner.integer("a") == 5);
  CHECK_FALSE(outer.has("plugin"));
}

TEST_CASE("state: what is not there, or of another kind, is named") {
  State state;
  state.put("integer", std::int64_t{1});
  state.put("text", std::string("one"));
  state.put("list", torch::zeros({2}, torch::kInt64));
  CHECK(thrown_by([&] { state.tensor("scale"); }) ==
        failed("the saved state has no 'scale': it was written by another version or another plugin"));
  CHECK(thrown_by([&] { state.real("scale"); }).text.find("no 'scale'") != std::string::npos);
  CHECK(thrown_by([&] { state.real("integer"); }).text.find("'integer' as CPULongType") != std::string::npos);
  CHECK(thrown_by([&] { state.integer("text"); }).text.find("'text'") != std::string::npos);
  CHECK(thrown_by([&] { state.integer("list"); }).text.find("'list'") != std::string::npos);
  CHECK(thrown_by([&] { state.text("integer"); }).text.find("'integer'") != std::string::npos);
}

namespace {

struct Part {
  State save() const { return {{"x", torch::full({}, x)}}; }
  void load(const State& state) { x = state.tensor("x").item<double>(); }
  double x = 1;
};

// A plugin with a member of each kind that remember() takes.
class Remembering final : public vernier::Plugin {
 public:
  Remembering() {
    remember("count", count);
    remember("rate", rate);
    remember("done", done);
    remember("word", word);
    remember("half", half);
    remember("none", none);
    remember("slow", slow);
    remember("random", random);
    remember("part", part);
    remember("late", late);
    remember("epoch", epoch);
    remember("loss", loss);
    remember("", beside);
  }
  std::int64_t count = 3;
  int epoch = 1;
  double rate = 0.1;
  float loss = 0.5F;
  bool done = true;
  std::string word = "w";
  torch::Tensor half = torch::full({2}, 0.5, torch::kHalf), none;
  vernier::Tensors slow = {{"a.weight", torch::ones({3})}};
  at::Generator random = at::globalContext().defaultGenerator(torch::kCPU).clone();
  Part part, beside;
  std::optional<Part> late = Part();
};

}  // namespace

TEST_CASE("state: what a plugin remembers returns, in its own dtype, and a missing entry is named") {
  Remembering before;
  before.count = -7, before.rate = 1e-300, before.done = false, before.word = "other";
  before.half.fill_(0.25), before.slow["b.weight"] = torch::zeros({1}, torch::kDouble);
  before.part.x = 2, before.beside.x = 3, before.late->x = 4;
  before.epoch = -2, before.loss = 0.1F;
  before.random.set_current_seed(11);
  auto saved = before.save();
  saved.tensors["half"] = saved.tensors["half"].to(torch::kFloat);

  Remembering after;
  after.none = torch::ones({1});
  after.slow["c.weight"] = torch::ones({1});
  after.load(saved);
  CHECK(after.count == -7);
  CHECK(after.rate == 1e-300);
  CHECK(after.epoch == -2);
  CHECK(after.loss == 0.1F);
  CHECK_FALSE(after.done);
  CHECK(after.word == "other");
  CHECK((after.half.scalar_type() == torch::kHalf));
  CHECK(torch::equal(after.half, before.half));
  CHECK_FALSE(after.none.defined());
  CHECK(after.slow.size() == 2);
  CHECK((after.slow.at("b.weight").scalar_type() == torch::kDouble));
  CHECK(after.random.current_seed() == 11);
  CHECK(after.part.x == 2);
  CHECK(after.beside.x == 3);
  CHECK(after.late->x == 4);
  before.half.fill_(9);
  CHECK(after.half[0].item<double>() == 0.25);

  for (const char* name :
       {"count", "rate", "epoch", "loss", "done", "word", "half", "none", "random", "part/x", "late/x", "x"}) {
    auto without = before.save();
    without.tensors.erase(name);
    const auto name_of_entry = std::string(name).substr(std::string(name).rfind('/') + 1);
    CHECK(says(thrown_by([&] { Remembering().load(without); }).text, "'" + name_of_entry + "'"));
  }
}

}  // namespace state_test
