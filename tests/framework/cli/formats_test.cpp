// `vernier formats`: what it prints, and that mistakes end in one line.
#include <doctest/doctest.h>

#include "program.h"
#include "thrown.h"

namespace formats_test {

using Words = std::vector<std::string>;

namespace {

struct Ended {
  int status;
  std::string out, err;
};

Ended formats(Words words) {
  const TemporaryFolder folder;
  words.insert(words.begin(), "formats");
  Program program(std::move(words), folder.path());
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

}  // namespace

TEST_CASE("formats: the list, a format, its table, and how a number is rounded") {
  struct Row {
    Words words;
    const char* shows;
  };
  const Row rows[] = {
      {{}, "e4m3          8     448             2^-9"},
      {{"--list"}, "nvfp4         4     6"},
      {{"mxfp8"}, "blocks of 32 share a scale in e8m0, rule floor"},
      {{"e4m3", "--table"}, "\n7e 448\n7f nan\n80 -0\n"},
      {{"e2m1", "--table"}, "0 0\n1 0.5\n2 1\n3 1.5\n4 2\n5 3\n6 4\n7 6\n8 -0\n"},
      {{"e4m3", "--round", "0.3"}, "0.3 becomes 0.3125 (code 2a)\n  below  0.28125 (code 29), 0.01875 away\n"},
      {{"e4m3", "--round", "0.3", "--rounding", "zero"}, "becomes 0.28125 (code 29)"},
      {{"e4m3", "--round=-17"}, "it is a tie, which goes to the even code"},
      {{"e4m3", "--round", "17", "--rounding", "away"}, "it is a tie, which goes away from zero"},
      {{"e4m3", "--round", "1e9"}, "beyond the largest number, 448, and the format saturates"},
      {{"e2m1", "--round", "nan"}, "(no code)"},
      {{"posit8_1", "--round", "0.3"}, "posits round the bits of the code"},
      {{"int8", "--round", "3"}, "it is a number of the format"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.shows);
    const auto ended = formats(row.words);
    CHECK_MESSAGE(ended.status == 0, ended.err);
    CHECK_MESSAGE(says(ended.out, row.shows), ended.out);
  }
}

TEST_CASE("formats: mistakes end in one line") {
  const std::pair<Words, const char*> rows[] = {
      {{"e4n3"}, "did you mean \"e4m3\"?"},
      {{"--table"}, "name the format"},
      {{"e4m3", "e5m2"}, "name one format"},
      {{"e4m3", "--round", "many"}, "--round needs a number"},
      {{"e4m3", "--round", "1", "--rounding", "up"}, "there is no rounding \"up\""},
      {{"e4m3", "--round", "1", "--rounding", "stochastic"}, "stochastic draws"},
      {{"tf32", "--table"}, "for 16 at most"},
      {{"e4m3", "--table", "--round", "1"}, "not both"},
  };
  for (const auto& [words, text] : rows) {
    CAPTURE(text);
    const auto ended = formats(words);
    CHECK(ended.status == 2);
    CHECK_MESSAGE(says(ended.err, text), ended.err);
    CHECK(std::count(ended.err.begin(), ended.err.end(), '\n') == 1);
  }
}

}  // namespace formats_test
