// Reads files into bytes and windows; text.h says which files.
#include "text.h"

#include <vernier/checksum.h>
#include <vernier/error.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

namespace gpt {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw vernier::Error("data: '" + path.string() + "' " + reason, vernier::Error::Kind::configuration);
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (std::error_code gone; entry->is_regular_file(gone)) {
      files.push_back(entry->path());
    }
  }
  if (error) fail(folder, "cannot be read as a folder: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

void append(std::string& text, const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened: " + std::string(std::strerror(errno)));
  std::vector<char> buffer(1 << 16);
  do {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    text.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
  } while (file);
  if (file.bad()) fail(path, "cannot be read");
}

// Removes what it appended if that is not text.
bool append_if_text(std::string& text, const fs::path& path) {
  const auto before = text.size();
  append(text, path);
  if (text.find('\0', before) == std::string::npos) return true;
  text.resize(before);
  return false;
}

torch::Tensor as_tensor(std::string text) {
  auto owner = std::make_shared<std::string>(std::move(text));
  return torch::from_blob(
      owner->data(), {static_cast<std::int64_t>(owner->size())}, [owner](void*) {}, torch::kUInt8);
}

}  // namespace

Text read_text(const std::vector<std::string>& paths) {
  Text result;
  std::string text;
  for (const fs::path path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (const auto& file : files_below(path)) ++(append_if_text(text, file) ? result.files : result.skipped);
    } else if (fs::is_regular_file(path, error)) {
      append(text, path);
      ++result.files;
    } else {
      fail(path, fs::exists(path, error) ? "is neither a file nor a folder"
                                         : "does not exist; paths are relative to the working folder");
    }
  }
  result.checksum = vernier::checksum_of(text);
  result.bytes = as_tensor(std::move(text));
  return result;
}

Windows::Windows(const torch::Tensor& bytes, std::int64_t context) {
  const auto count = std::max<std::int64_t>(0, bytes.numel() - 1) / context;
  if (count > 0) windows_ = bytes.as_strided({count, context + 1}, {context, 1});
}

vernier::Batch Windows::gather(const torch::Tensor& numbers) const {
  const auto bytes = windows_.index_select(0, numbers);
  const auto context = bytes.size(1) - 1;
  vernier::Batch batch;
  batch.samples = bytes.size(0);
  batch.tokens = batch.samples * context;
  batch.tensors.reserve(2);
  batch.tensors.push_back(bytes.narrow(1, 0, context).to(torch::kInt64));
  batch.tensors.push_back(bytes.narrow(1, 1, context).to(torch::kInt64));
  return batch;
}

std::pair<torch::Tensor, torch::Tensor> split(std::int64_t windows, double share) {
  const auto block = std::clamp<std::int64_t>(windows / 128, 1, 16);
  auto held_out_before = [&](std::int64_t b) { return std::floor(static_cast<double>(b) * share + 0.5); };
  std::vector<std::int64_t> training, held_out;
  for (std::int64_t i = 0; i < windows; ++i) {
    const auto b = i / block;
    (held_out_before(b + 1) > held_out_before(b) ? held_out : training).push_back(i);
  }
  return {torch::tensor(training, torch::kInt64), torch::tensor(held_out, torch::kInt64)};
}

}  // namespace gpt
