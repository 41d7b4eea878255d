#include "token_file.h"

#include <vernier/error.h>

#include <filesystem>

namespace vernier {

namespace {

constexpr std::int64_t short_tokens = 65536;

}  // namespace

TokenFile::TokenFile(const std::string& path, std::int64_t vocabulary)
    : path_(path),
      partial_(path + ".partial"),
      is_short_(vocabulary <= short_tokens),
      file_(partial_, std::ios::binary) {
  if (!file_) throw Error("'" + partial_ + "' cannot be written");
}

TokenFile::~TokenFile() {
  std::error_code none;
  if (file_.is_open()) std::filesystem::remove(partial_, none);
}

void TokenFile::write(const std::vector<TokenId>& ids) {
  const std::size_t width = is_short_ ? 2 : 4;
  bytes_.clear();
  for (const auto id : ids) {
    for (std::size_t i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(id >> 8 * i & 0xFF));
  }
  file_.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
  if (!file_) throw Error("'" + partial_ + "' cannot be written; is the disk full?");
  count_ += static_cast<std::int64_t>(ids.size());
}

void TokenFile::finish() {
  file_.flush();
  if (!file_) throw Error("'" + partial_ + "' cannot be written; is the disk full?");
  std::filesystem::rename(partial_, path_);
  file_.close();
}

}  // namespace vernier
