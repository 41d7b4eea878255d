#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/images.h>
#include <vernier/data/numpy.h>
#include <vernier/data/readers.h>
#include <vernier/safetensors.h>
#include <vernier/text/token_data.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "temporary_folder.h"
#include "thrown.h"

namespace readers_test {

using vernier::DatasetPtr;
using vernier::JsonField;
using vernier::Random;
using vernier::Sample;
using vernier::WindowOptions;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

WindowOptions windows(std::int64_t length, std::int64_t stride = 0, std::int64_t vocabulary = 0) {
  WindowOptions options;
  options.length = length;
  options.stride = stride;
  options.vocabulary = vocabulary;
  return options;
}
WindowOptions typed(const char* type, WindowOptions options) {
  options.type = type;
  return options;
}

Sample sample(const DatasetPtr& dataset, std::int64_t index) {
  Random random(1, 0, index);
  return dataset->get(index, random);
}

torch::Tensor longs(std::vector<std::int64_t> values) {
  return torch::tensor(values, torch::kInt64);
}

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& elements) {
  std::string bytes = {0, 0, 8, static_cast<char>(sizes.size())};
  for (const auto size : sizes) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift & 255);
  }
  return bytes + elements;
}

std::string text_of(const torch::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace

TEST_CASE("readers: windows of tokens, whatever their length and stride") {
  const TemporaryFolder folder;
  std::mt19937 random(3);
  for (const auto& [count, length, stride] : {std::tuple{10, 3, 0}, {10, 3, 1}, {11, 10, 0}, {100, 7, 13}, {9, 4, 4}}) {
    std::vector<std::uint32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<std::uint32_t>(random()));
    const auto dataset =
        vernier::token_dataset(folder.write("a.bin", bytes_of(tokens)), typed("uint32", windows(length, stride)));
    const auto step = stride == 0 ? length : stride;
    std::vector<Sample> expected;
    for (int at = 0; at + length + 1 <= count; at += step) {
      const std::vector<std::int64_t> all(tokens.begin() + at, tokens.begin() + at + length + 1);
      expected.push_back({longs({all.begin(), all.end() - 1}), longs({all.begin() + 1, all.end()})});
    }
    REQUIRE(dataset->size() == static_cast<std::int64_t>(expected.size()));
    const auto batch = *dataset->get_batch(torch::arange(dataset->size()));
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      for (std::size_t part : {0, 1}) {
        CHECK(torch::equal(sample(dataset, i)[part], expected[static_cast<std::size_t>(i)][part]));
        CHECK(torch::equal(batch[part][i], expected[static_cast<std::size_t>(i)][part]));
      }
    }
  }
}

TEST_CASE("readers: tokens of 16 bits and bytes of a text") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.bin", bytes_of<std::uint16_t>({1, 65535, 3, 4, 5}));
  const auto dataset = vernier::token_dataset(path, typed("uint16", windows(2)));
  CHECK(torch::equal(sample(dataset, 0)[0], longs({1, 65535})));
  CHECK(torch::equal(sample(dataset, 1)[1], longs({4, 5})));
  CHECK(dataset->where(1) == "'" + path + "' tokens 2 to 4");
  const auto text = vernier::text_dataset(folder.write("a.txt", "ab\xffz"), windows(3));
  CHECK(torch::equal(sample(text, 0)[1], longs({'b', 255, 'z'})));
}

TEST_CASE("readers: token files that do not fit are refused") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.bin", bytes_of<std::uint16_t>({1, 2, 3, 400}));
  const auto refusal = [&](const char* type, const WindowOptions& options) {
    return thrown_by([&] { vernier::token_dataset(path, typed(type, options)); }).text;
  };
  CHECK(says(refusal("uint16", windows(4)), "has 4 tokens; a window of length 4 needs 4 and the one after"));
  CHECK(says(refusal("uint16", windows(3, 0, 400)),
             "has the token 400 at place 3, read as uint16, and the vocabulary 400"));
  CHECK(refusal("uint16", windows(3, 0, 401)).empty());
  CHECK(says(refusal("uint16", windows(0)), "length and stride must be at least 1"));
  CHECK(says(refusal("float", windows(1)), "tokens of the type 'float' are not read; there are uint8, int8, uint16"));
  const auto odd = folder.write("b.bin", "abc");
  CHECK(says(thrown_by([&] { vernier::token_dataset(odd, windows(1)); }).text,
             "ends within a token: it has 3 bytes, and a token of uint16 has 2"));
  const auto empty = folder.write("c.bin", "");
  CHECK(says(thrown_by([&] { vernier::text_dataset(empty, windows(1)); }).text, "has 0 tokens"));
}

TEST_CASE("readers: of a large file of tokens the first step sees a part, and each window the rest") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.bin", "");
  std::filesystem::resize_file(path, 2 * vernier::tokens_looked_at);  // zeros
  const auto options = typed("uint8", windows(1 << 10, 0, 200));
  const auto place = std::int64_t{90} << 10;  // between the first two parts that are looked at
  const auto put = [&](std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(static_cast<char>(at == 7 ? 199 : 250));
  };
  put(7);
  put(place + 5);
  const auto data = vernier::read_tokens(path, options);
  CHECK(data.largest == 199);
  CHECK(data.tokens == 2 * vernier::tokens_looked_at);
  CHECK(sample(data.dataset, 0)[0][7].item<std::int64_t>() == 199);
  const std::string wrong = "'" + path + "' has the token 250 at place 92165, read as uint8, and the vocabulary 200; ";
  CHECK(thrown_by([&] { sample(data.dataset, 90); }).text == wrong + "make the file with the model's tokenizer");
  put(2 * vernier::tokens_looked_at - 1);
  CHECK(says(thrown_by([&] { vernier::read_tokens(path, options); }).text, "has the token 250 at place 134217727, "));
}

TEST_CASE("readers: other formats are named by their first bytes, with the line that converts them") {
  using namespace std::string_literals;
  using vernier::ConvertTo;
  const auto table = ConvertTo::table, text = ConvertTo::text, tokens = ConvertTo::tokens;
  const auto tar = "000.jpg"s + std::string(250, '\0') + "ustar" + std::string(250, '\0');
  struct Case {
    std::string bytes, path;
    ConvertTo kind;
    const char *name, *remedy;
  };
  const std::vector<Case> cases = {
      {"PAR1\x15\x04"s, "a/t.parquet", table, "a Parquet file",
       "convert it: python3 -c \"import pandas; pandas.read_parquet('a/t.parquet').to_csv('a/t.csv', index=False)\""},
      {"PAR1\x15\x04"s, "t.csv", table, "a Parquet file",
       "convert it: python3 -c \"import pandas; pandas.read_parquet('t.csv').to_csv('converted_t.csv', index=False)\""},
      {"PAR1\x15\x04"s, "t.parquet", tokens, "a Parquet file",
       "convert it: python3 -c \"import pandas; pandas.read_parquet('t.parquet').to_json('t.jsonl', orient='records', "
       "lines=True)\""},
      {"\xff\xff\xff\xff\x00\x03\x00\x00\x10\x00\x00\x00\x00\x00\x0a\x00"s, "t.arrow", text,
       "an Arrow stream, as those of Hugging Face's datasets",
       "convert it: python3 -c \"import pyarrow; pyarrow.ipc.open_stream('t.arrow').read_pandas().to_json('t.jsonl', "
       "orient='records', lines=True)\""},
      {tar, "shard-0.tar", text, "a tar archive",
       "unpack it: mkdir -p 'shard-0' && tar -xf 'shard-0.tar' -C 'shard-0'"},
      {tar, "it's", table, "a tar archive",
       "unpack it: mkdir -p 'converted_it'\\''s' && tar -xf 'it'\\''s' -C 'converted_it'\\''s'"},
      {"\x1f\x8b\x08\x00"s, "a.b.tar.gz", text, "a tar archive",
       "unpack it: mkdir -p 'a.b' && tar -xf 'a.b.tar.gz' -C 'a.b'"},
      {"\x1f\x8b\x08\x00"s, "t.txt.gz", text, "packed by gzip", "unpack it: gzip -dc 't.txt.gz' > 't.txt'"},
      {"\xfd"
       "7zXZ\0"s,
       "t.bin", tokens, "packed by xz", "unpack it: xz -dc 't.bin' > 'converted_t.bin'"},
      {"\xfd"
       "7zXZ\0"s,
       "t.xz", tokens, "packed by xz", "unpack it: xz -dc 't.xz' > 't.bin'"},
      {"\x28\xb5\x2f\xfd"s, "t.csv.zst", table, "packed by Zstandard", "unpack it: zstd -dc 't.csv.zst' > 't.csv'"},
      {"BZh91AY&SY"s, "t.bz2", text, "packed by bzip2", "unpack it: bzip2 -dc 't.bz2' > 't.txt'"},
      {"PK\x03\x04\x14\x00"s, "t.zip", text, "a ZIP archive",
       "unpack it: mkdir -p 't' && python3 -m zipfile -e 't.zip' 't'"},
      {"PK\x03\x04\x14\x00 x.npy"s, "t.bin", tokens, "a NumPy archive",
       "convert it: python3 -c \"import numpy; [numpy.save(k, v) for k, v in numpy.load('t.bin').items()]\""},
      {"", "t.sav", table, "a file of SPSS",
       "convert it: python3 -c \"import pandas; pandas.read_spss('t.sav').to_csv('t.csv', index=False)\""},
      {"%PDF-1.4\n\x00"s, "t", text, "a PDF", ""},
      {"PAR1,b\n1,2\n", "t.csv", table, "", ""},       // a text that begins with the word
      {"BZh,b\n1,2\n", "t.csv", table, "", ""},        // and one with a letter more
      {"\x80\x02\x40\x00"s, "t.bin", tokens, "", ""},  // the tokens 640 and 64
      {"\x00\x00\x08\x01"s, "t.bin", tokens, "", ""},  // 0 and 264
      {"a,b\n1,2\n", "t.parquet", table, "", ""},      // bytes count more than a name
  };
  for (const auto& [bytes, path, kind, name, remedy] : cases) {
    CAPTURE(path);
    const auto format = vernier::other_format(bytes, path, kind);
    CHECK((format ? format->name : "") == name);
    CHECK((format ? format->remedy : "") == remedy);
  }
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name, const std::string& bytes) {
    const auto path = folder.write(name, bytes);
    return thrown_by([&] { vernier::read_csv(path); }).text;
  };
  CHECK(says(refusal("t.csv", "PAR1\x15\x04 and more"s),
             "t.csv' is a Parquet file, not a CSV file; convert it: python3"));
  CHECK(says(refusal("t.tar", tar), "t.tar' is a tar archive, not a CSV file; unpack it: mkdir -p "));
}

TEST_CASE("readers: JSON Lines by field and type") {
  const TemporaryFolder folder;
  const auto path =
      folder.write("a.jsonl",
                   "{\"text\": \"h\\u00e4\", \"label\": 3, \"x\": [[1, 2.5], [3, 4], [5, 6]], \"ok\": true}\n"
                   "{\"ok\": [false, true], \"x\": 7, \"label\": [], \"text\": \"\", \"more\": null}\r\n");
  const auto dataset = vernier::json_lines_dataset(
      path, {{"text", torch::kUInt8}, {"label", torch::kInt64}, {"x", torch::kFloat32}, {"ok", torch::kBool}});
  REQUIRE(dataset->size() == 2);
  auto first = sample(dataset, 0), second = sample(dataset, 1);
  CHECK(text_of(first[0]) == "hä");
  CHECK(torch::equal(first[1], torch::tensor(3, torch::kInt64)));
  CHECK(torch::equal(first[2], torch::tensor({1.0F, 2.5F, 3.0F, 4.0F, 5.0F, 6.0F}).view({3, 2})));
  CHECK(torch::equal(first[3], torch::tensor(true)));
  CHECK(second[0].numel() == 0);
  CHECK(second[1].sizes() == torch::IntArrayRef{0});
  CHECK(torch::equal(second[2], torch::tensor(7.0F)));
  CHECK(torch::equal(second[3], torch::tensor(std::vector<int>{0, 1}).to(torch::kBool)));
  CHECK(dataset->where(1) == "'" + path + "' line 2");
}

TEST_CASE("readers: a line that is not JSON or has other fields is refused with its number") {
  const TemporaryFolder folder;
  const std::tuple<const char*, torch::ScalarType, const char*> cases[] = {
      {"{\"a\": 1", torch::kFloat32, "line 2: the line is not JSON"},
      {"", torch::kFloat32, "line 2: the line is not JSON"},
      {"[1]", torch::kFloat32, "line 2 is not a JSON object"},
      {"{\"a\": 1, \"a\": 2}", torch::kFloat32, "line 2: the line has the key 'a' twice"},
      {"{\"b\": 1}", torch::kFloat32, "line 2: the field 'a' is missing"},
      {"{\"a\": null}", torch::kFloat32, "line 2: the field 'a' is missing"},
      {"{\"a\": \"1\"}", torch::kFloat32, "line 2: the field 'a' is not a number"},
      {"{\"a\": NaN}", torch::kFloat32, "line 2: the line is not JSON"},
      {"{\"a\": 1e39}", torch::kFloat32, "line 2: the field 'a' is too large for float32"},
      {"{\"a\": 1.5}", torch::kInt64, "line 2: the field 'a' is not a whole number of 64 bits"},
      {"{\"a\": 9223372036854775808}", torch::kInt64, "line 2: the field 'a' is not a whole number of 64 bits"},
      {"{\"a\": 1}", torch::kBool, "line 2: the field 'a' is not true or false"},
      {"{\"a\": 1}", torch::kUInt8, "line 2: the field 'a' is not a text"},
      {"{\"a\": [[1], [2, 3]]}", torch::kFloat32, "line 2: the field 'a' has arrays of different length in it"},
      {"{\"a\": [1, [2]]}", torch::kFloat32, "line 2: the field 'a' has arrays of different length in it"},
  };
  for (const auto& [line, type, reason] : cases) {
    CAPTURE(line);
    const auto path = folder.write("a.jsonl", std::string("{}\n") + line + "\n{}\n");
    const auto dataset = vernier::json_lines_dataset(path, {{"a", type}});
    const auto thrown = thrown_by([&] { sample(dataset, 1); });
    CHECK(thrown.kind == 2);
    CHECK(says(thrown.text, "'" + path + "' " + reason));
  }
  const auto path = folder.write("b.jsonl", "{}");
  CHECK(says(thrown_by([&] { vernier::json_lines_dataset(path, {{"a", torch::kFloat16}}); }).text, "'a' can be"));
  CHECK(thrown_by([&] { vernier::json_lines_dataset(path, {}); }).kind == 2);
  const auto empty = folder.write("c.jsonl", "");
  CHECK(says(thrown_by([&] { vernier::json_lines_dataset(empty, {{"a"}}); }).text, "is empty"));
  const auto blank = folder.write("d.jsonl", "\xef\xbb\xbf\n \n");
  CHECK(says(thrown_by([&] { vernier::json_lines_dataset(blank, {{"a"}}); }).text, "has no lines but blank ones"));
}

TEST_CASE("readers: JSON Lines without an end of the line are refused when the file is opened") {
  const TemporaryFolder folder;
  const auto path = folder.write("long.jsonl", "{}\n");
  std::filesystem::resize_file(path, 300 << 20);  // a hole, which takes no room
  const auto expected = "'" + path + "' line 2 has 314572797 bytes; divide it into lines of at most 268435456";
  CHECK(says(thrown_by([&] { vernier::json_lines_dataset(path, {{"a"}}); }).text, expected));
}

TEST_CASE("readers: a byte-order mark and blank lines at the end of JSON Lines are left out") {
  const TemporaryFolder folder;
  for (const std::string end : {"", "\n", "\n\n", "\r\n \r\n\t\n"}) {
    CAPTURE(end);
    const auto path = folder.write("a.jsonl", "\xef\xbb\xbf{\"a\": 1}\n{\"a\": 2}" + end);
    const auto dataset = vernier::json_lines_dataset(path, {{"a"}});
    REQUIRE(dataset->size() == 2);
    CHECK(sample(dataset, 0)[0].item<float>() == 1);
    CHECK(sample(dataset, 1)[0].item<float>() == 2);
  }
}

TEST_CASE("readers: IDX images with labels, and labels out of range") {
  const TemporaryFolder folder;
  const auto images = folder.write("i", idx({3, 2, 2}, "abcdefghijkl"));
  const auto three = folder.write("three", idx({3}, std::string("\1\0\2", 3)));
  const auto dataset = vernier::idx_dataset(images, three, 3);
  REQUIRE(dataset->size() == 3);
  CHECK(text_of(sample(dataset, 1)[0]) == "efgh");
  CHECK(sample(dataset, 1)[0].sizes() == torch::IntArrayRef{2, 2});
  CHECK(torch::equal(sample(dataset, 2)[1], torch::tensor(2, torch::kInt64)));
  const auto refusal = [&](const std::string& labels, std::int64_t classes) {
    return thrown_by([&] { vernier::idx_dataset(images, labels, classes); }).text;
  };
  CHECK(says(refusal(three, 2), "'" + three + "' sample 2 has the label 2; with 2 classes the largest is 1"));
  CHECK(says(refusal(folder.write("two", idx({2}, std::string(2, '\0'))), 2), "has 2 samples, '" + images));
  CHECK(says(refusal(folder.write("none", idx({0}, "")), 2), "has no labels"));
}

TEST_CASE("readers: tensors of a safetensors file") {
  const TemporaryFolder folder;
  const auto path = folder / "a.safetensors";
  const auto x = torch::randn({4, 3}), y = torch::arange(4), z = torch::ones({4}, torch::kUInt8);
  vernier::save_safetensors(path, {{"x", x}, {"y", y}, {"z", z}, {"five", torch::ones({5})}});
  const auto dataset = vernier::safetensors_dataset(path, {"y", "x"});
  REQUIRE(dataset->size() == 4);
  CHECK(torch::equal(sample(dataset, 2)[0], y[2]));
  CHECK(torch::equal(sample(dataset, 2)[1], x[2]));
  CHECK(dataset->where(2) == "'" + path + "' tensor 'y' sample 2");
  CHECK(says(thrown_by([&] { vernier::safetensors_dataset(path, {"w"}); }).text, "has no tensor 'w'; it has"));
  CHECK(says(thrown_by([&] { vernier::safetensors_dataset(path, {"x", "five"}); }).text, "has 5 samples"));
  CHECK(says(thrown_by([&] { vernier::safetensors_dataset(path, {}); }).text, "at least one array"));
}

TEST_CASE("readers: a mapped file that changes is refused at the next sample") {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "{\"a\": 1}\n{\"a\": 2}\n");
  const auto lines = vernier::json_lines_dataset(path, {{"a"}});
  const auto text = vernier::text_dataset(path, windows(4));
  const auto digits = lines->fingerprint();
  CHECK(lines->fingerprint() == digits);
  CHECK(says(digits, "2 lines, 18 bytes, XXH3 "));
  CHECK_NOTHROW(sample(lines, 1));
  std::ofstream(path, std::ios::binary | std::ios::app) << "{\"a\": 3}\n";
  for (const auto& dataset : {lines, text}) {
    CHECK(says(thrown_by([&] { sample(dataset, 1); }).text, "'" + path + "' has changed while it was read"));
    CHECK(says(thrown_by([&] { dataset->fingerprint(); }).text, "has changed while it was read"));
  }
}

namespace {

// Reads a whole file and all its samples.
using Reading = std::function<void(const std::string& path)>;

void read_all(const DatasetPtr& dataset) {
  for (std::int64_t i = 0; i < dataset->size(); ++i) sample(dataset, i);
}

struct Truncated {
  const char* name;
  std::string bytes;
  Reading read;
  bool has_no_whole_part;  // every shorter file is refused
};

std::vector<Truncated> truncated_files(const TemporaryFolder& folder) {
  vernier::save_safetensors(folder / "s", {{"x", torch::ones({3})}});
  const auto image = [](const std::string& path) { vernier::read_image(path); };
  const auto npz = [](const std::string& path) { vernier::read_npz(path); };
  return {
      {"npy", read_text(oracles + "float32.npy"), [](const auto& path) { vernier::read_npy(path); }, true},
      {"stored npz", read_text(oracles + "stored.npz"), npz, true},
      {"deflated npz", read_text(oracles + "deflated.npz"), npz, true},
      {"png", read_text(oracles + "rgb.png"), image, true},
      {"interlaced png", read_text(oracles + "interlaced.png"), image, true},
      {"jpeg", read_text(oracles + "smooth.jpg"), image, true},
      {"progressive jpeg", read_text(oracles + "progressive.jpg"), image, true},
      {"idx", idx({2, 3}, "abcdef"), [](const auto& path) { vernier::read_idx(path, 2); }, true},
      {"safetensors", read_text(folder / "s"),
       [](const auto& path) { read_all(vernier::safetensors_dataset(path, {"x"})); }, true},
      {"json lines", "{\"a\": [1, 2]}\n{\"a\": [3, 4]}\n",
       [](const auto& path) { read_all(vernier::json_lines_dataset(path, {{"a"}})); }, false},
      {"csv", "a,\"b\"\"\"\n1,\"2\"\n3,4\n", [](const auto& path) { vernier::read_csv(path); }, false},
      {"tokens", bytes_of<std::uint16_t>({1, 2, 3, 4, 5}),
       [](const auto& path) { read_all(vernier::token_dataset(path, typed("uint16", windows(2)))); }, false},
  };
}

}  // namespace

TEST_CASE("readers: a file that is cut short at any byte is refused in one line or read, and never ends the program") {
  const TemporaryFolder folder;
  for (const auto& [name, bytes, read, has_no_whole_part] : truncated_files(folder)) {
    CAPTURE(name);
    const auto path = folder.write("cut", bytes);
    CHECK(thrown_by([&, &read = read] { read(path); }) == Thrown{});
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(length);
      folder.write("cut", bytes.substr(0, length));
      const auto thrown = thrown_by([&, &read = read] { read(path); });
      CHECK((thrown.kind == 2 || (thrown.kind == 0 && !has_no_whole_part)));
      if (thrown.kind == 2) CHECK(says(thrown.text, path));
      CHECK_FALSE(says(thrown.text, "\n"));
    }
  }
}

TEST_CASE("readers: a folder, a device and a file that is not there are refused by all") {
  const TemporaryFolder folder;
  const std::pair<std::string, const char*> paths[] = {{folder.path().string(), "cannot be read: it is a folder"},
                                                       {"/dev/zero", "cannot be read: it is a device"},
                                                       {folder / "none", "cannot be opened: No such file"}};
  for (const auto& [name, bytes, read, has_no_whole_part] : truncated_files(folder)) {
    CAPTURE(name);
    for (const auto& [path, reason] : paths) {
      const auto thrown = thrown_by([&, &read = read, &path = path] { read(path); });
      CHECK(thrown.kind == 2);
      CHECK(says(thrown.text, "'" + path + "' " + reason));
    }
  }
}

// A byte may be one that no reader looks at, so a changed file may be read.
TEST_CASE("readers: a file with any byte changed is refused in one line or read") {
  const TemporaryFolder folder;
  std::mt19937 random(11);
  for (const auto& [name, bytes, read, has_no_whole_part] : truncated_files(folder)) {
    CAPTURE(name);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      auto changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ static_cast<char>(1 + random() % 255));
      const auto path = folder.write("changed", changed);
      const auto thrown = thrown_by([&, &read = read] { read(path); });
      CAPTURE(at);
      CHECK((thrown.kind == 0 || thrown.kind == 2));
      CHECK_FALSE(says(thrown.text, "\n"));
    }
  }
}

}  // namespace readers_test
