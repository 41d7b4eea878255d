// Reads files into bytes and windows; text.h says which files.
#include "text.h"

#include <vernier/checksum.h>
#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

namespace gpt {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  vernier::refuse("data: '" + path.string() + "' " + reason);
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (std::error_code gone; entry->is_regular_file(gone)) {
      files.push_back(entry->path());
    }
  }
  if (error) fail(folder, "cannot be read as a folder: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Reads files behind each other.
class Reader {
 public:
  explicit Reader(std::int64_t max_bytes) : most_(static_cast<std::uint64_t>(max_bytes)) {}

  // Appends a file. Where only text is wanted, it stops at a NUL byte, removes what it appended, and returns false.
  bool append(const fs::path& path, bool only_text) {
    vernier::DataFile file(path.string());
    const auto before = text.size();
    std::vector<char> buffer(1 << 16);
    while (const auto count = file.read(buffer.data(), buffer.size())) {
      if (only_text && std::memchr(buffer.data(), 0, count) != nullptr) {
        text.resize(before);
        return false;
      }
      const auto all = std::max<std::uint64_t>(before + file.size(), text.size() + count);
      if (all > most_) {
        fail(path, "makes it " + std::to_string(all) + " bytes, and max_bytes is " + std::to_string(most_) +
                       "; give less text, or raise max_bytes if the memory has room for it");
      }
      text.append(buffer.data(), count);
    }
    places.emplace_back(static_cast<std::int64_t>(before), path.string());
    return true;
  }

  std::string text;
  std::vector<std::pair<std::int64_t, std::string>> places;

 private:
  std::uint64_t most_;
};

torch::Tensor as_tensor(std::string text) {
  auto owner = std::make_shared<std::string>(std::move(text));
  return torch::from_blob(
      owner->data(), {static_cast<std::int64_t>(owner->size())}, [owner](void*) {}, torch::kUInt8);
}

}  // namespace

Text read_text(const std::vector<std::string>& paths, std::int64_t max_bytes) {
  Text result;
  Reader reader(max_bytes);
  for (const fs::path path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (const auto& file : files_below(path)) ++(reader.append(file, true) ? result.files : result.skipped);
    } else if (fs::is_regular_file(path, error)) {
      const auto before = reader.text.size();
      reader.append(path, false);
      ++result.files;
      const bool is_binary = reader.text.find('\0', before) != std::string::npos;
      if (is_binary && result.binary.empty()) result.binary = path.string();
    } else {
      fail(path, fs::exists(path, error) ? "is neither a file nor a folder"
                                         : "does not exist; paths are relative to the working folder");
    }
  }
  result.checksum = vernier::checksum_of(reader.text);
  result.bytes = as_tensor(std::move(reader.text));
  result.places = std::move(reader.places);
  return result;
}

std::string Text::where(std::int64_t first, std::int64_t count) const {
  const auto after = std::ranges::upper_bound(places, first, {}, &std::pair<std::int64_t, std::string>::first);
  if (after == places.begin()) return "byte " + std::to_string(first);
  const auto& [begin, path] = *std::prev(after);
  return "'" + path + "' bytes " + std::to_string(first - begin) + " to " + std::to_string(first - begin + count - 1);
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
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  batch.indices.assign(first, first + batch.samples);
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
