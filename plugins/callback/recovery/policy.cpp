// recovery: reads the lists of actions and chooses the next action; see recovery.cpp.
#include "policy.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace recovery {

namespace {

const std::vector<std::string> known = {"skip", "drop_samples", "lower_learning_rate", "rewind", "fallback", "stop"};

bool is_once(const std::string& action) {
  return action == "fallback" || action == "stop";
}

bool is_of_update(const std::string& action) {
  return action == "skip" || action == "drop_samples";
}

Action read_action(const vernier::Options& options, const char* key, const std::string& text) {
  const auto space = text.find(' ');
  Action action{text.substr(0, space)};
  if (std::ranges::find(known, action.name) == known.end()) {
    const auto near = vernier::nearest(action.name, known);
    options.refuse(key, "has \"" + text + "\"; " + (near.empty() ? "it" : "did you mean \"" + near + "\"? It") +
                            " takes skip, drop_samples, lower_learning_rate, rewind, fallback and stop");
  }
  action.at_most = is_once(action.name) ? 1 : is_of_update(action.name) ? 10 : 3;
  if (space == std::string::npos) return action;
  const char* end = text.data() + text.size();
  const auto [rest, trouble] = std::from_chars(text.data() + space + 1, end, action.at_most);
  if (trouble != std::errc() || rest != end || action.at_most < 1) {
    options.refuse(key, "has \"" + text + "\"; behind the action stands how often at most, as in \"rewind 2\"");
  }
  if (is_once(action.name) && action.at_most > 1) {
    options.refuse(key, "has \"" + text + "\", and that can be done once only; write \"" + action.name + "\"");
  }
  return action;
}

}  // namespace

Policy::Policy(vernier::Options& options, const char* key, std::vector<std::string> fallback, const char* meaning,
               bool may_skip)
    : name_(key) {
  for (const auto& text : options.get(key, std::move(fallback), meaning)) {
    const auto action = read_action(options, key, text);
    if (has("stop")) options.refuse(key, "has \"" + text + "\" behind \"stop\", where the run has ended");
    if (has(action.name)) options.refuse(key, "has \"" + action.name + "\" twice");
    if (is_of_update(action.name) && !may_skip) {
      options.refuse(key, "cannot be met by \"" + action.name + "\": it is about skipped updates");
    }
    actions_.push_back(action);
  }
}

bool Policy::has(const std::string& action) const {
  return std::ranges::any_of(actions_, [&](const auto& each) { return each.name == action; });
}

bool Policy::has_only(const std::vector<std::string>& actions) const {
  return std::ranges::all_of(actions_,
                             [&](const auto& each) { return std::ranges::find(actions, each.name) != actions.end(); });
}

std::optional<Action> Policy::next(std::int64_t step, std::int64_t batch, std::int64_t batches, std::int64_t calm,
                                   const std::function<bool(const std::string&)>& helps) {
  if (calm_ >= calm) restart();
  const bool is_in_a_row = batch == last_batch_ + 1;
  in_a_row_ = is_in_a_row ? in_a_row_ + 1 : 1;
  last_batch_ = batch + batches - 1;
  const bool was_good = std::exchange(calm_, 0) > 0 || step > last_step_ + 1;  // or so it seems, where results are late
  last_step_ = std::max(last_step_, step);
  const auto count = static_cast<std::int64_t>(actions_.size());
  if (turn_ < count && was_good && !is_in_a_row && is_of_update(actions_[static_cast<std::size_t>(turn_)].name)) {
    number_ = 0;
  }
  for (; turn_ < count; ++turn_, number_ = 0) {
    auto action = actions_[static_cast<std::size_t>(turn_)];
    if (number_ == action.at_most || !helps(action.name)) continue;
    action.number = ++number_;
    return action;
  }
  return std::nullopt;
}

void Policy::applied(std::int64_t step) {
  if (last_step_ < 0 || step <= last_step_) return;
  last_step_ = step;
  calm_ += 1;
}

void Policy::restart() {
  turn_ = number_ = 0;
  last_step_ = last_batch_ = -2;
  calm_ = 0;
  in_a_row_ = 0;
}

constexpr std::pair<const char*, std::int64_t Policy::*> Policy::saved[] = {
    {"turn", &Policy::turn_}, {"number", &Policy::number_},     {"last_step", &Policy::last_step_},
    {"calm", &Policy::calm_}, {"in_a_row", &Policy::in_a_row_}, {"last_batch", &Policy::last_batch_}};

vernier::State Policy::save() const {
  vernier::State state;
  for (const auto& [name, member] : saved) state.put(name, this->*member);
  return state;
}

void Policy::load(const vernier::State& state) {
  for (const auto& [name, member] : saved) this->*member = state.integer(name);
}

}  // namespace recovery
