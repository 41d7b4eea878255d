// recheck: the bits of one computation of a step.
#include "bits.h"

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <vernier/checksum.h>

#include <algorithm>

namespace recheck {

using vernier::Run;

namespace {

// The bytes count, so -0 differs from 0, and a NaN equals only the same NaN.
std::string bits_of(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  const auto dense = tensor.is_sparse() ? tensor.detach().to_dense() : tensor.detach();
  const auto bytes = dense.to(torch::kCPU).contiguous();
  vernier::Checksum checksum;
  checksum.add(bytes.const_data_ptr(), bytes.nbytes());
  return checksum.digits();
}

std::string layer_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

Place place_of(const Digest& digest) {
  switch (digest.phase) {
    case Phase::batch:
      return {digest.phase, "", digest.name};
    case Phase::forward: {
      const auto what = digest.operation.starts_with("into ") ? "what comes " : "the output of ";
      const auto operation =
          digest.operation.starts_with("into ") ? digest.operation : digest.name + " (" + digest.operation + ")";
      return {digest.phase, digest.name, what + operation + " in forward"};
    }
    case Phase::loss:
      return {digest.phase, "", "the loss of the task"};
    case Phase::backward:
      return {digest.phase, digest.name, "the gradient of " + digest.name + " in backward"};
    case Phase::sums:
      break;
  }
  return {digest.phase, "", digest.name};
}

}  // namespace

void Bits::add(Phase phase, const std::string& name, const std::string& operation, const torch::Tensor& tensor) {
  digests_.push_back({phase, name, operation, micro_batch_, bits_of(tensor)});
}

void Bits::begin_micro_batch(const Run& run) {
  if (!run.loss.defined()) {  // the first one, perhaps once more because it did not fit into memory
    digests_.clear();
    micro_batch_ = -1;
    micro_batches_ = run.micro_batches;
  }
  ++micro_batch_;
  for (std::size_t i = 0; i < run.micro_batch.tensors.size(); ++i) {
    add(Phase::batch, c10::str("tensor ", i, " of the batch"), "", run.micro_batch.tensors[i]);
  }
  guard_.emplace(layers_, *this);
}

vernier::Values Bits::call(const vernier::Operation& operation, vernier::Values arguments) {
  const std::string layer(operation.layer()), name(operation.name());
  if (layer.empty()) return operation.proceed(std::move(arguments));
  const auto is_number = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point();
  };
  if (!arguments.empty() && is_number(arguments.front())) {
    add(Phase::forward, layer, "into " + layer, arguments.front().toTensor());
  }
  auto results = operation.proceed(std::move(arguments));
  for (const auto& result : results) {
    if (is_number(result)) add(Phase::forward, layer, name, result.toTensor());
  }
  return results;
}

void Bits::end_forward(const Run& run) {
  guard_.reset();
  add(Phase::loss, "", "", run.micro_batch_loss);
}

void Bits::end_micro_batch(const Run& run) {
  for (const auto& parameter : run.parameters) {
    if (parameter.model.grad().defined()) add(Phase::backward, parameter.name, "", parameter.model.grad());
  }
}

void Bits::end(const Run& run) {
  guard_.reset();
  if (run.loss.defined()) add(Phase::sums, "the loss of the whole batch", "", run.loss);
  for (const auto& parameter : run.parameters) {
    if (!parameter.master.grad().defined()) continue;
    add(Phase::sums, "the gradient of " + parameter.name + " over the whole batch", "", parameter.master.grad());
  }
  for (const auto& buffer : run.model->named_buffers()) {
    add(Phase::sums, "the buffer " + buffer.key(), "", buffer.value());
  }
}

std::string digest_of(const std::vector<Digest>& bits, bool with_sums) {
  vernier::Checksum checksum;
  for (const auto& digest : bits) {
    if (digest.phase != Phase::sums || with_sums) checksum.add(digest.bits.data(), digest.bits.size());
  }
  return checksum.digits();
}

std::optional<Place> difference(const std::vector<Digest>& a, const std::vector<Digest>& b, bool with_sums) {
  const auto count = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (a[i].bits == b[i].bits || (a[i].phase == Phase::sums && !with_sums)) continue;
    if (a[i].phase == Phase::forward && a[i].operation.starts_with("into ") && i > 0 &&
        a[i - 1].phase == Phase::forward) {
      auto place = place_of(a[i]);  // the layer before it, or what follows that layer without a weight
      place.layer = a[i - 1].name;
      place.text = "what comes from " + a[i - 1].name + " into " + a[i].name + " in forward";
      return place;
    }
    if (a[i].phase != Phase::backward) return place_of(a[i]);
    // Backward goes from the last layer to the first: the fault is in the last of those that differ.
    std::size_t last = i;
    std::ptrdiff_t last_rank = -1;
    for (std::size_t j = i; j < count && a[j].phase == Phase::backward && a[j].micro_batch == a[i].micro_batch; ++j) {
      if (a[j].bits == b[j].bits) continue;
      const auto met = std::find_if(a.rbegin(), a.rend(), [&](const Digest& each) {
        return each.phase == Phase::forward && each.name == layer_of(a[j].name);
      });
      const auto rank = a.rend() - met;  // 0: its layer was not seen in forward
      if (rank < last_rank) continue;
      last = j;
      last_rank = rank;
    }
    return place_of(a[last]);
  }
  if (a.size() != b.size()) return Place{Phase::forward, "", "the operations of forward, which are not the same ones"};
  return std::nullopt;
}

}  // namespace recheck
