// Copies of a state on the host, in memory that the next copy uses again.
#pragma once

#include <c10/core/Event.h>
#include <vernier/copy.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rolling {

struct Copy {
  vernier::Tensors tensors;
  std::shared_ptr<const c10::Event> arrived;  // empty where they have the values already
  // Any thread, before it reads the tensors.
  void wait() const {
    if (arrived) arrived->synchronize();
  }
};

// A device copies into pinned memory on a stream of its own, and the host does not wait for it. Main thread only.
class Copies {
 public:
  // The last copy must have arrived. Once this returns, what the device is given to do may change the live tensors; but
  // those of the optimizer ("plugin/optimizer/…") only after hold_update().
  Copy of(const vernier::Tensors& live, torch::Device device);
  // Before each update. The device waits, not the host.
  void hold_update();

 private:
  void copy_from_device(const std::vector<vernier::Copied>& soon_changed,
                        const std::vector<vernier::Copied>& by_update);
  void make_room(const vernier::Tensors& live);
  torch::Tensor room_for(const std::string& name, const torch::Tensor& tensor);
  bool fits(const std::string& name, const torch::Tensor& tensor) const;

  vernier::Tensors copies_;
  std::optional<c10::Stream> stream_;
  std::shared_ptr<const c10::Event> arrived_;  // of the last copy, until an update was held
};

}  // namespace rolling
