// `vernier replay RUN`: trains a run again in memory, from the newest of its checkpoints before the step that is asked
// for. The same bits come, so any step of the run can be looked at. The run's files are only read.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <vernier/foreign_code.h>
#include "common/run_files.h"
#include "common/scratch_folder.h"
#include "run/prepared.h"

#include "step_recorder.h"
#include "wiring/host.h"

namespace vernier {

// Steps, counted from 1, both ends included.
struct Steps {
  std::int64_t first, last;
};
// "350" or "300..350"; throws Error.
Steps steps_of(const std::string& text);

class ReplayedRun {
 public:
  // bits: the steps have the bits that they had in the run. batches: they have the same batches, as steps of a run that
  // several processes trained have in one process too.
  enum class Needs { bits, batches };
  // folder: of a run of `vernier train`. Throws Error if it is none, or where it cannot have what is needed.
  ReplayedRun(const std::filesystem::path& folder, const Host& host, const std::atomic<int>& stop,
              Needs needs = Needs::bits);
  ReplayedRun(const ReplayedRun&) = delete;
  ReplayedRun& operator=(const ReplayedRun&) = delete;

  const std::string& name() const { return name_; }  // the folder, as it was given
  const RunFiles& files() const { return files_; }
  const Table& configuration() const { return config_; }
  // The losses of losses.jsonl that the run had in a step, the newest line of a step that came twice.
  std::optional<double> loss_of(std::int64_t step) const;
  void refuse_later_than(std::int64_t step) const;

  // Prepares the run anew, from its newest checkpoint that is older than the step. looks: see StepRecorder. Returns
  // the step after which it begins, 0 without a checkpoint.
  std::int64_t start_before(std::int64_t step, StepRecorder::Looks looks);
  // Trains a step. Throws Error if the run ends instead, or where a signal came. Valid until the next call.
  const StepView& advance();
  const StepView& go_to(std::int64_t step);  // advances until that step is done
  // For a step that was looked at as Look::capsule. replay_last() computes its gradients once more in a run of its own,
  // before callbacks change them, with the outputs of its layers. configuration_of_last() returns the configuration of
  // that run. replay_last() ends this replay.
  Replayed replay_last();
  Table configuration_of_last() const;
  Prepared& prepared() { return *prepared_; }
  void leave() { prepared_.reset(); }  // frees the memory of the run

 private:
  ForeignRun others_;
  std::string name_;
  RunFiles files_;
  const Host host_;
  const std::atomic<int>& stop_;
  Table config_;
  ScratchFolder scratch_;  // the run's folder, into which plugins write
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<Prepared> prepared_;
};

// "same bits: loss 2.5 is that of losses.jsonl", or how it differs. empty: the run kept no loss of the step.
std::string agreement(const ReplayedRun& replayed, const StepView& view);

// `vernier replay RUN --step N`: the ranges of each layer. sets: changes for the same step once more, beside it.
int replay_step(const std::string& folder, std::int64_t step, const std::vector<std::string>& sets, const Host& host,
                const std::atomic<int>& stop);
// `vernier replay RUN --step N..M --watch LAYER`: a line for each step.
int watch_layer(const std::string& folder, Steps steps, const std::string& layer, const Host& host,
                const std::atomic<int>& stop);
// `vernier replay RUN --against OTHER`: the first step, layer and operation in which two runs differ. Returns 0 if they
// are equal, else 4.
int replay_against(const std::string& folder, const std::string& other, const Host& host, const std::atomic<int>& stop);

}  // namespace vernier
