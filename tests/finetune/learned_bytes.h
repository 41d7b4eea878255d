// A small model over bytes, for the programs that use one.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "run_folder.h"

namespace learned_bytes {

using Words = std::vector<std::string>;

// A model over bytes that has learned ten letters by heart.
struct Learned : RunFolder {
  Learned()
      : RunFolder(R"(
[run]
steps = 80
output = "out"
threads = 1
device = "cpu"
[task]
use = "gpt"
data = ["text.txt"]
layers = 1
heads = 2
width = 32
context = 32
batch_size = 8
sample_bytes = 0
[optimizer]
use = "adamw"
learning_rate = 2e-2
)") {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "abcdefghij";
    folder.write("text.txt", text);
    REQUIRE_MESSAGE(train({"--quiet"}) == 0, err);
  }
  // The text that it prints behind the prompt, without the line break.
  std::string generated(Words words) {
    words.insert(words.begin(), {"generate", "out"});
    REQUIRE_MESSAGE(call(words) == 0, err);
    REQUIRE(out.ends_with('\n'));
    return out.substr(0, out.size() - 1);
  }
  std::string refused(Words words) {
    words.insert(words.begin(), "generate");
    CHECK(call(words) == 2);
    CHECK(out.empty());
    CHECK_MESSAGE(is_one_line(err), err);
    return err;
  }
};

}  // namespace learned_bytes
