#include "optimizer_groups.h"

#include <vernier/host.h>
#include <vernier/parameter_groups.h>

#include <algorithm>

#include "core/process_state.h"

namespace vernier {

namespace {

// A group, in the order of the TOML. Of several that match a parameter, the last one holds.
struct Match {
  std::vector<std::string> patterns;
  std::size_t part = 0;  // the optimizer that has its parameters
  std::string place;
};

// One of the optimizers, and the run as it sees it: with its own parameters alone.
struct Part {
  MadePlugin made;
  std::unique_ptr<TrainerRun> run = {};
  std::vector<std::size_t> places = {};  // indices of its parameters in the run

  Optimizer& optimizer() const { return static_cast<Optimizer&>(*made.plugin); }
};

// Calls each optimizer with its own parameters. The state of part 1 is saved below "1/".
class OptimizerGroups final : public Optimizer {
 public:
  OptimizerGroups(std::vector<Part> parts, std::vector<Match> matches)
      : parts_(std::move(parts)), matches_(std::move(matches)) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      remember(std::to_string(i), parts_[i].made.plugin);
      if (!parts_[i].optimizer().steps_in_backward()) continue;
      parts_[i].made.options.refuse("in_backward",
                                    "needs one optimizer for all parameters; leave `use` out of the "
                                    "groups, or in_backward");
    }
  }

  void attach(Bus& bus) override {
    for (const auto& part : parts_) part.made.plugin->attach(bus);
  }
  Contradiction contradicts(const Plugin& other, const Bus& bus) const override {
    for (const auto& part : parts_) {
      if (auto found = part.made.plugin->contradicts(other, bus); !found.option.empty()) return found;
    }
    return {};
  }

  void prepare(Run& run) override {
    for (auto& part : parts_) part.places.clear(), part.run = std::make_unique<TrainerRun>();
    std::vector<std::size_t> part_of(run.parameters.size(), 0);
    for (const auto& match : matches_) {
      for (const auto i : parameters_named(run, match.patterns, match.place + ": `match`")) part_of[i] = match.part;
    }
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      auto& part = parts_[part_of[i]];
      part.places.push_back(i);
      part.run->parameters.push_back(run.parameters[i]);
    }
    for (auto& part : parts_) {
      if (part.places.empty()) {
        refuse(part.made.plugin->id() +
                   ": all its parameters are in groups of other optimizers; leave it out, or name "
                   "fewer of them",
               part.made.plugin->id());
      }
      show(part, run);
      HostApi::prepare(*part.made.plugin, *part.run);
      for (std::size_t i = 0; i < part.places.size(); ++i) {
        run.freeze(part.places[i], part.run->parameters[i].frozen);
      }
    }
  }
  void check(const Run& run) override {
    for (auto& part : parts_) {
      show(part, run);
      part.made.plugin->check(*part.run);
    }
  }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    auto whole = body;
    for (auto& part : parts_) {
      whole = [&part, &run, inner = std::move(whole)] {
        show(part, run);
        return part.made.plugin->evaluate(*part.run, inner);
      };
    }
    return whole();
  }

  void step(Run& run) override {
    for (auto& part : parts_) {
      show(part, run);
      const PluginCall call(part.made.plugin->id(), "in step");
      const auto others = gradients_of_others(part);
      part.optimizer().step(*part.run);
      if (gradients_of_others(part) != others) {
        refuse(part.made.plugin->id() + ": computes gradients anew in its step, which changes those of the other " +
                   "optimizers; give it all parameters, without `use` in the groups",
               part.made.plugin->id());
      }
      for (const auto* metric : part.run->metrics.set_now()) {
        const auto name = shown(part) + metric->name;
        if (const auto* number = std::get_if<double>(&metric->number)) run.metrics.set(name.c_str(), *number);
        if (const auto* tensor = std::get_if<torch::Tensor>(&metric->number)) run.metrics.set(name.c_str(), *tensor);
      }
      HostApi::clear(part.run->metrics);
      for (auto& notice : part.run->notices) run.notices.push_back(std::move(notice));
      part.run->notices.clear();
    }
  }
  bool divides_gradients() const override { return all_do(&Optimizer::divides_gradients); }
  bool updates_each_alone() const override { return all_do(&Optimizer::updates_each_alone); }

  std::vector<MetricInfo> metrics() const override {
    std::vector<MetricInfo> all;
    for (const auto& part : parts_) {
      for (auto info : part.made.plugin->metrics()) {
        info.name = shown(part) + info.name;
        all.push_back(std::move(info));
      }
    }
    return all;
  }

 private:
  bool all_do(bool (Optimizer::*answer)() const) const {
    return std::ranges::all_of(parts_, [&](const Part& part) { return (part.optimizer().*answer)(); });
  }
  // Before the names of a part's metrics: "" for [optimizer] itself, "muon/" for a group's.
  std::string shown(const Part& part) const {
    const auto& id = part.made.plugin->id();
    return &part == &parts_.front() ? "" : id.substr(id.find('/') + 1) + "/";
  }

  // The gradients of the parts other than this one, to see whether they change.
  std::vector<std::pair<const void*, std::uint32_t>> gradients_of_others(const Part& part) const {
    std::vector<std::pair<const void*, std::uint32_t>> all;
    for (const auto& other : parts_) {
      if (&other == &part) continue;
      for (const auto& parameter : other.run->parameters) {
        const auto& gradient = parameter.master.grad();
        all.emplace_back(gradient.unsafeGetTensorImpl(), gradient.defined() ? gradient._version() : 0);
      }
    }
    return all;
  }

  // Copies into the part's run the fields that an optimizer may read.
  static void show(Part& part, const Run& run) {
    auto& own = *part.run;
    own.name = run.name, own.output = run.output, own.device = run.device, own.seed = run.seed;
    own.model = run.model, own.control = run.control, own.quiet = run.quiet, own.steps = run.steps;
    own.results_are_late = run.results_are_late, own.validations = run.validations;
    static_cast<Counters&>(own) = {run.step,   run.updates,       run.epoch,       run.samples,
                                   run.tokens, run.batches_drawn, run.last_update, run.amp};
    own.batch = run.batch, own.micro_batch = run.micro_batch, own.loss = run.loss, own.norms = run.norms;
    own.found_inf = run.found_inf, own.skip_update = run.skip_update, own.grad_scale = run.grad_scale;
    own.learning_rate_factor = run.learning_rate_factor;
    for (std::size_t i = 0; i < part.places.size(); ++i) {
      const auto& parameter = run.parameters[part.places[i]];
      own.parameters[i].model = parameter.model, own.parameters[i].master = parameter.master;
      own.parameters[i].owned = parameter.owned;
    }
  }

  std::vector<Part> parts_;  // [optimizer] itself, then each group with `use`
  std::vector<Match> matches_;
};

// Reads `match` of a group, and takes it out of its table.
std::vector<std::string> taken_match(Table& table, const std::string& place) {
  Table match;
  if (auto entry = table.extract("match"); !entry.empty()) match.insert(std::move(entry));
  return Options("[[optimizer.group]]", std::move(match), place)
      .require<std::vector<std::string>>("match", "names of parameters, * for any text");
}

}  // namespace

MadePlugin make_optimizer(const Value& value, const std::function<MadePlugin(const Value&)>& make_one) {
  const auto* table = std::get_if<Table>(&value.data);
  const auto found = table != nullptr ? table->find("group") : Table::const_iterator();
  const auto* groups = table != nullptr && found != table->end() ? std::get_if<Array>(&found->second.data) : nullptr;
  const auto has_use = [](const Value& group) {
    const auto* own = std::get_if<Table>(&group.data);
    return own != nullptr && own->contains("use");
  };
  if (groups == nullptr || std::ranges::none_of(*groups, has_use)) return make_one(value);

  Table first = *table;
  Array plain;
  std::vector<Match> matches;
  std::vector<Value> others;
  for (const auto& group : *groups) {
    const auto* read = std::get_if<Table>(&group.data);
    if (read == nullptr) return make_one(value);  // it refuses the group
    auto own = *read;
    matches.push_back(
        {taken_match(own, group.where), has_use(group) ? others.size() + 1 : 0, group.where + ": [[optimizer.group]]"});
    if (has_use(group)) {
      others.push_back({std::move(own), group.where});
    } else {
      plain.push_back(group);
    }
  }
  first.erase("group");
  if (!plain.empty()) first.emplace("group", Value{std::move(plain), found->second.where});
  std::vector<Part> parts;
  parts.push_back({make_one({std::move(first), value.where})});
  for (auto& other : others) parts.push_back({make_one(other)});

  // A resumed run must have the same optimizers and options: these are the options of the whole.
  const auto owner = parts.front().made.options.owner();
  auto options = parts.front().made.options;
  const auto id = parts.front().made.plugin->id(), version = parts.front().made.plugin->version();
  Table read_by_groups;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    Table own{{"use", Value{parts[i].made.plugin->id(), ""}}};
    for (const auto& option : HostApi::declared(parts[i].made.options)) own[option.key] = option.value;
    read_by_groups[std::to_string(i)] = {std::move(own), ""};
  }
  options.get("group.use", read_by_groups, "the optimizers of groups, with their options");
  MadePlugin whole{std::make_unique<OptimizerGroups>(std::move(parts), std::move(matches)), std::move(options)};
  HostApi::set_id(*whole.plugin, id);
  HostApi::set_version(*whole.plugin, version);
  return whole;
}

}  // namespace vernier
