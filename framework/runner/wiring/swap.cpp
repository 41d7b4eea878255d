#include "swap.h"

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "common/config/config.h"
#include "core/process_state.h"

namespace vernier {

namespace {

void refuse_other_roles(const Table& roles) {
  const auto& known = swappable_roles();
  for (const auto& [role, table] : roles) {
    if (std::ranges::find(known, role) != known.end()) continue;
    const auto near = nearest(role, known);
    refuse(table.where + ": `" + role + "` cannot be swapped while a run runs; " +
           (near.empty() ? "precision, scaler, accumulation, optimizer and checkpoint can"
                         : "did you mean `" + near + "`?"));
  }
}

// Throws Error if a swap takes one of two roles that one plugin fills.
void refuse_half_of_a_plugin(const Wiring& wiring, const Table& roles) {
  const auto role_of = [](const Plugin* plugin) { return plugin->id().substr(0, plugin->id().find('/')); };
  for (const auto& [part, whole] : wiring.parts) {
    const auto of_part = role_of(part), of_whole = role_of(whole);
    if (roles.contains(of_part) == roles.contains(of_whole)) continue;
    const auto& missing = roles.contains(of_part) ? of_whole : of_part;
    refuse(whole->id() + " fills the role " + of_part + " too; swap `" + missing + "` with it");
  }
}

// The state before a swap, restored if the swap is refused. Nothing is copied: tensors are given other data, not
// overwritten.
class Before {
 public:
  Before(const Wiring& wiring, const Run& run) : bus_(wiring.bus), emulated_(run.emulated) {
    for (const auto& [tensor, dtype] : wiring.built) data_.emplace_back(tensor, tensor.detach());
    for (const auto& parameter : run.parameters)
      masters_.emplace_back(parameter.master, parameter.master.scalar_type());
  }
  void restore(Wiring& wiring, TrainerRun& run) {
    wiring.bus = std::move(bus_);
    run.emulated = emulated_;
    for (std::size_t i = 0; i < masters_.size(); ++i) run.parameters[i].master = masters_[i].first;
    for (auto& [tensor, data] : data_) tensor.set_data(data);
  }
  // For a policy that replaces itself: its weights are not rounded a second time.
  void restore_values() const {
    const torch::NoGradGuard no_grad;
    for (auto [tensor, data] : data_) tensor.copy_(data);
  }
  bool has_other_model() const {
    return std::ranges::any_of(data_,
                               [](const auto& each) { return each.first.scalar_type() != each.second.scalar_type(); });
  }
  // Returns true if the optimizer gets other tensors than before the swap, or other dtypes.
  bool has_other_masters(const Run& run) const {
    return !std::ranges::equal(masters_, run.parameters, [](const auto& before, const Parameter& now) {
      return before.first.is_same(now.master) && before.second == now.master.scalar_type();
    });
  }

 private:
  Bus bus_;
  std::string emulated_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> data_;
  std::vector<std::pair<torch::Tensor, torch::ScalarType>> masters_;
};

// Puts back all weights that the previous precision has not put back itself. The modules hold the tensors: they stay,
// and get other data.
void put_back(TrainerRun& run, const BuiltModel& built) {
  std::map<const c10::TensorImpl*, torch::Tensor> masters;
  for (auto& parameter : run.parameters) {
    if (!parameter.master.is_same(parameter.model)) masters[parameter.model.unsafeGetTensorImpl()] = parameter.master;
    parameter.master = parameter.model;
  }
  for (auto [tensor, dtype] : built) {
    const auto master = masters.find(tensor.unsafeGetTensorImpl());
    if (master == masters.end() && tensor.scalar_type() == dtype) continue;
    tensor.set_data((master == masters.end() ? tensor : master->second).detach().to(dtype));
  }
}

void drop_gradients(TrainerRun& run) {
  for (auto& parameter : run.parameters) {
    parameter.model.mutable_grad().reset();
    parameter.master.mutable_grad().reset();
  }
}

// A plugin takes over the entries that its own save() also has, by name, shape and dtype. A plugin from the same table
// takes all, as on resume. So does an optimizer of the same name, because its state does not exist before its first
// step.
void hand_over(const State& saved, Plugin& to, bool all) {
  State state = to.save();
  bool is_any = false;
  for (const auto& [name, tensor] : saved.tensors) {
    const auto own = state.tensors.find(name);
    const bool is_known = own != state.tensors.end() && own->second.sizes() == tensor.sizes() &&
                          own->second.scalar_type() == tensor.scalar_type();
    if (all || is_known) state.tensors[name] = tensor;
    is_any = is_any || all || is_known;
  }
  if (is_any) to.load(state);
}

// A plugin that takes over a role. `made` has the new plugin, and the old one while the new one is in the wiring.
struct Takeover {
  std::string role;
  Made made;
  Plugin* next = made.plugin.get();
  std::string place = made.table.where;
};

std::vector<Takeover> make_all(const Wiring& wiring, const Table& roles) {
  std::vector<Takeover> takeovers;
  for (const auto& role : swappable_roles()) {
    const auto table = roles.find(role);
    if (table == roles.end()) continue;
    takeovers.push_back({role, make(wiring.host, role, table->second)});
    if (role != Checkpoint::role || takeovers.back().next->id() == wiring.checkpoint->id()) continue;
    refuse(table->second.where + ": " + wiring.checkpoint->id() + " cannot become " + takeovers.back().next->id() +
           " while the run runs, because --resume reads the checkpoints of the plugin that the configuration names; " +
           "swap the options of " + wiring.checkpoint->id() + ", or start a new run");
  }
  return takeovers;
}

// Exchanges the plugins of the takeovers with those in the wiring. A second call undoes that.
void swap_places(Wiring& wiring, std::vector<Takeover>& takeovers) {
  for (auto& takeover : takeovers) wiring.swap_in(takeover.role, takeover.made);
}

void take_over(Wiring& wiring, TrainerRun& run, const Takeover& takeover) {
  Plugin& old = *takeover.made.plugin;
  try {
    const State saved = old.save();
    if (takeover.role == Precision::role) {
      static_cast<const Precision&>(old).release(run);
      put_back(run, wiring.built);
    }
    const PluginCall call(takeover.next->id(), "as it took over");
    HostApi::prepare(*takeover.next, run);
    if (takeover.role == Precision::role) run.emulated = wiring.precision->emulated();
    HostApi::declare(run.metric_infos, takeover.next->metrics(), takeover.next->id());
    takeover.next->check(run);
    const bool takes_all = takeover.role == Optimizer::role
                               ? old.id() == takeover.next->id()
                               : is_same(takeover.made.table, wiring.table_of(*takeover.next));
    hand_over(saved, *takeover.next, takes_all);
  } catch (...) {
    const auto& id = takeover.next->id();
    try {
      rethrow_naming(id, " as it took over from " + old.id(), Error::Kind::training, takeover.place);
    } catch (const Error& error) {
      if (error.who() != id || !error.place().empty() || takeover.place.empty()) throw;
      std::throw_with_nested(Error(takeover.place + ": " + error.what(), error.kind(), id, takeover.place));
    }
  }
}

}  // namespace

BuiltModel built_model(const torch::nn::Module& model) {
  BuiltModel built;
  for (const auto& tensor : model.parameters()) built.emplace_back(tensor, tensor.scalar_type());
  for (const auto& tensor : model.buffers()) built.emplace_back(tensor, tensor.scalar_type());
  return built;
}

void try_swap(const Wiring& wiring, const Table& roles) {
  refuse_other_roles(roles);
  (void)make_all(wiring, roles);
}

void swap(Wiring& wiring, TrainerRun& run, const Table& roles) {
  refuse_other_roles(roles);
  refuse_half_of_a_plugin(wiring, roles);
  const auto as_in_prepare =
      c10::make_scope_exit([&, now = std::exchange(run.moment, RunFacts::Moment::any)] { run.moment = now; });
  auto takeovers = make_all(wiring, roles);
  const std::size_t asked = takeovers.size();
  Before before(wiring, run);
  const auto make_again = [&](const std::string& role, const Plugin& plugin) {
    if (use_of(wiring.table_of(plugin)).empty()) {
      refuse(plugin.id() + " is an object of the program, and cannot be made anew for other weights; give [" + role +
             "] a table, or keep the precision");
    }
    auto& again = takeovers.emplace_back(Takeover{role, make(wiring.host, role, wiring.table_of(plugin))});
    wiring.swap_in(again.role, again.made);
    HostApi::replace(wiring.bus, *again.made.plugin, *again.next);
    take_over(wiring, run, again);
  };
  swap_places(wiring, takeovers);
  try {
    for (const auto& takeover : takeovers) HostApi::replace(wiring.bus, *takeover.made.plugin, *takeover.next);
    wiring.refuse_contradictions();  // listeners to gradients contradict an optimizer that frees gradients
    drop_gradients(run);
    for (const auto& takeover : takeovers) {
      take_over(wiring, run, takeover);
      const bool is_policy = takeover.role == Precision::role;
      if (is_policy && is_same(takeover.made.table, wiring.table_of(*takeover.next))) before.restore_values();
    }
    if (roles.count(Scaler::role) == 0 && before.has_other_model()) make_again(Scaler::role, *wiring.scaler);
    if (roles.count(Optimizer::role) == 0 && before.has_other_masters(run)) {
      make_again(Optimizer::role, *wiring.optimizer);
    }
  } catch (...) {
    swap_places(wiring, takeovers);
    before.restore(wiring, run);
    throw;
  }
  for (std::size_t i = 0; i < asked; ++i) {
    const auto& [role, old, next, place] = takeovers[i];
    wiring.swaps.push_back({run.step, role, old.plugin->id(), next->id()});
  }
}

std::string text_of_swaps(const Wiring& wiring) {
  if (wiring.swaps.empty()) return "";
  Table tables;
  Array history;
  for (const auto& [step, role, from, to] : wiring.swaps) {
    history.push_back({Table{{"step", {step, ""}}, {"role", {role, ""}}, {"from", {from, ""}}, {"to", {to, ""}}}, ""});
  }
  for (const auto* plugin : wiring.plugins()) {
    const auto role = plugin->id().substr(0, plugin->id().find('/'));
    const bool was_swapped = std::ranges::any_of(wiring.swaps, [&](const auto& each) { return each.role == role; });
    if (was_swapped) tables[role] = wiring.table_of(*plugin);
  }
  return to_toml({{"tables", {std::move(tables), ""}}, {"history", {std::move(history), ""}}});
}

void swap_again(Wiring& wiring, TrainerRun& run, const std::string& swaps) {
  const auto saved = parse_toml(swaps, "the checkpoint");
  swap(wiring, run, std::get<Table>(saved.at("tables").data));
  wiring.swaps.clear();
  for (const auto& entry : std::get<Array>(saved.at("history").data)) {
    const auto& each = std::get<Table>(entry.data);
    const auto text = [&](const char* key) { return std::get<std::string>(each.at(key).data); };
    wiring.swaps.push_back({std::get<std::int64_t>(each.at("step").data), text("role"), text("from"), text("to")});
  }
}

}  // namespace vernier
