// The weights of a model, each of which has memory on its owner, and on another rank only while an operator reads it.
#pragma once

#include <ATen/record_function.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/run.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../ddp/group.h"
#include "weight.h"

namespace zero3 {

// One in a process. Main thread only. Ranks may read different weights, or one of them none, as with micro-batches of
// different numbers: a rank that communicates for another reason first sends what the others want.
class Weights {
 public:
  // Frees the weights of other ranks.
  Weights(const vernier::Run& run, ddp::Group& group, std::int64_t rank, std::int64_t ranks);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Sends weights until all ranks have called it: from then on they may communicate in another way.
  void meet();
  // Called for each micro-batch. From then until meet(), no rank may write weights: meet() throws if one of this rank
  // was written. So ranks of one machine can read weights in the memory of their owners. They do so if every rank
  // computes gradients. A rank waits for the others once, until all have agreed to it, and after that for no rank.
  void begin_gradients();
  // Called instead of meet() before the sum of a gradient.
  void meet_in_backward();
  void keep(bool keeps);  // true: weights that came stay until release(weight) or keep(false)
  void release(const torch::Tensor& weight);
  // If the weight is in parts: notes that its owner has written it, and returns true.
  bool note_written(const torch::Tensor& weight) const;
  void stop();                   // from then on no operator waits for weights
  void throw_failure();          // throws what went wrong while an operator waited for its weights
  std::string describe() const;  // one line for people

 private:
  // Answers of all ranks in one round.
  struct Round {
    std::set<std::size_t> wanted;  // numbers of weights
    std::int64_t direct = 0;       // number of ranks that asked to read in place
    std::int64_t idle = 0;         // number of ranks that asked for no weight
  };
  class Readers;
  static std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& call);
  std::unique_ptr<at::ObserverContext> fetch_for(const at::RecordFunction& call);
  void note_if_missing(const torch::Tensor& tensor, std::vector<std::size_t>& read, bool& is_missing) const;
  void fetch(std::size_t number);
  void release();  // all, except those that an operator reads now
  Round send_round(std::int64_t wanted);
  void agree();
  void release(const Weight& weight) const;
  bool is_of_others(const Weight& weight) const { return weight.is_in_parts && weight.owner != rank_; }

  ddp::Group& group_;
  std::int64_t rank_, ranks_;
  bool keeps_ = false;
  bool is_busy_ = false;          // true: this class itself calls operators, which need no fetch
  bool has_memory_;               // true: this rank maps the weights of all others
  bool is_direct_ = false;        // true: operators read weights in the memory of their owners
  bool would_be_direct_ = false;  // true: the other ranks must still agree to is_direct_
  std::vector<Weight> weights_;
  std::vector<std::string> whole_;  // names of weights that stay on all ranks
  std::exception_ptr failure_;
  at::CallbackHandle callback_ = 0;
};

}  // namespace zero3
