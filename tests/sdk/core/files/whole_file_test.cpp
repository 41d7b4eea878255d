#include <doctest/doctest.h>
#include <vernier/whole_file.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "temporary_folder.h"

using vernier::WholeFile;
using vernier::write_whole;

namespace fs = std::filesystem;

TEST_CASE("whole_file: a file is replaced by a whole one, and one that is not finished leaves nothing") {
  const TemporaryFolder folder;
  write_whole(folder / "a", "old");
  {
    const WholeFile file(folder / "a");
    std::ofstream(file.part()) << "ne";
  }
  CHECK(read_text(folder / "a") == "old");
  write_whole(folder / "a", "new");
  CHECK(read_text(folder / "a") == "new");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("whole_file: what a user keeps beside it stays") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "a.partial");
  write_whole(folder / "a", "new");
  CHECK(fs::exists(folder / "a.partial"));
}

TEST_CASE("whole_file: a link is written through, as /dev/stdout is one") {
  const TemporaryFolder folder;
  write_whole(folder / "a", "old");
  fs::create_symlink(folder / "a", folder / "link");
  write_whole(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_text(folder / "a") == "new");
}
