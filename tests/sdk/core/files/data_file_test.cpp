#include <vernier/data_file.h>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "temporary_folder.h"
#include "thrown.h"

namespace data_file_test {

namespace fs = std::filesystem;
using vernier::DataFile;
using vernier::read_data_file;

TEST_CASE("data_file: a regular file is read from its beginning") {
  const TemporaryFolder folder;
  DataFile file(folder.write("a", "abcdef"));
  CHECK(file.size() == 6);
  char bytes[8] = {};
  CHECK(file.read(bytes, 4) == 4);
  CHECK(std::string(bytes) == "abcd");
  CHECK(file.read(bytes, 8) == 2);
  CHECK(file.read(bytes, 8) == 0);
  CHECK(read_data_file(folder.write("b", "abc"), 3) == "abc");
  CHECK(read_data_file(folder.write("empty", ""), 0).empty());
  CHECK(read_data_file("/proc/self/status", 1 << 20).size() > 100);  // it has no size
}

TEST_CASE("data_file: a pipe, a device, a folder and nothing are refused, and none is waited for") {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe", here = folder.path().string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto refusal = [](const std::string& path) { return thrown_by([&] { DataFile file(path); }); };
  CHECK(refusal(pipe) == configuration("'" + pipe + "' cannot be read: it is a pipe; name a regular file"));
  CHECK(refusal("/dev/zero") == configuration("'/dev/zero' cannot be read: it is a device; name a regular file"));
  CHECK(refusal(here) == configuration("'" + here + "' cannot be read: it is a folder; name a regular file"));
  CHECK(refusal("none") == configuration("'none' cannot be opened: No such file or directory; paths are relative to "
                                         "the working folder"));
}

TEST_CASE("data_file: more bytes than may be are refused before they are read") {
  const TemporaryFolder folder;
  const auto sparse = folder.write("sparse", "");
  fs::resize_file(sparse, std::uintmax_t{1} << 40);
  CHECK(thrown_by([&] { read_data_file(sparse, 1000); }) ==
        configuration("'" + sparse + "' has 1099511627776 bytes; at most 1000 are read"));
  CHECK(thrown_by([] { read_data_file("/proc/self/status", 10); }) ==
        configuration("'/proc/self/status' has more than 10 bytes; at most 10 are read"));
}

}  // namespace data_file_test
