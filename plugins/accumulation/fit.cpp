// fit: trains each batch in as few micro-batches as fit into memory. It predicts their size from measurements, instead
// of finding it by failing. It first measures single samples of the first batch. Then it measures micro-batches of up
// to eight times the largest measured one, as long as the prediction says that they fit.
// The prediction is never too low. The bytes of a micro-batch are the largest of several moments, and each moment takes
// a fixed part and a part per sample. So the bytes are convex in the samples, and the bytes per sample fall. A line
// between two measurements is therefore an upper bound, and so is a line through zero beyond the last one.
// After the first update the optimizer has its memory. The size is then computed anew, and every micro-batch is
// measured until the size no longer changes.
// If a micro-batch still finds no memory, the batch is trained again in smaller ones, and nothing is lost. They have
// half the size if the bytes do not explain the failure. Larger ones are tried again later; if that fails, the wait
// doubles.
// The memory is [run] memory_limit, or what the system gives (free_memory in vernier/memory.h). With a limit, the sizes
// are the same in every run. What the system gives may differ. A checkpoint keeps the sizes.
//   margin = 0.03            share of what is free that stays so
//   largest = 0              the most samples of a micro-batch; 0: as many as fit
//   try_larger_after = 100   steps until a larger micro-batch is tried again, where one found no memory
//   weight = "samples", weight_column = -1, padding = -100   see micro_batches.h
#include <vernier/memory.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>

#include "micro_batches.h"

class FitAccumulation final : public Weighing {
 public:
  explicit FitAccumulation(vernier::Options& options)
      : Weighing(options),
        margin_(options.get("margin", 0.03, "share of what is free that stays so", vernier::between(0, 0.9))),
        largest_(
            options.get("largest", 0, "the most samples of a micro-batch; 0: as many as fit", vernier::at_least(0))),
        try_after_(options.get("try_larger_after", 100,
                               "steps until a larger micro-batch is tried again, where one found no memory",
                               vernier::at_least(1))) {
    remember("size", size_), remember("next", next_), remember("chosen", chosen_), remember("wanted", wanted_);
    remember("waits", waits_), remember("changed_at", changed_at_), remember("largest_batch", largest_batch_);
    remember("is_settled", is_settled_), remember("has_trained_with_optimizer", has_trained_with_optimizer_);
    remember(
        [this](vernier::State& state) {
          for (const auto& [samples, bytes] : points_) state.put(c10::str("measured/", samples), bytes);
        },
        [this](const vernier::State& state) {
          points_.clear();
          const auto measured = state.part("measured");
          for (const auto& [samples, tensor] : measured.tensors)
            points_[std::stoll(samples)] = measured.integer(samples);
        });
  }

  void attach(vernier::Bus& bus) override {
    using vernier::Event;
    bus.on(Event::StepBegin, [this](vernier::Run& run) { begin_step(run); });
    bus.on(Event::BatchReady, [this](vernier::Run& run) {
      end_micro_batch();
      begin_micro_batch(run);
    });
    bus.on(Event::GradientsReady, [this](vernier::Run& run) {
      end_micro_batch();
      if (is_learning() && !points_.empty()) chosen_ = fitting(run, room(run));  // the whole batch went through
      is_first_time_ = false;
    });
  }

  void prepare(vernier::Run& run) override {
    device_ = run.device;
    vernier::count_memory(device_);
    // Without a limit the system may end the process where an exception would have served.
    if (device_.is_cpu() && vernier::memory_limit(device_) == 0) {
      vernier::limit_memory(device_, vernier::allocated_memory(device_).now + vernier::free_memory(device_));
    }
    run.control->want_rerun(*this);
  }

  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    micro_batches_begun_ = 0;
    largest_batch_ = std::max(largest_batch_, bytes_of(batch));
    if (!is_learning()) return weighed(at_most(batch, size_));
    // A callback or an optimizer may have the gradients computed again. The batch is then split as before.
    const bool is_again =
        !is_first_time_ && std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0}) == batch.samples;
    if (!is_again) sizes_ = sizes_to_measure(batch.samples);
    std::vector<vernier::Batch> micro_batches;
    std::int64_t first = 0;
    for (const auto size : sizes_) {
      micro_batches.push_back(batch.narrow(first, size));
      first += size;
    }
    return weighed(std::move(micro_batches));
  }

  bool can_shrink() const override { return true; }
  bool shrink(vernier::Run& run) override {
    const auto failed = run.micro_batch.samples;
    measuring_ = {};
    if (std::exchange(is_too_much_, false)) {
      const auto fits = fitting(run, room_), measured = points_.rbegin()->first;
      const bool has_learned = std::exchange(refused_after_, measured) < measured;
      if (is_learning() && has_learned && fits > measured + measured / 20) {
        next_ = std::min(fits, reach());
      } else {
        size_ = wanted_ = fits;
      }
      return true;
    }
    // A little too much, or for a reason that its bytes do not show.
    const auto fits = points_.empty() ? failed : fitting(run, room(run));
    const auto size = fits < failed ? fits : failed / 2;
    if (size == 0 || failed == 1) return false;
    wanted_ = fits < failed ? size : std::max({wanted_, size_, failed});
    size_ = size;
    const bool has_held = run.step - changed_at_ > waits_;
    waits_ = waits_ == 0 || has_held ? try_after_ : 2 * waits_;
    changed_at_ = run.step;
    run.notice("out_of_memory", {{"micro_batch", failed}, {"smaller", size_}},
               c10::str("a micro-batch of ", failed, " samples does not fit into memory; the next ones have ", size_));
    return true;
  }

 private:
  struct MicroBatch {
    std::int64_t samples = 0, before = 0;  // bytes that stood there before it
  };

  // Times as large as what was measured: a prediction reaches no further.
  std::int64_t reach() const { return 8 * points_.rbegin()->first; }
  bool is_learning() const { return size_ == 0; }

  // Gradients come with the first micro-batch, so only later ones are measured. The last, the rest of the batch, is the
  // one that is looked at before it is tried.
  std::vector<std::int64_t> sizes_to_measure(std::int64_t samples) const {
    auto sizes = points_.empty() ? std::vector<std::int64_t>{1, 1, 2} : std::vector<std::int64_t>{1, next_};
    sizes.push_back(samples);
    std::int64_t rest = samples;
    for (auto& size : sizes) rest -= size = std::min(size, rest);
    std::erase(sizes, 0);
    return sizes;
  }

  void begin_step(vernier::Run& run) {
    measuring_ = {};
    is_first_time_ = true;
    if (chosen_ > 0) size_ = wanted_ = std::exchange(chosen_, 0);
    if (is_learning()) return;
    if (size_ < wanted_ && run.step >= changed_at_ + waits_) {
      size_ = std::min(2 * size_, wanted_);
      changed_at_ = run.step;
    }
  }

  void begin_micro_batch(vernier::Run& run) {
    measuring_ = {};
    micro_batches_begun_ += 1;
    if (is_settled_ || !is_first_time_) return;
    if (is_learning() && !points_.empty()) {
      refuse_too_much(run, std::min(reach(), fitting(run, room(run))));
    } else if (micro_batches_begun_ == 1 && run.updates > 0) {
      settle(run);
    }
    vernier::reset_peak_memory(device_);
    measuring_ = {run.micro_batch.samples, vernier::allocated_memory(device_).now};
  }

  // The trainer has the batch split again.
  void refuse_too_much(const vernier::Run& run, std::int64_t fits) {
    is_too_much_ = run.micro_batch.samples > std::max<std::int64_t>(1, fits);
    TORCH_CHECK_WITH(OutOfMemoryError, !is_too_much_, "the rest of the batch would not fit");
  }

  // With the optimizer's memory in place. A whole step of it is needed to know that the size stands still.
  void settle(vernier::Run& run) {
    const auto fits = fitting(run, room(run));
    is_settled_ = std::exchange(has_trained_with_optimizer_, true) && std::abs(fits - wanted_) <= wanted_ / 50;
    if (size_ == wanted_) size_ = fits;  // else a micro-batch found no memory, and what is thought to fit has to wait
    wanted_ = is_settled_ ? std::min(fits, wanted_) : fits;
    size_ = std::min(size_, wanted_);
    refuse_too_much(run, fits);
    if (is_settled_) {
      info("micro-batches of ", size_, " samples, which take ", vernier::memory_text(bytes_of(size_)), " of the ",
           vernier::memory_text(room_), " that are free");
    }
  }

  void end_micro_batch() {
    const auto micro_batch = std::exchange(measuring_, {});
    if (micro_batch.samples == 0 || micro_batches_begun_ < 2) return;
    auto& bytes = points_[micro_batch.samples];
    bytes = std::max(bytes, vernier::allocated_memory(device_).peak - micro_batch.before);
  }

  // Never too low: see above.
  std::int64_t bytes_of(std::int64_t samples) const {
    const auto next = points_.lower_bound(samples);
    if (points_.empty()) return 0;
    if (next == points_.begin()) return next->second;
    const auto last = std::prev(next);
    if (next == points_.end()) {
      return std::llround(static_cast<double>(last->second) * static_cast<double>(samples) /
                          static_cast<double>(last->first));
    }
    const double share = static_cast<double>(samples - last->first) / static_cast<double>(next->first - last->first);
    return last->second + std::llround(share * static_cast<double>(next->second - last->second));
  }

  // The most samples that fit into so many bytes, at least 1: what is too much even so, fails. More than a million is
  // that: free memory is not the same twice.
  std::int64_t fitting(vernier::Run& run, std::int64_t room) const {
    constexpr std::int64_t beside = 16 << 10;  // bytes that a step allocates beside its micro-batches
    const auto free = static_cast<std::int64_t>(static_cast<double>(room) * (1 - margin_)) - beside;
    std::int64_t fits = 1, fails = std::int64_t{1} << 20;
    while (fails - fits > 1) {
      const auto middle = (fits + fails) / 2;
      (bytes_of(middle) <= free ? fits : fails) = middle;
    }
    return largest_ > 0 ? std::min(fits, largest_) : fits;
  }

  static std::int64_t bytes_of(const vernier::Batch& batch) {
    std::int64_t bytes = 0;
    for (const auto& tensor : batch.tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
    return bytes;
  }

  // The memory that a later micro-batch finds free: it has gradients of the model, but none of masters yet. On a CPU
  // the batch may be the short one at the end of an epoch.
  std::int64_t room(vernier::Run& run) {
    auto room = vernier::free_memory(device_);
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (!parameter.model.grad().defined()) room -= static_cast<std::int64_t>(parameter.model.nbytes());
      if (gradient.defined() && !parameter.master.is_same(parameter.model))
        room += static_cast<std::int64_t>(gradient.nbytes());
    }
    if (device_.is_cpu()) room += bytes_of(run.batch) - largest_batch_;
    return room_ = room;
  }

  double margin_;
  std::int64_t largest_, try_after_;
  torch::Device device_ = torch::kCPU;

  std::int64_t size_ = 0;                        // samples of a micro-batch, at most; 0: not known yet
  std::int64_t next_ = 0;                        // while it is not: the micro-batch to measure
  std::map<std::int64_t, std::int64_t> points_;  // by samples of a micro-batch: its bytes, as measured
  bool is_settled_ = false, has_trained_with_optimizer_ = false;
  std::int64_t wanted_ = 0;                  // the size that was thought to fit when a micro-batch found no memory
  std::int64_t waits_ = 0, changed_at_ = 0;  // steps until a larger one is tried, and since when

  std::int64_t chosen_ = 0;               // size_ for the next step, because this step may run again with the same size
  std::vector<std::int64_t> sizes_;       // the micro-batches of the last batch that was split to measure
  bool is_first_time_ = false;            // the step's gradients are computed for the first time
  MicroBatch measuring_;                  // the one in work; bytes: those that stood there before
  std::int64_t micro_batches_begun_ = 0;  // micro-batches of the batch so far
  bool is_too_much_ = false;              // the micro-batch in work was not tried
  std::int64_t refused_after_ = 0;        // the largest micro-batch that was measured when one was not tried last
  std::int64_t room_ = 0;                 // the result of the last room()
  std::int64_t largest_batch_ = 0;        // bytes
};

VERNIER_PLUGIN(FitAccumulation, "fit", "1.1.0")
