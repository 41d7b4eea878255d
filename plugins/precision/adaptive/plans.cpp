// Plans: the tables of the policies that are possible, and the comparison of their times.
#include "plans.h"

#include <algorithm>

namespace adaptive {

using vernier::Table;

namespace {

// The first rule that matches an operation holds, and "*" matches all layers: so that one comes last, and exempts those
// that a plan leaves alone.
Table table_of(const Plan& plan, const Sites& sites, const Choices& choices) {
  auto rules = choices.rules, last = vernier::Array();
  const auto differs = [&](std::size_t i) { return choices.uses[plan.chosen[i]] != plan.base; };
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const auto& [layer, op, measured] = sites[i];
    bool is_exempt = false;
    for (std::size_t k = 0; k < sites.size(); ++k) {
      is_exempt = is_exempt || (sites[k].layer.empty() && sites[k].op == sites[i].op && differs(k));
    }
    if (!differs(i) && !is_exempt) continue;
    const std::string use = differs(i) ? name_of(choices.uses[plan.chosen[i]]) : "policy";
    Table rule = {{"match", {layer.empty() ? "*" : layer, ""}},
                  {"op", {op == "linear_cross_entropy" ? "linear" : op, ""}},  // rules split a head from its loss
                  {"use", {use, ""}}};
    (layer.empty() ? last : rules).push_back({std::move(rule), ""});
  }
  rules.insert(rules.end(), last.begin(), last.end());
  auto table = choices.kept;
  table["use"] = {std::string(name_of(plan.base)), ""};
  if (!rules.empty()) table["rule"] = {std::move(rules), ""};
  return table;
}

// Computes in the place of adaptive.
struct Policy final : vernier::MixedPrecision {
  Policy(vernier::Options& options, torch::ScalarType dtype) : MixedPrecision(options, dtype) {
    set_id(options.owner());
  }
};

Plan with_policy(Plan plan, const Sites& sites, const Choices& choices) {
  plan.table = table_of(plan, sites, choices);
  auto table = plan.table;
  table.erase("use");
  vernier::Options options("precision/adaptive", std::move(table), "");
  plan.policy = std::make_unique<Policy>(options, dtype_of(plan.base));
  return plan;
}

}  // namespace

double Plan::median() const {
  auto sorted = seconds;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

std::string Plan::toml() const {
  std::string text = "[precision]\n";
  for (const auto& [key, value] : table) {
    if (key != "rule") text += key + " = " + vernier::value_text(value) + '\n';
  }
  if (!table.contains("rule")) return text;
  for (const auto& rule : std::get<vernier::Array>(table.at("rule").data)) {
    text += "\n[[precision.rule]]\n";
    for (const auto& [key, value] : std::get<Table>(rule.data)) text += key + " = " + vernier::value_text(value) + '\n';
  }
  return text;
}

std::vector<Plan> plans_for(const Sites& sites, const Choices& choices) {
  const auto& uses = choices.uses;
  const auto keeps = [&](const Site& site, std::size_t k) {
    return k == 0 || site.measured[k].error <= choices.error_budget;
  };
  std::vector<Plan> plans;
  for (std::size_t use = 0; use < choices.named; ++use) {
    Plan plan{name_of(uses[use]), uses[use] == Use::fp8 ? Use::bf16 : uses[use]};
    const auto base = static_cast<std::size_t>(std::ranges::find(uses, plan.base) - uses.begin());
    for (const auto& site : sites) plan.chosen.push_back(keeps(site, use) ? use : keeps(site, base) ? base : 0);
    const bool is_used = use == 0 || std::ranges::count(plan.chosen, use) > 0;
    if (is_used) plans.push_back(with_policy(std::move(plan), sites, choices));
  }
  if (plans.size() == 1) return plans;
  Plan mix{"a mix", plans[1].base, plans[1].chosen};
  for (std::size_t i = 0; i < sites.size(); ++i) {
    for (std::size_t k = 0; k < uses.size(); ++k) {
      constexpr double least_gain = 0.1;  // the time of a single operation is noisy
      const auto& measured = sites[i].measured;
      const bool is_faster = measured[k].seconds < (1 - least_gain) * measured[mix.chosen[i]].seconds;
      if (is_faster && keeps(sites[i], k)) mix.chosen[i] = k;
    }
  }
  const auto is_same = [&](const Plan& plan) { return plan.chosen == mix.chosen; };
  if (std::ranges::none_of(plans, is_same)) plans.push_back(with_policy(std::move(mix), sites, choices));
  return plans;
}

Ratio ratio(const Plan& plan, const Plan& to) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < plan.seconds.size(); ++i) ratios.push_back(plan.seconds[i] / to.seconds[i]);
  std::ranges::sort(ratios);
  const auto outside = (ratios.size() - 3) / 4;
  return {ratios[outside], ratios[ratios.size() / 2], ratios[ratios.size() - 1 - outside]};
}

std::size_t fastest(const std::vector<Plan>& plans, double min_gain) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < plans.size(); ++i) {
    const double gain = best == 0 ? min_gain : std::abs(min_gain);  // only float32 may be left for a slower plan
    if (ratio(plans[i], plans[best]).is_less(gain)) best = i;
  }
  return best;
}

}  // namespace adaptive
