#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>

#include "thrown.h"

namespace error_test {

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

TEST_CASE("error: a message is safe to print, and not endless") {
  CHECK(vernier::message(Error("a\x1b[31m\xff")) == "a\\x1b[31m\\xff");
  const auto long_one = vernier::message(Error("run.toml:3: " + std::string(1 << 20, 'x') + "; give a shorter one"));
  CHECK(long_one.size() < 4000);
  CHECK(long_one.starts_with("run.toml:3: xx"));
  CHECK(long_one.ends_with("xx; give a shorter one"));
}

TEST_CASE("error: LibTorch's messages come without its backtrace") {
  try {
    torch::ones({2, 3}).mm(torch::ones({2, 3}));
    FAIL("the shapes do not fit");
  } catch (const std::exception& exception) {
    CHECK(vernier::message(exception) == "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
  }
}

TEST_CASE("error: tracebacks of other libraries are left out") {
  const std::string here = "    return self.e(c)\n           ~~~~~~ <--- HERE\n", many(500, '.');
  const struct {
    std::string text, message;
  } cases[] = {
      {"The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript, serialized code "
       "(most "
       "recent call last):\n  File \"code/__torch__.py\", line 7, in forward\n" +
           here + "\nTraceback of TorchScript, original code (most recent call last):\n" + here +
           "RuntimeError: Expected Long, Int; but got CPUFloatType\n",
       "Expected Long, Int; but got CPUFloatType (in `return self.e(c)`)"},
      {"[json.exception.type_error.316] invalid UTF-8 byte at index 2: 0xF6", "invalid UTF-8 byte at index 2: 0xF6"},
      {"[enforce fail at alloc_cpu.cpp:127] err == 0. you tried to allocate 8 bytes",
       "err == 0. you tried to allocate 8 bytes"},
      {"CUDA error: misaligned address\n" + many + "\nand more", "CUDA error: misaligned address"},
      {"it failed\n" + many + "\nValueError: the cause\n", "it failed: the cause"},
      {"short\ntext", "short text"},
  };
  for (const auto& [text, message] : cases) CHECK(vernier::message(std::runtime_error(text)) == message);
  const auto own = "our own text\n" + many;
  CHECK(vernier::message(Error(own)) == "our own text " + many);
}

TEST_CASE("error: an exception is rethrown with its plugin, once, and the cause nested") {
  const auto renamed = [](const auto& exception, const std::string& place = "") {
    return thrown_by([&] {
      try {
        throw exception;
      } catch (...) {
        vernier::rethrow_naming("task/toy", " in step 3", Error::Kind::training, place);
      }
    });
  };
  CHECK(renamed(std::runtime_error("boom\n")) == failed("task/toy in step 3: boom"));
  CHECK(renamed(Error("boom", Error::Kind::plugin), "run.toml:5") == refused("run.toml:5: task/toy in step 3: boom"));
  CHECK(renamed(Error("run.toml:6: task/toy: `data` is empty", Error::Kind::configuration)) ==
        configuration("run.toml:6: task/toy: `data` is empty"));
  CHECK(renamed(42) == failed("task/toy in step 3: it threw no std::exception"));
  try {
    try {
      throw std::out_of_range("the cause");
    } catch (...) {
      vernier::rethrow_naming("task/toy", "", Error::Kind::training);
    }
  } catch (const Error& error) {
    CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
  }
}

}  // namespace error_test
