// Copies of a state on the host, in memory that the next copy uses again.
#pragma once

#include <c10/core/Event.h>
#include <vernier/copy.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rolling {

struct Copy {
  vernier::Tensors tensors;
  // Each empty where the tensors have the values already.
  std::shared_ptr<const c10::Event> arrived = {};  // from a device
  std::shared_future<void> copied = {};            // on the host
  // Any thread, before it reads the tensors.
  void wait() const {
    if (copied.valid()) copied.get();
    if (arrived) arrived->synchronize();
  }
};

// A device copies into pinned memory on a stream of its own, and the host does not wait for it. On the host a thread
// copies what only an update changes. Main thread only.
class Copies {
 public:
  // The last copy must have arrived. Once this returns, the live tensors may change, by what the device is given to do from
  // then on; but those of the optimizer ("plugin/optimizer/…") only after hold_update().
  Copy of(const vernier::Tensors& live, torch::Device device);
  // Before each update. A device waits by itself, the host here.
  void hold_update();

 private:
  void copy_from_device(const std::vector<vernier::Copied>& soon_changed,
                        const std::vector<vernier::Copied>& by_update);
  void make_room(const vernier::Tensors& live);
  torch::Tensor room_for(const std::string& name, const torch::Tensor& tensor);
  bool fits(const std::string& name, const torch::Tensor& tensor) const;

  vernier::Tensors copies_;
  std::optional<c10::Stream> stream_;
  // Of the last copy, until an update was held.
  std::shared_ptr<const c10::Event> arrived_;
  std::shared_future<void> copied_;
};

}  // namespace rolling
