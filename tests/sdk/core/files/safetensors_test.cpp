#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/safetensors.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "same_tensors.h"
#include "temporary_folder.h"

namespace safetensors_test {

using vernier::Error;
using vernier::Metadata;
using vernier::Tensors;
namespace fs = std::filesystem;

namespace {

const std::vector<torch::ScalarType> dtypes = {
    torch::kUInt64,          torch::kInt64,          torch::kFloat64, torch::kComplexFloat,
    torch::kFloat32,         torch::kUInt32,         torch::kInt32,   torch::kBFloat16,
    torch::kFloat16,         torch::kUInt16,         torch::kInt16,   torch::kFloat8_e5m2,
    torch::kFloat8_e4m3fn,   torch::kFloat8_e8m0fnu, torch::kInt8,    torch::kFloat8_e5m2fnuz,
    torch::kFloat8_e4m3fnuz, torch::kUInt8,          torch::kBool};

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string with_length(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

// The message with which reading is refused, "" where it is not.
std::string refusal(const std::string& path) {
  try {
    vernier::read_safetensors(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(engine_() % static_cast<unsigned>(bound)); }

  torch::Tensor tensor() {
    const auto dtype = dtypes[static_cast<std::size_t>(below(static_cast<std::int64_t>(dtypes.size())))];
    std::vector<std::int64_t> shape(static_cast<std::size_t>(below(5)));
    for (auto& size : shape) size = below(5);
    return strided(of(dtype, shape));
  }

  torch::Tensor of(torch::ScalarType dtype, const std::vector<std::int64_t>& shape) {
    const auto bytes = c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
    auto raw = torch::empty({bytes}, torch::kUInt8);
    for (std::int64_t i = 0; i < bytes; ++i) {
      raw.data_ptr<std::uint8_t>()[i] = static_cast<std::uint8_t>(below(dtype == torch::kBool ? 2 : 256));
    }
    return raw.view(dtype).view(shape);
  }

 private:
  torch::Tensor strided(const torch::Tensor& tensor) {
    if (tensor.dim() == 0) return tensor;
    switch (below(3)) {
      case 0:
        return tensor.transpose(0, tensor.dim() - 1);
      case 1:
        return tensor.slice(0, 0, std::nullopt, 2);
      default:
        return tensor;
    }
  }

  std::mt19937 engine_;
};

}  // namespace

TEST_CASE("random tensors come back bit for bit") {
  const TemporaryFolder folder;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Tensors tensors;
    for (auto count = random.below(8); count > 0; --count) tensors["t" + std::to_string(count)] = random.tensor();
    const Metadata metadata = {{"seed", std::to_string(seed)}};
    vernier::save_safetensors(folder / "file", tensors, metadata);
    const auto read = vernier::read_safetensors(folder / "file");
    check_equal(tensors, read.tensors);
    CHECK(read.metadata == metadata);
  }
}

TEST_CASE("every dtype comes back, without elements too") {
  const TemporaryFolder folder;
  Random random(1);
  Tensors tensors;
  for (const auto dtype : dtypes) {
    tensors[std::string(c10::toString(dtype)) + ".some"] = random.of(dtype, {3, 2});
    tensors[std::string(c10::toString(dtype)) + ".scalar"] = random.of(dtype, {});
    tensors[std::string(c10::toString(dtype)) + ".none"] = random.of(dtype, {2, 0});
  }
  vernier::save_safetensors(folder / "file", tensors);
  check_equal(tensors, vernier::load_safetensors(folder / "file"));
}

TEST_CASE("views are written as what they show") {
  const TemporaryFolder folder;
  const auto base = torch::arange(24, torch::kFloat32).view({2, 3, 4}).requires_grad_();
  const auto conjugated = torch::view_as_complex(torch::arange(4, torch::kFloat32).view({2, 2})).conj();
  const Tensors tensors = {{"conjugated", conjugated},
                           {"negative", torch::imag(conjugated)},
                           {"turned", base.permute({2, 0, 1})},
                           {"every other", base.slice(2, 0, 4, 2)},
                           {"repeated", base.unsqueeze(0).expand({3, 2, 3, 4})}};
  REQUIRE(tensors.at("conjugated").is_conj());
  REQUIRE(tensors.at("negative").is_neg());
  vernier::save_safetensors(folder / "file", tensors);
  const auto read = vernier::load_safetensors(folder / "file");
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK(torch::equal(read.at(name), tensor.resolve_conj().resolve_neg()));
    CHECK(read.at(name).is_contiguous());
    CHECK_FALSE(read.at(name).requires_grad());
  }
}

TEST_CASE("files are those of the format's own library, byte for byte") {
  const TemporaryFolder folder;
  for (const char* name : {"dtypes", "more_dtypes", "shapes", "metadata", "empty_metadata", "names", "special",
                           "no_padding", "no_tensors", "no_tensors_metadata"}) {
    CAPTURE(name);
    const fs::path theirs =
        fs::path(VERNIER_SOURCE_DIR) / "tests/oracles/safetensors_layout" / (std::string(name) + ".safetensors");
    REQUIRE(fs::exists(theirs));
    const auto read = vernier::read_safetensors(theirs.string());
    vernier::save_safetensors(folder / "ours", read.tensors, read.metadata);
    CHECK(read_text(folder / "ours") == read_text(theirs));
  }
}

TEST_CASE("empty metadata is not the same as none") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  for (const auto& metadata : {std::optional<Metadata>(), std::optional(Metadata{})}) {
    vernier::save_safetensors(path, {{"x", torch::ones({1})}}, metadata);
    CHECK((read_text(path).find("__metadata__") != std::string::npos) == metadata.has_value());
    CHECK(vernier::read_safetensors(path).metadata == metadata);
  }
  write(path, with_length(R"({"__metadata__":null})"));
  CHECK(vernier::read_safetensors(path).metadata == std::nullopt);
}

TEST_CASE("a file that is cut anywhere is refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  vernier::save_safetensors(path, {{"a", torch::ones({3})}, {"b", torch::ones({2, 2}, torch::kInt8)}},
                            Metadata{{"k", "v"}});
  const std::string whole = read_text(path);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write(path, whole.substr(0, length));
    CHECK(refusal(path).starts_with(path + ": "));
  }
  write(path, whole + '\0');
  CHECK(refusal(path) == path + ": has 1 bytes too many after its tensors");
}

TEST_CASE("every other length of the header is refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  vernier::save_safetensors(path, {{"a", torch::ones({3})}, {"b", torch::ones({2, 2}, torch::kInt8)}},
                            Metadata{{"k", "v"}});
  const std::string whole = read_text(path);
  std::uint64_t right = 0;
  std::memcpy(&right, whole.data(), sizeof right);
  std::vector<std::uint64_t> lengths(whole.size() + 16);
  std::iota(lengths.begin(), lengths.end(), 0);
  for (int bit = 0; bit < 64; ++bit) {
    for (const std::uint64_t off : {-1, 0, 1}) lengths.push_back((std::uint64_t{1} << bit) + off);
  }
  for (const auto length : lengths) {
    if (length == right) continue;
    CAPTURE(length);
    std::string changed = whole;
    std::memcpy(changed.data(), &length, sizeof length);
    write(path, changed);
    CHECK(refusal(path).starts_with(path + ": "));
  }
}

TEST_CASE("a changed bit in the header is refused or reads to something whole") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  vernier::save_safetensors(path, {{"a", torch::ones({3})}, {"b", torch::ones({2, 2}, torch::kBool)}},
                            Metadata{{"k", "v"}});
  const std::string whole = read_text(path);
  for (std::size_t at = 0; at < whole.size() - 16; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      CAPTURE(at);
      CAPTURE(bit);
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      write(path, changed);
      try {
        const auto read = vernier::read_safetensors(path);
        vernier::save_safetensors(path, read.tensors, read.metadata);
        check_equal(read.tensors, vernier::load_safetensors(path));
      } catch (const Error& error) {
        CHECK(std::string(error.what()).starts_with(path + ": "));
      }
    }
  }
}

TEST_CASE("headers that lie are refused with the reason") {
  struct Lie {
    const char* header;
    std::size_t data;
    const char* reason;
  };
  const Lie lies[] = {
      {"", 0, "the header is not JSON"},
      {"{", 0, "the header is not JSON"},
      {"[]", 0, "the header is not a JSON object"},
      {"{}x", 0, "the header is not JSON"},
      {"\xEF\xBB\xBF{}", 0, "a byte-order mark"},
      {"{\"\xFF\":0}", 0, "the header is not JSON"},
      {R"({"x":[[[[[[[[[[1]]]]]]]]]]})", 0, "nested too deeply"},
      {R"({"x":7})", 0, "tensor 'x': its entry in the header is not an object"},
      {R"({"x":{"dtype":"U8","shape":[1]}})", 1, "tensor 'x': its entry in the header has no 'data_offsets'"},
      {R"({"x":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}})", 1, "tensor 'x': its dtype 'Q8' is unknown"},
      {R"({"x":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1, "its dtype is not a text"},
      {R"({"x":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "its shape is not an array"},
      {R"({"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "its shape has -1, which is not a size"},
      {R"({"x":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "its shape has 1.0, which is not a size"},
      {R"({"x":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1, "which is not a size"},
      {R"({"x":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, "which is not a size"},
      {R"({"x":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "its shape is too large"},
      {R"({"x":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0, "its shape is too large"},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1, "its dtype and shape need 2 bytes"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "are not a begin and an end"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "are not a begin and an end"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "there is a hole before its bytes"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "tensor 'y': there is a hole before its bytes"},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'y': its bytes overlap those of another tensor"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 0, "is cut short: its tensors need 1 bytes"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3, "has 2 bytes too many after its tensors"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "the header has the key 'x' twice"},
      {R"({"x":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, "the key 'shape' twice"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "the key 'a' twice"},
      {R"({"__metadata__":[]})", 0, "the metadata is not an object"},
      {R"({"__metadata__":{"a":1}})", 0, "the metadata's 'a' is not a text"},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  for (const auto& [header, data, reason] : lies) {
    CAPTURE(header);
    write(path, with_length(header, std::string(data, '\0')));
    const std::string message = refusal(path);
    CAPTURE(message);
    CHECK(message.starts_with(path + ": "));
    CHECK(message.find(reason) != std::string::npos);
  }
  write(path, with_length(std::string("{}\0", 3)));
  CHECK(refusal(path) == path + ": the header is not JSON: it has a NUL");
  write(path, with_length(R"({"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\1\2"));
  CHECK(refusal(path) == path + ": tensor 'x': a BOOL of it is neither 0 nor 1");
}

TEST_CASE("what other writers may write is read") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write(path,
        with_length(R"( {"x" : {"more":[{}], "shape":[1], "dtype":"U8", "data_offsets":[0,1]}, "__metadata__":null} )",
                    "\7"));
  CHECK(vernier::load_safetensors(path).at("x").item<int>() == 7);
}

TEST_CASE("the length of the header is checked before it is believed") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    write(path, bytes + "{}");
    CHECK(refusal(path).find("its header would have " + std::to_string(length) + " bytes") != std::string::npos);
  }
  write(path, std::string("\x64\0\0\0\0\0\0\0{}", 10));
  CHECK(refusal(path) == path + ": is cut short: the header has 100 bytes, the file 10");
}

TEST_CASE("a header of many tensors is read and written") {
  const TemporaryFolder folder;
  Tensors tensors;
  for (int i = 0; i < 20000; ++i) tensors["layer." + std::to_string(i)] = torch::full({1}, i, torch::kInt32);
  vernier::save_safetensors(folder / "file", tensors);
  const auto read = vernier::load_safetensors(folder / "file");
  REQUIRE(read.size() == tensors.size());
  CHECK(read.at("layer.12345").item<int>() == 12345);
}

TEST_CASE("what is not a file is refused by name") {
  const TemporaryFolder folder;
  CHECK(refusal(folder / "none") == (folder / "none") + ": cannot be opened: No such file or directory");
  CHECK(refusal(folder.path().string()) == folder.path().string() + ": is a directory, not a file");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(refusal(folder / "pipe") == (folder / "pipe") + ": is not a regular file");
}

TEST_CASE("tensors that the format cannot hold are refused before the file is touched") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const auto message = [&](const std::string& name, const torch::Tensor& tensor, const Metadata& metadata = {}) {
    try {
      vernier::save_safetensors(path, {{name, tensor}}, metadata);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto one = torch::ones({1});
  CHECK(message("x", one.to(torch::kComplexDouble)).find("tensor 'x': its dtype ComplexDouble") != std::string::npos);
  CHECK(message("x", torch::Tensor()).find("tensor 'x': it is undefined") != std::string::npos);
  CHECK(message("x", one.to_sparse()).find("tensor 'x': only dense tensors") != std::string::npos);
  CHECK(message("x", one.to(torch::kMeta)).find("tensor 'x': only dense tensors") != std::string::npos);
  CHECK(message("__metadata__", one).find("the name is reserved") != std::string::npos);
  CHECK(message("\xFF", one).find("not UTF-8") != std::string::npos);
  CHECK(message("x", one, {{"k", "\xFF"}}).find("not UTF-8") != std::string::npos);
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("a full disk ends in an error that names path and reason") {
  CHECK_THROWS_WITH_AS(vernier::save_safetensors("/dev/full", {{"x", torch::ones({3})}}),
                       "/dev/full: cannot be written: No space left on device", Error);

  const TemporaryFolder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    MESSAGE("no tmpfs can be mounted here: a disk that fills up half-way is not tried");
    return;
  }
  const std::string path = folder / "file";
  CHECK_THROWS_WITH_AS(vernier::save_safetensors(path, {{"x", torch::ones({1 << 20})}}),
                       (path + ": cannot be written: No space left on device").c_str(), Error);
  vernier::save_safetensors(path, {{"x", torch::ones({4})}});
  CHECK(vernier::load_safetensors(path).at("x").numel() == 4);
  ::umount(folder.path().c_str());
}

TEST_CASE("signals and short writes are not seen") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const Tensors tensors = {{"x", torch::arange(1 << 19, torch::kInt32)}};

  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_BLOCK, &alarm, nullptr);  // inherited by the reader: the writer gets them all
  std::string received;
  std::thread reader([&] { received = read_text(pipe); });
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);

  struct sigaction interrupt = {}, before = {};
  static volatile sig_atomic_t interrupted;
  interrupted = 0;
  interrupt.sa_handler = [](int) { interrupted = interrupted + 1; };  // without SA_RESTART
  ::sigaction(SIGALRM, &interrupt, &before);
  const itimerval often = {{0, 100}, {0, 100}}, never = {};
  const int writer = ::open(pipe.c_str(), O_WRONLY);  // so that opening is not what is interrupted
  ::setitimer(ITIMER_REAL, &often, nullptr);
  vernier::save_safetensors(pipe, tensors);
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::close(writer);
  reader.join();
  ::sigaction(SIGALRM, &before, nullptr);

  vernier::save_safetensors(folder / "file", tensors);
  CHECK(received == read_text(folder / "file"));
  MESSAGE("interrupted " << interrupted << " times");
}

}  // namespace safetensors_test
