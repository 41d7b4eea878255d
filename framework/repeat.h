// What computing a step's gradients changes, kept so that they can be computed once more (Control::repeat).
#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "wiring.h"

namespace vernier {

class Repeat {
 public:
  void ask(const Plugin& asker) { askers_.insert(&asker); }
  bool is_asked() const { return !askers_.empty(); }

  void keep(const Run& run, const Wiring& wiring);     // when the batch is there
  void mark(const Run& run) { versions_ = versions(run); }  // when its gradients are

  // Puts back what was kept, calls begin, compute and end, and puts all back as it is now, whatever is thrown. Monitors are
  // told nothing. False: see Control.
  bool run(Run& run, Wiring& wiring, const std::function<void()>& begin, const std::function<void()>& compute,
           const std::function<void()>& end);

 private:
  struct Moment {
    torch::Tensor cpu, device;  // random generators
    std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
    std::vector<std::pair<Plugin*, State>> plugins;
  };
  Moment take(const Run& run, const Wiring& wiring) const;
  static void put(const Run& run, const Moment& moment);
  static std::vector<std::int64_t> versions(const Run& run);

  std::set<const Plugin*> askers_;
  Moment kept_;
  std::vector<std::int64_t> versions_;
};

}  // namespace vernier
