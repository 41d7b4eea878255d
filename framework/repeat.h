// What a step changes before its update, kept so that its gradients can be computed once more (Control::repeat, pieces that
// found no memory), or that it can be undone.
#pragma once

#include <exception>
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
  // Where a computation was broken off: puts back what was kept, so that it can begin anew.
  void again(const Run& run, const Wiring& wiring);
  void mark(const Run& run) { versions_ = versions(run); }  // when its gradients are
  bool is_untouched(const Run& run) const { return versions_ == versions(run); }  // they, since then

  // Puts back what was kept, calls begin, compute and end, and puts all back as it is now, whatever is thrown. Monitors are
  // told nothing. False: see Control.
  bool run(Run& run, Wiring& wiring, const std::function<void()>& begin, const std::function<void()>& compute,
           const std::function<void()>& end);

 private:
  struct Moment {
    torch::Tensor cpu, device;  // random generators
    std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers;
    std::vector<std::pair<Plugin*, State>> plugins;
    std::vector<std::pair<torch::Tensor, std::int64_t>> standing;  // not copied, and their version
  };
  static constexpr std::uint64_t any_size = static_cast<std::uint64_t>(-1);
  Moment take(const Run& run, const Wiring& wiring) const;
  // largest: bytes of a tensor that is copied; larger ones are to stand still.
  using Copy = std::function<torch::Tensor(const torch::Tensor&)>;
  static Moment take(const Run& run, const std::vector<Plugin*>& plugins, std::uint64_t largest, const Copy& copy);
  static void put(const Run& run, const Moment& moment);
  static std::vector<std::int64_t> versions(const Run& run);

  std::set<const Plugin*> askers_;
  Moment kept_;
  std::vector<std::int64_t> versions_;

  friend class Undo;
  friend class UndoUpdate;
};

// The run as it was between two steps, for a step that ends before it has changed a weight.
class Undo {
 public:
  void keep(const Run& run, const Wiring& wiring);  // before the step's first event
  // Throws Error, and changes nothing, where something has written into a weight, or into another large tensor, which
  // are not copied.
  void put(Run& run) const;
  void forget() { kept_ = {}; }

 private:
  Repeat::Moment kept_;
  std::int64_t drawn_ = 0, epoch_ = 0;
  torch::Tensor loss_;
};

// A step as it is before its update, for who looks at the update and may not like it (Control::undo_update).
class UndoUpdate {
 public:
  using Looks = std::vector<std::pair<const Plugin*, std::function<void(Run&)>>>;
  // The askers' own memory is left out. is_untouched: the gradients are, since they were computed.
  void keep(const Run& run, const Wiring& wiring, const Looks& looks, bool is_untouched);
  // Puts back what was kept; then calls begin, apply and end, and puts it back once more, whatever they throw, and calls
  // apply with run.found_inf set. Monitors are told nothing. Where putting back or skipping throws, it is broken(): then
  // the run is not to go on.
  void run(Run& run, Wiring& wiring, Repeat& repeat, const std::function<void()>& begin,
           const std::function<void()>& apply, const std::function<void()>& end);
  std::exception_ptr broken() const { return broken_; }
  void forget();  // all but the memory, which the next copies use again

 private:
  void take(const Run& run);
  void put(Run& run);
  torch::Tensor copy(const torch::Tensor& live);

  Repeat::Moment kept_;
  std::vector<Plugin*> plugins_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> weights_, gradients_;  // live, and copied
  torch::Tensor found_inf_, overflow_, grad_scale_, norm_, norms_;
  bool is_untouched_ = false;
  std::exception_ptr broken_;
  std::vector<torch::Tensor> memory_;  // of the last copies, in their order
  std::size_t next_ = 0;
};

}  // namespace vernier
