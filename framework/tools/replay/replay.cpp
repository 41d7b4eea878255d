#include "replay.h"

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>

#include "common/config/config.h"
#include "common/log.h"
#include "common/own_runs.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "run/prepared.h"
#include "run/state/snapshot.h"
#include "wiring/wiring.h"

namespace vernier {

namespace {

constexpr int bits_differ = 4;

// Traces the micro-batches.
class Tracing final : public Plugin {
 public:
  Tracing() { set_id("replay"); }
  void attach(Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) {
      if (!tracer) return;
      for (std::size_t i = 0; i < run.micro_batch.tensors.size(); ++i) {
        tracer->hold(c10::str("tensor ", i, " of the batch"), run.micro_batch.tensors[i]);
      }
      tracer->begin_forward();
    });
  }
  std::optional<NonFiniteTracer> tracer;
};

// The largest difference that rounding explains `depth` operations into the pass: errors of about epsilon that add up
// as a random walk. The factor is measured (docs/guides/flight-recorder.md).
double limit_of(double epsilon, std::size_t depth) {
  constexpr double factor = 2;
  return factor * epsilon * std::sqrt(static_cast<double>(depth));
}

void print_origin(const Replayed& replayed) {
  std::cout << (replayed.origin ? replayed.origin->text() : "loss and gradients are finite") << '\n';
}

std::string title_of(const Replayed& replayed) {
  return replayed.precision.substr(replayed.precision.find('/') + 1);
}

void print_side_by_side(const Replayed& first, const Replayed& second) {
  const auto rows = compare(first, second);
  const auto a = title_of(first), b = title_of(second) + (title_of(first) == title_of(second) ? " (changed)" : "");
  std::cout << "side by side: " << a << " loss " << first.bits.loss << ", " << b << " loss " << second.bits.loss
            << '\n';
  bool is_marked = false;
  std::vector<std::vector<std::string>> lines;
  for (const bool of_gradients : {false, true}) {
    const char* what = of_gradients ? "gradient of" : "activation of";
    lines.push_back({what, a + " amax", "rms", "", b + " amax", "rms", "", "distance", "limit", ""});
    for (const auto& row : rows) {
      if (row.is_gradient != of_gradients) continue;
      const bool is_first = row.is_beyond() && !is_marked;
      is_marked |= is_first;
      auto& line = lines.emplace_back(1, row.what);
      for (const auto& range : {row.first, row.second}) {
        line.push_back(print_number("%.3g", range.amax));
        line.push_back(print_number("%.3g", range.rms));
        line.push_back(range.is_finite() ? "" : c10::str(range.infs, " inf ", range.nans, " nan"));
      }
      line.push_back(print_number("%.2g", row.distance));
      line.push_back(print_number("%.2g", row.limit));
      line.emplace_back(is_first ? "<- the first beyond reason" : row.is_beyond() ? "beyond" : "");
    }
  }
  std::cout << aligned(lines);
  if (!is_marked) std::cout << "none differs beyond what rounding explains\n";
}

// Compares the replay with the repeat of the step, which equals the step unless the fault was transient.
int print_bits(const Capsule& capsule, const Replayed& replayed) {
  const auto difference = capsule.repeated.difference(replayed.bits);
  if (difference.empty()) {
    std::cout << "same bits: loss " << replayed.bits.loss << " and the gradients of " << replayed.bits.gradients.size()
              << " parameters are those of the run"
              << (capsule.is_transient ? "'s repeat; the step itself had others, because the fault was transient" : "")
              << '\n';
    return 0;
  }
  std::cout << "other bits: " << difference
            << (replayed.inexact.empty()
                    ? "; nothing that is known differs from the run: look for operations that are not "
                      "deterministic, or at the machine"
                    : "; for " + replayed.inexact)
            << '\n';
  return bits_differ;
}

// Divided by what they were scaled with, to be compared with those of a run without a scaler.
std::vector<std::pair<std::string, torch::Tensor>> unscaled_gradients(const Run& run) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& parameter : run.parameters) {
    const auto& gradient = parameter.master.grad();
    if (!gradient.defined()) continue;
    auto value = gradient.detach().to(torch::kCPU, torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
    if (run.grad_scale.defined()) value.div_(run.grad_scale.to(torch::kCPU));
    all.emplace_back(parameter.name, std::move(value));
  }
  return all;
}

// float16 beside a run without a loss scaler gets one, as with --mixed-precision fp16.
Table with_scaler(Table config, const std::vector<std::string>& sets, const Host& host) {
  const auto makes = [&]<class T>(const char* role, bool (T::*asks)() const) {
    const auto found = config.find(role);
    if (found == config.end()) return false;
    try {
      const auto made = make(host, role, found->second);
      return (dynamic_cast<const T&>(*made.plugin).*asks)();
    } catch (...) {
      return false;  // reported where the run is built
    }
  };
  const bool is_given = std::ranges::any_of(sets, [](const auto& set) { return set.starts_with("scaler.use"); });
  const bool lacks_one = makes(Precision::role, &Precision::needs_scaler) && !makes(Scaler::role, &Scaler::scales);
  if (!lacks_one || is_given) return config;
  std::cout
      << "float16 needs a loss scaler, and the run had none: scaler/dynamic is added; --set scaler.use=NAME takes "
         "another\n";
  return with_sets(std::move(config), {"scaler.use=dynamic"});
}

// A damaged capsule is a wrong argument of the user: the program ends as for a wrong configuration.
Capsule capsule_at(const std::string& path) try { return read_capsule(path); } catch (...) {
  throw Error(caught().message, Error::Kind::configuration);
}

}  // namespace

std::optional<NonFiniteOrigin> origin_of(const NonFiniteTracer& tracer, const Run& run) {
  std::vector<std::pair<std::string, torch::Tensor>> ends{{"loss", run.loss}};
  for (const auto& parameter : run.parameters) {
    if (const auto& gradient = parameter.master.grad(); gradient.defined()) ends.emplace_back(parameter.name, gradient);
  }
  return tracer.origin(ends);
}

double distance_of(const torch::Tensor& first, const torch::Tensor& second) {
  const auto a = first.to(torch::kFloat64), b = second.to(torch::kFloat64);
  const auto is_number = a.isfinite().logical_and(b.isfinite());
  const auto is_same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  if (!is_number.logical_or(is_same).all().item<bool>()) return HUGE_VAL;
  const auto error = torch::where(is_number, a - b, 0.0).norm().item<double>();
  return error == 0 ? 0 : error / torch::where(is_number, b, 0.0).norm().item<double>();
}

std::unique_ptr<Prepared> build_again(Table config, const std::string& path, bool resumes, std::int64_t threads,
                                      const Host& host, const std::atomic<int>& stop) try {
  return prepare(
      std::move(config), "replay", host, stop, [resumes](auto&&...) { return resumes; }, static_cast<int>(threads));
} catch (...) {
  const auto [text, kind] = caught(Error::Kind::configuration);
  throw Error(text + " (a replay builds the run of " + path + ": its files must be where they were, seen from here)",
              kind);
}

Table with_swaps(Table config, const State& state, const std::string& path) {
  if (!state.has("trainer/swaps")) return config;
  const auto saved = parse_toml(state.text("trainer/swaps"), path);
  for (const auto& [role, table] : std::get<Table>(saved.at("tables").data)) config.insert_or_assign(role, table);
  return config;
}

Table configuration_of(const Capsule& capsule, const std::string& path) {
  if (!capsule.state.has("run/toml")) {
    throw Error(path + ": has no configuration: its run was not one of `vernier train`", Error::Kind::configuration);
  }
  auto config = with_swaps(parse_toml(capsule.state.text("run/toml"), path), capsule.state, path);
  config.erase(Monitor::role);
  if (const auto run = config.find("run"); run != config.end()) {
    std::get<Table>(run->second.data).erase("memory_limit");  // tracing a step takes more memory than the step
  }
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), path}}}, path});
  return config;
}

namespace {

// Runs a step up to its gradients in a prepared run: of this batch, from a snapshot that was taken when it had come.
// begin: called when the run is as it was then. The snapshot is loaded twice, because plugins set at StepBegin what
// they do not save. The task's own memory is its place in the data, which may be gone: the batch is there.
void run_again(Prepared& prepared, const State& snapshot, const Batch& batch, const std::function<void()>& begin) {
  TrainerRun& run = prepared.run;
  TrainingLoop& trainer = prepared.trainer;
  auto& wiring = *prepared.wiring;
  auto plugins = wiring.plugins();
  try {
    wiring.task->load(snapshot.part("plugin/" + wiring.task->id()));
  } catch (...) {
    log(Level::error, wiring.task->id(),
        caught().message + " (the batch is the capsule's: it is replayed all the same)");
    std::erase(plugins, wiring.task.get());
  }
  restore_snapshot_quietly(snapshot, run, plugins);
  trainer.step().transaction().take_no_copies();
  trainer.step().batches().replay([&] {
    restore_snapshot_quietly(snapshot, run, plugins);
    begin();
    return batch;
  });
  const auto from_the_task = c10::make_scope_exit([&] { trainer.step().batches().replay({}); });
  trainer.roles().calls.attributed_in_step(run, [&] { trainer.step().step(run, Step::Until::gradients); });
}

}  // namespace

Replayed replay(Prepared& prepared, const Capsule& capsule, bool keep_outputs) {
  TrainerRun& run = prepared.run;
  Replayed replayed;
  replayed.precision = prepared.wiring->precision->id();
  replayed.inexact = inexact_by(capsule.state, run, prepared.wiring->plugins(), "");
  Tracing tracing;
  HostApi::attach(prepared.wiring->bus, tracing, false);
  run_again(prepared, capsule.state, capsule.batch, [&] { tracing.tracer.emplace(*run.model, keep_outputs); });
  {
    const at::DisableRecordFunctionGuard unrecorded;
    replayed.bits = fingerprint(run);
    if (keep_outputs) replayed.gradients = unscaled_gradients(run);
  }
  tracing.tracer->stop();
  replayed.outputs = tracing.tracer->outputs();
  replayed.operations = tracing.tracer->operations();
  replayed.epsilon = tracing.tracer->coarsest_epsilon();
  replayed.origin = origin_of(*tracing.tracer, run);
  // A weight that was bad before the step: the run has reported more about its origin than the step can show.
  const bool shows_weights = !replayed.origin || replayed.origin->phase == "update";
  if (shows_weights && capsule.origin && capsule.origin->phase == "update") replayed.origin = capsule.origin;
  return replayed;
}

std::vector<Compared> compare(const Replayed& first, const Replayed& second) {
  const double epsilon = std::max(first.epsilon, second.epsilon);
  std::vector<Compared> rows;
  std::map<std::pair<std::string, int>, std::vector<const LayerOutput*>> others;
  for (const auto& output : second.outputs) others[{output.layer, output.micro_batch}].push_back(&output);
  std::map<std::pair<std::string, int>, std::size_t> met;
  std::map<int, std::size_t> depths;  // by micro-batch
  for (const auto& output : first.outputs) {
    const auto& same = others[{output.layer, output.micro_batch}];
    const auto index = met[{output.layer, output.micro_batch}]++;
    if (index >= same.size() || same[index]->value.sizes() != output.value.sizes()) continue;
    Compared row;
    row.what = output.layer + (output.micro_batch > 0 ? c10::str(" (micro-batch ", output.micro_batch + 1, ")") : "");
    row.first = output.range;
    row.second = same[index]->range;
    row.distance = distance_of(output.value, same[index]->value);
    row.limit = limit_of(epsilon, ++depths[output.micro_batch]);
    rows.push_back(std::move(row));
  }
  std::size_t deepest = 0;
  for (const auto& [micro_batch, depth] : depths) deepest = std::max(deepest, depth);
  // Backward comes to the last layer first.
  for (std::size_t i = first.gradients.size(); i-- > 0;) {
    const auto& [name, gradient] = first.gradients[i];
    const auto found = std::ranges::find(second.gradients, name, [](const auto& each) { return each.first; });
    if (found == second.gradients.end() || found->second.sizes() != gradient.sizes()) continue;
    Compared row;
    row.what = name;
    row.is_gradient = true;
    row.first = range_of(gradient);
    row.second = range_of(found->second);
    row.distance = distance_of(gradient, found->second);
    row.limit = limit_of(epsilon, 2 * deepest);
    rows.push_back(std::move(row));
  }
  return rows;
}

void replay_beside(const Replayed& first, const Capsule& capsule, const Table& config, const std::string& path,
                   const std::vector<std::string>& sets, const Host& host, const std::atomic<int>& stop) {
  const auto other = with_scaler(with_sets(config, sets), sets, host);
  std::cout.flush();
  const auto prepared = build_again(other, path, true, capsule.state.integer("run/threads"), host, stop);
  const auto second = replay(*prepared, capsule, true);
  std::cout << title_of(second) << ", " << second.operations << " operations: ";
  print_origin(second);
  print_side_by_side(first, second);
}

int replay_capsule(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                   const std::atomic<int>& stop) {
  const ForeignRun others(foreign(path));
  const auto capsule = capsule_at(path);
  const auto config = configuration_of(capsule, path);
  const bool has_second = !sets.empty();
  set_log_level(static_cast<int>(Level::error));  // plugins reported the rest in the run
  Replayed first;
  {
    const auto prepared = build_again(config, path, true, capsule.state.integer("run/threads"), host, stop);
    std::cout << "step " << capsule.step << " of run " << prepared->run.name << ", kept for its "
              << (capsule.what == "loss" ? "loss, " + capsule.seen.loss : capsule.what) << "; " << capsule.cause
              << '\n';
    first = replay(*prepared, capsule, has_second);
  }
  std::cout << title_of(first) << ", " << first.operations << " operations: ";
  print_origin(first);
  const int status = print_bits(capsule, first);
  if (has_second) replay_beside(first, capsule, config, path, sets, host, stop);
  return status;
}

}  // namespace vernier
