#include "dry_run.h"

#include <ATen/ops/aminmax.h>
#include <torch/nn/module.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/linear_call.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "run/state/savepoint.h"
#include "run/state/snapshot.h"

namespace vernier {

namespace {

torch::Tensor first_tensor(const Values& values) {
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
    if (value.isTensorList() && !value.toTensorVector().empty()) return value.toTensorVector().front();
  }
  return {};
}

double largest_magnitude(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  if (tensor.numel() == 0) return 0;
  const auto [least, most] = at::aminmax(tensor);
  const double low = least.item<double>(), high = most.item<double>();
  return std::isnan(low) ? low : std::max(-low, high);
}

// Sees the operators of the first micro-batch.
class Observer final : public Interceptor {
 public:
  explicit Observer(const torch::nn::Module& model) : layers_(model) {}

  Values call(const Operation& operation, Values arguments) override {
    Seen seen;
    seen.op = operation.name();
    seen.layer = operation.layer();
    if (const auto input = first_tensor(arguments); input.defined()) {
      seen.input = input.scalar_type();
      seen.sizes = input.sizes().vec();
    }
    for (const auto& argument : arguments) {
      if (!argument.isTensor() || layers_.find(argument.toTensor()) < 0) continue;
      seen.weight = argument.toTensor().scalar_type();
      break;
    }
    if (const auto linear = linear_call(operation, arguments)) seen.weight_sizes = linear->weight.sizes().vec();
    is_random |= seen.op == "dropout" && arguments[1].toDouble() > 0 && arguments[2].toBool();
    is_random |= seen.op == "scaled_dot_product_attention" && arguments[4].toDouble() > 0;
    if (!seen.layer.empty()) after_ = seen.layer;
    seen.after = after_;
    auto results = operation.proceed(std::move(arguments));
    if (const auto output = first_tensor(results); output.defined()) {
      seen.output = output.scalar_type();
      seen.output_sizes = output.sizes().vec();
      if (seen.output == torch::kFloat16) seen.largest = largest_magnitude(output);
    }
    add(std::move(seen));
    return results;
  }

  bool changes(std::string_view) const override { return false; }
  Layers& layers() { return layers_; }
  std::vector<Seen> operations;
  bool is_random = false;

 private:
  void add(Seen seen) {
    const auto known = std::find_if(operations.begin(), operations.end(), [&](const Seen& each) {
      return each.op == seen.op && each.layer == seen.layer && each.after == seen.after && each.input == seen.input &&
             each.output == seen.output;
    });
    if (known == operations.end()) return operations.push_back(std::move(seen));
    if (!(known->largest >= seen.largest)) known->largest = seen.largest;  // NaN stays
  }

  Layers layers_;
  std::string after_;
};

// Listens to the micro-batches.
class DryRunListener final : public Plugin {
 public:
  DryRunListener(TrainerRun& run, DryRun& dry_run) : dry_run_(dry_run), observer_(*run.model) {
    set_id("check");
    std::vector<torch::Tensor> masters;
    for (const auto& parameter : run.parameters) masters.push_back(parameter.master);
    ledger_.emplace(*run.model, std::move(masters));
  }

  void attach(Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run&) { ledger_->follow(); });  // before callbacks that would
    bus.on(Event::BatchReady, [this](Run& run) {
      const bool is_first = dry_run_.micro_batch_samples == 0;
      dry_run_.samples = run.batch.samples;
      dry_run_.micro_batch_samples =
          is_first ? run.micro_batch.samples : std::min(dry_run_.micro_batch_samples, run.micro_batch.samples);
      if (is_first) ledger_->hold("batch", run.micro_batch.tensors);
      ledger_->begin_forward();
      if (is_first) observing_.emplace(observer_.layers(), observer_);
    });
    bus.on(Event::LossReady, [this](Run&) {
      observing_.reset();
      ledger_->begin_backward();
    });
  }

  void begin_update() { ledger_->begin_update(); }

  void end(TrainerRun& run) {
    dry_run_.memory = ledger_->stop();
    dry_run_.operations = std::move(observer_.operations);
    dry_run_.is_random = observer_.is_random;
    dry_run_.loss = run.loss.item<double>();
    dry_run_.overflowed = run.skip_update.defined() && run.skip_update.item<double>() != 0;
    dry_run_.on_gpu = run.device.is_cuda();
    dry_run_.is_low = std::any_of(dry_run_.operations.begin(), dry_run_.operations.end(),
                                  [](const Seen& seen) { return is_16_bit(seen.output); });
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (is_16_bit(parameter.master.scalar_type())) dry_run_.without_masters.push_back(parameter.name);
      if (!gradient.defined() || draft::is_elsewhere(gradient)) continue;
      dry_run_.gradients[parameter.name] = gradient.to(torch::kCPU, torch::kFloat32).clone();
    }
  }

 private:
  DryRun& dry_run_;
  Observer observer_;
  std::optional<MemoryLedger> ledger_;
  std::optional<Intercept> observing_;
};

// An optimizer allocates its state in its first step, even if that update is skipped. No weight changes.
void skipped_update(const CheckedOptimizer& optimizer, TrainerRun& run) {
  const auto skip = std::exchange(run.skip_update, torch::ones({}, torch::dtype(torch::kFloat32).device(run.device)));
  optimizer.step(run);
  run.skip_update = skip;
}

}  // namespace

DryRun dry_run(TrainingLoop& trainer, Wiring& wiring, TrainerRun& run) {
  DryRun seen;
  DryRunListener listener(run, seen);
  HostApi::attach(wiring.bus, listener, false);
  auto& calls = trainer.roles().calls;
  calls.attributed_in_step(run, [&] {
    trainer.step().step(run, Step::Until::gradients);
    run.gradients();
  });
  if (!wiring.optimizer->steps_in_backward()) {
    listener.begin_update();
    calls.attributed_in_step(run, [&] { skipped_update(trainer.roles().optimizer, run); });
  }
  listener.end(run);
  return seen;
}

std::optional<double> rehearse(TrainingLoop& trainer, TrainerRun& run) {
  auto& roles = trainer.roles();
  auto* task = roles.wiring.task.get();
  std::optional<double> validation_loss;
  const char* function = "validate()";
  roles.calls.attributed(run, [&] {
    try {
      if (const auto loss = trainer.validation().evaluate(run); loss.defined()) validation_loss = loss.item<double>();
      Scope scope;
      scope.plugins = {task};
      Savepoint before;
      function = "save()";
      before.take(run, scope);
      function = "next()";
      const auto batch = roles.task.next();
      function = "load()";
      before.restore(run);
      function = "next() after load()";
      const auto again = roles.task.next();
      if (digest(batch) == digest(again)) return;
    } catch (...) {
      rethrow_naming(roles.calls.called()->id(), std::string(" in ") + function, Error::Kind::training);
    }
    log(Level::warning, task->id(),
        "next() returns another batch after save() and load(), so a resumed run will differ from one that was never "
        "stopped; save() must return all that next() depends on, and load() restore it");
  });
  return validation_loss;
}

std::int64_t read_epoch(TrainingLoop& trainer, TrainerRun& run) {
  constexpr double most_seconds = 10;
  auto& roles = trainer.roles();
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t drawn = 0;
  roles.calls.attributed(run, [&] {
    const auto batches = roles.task->batches_per_epoch();
    if (batches == endless) return;
    for (; drawn < batches && seconds_since(begin) < most_seconds && !run.is_stopping(); ++drawn) roles.task->next();
  });
  return drawn;
}

}  // namespace vernier
