#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/sum_over_ranks.h>

#include <numeric>
#include <string>
#include <vector>

#include "rank_sums.h"

namespace vernier {

namespace {

// A process has one. Threads of autograd read it while the main thread waits for them.
const RankSums* lent = nullptr;
std::int64_t lone = 0;

// Float64 holds all integers that are allowed, and float32 all numbers of 16 bits.
torch::ScalarType sent_as(const torch::Tensor& rows) {
  const auto dtype = rows.scalar_type();
  return dtype == torch::kFloat64 || !rows.is_floating_point() ? torch::kFloat64 : torch::kFloat32;
}

// How many rows each rank has. All ranks learn if their tensors do not fit to each other.
std::vector<std::int64_t> rows_of_ranks(const RankSums& ranks, const torch::Tensor& rows) {
  const auto kind = c10::str(rows.sizes().slice(1), " ", rows.scalar_type(), " ", rows.requires_grad());
  const auto digest = static_cast<double>(std::hash<std::string>{}(kind) >> 12);
  const auto numbers = at::zeros({2 * ranks.ranks}, torch::kFloat64);
  auto* number = numbers.mutable_data_ptr<double>();
  number[ranks.rank] = static_cast<double>(rows.size(0));
  number[ranks.ranks + ranks.rank] = digest;
  ranks.sum(numbers);
  std::vector<std::int64_t> counts(number, number + ranks.ranks);
  if (std::count(number + ranks.ranks, number + 2 * ranks.ranks, digest) == ranks.ranks) return counts;
  throw Error(c10::str("gather_over_ranks() got rows that differ in size, dtype or requires_grad; on rank ", ranks.rank,
                       " the tensor is ", rows.sizes(), " ", rows.scalar_type()),
              Error::Kind::plugin);
}

// The gradients of all ranks' losses add up, as if one process had computed their sum.
struct Gather final : torch::autograd::Function<Gather> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& rows, std::int64_t first,
                               std::int64_t count) {
    auto sizes = rows.sizes().vec();
    context->saved_data["first"] = first;
    context->saved_data["own"] = sizes[0];
    sizes[0] = count;
    const auto all = at::zeros(sizes, rows.options().dtype(sent_as(rows)));
    all.narrow(0, first, rows.size(0)).copy_(rows);
    lent->sum(all);
    return all.to(rows.scalar_type());
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             const std::vector<torch::Tensor>& gradients) {
    const auto& gradient = gradients.at(0);
    if (lent == nullptr) throw Error("the gradient of gather_over_ranks() is computed by the trainer's backward alone");
    const auto all = gradient.to(sent_as(gradient), /*non_blocking=*/false, /*copy=*/true).contiguous();
    lent->sum(all);
    const auto first = context->saved_data["first"].toInt(), own = context->saved_data["own"].toInt();
    return {all.narrow(0, first, own).to(gradient.scalar_type()), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

RankSums::RankSums(std::int64_t rank, std::int64_t ranks, std::function<void(const torch::Tensor&)> sum)
    : rank(rank), ranks(ranks), sum(std::move(sum)) {
  lent = this;
}

RankSums::~RankSums() {
  lent = nullptr;
}

void refuse_unequal_parts(std::int64_t parts) {
  refuse(c10::str(
      "the loss gathers the tensors of all ranks, and the ranks have different numbers of micro-batches in this "
      "step, this one ",
      parts,
      "; choose [task] batch_size and [accumulation] so that each has as many, and "
      "[task] drop_last = true for the last batch"));
}

std::int64_t lone_gathers() {
  return lone;
}

GatheredRows gather_over_ranks(const torch::Tensor& rows) {
  if (rows.dim() == 0)
    throw Error("gather_over_ranks() needs a tensor of rows, and got one number", Error::Kind::plugin);
  if (lent == nullptr) {
    lone += 1;
    return {rows, 0};
  }
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if (rows.scalar_type() == torch::kInt64 && rows.abs().gt(most).any().item<bool>()) {
    throw Error("gather_over_ranks() got an integer over 2^53", Error::Kind::plugin);
  }
  const auto counts = rows_of_ranks(*lent, rows);
  const auto first = std::accumulate(counts.begin(), counts.begin() + lent->rank, std::int64_t{0});
  const auto all = std::accumulate(counts.begin() + lent->rank, counts.end(), first);
  return {Gather::apply(rows, first, all), first};
}

torch::Tensor sum_over_ranks(const Run& run, const torch::Tensor& of_this_rank) {
  const torch::NoGradGuard no_grad;
  if (run.control == nullptr) return of_this_rank.clone();
  State own;
  own.put("sum", of_this_rank);
  auto sum = at::zeros_like(of_this_rank, torch::kCPU);
  for (const auto& state : run.control->gather(own)) sum += state.tensor("sum").to(torch::kCPU);
  return sum.to(of_this_rank.device());
}

}  // namespace vernier
