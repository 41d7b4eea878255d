// The tables [[optimizer.group]], which every optimizer plugin has: options for the parameters that they name. A group
// starts from the options of [optimizer]. If several groups match a parameter, the last one holds alone.
//   group.match (required)   names of parameters, * for any text: "*.bias" or ["*.bias", "*.ln_*"]
//   group.frozen = false     true: no gradient and no update
#pragma once

#include <vernier/name_pattern.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

class ParameterGroups {
 public:
  static constexpr std::size_t frozen = static_cast<std::size_t>(-1);

  // Called in the plugin's constructor. read_one: reads the further options of each group, in their order.
  ParameterGroups(vernier::Options& options, const std::function<void(vernier::Options&)>& read_one) {
    options.tables("group", "options of parameters by name; of several that match, the last one holds",
                   [&](vernier::Options& one) {
                     Group group{one.owner(), {}, false};
                     group.match =
                         one.require<std::vector<std::string>>("match", "names of parameters, * for any text");
                     group.is_frozen = one.get("frozen", false, "no gradient and no update");
                     read_one(one);
                     groups_.push_back(std::move(group));
                   });
  }

  // Called in Plugin::prepare. Returns for each of run.parameters `frozen`, 0 if no group matches, or 1 for the first
  // group. Backward computes no gradients of frozen parameters from then on; those that an optimizer before this one
  // froze get theirs again. Throws Error if a pattern names no parameter, or if all parameters are frozen.
  std::vector<std::size_t> assign(vernier::Run& run, const std::string& optimizer) const {
    for (const auto& group : groups_) refuse_unmatched(group, run);
    std::vector<std::size_t> numbers;
    std::string names;
    std::size_t count = 0;
    for (auto& parameter : run.parameters) {
      numbers.push_back(group_of(parameter.name));
      const bool is_frozen = parameter.frozen = numbers.back() == frozen;
      parameter.model.requires_grad_(!is_frozen);
      parameter.master.requires_grad_(!is_frozen);
      if (!is_frozen) continue;
      if (count < 8) names += (count == 0 ? "" : ", ") + parameter.name;
      count += 1;
    }
    if (count == 0) return numbers;
    if (count == run.parameters.size()) {
      vernier::refuse(optimizer + ": all parameters are frozen: leave one out of the groups with frozen = true");
    }
    vernier::log(vernier::Level::info, optimizer,
                 c10::str(count, " of ", run.parameters.size(), " parameters are frozen: ", names,
                          count > 8 ? c10::str(" and ", count - 8, " more") : ""));
    return numbers;
  }

 private:
  struct Group {
    std::string place;  // "optimizer/adamw: [[optimizer.group]] 1"
    std::vector<std::string> match;
    bool is_frozen;
  };

  std::size_t group_of(const std::string& name) const {
    for (auto i = groups_.size(); i > 0; --i) {
      const auto& group = groups_[i - 1];
      if (!vernier::matches_any(group.match, name)) continue;
      return group.is_frozen ? frozen : i;
    }
    return 0;
  }
  static void refuse_unmatched(const Group& group, const vernier::Run& run) {
    for (const auto& pattern : group.match) {
      const auto is_named = [&](const auto& parameter) { return vernier::matches(pattern, parameter.name); };
      if (std::ranges::any_of(run.parameters, is_named)) continue;
      const auto example = run.parameters.empty() ? "" : ", such as " + run.parameters.front().name;
      vernier::refuse(group.place + ": `match` has \"" + pattern + "\", which is the name of no parameter" + example);
    }
  }

  std::vector<Group> groups_;
};
