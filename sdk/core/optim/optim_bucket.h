// A bucket has the parameters of one group that share device, dtype, kinds of state and size class. One call of a
// kernel updates them.
#pragma once

#include <ATen/core/DimVector.h>

#include <string>
#include <vector>

#include "optim_rule.h"

namespace vernier {

// A second thread saves time from about 8000 elements on.
inline bool is_small(const torch::Tensor& parameter) {
  return parameter.is_cpu() && parameter.numel() <= 8192;
}

struct FusedBucket {
  FusedBucket(std::size_t group, UpdateRule rule, const torch::Tensor& first)
      : group(group),
        rule(std::move(rule)),
        device(first.device()),
        dtype(first.scalar_type()),
        one_thread(is_small(first)) {}

  bool takes(std::size_t of_group, const UpdateRule& of_rule, const torch::Tensor& parameter) const {
    return group == of_group && rule.slots == of_rule.slots && device == parameter.device() &&
           dtype == parameter.scalar_type() && one_thread == is_small(parameter);
  }

  void add(std::size_t number, const torch::Tensor& parameter);
  void close();    // after the last add
  void collect();  // puts the gradients into `lists`
  void step(double lr, const torch::Tensor& found_inf, const torch::Tensor& grad_scale);
  void step_one(std::size_t member, double lr);  // updates one parameter with a gradient; changes nothing else
  void load(std::size_t member, const State& state);
  std::string entry(std::size_t member, std::string_view name) const;

  std::size_t group;
  UpdateRule rule;
  torch::Device device;
  torch::ScalarType dtype;
  bool one_thread;
  TensorVector parameters;
  std::vector<std::size_t> numbers;  // indices of the parameters in the whole optimizer
  std::vector<TensorVector> slots;   // undefined until a parameter's first gradient
  struct Layout {
    at::DimVector sizes, strides;
  };
  std::vector<Layout> layouts;  // the layout of each parameter that its slots follow
  torch::Tensor steps;          // 1-D: one count for each parameter, so that one kernel advances all of them
  TensorVector step_views;

  UpdateLists lists;
  std::vector<std::size_t> active;  // indices of the members that are in `lists`
  torch::Tensor advanced;           // on a GPU: 1 for active members, 0 for others
  torch::Tensor skip;               // on a GPU: found_inf as 0 or 1

 private:
  bool follow(std::size_t member);  // lays out the slots as the parameter's memory; true if they are new tensors now
  void activate();                  // fits `lists` to the parameters that have gradients
  void put(std::size_t member, UpdateLists& into);
  void advance(const MaybeTensor& skipped);
  void apply(const UpdateLists& to, double lr, const MaybeTensor& grad_scale, const MaybeTensor& skipped) const;
  torch::Tensor fit(const torch::Tensor& gradient, std::size_t member) const;
  [[noreturn]] void refuse_gradient(const torch::Tensor& gradient, std::size_t member) const;
};

// Converts the averages in a saved state to or from 8 bits, as these buckets keep them. Other entries stay unchanged.
State in_kinds_of(const std::vector<FusedBucket>& buckets, State state);

// Takes out of a state what these buckets do not keep.
void leave_out_unknown(State& state, const std::vector<FusedBucket>& buckets);

// Throws Error unless a state belongs to these buckets. A parameter must have all of its entries or none.
void require_loadable(const State& state, const std::vector<FusedBucket>& buckets);

}  // namespace vernier
