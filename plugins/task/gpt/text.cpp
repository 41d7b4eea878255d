// Reads files into bytes and windows; text.h says which files.
#include "text.h"

#include <vernier/checksum.h>
#include <vernier/data/readers.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/text/token_data.h>

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

torch::Tensor as_tensor(std::string text) {
  auto owner = std::make_shared<std::string>(std::move(text));
  return torch::from_blob(
      owner->data(), {static_cast<std::int64_t>(owner->size())}, [owner](void*) {}, torch::kUInt8);
}

struct File {
  fs::path path;
  bool only_text = false;  // it is in a folder, and left out if it has a NUL byte
};

std::vector<File> files_at(const std::vector<std::string>& paths) {
  std::vector<File> files;
  for (const fs::path path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      for (auto& file : files_below(path)) files.push_back({std::move(file), true});
    } else if (fs::is_regular_file(path, error)) {
      files.push_back({path});
    } else {
      fail(path, fs::exists(path, error) ? "is neither a file nor a folder"
                                         : "does not exist; paths are relative to the working folder");
    }
  }
  return files;
}

// Reads files behind each other.
class Reader {
 public:
  Reader(const std::vector<File>& files, std::int64_t max_bytes)
      : most_(static_cast<std::uint64_t>(max_bytes)), buffer_(1 << 16) {
    for (const auto& [path, only_text] : files) {
      std::error_code error;
      const auto size = fs::file_size(path, error);
      if (!error) all_ += size;
    }
    constexpr std::uint64_t large = 64 << 20;
    keeps_ = files.size() != 1 || files[0].only_text || all_ < large;
    if (keeps_) text_.reserve(std::min(all_, most_));  // a text that grows is copied
  }

  void read(const File& file, Text& to) {
    if (!keeps_) to.changed = fs::last_write_time(file.path);
    if (!append(file, to)) return void(++to.skipped);
    ++to.files;
    to.places.emplace_back(to.size, file.path.string());
    to.size = static_cast<std::int64_t>(size_);
  }

  void finish(Text& to) {
    to.checksum = keeps_ ? vernier::checksum_of(text_) : sum_.digits();
    if (keeps_) {
      to.bytes = as_tensor(std::move(text_));
    } else {
      to.mapped = to.places[0].second;
    }
  }

 private:
  static void require_text(std::string_view begin, const fs::path& path) {
    const auto format = vernier::other_format(begin, path.string(), vernier::ConvertTo::text);
    if (format && !format->remedy.empty()) fail(path, "is " + format->name + ", not a text; " + format->remedy);
  }

  // Stops at a NUL byte in a folder's file, removes what it appended, and returns false.
  bool append(const File& file, Text& to) {
    vernier::DataFile data(file.path.string());
    const auto before = size_;
    while (const auto count = data.read(buffer_.data(), buffer_.size())) {
      const bool is_binary = std::memchr(buffer_.data(), 0, count) != nullptr;
      if (is_binary && file.only_text) {
        text_.resize(size_ = before);
        return false;
      }
      if (size_ == before && !file.only_text) require_text({buffer_.data(), count}, file.path);
      if (is_binary && to.binary.empty()) to.binary = file.path.string();
      const auto all = std::max<std::uint64_t>(before + data.size(), size_ + count);
      if (all > most_) {
        fail(file.path, "makes it " + std::to_string(all) + " bytes, and max_bytes is " + std::to_string(most_) +
                            "; give less text, or raise max_bytes if the memory has room for it");
      }
      keeps_ ? void(text_.append(buffer_.data(), count)) : sum_.add(buffer_.data(), count);
      size_ += count;
    }
    return true;
  }

  std::uint64_t most_, all_ = 0, size_ = 0;
  bool keeps_ = true;
  std::vector<char> buffer_;
  std::string text_;
  vernier::Checksum sum_;  // the checksum of a file that is not kept
};

}  // namespace

Text read_text(const std::vector<std::string>& paths, std::int64_t max_bytes) {
  Text result;
  const auto files = files_at(paths);
  Reader reader(files, max_bytes);
  for (const auto& file : files) reader.read(file, result);
  reader.finish(result);
  return result;
}

std::string Text::where(std::int64_t first, std::int64_t count) const {
  const auto after = std::ranges::upper_bound(places, first, {}, &std::pair<std::int64_t, std::string>::first);
  if (after == places.begin()) return "byte " + std::to_string(first);
  const auto& [begin, path] = *std::prev(after);
  return "'" + path + "' bytes " + std::to_string(first - begin) + " to " + std::to_string(first - begin + count - 1);
}

Windows::Windows(const Text& text, std::int64_t context) : count_(std::max<std::int64_t>(0, text.size - 1) / context) {
  if (!text.mapped.empty() && count_ > 0) {
    mapped_ = vernier::text_dataset(text.mapped, {.length = context});
    if (mapped_->size() != count_ || fs::last_write_time(text.mapped) != text.changed)
      fail(text.mapped, "has changed while it was read; start again");
  } else if (count_ > 0) {
    windows_ = text.bytes.as_strided({count_, context + 1}, {context, 1});
  }
}

vernier::Batch Windows::gather(const torch::Tensor& numbers) const {
  vernier::Batch batch;
  if (mapped_) {
    batch.tensors = *mapped_->get_batch(numbers);
  } else {
    const auto bytes = windows_.index_select(0, numbers);
    const auto context = bytes.size(1) - 1;
    batch.tensors = {bytes.narrow(1, 0, context).to(torch::kInt64), bytes.narrow(1, 1, context).to(torch::kInt64)};
  }
  batch.samples = numbers.numel();
  batch.tokens = batch.tensors[0].numel();
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  batch.indices.assign(first, first + batch.samples);
  return batch;
}

Part::Part(std::int64_t windows, double share, bool is_held_out)
    : block_(std::clamp<std::int64_t>(windows / 128, 1, 16)),
      blocks_((windows + block_ - 1) / block_),
      share_(share),
      is_held_out_(is_held_out) {
  const auto all = blocks_before(blocks_);
  const bool has_last =
      blocks_ > 0 && all > blocks_before(blocks_ - 1);  // the last block may be shorter than the others
  count_ = all * block_ - (has_last ? blocks_ * block_ - windows : 0);
}

std::int64_t Part::blocks_before(std::int64_t block) const {
  const auto held_out = static_cast<std::int64_t>(std::floor(static_cast<double>(block) * share_ + 0.5));
  return is_held_out_ ? held_out : block - held_out;
}

torch::Tensor Part::numbers(const torch::Tensor& places) const {
  auto result = torch::empty_like(places);
  const auto* place = places.const_data_ptr<std::int64_t>();
  auto* number = result.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < places.numel(); ++i) {
    std::int64_t block = 0, end = blocks_;  // bounds of the first block with so many blocks of the part up to its end
    while (block < end) {
      const auto middle = (block + end) / 2;
      blocks_before(middle + 1) > place[i] / block_ ? end = middle : block = middle + 1;
    }
    number[i] = block * block_ + place[i] % block_;
  }
  return result;
}

}  // namespace gpt
