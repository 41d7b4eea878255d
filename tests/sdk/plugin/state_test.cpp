#include <doctest/doctest.h>
#include <vernier/state.h>

#include <cmath>
#include <limits>

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

}  // namespace state_test
