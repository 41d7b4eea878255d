#include "batches.h"

#include <algorithm>
#include <cmath>

#include "run/state/savepoint.h"

namespace vernier {

void Batches::skip_dropped(TrainerRun& run) {
  while (snapshots_.is_dropped(run.batches_drawn)) {
    roles_.task->next();
    run.batches_drawn += 1;
    end_epoch(run);
  }
}

void Batches::end_epoch(TrainerRun& run) {
  if (run.batches_drawn / roles_.task->batches_per_epoch() <= run.epoch) return;  // less: a run resumed with more data
  HostApi::emit(roles_.wiring.bus, Event::EpochEnd, run);
  run.epoch += 1;
}

Batch Batches::next(TrainerRun& run) {
  run.batches = drawn_ = 1;
  auto batch = replayed_ ? replayed_() : roles_.accumulation->gathers() ? gather(run) : draw();
  clock_.to(Part::trainer);
  run.metrics.set_time("data_wait", clock_.seconds(Part::data_wait));
  return batch;
}

Batch Batches::draw() {
  auto batch = roles_.task.next();
  if (!batch.is_share) samples_ = std::max(samples_.value_or(0), batch.samples);
  return roles_.ranks.share_of(std::move(batch));
}

Batch Batches::gather(TrainerRun& run) {
  const auto wanted = roles_.accumulation.batches_per_update(run.step, run.epoch, samples(run));
  std::vector<Batch> batches;
  auto next = run.batches_drawn;
  do {
    auto batch = roles_.task.next();
    if (!snapshots_.is_dropped(next)) batches.push_back(roles_.ranks.share_of(std::move(batch)));
    next += 1;
  } while (next % roles_.task->batches_per_epoch() != 0 && std::ssize(batches) < wanted);
  drawn_ = next - run.batches_drawn;
  run.batches = std::ssize(batches);
  return batches.size() == 1 ? std::move(batches.front()) : roles_.task->concatenated(batches);
}

// The first batch is a whole one.
std::int64_t Batches::samples(TrainerRun& run) {
  if (samples_) return *samples_;
  Scope scope;
  scope.plugins = {roles_.wiring.task.get()};
  Savepoint before;
  before.take(run, scope);
  const auto batch = roles_.task.next();
  before.restore(run);
  auto& ranks = roles_.ranks;
  ranks.begin_gradients();
  (void)ranks.weigh(run, batch, 1);
  samples_ = batch.is_share ? std::llround(ranks.whole().samples) : batch.samples;
  ranks.begin_gradients();
  return *samples_;
}

void Batches::load(const State& state) {
  samples_.reset();
  if (state.has("samples_of_batch")) samples_ = state.integer("samples_of_batch");
}

}  // namespace vernier
