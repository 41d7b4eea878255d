// The gradients of a model, summed over all ranks in buckets: a large one alone, in its own memory, small ones
// together.
#pragma once

#include <vernier/run.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "group.h"
#include "message.h"

namespace ddp {

// Main thread only.
class GradientSums {
 public:
  // bucket_bytes: gradients below this and below 1 MB are sent together. sent_as: float32 gradients are sent in this
  // dtype. message: rounds what this rank sends, unless it is null. before() is called before each sum. after() is
  // called for each parameter when its gradient is summed. Unless it is null, backward has one bucket under way at a
  // time, and a rank gets only the sums of the buckets in which it owns a parameter.
  GradientSums(std::int64_t bucket_bytes, std::optional<torch::ScalarType> sent_as, Message* message,
               std::function<void()> before, std::function<void(const vernier::Parameter&)> after)
      : bucket_bytes_(bucket_bytes),
        sent_as_(sent_as),
        message_(message),
        before_(std::move(before)),
        after_(std::move(after)) {}
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // Before the last backward pass of a batch: the sum of a bucket begins as soon as backward has completed it.
  // backward() throws vernier::Error where a gradient comes again after that.
  void begin_in_backward(const vernier::Run& run, Group& group);
  // Begins those that have not begun. A gradient that does not exist is one of zeros, and exists from then on.
  void begin_rest(const vernier::Run& run, Group& group);
  void wait();  // for all of them

 private:
  class Hook;
  struct Bucket {
    std::vector<vernier::Parameter> parameters;
    std::int64_t bytes = 0;
    std::size_t missing = 0;  // gradients that backward has not completed
    torch::Tensor sent;
    std::function<void()> wait;  // empty until the sum has begun
  };
  void lay_out(const vernier::Run& run);
  void begin(Bucket& bucket, const vernier::Run& run, Group& group) const;
  void end_down_to(std::size_t last);
  void end(Bucket& bucket) const;

  std::int64_t bucket_bytes_;
  std::optional<torch::ScalarType> sent_as_;
  Message* message_;
  std::function<void()> before_;
  std::function<void(const vernier::Parameter&)> after_;
  std::vector<Bucket> buckets_;
  // Buckets whose sum has not begun, and those whose sum has not ended: the first ones, because backward completes the
  // last ones first.
  std::size_t left_ = 0, open_ = 0;
  // With begin_in_backward(), by the parameter's number:
  std::vector<std::ptrdiff_t> bucket_of_;  // -1: none
  std::vector<char> came_;
  // The function that the hooks call, because they may outlive this object. Empty except in that pass.
  std::shared_ptr<std::function<void(std::size_t number)>> arrive_;
};

}  // namespace ddp
