#include "gradient_sums.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>

#include <algorithm>
#include <utility>

namespace ddp {

using vernier::Run;

class GradientSums::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<std::function<void(std::size_t)>> arrive, std::size_t number)
      : arrive_(std::move(arrive)), number_(number) {}
  void operator()(const torch::Tensor&) override {
    if (*arrive_) (*arrive_)(number_);
  }

 private:
  std::shared_ptr<std::function<void(std::size_t)>> arrive_;
  std::size_t number_;
};

namespace {

// A gradient of this size is summed alone. In a bucket it would take a copy, and wait for the others of the bucket.
constexpr std::int64_t alone_bytes = 1 << 20;

// Gives a gradient memory of its own, because a sum changes it in place and its owner alone may keep it. Gradients of
// weights that a layer puts together are parts of one tensor, and one of a view may be what backward still reads.
void own_memory(torch::Tensor& gradient) {
  if (!gradient.defined() || gradient.is_sparse()) return;
  constexpr std::size_t users = 2;  // the gradient, and the tensor of backward that becomes it
  const auto& storage = gradient.storage();
  const bool is_own = storage.nbytes() == gradient.nbytes() && storage.use_count() <= users;
  if (!is_own || !gradient.is_contiguous()) gradient = gradient.detach().clone(at::MemoryFormat::Contiguous);
}

}  // namespace

GradientSums::~GradientSums() {
  if (arrive_ != nullptr) *arrive_ = nullptr;
}

// The same on all ranks, and in each step, since it follows from the parameters alone: from three ranks on, the last
// bit of a sum depends on its place in the bucket.
void GradientSums::lay_out(const Run& run) {
  std::ptrdiff_t open = -1;  // the bucket that takes small gradients
  bucket_of_.assign(run.parameters.size(), -1);
  came_.assign(run.parameters.size(), 0);
  for (std::size_t i = 0; i < run.parameters.size(); ++i) {
    const auto& parameter = run.parameters[i];
    const auto bytes = static_cast<std::int64_t>(parameter.model.nbytes());
    if (bytes == 0 || !parameter.model.requires_grad() || vernier::draft::ModelParts::is_part(parameter.name)) continue;
    const bool is_small = bytes < std::min(bucket_bytes_, alone_bytes);
    const auto takes = [&](const Bucket& bucket) {
      return is_small && bucket.bytes + bytes <= bucket_bytes_ &&
             bucket.parameters[0].model.scalar_type() == parameter.model.scalar_type();
    };
    auto place = open;
    if (open < 0 || !takes(buckets_[static_cast<std::size_t>(open)])) {
      place = std::ssize(buckets_);
      buckets_.emplace_back();
      if (is_small) open = place;
    }
    auto& bucket = buckets_[static_cast<std::size_t>(place)];
    bucket.parameters.push_back(parameter);
    bucket.bytes += bytes;
    bucket.missing += 1;
    bucket_of_[i] = place;
  }
  left_ = open_ = buckets_.size();
}

// All ranks begin the buckets in the same order, whatever the order of the gradients.
void GradientSums::begin_in_backward(const Run& run, Group& group) {
  lay_out(run);
  if (arrive_ == nullptr) {
    arrive_ = std::make_shared<std::function<void(std::size_t)>>();
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      const auto& parameter = run.parameters[i];
      if (torch::autograd::impl::post_acc_grad_hooks(parameter.model) != nullptr) {
        vernier::refuse(parameter.name +
                        " has a hook on its gradient already, and can have one; set [distributed] overlap = false, or "
                        "use = \"zero1\"");
      }
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.model, std::make_unique<Hook>(arrive_, i));
    }
  }
  *arrive_ = [this, &run, &group](std::size_t number) {
    if (bucket_of_[number] < 0) return;
    auto& bucket = buckets_[static_cast<std::size_t>(bucket_of_[number])];
    if (bucket.wait) {
      vernier::refuse("the gradient of " + run.parameters[number].name +
                      " came again after its sum over the ranks had begun, as with blocks that are computed again and "
                      "share a weight; set [distributed] overlap = false, or use = \"zero1\"");
    }
    own_memory(run.parameters[number].model.mutable_grad());
    if (came_[number] == 0) bucket.missing -= 1;
    came_[number] = 1;
    while (left_ > 0 && buckets_[left_ - 1].missing == 0) {
      if (after_) end_down_to(left_);
      begin(buckets_[--left_], run, group);
    }
  };
}

void GradientSums::begin_rest(const Run& run, Group& group) {
  if (arrive_ != nullptr) *arrive_ = nullptr;
  if (buckets_.empty()) lay_out(run);
  while (left_ > 0) begin(buckets_[--left_], run, group);
}

void GradientSums::wait() {
  end_down_to(0);
  buckets_.clear();
}

void GradientSums::end_down_to(std::size_t last) {
  while (open_ > last) end(buckets_[--open_]);
}

// A gradient alone is summed in its own memory.
void GradientSums::begin(Bucket& bucket, const Run& run, Group& group) const {
  if (before_) before_();
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> flat;
  for (auto& parameter : bucket.parameters) {
    auto& gradient = parameter.model.mutable_grad();
    const bool is_own = gradient.defined();
    if (!is_own) gradient = at::zeros(parameter.model.sizes(), parameter.model.options());
    if (gradient.is_sparse()) {
      vernier::refuse("the gradient of " + parameter.name +
                      " is sparse, and several ranks sum dense ones; build the layer without sparse gradients");
    }
    own_memory(gradient);
    if (message_ != nullptr) message_->round(parameter.name, gradient, is_own, run);
    flat.push_back(gradient.view(-1));
  }
  bucket.sent = flat.size() == 1 ? flat[0] : at::cat(flat);
  if (sent_as_ && bucket.sent.scalar_type() == torch::kFloat32) bucket.sent = bucket.sent.to(*sent_as_);
  const bool is_read = !after_ || std::ranges::any_of(bucket.parameters, &vernier::Parameter::owned);
  bucket.wait = group.sum({bucket.sent}, is_read);
}

void GradientSums::end(Bucket& bucket) const {
  const torch::NoGradGuard no_grad;
  bucket.wait();
  std::int64_t from = 0;
  for (const auto& parameter : bucket.parameters) {
    const auto& gradient = parameter.model.grad();
    const auto part = bucket.sent.narrow(0, from, gradient.numel());
    if ((!after_ || parameter.owned) && part.data_ptr() != gradient.data_ptr()) gradient.view(-1).copy_(part);
    from += gradient.numel();
    if (after_) after_(parameter);
  }
  bucket.sent.reset();
}

}  // namespace ddp
