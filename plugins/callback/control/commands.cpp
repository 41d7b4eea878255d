#include "commands.h"

#include <algorithm>
#include <array>
#include <regex>

#include "service/http/schema.h"

namespace control {

using vernier::HttpRefused;
using vernier::Json;

namespace {

constexpr std::array<const char*, 8> names = {"pause", "resume",      "save", "validate", "stop", "scale_learning_rate",
                                              "swap",  "set_interval"};
constexpr std::int64_t longest = 1'000'000'000;  // interval
constexpr std::array<const char*, 3> roles = {"precision", "scaler", "accumulation"};
constexpr double smallest = 1e-6, largest = 1e6;  // factors

[[noreturn]] void refuse(const std::string& why) {
  throw HttpRefused{422, why};
}

// Names of options, their values, and names of plugins.
constexpr const char *key_pattern = "^[A-Za-z0-9_-]{1,64}$", *text_pattern = "^[ -~]{0,200}$",
                     *name_pattern = "^[a-z0-9_]{1,47}$";

bool fits(const std::string& text, const char* pattern) {
  constexpr std::size_t longest = 200;  // std::regex recurses for each character
  return text.size() <= longest && std::regex_match(text, std::regex(pattern));
}

// Texts and keys reach messages, so they must be plain. `place` is named by plugins that refuse a value.
vernier::Value value_of(const Json& json, const std::string& place) {
  const bool is_large = json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX;
  if (json.is_boolean()) return {json.get<bool>(), place};
  if (json.is_number_integer() && !is_large) return {json.get<std::int64_t>(), place};
  if (json.is_number()) return {json.get<double>(), place};
  if (json.is_string()) {
    if (!fits(json.get<std::string>(), text_pattern)) refuse(place + " must be at most 200 letters of ASCII");
    return {json.get<std::string>(), place};
  }
  if (json.is_array()) {
    vernier::Array array;
    for (const auto& each : json) array.push_back(value_of(each, place));
    return {std::move(array), place};
  }
  if (!json.is_object()) refuse(place + " must not be null");
  vernier::Table table;
  for (const auto& [key, each] : json.items()) {
    if (!fits(key, key_pattern)) refuse(place + " has a key that is not the name of an option");
    table.emplace(key, value_of(each, place + "." + key));
  }
  return {std::move(table), place};
}

// A plugin is named, not a path to one: a token does not load libraries.
void check_plugin(const std::string& role, const Json& table) {
  if (std::ranges::find(roles, role) == roles.end()) refuse("roles may name precision, scaler and accumulation");
  const bool has_use = table.is_object() && table.contains("use") && table.at("use").is_string();
  if (!has_use || !fits(table.at("use").get<std::string>(), name_pattern))
    refuse("roles." + role + " must be a table with the name of a plugin, {\"use\": \"bf16\"}");
}

}  // namespace

Command command_of(const Json& body) {
  const bool has_name = body.is_object() && body.contains("command") && body.at("command").is_string();
  Command command{
      .name = has_name ? body.at("command").get<std::string>() : "", .roles = nullptr, .body = body, .tables = {}};
  if (std::ranges::find(names, command.name) == names.end()) {
    refuse("command must be pause, resume, save, validate, stop, scale_learning_rate, swap or set_interval");
  }
  const bool scales = command.name == "scale_learning_rate", swaps = command.name == "swap";
  const bool sets = command.name == "set_interval";
  for (const auto& [key, ignored] : body.items()) {
    if (key == "command" || (scales && key == "factor") || (swaps && key == "roles")) continue;
    if (sets && (key == "monitor" || key == "every")) continue;
    refuse("this command has no further field of that name; see /v1/openapi.json");
  }
  if (scales) {
    if (!body.contains("factor") || !body.at("factor").is_number()) refuse("factor must be a number");
    command.factor = body.at("factor").get<double>();
    if (!(command.factor >= smallest && command.factor <= largest)) refuse("factor must be from 1e-6 to 1e6");
  }
  if (swaps) {
    if (!body.contains("roles") || !body.at("roles").is_object() || body.at("roles").empty()) {
      refuse("roles must be an object, {\"precision\": {\"use\": \"bf16\"}}");
    }
    command.roles = body.at("roles");
    for (const auto& [role, table] : command.roles.items()) check_plugin(role, table);
    command.tables = std::get<vernier::Table>(value_of(command.roles, "roles").data);
  }
  if (sets) {
    const bool has_monitor = body.contains("monitor") && body.at("monitor").is_string();
    if (has_monitor) command.monitor = body.at("monitor").get<std::string>();
    if (!fits(command.monitor, name_pattern)) refuse("monitor must be the name of a monitor, \"jsonl\"");
    const auto every = vernier::schema::whole_in(body.value("every", Json()), 1, longest);
    if (!every) refuse("every must be a whole number of steps from 1 to 1000000000");
    command.every = *every;
  }
  return command;
}

Json command_schema() {
  const auto with = [](const Json& name, Json properties, Json required) {
    properties["command"] = name;
    required.push_back("command");
    return Json{{"type", "object"},
                {"properties", std::move(properties)},
                {"required", std::move(required)},
                {"additionalProperties", false}};
  };
  const Json plugin = {{"type", "object"},
                       {"properties", {{"use", {{"type", "string"}, {"pattern", name_pattern}}}}},
                       {"required", {"use"}},
                       {"propertyNames", {{"pattern", key_pattern}}},
                       {"additionalProperties", {{"$ref", "#/components/schemas/Option"}}}};
  Json by_role = Json::object();
  for (const char* role : roles) by_role[role] = plugin;
  const Json simple = {{"enum", {"pause", "resume", "save", "validate", "stop"}}};
  return {{"oneOf",
           {with(simple, Json::object(), Json::array()),
            with({{"const", "scale_learning_rate"}},
                 {{"factor", {{"type", "number"}, {"minimum", smallest}, {"maximum", largest}}}}, {"factor"}),
            with({{"const", "set_interval"}},
                 {{"monitor", {{"type", "string"}, {"pattern", name_pattern}}},
                  {"every", {{"type", "integer"}, {"minimum", 1}, {"maximum", longest}}}},
                 {"monitor", "every"}),
            with({{"const", "swap"}},
                 {{"roles",
                   {{"type", "object"},
                    {"properties", std::move(by_role)},
                    {"minProperties", 1},
                    {"additionalProperties", false}}}},
                 {"roles"})}}};
}

Json option_schema() {
  const Json option = {{"$ref", "#/components/schemas/Option"}};
  return {
      {"description", "the value of a plugin's option, as TOML has them"},
      {"anyOf",
       {Json{{"type", "boolean"}}, Json{{"type", "number"}}, Json{{"type", "string"}, {"pattern", text_pattern}},
        Json{{"type", "array"}, {"items", option}},
        Json{{"type", "object"}, {"propertyNames", {{"pattern", key_pattern}}}, {"additionalProperties", option}}}}};
}

Json answered_schema() {
  return {{"type", "object"},
          {"required", {"id", "command", "state"}},
          {"properties",
           {{"id", {{"type", "integer"}}},
            {"time", {{"type", "string"}}},
            {"who", {{"type", "string"}}},
            {"command", {{"type", "object"}}},
            {"state", {{"enum", {"waiting", "done", "refused"}}}},
            {"step", {{"type", "integer"}, {"description", "the steps that were done then"}}},
            {"answer", {{"type", "string"}}}}}};
}

std::int64_t Board::ask(Command command, const std::string& who) {
  Json shown;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.empty()) throw HttpRefused{409, closed_};
    if (waiting_ >= most_waiting) throw HttpRefused{503, "too many commands wait; ask again after the current step"};
    const auto id = next_id_++;
    shown = {{"id", id}, {"time", vernier::time_text()}, {"who", who}, {"command", command.body}, {"state", "waiting"}};
    entries_.push_back({{id, who, std::move(command)}, shown});
    waiting_ += 1;
    if (entries_.size() > most_kept) entries_.pop_front();  // waiting entries are far fewer
  }
  wake_.notify_all();
  changed_(shown);
  return shown.at("id").get<std::int64_t>();
}

std::optional<Json> Board::find(std::int64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, id, [](const Entry& each) { return each.asked.id; });
  return found == entries_.end() ? std::nullopt : std::optional(found->shown);
}

Json Board::list(std::int64_t after, std::int64_t limit) const {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  for (const auto& each : entries_) {
    if (each.asked.id > after && std::ssize(all) < limit) all.push_back(each.shown);
  }
  return all;
}

std::optional<Board::Asked> Board::take() {
  const std::lock_guard lock(mutex_);
  if (waiting_ == 0) return std::nullopt;
  const auto& first = entries_[entries_.size() - waiting_];
  waiting_ -= 1;
  return first.asked;
}

void Board::answer(std::int64_t id, std::int64_t step, const Result& result) {
  Json shown;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, id, [](const Entry& each) { return each.asked.id; });
    if (found == entries_.end()) return;
    found->shown["state"] = result.is_done ? "done" : "refused";
    found->shown["step"] = step;
    found->shown["answer"] = result.text;
    shown = found->shown;
  }
  changed_(shown);
}

void Board::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, time, [this] { return waiting_ > 0; });
}

void Board::close(const std::string& why, std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = why;
  }
  while (const auto asked = take()) answer(asked->id, step, {false, why});
}

}  // namespace control
