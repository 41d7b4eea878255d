#include "record_monitor.h"

#include <algorithm>

namespace vernier {

RecordMonitor::RecordMonitor(Options& options)
    : every_(options.get("every", 1, "steps between records", at_least(1))) {}

RecordMonitor::~RecordMonitor() = default;

void RecordMonitor::attach(Bus& bus) {
  bus.on(Event::RunBegin, [this](const Run& run) { begin(run); });
  bus.on(Event::StepEnd, [this](const Run& run) {
    if (run.step % every_ == 0 || run.step == run.steps || !std::ranges::all_of(run.notices, is_progress))
      push(run, Record::Kind::step);
  });
  bus.on(Event::Validated, [this](const Run& run) { push(run, Record::Kind::validation); });
  bus.on(Event::RunEnd, [this](const Run& run) { end(run, false); });
  bus.on(Event::RunFailed, [this](const Run& run) { end(run, true); });
}

void RecordMonitor::begin(const Run& run) {
  sink_ = open(run, saved_);
  queue_ =
      std::make_unique<RecordQueue>([this](const Record& record) { sink_->write(record); }, [this] { sink_->flush(); });
}

void RecordMonitor::push(const Run& run, Record::Kind kind) {
  if (!queue_) return;  // a step without a run
  queue_->push([&](Record& record) {
    collector_.collect(run, kind, record);
    if (kind == Record::Kind::step) add_to_step(run, record);
  });
}

void RecordMonitor::end(const Run& run, bool has_failed) {
  if (!queue_) return;  // the run failed before RunBegin
  queue_->drain();      // so that its last record is not dropped
  push(run, Record::Kind::end);
  queue_->drain();
  sink_->end(run, has_failed);
  if (const auto dropped = queue_->dropped(); dropped > 0) {
    warn("records that were dropped, since writing them took longer than training: ", dropped);
  }
}

State RecordMonitor::save() const {
  if (!queue_) return saved_;
  queue_->drain();
  return sink_->save();
}

// Before RunBegin the run is resumed. Later it is a rewind: what was written stays.
void RecordMonitor::load(const State& state) {
  if (!queue_) saved_ = state;
}

}  // namespace vernier
