#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/csv.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "oracle.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace csv_test {

using vernier::CsvFill;
using vernier::CsvOptions;
using vernier::CsvTable;
using vernier::CsvType;
using vernier::read_csv;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

CsvTable parsed(const std::string& text, const CsvOptions& options = {}) {
  const TemporaryFolder folder;
  return read_csv(folder.write("a.csv", text), options);
}

// The part of the message after the path; "" if nothing is thrown.
std::string refusal(const std::string& text, const CsvOptions& options = {}) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.csv", text);
  const auto thrown = thrown_by([&] { read_csv(path, options); });
  const auto place = "'" + path + "' ";
  if (thrown.kind == 0) return "";
  CHECK(thrown.kind == 2);
  return thrown.text.starts_with(place) ? thrown.text.substr(place.size()) : thrown.text;
}

torch::Tensor floats(std::vector<float> values, std::vector<std::int64_t> shape) {
  return torch::tensor(values, torch::kFloat64).view(shape);
}
torch::Tensor longs(std::vector<std::int64_t> values, std::vector<std::int64_t> shape) {
  return torch::tensor(values, torch::kInt64).view(shape);
}

// The words of the first category.
std::vector<std::string> words_of(const CsvTable& table) {
  const auto& columns = table.schema.columns;
  const auto column = std::ranges::find(columns, CsvType::category, &vernier::CsvColumn::type);
  REQUIRE((column != columns.end()));
  std::vector<std::string> words;
  const auto codes = table.categories.select(1, 0).contiguous();
  for (std::int64_t i = 0; i < codes.numel(); ++i) {
    words.push_back(column->vocabulary.at(static_cast<std::size_t>(codes.const_data_ptr<std::int64_t>()[i])));
  }
  return words;
}

// A field as a program may write it.
std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + '"';
}

}  // namespace

TEST_CASE("csv: a pattern reads several files as the one that they make, to the bit") {
  const TemporaryFolder folder;
  const std::string header = "size,city,sold,price\n";
  const std::string texts[] = {"1,Ulm,2024-01-02,3\n2.5,\"Bad\nUrach\",2024-01-03,4\n,Ulm,2024-02-01,5\n",
                               "7,Aalen,2024-03-01,6\n8,,2024-03-02,\n",
                               "9,\"Bad\nUrach\",2024-04-01,8\n1,Ulm,2024-04-02,2\n"};
  for (int i = 0; i < 3; ++i) folder.write("part-" + std::to_string(i) + ".csv", header + texts[i]);
  folder.write("other.csv", "a\n1\n");
  const auto one = folder.write("all.csv", header + texts[0] + texts[1] + texts[2]);
  const auto pattern = folder.path() / "part-*.csv";
  for (const auto fill : {CsvFill::mean, CsvFill::zero, CsvFill::previous, CsvFill::drop}) {
    CsvOptions options;
    options.target = "price";
    options.fill = fill;
    options.sorted = true;
    const auto whole = read_csv(one, options), table = read_csv(pattern, options);
    const auto again = read_csv(pattern, whole.schema, options);
    for (const auto* found : {&table, &again}) {
      CHECK(same_bits(found->numbers, whole.numbers));
      CHECK(found->categories.equal(whole.categories));
      CHECK(same_bits(found->target, whole.target));
      CHECK(found->rows.equal(whole.rows));
      CHECK(vernier::json_of(found->schema) == vernier::json_of(whole.schema));
    }
    const std::pair<int, int> places[] = {{0, 2}, {0, 3}, {0, 5}, {1, 2}, {1, 3}, {2, 2}, {2, 4}};  // file, line
    for (std::int64_t row = 0; row < 7; ++row) {
      const auto [file, line] = places[row];
      const auto path = (folder.path() / c10::str("part-", file, ".csv")).string();
      CHECK(table.where(row) == c10::str("'", path, "' line ", line));
    }
  }
}

TEST_CASE("csv: the types of columns come from the records of all files, as from those of one") {
  const struct {
    const char *first, *second, *reason;  // "": both are read alike
  } cases[] = {{"a\n12\n", "a\n1.234\n5.678\n", "line 2, column 'a' is '1.234', which may have decimals or thousands"},
               {"a\n2024-01-02\n", "a\n2024-03-01 14:30\n", ""},
               {"a\n7\n", "a\nx\ny\nz\n", ""},
               {"a\n\"\"\n0.5\n", "a\n1.234\n", ""}};
  for (const auto& [first, second, reason] : cases) {
    CAPTURE(second);
    const TemporaryFolder folder;
    folder.write("part-1.csv", first);
    folder.write("part-2.csv", second);
    CsvOptions options;
    options.doubts_points = true;
    options.fill = CsvFill::zero;
    const auto one = folder.write("all.csv", std::string(first) + std::string(second + 2));
    CsvTable whole, table;
    const auto of_one = thrown_by([&] { whole = read_csv(one, options); });
    const auto of_two = thrown_by([&] { table = read_csv(folder.path() / "part-*.csv", options); });
    CHECK(of_one.kind == of_two.kind);
    if (of_two.kind != 0) {
      CHECK(of_two.text.starts_with("'" + (folder.path() / "part-2.csv").string() + "' " + reason));
      continue;
    }
    CHECK(std::string(reason).empty());
    CHECK(vernier::json_of(table.schema) == vernier::json_of(whole.schema));
    CHECK(same_bits(table.numbers, whole.numbers));
    CHECK(table.categories.equal(whole.categories));
  }
}

TEST_CASE("csv: what is wrong in one of several files is named with that file") {
  const struct {
    const char *second, *reason;
  } cases[] = {{"a,c\n1,2\n", "has the columns a,c, and 'FOLDER/part-1.csv' has a,b; the files of a table have the"},
               {"b,a\n1,2\n", "has the columns b,a, and "},
               {"a,b\n1,2\n3\n", "line 3 has 1 field, the header has 2"},
               {"a,b\n1,2\n3,x\n", "line 3, column 'b' is 'x', "},
               {"a,b\n1,\"2\n", "line 2 has an opening quote that is never closed"},
               {"a,b\n", "has a header and no records"},
               {"", "is empty"}};
  for (const auto& [second, reason] : cases) {
    CAPTURE(reason);
    const TemporaryFolder folder;
    folder.write("part-1.csv", "a,b\n1,2\n");
    folder.write("part-2.csv", second);
    folder.write("part-3.csv", "a,b\n1,?\n");  // later than the others
    const auto thrown = thrown_by([&] { read_csv(folder.path() / "part-*.csv"); });
    CHECK(thrown.kind == 2);
    std::string wanted = reason;
    if (const auto at = wanted.find("FOLDER"); at != std::string::npos) wanted.replace(at, 6, folder.path().string());
    CHECK(thrown.text.starts_with("'" + (folder.path() / "part-2.csv").string() + "' " + wanted));
  }
  const TemporaryFolder folder;
  const auto none = (folder.path() / "part-?.csv").string();
  CHECK(thrown_by([&] { read_csv(none); }).text.starts_with("'" + none + "': no file has such a name; "));
  CHECK(vernier::csv_files(none).empty());
  auto too_long = none;
  too_long.resize(400, '*');
  CHECK(vernier::csv_files(too_long).empty());
  std::vector<std::string> files;
  for (const auto* name : {"part-2.csv", "part-10.csv"}) files.push_back(folder.write(name, "a\n1\n"));
  CHECK(vernier::csv_files(folder.path() / "part-*.csv") == files);
  CHECK(vernier::csv_files(files[1]) == std::vector{files[1]});
  const auto named = folder.write("[1].csv", "a\n5\n");  // a name, and not a pattern
  CHECK(read_csv(named).numbers.item<double>() == 5);
}

TEST_CASE("csv: reads what Python's csv writes, with each separator and line end") {
  const auto rows = nlohmann::json::parse(read_text(oracles + "table.json"));
  for (const auto& [name, separator] : {std::pair{"comma", ','}, {"semicolon", ';'}, {"tab", '\t'}}) {
    CAPTURE(name);
    CsvOptions options;
    options.separator = separator;
    options.columns = {"text", "number"};
    const auto table = read_csv(oracles + name + ".csv", options);
    REQUIRE(table.numbers.sizes() == torch::IntArrayRef{400, 1});
    const auto words = words_of(table);
    for (std::size_t i = 0; i < 400; ++i) {
      CHECK(words[i] == rows[i + 1][0].get<std::string>());
      const auto number = table.numbers[static_cast<std::int64_t>(i)][0].item<float>();
      CHECK(number == std::stof(rows[i + 1][1].get<std::string>()));
    }
  }
}

TEST_CASE("csv: columns are chosen by name or number, and have types") {
  const std::string text = "id,colour,size,price\n7,red,1.5,10\n8,blue,2,20\n9,red,-3e1,30\n";
  CsvOptions options;
  options.columns = {"size", "colour", "id"};
  options.target = "price";
  options.types = {{"id", CsvType::category}};
  const auto table = parsed(text, options);
  CHECK(torch::equal(table.numbers, floats({1.5F, 2, -30}, {3, 1})));
  CHECK(torch::equal(table.categories, longs({0, 0, 1, 1, 0, 2}, {3, 2})));
  CHECK(torch::equal(table.target, floats({10, 20, 30}, {3})));
  CHECK(table.schema.columns[1].vocabulary == std::vector<std::string>{"red", "blue"});
  options.sorted = true;
  options.target = "colour";
  options.columns = {"id", "price"};
  const auto sorted = parsed(text, options);
  CHECK(torch::equal(sorted.target, longs({1, 0, 1}, {3})));
  CHECK(sorted.schema.target->vocabulary == std::vector<std::string>{"blue", "red"});

  CsvOptions by_number;
  by_number.header = false;
  by_number.columns = {"2", "1"};
  CHECK(torch::equal(parsed("1,2,3\n4,5,6", by_number).numbers, floats({2, 1, 5, 4}, {2, 2})));
  CHECK(torch::equal(parsed(",b\n1,2\n").numbers, floats({1, 2}, {1, 2})));  // an index without a name
}

TEST_CASE("csv: without a header, a file without the target has the columns around it") {
  const TemporaryFolder folder;
  const auto path = folder.write("new.csv", "7,8\n");
  for (const char* target : {"1", "2", "3"}) {
    CAPTURE(target);
    CsvOptions options;
    options.header = false;
    options.target = target;
    auto schema = parsed("1,2,3\n4,5,6\n", options).schema;
    schema.target.reset();
    CHECK(torch::equal(read_csv(path, schema, options).numbers, floats({7, 8}, {1, 2})));
    const auto whole = read_csv(folder.write("whole.csv", "1,2,3\n"), schema, options).numbers;
    CHECK(whole.sum().item<int>() == 6 - std::stoi(target));
  }
  CsvOptions some;
  some.header = false;
  some.target = "1";
  some.columns = {"8", "2", "3"};
  auto schema = parsed("0,1,2,3,4,5,6,7\n1,1,2,3,4,5,6,7\n", some).schema;
  const auto read = [&](const std::string& text) {
    return read_csv(folder.write("some.csv", text), schema, some).numbers;
  };
  const auto refused = [&](const std::string& text) { return thrown_by([&] { read(text); }).text; };
  CHECK(says(refused("1,2,3,4\n"),
             "some.csv' has 4 columns without names, and the file that was learned from has 8; "
             "give it all of them"));
  schema.target.reset();
  schema = vernier::parse_csv_schema(json_of(schema));
  CHECK(torch::equal(read("0,1,2,3,4,5,6,7\n"), floats({7, 1, 2}, {1, 3})));
  CHECK(torch::equal(read("1,2,3,4,5,6,7\n"), floats({7, 1, 2}, {1, 3})));
  CHECK(torch::equal(read("7,1,2\n"), floats({7, 1, 2}, {1, 3})));
  CHECK(says(refused("1,2,3,4\n"), "; give it all of them, all but the target, or the 3 inputs alone"));
}

TEST_CASE("csv: the dataset has a tensor for each kind of column that there is") {
  CsvOptions options;
  options.target = "c";
  const auto table = parsed("a,b,c\n1,x,3\n4,y,6\n", options);
  const auto dataset = vernier::csv_dataset(table);
  vernier::Random random(1, 0, 0);
  const auto sample = dataset->get(1, random);
  REQUIRE(dataset->size() == 2);
  REQUIRE(sample.size() == 3);
  CHECK(torch::equal(sample[0], floats({4}, {1})));
  CHECK(torch::equal(sample[1], longs({1}, {1})));
  CHECK(torch::equal(sample[2], floats({6}, {})));
  const auto batch = *dataset->get_batch(torch::tensor({1, 0}, torch::kInt64));
  CHECK(torch::equal(batch[2], floats({6, 3}, {2})));
  CHECK(dataset->where(1) == "'" + table.path + "' line 3");
  CHECK(vernier::csv_dataset(parsed("a\n1\n"))->get(0, random).size() == 1);
  CHECK(dataset->fingerprint() != vernier::csv_dataset(parsed("a,b,c\n1,x,3\n4,y,7\n", options))->fingerprint());
}

TEST_CASE("csv: forms of numbers") {
  const std::pair<const char*, float> cases[] = {
      {"1", 1},         {"-1", -1},        {"+2.5", 2.5F},      {".5", 0.5F},  {"5.", 5},
      {" 7 ", 7},       {"1e3", 1000},     {"1E-3", 1e-3F},     {"\"8\"", 8},  {"1e-50", 0},
      {"1e-400", 0},    {"-1e-60", -0.0F}, {"3.4e38", 3.4e38F}, {"0.1", 0.1F}, {"16777217", 16777216},
      {"1e-42", 1e-42F}};
  for (const auto& [text, value] : cases) {
    CAPTURE(text);
    CHECK(parsed(std::string("a,b\n") + text + ",1\n").numbers[0][0].item<float>() == value);
  }
}

TEST_CASE("csv: line ends and byte-order marks") {
  for (const std::string text : {"a,b\n1,2\n3,4", "a,b\r\n1,2\r\n3,4\r\n", "a,b\n1,2\n3,4\n\n\n",
                                 "\xef\xbb\xbf"
                                 "a,b\n1,2\n3,4\n",
                                 " a , b \n 1 ,2\t\n\"3\" , \"4\" \n", "\"a\"  \"b\" \r\n\"1\" \"2\"\r\n3 4 \n"}) {
    CAPTURE(text);
    const auto table = parsed(text);
    CHECK(torch::equal(table.numbers, floats({1, 2, 3, 4}, {2, 2})));
    CHECK(table.schema.columns[0].name == "a");
  }
}

TEST_CASE("csv: bad files are refused with line and column") {
  const auto many = [](const std::string& last) {
    std::string text = "a,b\n";
    for (int i = 0; i < 2000; ++i) text += "1,2\n";
    return text + last;
  };
  const auto wide = [](int columns) {
    std::string names = "c0", values = "1";
    for (int i = 1; i < columns; ++i) names += ",c" + std::to_string(i), values += ",1";
    return names + "\n" + values + "\n";
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {"\n\r\n", "has no records: there are only line ends in it"},
      {"a,b\n", "has a header and no records"},
      {wide(100'001), "has 100001 columns, and 100000 are the most"},
      {"\xff\xfe"
       "a",
       "is UTF-16; save it as UTF-8"},
      {"a,a\n1,2\n", "has two columns named 'a'"},
      {"a,b\n1,2\n3\n", "line 3 has 1 field, the header has 2"},
      {"a,b\n1,2,3\n", "line 2 has 3 fields, the header has 2"},
      {"\"a\" \"b\"\n\"1\" 1 2\n", "line 2 has 3 fields, the header has 2"},  // R's write.table
      {"a,b\n1,2\n\n3,4\n", "line 3 is empty"},
      {"a,b\n1,2\n3,x\n", "line 3, column 'b' is 'x', and other lines have numbers there"},
      {many("3,x\n"), "line 2002, column 'b' is 'x', "},
      {"a,b\n1,\n", "line 2, column 'b' has no value; remove the line, or set missing = \"mean\""},
      {"a,b\n1,nan\n", "line 2, column 'b' is 'nan', which stands for no value"},
      {many("1,?\n"), "line 2002, column 'b' is '?', which stands for no value"},
      {"a,b\n1,inf\n", "line 2, column 'b' is 'inf', which float32 cannot hold"},
      {"a,b\n1,1e39\n", "line 2, column 'b' is '1e39', which float32 cannot hold"},
      {"a,b\n1,-1e999\n", "line 2, column 'b' is '-1e999', which float32 cannot hold"},
      {"a,b\n1,2\n3,\"4", "line 3 has an opening quote that is never closed"},
      {"a,b\n1,\"2\"3\n", "line 2 has text behind a closing quote"},
      {"a,b\nx,5\" disk\n", "line 2 has a quote within a field without quotes"},
      {many("3,\"x\n\n1,2\n"), "line 2002 has an opening quote that is never closed"},
      {"a,b\n\"1\n\",2\n3\n", "line 4 has 1 field"},
  };
  for (const auto& [text, reason] : cases) {
    CAPTURE(text.substr(0, 40));
    CHECK(refusal(text).starts_with(reason));
  }
}

TEST_CASE("csv: all columns that are not clear are refused at once, with what makes all of them clear") {
  std::string late = "a,b,y\n";
  for (int i = 0; i < 1500; ++i) late += i < 1400 ? "1,2,3\n" : i % 2 == 0 ? "x,2,3\n" : "1,,3\n";
  const std::pair<std::string, std::string> cases[] = {
      {"a,b,c\n1,1,x\n5/5,2/3,x\n2,2,y\n",
       "has 2 columns that are not clear: line 3, column 'a' is '5/5', and other lines have numbers there; line 3, "
       "column "
       "'b' is '2/3', and other lines have numbers there; set missing_words = [\"2/3\", \"5/5\"] if they stand for no "
       "value; or set types = {a = \"category\", b = \"category\"}"},
      {"a,b\n\"$1,302\",x\n\"$2,100\",y\n",
       "line 2, column 'a' is '$1,302', a number in another notation; set thousands = \",\" and types = {a = "
       "\"number\"}, or for words types = {a = \"category\"}"},
      {"a,b\n\"1,302\",\"$2,302\"\n\"1,100\",\"$2,500\"\n", "has 2 columns that are not clear: "},
      {"a,b,c\n\"$1,302\",\"$2,302\",1\n\"$1,100\",\"$2,500\",k9\n",
       "column 'c' is 'k9', and other lines have numbers there; set missing_words = [\"k9\"] if they stand for no "
       "value; "
       "or set thousands = \",\" and types = {a = \"number\", b = \"number\", c = \"category\"}; or for words set "
       "types "
       "= {a = \"category\", b = \"category\", c = \"category\"}"},
      {"a,b\n1/2/2024,3/4/2024\n2/2/2024,4/4/2024\n", "set types = {a = \"day-month-year\", b = \"day-month-year\"}"},
      {late,
       "has 2 columns that are not clear: line 1402, column 'a' is 'x', which is not a number; line 1403, column "
       "'b' has no value; remove the line, or set missing ="},
  };
  for (const auto& [text, says_so] : cases) {
    CAPTURE(text.substr(0, 40));
    const auto all = refusal(text);
    CHECK_MESSAGE(says(all, says_so), all);
  }
  // The advice works as it is written.
  CsvOptions options;
  options.thousands = ',';
  options.types = {{"a", CsvType::number}, {"b", CsvType::number}, {"c", CsvType::category}};
  const auto table = parsed(cases[3].first, options);
  CHECK(torch::equal(table.numbers, floats({1302, 2302, 1100, 2500}, {2, 2})));
}

TEST_CASE("csv: columns that count or name the rows are told from inputs") {
  struct Rows {
    const char* name;
    std::function<int(int)> value;  // takes the row
    int rows;
    bool are_counted;
  };
  // 37 and 101 have no divisor in common, so these are the numbers from 0 to 100 in no order.
  const auto shuffled = [](int i) { return i * 37 % 101; };
  const auto sampled = [](int i) { return i * 37 % 101 * 5 / 4; };
  const Rows cases[] = {
      {"", [](int i) { return i + 1; }, 40, true},
      {"", [](int i) { return i; }, 5, true},
      {"", shuffled, 101, true},
      {"", sampled, 101, true},
      {"", [](int i) { return i % 20; }, 40, true},     // two tables, one below the other
      {"", [](int i) { return i / 2 * 2; }, 40, true},  // drawn with replacement
      {"", [](int i) { return i % 2; }, 40, false},
      {"", [](int i) { return 1951 + i; }, 30, false},
      {"Unnamed: 0", sampled, 101, true},
      {"X", shuffled, 101, true},
      {"X", [](int i) { return i + 1; }, 12, true},
      {"X", [](int i) { return 5 * i * i; }, 12, false},
      {"x", [](int i) { return i; }, 40, false},
      {"index", sampled, 101, true},
      {"index", [](int i) { return 900 + i * 37 % 101; }, 101, false},
      {"rownames", shuffled, 101, true},
      {"row_number", shuffled, 101, true},
      {"id", [](int i) { return 40000 + 37 * i; }, 12, true},
      {"id", [](int i) { return i / 4; }, 40, false},  // a panel
      {"PassengerId", sampled, 101, true},
      {"patient", shuffled, 101, true},
      {"Obs.", [](int i) { return i + 1; }, 40, true},
      {"lfd", [](int i) { return i + 1; }, 40, true},
      {"lfd", [](int i) { return i * 5 / 4; }, 40, true},
      {"lfd", [](int i) { return i + 1; }, 12, false},
      {"wealth", shuffled, 101, true},  // one ranking alone looks like a counter
      {"year", [](int i) { return 1900 + i; }, 60, false},
      {"year", [](int i) { return i; }, 60, false},
      {"time", [](int i) { return i + 1; }, 60, false},
      {"age", [](int i) { return i; }, 90, false},
      {"rank", [](int i) { return i + 1; }, 90, false},
      {"price", [](int i) { return i * 5003 % 15013; }, 101, false},
      {"price", [](int i) { return i * 37 % 101 / 2; }, 101, false},
      {"visits", [](int i) { return i * 7 % 5; }, 40, false},
  };
  for (const auto& [name, value, rows, are_counted] : cases) {
    CAPTURE(name);
    CAPTURE(value(3));
    std::string text = std::string(name) + ",z\n";
    for (int i = 0; i < rows; ++i) text += std::to_string(value(i)) + "," + std::to_string(i % 3 + 0.5) + "\n";
    CsvOptions options;
    options.target = "z";
    const auto found = parsed(text, options).found;
    CHECK((found.row_names == std::vector<std::string>{name}) == are_counted);
    const bool is_said = std::ranges::any_of(found.odd, [](const auto& odd) { return says(odd, "counts the rows"); });
    CHECK(is_said == are_counted);
  }
  std::string names = ",z\n", words = "town,z\n";
  for (int i = 0; i < 12; ++i) {
    names += "row " + std::to_string(i) + ",1\n";
    words += "town " + std::to_string(i % 4) + ",1\n";
  }
  CHECK(parsed(names).found.row_names == std::vector<std::string>{""});
  CHECK(parsed(words).found.row_names.empty());
}

TEST_CASE("csv: options that the file does not fit are refused") {
  const std::string text = "a,b,c\n1,x,2\n3,y,4\n";
  const auto with = [](auto change) {
    CsvOptions options;
    change(options);
    return options;
  };
  const std::pair<CsvOptions, std::string> cases[] = {
      {with([](auto& o) { o.columns = {"d"}; }), "has no column 'd'; its columns are a,b,c"},
      {with([](auto& o) { o.target = "d"; }), "has no column 'd'"},
      {with([](auto& o) {
         o.types = {{"d", CsvType::number}};
       }),
       "has no column 'd'"},
      {with([](auto& o) {
         o.columns = {"a", "a"};
       }),
       "the columns to read have 'a' twice"},
      {with([](auto& o) {
         o.columns = {"a", "b"};
         o.target = "b";
       }),
       "'b' is the target and one of the columns"},
      {with([](auto& o) {
         o.types = {{"b", CsvType::number}};
       }),
       "line 2, column 'b' is 'x', "},
      {with([](auto& o) {
         o.separator = ';';
         o.types = {{"a,b,c", CsvType::number}};
       }),
       "line 2, column 'a,b,c' is"},
      {with([](auto& o) {
         o.header = false;
         o.columns = {"a"};
       }),
       "has no column 'a'; its columns are 1,2,3"},
  };
  for (const auto& [options, reason] : cases) {
    CAPTURE(refusal(text, options));
    CHECK(refusal(text, options).starts_with(reason));
  }
}

TEST_CASE("csv: missing values are filled, and another file is filled the same way") {
  CsvOptions options;
  options.missing = {"", "-999"};
  options.target = "c";
  const std::string text = "a,b,c\n1,x,0\n-999,,0\n5,x,0\n";
  const TemporaryFolder folder;
  const auto other = folder.write("b.csv", "c,b,a\n0,,\n0,x,7\n");
  for (const auto& [fill, value] : {std::pair{CsvFill::mean, 3.0F}, {CsvFill::zero, 0.0F}}) {
    options.fill = fill;
    const auto table = parsed(text, options);
    CHECK(torch::equal(table.numbers, floats({1, value, 5}, {3, 1})));
    CHECK(torch::equal(table.categories, longs({0, 1, 0}, {3, 1})));
    CHECK(table.schema.columns[1].vocabulary == std::vector<std::string>{"x", ""});
    const auto filled = read_csv(other, table.schema, options);
    CHECK(torch::equal(filled.numbers, floats({value, 7}, {2, 1})));
    CHECK(torch::equal(filled.categories, longs({1, 0}, {2, 1})));
  }
  const auto without_target = parsed("a,b,c\n1,x,\n3,x,2\n", options);
  CHECK(torch::equal(without_target.rows, longs({1}, {1})));
  CHECK(without_target.found.dropped == 1);
  options.fill = CsvFill::mean;
  CHECK(refusal("a,b,c\n-999,x,1\n", options).starts_with("column 'a' has no value, and so no mean to fill in"));
  options.fill = CsvFill::drop;
  CHECK(torch::equal(parsed("a,b,c\n-999,x,1\n2,,1\n3,x,1\n", options).rows, longs({2}, {1})));
  options.fill = CsvFill::refuse;
  CHECK(refusal("a,b,c\n1,x,\n", options).starts_with("line 2, column 'c' has no value, and it is the target"));
  CHECK(refusal("a,b,c\n-999,x,1\n", options).starts_with("line 2, column 'a' is '-999', which stands for no value"));
  options.unknown = true;
  const auto schema = parsed("a,b,c\n1,x,0\n", options).schema;
  const auto missing = folder.write("c.csv", "a,b,c\n1,,0\n");
  CHECK(says(thrown_by([&] { read_csv(missing, schema, options); }).text, "line 2, column 'b' has no value"));
  options.fill = CsvFill::mean;
  CHECK(read_csv(missing, schema, options).categories.item<int>() == 1);  // unknown
}

TEST_CASE("csv: a schema gives other files the same codes, and refuses what it does not know") {
  CsvOptions options;
  options.target = "kind";
  const auto training = parsed("kind,colour,size\ncat,red,1\ndog,blue,2\n", options);
  const TemporaryFolder folder;
  const auto again = read_csv(folder.write("b.csv", "size,colour,more,kind\n3,blue,z,dog\n"), training.schema);
  CHECK(torch::equal(again.categories, longs({1}, {1, 1})));
  CHECK(torch::equal(again.target, longs({1}, {1})));
  const auto refused = [&](const std::string& text, const CsvOptions& with) {
    const auto path = folder.write("c.csv", text);
    return thrown_by([&] { read_csv(path, training.schema, with); }).text;
  };
  CHECK(says(refused("kind,colour,size\ncat,green,1\n", {}),
             "line 2, column 'colour' is 'green', which is none of the 2 known categories: red,blue"));
  options.unknown = true;
  const auto unknown =
      read_csv(folder.write("d.csv", "kind,colour,size\ncat,green,1\ncat,red,1\n"), training.schema, options);
  CHECK(torch::equal(unknown.categories, longs({2, 0}, {2, 1})));
  CHECK(unknown.found.odd.at(0) == "column 'colour': 1 of 2 values are unknown, such as 'green'");
  // Many rows in which a few words take the place of the known ones are refused. A new word in each row is none of
  // that.
  std::string alike = "kind,colour,size\n", own = alike;
  for (int i = 0; i < 20; ++i) {
    alike += "cat," + std::string(i % 2 == 0 ? "Red" : "Blue") + ",1\n";
    own += "cat,c" + std::to_string(i) + ",1\n";
  }
  CHECK(says(refused(alike, options),
             "column 'colour': 20 of 20 values are unknown, such as 'Red'; write them as in training"));
  const std::string few = alike.substr(0, alike.size() - std::string("cat,Blue,1\n").size());
  for (const auto& [text, odd] : {std::pair<std::string, std::string>{own, "20 of 20"}, {few, "19 of 19"}}) {
    const auto table = read_csv(folder.write("f.csv", text), training.schema, options);
    CHECK(table.found.odd.at(0).starts_with("column 'colour': " + odd + " values are unknown"));
    CHECK(table.categories.eq(2).all().item<bool>());
  }
  CHECK(says(refused("kind,colour,size\nbird,red,1\n", options), "column 'kind' is 'bird', which is none of the 2"));
  CHECK(says(refused("kind,size\ncat,1\n", {}), "has no column 'colour'"));
  CHECK(says(refused("kind,colour,size\ncat,red,\n", {}), "line 2, column 'size' has no value"));
  auto without_target = training.schema;
  without_target.target.reset();
  const auto prediction = read_csv(folder.write("e.csv", "colour,size\nred,9\n"), without_target);
  CHECK_FALSE(prediction.target.defined());
  CHECK(prediction.numbers.item<float>() == 9);
}

// Enough for several parts, which threads read at the same time.
TEST_CASE("csv: a large random table is read the same by any number of threads") {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  const std::string words[] = {"plain", "a\nb", "two\r\n\r\nlines", "\"", ",", "", "long " + std::string(300, 'x')};
  constexpr int rows = 140'000;
  std::vector<std::string> texts;
  std::vector<float> numbers;
  std::vector<std::int64_t> lines;
  std::string text = "number,\"te\nxt\",copy\n";
  std::int64_t line = 3;
  for (int i = 0; i < rows; ++i) {
    texts.push_back(words[random() % 7] + (random() % 100 == 0 ? "w" + std::to_string(i) : "-"));
    numbers.push_back(static_cast<float>(random() % 100000) / 16);
    lines.push_back(line);
    const auto field = std::to_string(numbers.back());
    text += field + "," + in_quotes(texts.back()) + "," + in_quotes(field) + (i % 3 == 0 ? "\r\n" : "\n");
    line += 1 + std::count(texts.back().begin(), texts.back().end(), '\n');
  }
  const auto path = folder.write("large.csv", text);
  REQUIRE(text.size() > 9 << 20);
  const auto threads = at::get_num_threads();
  for (const int count : {1, 4}) {
    at::set_num_threads(count);
    const auto table = read_csv(path);
    REQUIRE(table.numbers.sizes() == torch::IntArrayRef{rows, 2});
    CHECK(torch::equal(table.numbers.select(1, 0), floats(numbers, {rows})));
    CHECK(torch::equal(table.numbers.select(1, 1), floats(numbers, {rows})));
    CHECK(words_of(table) == texts);
    for (int i = 0; i < rows; i += 997) CHECK(table.where(i) == "'" + path + "' line " + std::to_string(lines[i]));
  }
  at::set_num_threads(threads);
  const auto place = text.rfind("plain");
  const auto wrong = folder.write("wrong.csv", text.substr(0, place) + "\"" + text.substr(place));
  const auto wrong_line = std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<long>(place), '\n'));
  CHECK(says(thrown_by([&] { read_csv(wrong); }).text, "line " + wrong_line + " has"));
}

TEST_CASE("csv: a file that changes while it is read is refused") {
  const TemporaryFolder folder;
  std::string text = "a,b\n";
  for (int i = 0; i < 1'000'000; ++i) text += "1.25,2\n";
  const auto path = folder.write("a.csv", text);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    auto* file = std::fopen(path.c_str(), "ab");
    while (!is_over) {
      std::fputs("3,4\n", file);
      std::fflush(file);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::fclose(file);
  });
  const auto thrown = thrown_by([&] { read_csv(path); });
  is_over = true;
  writer.join();
  CHECK(says(thrown.text, "'" + path + "' has changed while it was read"));
}

// zeros.gz: 10 MB of "0,0\n", packed by Python's gzip into 10 kB.
TEST_CASE("csv: a gzip file that unpacks to far more than its size is refused before it fills the memory") {
  const TemporaryFolder folder;
  const auto member = read_text(oracles + "zeros.gz");
  std::string many;
  for (int i = 0; i < 30; ++i) many += member;
  CHECK(says(thrown_by([&] { read_csv(folder.write("a.csv.gz", many)); }).text, "unpacks to over 200 times its size"));
  CsvOptions options;
  options.header = false;
  CHECK(read_csv(oracles + "zeros.gz", options).numbers.size(0) == 2'500'000);
}

}  // namespace csv_test
