// The common work of a run's ranks in its steps, through the role distributed. One rank has nothing to do.
#pragma once

#include <c10/util/ScopeExit.h>

#include "base/rank_sums.h"
#include "calls.h"

namespace vernier {

using Facts = std::map<std::string, std::string>;

// All ranks' shares of a batch together.
struct WholeBatch {
  double samples = 0;
  std::optional<double> weight;  // the sum of weights, if micro-batches have one
  std::int64_t tokens = 0;
  double copies = 1;  // how many ranks compute each sample: all of them where the model is in parts
};

// All ranks have rank 0's buffers once any rank has written them, and its random generator outside of their own part of
// a step. What is in them is compared: batch normalisation raises no version, and a plugin may draw on one rank alone.
// Buffers are read in the first step and in share(), later only where their version has changed.
class SharedState {
 public:
  explicit SharedState(const std::unique_ptr<Distributed>& distributed) : distributed_(distributed) {}
  void watch(const torch::nn::Module& model);  // all ranks have the same values now
  void share();                                // called by all ranks together
  // The two halves of share(), for flags that are summed beside other numbers; there are count() of them.
  std::int64_t count() const { return std::ssize(parts_); }
  void note_written(double* flags);
  void take(const double* flags);

 private:
  struct Part {
    torch::Tensor tensor;
    std::string bits;  // the checksum of what all ranks had at first
    std::int64_t version = 0;
    bool is_written = false;  // true once a rank has written the tensor
  };
  const std::unique_ptr<Distributed>& distributed_;
  bool compares_all_ = true;
  std::vector<Part> parts_;  // the generator, and the buffers
};

// Main thread only. All ranks call the same functions in the same order. A function that waits for other ranks notes
// that the role distributed is called, because an error there means that a rank is lost.
class Ranks {
 public:
  Ranks(const std::unique_ptr<Distributed>& distributed, Calls& calls)
      : distributed_(distributed), calls_(calls), shared_(distributed) {}
  bool are_several() const { return distributed_->ranks() > 1; }

  // Throws Error::Kind::configuration on every rank if a fact differs; the text names it and both values.
  void refuse_differences(const Facts& facts) const;
  // Copies rank 0's parameters and buffers to the other ranks.
  void share_model(TrainerRun& run);
  bool any(bool here);  // returns whether it is so on any rank

  // The rank's share of a batch, unless the task has loaded only that.
  Batch share_of(Batch batch) const;
  // Before the first micro-batch is computed: begins to sum what the shares weigh. Once for each computed gradient,
  // however often its micro-batches are tried. The message also has a digest of all that must be alike.
  void begin_gradients() { is_weighed_ = false; }
  // parts: how many micro-batches are computed. The result is for losses that gather; it is null on one rank.
  std::unique_ptr<RankSums> weigh(const Run& run, const Batch& share, std::int64_t parts);
  const WholeBatch& whole();  // waits for the sum; throws Error on every rank if they have come apart
  auto keep_whole() {
    return c10::make_scope_exit([this, kept = whole()] { whole_ = kept; });
  }
  bool is_within_gradients() const { return is_weighed_ && !is_reduced_; }

  // Sends the same message on its own, before all ranks do something else together. doing: "a checkpoint". A rank that
  // calls this alone receives the message of the others' next step. compared: a step compares a part of the weights;
  // before a validation and a checkpoint all weights are compared, and what is shared is rank 0's.
  enum class Compared { part, all };
  void agree(const Run& run, const std::string& doing, Compared compared = Compared::part);
  // Notes what the plugins are, for the digest. Called after prepare, and after each swap.
  void note_alike(const Facts& facts);

  // Called after backward: gives every rank the whole batch's gradients and loss, and rank 0's shared state.
  struct Own {
    int stop;             // the signal that this rank received
    bool is_out_of_time;  // whether the time limit has passed here
    double seconds;       // seconds that this rank has computed in this step
  };
  void all_reduce(TrainerRun& run, const Own& own);
  // The signal, and whether the time was over, of any rank in the last all_reduce().
  const std::atomic<int>& stop() const { return stop_; }
  bool is_out_of_time() const { return is_out_of_time_; }
  // Adds a notice where a rank has computed longer than the others for the last hundred steps.
  void end_step(TrainerRun& run);

 private:
  using Message = std::vector<std::pair<std::string, std::string>>;  // facts to compare, the most important first
  void send(const Run& run, const std::string& doing, Compared compared, const WholeBatch& share);
  void refuse_apart(const double* digests) const;
  std::int64_t ranks() const { return distributed_->ranks(); }

  const std::unique_ptr<Distributed>& distributed_;
  Calls& calls_;
  SharedState shared_;
  bool is_weighed_ = false, is_reduced_ = true;
  double last_factor_ = 1;
  Facts alike_;  // empty before the ranks have the same model
  std::string alike_digest_;
  const Run* run_ = nullptr;  // the run whose message is under way
  Message message_;
  torch::Tensor weights_;
  std::function<void()> wait_for_weights_;
  WholeBatch whole_;
  std::int64_t parts_ = 0;    // the number of micro-batches that this rank has announced
  bool are_unequal_ = false;  // true: the ranks have different numbers of them
  std::atomic<int> stop_ = 0;
  bool is_out_of_time_ = false;
  std::vector<double> seconds_;  // seconds of each rank since the last notice was due
  std::int64_t slowest_ = -1;    // the slowest rank in the last notice
};

// The rank that updates each parameter, see Parameter::owned, where the role distributed shards the optimizer.
class Owners {
 public:
  Owners(const std::unique_ptr<Distributed>& distributed, Calls& calls) : distributed_(distributed), calls_(calls) {}
  bool are_sharded() const { return !owners_.empty(); }  // true: each parameter has an owner
  void choose(TrainerRun& run);                          // once, before the precision is prepared
  // Throws Error if a precision keeps masters of parameters that other ranks own.
  void refuse_masters_of_others(const Run& run) const;
  // Copies the owners' values of `model` to the other ranks. trained: those that are not frozen.
  enum class Weights { trained, all };
  void share_weights(TrainerRun& run, Weights which);

 private:
  const std::unique_ptr<Distributed>& distributed_;
  Calls& calls_;
  // Ranks, in the order of run.parameters; empty: nothing is sharded; each_rank: each has a part of the model there.
  static constexpr std::int64_t each_rank = -1;
  std::vector<std::int64_t> owners_;
};

}  // namespace vernier
