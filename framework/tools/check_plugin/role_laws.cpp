// The laws of single roles.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/copy.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "laws.h"
#include "run/state/snapshot.h"
#include "trial.h"

namespace vernier {

namespace {

std::vector<std::string> draw(Task& task, int count) {
  std::vector<std::string> digests;
  for (int i = 0; i < count; ++i) digests.push_back(digest(task.next()));
  return digests;
}

std::string digest_of_masters(const Run& run) {
  Tensors masters;
  for (const auto& parameter : run.parameters) masters[parameter.name] = parameter.master.detach();
  return digest(masters);
}

void expect_same_batches(const std::vector<std::string>& expected, const std::vector<std::string>& drawn,
                         const std::string& where) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (drawn[i] == expected[i]) continue;
    throw Error(c10::str(where, " next() returns another batch than the run that went on, first in call ", i + 1,
                         "; save() must return all that next() depends on, and load() restore it"));
  }
}

}  // namespace

void check_task_loader(const Subject& subject) {
  Trial trial(subject.host, subject.config()), fresh(subject.host, subject.config());
  auto& task = *trial.wiring().task;
  if (task.batches_per_epoch() < 1) throw Error(c10::str("batches_per_epoch() is ", task.batches_per_epoch()));
  trial.prepared().trainer.validation().evaluate(trial.run(), [&] { return task.validate(trial.run()); });
  draw(task, 3);
  const auto state = clone_of(task.save());
  RandomState random;  // a checkpoint has it too
  random.take(torch::kCPU);
  const auto load = [&](Task& into) {
    into.load(state);
    random.restore(torch::kCPU);
  };
  const auto expected = draw(task, 10);
  load(*fresh.wiring().task);
  expect_same_batches(expected, draw(*fresh.wiring().task, 10), "after load() into a fresh plugin");
  load(task);
  expect_same_batches(expected, draw(task, 10), "after load() into the plugin that saved");
}

namespace {

// The gradients and losses of each step of a run whose weights never change; undefined where the scaler found inf or
// NaN.
struct Gradients {
  std::vector<torch::Tensor> of_step;
  std::vector<double> losses;
  bool scales = false, saw_infinity = false;
};

// The modules that are put into evaluation mode: none, nn::Dropout and nn::BatchNorm, or all.
enum class Evaluates { nothing, draws, all };

void set_mode(torch::nn::Module& model, Evaluates which) {
  for (const auto& module : model.modules()) {
    const auto name = module->name();
    const bool draws = name.find("Dropout") != std::string::npos || name.find("BatchNorm") != std::string::npos;
    if (which == Evaluates::all || (which == Evaluates::draws && draws)) module->eval();
  }
}

// infinite_in: the step in which the loss is infinite; 0: none.
Gradients gradients_of(const Host& host, Table config, std::int64_t infinite_in = 0,
                       Evaluates evaluates = Evaluates::nothing) {
  Gradients seen;
  config.erase(Precision::role);  // in float32 both are the same but for rounding
  Trial trial(host, std::move(config));
  seen.scales = trial.wiring().scaler->scales();
  trial.on(Event::StepBegin, [&](Run& run) { set_mode(*run.model, evaluates); });
  trial.on(Event::LossReady, [&](Run& run) {
    if (run.step + 1 != infinite_in) return;
    run.micro_batch_loss = run.micro_batch_loss * std::numeric_limits<float>::infinity();
  });
  trial.on(Event::GradientsReady, [&](Run& run) {
    const bool overflowed = run.found_inf.defined() && run.found_inf.item<double>() != 0;
    if (run.step + 1 == infinite_in) seen.saw_infinity = overflowed;
    std::vector<torch::Tensor> parts;
    for (const auto& gradient : run.gradients()) parts.push_back(gradient.detach().flatten().to(torch::kFloat64));
    seen.of_step.push_back(overflowed ? torch::Tensor() : torch::cat(parts).clone());
    seen.losses.push_back(run.loss.item<double>());
    run.skip_when(torch::ones({}));
  });
  trial.train();
  return seen;
}

Table in_micro_batches(const Table& config, int count) {
  return with_sets(config, {"accumulation.use=fixed", "accumulation.micro_batches=" + std::to_string(count)});
}

// By how much of its norm the second differs.
double distance(const torch::Tensor& first, const torch::Tensor& second) {
  return ((second - first).norm() / first.norm()).item<double>();
}

}  // namespace

namespace {

std::string difference_in_parts(const Subject& subject, Evaluates evaluates) {
  constexpr double allowed = 1e-3;
  const auto config = with_sets(subject.config(), {"run.steps=3", "run.validate_every=0", "scaler.use=none"});
  const auto whole = gradients_of(subject.host, in_micro_batches(config, 1), 0, evaluates);
  const auto parts =
      unless_declined(subject, [&] { return gradients_of(subject.host, in_micro_batches(config, 3), 0, evaluates); });
  for (std::size_t i = 0; i < std::min(whole.losses.size(), parts.losses.size()); ++i) {
    const double loss = whole.losses[i], other = parts.losses[i];
    const double off = distance(whole.of_step[i], parts.of_step[i]);
    if (std::abs(other - loss) <= allowed * std::abs(loss) && off <= allowed) continue;
    return c10::str("in step ", i + 1, " the loss is ", loss, " in one micro-batch and ", other,
                    " in three, and the gradients are ", off, " of their norm apart; loss() must be a mean over ",
                    "the samples, or weight_of() say what else it is a mean over");
  }
  return "";
}

}  // namespace

// Neither dropout nor a scaler, since both may differ in another number of micro-batches. A forward that asks for the
// model's mode may be another one in evaluation: then in training mode, but for the modules of LibTorch that draw.
void check_task_parts(const Subject& subject) {
  std::string wrong;
  try {
    wrong = difference_in_parts(subject, Evaluates::all);
  } catch (const LawDeclined&) {
    throw;
  } catch (...) {
    wrong = caught().message;
  }
  if (wrong.empty()) return;
  if (!difference_in_parts(subject, Evaluates::draws).empty()) throw Error(wrong);
}

// In micro-batches, all of which must have one scale.
void check_scaler(const Subject& subject) {
  constexpr double allowed = 1e-5;
  const auto of = [&](const Table& config, std::int64_t infinite_in) {
    return gradients_of(subject.host, in_micro_batches(config, 3), infinite_in);
  };
  const auto plain = of(subject.config_without(), 0), scaled = of(subject.config(), 0);
  int compared = 0;
  for (std::size_t i = 0; i < scaled.of_step.size(); ++i) {
    if (!scaled.of_step[i].defined()) continue;
    const double error = distance(plain.of_step[i], scaled.of_step[i]);
    compared += 1;
    if (error <= allowed) continue;
    throw Error(c10::str("in step ", i + 1, " the gradients after unscale() are ", error,
                         " of their norm off those of scaler/none; unscale() must divide by what scale() multiplied "
                         "with, the same in all micro-batches of a step, or set run.grad_scale to it"));
  }
  if (compared == 0) throw Error("run.found_inf is set in every step of a run whose gradients are finite");
  const auto infinite = of(subject.config(), 5);
  if (infinite.scales && !infinite.saw_infinity) {
    throw Error("in step 5 the loss is infinite, and unscale() does not set run.found_inf");
  }
}

namespace {

// The loss and the gradients of the whole batch in one pass, beside those of the step.
std::string difference_of_whole(Run& run, Task& task) {
  constexpr double allowed = 1e-3;
  std::vector<torch::Tensor> weights, gradients;
  for (const auto& each : run.parameters) {
    if (each.model.grad().defined()) weights.push_back(each.model), gradients.push_back(each.model.grad());
  }
  run.gradients();  // divided in memory
  const at::AutoGradMode with_gradients(true);
  const auto loss = task.loss(run.batch.to(run.device));
  const auto whole = torch::autograd::grad({loss}, weights, {}, {}, false, /*allow_unused=*/true);
  double off = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].defined() && whole[i].norm().item<double>() > 0) off = std::max(off, distance(whole[i], gradients[i]));
  }
  const double one = loss.item<double>(), of_step = run.loss.item<double>();
  if (off <= allowed && std::abs(one - of_step) <= allowed * std::abs(one)) return "";
  return c10::str("in step ", run.step + 1, " the loss is ", of_step, ", and that of its whole batch in one pass ", one,
                  "; the gradients are up to ", off,
                  " of their norm apart; a micro-batch counts by its samples, or by ",
                  "the `weight` that split() gives each of them");
}

}  // namespace

void check_accumulation_mean(const Subject& subject) {
  auto config = with_sets(subject.config(), {"scaler.use=none", "run.validate_every=0"});
  config.erase(Precision::role);
  Trial trial(subject.host, std::move(config));
  std::string wrong;
  trial.on(Event::StepBegin, [&](Run& run) { run.model->eval(); });  // without dropout
  trial.on(Event::GradientsReady, [&](Run& run) {
    if (wrong.empty()) wrong = difference_of_whole(run, *trial.wiring().task);
  });
  trial.train();
  if (!wrong.empty()) throw Error(wrong);
}

void check_accumulation(const Subject& subject) {
  Trial trial(subject.host, subject.config());
  std::vector<Batch> parts;
  std::string wrong;  // first: what a listener throws would be named after it
  bool leaves_out = false;
  trial.on(Event::StepBegin, [&](Run&) { parts.clear(); });
  trial.on(Event::BatchReady, [&](Run& run) {
    parts.push_back(run.micro_batch);
    leaves_out |= run.micro_batch.weight.has_value();
  });
  trial.on(Event::GradientsReady, [&](Run& run) {
    // Micro-batches that ran out of memory were computed again. Those without weight were left out.
    const auto count = static_cast<std::ptrdiff_t>(run.micro_batches);
    if (std::ssize(parts) > count) parts.erase(parts.begin(), parts.end() - count);
    if (leaves_out && std::ssize(parts) < count) return;
    const auto whole = Batch::concatenated(parts);
    if (digest(whole) == digest(run.batch) || !wrong.empty()) return;
    wrong = c10::str("in step ", run.step + 1, " its micro-batches, ", count, " of ", whole.samples,
                     " samples together, are not the batch; split() must return each sample once, in order");
  });
  trial.train();
  if (!wrong.empty()) throw Error(wrong);
}

void check_optimizer(const Subject& subject) {
  Trial trial(subject.host, subject.config());
  auto& optimizer = *trial.wiring().optimizer;
  if (optimizer.steps_in_backward()) throw LawSkipped("it steps in backward, where nothing can be skipped");
  const auto is_skipped_step = [](const Run& run) { return run.step == 4 || run.step == 5; };
  std::string weights, state, wrong;
  bool has_changed = false;
  trial.on(Event::LossReady, [&](Run& run) {  // one of the skipped gradients is infinite, and one is not
    if (run.step == 5) run.micro_batch_loss = run.micro_batch_loss * std::numeric_limits<float>::infinity();
  });
  trial.on(Event::GradientsReady, [&](Run& run) {
    weights = digest_of_masters(run);
    state = digest(optimizer.save().tensors);
    if (is_skipped_step(run)) run.skip_update = torch::ones({});
  });
  trial.on(Event::UpdateDone, [&](Run& run) {
    const bool is_same = digest_of_masters(run) == weights;
    has_changed |= !is_same;
    if (!is_skipped_step(run) || !wrong.empty()) return;
    const auto when = c10::str("in step ", run.step + 1, run.step == 5 ? ", whose gradients are infinite," : "",
                               " run.skip_update is 1, and step() changed ");
    if (digest(optimizer.save().tensors) != state) wrong = when + "what save() returns";
    if (!is_same) wrong = when + "weights";
  });
  trial.train();
  if (!wrong.empty()) throw Error(wrong + "; where it is not 0, step() must change nothing");
  if (!has_changed) throw Error("no step changes a weight");
}

namespace {

// How far the masters move in step 4, which has a factor of its own.
struct Moved {
  torch::Tensor by;      // movements of all masters, one after the other
  bool repeats = false;  // the optimizer computes the gradients of a step several times
};

Moved moved_at(const Subject& subject, double factor) {
  Trial trial(subject.host, with_sets(subject.config(), {"run.steps=4", "scaler.use=none"}));
  Moved moved;
  torch::Tensor before;
  std::int64_t batches = 0;
  const auto masters = [](const Run& run) {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : run.parameters) all.push_back(parameter.master.detach().flatten().to(torch::kFloat64));
    return torch::cat(all).clone();
  };
  trial.on(Event::StepBegin, [&](Run& run) {
    if (run.step != 3) return;
    run.learning_rate_factor = factor;
    before = masters(run);
    batches = 0;
  });
  trial.on(Event::BatchReady, [&](Run&) { batches += 1; });
  trial.on(Event::UpdateDone, [&](Run& run) {
    if (run.step != 3) return;
    moved.by = masters(run) - before;
    moved.repeats = batches > run.micro_batches;
  });
  trial.train();
  if (!moved.by.defined()) throw Error("the run ended before step 4");
  return moved;
}

}  // namespace

// An optimizer that searches along a line may choose its own steps.
void check_rate(const Subject& subject) {
  constexpr double factor = 1.0 / 1024;
  const auto full = moved_at(subject, 1), small = moved_at(subject, factor);
  const double ratio = (small.by.norm() / full.by.norm()).item<double>();
  if (ratio <= 32 * factor || (small.repeats && !torch::equal(full.by, small.by))) return;
  throw Error(c10::str("with run.learning_rate_factor 1/1024 in place of 1, step 4 moves the weights ", ratio,
                       " times as far; step() must multiply its learning rate by the factor of each step"));
}

void check_monitor(const Subject& subject) {
  Trial trial(subject.host, subject.config());
  const auto& monitor = trial.plugin(subject.id());
  const auto listens = [&] {
    int events = 0;
    for (int i = 0; i < event_count; ++i) events += trial.wiring().bus.listens(monitor, static_cast<Event>(i)) ? 1 : 0;
    return events;
  };
  const auto before = listens();
  trial.keep_losses();
  trial.train();
  if (listens() != before) {
    throw Error("one of its listeners threw, so it was detached; see the log of `vernier train run.toml`");
  }
  const auto what = difference(train(subject.host, subject.config_without()), trial.trained());
  if (!what.empty()) throw Error("with it " + what + "; a monitor must not change what the run computes");
}

}  // namespace vernier
