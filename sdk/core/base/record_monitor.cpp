#include <vernier/append_file.h>
#include <vernier/record_monitor.h>

#include <algorithm>
#include <system_error>
#include <utility>

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
  try {
    sink_ = open(run, saved_);
  } catch (const std::system_error& error) {
    if (!is_full(error.code())) throw;
    if (!waits_for_room_) warn(error.what(), "; it is opened when there is room, and records until then are missing");
    waits_for_room_ = true;
    next_try_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    return;
  }
  if (std::exchange(waits_for_room_, false)) warn("there is room; records that are missing: ", missing_);
  queue_ =
      std::make_unique<RecordQueue>([this](const Record& record) { sink_->write(record); }, [this] { sink_->flush(); });
}

bool RecordMonitor::is_open_at_last(const Run& run) {
  if (waits_for_room_ && std::chrono::steady_clock::now() >= next_try_) begin(run);
  if (waits_for_room_) missing_ += 1;
  return queue_ != nullptr;  // it is empty in a step without a run, too
}

void RecordMonitor::push(const Run& run, Record::Kind kind) {
  if (!is_open_at_last(run)) return;
  queue_->push([&](Record& record) {
    collector_.collect(run, kind, record);
    if (kind == Record::Kind::step) add_to_step(run, record);
  });
}

void RecordMonitor::end(const Run& run, bool has_failed) {
  next_try_ = {};
  if (queue_) queue_->drain();  // so that its last record is not dropped
  push(run, Record::Kind::end);
  if (waits_for_room_) warn("records that are missing, since there was no room until the end: ", missing_);
  if (!queue_) return;  // or the run failed before RunBegin
  queue_->drain();
  try {
    sink_->end(run, has_failed);
  } catch (const std::system_error& error) {
    warn(error.what(), "; what it says about the end of the run is missing");
  }
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
