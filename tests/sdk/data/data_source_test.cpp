#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/data_source.h>
#include <vernier/error.h>
#include <vernier/options.h>
#include <vernier/safetensors.h>

#include "temporary_folder.h"
#include "thrown.h"

namespace data_source_test {

using vernier::Classes;
using vernier::Source;

namespace {

Source numbers(const std::vector<std::int64_t>& labels) {
  return {"y.npy", torch::tensor(labels, torch::kInt64), {}, {}};
}

// The labels over and over, so that there are 40 samples.
Source often(std::vector<std::int64_t> labels) {
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < 40; ++i) all.push_back(labels[i % labels.size()]);
  return numbers(all);
}

}  // namespace

TEST_CASE("labels become classes without gaps, and keep their names") {
  const struct {
    std::vector<std::int64_t> labels;
    std::vector<std::string> words;
    const char* counted;
  } cases[] = {
      {{0, 1, 2}, {}, "3 classes: 0 14, 1 13, 2 13"},
      {{2, 1, 0}, {}, "3 classes: 0 13, 1 13, 2 14"},
      {{1, 2, 3}, {"1", "2", "3"}, "3 classes: 1 14, 2 13, 3 13"},
      {{100, 200, 90000}, {"100", "200", "90000"}, "3 classes: 100 14, 200 13, 90000 13"},
      {{5, 7, 3'000'000'000'000}, {"5", "7", "3000000000000"}, "3 classes: 5 14, 7 13, 3000000000000 13"},
      {{-1, 1}, {"-1", "1"}, "2 classes: -1 20, 1 20"},
      {{0, 2}, {"0", "2"}, "2 classes: 0 20, 2 20"},
      {{4}, {"4"}, "1 class: 4 40"},
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
       {},
       "12 classes: 0 4, 1 4, 2 4, 3 4, 4 3, 5 3, 6 3, 7 3, 8 3, 9 3 and 2 more"},
  };
  for (const auto& each : cases) {
    Classes classes;
    const auto source = often(each.labels);
    const auto codes = vernier::codes_of(source, classes, "");
    CAPTURE(each.counted);
    CHECK(classes.words == each.words);
    CHECK(vernier::counted(classes, codes) == each.counted);
    CHECK(codes.max().item<std::int64_t>() + 1 == classes.count);
    CHECK(vernier::codes_of(source, classes, "").equal(codes));  // known by now
    if (each.words.empty()) CHECK(codes.equal(source.tensor));
  }
}

TEST_CASE("labels that are no classes are refused in one line") {
  const auto fractions = Source{"y.npy", torch::tensor({0.0F, 0.5F}), {}, {}};
  const auto large = Source{"y.csv:y", torch::tensor({0.0F, 123456792.0F}), {}, {}};
  const auto words = Source{"y.csv:y", torch::tensor({0, 1}), {"y"}, {"ant", "dog"}};
  std::vector<std::int64_t> ids(40);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) * 1000;
  std::vector<std::string> names;
  for (const auto id : ids) names.push_back("id" + std::to_string(id));
  const auto of_names = Source{"y.csv:y", torch::arange(40), {"y"}, names};
  const Classes none, three{3, {}}, named{2, {"ant", "bee"}}, ten{2, {"10", "20"}};
  const struct {
    Source source;
    Classes classes;
    const char* says;
  } cases[] = {
      {fractions, none, "'y.npy' has the label 0.5 in row 1; labels are whole numbers, or words"},
      {large, none, "too large to be exact in float32; save labels as int64"},
      {numbers(ids), none,
       "'y.npy' has 40 different labels in 40 samples, from 0 to 39000, too many for classes; to predict numbers, set "
       "kind = \"regression\""},
      {of_names, none, "'y.csv:y' has 40 different labels in 40 samples, too many for classes"},
      {numbers({0, 3}), three, "'y.npy' has the label 3 in row 1; the classes are 0 to 2"},
      {numbers({-1}), three, "'y.npy' has the label -1 in row 0; the classes are 0 to 2"},
      {numbers({10, 30}), ten, "'y.npy' has the label 30 in row 1; the classes are 10,20"},
      {numbers({0}), named, "'y.npy' has the label 0 in row 0; the classes are ant,bee"},
      {words, named, "'y.csv:y' has the label dog in row 1; the classes are ant,bee"},
      {words, three, "'y.csv:y' has the label ant in row 0; the classes are 0 to 2"},
      {{"y.npy", torch::zeros({2, 2}), {}, {}}, none, "'y.npy' has the shape [2, 2]; labels have [samples]"},
      {{"y.npy", torch::tensor({0.0F, NAN}), {}, {}}, none, "'y.npy' has a NaN or infinite number in row 1"},
  };
  for (auto each : cases) {
    const auto error = thrown_by([&] { vernier::codes_of(each.source, each.classes, "set kind = \"regression\""); });
    CAPTURE(error);
    CHECK(error.kind == 2);
    CHECK(says(error.text, each.says));
    CHECK_FALSE(says(error.text, "\n"));
  }
}

// The counts are those of tables that people publish: wine quality (UCI), visits to a pharmacy (VietNamI of Ecdat), and
// rings of abalones (UCI).
TEST_CASE("whole numbers are classes or counts, and four fifths of them are the same") {
  struct Numbers {
    const char* what;
    std::int64_t first, gap;
    std::vector<std::int64_t> times;
    bool are_classes;
  };
  const Numbers cases[] = {
      {"two", 0, 1, {50, 50}, true},
      {"two rare", 0, 1, {495, 5}, true},
      {"three with gaps", 10, 10, {70, 20, 30}, true},
      {"wine", 3, 1, {20, 163, 1457, 2198, 880, 175, 5}, true},
      {"digits", 0, 1, {178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, true},
      {"children", 0, 1, {258, 185, 162, 103, 30, 12}, true},
      {"firms", 1, 1, std::vector<std::int64_t>(20, 20), true},
      {"regions", 1, 1, {209, 845, 993, 334, 1111, 468, 566, 159, 540}, true},
      {"pharmacy", 0, 1, {20668, 3829, 1716, 777, 359, 174, 64, 43, 20, 30, 40, 3, 9, 6, 9, 8, 2, 3, 2, 1, 2}, false},
      {"doctor", 0, 1, {665, 447, 374, 256, 117, 101, 76, 21, 30, 22, 41, 6, 20, 7, 9, 5}, false},
      {"rings",
       3,
       1,
       {15, 57, 115, 259, 391, 568, 689, 634, 487, 267, 203, 126, 103, 67, 58, 42, 32, 26, 14, 6},
       false},
      {"goals", 0, 1, {2519, 4000, 3550, 2100, 1100, 470, 180, 60, 25, 8, 3, 2, 1}, false},
      {"many", 0, 1, std::vector<std::int64_t>(60, 30), false},
      {"fewer than three of each", 0, 1, std::vector<std::int64_t>(15, 2), false},
  };
  for (const auto& [what, first, gap, times, are_classes] : cases) {
    CAPTURE(what);
    const auto values = torch::arange(std::ssize(times)) * gap + first;
    const auto all = values.repeat_interleave(torch::tensor(times)).to(torch::kFloat64);
    CHECK(vernier::class_numbers(all).defined() == are_classes);
    for (int seed = 0; seed < 10; ++seed) {
      auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
      const auto some = all.index_select(0, torch::randperm(all.numel(), random).narrow(0, 0, all.numel() * 4 / 5));
      CHECK(vernier::class_numbers(some).defined() == are_classes);
    }
  }
}

TEST_CASE("words that are alike are named") {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"ham", "spam"}, ""},
      {{"HAM", "ham", "spam"}, "'HAM' and 'ham', which are two words; write them alike if they are one class"},
      {{"ham", "spam", "spam "}, "'spam' and 'spam ', which are two words; write them alike if they are one class"},
      {{" Spam", "ham", "spam"}, "' Spam' and 'spam', which are two words; write them alike if they are one class"},
      {{"0", "0.0", "1"}, "'0' and '0.0', which are two words; write them alike if they are one class"},
      {{"1", "a", "1e0"}, "'1' and '1e0', which are two words; write them alike if they are one class"},
      {{"1.5", "15", "-1.5", "1000000", "1000001"}, ""},
      {{"12345678901234567890", "12345678901234567891"}, ""},
      {{"", " ", "a"}, ""},
      {{}, ""},
  };
  for (const auto& [words, says_so] : cases) CHECK(vernier::alike_words(words) == says_so);
}

TEST_CASE("tables are read as their form says") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.csv", "a;b\n-;1\n2;NA\n-;3\n");
  const auto plain = folder.write("b.csv", "1,2\n,4\n");
  const auto read = [](const std::string& path, const vernier::Table& given) {
    vernier::Options options("task/test", given, "");
    auto form = vernier::csv_options(options, {"refuse", "zero", "previous"});
    form.fill_remedy = "set missing = \"zero\"";
    return vernier::read_source(path, {}, {}, form).tensor;
  };
  const auto read_dashes = [&](const std::string& missing) {
    return read(file, {{"missing", {missing, ""}},
                       {"missing_words", {vernier::Array{{std::string("-"), ""}, {std::string("NA"), ""}}, ""}}});
  };
  CHECK(read_dashes("previous").equal(torch::tensor({{2.0F, 1.0F}, {2.0F, 1.0F}, {2.0F, 3.0F}}, torch::kFloat64)));
  CHECK(read_dashes("zero").equal(torch::tensor({{0.0F, 1.0F}, {2.0F, 0.0F}, {0.0F, 3.0F}}, torch::kFloat64)));
  CHECK(says(
      thrown_by([&] { read_dashes("refuse"); }).text,
      "a.csv' has 2 columns that are not clear: line 2, column 'a' is '-', which stands for no value; line 3, column "
      "'b' is 'NA', which stands for no value; remove the lines, or set missing = \"zero\""));
  CHECK(read(plain, {{"header", {false, ""}}, {"missing", {std::string("previous"), ""}}})
            .equal(torch::tensor({{1.0F, 2.0F}, {1.0F, 4.0F}}, torch::kFloat64)));
  const auto none = folder.write("c.csv", "a,b\n1,\n2,\n");
  CHECK(says(thrown_by([&] {
               read(none, {{"missing", {std::string("previous"), ""}}});
             }).text,
             "c.csv' column 'b' has no value"));
  const auto german = folder.write("d.csv", "a;b\n0,5;1.000\n");
  CHECK(read(german, {{"decimal", {std::string(","), ""}}, {"thousands", {std::string("."), ""}}})
            .equal(torch::tensor({{0.5F, 1000.0F}}, torch::kFloat64)));
}

TEST_CASE("labels of any shape are numbers of classes, or are left out, or are refused") {
  const auto source = [](const torch::Tensor& labels) { return vernier::Source{"y.npy", labels, {}, {}}; };
  const auto labels = torch::tensor({{0, 255, 2}, {1, 1, 0}});
  const auto wanted = torch::tensor({{0, -100, 2}, {1, 1, 0}});
  for (const auto dtype : {torch::kInt64, torch::kInt32, torch::kUInt8, torch::kFloat32}) {
    const auto codes = vernier::codes_of(source(labels.to(dtype)), 3, 255);
    CHECK((codes.scalar_type() == torch::kInt64));
    CHECK(codes.equal(wanted));
  }
  CHECK(vernier::codes_of(source(wanted), 3, -100).equal(wanted));
  const std::tuple<torch::Tensor, std::int64_t, const char*> wrong[] = {
      {labels, -100, "'y.npy' has the label 255 in row 0; the model has the classes 0 to 2, and ignore_index names"},
      {wanted, 255, "'y.npy' has the label -100 in row 0; the model has the classes 0 to 2"},
      {labels * 0.5, 255, "'y.npy' has the label 127.5 in row 0; labels are whole numbers"},
      {labels.to(torch::kFloat32).masked_fill(labels == 1, NAN), 255, "has a NaN or infinite number in row 1"}};
  for (const auto& [of, left_out, said] : wrong) {
    const auto text =
        thrown_by([&, &of = of, &left_out = left_out] { vernier::codes_of(source(of), 3, left_out); }).text;
    CHECK_MESSAGE(says(text, said), text);
  }
}

TEST_CASE("sources of other files have the words and the columns of the first") {
  const TemporaryFolder folder;
  const auto file = folder.write("a.csv", "a,b,w,n\n1,2,bee,10\n3,4,ant,20\n");
  CHECK(vernier::read_source(file + ":b,a", {}, {})
            .tensor.equal(torch::tensor({{2.0F, 1.0F}, {4.0F, 3.0F}}, torch::kFloat64)));
  CHECK(vernier::read_source(file, {}, {"b", "a"}).columns == std::vector<std::string>{"b", "a"});
  CHECK(vernier::read_source(file + ":w", {"ant", "bee", "cat"}).tensor.equal(torch::tensor({1, 0})));
  CHECK(vernier::read_source(file + ":n", {"10", "20"}).words.empty());
  CHECK(says(thrown_by([&] {
               vernier::read_source(file + ":b,a", {}, {"a", "b"});
             }).text,
             "is named with the columns b,a, and the model learned from a,b, in this order; name the file alone"));
  CHECK(says(thrown_by([&] { vernier::read_source(file + ":w", {"ant"}); }).text, "bee"));
  CHECK(vernier::file_of(file + ":b,a") == file);
  vernier::save_safetensors(folder / "none.safetensors", {{"x", torch::zeros({3, 0})}});
  CHECK(says(thrown_by([&] { vernier::read_source(folder / "none.safetensors:x"); }).text,
             "none.safetensors:x' has the shape [3, 0], which has no number; give it some"));
  vernier::State state;
  const std::vector<std::string> words = {"", "two\nlines", "\xff", "ä"};
  vernier::put_words(state, "words", words);
  vernier::put_words(state, "none", {});
  CHECK(vernier::words_of(state, "words") == words);
  CHECK(vernier::words_of(state, "none").empty());
}

}  // namespace data_source_test
