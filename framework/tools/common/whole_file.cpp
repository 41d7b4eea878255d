#include "whole_file.h"

#include <cerrno>
#include <fstream>
#include <iostream>
#include <system_error>

namespace vernier {

namespace fs = std::filesystem;

void write_whole(const fs::path& path, const std::function<void(const std::string& part)>& write) {
  const std::string part = path.string() + ".part";
  try {
    write(part);
    fs::rename(part, path);
  } catch (...) {
    std::error_code none;
    fs::remove_all(part, none);
    throw;
  }
}

bool write_whole_text(const fs::path& path, const std::string& text) {
  try {
    write_whole(path, [&](const std::string& part) {
      std::ofstream file(part, std::ios::binary);
      if (!(file << text << std::flush)) throw std::system_error(errno, std::generic_category());
    });
    return true;
  } catch (const std::system_error& error) {
    std::cerr << "vernier: " << path.string() << " cannot be written: " << error.code().message() << '\n';
    return false;
  }
}

}  // namespace vernier
