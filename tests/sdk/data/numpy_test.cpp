#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/numpy.h>

#include <fstream>

#include "temporary_folder.h"
#include "thrown.h"

namespace numpy_test {

using vernier::read_npy;
using vernier::read_npz;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

// The numbers of tests/oracles/data.py: 7 * (i + j + …) + 5, or whether 7 * (i + j + …) is even.
torch::Tensor counting(torch::IntArrayRef shape, torch::ScalarType type) {
  auto sum = torch::zeros(shape, torch::kFloat64);
  for (std::int64_t axis = 0; axis < sum.dim(); ++axis) {
    std::vector<std::int64_t> along(shape.size(), 1);
    along[static_cast<std::size_t>(axis)] = shape[static_cast<std::size_t>(axis)];
    sum = sum + 7 * torch::arange(along[static_cast<std::size_t>(axis)], torch::kFloat64).view(along);
  }
  return type == torch::kBool ? sum.remainder(2) == 0 : (sum + 5).to(type);
}

void check_equal(const torch::Tensor& read, const torch::Tensor& expected) {
  REQUIRE((read.scalar_type() == expected.scalar_type()));
  REQUIRE(read.sizes() == expected.sizes());
  CHECK(torch::equal(read.to(torch::kFloat64), expected.to(torch::kFloat64)));
}

// An array as the published format has it.
std::string npy(const std::string& header, const std::string& elements) {
  std::string bytes = "\x93NUMPY";
  bytes += std::string("\1\0", 2);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + elements;
}

std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.npy", bytes);
  return thrown_by([&] { read_npy(path); }).text;
}

}  // namespace

TEST_CASE("numpy: reads NumPy's arrays of every type, version and order") {
  const std::pair<const char*, torch::ScalarType> types[] = {
      {"bool", torch::kBool},       {"int8", torch::kInt8},       {"int16", torch::kInt16},
      {"int32", torch::kInt32},     {"int64", torch::kInt64},     {"uint8", torch::kUInt8},
      {"uint16", torch::kUInt16},   {"uint32", torch::kUInt32},   {"uint64", torch::kUInt64},
      {"float16", torch::kFloat16}, {"float32", torch::kFloat32}, {"float64", torch::kFloat64}};
  for (const auto& [name, type] : types) {
    CAPTURE(name);
    check_equal(read_npy(oracles + name + ".npy"), counting({3, 4}, type));
  }
  for (const char* version : {"1", "2", "3"}) {
    check_equal(read_npy(oracles + "version_" + version + ".npy"), counting({3, 4}, torch::kFloat32));
  }
  check_equal(read_npy(oracles + "fortran.npy"), counting({3, 4, 2}, torch::kFloat32));
  check_equal(read_npy(oracles + "scalar.npy"), counting({}, torch::kFloat64));
  check_equal(read_npy(oracles + "empty.npy"), counting({0, 3}, torch::kFloat32));
}

TEST_CASE("numpy: archives, stored and deflated") {
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    CAPTURE(name);
    const auto arrays = read_npz(oracles + name);
    REQUIRE(arrays.size() == 2);
    check_equal(arrays.at("x"), counting({5, 2}, torch::kFloat32));
    check_equal(arrays.at("y"), counting({5}, torch::kInt64));
    const auto dataset = vernier::npz_dataset(oracles + name, {"y", "x"});
    vernier::Random random(1, 0, 0);
    CHECK(dataset->size() == 5);
    CHECK(dataset->get(3, random)[0].item<std::int64_t>() == 26);
    CHECK(says(thrown_by([&] { vernier::npz_dataset(oracles + name, {"z"}); }).text, "has no array 'z'; it has x,y"));
  }
}

TEST_CASE("numpy: writing to a tensor leaves the file as it is") {
  const TemporaryFolder folder;
  const auto path = folder.write("a.npy", read_text(oracles + "int64.npy"));
  auto tensor = read_npy(path);
  tensor.zero_();
  CHECK(tensor.sum().item<std::int64_t>() == 0);
  check_equal(read_npy(path), counting({3, 4}, torch::kInt64));
}

TEST_CASE("numpy: what is not an array, or none that is read, is refused") {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", eight(8, '\0');
  const TemporaryFolder folder;
  check_equal(read_npy(folder.write("good.npy", npy(good, eight))), torch::zeros({2}));
  const auto changed = [&](const std::string& from, const std::string& to) {
    auto header = good;
    header.replace(header.find(from), from.size(), to);
    return npy(header, eight);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "is empty"},
      {"PK", "is not an array of NumPy: the header of the array does not begin with \\x93NUMPY"},
      {npy(good, "1234567"), "is cut short: the array of shape [2] needs 8 bytes, there are 7"},
      {npy(good, eight + "9"), "is too long: the array of shape [2] needs 8 bytes, there are 9"},
      {changed("<f4", ">f4"), "has elements of type '>f4', which is not read; convert it in NumPy: array.astype"},
      {changed("<f4", "|O"), "has elements of type '|O'"},
      {changed("'<f4'", "[('a', '<f4')]"), "has records as elements; save each field as an array"},
      {changed("(2,)", "(-2,)"), "has a shape that is not a tuple of sizes"},
      {changed("(2,)", "(2 2)"), "has a shape that is not a tuple of sizes"},
      {changed("(2,)", "(9223372036854775807, 9)"), "needs more than 2^63 bytes"},
      {changed("False", "Maybe"), "has a fortran_order that is not True or False"},
      {changed("'shape'", "'shade'"), "has the key 'shade', or has it twice"},
      {changed("'fortran_order': False, ", ""), "lacks 'descr', 'fortran_order' or 'shape'"},
      {npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }\n", "\1\2"),
       "has a bool that is neither 0 nor 1"},
  };
  for (const auto& [bytes, reason] : cases) {
    CAPTURE(reason);
    CHECK(says(refusal(bytes), reason));
  }
  for (const char* name : {"big_endian", "records", "texts"}) {
    CHECK(thrown_by([&] { read_npy(oracles + name + ".npy"); }).kind == 2);
  }
}

TEST_CASE("numpy: a changed byte of an archive is found") {
  const TemporaryFolder folder;
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    CAPTURE(name);
    const auto whole = read_text(oracles + name);
    const auto first = whole.find("NUMPY");  // stored: in the array; deflated: nowhere
    const auto at = first == std::string::npos ? 60 : first + 80;
    auto bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    const auto path = folder.write("a.npz", bytes);
    const auto thrown = thrown_by([&] { read_npz(path); });
    CHECK(thrown.kind == 2);
    CHECK(says(thrown.text, "is damaged: 'x.npy'"));
  }
}

TEST_CASE("numpy: an archive that unpacks to far more than its size is refused before it is unpacked") {
  const TemporaryFolder folder;
  auto bytes = read_text(oracles + "deflated.npz");
  const auto member = bytes.find("PK\x01\x02");  // the first entry of the directory
  const std::uint32_t unpacked = 300'000'000;
  std::memcpy(bytes.data() + member + 24, &unpacked, sizeof(unpacked));
  const auto path = folder.write("a.npz", bytes);
  CHECK(says(thrown_by([&] { read_npz(path); }).text, "unpacks 'x.npy' to over 200 times its size"));
}

TEST_CASE("numpy: an archive is read by name, whatever its other arrays are") {
  const TemporaryFolder folder;
  auto bytes = read_text(oracles + "stored.npz");
  const auto at = bytes.rfind("NUMPY") + 128;  // an element of y
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  const auto path = folder.write("a.npz", bytes);
  CHECK(says(thrown_by([&] { read_npz(path); }).text, "is damaged: 'y.npy'"));
  check_equal(read_npz(path, "x"), counting({5, 2}, torch::kFloat32));
  CHECK(vernier::npz_dataset(path, {"x"})->size() == 5);
  CHECK(says(thrown_by([&] { read_npz(path, "y"); }).text, "is damaged: 'y.npy'"));
  CHECK(says(thrown_by([&] { read_npz(path, "z"); }).text, "has no array 'z'; it has x,y"));
}

TEST_CASE("numpy: unsigned integers are samples of int64") {
  vernier::Random random(1, 0, 0);
  for (const char* name : {"uint16", "uint32", "uint64"}) {
    CAPTURE(name);
    const auto dataset = vernier::numpy_dataset({oracles + name + ".npy"});
    const auto expected = counting({3, 4}, torch::kInt64);
    check_equal(dataset->get(1, random)[0], expected[1]);
    const auto rows = torch::tensor({2, 0}, torch::kInt64);
    check_equal(dataset->get_batch(rows)->at(0), expected.index_select(0, rows));
  }
  const TemporaryFolder folder;
  const auto labels = folder.write(
      "u2.npy", npy("{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n", std::string("\3\0\xff\xff", 4)));
  const auto batch = *vernier::numpy_dataset({labels})->get_batch(torch::tensor({1, 0}, torch::kInt64));
  check_equal(batch[0], torch::tensor({65535, 3}, torch::kInt64));
  const auto large = folder.write("u8.npy", npy("{'descr': '<u8', 'fortran_order': False, 'shape': (2,), }\n",
                                                std::string(8, '\0') + std::string(8, '\xff')));
  const auto dataset = vernier::numpy_dataset({large});
  CHECK(dataset->get(0, random)[0].item<std::int64_t>() == 0);
  CHECK(thrown_by([&] { dataset->get(1, random); }) ==
        configuration("'" + large + "' sample 1 has a number of 2^63 or more, which int64 cannot hold"));
  CHECK_FALSE(dataset->get_batch(torch::tensor({0, 1}, torch::kInt64)));
}

TEST_CASE("numpy: a dataset of several arrays; a file that changes is noticed") {
  const TemporaryFolder folder;
  const auto x = folder.write("x.npy", read_text(oracles + "float32.npy"));
  const auto y = folder.write("y.npy", read_text(oracles + "int64.npy"));
  const auto dataset = vernier::numpy_dataset({x, y});
  vernier::Random random(1, 0, 0);
  REQUIRE(dataset->size() == 3);
  check_equal(dataset->get(1, random)[0], counting({3, 4}, torch::kFloat32)[1]);
  const auto batch = *dataset->get_batch(torch::tensor({2, 0}, torch::kInt64));
  check_equal(batch[1], counting({3, 4}, torch::kInt64).index_select(0, torch::tensor({2, 0}, torch::kInt64)));
  CHECK(dataset->where(1) == "'" + x + "' sample 1");
  CHECK(says(dataset->fingerprint(), "224 bytes, XXH3 "));
  dataset->get(0, random)[0].zero_();  // a copy
  check_equal(dataset->get(0, random)[0], counting({3, 4}, torch::kFloat32)[0]);
  CHECK(says(thrown_by([&] { vernier::numpy_dataset({x, oracles + "empty.npy"}); }).text, "has 0 samples, '" + x));
  CHECK(says(thrown_by([&] { vernier::numpy_dataset({oracles + "scalar.npy"}); }).text, "is a single number"));

  std::ofstream(y, std::ios::binary | std::ios::trunc) << "short";
  const auto changed = "'" + y + "' has changed while it was read: it had 224 bytes and has 5";
  CHECK(says(thrown_by([&] { dataset->get(1, random); }).text, changed));
  CHECK(says(thrown_by([&] { dataset->get_batch(torch::tensor({1}, torch::kInt64)); }).text, changed));
  CHECK(says(thrown_by([&] { dataset->fingerprint(); }).text, changed));
}

}  // namespace numpy_test
