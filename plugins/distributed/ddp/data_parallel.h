// Shared by distributed/ddp, model_parallel, zero1 and zero3: ranks that sum their gradients; see ddp.cpp.
#pragma once

#include <vernier/sdk.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradient_sums.h"
#include "group.h"
#include "message.h"

namespace ddp {

class DataParallel : public vernier::Distributed {
 public:
  // in_backward: gradients are always summed while backward computes others, and summed() is called for each; else the
  // option `overlap` decides.
  explicit DataParallel(vernier::Options& options, bool in_backward = false);

  std::int64_t rank() const override { return rendezvous_.place.rank; }
  std::int64_t ranks() const override { return rendezvous_.place.ranks; }

  void attach(vernier::Bus& bus) override;
  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override;
  void prepare(vernier::Run& run) override;
  void check(const vernier::Run& run) override { message_->check(run); }
  std::vector<vernier::MetricInfo> metrics() const override { return message_->metrics(); }
  void all_reduce(vernier::Run& run, torch::Tensor numbers) override;
  std::function<void()> sum(torch::Tensor numbers) override {
    meet();
    return group_->sum({numbers});
  }
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks) override {
    meet();
    group_->broadcast(of_ranks, bucket_);
  }
  std::vector<std::string> gather(const std::string& bytes) override {
    if (group_ == nullptr) return {bytes};
    meet();
    return group_->gather(bytes);
  }

 protected:
  virtual void meet() {}                             // called by each rank before all of them communicate
  virtual void meet_in_backward() { meet(); }        // called instead before the sum of a gradient
  virtual void summed(const vernier::Parameter&) {}  // called after the gradient of a parameter is summed
  Group& group() { return *group_; }
  // True for a plugin that reads the gradients of all parameters when it hears of the event.
  static bool reads_all_gradients(const vernier::Plugin& other, const vernier::Bus& bus, vernier::Event event);
  std::int64_t bucket() const { return bucket_; }

 private:
  Rendezvous rendezvous_;
  std::int64_t bucket_ = 0;
  bool in_backward_, overlap_ = false;
  std::int64_t samples_ = 0;  // samples in the batch's micro-batches so far
  std::unique_ptr<Group> group_;
  std::optional<Message> message_;
  std::optional<GradientSums> sums_;
};

}  // namespace ddp
