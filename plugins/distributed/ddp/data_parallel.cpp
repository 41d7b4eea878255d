#include "data_parallel.h"

#include <torch/types.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/launchers.h>
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

DataParallel::DataParallel(vernier::Options& options, bool in_backward) : in_backward_(in_backward) {
  rendezvous_.place = vernier::place_in_environment();
  const auto seconds =
      options.get("timeout", 120, "seconds in which a rank must come, and answer", vernier::between(1, 86400));
  rendezvous_.timeout = std::chrono::seconds(seconds);
  auto& place = rendezvous_.place;
  const auto port =
      options.get("port", 0, "where rank 0 listens; 0: as the launcher says, else 29500", vernier::between(0, 65535));
  const auto address = options.get("address", "", "of the machine with rank 0; empty: as the launcher says");
  rendezvous_.interface = options.get("interface", "", "of the network; empty: the one that leads to rank 0");
  const auto compress = options.choose("compress", "none", {"none", "bf16", "fp16"},
                                       "the dtype in which float32 gradients are sent and summed");
  std::optional<torch::ScalarType> sent_as;
  if (compress != "none") sent_as = compress == "bf16" ? torch::kBFloat16 : torch::kHalf;
  bucket_ = read_bytes(options, "bucket", "8MB",
                       "largest piece in which small tensors are sent together: gradients below 1 MB, or weights");
  overlap_ =
      in_backward_ || options.get("overlap", false, "sum gradients while backward computes others; for slow networks");
  rendezvous_.shares_memory =
      options.get("shared_memory", true, "ranks of one machine sum through memory that they share");
  message_.emplace(options);
  if (sent_as && message_->is_rounded())
    options.refuse("compress", "cannot be with `message`; leave one of the two out");
  remember("message", message_);
  std::function<void(const vernier::Parameter&)> after;
  if (in_backward_) after = [this](const vernier::Parameter& parameter) { summed(parameter); };
  sums_.emplace(
      bucket_, sent_as, message_->is_rounded() ? &*message_ : nullptr, [this] { meet_in_backward(); },
      std::move(after));
  if (port != 0) place.port = port;
  if (place.port == 0) place.port = vernier::usual_port;
  if (!address.empty()) place.address = address;
  if (place.address.empty() || place.address == "localhost") place.address = "127.0.0.1";
  for (const char* key : {"timeout", "port", "address", "interface"}) options.resumable(key);
  if (!in_backward_) options.resumable("overlap");  // it changes no bits
}

void DataParallel::attach(vernier::Bus& bus) {
  message_->attach(bus);
  if (!overlap_ || ranks() == 1) return;
  bus.on(vernier::Event::LossReady, [this](Run& run) {
    samples_ += run.micro_batch.samples;
    if (samples_ == run.batch.samples) sums_->begin_in_backward(run, *group_);
  });
}

vernier::Contradiction DataParallel::contradicts(const vernier::Plugin& other, const vernier::Bus&) const {
  if (ranks() == 1) return {};
  const auto* accumulation = dynamic_cast<const vernier::Accumulation*>(&other);
  if (accumulation != nullptr && accumulation->can_shrink() && overlap_) {
    return {in_backward_ ? "use" : "overlap",
            "sums gradients before backward is done, and " + other.id() +
                " may compute a batch again that ran out of memory; leave one of the two out"};
  }
  const auto* checkpoint = dynamic_cast<const vernier::Checkpoint*>(&other);
  if (shards_optimizer() && checkpoint != nullptr && !checkpoint->writes_shards()) {
    return {"use", "shares out the optimizer's state, and " + other.id() +
                       " cannot save parts of several ranks; use checkpoint/rolling, or distributed/ddp"};
  }
  const auto* optimizer = dynamic_cast<const vernier::Optimizer*>(&other);
  if (optimizer == nullptr) return {};
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

bool DataParallel::reads_all_gradients(const vernier::Plugin& other, const vernier::Bus& bus, vernier::Event event) {
  const auto* callback = dynamic_cast<const vernier::Callback*>(&other);
  const bool takes_parts = dynamic_cast<const vernier::draft::TakesParts*>(&other) != nullptr ||
                           (callback != nullptr && !callback->needs_gradients());
  return !takes_parts && bus.listens(other, event);
}

void DataParallel::prepare(Run& run) {
  message_->prepare(run);
  const auto& place = rendezvous_.place;
  if (place.ranks == 1) {
    if (place.launcher.empty()) info("this process trains alone; `vernier launch -n 2 …` starts several");
    return;
  }
  rendezvous_.device = run.device;
  group_ = Group::join(rendezvous_, [&run] { return run.is_stopping(); });
  if (group_ == nullptr || place.rank != 0) return;
  info(place.ranks, " ranks train together");
  if (const auto& why = group_->why_without_nccl(); !why.empty()) {
    warn("NCCL is not available, so gradients are summed on the CPU: ", why);
  }
}

void DataParallel::all_reduce(Run& run, torch::Tensor numbers) {
  samples_ = 0;
  sums_->begin_rest(run, *group_);
  const auto wait_for_numbers = sum(numbers);
  sums_->wait();
  wait_for_numbers();
}

}  // namespace ddp
