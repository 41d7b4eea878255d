// `vernier replay RUN --against OTHER`: the first step, layer and operation in which two runs differ.
//
// 1. The files of both bound the place: the newest checkpoint of a step in which the weights were still equal, and the
//    first step whose loss (losses.jsonl) or digests (monitor/digest) differ.
// 2. Both are trained again between the two bounds, with a digest of each step, to find the first that differs.
// 3. Both are trained again up to that step, which is traced.
#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>

#include "common/config/config.h"
#include "common/text/numbers.h"
#include "files/json.h"
#include "replayed_run.h"

namespace vernier {

namespace {

constexpr int runs_differ = 4;

struct Bounds {
  std::int64_t equal = 0;                 // the newest step that is known to have ended equally
  std::optional<std::int64_t> different;  // the first that is known to differ
  std::string seen;                       // the difference in that step
};

std::map<std::int64_t, std::string> checkpoints_of(const std::string& run) {
  std::map<std::int64_t, std::string> all;
  for (const auto& path : checkpoints_in(run + "/checkpoints")) {
    if (is_checkpoint(path)) all[step_of_checkpoint(path)] = path;
  }
  return all;
}

std::map<std::string, std::string> checksums_of_model(const std::string& checkpoint) {
  std::map<std::string, std::string> all;
  const auto manifest = read_manifest(checkpoint);
  for (const auto& [file, said] : manifest.files) {
    if (!file.starts_with("model")) continue;  // with distributed/zero3 each rank has written a file of its own
    for (const auto& [name, tensor] : said.tensors) all[name] = tensor.dtype + tensor.checksum;
  }
  return all;
}

// Equal weights in a common checkpoint: the runs were the same until there, as far as anybody can see.
void bound_by_checkpoints(const ReplayedRun& first, const ReplayedRun& second, Bounds& bounds) {
  const auto others = checkpoints_of(second.name());
  for (const auto& [step, path] : checkpoints_of(first.name())) {
    const auto other = others.find(step);
    if (other == others.end()) continue;
    if (checksums_of_model(path) == checksums_of_model(other->second)) {
      if (!bounds.different || step < *bounds.different) bounds.equal = std::max(bounds.equal, step);
    } else if (!bounds.different || step < *bounds.different) {
      bounds.different = step;
      bounds.seen = c10::str("the weights in the checkpoints of step ", step);
    }
  }
}

void bound_by_losses(const ReplayedRun& first, const ReplayedRun& second, Bounds& bounds) {
  const auto last = std::min(first.files().step, second.files().step);
  for (std::int64_t step = 1; step <= last; ++step) {
    const auto a = first.loss_of(step), b = second.loss_of(step);
    if (!a || !b || *a == *b || (std::isnan(*a) && std::isnan(*b))) continue;
    bounds.different = step;
    bounds.seen = c10::str("the loss of step ", step, " in losses.jsonl, ", print_number("%.9g", *a), " and ",
                           print_number("%.9g", *b));
    return;
  }
}

// By step. A run that went back has lines of one step twice: the last one counts.
std::map<std::int64_t, Json> digests_of(const ReplayedRun& replayed) {
  std::map<std::int64_t, Json> all;
  std::ifstream file(replayed.name() + "/digests.jsonl");
  for (std::string text; std::getline(file, text) && !file.eof();) {
    auto line = json_in<Json>(text);
    if (!line.is_object() || !line.contains("step")) continue;
    const auto step = line["step"].get<std::int64_t>();
    all[step] = std::move(line);
  }
  return all;
}

// "the gradients of h.0.ln_1.weight and 3 more"
std::string difference_of(const Json& a, const Json& b) {
  const auto fingerprint = [](const Json& line) {
    using Digests = std::map<std::string, std::string>;
    return Fingerprint{line.value("loss", ""), line.value("gradients", Digests()), line.value("weights", Digests())};
  };
  return fingerprint(a).difference(fingerprint(b));
}

void bound_by_digests(const ReplayedRun& first, const ReplayedRun& second, Bounds& bounds) {
  const auto others = digests_of(second);
  for (const auto& [step, line] : digests_of(first)) {
    const auto other = others.find(step);
    if (other == others.end()) continue;
    if (bounds.different && step > *bounds.different) return;
    const auto difference = difference_of(line, other->second);
    if (difference.empty()) {
      bounds.equal = std::max(bounds.equal, step);
      continue;
    }
    bounds.different = step;
    bounds.seen = c10::str(difference, " in step ", step, " of digests.jsonl");
    return;
  }
}

Bounds bounds_of(const ReplayedRun& first, const ReplayedRun& second) {
  Bounds bounds;
  bound_by_losses(first, second, bounds);
  bound_by_digests(first, second, bounds);
  bound_by_checkpoints(first, second, bounds);
  return bounds;
}

// A digest for each step after `begin`, up to `end`, or up to the first that is another than in `expected`. Prints a
// line where the run itself had other bits.
std::vector<std::string> digests_between(ReplayedRun& replayed, std::int64_t begin, std::int64_t end,
                                         const std::vector<std::string>& expected) {
  const auto looks = [](std::int64_t) { return Look::digests; };
  replayed.start_before(begin + 1, looks);
  if (replayed.prepared().run.step < begin) replayed.go_to(begin);
  std::vector<std::string> digests;
  bool is_printed = false;
  for (auto step = begin + 1; step <= end; ++step) {
    const auto& view = replayed.advance();
    digests.push_back(view.digest());
    const auto agrees = agreement(replayed, view);
    if (!is_printed && agrees.starts_with("other bits")) {
      std::cout << replayed.name() << ", step " << step << ": " << agrees << std::endl;
      is_printed = true;
    }
    const auto index = digests.size() - 1;
    if (index < expected.size() && expected[index] != digests[index]) break;
  }
  replayed.leave();
  return digests;
}

// "17 of 4096 values, by at most 3e-07; relative distance 4e-08"
std::string amount(const torch::Tensor& first, const torch::Tensor& second) {
  if (first.sizes() != second.sizes()) return c10::str("shape ", first.sizes(), " and ", second.sizes());
  const auto a = first.to(torch::kFloat64), b = second.to(torch::kFloat64);
  const auto is_other = a.ne(b).logical_and(a.isnan().logical_and(b.isnan()).logical_not());
  const auto difference = torch::where(a.isfinite().logical_and(b.isfinite()), (a - b).abs(), 0.0);
  return c10::str(is_other.sum().item<std::int64_t>(), " of ", a.numel(), " values differ, by at most ",
                  print_number("%.3g", difference.max().item<double>()), "; relative distance ",
                  print_number("%.3g", distance_of(first, second)));
}

bool is_equal(const torch::Tensor& first, const torch::Tensor& second) {
  return first.sizes() == second.sizes() &&
         first.eq(second).logical_or(first.isnan().logical_and(second.isnan())).all().item<bool>();
}

std::string describe(const LayerOutput& output) {
  return output.layer + ": " + output.operation +
         (output.micro_batch > 0 ? c10::str(" (micro-batch ", output.micro_batch + 1, ")") : "");
}

std::optional<std::string> difference_in_forward(const Replayed& first, const Replayed& second) {
  const auto count = std::min(first.outputs.size(), second.outputs.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto &a = first.outputs[i], &b = second.outputs[i];
    if (a.layer != b.layer || a.operation != b.operation) {
      return "forward, " + describe(a) + " in the first and " + describe(b) + " in the second";
    }
    if (a.range.dtype != b.range.dtype || !is_equal(a.value, b.value)) {
      const auto dtypes =
          a.range.dtype != b.range.dtype ? c10::str(" in ", a.range.dtype, " and in ", b.range.dtype) : std::string();
      return "forward, " + describe(a) + dtypes + ": " + amount(a.value, b.value);
    }
  }
  if (first.outputs.size() != second.outputs.size()) {
    const auto& longer = first.outputs.size() > count ? first.outputs : second.outputs;
    return "forward, " + describe(longer[count]) + " is in one of them only";
  }
  if (first.bits.loss != second.bits.loss) {
    return "forward, after the last layer: loss " + first.bits.loss + " and " + second.bits.loss;
  }
  return std::nullopt;
}

// Backward comes to the last parameters first.
std::optional<std::string> difference_in_backward(const Replayed& first, const Replayed& second) {
  for (std::size_t i = first.gradients.size(); i-- > 0;) {
    const auto& [name, gradient] = first.gradients[i];
    const auto other = std::ranges::find(second.gradients, name, [](const auto& each) { return each.first; });
    if (other == second.gradients.end()) return "backward, " + name + ": only the first has a gradient";
    if (!is_equal(gradient, other->second)) {
      return "backward, gradient of " + name + ": " + amount(gradient, other->second);
    }
  }
  return std::nullopt;
}

std::optional<std::string> difference_in_update(const StepView& first, const StepView& second,
                                                const std::string& optimizers) {
  if (first.is_skipped != second.is_skipped) {
    return std::string("update: it is skipped in the ") + (first.is_skipped ? "first" : "second") + " alone";
  }
  for (const auto& [name, weight] : first.weights) {
    const auto other = second.weights.find(name);
    if (other != second.weights.end() && !is_equal(weight, other->second)) {
      return "update of " + name + " by " + optimizers + ": " + amount(weight, other->second);
    }
  }
  return std::nullopt;
}

// One of the two runs in the step.
struct Side {
  StepView view;
  std::string optimizer;
  Replayed replayed;
};

std::string where_they_differ(const Side& first, const Side& second) {
  const auto by = first.optimizer + (first.optimizer == second.optimizer ? "" : " and " + second.optimizer);
  if (first.view.batch != second.view.batch) return "the batch: they train on other data, or in another order";
  if (const auto found = difference_in_forward(first.replayed, second.replayed)) return *found;
  if (const auto found = difference_in_backward(first.replayed, second.replayed)) return *found;
  if (const auto found = difference_in_update(first.view, second.view, by)) return *found;
  return first.view.bits.difference(second.view.bits) + ", after callbacks";
}

Side side_of(ReplayedRun& replayed, std::int64_t step) {
  replayed.start_before(step, [&](std::int64_t now) { return now == step ? Look::capsule : Look::digests; });
  Side side{replayed.go_to(step), replayed.prepared().wiring->optimizer->id(), {}};
  side.replayed = replayed.replay_last();
  return side;
}

// Kernels are chosen once in a process.
void refuse_other_kernels(const ReplayedRun& first, const ReplayedRun& second, const Bounds& bounds) {
  for (const char* key : {"matmul", "matmul_precision", "fused"}) {
    const auto value = [&](const ReplayedRun& replayed) {
      const auto run = replayed.configuration().find("run");
      if (run == replayed.configuration().end()) return std::string();
      const auto& table = std::get<Table>(run->second.data);
      const auto found = table.find(key);
      return found == table.end() ? std::string() : to_toml({{key, found->second}});
    };
    if (value(first) == value(second)) continue;
    refuse(c10::str("they differ in [run] ", key, ", which a process chooses once, so they cannot be replayed together",
                    bounds.different ? "; the first difference in their files: " + bounds.seen : ""));
  }
}

}  // namespace

int replay_against(const std::string& folder, const std::string& other, const Host& host,
                   const std::atomic<int>& stop) {
  ReplayedRun first(folder, host, stop), second(other, host, stop);
  const auto bounds = bounds_of(first, second);
  const auto last = std::min(first.files().step, second.files().step);
  if (!bounds.different) {
    std::cout << "no difference in " << last << " steps: " << first.name() << " and " << second.name()
              << " have the same losses, and the same weights wherever both have a checkpoint\n";
    return 0;
  }
  refuse_other_kernels(first, second, bounds);
  std::cout << "the first difference in their files: " << bounds.seen
            << "; the last step that is equal in them: " << (bounds.equal > 0 ? std::to_string(bounds.equal) : "none")
            << std::endl;
  const auto digests = digests_between(first, bounds.equal, *bounds.different, {});
  const auto others = digests_between(second, bounds.equal, *bounds.different, digests);
  const auto index = others.size() - 1;
  if (others[index] == digests[index]) {
    std::cout << "replayed here, steps " << bounds.equal + 1 << " to " << *bounds.different
              << " have the same bits in both: the difference came from where they were trained\n";
    return runs_differ;
  }
  const auto step = bounds.equal + static_cast<std::int64_t>(index) + 1;
  const auto a = side_of(first, step), b = side_of(second, step);
  std::cout << "first difference: step " << step << ", " << where_they_differ(a, b) << '\n';
  return runs_differ;
}

}  // namespace vernier
