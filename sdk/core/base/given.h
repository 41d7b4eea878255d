// For the host: facts that a program in another language gives, in the place of the environment's and of files.
#pragma once

#include <vernier/launch_place.h>
#include <vernier/state.h>

#include <string>

namespace vernier {

// While it lives, the functions of launch_place.h give its place, and read_npy() of a name in `arrays` the tensor
// itself. Both must outlive it; null: none. Made by the main thread alone.
class VERNIER_API Given {
 public:
  Given(const LaunchPlace* place, const Tensors* arrays);
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given();

  static const LaunchPlace* place();                    // null: the environment's
  static torch::Tensor array(const std::string& file);  // undefined if none stands for this file; any thread

 private:
  const LaunchPlace* place_;
  const Tensors* arrays_;
  const Given* outer_;
};

}  // namespace vernier
