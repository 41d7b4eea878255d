#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>

#include "thrown.h"

using vernier::Error;

TEST_CASE("error: a kind is an exit status, training if nothing is said") {
  CHECK(static_cast<int>(Error("x").kind()) == 4);
  CHECK(static_cast<int>(Error("x", Error::Kind::configuration).kind()) == 2);
  CHECK(static_cast<int>(Error("x", Error::Kind::plugin).kind()) == 3);
}

TEST_CASE("error: a message is one line") {
  CHECK(vernier::message(std::runtime_error("a\n  b\n\nc \n")) == "a b c");
  CHECK(vernier::message(std::runtime_error("\n")).empty());
  CHECK(vernier::message(Error("whole")) == "whole");
}

TEST_CASE("error: LibTorch's messages come without its backtrace") {
  try {
    torch::ones({2, 3}).mm(torch::ones({2, 3}));
    FAIL("the shapes do not fit");
  } catch (const std::exception& exception) {
    CHECK(vernier::message(exception) == "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
  }
}
