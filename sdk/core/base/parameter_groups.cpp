#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/name_pattern.h>
#include <vernier/parameter_groups.h>
#include <vernier/plugin.h>

#include <algorithm>

namespace vernier {

namespace {

void refuse_unmatched(const std::vector<std::string>& match, const std::string& place, const Run& run,
                      const std::string& optimizer) {
  for (const auto& pattern : match) {
    const auto is_named = [&](const auto& parameter) { return matches(pattern, parameter.name); };
    if (std::ranges::any_of(run.parameters, is_named)) continue;
    const auto example = run.parameters.empty() ? "" : ", such as " + run.parameters.front().name;
    refuse(place + ": `match` has \"" + pattern + "\", which is the name of no parameter" + example, optimizer);
  }
}

}  // namespace

ParameterGroups::ParameterGroups(Options& options, const std::function<void(Options&)>& read_one) {
  options.tables("group", "options of parameters by name; of several that match, the last one holds",
                 [&](Options& one) {
                   Group group{one.owner(), {}, false};
                   group.match = one.require<std::vector<std::string>>("match", "names of parameters, * for any text");
                   group.is_frozen = one.get("frozen", false, "no gradient and no update");
                   read_one(one);
                   groups_.push_back(std::move(group));
                 });
}

std::vector<std::size_t> ParameterGroups::assign(Run& run, const std::string& optimizer) const {
  for (const auto& group : groups_) refuse_unmatched(group.match, group.place, run, optimizer);
  std::vector<std::size_t> numbers;
  std::string names;
  std::size_t count = 0;
  for (const auto& parameter : run.parameters) {
    numbers.push_back(group_of(parameter.name));
    const bool is_frozen = numbers.back() == frozen;
    run.freeze(numbers.size() - 1, is_frozen);
    parameter.model.requires_grad_(!is_frozen);
    parameter.master.requires_grad_(!is_frozen);
    if (!is_frozen) continue;
    if (count < 8) names += (count == 0 ? "" : ", ") + parameter.name;
    count += 1;
  }
  if (count == 0) return numbers;
  if (count == run.parameters.size()) {
    refuse(optimizer + ": all parameters are frozen: leave one out of the groups with frozen = true", optimizer);
  }
  log(Level::info, optimizer,
      c10::str(count, " of ", run.parameters.size(), " parameters are frozen: ", names,
               count > 8 ? c10::str(" and ", count - 8, " more") : ""));
  return numbers;
}

std::size_t ParameterGroups::group_of(const std::string& name) const {
  for (auto i = groups_.size(); i > 0; --i) {
    const auto& group = groups_[i - 1];
    if (!matches_any(group.match, name)) continue;
    return group.is_frozen ? frozen : i;
  }
  return 0;
}

}  // namespace vernier
