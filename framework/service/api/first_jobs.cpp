#include "service/api/first_jobs.h"

#include <vernier/json_text.h>

#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string_view>

#include "service/api/job_check.h"
#include "service/http/schema.h"

namespace serve {

namespace fs = std::filesystem;
using vernier::schema::whole_in;

namespace {

// A key of a request, and the table and option of a configuration that it becomes. A number must be from `least` to
// `most`.
struct Place {
  const char *key, *type, *table, *option;
  std::int64_t least = 0, most = 1'000'000'000'000;
};

constexpr std::int64_t most_samples = 1 << 20;  // of an update

constexpr Place precision_places[] = {{"level", "level", "precision", "level"},
                                      {"opt_level", "level", "precision", "level"}};

constexpr Place scaling_places[] = {{"init_scale", "number", "scaler", "init_scale"},
                                    {"growth_factor", "number", "scaler", "growth_factor"},
                                    {"backoff_factor", "number", "scaler", "backoff_factor"},
                                    {"growth_interval", "integer", "scaler", "growth_interval"}};

constexpr Place training_places[] = {
    {"num_train_epochs", "integer", "run", "epochs"},
    {"max_steps", "integer", "run", "steps"},
    {"seed", "integer", "run", "seed"},
    {"learning_rate", "number", "optimizer", "learning_rate"},
    {"weight_decay", "number", "optimizer", "weight_decay"},
    {"gradient_accumulation_steps", "integer", "accumulation", "micro_batches", 1, most_samples},
    {"per_device_train_batch_size", "integer", "task", "batch_size", 1, most_samples},
    {"save_steps", "integer", "checkpoint", "every"},
    {"eval_steps", "integer", "run", "validate_every"},
    {"gradient_checkpointing", "boolean", "task", "recompute"},
    {"max_grad_norm", "number", "callback", "max_norm"}};

constexpr Place length_place = {"max_length", "integer", "task", "context", 1, 1'000'000};

const Json& precision_names() {
  static const Json names = {"no", "fp32", "fp16", "bf16", "fp8", "auto"};
  return names;
}
const Json& level_names() {
  static const Json names = {"O0", "O1", "O2", "O3"};
  return names;
}

bool is_one_of(const Json& names, const Json& value) {
  return std::ranges::find(names, value) != names.end();
}

const Json& object_in(const Json& body, const char* key) {
  static const Json none = Json::object();
  if (!body.contains(key)) return none;
  if (!body[key].is_object()) throw NotAllowed(std::string(key) + " must be an object");
  return body[key];
}

bool is_in_range(const Json& value, const Place& place) {
  if (std::string_view(place.type) == "integer") return whole_in(value, place.least, place.most).has_value();
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return number >= static_cast<double>(place.least) && number <= static_cast<double>(place.most);
}

void require_boolean(const Json& value, const char* key) {
  if (!value.is_boolean()) throw NotAllowed(std::string(key) + " must be of the type boolean");
}

void require_type(const Json& value, const Place& place) {
  const std::string_view type = place.type;
  if (type == "boolean") return require_boolean(value, place.key);
  const std::string key = place.key;
  if (type == "level") {
    if (!is_one_of(level_names(), value))
      throw NotAllowed(key + " must be one of " + vernier::json_text(level_names()));
  } else if (!is_in_range(value, place)) {
    throw NotAllowed(key + " must be a " + (type == "integer" ? "whole number" : "number") + " from " +
                     std::to_string(place.least) + " to " + std::to_string(place.most));
  }
}

// The schema of the values that require_type() accepts.
Json schema_of(const Place& place) {
  const std::string_view type = place.type;
  if (type == "boolean") return {{"type", "boolean"}};
  if (type == "level") return {{"enum", level_names()}};
  return {{"type", place.type}, {"minimum", place.least}, {"maximum", place.most}};
}

// The table with this name. The configuration is a user's, so something else may stand there.
Json& table_in(Json& config, const char* name) {
  auto& table = config[name];
  if (!table.is_null() && !table.is_object()) throw NotAllowed(std::string("config.") + name + " must be an object");
  return table;
}

void put(const Json& value, const Place& place, Json& config) {
  require_type(value, place);
  auto& option = table_in(config, place.table)[place.option];
  option = value;
  if (std::string_view(place.type) == "integer") option = value.get<std::int64_t>();  // 3.0 is whole, too
}

// The key's place in the first list that has it. what: the name of the request's object, for the message.
const Place& place_in(std::initializer_list<std::span<const Place>> lists, const std::string& key, const char* what,
                      std::string others = "") {
  for (const auto& list : lists) {
    const auto found = std::ranges::find_if(list, [&](const Place& each) { return key == each.key; });
    if (found != list.end()) return *found;
    for (const auto& each : list) others += (others.empty() ? "" : ", ") + std::string(each.key);
  }
  throw NotAllowed(std::string(what) + " has no " + key + "; it has " + others);
}

void set_training(const Json& settings, Json& config) {
  for (const auto& [key, value] : settings.items()) {
    const auto& place = place_in({training_places}, key, "training_args");
    if (key != "max_grad_norm") {
      put(value, place, config);
      continue;
    }
    require_type(value, place);
    auto& callbacks = config["callback"];
    if (!callbacks.is_null() && !callbacks.is_array()) throw NotAllowed("config.callback must be a list");
    callbacks.push_back({{"use", "clip_norm"}, {"max_norm", value}});
  }
  if (settings.contains("gradient_checkpointing")) {
    config["task"]["recompute"] = settings["gradient_checkpointing"] == true ? "full" : "none";
  }
  if (settings.contains("gradient_accumulation_steps")) {
    config["accumulation"]["use"] = "fixed";
    // Here a batch is that of a whole update, whatever its micro-batches.
    if (settings.contains("per_device_train_batch_size")) {
      auto& batch = config["task"]["batch_size"];
      batch = batch.get<std::int64_t>() * config["accumulation"]["micro_batches"].get<std::int64_t>();
    }
  }
}

// With a model, a line of JSON for each text, as task/llama reads them; else the texts, whose bytes are learned.
std::string texts_of(const Json& body) {
  if (!body.contains("texts") || !body["texts"].is_array() || body["texts"].empty()) {
    throw NotAllowed("texts must be a list of texts, with one at least");
  }
  std::string lines;
  for (const auto& text : body["texts"]) {
    if (!text.is_string()) throw NotAllowed("texts must be a list of texts");
    lines += (body.contains("model") ? vernier::json_text(Json{{"text", text}}) : text.get<std::string>()) + "\n";
  }
  return lines;
}

// "gpt2", "llama", … of a published model's folder; "" where it is none.
std::string kind_of_model(const std::string& folder) {
  const auto path = fs::path(folder) / "config.json";
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return "";
  std::ifstream file(path);
  const auto config = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("model_type") && config["model_type"].is_string()
             ? config["model_type"].get<std::string>()
             : "";
}

// Without a model, bytes are learned from scratch.
void set_model(const Json& body, const std::string& texts, const std::vector<fs::path>& data, Json& config) {
  auto& task = config["task"];
  task["data"] = {texts};
  task["context"] = 128;
  if (body.contains("max_length")) put(body["max_length"], length_place, config);
  if (!body.contains("model")) {
    task["use"] = "gpt";
    return;
  }
  if (!body["model"].is_string() || body["model"] == "")
    throw NotAllowed("model must be the folder of a published model");
  task["folder"] = body["model"];
  checked_configuration(config, data);  // before anything is read there
  task["use"] = kind_of_model(body["model"].get<std::string>()) == "gpt2" ? "gpt" : "llama";
}

}  // namespace

Json precision_schema(bool may_scale) {
  const auto with = [](Json properties, std::initializer_list<std::span<const Place>> lists) {
    for (const auto& list : lists) {
      for (const auto& place : list) properties[place.key] = schema_of(place);
    }
    return Json{{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  };
  auto plain =
      with({{"precision", {{"enum", precision_names()}}}, {"enabled", {{"type", "boolean"}}}}, {precision_places});
  if (!may_scale) return plain;
  auto scaled =
      with({{"precision", {{"const", "fp16"}}}, {"enabled", {{"const", true}}}}, {precision_places, scaling_places});
  scaled["required"] = {"precision"};
  return {{"anyOf", {std::move(plain), std::move(scaled)}}};
}

Json training_schema() {
  Json properties = Json::object();
  for (const auto& place : training_places) properties[place.key] = schema_of(place);
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

Json length_schema() {
  return schema_of(length_place);
}

Json precision_tables(const Json& settings) {
  Json config = Json::object();
  for (const auto& [key, value] : settings.items()) {
    if (key == "precision" || key == "enabled") continue;
    put(value, place_in({precision_places, scaling_places}, key, "config", "precision, enabled"), config);
  }
  if (settings.contains("enabled")) require_boolean(settings["enabled"], "enabled");
  const bool is_on = !settings.contains("enabled") || settings["enabled"] == true;
  const auto given = settings.contains("precision") ? settings["precision"] : Json("bf16");
  if (!is_one_of(precision_names(), given)) {
    throw NotAllowed("precision must be one of " + vernier::json_text(precision_names()));
  }
  const auto name = !is_on || given == "no" ? "fp32" : given.get<std::string>();
  config["precision"]["use"] = name;
  if (name == "fp32") config["precision"].erase("level");
  if (name == "fp16") {
    config["scaler"]["use"] = "dynamic";
  } else if (config.contains("scaler")) {
    throw NotAllowed(
        "the loss is scaled for fp16 only; leave out init_scale, growth_factor, backoff_factor and "
        "growth_interval");
  }
  return config;
}

Rest rest_of(const std::string& config) {
  auto table = toml::parse(config);
  const auto precision = table["precision"]["use"].value_or(std::string("fp32"));
  table.erase("precision");
  table.erase("scaler");
  std::ostringstream text;
  text << table;
  return {text.str(), precision == "fp32"};
}

FirstJob first_job_of(FirstKind kind, const Json& body, const std::vector<fs::path>& data) {
  FirstJob job{.config = Json::object(), .texts_name = "", .texts = ""};
  auto& config = job.config;
  if (kind == FirstKind::train) {
    config = object_in(body, "config");
    if (config.empty()) throw NotAllowed("config is needed: a configuration of Vernier, with task and optimizer");
  } else {
    job.texts = texts_of(body);
    job.texts_name = body.contains("model") ? "texts.jsonl" : "texts.txt";
    set_model(body, job.texts_name, data, config);
    config["optimizer"] = {{"use", "adamw"}};
  }
  auto precision = object_in(body, kind == FirstKind::train ? "mixed_precision" : "config");
  if (kind == FirstKind::optimize) {
    precision_tables(precision);  // a wrong name is refused all the same
    precision["precision"] = "auto";
  }
  const bool says_precision = kind != FirstKind::train || body.contains("mixed_precision");
  if (says_precision) {
    const auto tables = precision_tables(precision);
    for (const auto& [table, options] : tables.items()) config[table] = options;
  }
  set_training(object_in(body, "training_args"), config);
  if (kind != FirstKind::train && !config["run"].contains("steps") && !config["run"].contains("epochs")) {
    config["run"]["epochs"] = 1;
  }
  if (kind == FirstKind::optimized) {
    if (!config.contains("accumulation")) config["accumulation"]["use"] = "fit";
    config["task"]["recompute"] = "full";
    config["optimizer"]["state"] = "8bit";
  }
  return job;
}

}  // namespace serve
