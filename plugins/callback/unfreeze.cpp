// unfreeze: begins to train groups of parameters one after the other. Before its step a group gets no gradients and no
// updates, and backward leaves it out. Parameters of no group train from the start, unless [[optimizer.group]] has
// frozen them.
//   group = []           [[callback.group]] tables
//   group.match          required: parameters by name, * for any text: ["h.0.*", "wte.*"]
//   group.from = 0       the group trains after so many steps
// Of several groups that match a parameter, the last one counts. An optimizer leaves out what has no gradient: neither
// weight decay nor momentum move a frozen weight. Adam's step count of a weight begins when the weight begins to train.
// Source: Howard and Ruder, ULMFiT, ACL 2018.
#include <vernier/parameter_groups.h>
#include <vernier/sdk.h>

using vernier::Options;
using vernier::Run;

class Unfreeze final : public vernier::Callback {
 public:
  explicit Unfreeze(Options& options) {
    options.tables("group", "parameters that begin to train together", [this](Options& one) {
      Group group;
      group.patterns = one.require<std::vector<std::string>>("match", "parameters by name, * for any text");
      group.from = one.get("from", 0, "the group trains after so many steps", vernier::at_least(0));
      groups_.push_back(std::move(group));
    });
  }

  void attach(vernier::Bus& bus) override {
    // Depends on run.step alone, so this plugin has nothing to remember.
    bus.on(vernier::Event::StepBegin, [this](Run& run) { freeze(run); });
  }

  void prepare(Run& run) override {
    from_.assign(run.parameters.size(), 0);
    for (const auto& group : groups_) {
      for (const auto i : vernier::parameters_named(run, group.patterns, "callback/unfreeze: `match`", id())) {
        from_[i] = group.from;
      }
    }
    bool trains = from_.empty();
    for (std::size_t i = 0; i < from_.size(); ++i) trains = trains || (from_[i] == 0 && !run.parameters[i].frozen);
    if (!trains) {
      vernier::refuse("callback/unfreeze: nothing trains in the first step; give one group from = 0", id());
    }
  }

  void check(const Run& run) override {
    for (const auto& group : groups_) {
      if (run.steps == 0 || group.from < run.steps) continue;
      warn("\"", group.patterns.front(), "\" never trains: its group has from = ", group.from, ", and the run has ",
           run.steps, " steps");
    }
  }

 private:
  struct Group {
    std::vector<std::string> patterns;
    std::int64_t from = 0;
  };

  void freeze(const Run& run) const {
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      auto weight = run.parameters[i].model;
      const bool trains = run.step >= from_[i] && !run.parameters[i].frozen;
      if (weight.requires_grad() != trains) weight.set_requires_grad(trains);
    }
  }

  std::vector<Group> groups_;
  std::vector<std::int64_t> from_;  // one for each of run.parameters
};

VERNIER_PLUGIN(Unfreeze, "unfreeze", "1.0.0")
