#include "repeat.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>
#include <vernier/error.h>

#include <algorithm>
#include <unordered_set>

namespace vernier {

namespace {

at::Generator generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

// Those of the roles that are called between a batch and its update, and of who listens there: what gradients are
// computed from, and what a snapshot of the step's beginning has.
std::vector<Plugin*> plugins_at_work(const Wiring& wiring) {
  std::vector<Plugin*> all = {wiring.task.get(), wiring.precision.get(), wiring.scaler.get(), wiring.accumulation.get(),
                              wiring.distributed.get()};
  for (const auto& callback : wiring.callbacks) {
    const auto listens = [&](Event event) { return wiring.bus.listens(*callback, event); };
    if (listens(Event::BatchReady) || listens(Event::LossReady) || listens(Event::GradientsReady)) {
      all.push_back(callback.get());
    }
  }
  return all;
}

// Weights stand still while gradients are computed: a precision's masters need no copy.
std::unordered_set<const c10::StorageImpl*> storages_of_weights(const Run& run) {
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const auto& parameter : run.parameters) {
    for (const auto& tensor : {parameter.model, parameter.owned}) {
      if (tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
    }
  }
  return storages;
}

// Made by State::put, or by the plugin for the State alone: not over memory that something else owns (from_blob).
bool is_of_nobody_else(const torch::Tensor& tensor) {
  if (tensor.use_count() != 1 || !tensor.has_storage() || tensor.storage().use_count() != 1) return false;
  const auto& memory = tensor.storage().data_ptr();
  return memory.get() == nullptr || memory.get_context() == memory.get();
}

torch::Tensor new_copy(const torch::Tensor& tensor) {
  return tensor.detach().clone();
}

class MutedMonitors {
 public:
  explicit MutedMonitors(Bus& bus) : bus_(bus) { bus_.mute_monitors(true); }
  ~MutedMonitors() { bus_.mute_monitors(false); }
  MutedMonitors(const MutedMonitors&) = delete;
  MutedMonitors& operator=(const MutedMonitors&) = delete;

 private:
  Bus& bus_;
};

}  // namespace

Repeat::Moment Repeat::take(const Run& run, const Wiring& wiring) const {
  auto plugins = plugins_at_work(wiring);
  std::erase_if(plugins, [&](auto* plugin) { return askers_.count(plugin) != 0; });
  return take(run, plugins, any_size, new_copy);
}

Repeat::Moment Repeat::take(const Run& run, const std::vector<Plugin*>& plugins, std::uint64_t largest,
                            const Copy& copy) {
  Moment moment;
  const auto stands = [&](const torch::Tensor& tensor) {
    if (tensor.nbytes() <= largest) return false;
    moment.standing.emplace_back(tensor, static_cast<std::int64_t>(tensor._version()));
    return true;
  };
  moment.cpu = generator(torch::kCPU).get_state();  // a copy
  if (!run.device.is_cpu()) moment.device = generator(run.device).get_state();
  for (const auto& buffer : run.model->buffers()) {
    if (!stands(buffer)) moment.buffers.emplace_back(buffer, copy(buffer));
  }
  std::unordered_set<const c10::StorageImpl*> weights;
  const auto is_weight = [&](const torch::Tensor& tensor) {
    if (weights.empty()) weights = storages_of_weights(run);
    return weights.count(tensor.storage().unsafeGetStorageImpl()) != 0;
  };
  for (auto* plugin : plugins) {
    auto state = plugin->save();
    for (auto& [name, tensor] : state.tensors) {
      if (is_of_nobody_else(tensor) || is_weight(tensor) || stands(tensor)) continue;
      tensor = copy(tensor);
    }
    moment.plugins.emplace_back(plugin, std::move(state));
  }
  return moment;
}

void Repeat::put(const Run& run, const Moment& moment) {
  const torch::NoGradGuard no_grad;
  generator(torch::kCPU).set_state(moment.cpu);
  if (moment.device.defined()) generator(run.device).set_state(moment.device);
  for (const auto& [live, kept] : moment.buffers) live.copy_(kept);
  for (const auto& [plugin, state] : moment.plugins) plugin->load(state);
}

std::vector<std::int64_t> Repeat::versions(const Run& run) {
  std::vector<std::int64_t> all;
  all.reserve(run.parameters.size());
  for (const auto& parameter : run.parameters) {
    const auto& gradient = parameter.owned.grad();
    all.push_back(gradient.defined() ? static_cast<std::int64_t>(gradient._version()) : -1);
  }
  return all;
}

void Repeat::keep(const Run& run, const Wiring& wiring) {
  kept_ = take(run, wiring);
  versions_.clear();
}

// Plugins may keep and change the tensors that they were given: the next time needs others.
void Repeat::again(const Run& run, const Wiring& wiring) {
  put(run, kept_);
  kept_ = take(run, wiring);
}

bool Repeat::run(Run& run, Wiring& wiring, const std::function<void()>& begin,
                 const std::function<void()>& compute, const std::function<void()>& end) {
  if (versions_.empty()) throw Error("a step is repeated in GradientsReady, by who asked for keep_for_repeat in prepare");
  const bool is_untouched = this->is_untouched(run);
  const auto now = take(run, wiring);
  const auto parameters = run.parameters;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> gradients;
  for (const auto& parameter : parameters) gradients.emplace_back(parameter.model.grad(), parameter.owned.grad());
  const auto piece = run.piece;
  const auto loss = run.loss, found_inf = run.found_inf, overflow = run.overflow, grad_scale = run.grad_scale, norm = run.scaled_norm,
             norms = run.scaled_norms;
  const auto factor = run.learning_rate_factor;
  const auto metrics = run.metrics;
  const auto notices = run.notices;
  const auto put_back = [&] {
    put(run, now);
    run.parameters = parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      run.parameters[i].model.mutable_grad() = gradients[i].first;
      run.parameters[i].owned.mutable_grad() = gradients[i].second;
    }
    run.piece = piece;
    run.piece_loss.reset();
    run.loss = loss;
    run.found_inf = found_inf;
    run.overflow = overflow;
    run.grad_scale = grad_scale;
    run.scaled_norm = norm;
    run.scaled_norms = norms;
    run.learning_rate_factor = factor;
    run.metrics = metrics;
    run.notices = notices;
  };
  try {
    put(run, kept_);
    begin();
    {
      const MutedMonitors muted(wiring.bus);
      compute();
    }
    end();
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return is_untouched;
}

// Monitors and checkpoints only look. Of the optimizer's memory there is nothing to undo unless it listens.
void Undo::keep(const Run& run, const Wiring& wiring) {
  constexpr std::uint64_t largest = 1 << 20;
  std::vector<Plugin*> plugins = {wiring.task.get(), wiring.precision.get(), wiring.scaler.get(), wiring.accumulation.get(),
                                  wiring.distributed.get()};
  const auto add_if_it_listens = [&](Plugin* plugin) {
    for (const auto event : {Event::EpochEnd, Event::EpochBegin, Event::StepBegin, Event::BatchReady, Event::LossReady,
                             Event::GradientsReady}) {
      if (wiring.bus.listens(*plugin, event)) return plugins.push_back(plugin);
    }
  };
  add_if_it_listens(wiring.optimizer.get());
  for (const auto& callback : wiring.callbacks) add_if_it_listens(callback.get());
  forget();  // not twice at once
  kept_ = Repeat::take(run, plugins, largest, new_copy);
  const auto stands = [this](const torch::Tensor& weight) {
    kept_.standing.emplace_back(weight, static_cast<std::int64_t>(weight._version()));
  };
  for (const auto& weight : run.model->parameters()) stands(weight);  // frozen ones too
  for (const auto& parameter : run.parameters) {
    if (!parameter.owned.is_same(parameter.model)) stands(parameter.owned);
  }
  drawn_ = run.drawn;
  epoch_ = run.epoch;
  loss_ = run.loss;
}

void Undo::put(Run& run) const {
  for (const auto& [tensor, version] : kept_.standing) {
    if (static_cast<std::int64_t>(tensor._version()) == version) continue;
    throw Error(c10::str("a tensor of shape ", tensor.sizes(), ", a weight or a large one, was written before the update"));
  }
  Repeat::put(run, kept_);
  run.drawn = drawn_;
  run.epoch = epoch_;
  run.loss = loss_;
}

// An optimizer may run passes of its own (Run::recompute), so what they change is kept too.
void UndoUpdate::keep(const Run& run, const Wiring& wiring, const Looks& looks, bool is_untouched) {
  plugins_ = plugins_at_work(wiring);
  std::erase_if(plugins_, [&](const Plugin* plugin) {
    return std::ranges::any_of(looks, [plugin](const auto& look) { return look.first == plugin; });
  });
  plugins_.push_back(wiring.optimizer.get());
  broken_ = nullptr;
  is_untouched_ = is_untouched;
  take(run);
}

void UndoUpdate::take(const Run& run) {
  next_ = 0;
  kept_ = Repeat::take(run, plugins_, Repeat::any_size, [this](const auto& live) { return copy(live); });
  weights_.clear();
  gradients_.clear();
  for (const auto& [name, model, owned] : run.parameters) {
    weights_.emplace_back(model, copy(model));
    if (!owned.is_same(model)) weights_.emplace_back(owned, copy(owned));
    const auto& gradient = owned.grad();
    gradients_.emplace_back(gradient, gradient.defined() ? copy(gradient) : gradient);
  }
  found_inf_ = run.found_inf;
  overflow_ = run.overflow;
  grad_scale_ = run.grad_scale;
  norm_ = run.scaled_norm;
  norms_ = run.scaled_norms;
}

torch::Tensor UndoUpdate::copy(const torch::Tensor& live) {
  const auto place = next_++;
  if (place >= memory_.size()) memory_.resize(place + 1);
  auto& kept = memory_[place];
  const bool fits = kept.defined() && kept.layout() == torch::kStrided && live.layout() == torch::kStrided &&
                    kept.scalar_type() == live.scalar_type() && kept.device() == live.device() &&
                    kept.sizes() == live.sizes() && kept.strides() == live.strides();
  if (!fits) return kept = new_copy(live);
  const torch::NoGradGuard no_grad;
  return kept.copy_(live);
}

// A weight that has no memory between steps gets it back for this update. Who is given the copies may keep them.
void UndoUpdate::put(Run& run) {
  const torch::NoGradGuard no_grad;
  memory_.clear();
  for (const auto& [live, kept] : weights_) {
    auto same = live;
    live.nbytes() > live.storage().nbytes() ? same.set_data(kept) : void(same.copy_(kept));
  }
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    const auto& [live, kept] = gradients_[i];
    run.parameters[i].owned.mutable_grad() = live.defined() ? live.copy_(kept) : live;
  }
  Repeat::put(run, kept_);
  run.found_inf = found_inf_;
  run.overflow = overflow_;
  run.grad_scale = grad_scale_;
  run.scaled_norm = norm_;
  run.scaled_norms = norms_;
}

void UndoUpdate::run(Run& run, Wiring& wiring, Repeat& repeat, const std::function<void()>& begin,
                     const std::function<void()>& apply, const std::function<void()>& end) {
  const auto or_break = [this](const std::function<void()>& body) {
    try {
      body();
    } catch (...) {
      broken_ = std::current_exception();
      throw;
    }
  };
  or_break([&] { put(run); });
  if (is_untouched_) repeat.mark(run);
  const auto metrics = run.metrics;
  const auto notices = run.notices;
  std::exception_ptr trouble;
  bool is_kept = false;
  try {
    take(run);
    is_kept = true;
    const MutedMonitors muted(wiring.bus);
    begin();
    apply();
    end();
  } catch (...) {
    trouble = std::current_exception();
  }
  or_break([&] {
    if (is_kept) put(run);
    run.metrics = metrics;
    run.notices = notices;
    run.found_inf = torch::ones({}, torch::dtype(torch::kFloat32).device(run.device));
    apply();
  });
  if (trouble) std::rethrow_exception(trouble);
}

void UndoUpdate::forget() {
  kept_ = {};
  weights_.clear();
  gradients_.clear();
}

}  // namespace vernier
