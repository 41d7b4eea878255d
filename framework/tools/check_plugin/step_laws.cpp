// Laws of what a step does to the weights, and of what an evaluation leaves alone.
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/error.h>

#include <cmath>
#include <cstdlib>

#include "laws.h"
#include "run/state/snapshot.h"
#include "trial.h"

namespace vernier {

namespace {

torch::Tensor copy_of(const torch::Tensor& tensor) {
  return tensor.detach().clone();
}

bool has_numbers(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.count_nonzero().item<std::int64_t>() > 0;
}

// A parameter at some time of the run.
struct Weights {
  torch::Tensor best, model;
  static Weights of(const Parameter& parameter) {
    return {copy_of(parameter.best()).to(torch::kFloat64), copy_of(parameter.model)};
  }
  // Returns what has not changed since, though it must, or "". A small step may be lost in the model's 16 bits.
  std::string unchanged_in(const Parameter& now) const {
    const auto moved = (now.best().detach() - best).abs();
    if (!has_numbers(moved)) return now.name;
    const bool is_far = (moved > 0.02 * best.abs() + 1e-3).any().item<bool>();
    return is_far && torch::equal(model, now.model) ? "the model's " + now.name : "";
  }
};

// A parameter, as check_trains sees it during its run.
struct Watched {
  Weights start, middle;
  torch::Tensor before, gradient;  // `master` before the update, and the gradient that backward gave; or undefined
  bool had_gradient = false, was_judged = false;
};

// Each weight that gets a gradient moves, against it in the first step, up to the end, and into the model.
class Movement {
 public:
  explicit Movement(Trial& trial) {
    trial.on(Event::RunBegin, [this](Run& run) { begin(run); });
    trial.on_last(Event::BackwardDone, [this](const Run& run) { look_behind_backward(run); });
    trial.on_last(Event::GradientsReady, [this](const Run& run) { look_before_update(run); });
    trial.on_last(Event::UpdateDone, [this](const Run& run) { look_behind_update(run); });
  }

  std::string wrong(const Run& run) const {
    if (!wrong_.empty()) return wrong_;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const auto& parameter = run.parameters[i];
      const auto& each = watched_[i];
      if (parameter.frozen || !parameter.model.requires_grad()) continue;
      if (!each.had_gradient) return parameter.name + " never has a gradient";
      const auto start = each.start.unchanged_in(parameter), middle = each.middle.unchanged_in(parameter);
      if (!start.empty()) return start + " is at the end what it was at the beginning";
      if (!middle.empty()) return middle + " does not change any more in the second half of the run";
    }
    return "";
  }

 private:
  void begin(const Run& run) {
    for (const auto& each : run.parameters) watched_.push_back({Weights::of(each), Weights::of(each), {}, {}});
  }
  void look_behind_backward(const Run& run) {
    largest_ = 0;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      auto& each = watched_[i];
      const auto& gradient = run.parameters[i].model.grad();
      each.gradient = has_numbers(gradient) ? copy_of(gradient) : torch::Tensor();
      each.had_gradient |= each.gradient.defined();
      if (each.gradient.defined()) largest_ = std::max(largest_, each.gradient.norm().item<double>());
    }
  }
  void look_before_update(const Run& run) {
    const bool is_skipped = run.skip_update.defined() && run.skip_update.item<double>() != 0;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const auto& parameter = run.parameters[i];
      const bool is_judged = watched_[i].gradient.defined() && !is_skipped && !parameter.frozen;
      watched_[i].before = is_judged && parameter.has_memory() ? copy_of(parameter.master) : torch::Tensor();
      if (!is_judged || has_numbers(parameter.master.grad())) continue;
      say(c10::str(
          "in step ", run.step + 1, " backward gives ", parameter.name,
          " a gradient, and before the update it has none; let weights that are not to train not require one"));
    }
  }
  void look_behind_update(const Run& run) {
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const auto& parameter = run.parameters[i];
      auto& each = watched_[i];
      if (2 * run.step < run.steps) each.middle = Weights::of(parameter);
      if (!each.before.defined() || each.was_judged || !parameter.has_memory()) continue;
      const auto moved = (parameter.master.detach() - each.before).to(torch::kFloat64);
      const auto wide = each.gradient.to(torch::kFloat64);
      // The gradient of a bias before batch normalisation is rounding, and has no direction.
      if (!has_numbers(moved) || wide.norm().item<double>() < 1e-3 * largest_) continue;
      each.was_judged = true;
      const double cosine = ((moved * wide).sum() / (moved.norm() * wide.norm())).item<double>();
      if (cosine > 0.05) say(c10::str("in step ", run.step + 1, " ", parameter.name, " moves up its gradient"));
    }
  }
  void say(const std::string& text) {
    if (wrong_.empty()) wrong_ = text;
  }
  std::vector<Watched> watched_;
  std::string wrong_;
  double largest_ = 0;  // the norm of the largest gradient of this step
};

}  // namespace

void check_trains(const Subject& subject) {
  const std::pair<const char*, std::vector<std::string>> conditions[] = {
      {"", {}}, {"at O2: ", {"precision.use=bf16", "precision.level=O2"}}};
  for (const auto& [name, sets] : conditions) {
    if (!sets.empty() && subject.role_in_run() == Precision::role) continue;
    unless_declined(subject, [&, &when = name, &changes = sets] {
      Trial trial(subject.host, with_sets(subject.config(), changes));
      if (trial.wiring().optimizer->steps_in_backward()) throw LawSkipped("the optimizer frees gradients in backward");
      const Movement movement(trial);
      trial.train();
      const auto wrong = movement.wrong(trial.run());
      if (!wrong.empty()) throw Error(when + wrong);
    });
  }
}

namespace {

std::map<std::int64_t, std::string> losses_at_scale(const Subject& subject, const char* scale) {
  return train(subject.host, with_sets(subject.config(), {"scaler.use=static", std::string("scaler.scale=") + scale}))
      .losses;
}

}  // namespace

// The gradients of both are the same to the last bit: the scales are powers of two.
void check_other_scale(const Subject& subject) {
  constexpr double allowed = 1e-6;
  const auto plain = unless_declined(subject, [&] { return losses_at_scale(subject, "1"); });
  auto scaled = losses_at_scale(subject, "1024");
  for (const auto& [step, text] : plain) {
    const double loss = std::atof(text.c_str()), other = std::atof(scaled[step].c_str());
    if (scaled[step] == text || std::abs(other - loss) <= allowed * std::abs(loss)) continue;
    throw Error(c10::str("with a loss scale of 1024 in place of 1 the loss of step ", step, " is ", other, " and not ",
                         loss, "; gradients are scaled up to run.gradients(): call it before you read or change them, ",
                         "at GradientsReady, or divide by run.grad_scale"));
  }
}

namespace {

// The masters before and after step 4, in which the parameter of this name has no gradient.
std::pair<Tensors, Tensors> around_step(const Subject& subject, const std::string& without) {
  Trial trial(subject.host, with_sets(subject.config(), {"run.steps=4", "scaler.use=none"}));
  std::pair<Tensors, Tensors> masters;
  trial.on(Event::GradientsReady, [&](Run& run) {
    run.gradients();  // divided in memory
    for (const auto& each : run.parameters) {
      masters.first[each.name] = copy_of(each.master);
      if (run.step == 3 && each.name == without) each.master.mutable_grad().reset();
    }
  });
  trial.on(Event::UpdateDone, [&](Run& run) {
    for (const auto& each : run.parameters) masters.second[each.name] = copy_of(each.master);
  });
  trial.train();
  return masters;
}

}  // namespace

void check_updates_alone(const Subject& subject) {
  if (!Trial(subject.host, subject.config()).wiring().optimizer->updates_each_alone()) {
    throw LawSkipped("its updates_each_alone() is false");
  }
  const auto plain = around_step(subject, "").second;
  for (const auto& [without, unused] : plain) {
    const auto [before, after] = around_step(subject, without);
    for (const auto& [name, master] : after) {
      if (torch::equal(master, name == without ? before.at(name) : plain.at(name))) continue;
      throw Error("updates_each_alone() is true, and where " + without + " has no gradient, " +
                  (name == without ? "it changes all the same" : name + " gets another update"));
    }
  }
}

// Nothing is replaced that others read: what the step reports as its loss, and the task's batch.
void check_leaves_numbers(const Subject& subject) {
  std::map<std::int64_t, std::string> batches;
  {  // the run without the plugin
    Trial trial(subject.host, subject.config_without());
    trial.on_last(Event::StepEnd, [&](const Run& run) { batches[run.step] = digest(run.batch); });
    trial.train();
  }
  Trial trial(subject.host, subject.config());
  double sum = 0, weights = 0;
  std::int64_t parts = 0;
  std::string wrong;
  trial.on(Event::StepBegin, [&](Run&) { sum = weights = 0, parts = 0; });
  trial.on_last(Event::LossReady, [&](const Run& run) {
    if (parts++ >= run.micro_batches) return;  // a second pass
    const double weight = run.micro_batch.weight.value_or(static_cast<double>(run.micro_batch.samples));
    sum += weight * run.micro_batch_loss.item<double>();
    weights += weight;
  });
  trial.on_last(Event::StepEnd, [&](const Run& run) {
    const double loss = run.loss.item<double>(), mean = sum / weights;
    if (std::abs(loss - mean) > 1e-5 * std::abs(mean)) {
      wrong = c10::str("in step ", run.step, " run.loss is ", loss, ", and the mean of the micro-batches is ", mean,
                       "; a loss of another kind is a metric, or replaces run.micro_batch_loss at LossReady");
    } else if (batches.contains(run.step) && batches[run.step] != digest(run.batch)) {
      wrong = c10::str("in step ", run.step, " the numbers in run.batch are not the task's; put other tensors into ",
                       "run.micro_batch, because a batch may be computed again");
    }
  });
  trial.train();
  if (!wrong.empty()) throw Error(wrong);
}

namespace {

// The facts that an evaluation leaves as they were. The trainer itself puts modes and generators back.
StepFacts facts_of(const Run& run) {
  StepFacts facts;
  facts["the model, with its buffers, is"] = digest(*run.model);
  Tensors masters, gradients;
  for (const auto& each : run.parameters) {
    masters[each.name] = each.best().detach();
    for (const auto* tensor : {&each.model, &each.master}) {
      if (tensor->grad().defined()) gradients[each.name + (tensor == &each.model ? "" : "'")] = tensor->grad();
    }
  }
  facts["the optimizer's weights are"] = digest(masters);
  facts["the gradients are"] = digest(gradients);
  return facts;
}

// Evaluates the model. Returns the loss, or nothing; throws Error for what is wrong.
std::optional<double> evaluate(Trial& trial) {
  auto& run = trial.run();
  const auto before = facts_of(run);
  bool has_loss = false;
  std::string wrong;
  const auto in_evaluation = [&](const char* when) {
    for (const auto& module : run.model->modules()) {
      if (module->is_training()) wrong = std::string("the model is in training mode ") + when;
    }
    if (at::GradMode::is_enabled()) wrong = std::string("gradients are recorded ") + when;
  };
  const auto result = trial.prepared().trainer.validation().evaluate(run, [&] {
    in_evaluation("in an evaluation");
    auto loss = trial.wiring().task->validate(run);
    in_evaluation("after validate()");
    has_loss = loss.defined();
    return loss;
  });
  if (!wrong.empty()) throw Error(wrong);
  if (has_loss && !result.defined()) throw Error("evaluate() does not return the loss that body() returns");
  for (const auto& [name, fact] : facts_of(run)) {
    if (before.at(name) != fact) throw Error("after an evaluation " + name + " another one than before");
  }
  return result.defined() ? std::optional(result.item<double>()) : std::nullopt;
}

}  // namespace

void check_evaluation(const Subject& subject) {
  Trial trial(subject.host, subject.config());
  std::string wrong;
  bool is_evaluated = false;
  trial.on(Event::StepEnd, [&](Run& run) {
    if ((run.step != 3 && run.step != 8) || !wrong.empty()) return;
    try {
      const auto first = evaluate(trial), second = evaluate(trial);
      is_evaluated |= first.has_value();
      if (!first && run.measures && !run.measures->empty()) {
        throw Error("measures() says what a validation measures, and validate() returns nothing");
      }
      if (first != second)
        throw Error(c10::str("it returns ", first.value_or(NAN), ", and called again ", second.value_or(NAN)));
    } catch (...) {
      wrong = caught().message;
    }
  });
  trial.train();
  if (!wrong.empty()) throw Error(wrong);
  if (!is_evaluated) throw LawSkipped("its validate() returns nothing; hold out data with the plugin's options");
  if (subject.role == Callback::role) return;  // it may act at Validated
  const auto with = [&](const char* every) {
    return train(subject.host, with_sets(subject.config(), {std::string("run.validate_every=") + every}));
  };
  const auto what = difference(with("0"), with("3"));
  if (!what.empty()) throw Error("with a validation after each third step in place of none " + what);
}

}  // namespace vernier
