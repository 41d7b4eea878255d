#include "token_file.h"

#include <vernier/error.h>

#include <filesystem>

namespace vernier {

namespace {

constexpr std::int64_t short_tokens = 65536;

}  // namespace

TokenFile::TokenFile(const std::string& path, std::int64_t vocabulary)
    : whole_(path), is_short_(vocabulary <= short_tokens), file_(whole_.part(), std::ios::binary) {
  if (!file_) throw Error("'" + whole_.part() + "' cannot be written");
}

void TokenFile::write(const std::vector<TokenId>& ids) {
  const std::size_t width = is_short_ ? 2 : 4;
  bytes_.clear();
  for (const auto id : ids) {
    for (std::size_t i = 0; i < width; ++i) bytes_.push_back(static_cast<char>(id >> 8 * i & 0xFF));
  }
  file_.write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
  if (!file_) throw Error("'" + whole_.part() + "' cannot be written; is the disk full?");
  count_ += static_cast<std::int64_t>(ids.size());
}

void TokenFile::finish() {
  file_.flush();
  if (!file_) throw Error("'" + whole_.part() + "' cannot be written; is the disk full?");
  file_.close();
  whole_.finish();
}

}  // namespace vernier
