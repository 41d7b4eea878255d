#include <doctest/doctest.h>
#include <vernier/host.h>
#include <vernier/options.h>

#include <cmath>
#include <functional>

#include "thrown.h"

namespace options_test {

using vernier::Array;
using vernier::Options;
using vernier::Table;
using vernier::Value;
using Integers = std::vector<std::int64_t>;
using Reals = std::vector<double>;
using Words = std::vector<std::string>;

namespace {

Value written(int line, decltype(Value::data) data) {
  return {std::move(data), "run.toml:" + std::to_string(line)};
}

// Every type once; the n-th is written in line n.
Options sample() {
  return {"scaler/toy",
          {{"flag", written(1, true)},
           {"count", written(2, std::int64_t{7})},
           {"rate", written(3, 0.25)},
           {"word", written(4, std::string("blue"))},
           {"list", written(5, Array{written(5, std::int64_t{1}), written(5, std::int64_t{2})})},
           {"table", written(6, Table{})},
           {"mixed", written(7, Array{written(7, std::int64_t{1}), written(7, std::string("a"))})},
           {"empty", written(8, Array{})},
           {"words", written(9, Array{written(9, std::string("a")), written(9, std::string("b"))})},
           {"nan", written(10, std::nan(""))}},
          "run.toml:0"};
}

struct Refusal {
  std::function<void(Options&)> read;
  std::string text;
};

}  // namespace

TEST_CASE("options: what is written is read, what is not has its default") {
  Options options = sample();
  CHECK(options.get("flag", false, "m"));
  CHECK(options.get("count", 1, "m") == 7);
  CHECK(options.get("rate", 1.0, "m") == 0.25);
  CHECK(options.get("count", 1.0, "an integer serves as a number") == 7.0);
  CHECK(options.get("word", "red", "m") == "blue");
  CHECK(options.get("list", Integers{}, "m") == Integers{1, 2});
  CHECK(options.get("list", Reals{}, "m") == Reals{1, 2});
  CHECK(options.get("words", Words{}, "m") == Words{"a", "b"});
  CHECK(options.get("empty", Integers{3}, "m").empty());
  CHECK(options.choose("word", "red", {"red", "blue"}, "m") == "blue");
  CHECK(options.require<Words>("words", "m") == Words{"a", "b"});
  CHECK(options.require<std::string>("word", "m") == "blue");
  CHECK(options.get("word", Words{}, "m") == Words{"blue"});  // a list of one

  CHECK_FALSE(options.get("no_flag", false, "m"));
  CHECK(options.get("no_count", 3, "m") == 3);
  CHECK(options.get("no_rate", 0.1F, "m") == static_cast<double>(0.1F));
  CHECK(options.get("no_word", std::string("red"), "m") == "red");
  CHECK(options.get("no_list", Reals{0.5}, "m") == Reals{0.5});
  CHECK(options.choose("no_choice", "red", {"red", "blue"}, "m") == "red");
  CHECK(options.given("flag"));
  CHECK_FALSE(options.given("no_flag"));
  CHECK(options.owner() == "scaler/toy");
}

TEST_CASE("options: integers are exact up to 64 bits") {
  const std::int64_t large = 9007199254740993;  // 2^53 + 1, which no double is
  Options options("o", {{"seed", written(1, large)}}, "");
  CHECK(options.get("seed", 0, "m", vernier::at_least(0)) == large);
}

TEST_CASE("options: each refusal names place, plugin, key, and what it takes") {
  using vernier::above;
  using vernier::at_least;
  using vernier::between;
  const std::vector<Refusal> refusals = {
      {[](Options& o) { o.get("count", false, "m"); },
       "2: scaler/toy: `count` must be true or false, and is an integer (m)"},
      {[](Options& o) { o.get("rate", 1, "m"); }, "3: scaler/toy: `rate` must be an integer, and is a number (m)"},
      {[](Options& o) { o.get("word", 1.0, "m"); }, "4: scaler/toy: `word` must be a number, and is a string (m)"},
      {[](Options& o) { o.get("flag", "", "m"); }, "1: scaler/toy: `flag` must be a string, and is true or false (m)"},
      {[](Options& o) { o.get("table", 1, "m"); }, "6: scaler/toy: `table` must be an integer, and is a table (m)"},
      {[](Options& o) { o.get("count", Integers{}, "m"); },
       "2: scaler/toy: `count` must be a list of integers, and is an integer (m)"},
      {[](Options& o) { o.get("words", Reals{}, "m"); },
       "9: scaler/toy: `words` must be a list of numbers, and is a list (m)"},
      {[](Options& o) { o.get("mixed", Words{}, "m"); },
       "7: scaler/toy: `mixed` must be a list of strings, and is a list (m)"},
      {[](Options& o) { o.get("count", 1, "m", at_least(8)); },
       "2: scaler/toy: `count` must be at least 8, and is 7 (m)"},
      {[](Options& o) { o.get("count", 1, "m", above(7)); }, "2: scaler/toy: `count` must be above 7, and is 7 (m)"},
      {[](Options& o) { o.get("rate", 1.0, "m", between(0.5, 1)); },
       "3: scaler/toy: `rate` must be 0.5 to 1, and is 0.25 (m)"},
      {[](Options& o) { o.get("rate", 0.0, "m", {.max = 0.125}); },
       "3: scaler/toy: `rate` must be at most 0.125, and is 0.25 (m)"},
      {[](Options& o) { o.get("rate", 1.0, "m", {.min = 0.25, .max = 1, .above = true}); },
       "3: scaler/toy: `rate` must be 0.25 < x <= 1, and is 0.25 (m)"},
      {[](Options& o) { o.get("list", Integers{2}, "m", at_least(2)); },
       "5: scaler/toy: `list` must be at least 2, and is [1, 2] (m)"},
      {[](Options& o) { o.get("nan", 1.0, "m", at_least(0)); },
       "10: scaler/toy: `nan` must be at least 0, and is nan (m)"},
      {[](Options& o) { o.get("nan", 1.0, "m"); }, "10: scaler/toy: `nan` must be a number, and is nan (m)"},
      {[](Options& o) {
         o.choose("word", "red", {"red", "bleu"}, "m");
       },
       "4: scaler/toy: `word` is \"blue\"; did you mean \"bleu\"? It takes red | bleu"},
      {[](Options& o) {
         o.choose("word", "red", {"red", "green"}, "m");
       },
       "4: scaler/toy: `word` is \"blue\"; it takes red | green"},
      {[](Options& o) { o.require<Words>("data", "files to read"); }, "0: scaler/toy: `data` is needed: files to read"},
      {[](Options& o) { o.require<Words>("empty", "files to read"); },
       "8: scaler/toy: `empty` is needed: files to read"},
      {[](Options& o) { o.require<std::string>("words", "a file"); },
       "9: scaler/toy: `words` must be a string, and is a list (a file)"},
      {[](Options& o) { o.require<std::string>("data", "a file"); }, "0: scaler/toy: `data` is needed: a file"},
      {[](Options& o) { o.refuse("rate", "fits no size"); }, "3: scaler/toy: `rate` fits no size"},
      {[](Options& o) { o.refuse("absent", "is missing"); }, "0: scaler/toy: `absent` is missing"},
  };
  for (const auto& refusal : refusals) {
    Options options = sample();
    CHECK(thrown_by([&] { refusal.read(options); }) == configuration("run.toml:" + refusal.text));
  }
}

TEST_CASE("options: a key that nobody read is refused, with the nearest that is read") {
  const auto refusal_of = [](const char* key) {
    Options options("optimizer/toy", {{key, written(3, std::int64_t{1})}}, "run.toml:1");
    options.get("learning_rate", 1.0, "m");
    options.get("momentum", 0.0, "m");
    return thrown_by([&] { vernier::HostApi::refuse_unread(options); });
  };
  CHECK(refusal_of("momentum") == Thrown{});
  CHECK(
      refusal_of("learning_rat") ==
      configuration("run.toml:3: optimizer/toy: `learning_rat` is not an option here; did you mean `learning_rate`?"));
  CHECK(refusal_of("epsilon") == configuration("run.toml:3: optimizer/toy: `epsilon` is not an option here; `vernier "
                                               "plugins optimizer/toy` lists them"));
}

TEST_CASE("options: a text that TOML takes for a number says how to write it") {
  const auto refusal_of = [](double number, const std::string& where) {
    Options options("run", {{"name", Value{number, where}}}, "run.toml:1");
    return thrown_by([&] { options.get("name", "", "of the run"); });
  };
  CHECK(refusal_of(std::nan(""), "run.toml:2") ==
        configuration("run.toml:2: run: `name` must be a string, and is a number: nan is a number in TOML; for the "
                      "text write \"nan\" (of the run)"));
  CHECK(refusal_of(-HUGE_VAL, "--set run.name") ==
        configuration("--set run.name: run: `name` must be a string, and is a number: -inf is a number in TOML; for "
                      "the text write --set 'run.name=\"-inf\"' (of the run)"));
  CHECK(says(refusal_of(0.5, "run.toml:2").text, "must be a string, and is a number (of the run)"));
}

TEST_CASE("options: what is quoted in a refusal is short and printable") {
  const std::string text = "\x1b[31m" + std::string(1 << 20, 'x');
  Options options("scaler/toy", {{"word", written(1, text)}, {text, written(2, true)}}, "");
  const auto chosen = thrown_by([&] { options.choose("word", "red", {"red", "blue"}, "m"); });
  CHECK(chosen.text.starts_with("run.toml:1: scaler/toy: `word` is \"\\x1b[31mxxx"));
  CHECK(chosen.text.ends_with("xxx\"; it takes red | blue"));
  CHECK(chosen.text.size() < 300);
  const auto unread = thrown_by([&] { vernier::HostApi::refuse_unread(options); });
  CHECK(unread.text.starts_with("run.toml:2: scaler/toy: `\\x1b[31mxxx"));
  CHECK(unread.text.size() < 300);
  Options list("o", {{"list", Value{Array(100'000, Value{std::int64_t{-1}, ""}), ""}}}, "");
  CHECK(thrown_by([&] { list.get("list", Integers{}, "m", vernier::at_least(0)); }).text.size() < 300);
}

TEST_CASE("options: what is read is declared, for people and for summary.json") {
  Options options = sample();
  options.get("rate", 1e-3, "step size", vernier::between(0, 1));
  options.choose("colour", "red", {"red", "blue"}, "of the lamp");
  options.get("names", Words{"a"}, "in order");
  vernier::HostApi::only_describe(options);
  CHECK(options.require<Words>("data", "files").empty());
  const auto& all = vernier::HostApi::declared(options);
  REQUIRE(all.size() == 4);
  const auto is = [](const vernier::OptionInfo& d, const Words& expected) {
    return Words{d.key, d.type_text(), d.fallback_text(), value_text(d.value), d.limits_text(), d.meaning} == expected;
  };
  CHECK(is(all[0], {"rate", "a number", "0.001", "0.25", "0 to 1", "step size"}));
  CHECK(is(all[1], {"colour", "a string", "\"red\"", "\"red\"", "red | blue", "of the lamp"}));
  CHECK(is(all[2], {"names", "a list of strings", "[\"a\"]", "[\"a\"]", "", "in order"}));
  CHECK(is(all[3], {"data", "a list of strings", "required", "[]", "", "files"}));
}

TEST_CASE("options: types, ranges, words and defaults are declared as values, and each is worded in one place") {
  using vernier::OptionInfo;
  using Type = OptionInfo::Type;
  const struct {
    OptionInfo option;
    const char *type, *limits, *fallback;
  } cases[] = {
      {{"k", "m", Type::boolean, {true, ""}, {}}, "true or false", "", "true"},
      {{"k", "m", Type::integer, {std::int64_t{3}, ""}, {}, vernier::at_least(1)}, "an integer", "at least 1", "3"},
      {{"k", "m", Type::number, {0.5, ""}, {}, vernier::above(0)}, "a number", "above 0", "0.5"},
      {{"k", "m", Type::number, {1.0, ""}, {}, vernier::between(0, 1)}, "a number", "0 to 1", "1"},
      {{"k", "m", Type::number, {1.0, ""}, {}, {.min = 0, .max = 5, .above = true}}, "a number", "0 < x <= 5", "1"},
      {{"k", "m", Type::number, {HUGE_VAL, ""}, {}, {.max = 3}}, "a number", "at most 3", "inf"},
      {{"k", "m", Type::string, {std::string("a"), ""}, {}, {}, {"a", "b"}}, "a string", "a | b", "\"a\""},
      {{"k", "m", Type::integers, {Array{{std::int64_t{3}, ""}}, ""}, {}}, "a list of integers", "", "[3]"},
      {{"k", "m", Type::numbers, {Array{}, ""}, {}, vernier::at_least(0)}, "a list of numbers", "at least 0", "[]"},
      {{"k", "m", Type::strings, {Array{}, ""}, {}, {}, {}, true}, "a list of strings", "", "required"},
      {{"k", "m", Type::table, {Table{}, ""}, {}}, "a table", "", "{}"},
      {{"k", "m", Type::tables, {Array{}, ""}, {}}, "a list of tables", "", "[]"}};
  for (const auto& [option, type, limits, fallback] : cases) {
    CAPTURE(type);
    CHECK(option.type_text() == type);
    CHECK(option.limits_text() == limits);
    CHECK(option.fallback_text() == fallback);
  }
  Options options("scaler/toy", {{"rate", written(1, std::int64_t{1})}}, "");
  options.get("rate", 0.5, "step size", vernier::between(0, 1));
  options.choose("colour", "red", {"red", "blue"}, "of the lamp");
  const auto& declared = vernier::HostApi::declared(options);
  CHECK(declared[0].type == Type::number);
  CHECK(std::get<double>(declared[0].fallback.data) == 0.5);
  CHECK(std::get<double>(declared[0].value.data) == 1);
  CHECK(declared[0].range.max == 1);
  CHECK(declared[1].words == Words{"red", "blue"});
}

TEST_CASE("options: nearest counts insertions, deletions, substitutions and swaps of neighbours") {
  const Words words = {"fp32", "fp16", "bf16", "dynamic"};
  const std::vector<std::pair<std::string, std::string>> nearest = {{"fp32", "fp32"},
                                                                    {"pf16", "fp16"},
                                                                    {"bf1", "bf16"},
                                                                    {"dynmaic", "dynamic"},
                                                                    {"dinamyc", "dynamic"},
                                                                    {"fp332", "fp32"},
                                                                    {"float8", ""},
                                                                    {"", ""},
                                                                    {"xyz", ""}};
  for (const auto& [word, right] : nearest) {
    CAPTURE(word);
    CHECK(vernier::nearest(word, words) == right);
  }
  CHECK(vernier::nearest("a", {}).empty());
  CHECK(vernier::nearest(std::string(1 << 20, 'f'), words).empty());
}

TEST_CASE("options: nearest knows the words of other trainers") {
  const Words precisions = {"adaptive", "auto", "bf16", "format", "fp16", "fp32", "fp8"};
  for (const char* word : {"float16", "half", "16", "16-mixed", "FP16"}) {
    CHECK(vernier::nearest(word, precisions) == "fp16");
  }
  for (const char* word : {"bfloat16", "bf16-mixed"}) CHECK(vernier::nearest(word, precisions) == "bf16");
  for (const char* word : {"float32", "32", "32-true", "no", "none"}) {
    CHECK(vernier::nearest(word, precisions) == "fp32");
  }
  CHECK(vernier::nearest("lr", {"learning_rate", "momentum"}) == "learning_rate");
  CHECK(vernier::nearest("learning-rate", {"learning_rate", "momentum"}) == "learning_rate");
  CHECK(vernier::nearest("grad_accum", {"gradient_accumulation_steps", "weight"}) == "gradient_accumulation_steps");
  CHECK(vernier::nearest("mixed_precision_grad_scaler_init_scale", {"scale", "init_scale"}) == "init_scale");
  CHECK(vernier::nearest("bfloat16", {"float32", "bf16", "8bit"}) == "bf16");
  CHECK(vernier::nearest("off", {"none", "static", "dynamic"}) == "none");
}

}  // namespace options_test
