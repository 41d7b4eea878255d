// The comparison that `vernier compare` makes, for a program with objects of its own: link vernier::trainer.
//
//   const auto comparison = vernier::compare({
//       .candidates = {{"fp32", {.files = {"run.toml"}}},
//                      {"bf16", {.files = {"run.toml"}, .sets = {"precision.use=bf16"}}}},
//       .prepare = [](vernier::Trainer& trainer) { trainer.use(std::make_unique<MyTask>()); }});
//   const auto& bf16 = comparison.of("bf16");
//   std::cout << *bf16.speedup() << " times as fast, " << *bf16.memory_savings() << " % of the memory saved\n";
//   const auto faster = bf16.against_baseline.at("samples_per_second");  // a ratio, and a verdict
//
// This header is not part of the plugin ABI.
#pragma once

#include <vernier/trainer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

struct CompareOptions {
  struct Candidate {
    std::string name;  // the name of its folder
    TrainerOptions options;
  };
  std::vector<Candidate> candidates;    // the first is the baseline; at least one, with different names
  int seeds = 3;                        // runs of each, with [run] seed from 1 on; a verdict needs 3
  std::string output = "runs/compare";  // gets <name>/seed-<n>, compare.json and compare.csv; must be new or empty
  std::function<void(Trainer&)> prepare = {};  // gives each trainer its objects: use() and add()
};

struct VERNIER_API Comparison {
  struct MedianRange {
    double median, low, high;  // over the seeds
  };
  // Against the baseline, over the seeds that both have.
  struct Difference {
    MedianRange value;    // a ratio for speed and memory, else a difference
    std::string verdict;  // "equal", "higher", "lower", "no difference shown", "not enough seeds"; "": is not judged
  };
  struct VERNIER_API Candidate {
    std::string name;
    std::string state;  // "done"; "2 of 3 done"; "refused", "error" and so on, as in summary.json
    std::string error;  // the error of the first run that was refused or failed
    // By name: samples_per_second, peak_memory_bytes, loss, validation_loss, overflows, updates_skipped, and the
    // metrics of validations. Those that no run has are left out. peak_memory_bytes counts the tensors of the run
    // alone, on its device, because all runs share this process; summary.json has the peak of the process.
    std::map<std::string, MedianRange> measures;
    std::map<std::string, Difference> against_baseline;  // empty for the first candidate
    // Medians against the baseline: how many times as fast, and how many percent of its peak memory are saved.
    std::optional<double> speedup() const, memory_savings() const;
  };
  std::vector<Candidate> candidates;
  std::string json;  // compare.json: docs/guides/compare.md

  const Candidate& of(const std::string& name) const;  // throws Error for a name that is none
};

// Trains every candidate with every seed, one run after another, in the order of `vernier compare`. A configuration
// that is refused, or a run that fails, is a result. All runs share this process, whose tensors are counted from here
// on. Throws Error if there is nothing to compare, a name cannot be a folder's, the output is not empty, or tasks
// differ.
VERNIER_API Comparison compare(const CompareOptions& options);

}  // namespace vernier
