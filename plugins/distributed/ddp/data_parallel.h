// Shared by distributed/ddp and distributed/zero1: ranks that sum their gradients; see ddp.cpp.
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
  explicit DataParallel(vernier::Options& options);

  std::int64_t rank() const override { return rendezvous_.place.rank; }
  std::int64_t ranks() const override { return rendezvous_.place.ranks; }

  void attach(vernier::Bus& bus) override;
  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override;
  void prepare(vernier::Run& run) override;
  void check(const vernier::Run& run) override { message_->check(run); }
  std::vector<vernier::MetricInfo> metrics() const override { return message_->metrics(); }
  void all_reduce(vernier::Run& run, torch::Tensor numbers) override;
  std::function<void()> sum(torch::Tensor numbers) override { return group_->sum({numbers}); }
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks) override {
    group_->broadcast(of_ranks, bucket_);
  }
  std::vector<std::string> gather(const std::string& bytes) override {
    return group_ != nullptr ? group_->gather(bytes) : std::vector{bytes};
  }

 private:
  Rendezvous rendezvous_;
  std::int64_t bucket_ = 0;
  bool overlap_ = false;
  std::int64_t samples_ = 0;  // samples in the batch's micro-batches so far
  std::unique_ptr<Group> group_;
  std::optional<Message> message_;
  std::optional<GradientSums> sums_;
};

}  // namespace ddp
