// Shared by the accumulation plugins, which split a batch into micro-batches of nearly equal sizes and give each one
// its weight, by the options weight = "samples", weight_column = -1, padding = -100.
#pragma once

#include <vernier/sdk.h>

#include <string>
#include <vector>

// In so many micro-batches, of sizes that differ by one sample at most.
inline std::vector<vernier::Batch> evenly(const vernier::Batch& batch, std::int64_t count) {
  if (count == 1) return {batch};
  std::vector<vernier::Batch> micro_batches;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto first = batch.samples * i / count;
    micro_batches.push_back(batch.narrow(first, batch.samples * (i + 1) / count - first));
  }
  return micro_batches;
}

// In as few micro-batches as there can be of at most `size` samples.
inline std::vector<vernier::Batch> at_most(const vernier::Batch& batch, std::int64_t size) {
  return evenly(batch, (batch.samples + size - 1) / size);
}

// Plugin::memory_remedy() of an accumulation whose micro-batches have a fixed size.
constexpr const char* fit_finds_the_size = "[accumulation] use = \"fit\" finds their size";

// The options weight, weight_column and padding. A task's loss is the mean over a micro-batch's samples, or over its
// tokens: the mean over the batch is exact only where each micro-batch counts for as many of them as it has.
class Weighing : public vernier::Accumulation {
 public:
  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus&) const override {
    const auto* task = dynamic_cast<const vernier::Task*>(&other);
    if (!by_tokens_ || task == nullptr || !task->weight_of({})) return {};
    return {"weight",
            "is for tasks that do not weigh their samples, and " + other.id() + " weighs them itself; leave it out"};
  }

 protected:
  explicit Weighing(vernier::Options& options)
      : by_tokens_(
            options.choose("weight", "samples", {"samples", "tokens"},
                           "what the task's loss is a mean over: a micro-batch counts for as many of them as it has") ==
            "tokens"),
        column_(options.get("weight_column", -1, "which of the batch's tensors has the tokens; -1: the last")),
        padding_(options.get("padding", -100, "value of the places in it that have no token and are not counted")) {
    has_padding_ = options.given("padding");
    for (const auto* key : {"weight_column", "padding"}) {
      if (options.given(key) && !by_tokens_) options.refuse(key, "is for weight = \"tokens\"");
    }
  }

  std::vector<vernier::Batch> weighed(std::vector<vernier::Batch> micro_batches) const {
    if (!by_tokens_) return micro_batches;
    for (auto& micro_batch : micro_batches) {
      const auto count = static_cast<std::int64_t>(micro_batch.tensors.size());
      const auto place = column_ < 0 ? count + column_ : column_;
      if (place < 0 || place >= count) {
        vernier::refuse(c10::str("weight_column = ", column_, " does not exist: the task's batches have ", count,
                                 " tensors, 0 to ", count - 1, " or -1 to ", -count));
      }
      const auto& tokens = micro_batch.tensors[static_cast<std::size_t>(place)];
      refuse_other_than_tokens(tokens, count);
      micro_batch.weight = static_cast<double>(tokens.ne(padding_).sum().item<std::int64_t>());
    }
    return micro_batches;
  }

 private:
  // A tensor that a task appends for itself, such as a weight for each sample, would count as so many tokens.
  void refuse_other_than_tokens(const torch::Tensor& tensor, std::int64_t count) const {
    const auto refuse = [&](const std::string& reason) {
      vernier::refuse(c10::str("weight_column = ", column_, " is a tensor of ", tensor.scalar_type(), " ",
                               tensor.sizes(), ", ", reason, "; name another of the batch's tensors, 0 to ",
                               count - 1));
    };
    if (tensor.dim() < 2) refuse("with one number for each sample, which are not its tokens");
    if (tensor.is_floating_point() && !has_padding_) {
      refuse("and tokens are whole numbers; for a mask, give its `padding`, such as 0");
    }
  }

  bool by_tokens_, has_padding_ = false;
  std::int64_t column_, padding_;
};

// An update that is several of the task's batches, each of them a micro-batch unless micro_batch_size says else. What
// holds for it: the last update of an epoch takes what is left, and weighs it as what it is; [run] epochs, and what
// counts steps, count updates.
class Gathering : public Weighing {
 public:
  bool gathers() const override { return true; }
  std::int64_t batches_per_update(std::int64_t step, std::int64_t epoch, std::int64_t samples) override {
    batch_ = samples;
    return update(step, epoch) / samples;
  }
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    return weighed(at_most(batch, micro_batch_size_ > 0 ? micro_batch_size_ : batch_));
  }

  std::string memory_remedy() const override { return fit_finds_the_size; }

 protected:
  explicit Gathering(vernier::Options& options)
      : Weighing(options),
        micro_batch_size_(options.get("micro_batch_size", 0,
                                      "the most samples of a micro-batch; 0: the task's batch_size",
                                      vernier::at_least(0))) {
    remember("batch", batch_);
  }

  // Samples of an update, a multiple of the batch's.
  virtual std::int64_t update(std::int64_t step, std::int64_t epoch) const = 0;

  void refuse_larger_micro_batch(const vernier::Options& options, std::int64_t update) const {
    if (micro_batch_size_ > update)
      options.refuse("micro_batch_size", c10::str("is more than an update has samples (", update, ")"));
  }
  void refuse_fraction(const char* key, std::int64_t update) const {
    if (update % batch_ == 0) return;
    const auto below = update / batch_ * batch_;
    vernier::refuse(c10::str(key, " = ", update, " is not a multiple of the task's batches of ", batch_,
                             " samples: give ", below > 0 ? c10::str(below, " or ") : "", below + batch_,
                             ", or change the task's batch_size"));
  }

  std::int64_t batch_ = 1;  // samples of the task's

 private:
  std::int64_t micro_batch_size_;
};
