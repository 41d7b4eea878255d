// A run as the command line makes it, in the hands of a law.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "common/scratch_folder.h"
#include "output/output.h"
#include "run/prepared.h"
#include "subject.h"

namespace vernier {

// Results of a step that its loss may not show, by name: "its save() returns `scale`".
using StepFacts = std::map<std::string, std::string>;

// The result of a run: runs with equal results are equal.
struct Trained {
  std::string digest;                          // digest of the weights and buffers
  std::map<std::int64_t, std::string> losses;  // in each step, from 1 on; all nine digits of a float
  std::int64_t updates = 0;
  std::map<std::int64_t, StepFacts> facts = {};  // facts of each step
  bool operator==(const Trained& other) const;   // whatever the facts are
};
std::ostream& operator<<(std::ostream& out, const Trained& trained);

// Returns the first difference of `other`: "the loss of step 7 is 2.3 and not 2.1", or "" if there is none. StepFacts
// of steps that only one of the two has do not count.
std::string difference(const Trained& trained, const Trained& other);

torch::Tensor random_state();  // the state of LibTorch's generator on the CPU

// Main thread only, one at a time.
class Trial {
 public:
  using Folder = std::shared_ptr<const ScratchFolder>;
  // Wires and prepares the run. threads: of the kernels. folder: of the run. It resumes, as with `resume = "auto"`, if
  // the checkpoint plugin names a snapshot in the folder.
  Trial(const Host& host, Table config, int threads = 1, Folder folder = std::make_shared<const ScratchFolder>());
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // Has a function called at an event: after callbacks or, as a monitor, after all others.
  void on(Event event, std::function<void(Run&)> listener);
  void on_last(Event event, std::function<void(const Run&)> listener);
  // Ends the run after so many steps with a checkpoint, like Ctrl-C.
  void stop_after(std::int64_t steps);
  // Opens the folder as `vernier train` does, and loads its newest checkpoint; false if there is none.
  bool resume();
  Outcome train();
  void keep_losses(const std::string& id = "");  // for trained(), with this plugin's state: call it before the run
  Trained trained() const;
  Plugin& plugin(const std::string& id) const;  // throws Error if the run has none of this id
  Plugin* find(const std::string& id) const;    // null: none, or it has given its place to another one

  TrainerRun& run() { return prepared_->run; }
  Wiring& wiring() { return *prepared_->wiring; }
  Prepared& prepared() { return *prepared_; }

 private:
  void attach(std::unique_ptr<Plugin> listener, bool monitor);
  Folder folder_;
  std::optional<OutputFolder> opened_;
  std::vector<std::unique_ptr<Plugin>> listeners_;  // outlive the bus
  std::atomic<int> stop_ = 0;
  std::map<std::int64_t, std::string> losses_;
  std::map<std::int64_t, StepFacts> facts_;
  std::unique_ptr<Prepared> prepared_;
};

// id: the plugin whose state is compared too, as its save() returns it after each step; "": none.
Trained train(const Host& host, const Table& config, int threads = 1, const std::string& id = "");

// The same with the plugin's state, but for what differs in equal runs, such as times.
Trained train_twice(const Subject& subject, const Table& config);

// Stopped after some steps, then gone on with in plugins that are made anew. Nothing where the run cannot be resumed.
// With several ranks, all have the same folder, and `between` waits until all have ended the first part.
std::optional<Trained> train_in_two_parts(
    const Host& host, const Table& config, std::int64_t stop, int threads = 1,
    Trial::Folder folder = std::make_shared<const ScratchFolder>(), const std::function<void()>& between = [] {},
    const std::string& id = "");

// Ended by an error at an event of a step, before its update; then gone on with in plugins that are made anew. fails:
// whether it is thrown now.
struct AfterFailure {
  Trained trained;
  bool is_resumed = false;   // else it was trained from the start again
  bool may_be_lost = false;  // the optimizer stepped in backward, or a callback wrote weights on purpose
  std::int64_t failed_at = 0, resumed_at = 0;  // finished steps
};
AfterFailure train_after_failure(const Host& host, const Table& config, Event event,
                                 const std::function<bool(const Run&)>& fails);

}  // namespace vernier
