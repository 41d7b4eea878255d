// Copies of a state on the host. Each copy reuses the memory of the one before.
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
  // Each is empty if the tensors already have their values.
  std::shared_ptr<const c10::Event> arrived = {};  // from a device
  std::shared_future<void> copied = {};            // on the host
  // Waits for the values. Any thread calls this before it reads the tensors.
  void wait() const {
    if (copied.valid()) copied.get();
    if (arrived) arrived->synchronize();
  }
};

// A device copies into pinned memory on its own stream, and the host does not wait for it. For tensors on the host, a
// thread copies what only an update changes. Main thread only.
class Copies {
 public:
  // The last copy must have arrived. After the return the live tensors may change, except those of the optimizer
  // ("plugin/optimizer/…"), which may change only after hold_update().
  Copy of(const vernier::Tensors& live, torch::Device device);
  // The caller calls this before each update. The device waits on its stream, the host in this function.
  void hold_update();

 private:
  void copy_from_device(const std::vector<vernier::Copied>& soon_changed,
                        const std::vector<vernier::Copied>& by_update);
  void make_room(const vernier::Tensors& live);
  torch::Tensor room_for(const std::string& name, const torch::Tensor& tensor);
  bool fits(const std::string& name, const torch::Tensor& tensor) const;

  vernier::Tensors copies_;
  std::optional<c10::Stream> stream_;
  // Both belong to the last copy, until hold_update().
  std::shared_ptr<const c10::Event> arrived_;
  std::shared_future<void> copied_;
};

}  // namespace rolling
