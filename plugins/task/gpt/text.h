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
  torch::Tensor bytes;           // uint8, one after the other in the order of the files
  std::int64_t fingerprint = 0;  // of the bytes, to know them again when a run is resumed
  std::int64_t files = 0;
  std::int64_t skipped = 0;  // in folders, for a NUL byte
};

// Files as they are; folders with all that is below them in sorted order, but for names that begin with a dot, folders
// that are symbolic links, and files that hold a NUL byte, which no text does. Throws Error naming the path.
Text read_text(const std::vector<std::string>& paths);

// Window i predicts the bytes i * context + 1 … (i + 1) * context, each from those before it in the window. So every
// byte but the first, and those of a last part that fills no window, is predicted in one window and in no other.
class Windows {
 public:
  Windows() = default;
  Windows(const torch::Tensor& bytes, std::int64_t context);
  std::int64_t count() const { return windows_.defined() ? windows_.size(0) : 0; }
  // {input, target}, both int64 [n, context], of the windows with these numbers (int64 [n]).
  vernier::Batch gather(const torch::Tensor& numbers) const;

 private:
  torch::Tensor windows_;  // [count, context + 1], a view of the bytes
};

// The numbers of the windows to train on and of those held out, int64, in order. Blocks of neighbouring windows are
// held out, evenly over the whole text: both parts see every kind of file, and few held-out windows touch a training
// window.
std::pair<torch::Tensor, torch::Tensor> split(std::int64_t windows, double share);

}  // namespace gpt
