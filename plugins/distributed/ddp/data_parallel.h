// What distributed/ddp and distributed/zero1 share: ranks that sum their gradients; see ddp.cpp.
#pragma once

#include <vernier/sdk.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "group.h"

namespace ddp {

class DataParallel : public vernier::Distributed {
 public:
  std::int64_t rank() const override { return meeting_.place.rank; }
  std::int64_t ranks() const override { return meeting_.place.ranks; }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override;
  void prepare(vernier::Run& run) override;
  void all_reduce(vernier::Run& run, torch::Tensor numbers) override;
  std::function<void()> sum(torch::Tensor numbers) override { return group_->sum({numbers}); }
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks) override {
    group_->broadcast(of_ranks, bucket_);
  }
  std::vector<std::string> gather(const std::string& bytes) override {
    return group_ != nullptr ? group_->gather(bytes) : std::vector{bytes};
  }
  std::function<void()> copy(const std::vector<torch::Tensor>& tensors, std::int64_t from, std::int64_t to) override {
    return group_->copy(tensors, from, to);
  }

 protected:
  explicit DataParallel(vernier::Options& options);

 private:
  // Gradients that travel together: one, or several small ones copied into one tensor.
  struct Bucket {
    std::vector<torch::Tensor> gradients;
    std::int64_t bytes = 0;
    torch::Tensor sent;
  };
  std::vector<Bucket> buckets_of(vernier::Run& run) const;
  void pack(Bucket& bucket) const;
  static void unpack(const Bucket& bucket);

  Meeting meeting_;
  std::optional<torch::ScalarType> sent_as_;
  std::int64_t bucket_ = 0;
  std::unique_ptr<Group> group_;
};

}  // namespace ddp
