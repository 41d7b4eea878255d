// Who may read and write a file.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

inline mode_t mode_of(const std::filesystem::path& path) {
  struct stat status = {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}
