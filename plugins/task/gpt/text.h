// The training text: the bytes of files and folders, cut into windows.
#pragma once

#include <torch/types.h>
#include <vernier/batch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

struct Text {
  torch::Tensor bytes;   // uint8, all files in order
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
// a dot, folders that are symbolic links, and files that hold a NUL byte, which text does not. Throws Error naming the
// path, also where the bytes would be more than max_bytes.
Text read_text(const std::vector<std::string>& paths, std::int64_t max_bytes);

// Window i predicts the bytes i * context + 1 … (i + 1) * context, each from those before it in the window. So every
// byte is predicted in exactly one window, except the first byte and those of a last part that is shorter than a
// window.
class Windows {
 public:
  Windows() = default;
  Windows(const torch::Tensor& bytes, std::int64_t context);
  std::int64_t count() const { return windows_.defined() ? windows_.size(0) : 0; }
  // {input, target}, both int64 [n, context], of the windows with these numbers (int64 [n]), which are its indices.
  vernier::Batch gather(const torch::Tensor& numbers) const;

 private:
  torch::Tensor windows_;  // [count, context + 1], a view of the bytes
};

// The numbers of the windows to train on and of those held out, int64, in order. It holds out blocks of neighbouring
// windows, evenly over the whole text. So both parts see every kind of file, and few held-out windows touch a training
// window.
std::pair<torch::Tensor, torch::Tensor> split(std::int64_t windows, double share);

}  // namespace gpt
