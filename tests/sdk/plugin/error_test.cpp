#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <any>
#include <array>
#include <bitset>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <variant>

#include "core/reworded_error.h"
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
      {"CUDA error: misaligned address\n" + many + "\nand more", "CUDA error: misaligned address"},
      {"it failed\n" + many + "\nValueError: the cause\n", "it failed: the cause"},
      {"short\ntext", "short text"},
  };
  for (const auto& [text, message] : cases) CHECK(vernier::message(std::runtime_error(text)) == message);
  const auto own = "our own text\n" + many;
  CHECK(vernier::message(Error(own)) == "our own text " + many);
}

// Each text is what a library says.
TEST_CASE("error: texts of other libraries become words of ours") {
  const struct {
    const char *theirs, *ours;
  } cases[] = {
      {"filesystem error: cannot create directories: Permission denied [/a/b c]",
       "/a/b c: cannot create directories: Permission denied"},
      {"filesystem error: cannot rename: No such file or directory [a] [b]",
       "a: cannot rename, to b: No such file or directory"},
      {"filesystem error: recursive directory iterator cannot open directory: Permission denied [/root/x]",
       "/root/x: the folder cannot be read: Permission denied"},
      {"filesystem error: directory iterator cannot advance: Input/output error",
       "a folder cannot be read: Input/output error"},
      {"filesystem error: in file_size: No such file or directory [x]", "x: file_size: No such file or directory"},
      {"[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
       "allocate 64802160024 bytes. Error code 12 (Cannot allocate memory)",
       "there is no memory left for 64802160024 bytes more"},
      {"std::bad_alloc", "there is no memory left"},
      {"std::bad_array_new_length", "there is no memory left"},
      {"cannot create std::vector larger than max_size()", "a size is larger than any memory"},
      {"vector::_M_default_append", "a size is larger than any memory"},
      {"basic_string::_M_create", "a size is larger than any memory"},
      {"std::bad_alloc", "there is no memory left"},
      {"vector::reserve", "a size is larger than any memory"},
      {"basic_string::append", "a size is larger than any memory"},
      {"stoi", "a text is not a number, or is too large"},
      {"bad lexical cast: source type value could not be interpreted as target",
       "a text is not a number, or is too large"},
      {"basic_ios::clear: iostream error", "a file or a stream cannot be used"},
      {"boost::filesystem::directory_iterator::construct: Permission denied: \"/root\"", "/root: Permission denied"},
      {"[json.exception.type_error.302] type must be string, but is number", "type must be string, but is number"},
      {"[json.exception.parse_error.101] parse error at line 3, column 7: syntax error while parsing value - invalid "
       "literal; last read: 'x'",
       "line 3, column 7 is not JSON"},
      {"Error while parsing key-value pair: expected '=', saw ','", "it is not TOML: expected '=', saw ','"},
      {"Premature end of JPEG file", "it is cut short"},
      {"Empty input file", "it is cut short"},
      {"Not a JPEG file: starts with 0x3c 0x68", "it does not begin as a JPEG does"},
      {"Unsupported JPEG process: SOF type 0xc3", "it is of a kind not read"},
      {"Unsupported JPEG data precision 12", "it is of a kind not read"},
      {"Maximum supported image dimension is 65500 pixels", "its sides are too long"},
      {"Corrupt JPEG data: 3 extraneous bytes before marker 0xd9", "its data are damaged"},
      {"Huffman table 0x01 was not defined", "its data are damaged"},
      {"IDAT: CRC error", "its data are damaged"},
      {"IDAT: invalid distance too far back", "its data are damaged"},
      {"IHDR: CRC error", "its header is damaged"},
      {"Invalid IHDR data", "its header is damaged"},
      {"Not enough image data", "it is cut short"},
      {"Not a PNG file", "it does not begin as a PNG does"},
  };
  for (const auto& [theirs, ours] : cases) {
    CHECK(vernier::message(std::runtime_error(theirs)) == ours);
    CHECK(vernier::reworded_error(theirs, "something else") == ours);
    CHECK(vernier::message(Error(theirs)) == theirs);
  }
  CHECK(vernier::reworded_error("unheard of") == "unheard of");
  const std::string long_text(1'000'000, 'x');
  CHECK(vernier::reworded_error(long_text) == long_text);
  CHECK(vernier::reworded_error("unheard of", "its data are damaged") == "its data are damaged");
}

// Each is thrown by the C++ library itself, so that the texts are those of this one.
TEST_CASE("error: mistakes in code that the C++ library finds are said in words, and as mistakes") {
  const std::string mistake = "; that is a mistake in the code, so report it with this command";
  const std::vector<int> none, three(3);
  const std::array<int, 3> fixed = {};
  const std::string text = "abc";
  const std::map<int, int> empty;
  const std::unordered_map<int, int> hashed;
  const std::variant<int, std::string> number = 1;
  const std::any any = 1;
  const std::function<void()> nothing;
  const std::optional<int> absent;
  const std::weak_ptr<int> expired;
  const std::exception plain;
  const auto five = static_cast<std::size_t>(text.size() + 2);  // the compiler does not see that it is too large
  const std::tuple<std::function<void()>, std::string> cases[] = {
      {[&] { (void)none.at(0); }, "element 0 of 0 is asked for, counted from 0"},
      {[&] { (void)three.at(five); }, "element 5 of 3 is asked for, counted from 0"},
      {[&] { (void)fixed.at(five); }, "element 5 of 3 is asked for, counted from 0"},
      {[&] { (void)text.at(five); }, "element 5 of 3 is asked for, counted from 0"},
      {[&] { (void)text.substr(five); }, "place 5 of a text of 3 characters is asked for"},
      {[&] { (void)std::bitset<3>().test(five); }, "an entry is asked for that is not there"},
      {[&] { (void)empty.at(1); }, "an entry is asked for that is not there"},
      {[&] { (void)hashed.at(1); }, "an entry is asked for that is not there"},
      {[&] { (void)std::get<std::string>(number); }, "a value is taken for one of another type"},
      {[&] { (void)std::any_cast<std::string>(any); }, "a value is taken for one of another type"},
      {[&] { (void)dynamic_cast<const std::bad_alloc&>(plain); }, "a value is taken for one of another type"},
      {[&] { nothing(); }, "a value is used that is not there"},
      {[&] { (void)absent.value(); }, "a value is used that is not there"},
      {[&] { (void)std::shared_ptr<int>(expired); }, "a value is used that is not there"},
      {[&] { throw plain; }, "a value is used that is not there"}};
  for (const auto& [act, words] : cases) {
    try {
      act();
      FAIL_CHECK("it does not throw: ", words);
    } catch (const std::exception& exception) {
      CAPTURE(exception.what());
      CHECK(vernier::message(exception) == words + mistake);
    }
  }
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
  CHECK(renamed(Error("run.toml:6: task/toy: `data` is empty", Error::Kind::configuration, "task/toy")) ==
        configuration("run.toml:6: task/toy: `data` is empty"));
  CHECK(renamed(Error("it is not task/toy")) == failed("task/toy in step 3: it is not task/toy"));
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
