#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/name_pattern.h>
#include <vernier/parameter_groups.h>
#include <vernier/plugin.h>

#include <algorithm>

namespace vernier {

namespace {
// Returns true for a pattern that names parameters which a group with `use` has taken from this optimizer.
bool names_others(const Run& run, const std::string& pattern) {
  return run.model != nullptr && std::ranges::any_of(run.model->named_parameters(), [&](const auto& entry) {
           const auto& [name, tensor] = entry.pair();
           const auto is_own = [&](const Parameter& own) { return own.model.is_same(tensor); };
           return matches(pattern, name) && tensor.requires_grad() && std::ranges::none_of(run.parameters, is_own);
         });
}
}  // namespace

std::vector<std::size_t> parameters_named(const Run& run, const std::vector<std::string>& patterns,
                                          const std::string& where, const std::string& who) {
  std::vector<std::string> names;
  for (const auto& parameter : run.parameters) names.push_back(parameter.name);
  for (const auto& pattern : patterns) {
    if (std::ranges::any_of(names, [&](const auto& name) { return matches(pattern, name); })) continue;
    if (names_others(run, pattern)) continue;
    const auto near = pattern.find('*') == std::string::npos ? nearest(pattern, names) : "";
    const auto example = names.empty() ? "" : ", such as " + names.front();
    refuse(where + " has \"" + pattern + "\", which is the name of no parameter" +
               (near.empty() ? example : "; did you mean \"" + near + "\"?"),
           who);
  }
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (matches_any(patterns, names[i])) places.push_back(i);
  }
  return places;
}

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
  std::vector<std::size_t> numbers(run.parameters.size(), 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& group = groups_[g];
    for (const auto i : parameters_named(run, group.match, group.place + ": `match`", optimizer)) {
      numbers[i] = group.is_frozen ? frozen : g + 1;
    }
  }
  const auto is_trained = [](const torch::Tensor& weight) { return weight.requires_grad(); };
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto& parameter = run.parameters[i];
    const bool is_frozen = numbers[i] == frozen;
    run.freeze(i, is_frozen);
    parameter.model.requires_grad_(!is_frozen);
    parameter.master.requires_grad_(!is_frozen);
    if (!is_frozen) continue;
    if (count < 8) names += (count == 0 ? "" : ", ") + parameter.name;
    count += 1;
  }
  if (count == 0) return numbers;
  if (count == run.parameters.size()) {
    const bool others_train = run.model != nullptr && std::ranges::any_of(run.model->parameters(), is_trained);
    refuse(optimizer + (others_train ? ": all parameters that the groups with `use` leave to it are frozen: write the "
                                       "`use` and the options of such a group in [optimizer], and leave them out of it"
                                     : ": all parameters are frozen: leave one out of the groups with frozen = true"),
           optimizer);
  }
  log(Level::info, optimizer,
      c10::str(count, " of ", run.parameters.size(), " parameters are frozen: ", names,
               count > 8 ? c10::str(" and ", count - 8, " more") : ""));
  return numbers;
}

}  // namespace vernier
