// The base of monitors that write: the training thread only copies numbers, and a thread of the monitor's own writes
// them. All are written at each checkpoint, at the end of the run and when it fails. What open() makes gets them:
//
//   class Database final : public vernier::RecordSink {
//     void write(const vernier::Record& record) override {
//       for (const auto& [metric, value] : record.entries) insert(record.step, metric->name, value);
//     }
//   };
//   class Mine final : public vernier::RecordMonitor {
//     using RecordMonitor::RecordMonitor;  // reads the option `every`
//     std::unique_ptr<vernier::RecordSink> open(const vernier::Run& run, const vernier::State&) override {
//       return std::make_unique<Database>(run.output + "/metrics.db");
//     }
//   };
#pragma once

#include <vernier/callback.h>
#include <vernier/record_queue.h>

#include <chrono>
#include <memory>

namespace vernier {

// The destination of the records. All functions but the constructor are called on the writer's thread, unless they say
// otherwise.
class VERNIER_API RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void write(const Record& record) = 0;
  virtual void flush() {}  // sends to the disk the bytes that write() has kept
  // Training thread, while the writer rests: memory of the monitor, for a resumed run.
  virtual State save() const { return {}; }
  // Training thread, after the last record: the run has ended, or failed.
  virtual void end(const Run&, bool) {}
};

class VERNIER_API RecordMonitor : public Monitor {
 public:
  explicit RecordMonitor(Options& options);
  ~RecordMonitor() override;
  void attach(Bus& bus) override;
  // Called for each checkpoint: the records up to it must not be lost if the process is killed after it.
  State save() const override;
  void load(const State& state) override;
  bool set_every(std::int64_t steps) override {
    every_ = steps;
    return true;
  }

 protected:
  // At RunBegin, on the training thread. Where it throws std::system_error because the disk is full, it is called again
  // until there is room. saved: what save() returned in the run that is resumed; else empty.
  virtual std::unique_ptr<RecordSink> open(const Run& run, const State& saved) = 0;
  // Adds to the record of a step on the training thread.
  virtual void add_to_step(const Run&, Record&) {}

 private:
  void begin(const Run& run);
  bool is_open_at_last(const Run& run);
  void push(const Run& run, Record::Kind kind);
  void end(const Run& run, bool has_failed);

  std::int64_t every_;
  State saved_;
  std::chrono::steady_clock::time_point next_try_;
  std::int64_t missing_ = 0;  // records for which there was no room
  bool waits_for_room_ = false;
  Collector collector_;
  std::unique_ptr<RecordSink> sink_;
  std::unique_ptr<RecordQueue> queue_;  // its thread uses the sink and the collector's names
};

}  // namespace vernier
