// The training text: the bytes of files and folders, cut into windows.
#pragma once

#include <torch/types.h>
#include <vernier/batch.h>
#include <vernier/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

struct Text {
  torch::Tensor bytes;                           // uint8, all files in order; undefined for a mapped file
  std::string mapped;                            // the only file, if it is so large that it stays on the disk; or empty
  std::filesystem::file_time_type changed = {};  // when the mapped file was changed, before it was read
  std::int64_t size = 0;
  std::string checksum;  // identifies the bytes when a run is resumed
  std::int64_t files = 0;
  std::int64_t skipped = 0;  // files in folders that hold a NUL byte
  std::string binary = {};   // the first file of `paths` itself that holds one, and is read all the same
  // The paths of the files, each with the place of its first byte.
  std::vector<std::pair<std::int64_t, std::string>> places = {};

  // "'notes.txt' bytes 640 to 704": the file in which these bytes begin.
  std::string where(std::int64_t first, std::int64_t count) const;
};

// Reads files as they are, and all files below folders in sorted order. In folders it leaves out names that begin with
// a dot, folders that are symbolic links, and files that hold a NUL byte, which text does not. A single file of 64 MiB
// or more is mapped, so it may not change during the run. Throws Error naming the path, also where the bytes would be
// more than max_bytes.
Text read_text(const std::vector<std::string>& paths, std::int64_t max_bytes);

// Window i predicts the bytes i * context + 1 … (i + 1) * context, each from those before it in the window. So every
// byte is predicted in exactly one window, except the first byte and those of a last part that is shorter than a
// window.
class Windows {
 public:
  Windows() = default;
  Windows(const Text& text, std::int64_t context);
  std::int64_t count() const { return count_; }
  // {input, target}, both int64 [n, context], of the windows with these numbers (int64 [n]), which are its indices.
  vernier::Batch gather(const torch::Tensor& numbers) const;

 private:
  std::int64_t count_ = 0;
  torch::Tensor windows_;       // [count, context + 1], a view of the bytes
  vernier::DatasetPtr mapped_;  // or a dataset of these windows
};

// One of the two parts of the windows: those to train on or those held out. It takes no memory, whatever its size.
class Part {
 public:
  Part() = default;  // without windows
  // A share of the windows, in blocks of neighbours, evenly over the whole text. So both parts see every kind of file,
  // and few held-out windows touch a training window. The other part has the rest.
  Part(std::int64_t windows, double share, bool is_held_out);
  std::int64_t count() const { return count_; }
  // The numbers of the windows at these places of the part, both int64 [n]. They rise with the places.
  torch::Tensor numbers(const torch::Tensor& places) const;

 private:
  std::int64_t blocks_before(std::int64_t block) const;  // blocks of this part before this one

  std::int64_t count_ = 0, block_ = 1, blocks_ = 0;
  double share_ = 0;
  bool is_held_out_ = false;
};

}  // namespace gpt
