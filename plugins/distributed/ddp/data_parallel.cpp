#include "data_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/types.h>
#include <vernier/memory.h>

namespace ddp {

using vernier::Run;

namespace {

std::int64_t read_bytes(vernier::Options& options, const char* key, const char* otherwise, const char* help) {
  const auto text = options.get(key, otherwise, help);
  try {
    return vernier::bytes_of(text, 0);
  } catch (const vernier::Error& error) {
    options.refuse(key, error.what());
  }
}

}  // namespace

DataParallel::DataParallel(vernier::Options& options) {
  meeting_.place = place_in_environment();
  const auto seconds =
      options.get("timeout", 120, "seconds in which a rank must come, and answer", vernier::between(1, 86400));
  meeting_.timeout = std::chrono::seconds(seconds);
  auto& place = meeting_.place;
  const auto port =
      options.get("port", 0, "where rank 0 listens; 0: as the launcher says, else 29500", vernier::between(0, 65535));
  const auto address = options.get("address", "", "of the machine with rank 0; empty: as the launcher says");
  meeting_.interface = options.get("interface", "", "of the network; empty: the one that leads to rank 0");
  const auto compress = options.choose("compress", "none", {"none", "bf16", "fp16"},
                                       "the dtype in which float32 gradients travel and are summed");
  if (compress != "none") sent_as_ = compress == "bf16" ? torch::kBFloat16 : torch::kHalf;
  bucket_ =
      read_bytes(options, "bucket", "8MB", "gradients that are smaller are summed together in pieces of this size");
  if (port != 0) place.port = port;
  if (place.port == 0) place.port = 29500;
  if (!address.empty()) place.address = address;
  if (place.address.empty()) place.address = "127.0.0.1";
  for (const char* key : {"timeout", "port", "address", "interface"}) options.resumable(key);
}

vernier::Contradiction DataParallel::contradicts(const vernier::Plugin& other, const vernier::Bus&) const {
  const auto* optimizer = dynamic_cast<const vernier::Optimizer*>(&other);
  if (optimizer == nullptr || ranks() == 1) return {};
  if (optimizer->steps_in_backward()) {
    return {"use", "sums the gradients of several ranks after backward, and " + other.id() +
                       " steps in it; leave in_backward out"};
  }
  if (shards_optimizer() && !optimizer->updates_each_alone()) {
    return {"use", "gives a rank the gradients of the parameters that it owns alone, and " + other.id() +
                       " needs those of all parameters at once; use distributed/ddp"};
  }
  return {};
}

void DataParallel::prepare(Run& run) {
  const auto& place = meeting_.place;
  if (place.ranks == 1) {
    if (place.launcher.empty()) info("this process trains alone; `vernier launch -n 2 …` starts several");
    return;
  }
  if (!run.device.is_cpu()) {
    throw vernier::Error("several ranks train on the CPU so far; set [run] device = \"cpu\"",
                         vernier::Error::Kind::configuration);
  }
  group_ = Group::meet(meeting_, [&run] { return run.is_stopping(); });
  if (group_ != nullptr && place.rank == 0) info(place.ranks, " ranks train together");
}

void DataParallel::all_reduce(Run& run, torch::Tensor numbers) {
  const torch::NoGradGuard no_grad;
  const auto wait_for_numbers = group_->sum({numbers});
  auto buckets = buckets_of(run);
  std::vector<std::function<void()>> waits;
  for (auto& bucket : buckets) {
    pack(bucket);
    waits.push_back(group_->sum({bucket.sent}));
  }
  wait_for_numbers();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    waits[i]();
    unpack(buckets[i]);
  }
}

// The same on all ranks, since it follows from the parameters alone. A gradient that does not exist is one of zeros.
std::vector<DataParallel::Bucket> DataParallel::buckets_of(Run& run) const {
  std::vector<Bucket> buckets;
  std::ptrdiff_t open = -1;  // the bucket that takes small gradients
  for (auto& parameter : run.parameters) {
    auto& gradient = parameter.model.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter.model, at::MemoryFormat::Contiguous);
    if (gradient.is_sparse()) {
      throw vernier::Error("the gradient of " + parameter.name +
                               " is sparse, and several ranks sum dense ones; build the layer without sparse gradients",
                           vernier::Error::Kind::configuration);
    }
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
    if (bytes == 0) continue;
    const bool fits = open >= 0 && buckets[static_cast<std::size_t>(open)].bytes + bytes <= bucket_ &&
                      buckets[static_cast<std::size_t>(open)].gradients[0].scalar_type() == gradient.scalar_type();
    if (!fits) {
      buckets.emplace_back();
      if (bytes < bucket_) open = std::ssize(buckets) - 1;
    }
    auto& bucket = fits ? buckets[static_cast<std::size_t>(open)] : buckets.back();
    bucket.gradients.push_back(gradient);
    bucket.bytes += bytes;
  }
  return buckets;
}

// A gradient alone is summed in its own memory.
void DataParallel::pack(Bucket& bucket) const {
  const auto& gradients = bucket.gradients;
  std::vector<torch::Tensor> flat;
  for (const auto& gradient : gradients) flat.push_back(gradient.view(-1));
  bucket.sent = flat.size() == 1 ? flat[0] : at::cat(flat);
  if (sent_as_ && bucket.sent.scalar_type() == torch::kFloat32) bucket.sent = bucket.sent.to(*sent_as_);
}

void DataParallel::unpack(const Bucket& bucket) {
  std::int64_t from = 0;
  for (const auto& gradient : bucket.gradients) {
    const auto part = bucket.sent.narrow(0, from, gradient.numel());
    if (part.data_ptr() != gradient.data_ptr()) gradient.view(-1).copy_(part);
    from += gradient.numel();
  }
}

}  // namespace ddp
