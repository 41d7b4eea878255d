#include "api/first_jobs.h"

#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "api/job_check.h"

namespace serve {

namespace fs = std::filesystem;

namespace {

// A key of a request, and where it stands in a configuration.
struct Place {
  const char *key, *type, *table, *option;
};

constexpr Place precision_places[] = {{"level", "string", "precision", "level"},
                                      {"opt_level", "string", "precision", "level"},
                                      {"init_scale", "number", "scaler", "init_scale"},
                                      {"growth_factor", "number", "scaler", "growth_factor"},
                                      {"backoff_factor", "number", "scaler", "backoff_factor"},
                                      {"growth_interval", "integer", "scaler", "growth_interval"}};

constexpr Place training_places[] = {{"num_train_epochs", "integer", "run", "epochs"},
                                     {"max_steps", "integer", "run", "steps"},
                                     {"seed", "integer", "run", "seed"},
                                     {"learning_rate", "number", "optimizer", "learning_rate"},
                                     {"weight_decay", "number", "optimizer", "weight_decay"},
                                     {"gradient_accumulation_steps", "integer", "accumulation", "micro_batches"},
                                     {"per_device_train_batch_size", "integer", "task", "batch_size"},
                                     {"save_steps", "integer", "checkpoint", "every"},
                                     {"eval_steps", "integer", "run", "validate_every"}};

const Json& object_in(const Json& body, const char* key) {
  static const Json none = Json::object();
  if (!body.contains(key)) return none;
  if (!body[key].is_object()) throw NotAllowed(std::string(key) + " must be an object");
  return body[key];
}

std::int64_t integer_in(const Json& object, const char* key, std::int64_t fallback, std::int64_t most) {
  if (!object.contains(key)) return fallback;
  const bool is_right = object[key].is_number_integer() && object[key].get<double>() >= 1 &&
                        object[key].get<double>() <= static_cast<double>(most);
  if (is_right) return object[key].get<std::int64_t>();
  throw NotAllowed(std::string(key) + " must be a whole number from 1 to " + std::to_string(most));
}

template <std::size_t count>
std::string names_of(const Place (&places)[count]) {
  std::string names;
  for (const auto& place : places) names += std::string(names.empty() ? "" : ", ") + place.key;
  return names;
}

// type: as a schema of JSON names it.
void require_type(const Json& value, const std::string& key, const std::string& type) {
  const bool is_right = type == "string"    ? value.is_string()
                        : type == "boolean" ? value.is_boolean()
                        : type == "integer" ? value.is_number_integer()
                                            : value.is_number();
  if (!is_right) throw NotAllowed(key + " must be of the type " + type);
}

// Puts each value where it belongs. Keys of `others` are read elsewhere.
template <std::size_t count>
void translate(const Json& settings, const Place (&places)[count], const std::vector<std::string>& others,
               const char* what, Json& config) {
  for (const auto& [key, value] : settings.items()) {
    if (std::ranges::find(others, key) != others.end()) continue;
    const auto* place = std::ranges::find_if(places, [&](const Place& each) { return key == each.key; });
    if (place == std::end(places)) {
      std::string all = names_of(places);
      for (const auto& other : others) all += ", " + other;
      throw NotAllowed(std::string(what) + " has no " + key + "; it has " + all);
    }
    require_type(value, key, place->type);
    config[place->table][place->option] = value;
  }
}

void set_training(const Json& settings, Json& config) {
  translate(settings, training_places, {"max_grad_norm", "gradient_checkpointing"}, "training_args", config);
  if (config.contains("accumulation")) {
    // Here a batch is that of a whole update, whatever its micro-batches.
    config["accumulation"]["use"] = "fixed";
    const auto accumulated = integer_in(settings, "gradient_accumulation_steps", 1, 1 << 20);
    if (settings.contains("per_device_train_batch_size")) {
      config["task"]["batch_size"] = accumulated * integer_in(settings, "per_device_train_batch_size", 8, 1 << 20);
    }
  }
  if (settings.contains("max_grad_norm")) {
    require_type(settings["max_grad_norm"], "max_grad_norm", "number");
    config["callback"].push_back({{"use", "clip_norm"}, {"max_norm", settings["max_grad_norm"]}});
  }
  if (settings.contains("gradient_checkpointing")) {
    require_type(settings["gradient_checkpointing"], "gradient_checkpointing", "boolean");
    config["task"]["recompute"] = settings["gradient_checkpointing"] == true ? "full" : "none";
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
    lines += (body.contains("model") ? Json{{"text", text}}.dump() : text.get<std::string>()) + "\n";
  }
  return lines;
}

// "gpt2", "llama", … of a published model's folder; "" where it is none.
std::string kind_of_model(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "config.json");
  const auto config = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("model_type") && config["model_type"].is_string()
             ? config["model_type"].get<std::string>()
             : "";
}

// Without a model, bytes are learned from scratch.
void set_model(const Json& body, const std::string& data, Json& config) {
  auto& task = config["task"];
  task["data"] = {data};
  task["context"] = integer_in(body, "max_length", 128, 1'000'000);
  if (!body.contains("model")) {
    task["use"] = "gpt";
    return;
  }
  if (!body["model"].is_string()) throw NotAllowed("model must be the folder of a published model");
  task["folder"] = body["model"];
  task["use"] = kind_of_model(body["model"].get<std::string>()) == "gpt2" ? "gpt" : "llama";
}

}  // namespace

Json precision_schema() {
  Json properties = {{"precision", {{"enum", {"no", "fp32", "fp16", "bf16", "fp8", "auto"}}}},
                     {"enabled", {{"type", "boolean"}}}};
  for (const auto& place : precision_places) properties[place.key] = {{"type", place.type}};
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

Json training_schema() {
  Json properties = {{"max_grad_norm", {{"type", "number"}}}, {"gradient_checkpointing", {{"type", "boolean"}}}};
  for (const auto& place : training_places) properties[place.key] = {{"type", place.type}};
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

Json precision_tables(const Json& settings) {
  Json config = Json::object();
  translate(settings, precision_places, {"precision", "enabled"}, "config", config);
  if (settings.contains("enabled")) require_type(settings["enabled"], "enabled", "boolean");
  const bool is_on = !settings.contains("enabled") || settings["enabled"] == true;
  const auto given = settings.contains("precision") ? settings["precision"] : Json("bf16");
  const auto names = precision_schema()["properties"]["precision"]["enum"];
  if (std::ranges::find(names, given) == names.end()) throw NotAllowed("precision must be one of " + names.dump());
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

FirstJob first_job_of(FirstKind kind, const Json& body) {
  FirstJob job{.config = Json::object(), .texts_name = "", .texts = ""};
  auto& config = job.config;
  if (kind == FirstKind::train) {
    config = object_in(body, "config");
    if (config.empty()) throw NotAllowed("config is needed: a configuration of Vernier, with task and optimizer");
  } else {
    job.texts = texts_of(body);
    job.texts_name = body.contains("model") ? "texts.jsonl" : "texts.txt";
    set_model(body, job.texts_name, config);
    config["optimizer"] = {{"use", "adamw"}};
  }
  auto precision = object_in(body, kind == FirstKind::train ? "mixed_precision" : "config");
  if (kind == FirstKind::optimize) precision["precision"] = "auto";
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
