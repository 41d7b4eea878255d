#include "service/api/finetuning_jobs.h"

#include <vernier/json_in.h>

#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <map>
#include <span>
#include <string_view>

#include "service/api/job_check.h"
#include "service/http/schema.h"

namespace serve {

namespace fs = std::filesystem;
using vernier::schema::whole_in;

namespace {

// A key of a request, and the table and option of a configuration that it becomes. A number must be from `least` to
// `most`. Keys without a table have code of their own.
struct Place {
  const char *key, *type, *table, *option;
  std::int64_t least = 0, most = 1'000'000'000'000;
};

constexpr std::int64_t most_samples = 1 << 20;  // the largest update

constexpr Place precision_places[] = {{"enabled", "boolean", "", ""},
                                      {"dtype", "dtype", "precision", "use"},
                                      {"precision", "dtype", "precision", "use"},
                                      {"autocast_enabled", "boolean", "", ""},
                                      {"scaler_enabled", "boolean", "", ""},
                                      {"memory_efficient", "boolean", "", ""},
                                      {"log_precision", "boolean", "", ""},
                                      {"log_memory_usage", "boolean", "", ""},
                                      {"level", "level", "precision", "level"},
                                      {"opt_level", "level", "precision", "level"},
                                      {"cache_enabled", "boolean", "precision", "weight_casts"},
                                      {"deterministic", "boolean", "run", "deterministic"},
                                      {"init_scale", "number", "scaler", "init_scale"},
                                      {"growth_factor", "number", "scaler", "growth_factor"},
                                      {"backoff_factor", "number", "scaler", "backoff_factor"},
                                      {"growth_interval", "integer", "scaler", "growth_interval"},
                                      {"loss_scale_window", "integer", "scaler", "growth_interval"},
                                      {"min_loss_scale", "number", "scaler", "min_scale"},
                                      {"max_loss_scale", "number", "scaler", "max_scale"},
                                      {"hysteresis", "integer", "scaler", "hysteresis"}};

constexpr Place training_places[] = {{"epochs", "integer", "run", "epochs"},
                                     {"num_train_epochs", "integer", "run", "epochs"},
                                     {"max_steps", "integer", "run", "steps"},
                                     {"seed", "integer", "run", "seed"},
                                     {"learning_rate", "number", "optimizer", "learning_rate"},
                                     {"weight_decay", "number", "optimizer", "weight_decay"},
                                     {"batch_size", "integer", "task", "batch_size", 1, most_samples},
                                     {"per_device_train_batch_size", "integer", "task", "batch_size", 1, most_samples},
                                     {"gradient_accumulation_steps", "integer", "", "", 1, most_samples},
                                     {"save_steps", "integer", "checkpoint", "every"},
                                     {"eval_steps", "integer", "run", "validate_every"},
                                     {"gradient_checkpointing", "boolean", "", ""},
                                     {"max_grad_norm", "number", "", ""}};

constexpr Place length_place = {"max_length", "integer", "task", "context", 1, 1'000'000};
constexpr Place target_place = {"target_effective_batch_size", "integer", "", "", 1, most_samples};

// The dtypes of PyTorch and of Vernier, and the precision that each is.
constexpr std::pair<const char*, const char*> dtypes[] = {
    {"float16", "fp16"}, {"fp16", "fp16"}, {"half", "fp16"}, {"bfloat16", "bf16"}, {"bf16", "bf16"},
    {"float32", "fp32"}, {"fp32", "fp32"}, {"no", "fp32"},   {"fp8", "fp8"},       {"auto", "auto"}};
const Json& dtype_names() {
  static const Json names = [] {
    Json all = Json::array();
    for (const auto& [name, precision] : dtypes) all.push_back(name);
    return all;
  }();
  return names;
}
const Json& level_names() {
  static const Json names = {"O0", "O1", "O2", "O3"};
  return names;
}

bool is_one_of(const Json& names, const Json& value) {
  return std::ranges::find(names, value) != names.end();
}

// The object below the key; empty if it is not there.
const Json& object_in(const Json& body, const char* key) {
  static const Json none = Json::object();
  if (!body.contains(key)) return none;
  if (!body[key].is_object()) throw NotAllowed(std::string(key) + " must be an object");
  return body[key];
}

bool is_true(const Json& body, const char* key, bool fallback) {
  if (!body.contains(key)) return fallback;
  if (!body[key].is_boolean()) throw NotAllowed(std::string(key) + " must be of the type boolean");
  return body[key].get<bool>();
}

bool is_in_range(const Json& value, const Place& place) {
  if (std::string_view(place.type) == "integer") return whole_in(value, place.least, place.most).has_value();
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return number >= static_cast<double>(place.least) && number <= static_cast<double>(place.most);
}

void require_type(const Json& value, const Place& place) {
  const std::string_view type = place.type;
  const std::string key = place.key;
  if (type == "boolean") {
    if (!value.is_boolean()) throw NotAllowed(key + " must be of the type boolean");
  } else if (type == "level" || type == "dtype") {
    const auto& names = type == "level" ? level_names() : dtype_names();
    if (!is_one_of(names, value)) throw NotAllowed(key + " must be one of " + vernier::json_text(names));
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
  if (type == "dtype") return {{"enum", dtype_names()}};
  return {{"type", place.type}, {"minimum", place.least}, {"maximum", place.most}};
}

Json schema_of(std::span<const Place> places) {
  Json properties = Json::object();
  for (const auto& place : places) properties[place.key] = schema_of(place);
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

// The value as the configuration has it.
Json value_of(const Json& value, const Place& place) {
  const std::string_view type = place.type;
  if (type == "integer") return value.get<std::int64_t>();  // 3.0 is whole, too
  if (type != "dtype") return value;
  return std::ranges::find_if(dtypes, [&](const auto& dtype) { return value == dtype.first; })->second;
}

void put(const Json& value, const Place& place, Json& config) {
  config[place.table][place.option] = value_of(value, place);
}

[[noreturn]] void refuse_pair(const std::string& one, const Json& its, const std::string& other, const Json& value) {
  throw NotAllowed(one + " = " + vernier::json_text(its) + " and " + other + " = " + vernier::json_text(value) +
                   " are two names of one setting; leave one of them out");
}

// Checks the keys and values of an object of the request, and puts those into the configuration that have a place
// there. Refuses two names of one option with two values.
void put_all(const Json& settings, const char* what, std::span<const Place> places, Json& config) {
  std::map<std::pair<std::string_view, std::string_view>, const Place*> put_by;
  for (const auto& [key, value] : settings.items()) {
    const auto found = std::ranges::find(places, key, &Place::key);
    if (found == places.end()) {
      std::string others;
      for (const auto& each : places) others += (others.empty() ? "" : ", ") + std::string(each.key);
      throw NotAllowed(std::string(what) + " has no " + key + "; it has " + others);
    }
    require_type(value, *found);
    if (found->table[0] == '\0') continue;
    const auto* before = put_by.try_emplace({found->table, found->option}, &*found).first->second;
    const auto& first = settings[before->key];
    if (value_of(first, *before) != value_of(value, *found)) refuse_pair(before->key, first, key, value);
    put(value, *found, config);
  }
}

void save_memory(Json& config) {
  config["task"]["recompute"] = "full";
  config["optimizer"]["state"] = "8bit";
}

std::int64_t integer_in(const Json& settings, const char* key, std::int64_t fallback) {
  return settings.contains(key) ? settings[key].get<std::int64_t>() : fallback;
}

// The samples of a micro-batch and of an update.
void set_batches(const Json& body, const Json& training, bool accumulates, Json& config) {
  auto& batch = config["task"]["batch_size"];
  if (!accumulates) {
    if (batch.is_null()) batch = 8;
    return;
  }
  if (body.contains("target_effective_batch_size")) require_type(body["target_effective_batch_size"], target_place);
  auto target = integer_in(body, "target_effective_batch_size", 0);
  if (batch.is_null()) {
    batch = 8;
    while (target % batch.get<std::int64_t>() != 0) batch = batch.get<std::int64_t>() / 2;
  }
  const auto samples = batch.get<std::int64_t>();
  if (target == 0) target = samples * integer_in(training, "gradient_accumulation_steps", 4);
  if (target % samples != 0) {
    throw NotAllowed("target_effective_batch_size is " + std::to_string(target) +
                     ", and must be a multiple of batch_size, " + std::to_string(samples));
  }
  config["accumulation"] = {{"use", "target"}, {"target_effective_batch_size", target}};
}

void set_training(const Json& body, FinetuningKind kind, Json& config) {
  Json training = object_in(body, "training_config");
  for (const auto& [key, value] : object_in(body, "training_args").items()) {
    if (training.value(key, value) != value) {
      refuse_pair("training_config." + key, training[key], "training_args." + key, value);
    }
    training[key] = value;
  }
  put_all(training, "training_config", training_places, config);
  if (training.contains("max_grad_norm")) {
    config["callback"].push_back({{"use", "clip_norm"}, {"max_norm", training["max_grad_norm"]}});
  }
  if (kind == FinetuningKind::optimized) save_memory(config);
  if (training.contains("gradient_checkpointing")) {
    config["task"]["recompute"] = training["gradient_checkpointing"] == true ? "full" : "none";
  }
  const bool says_how_often =
      body.contains("target_effective_batch_size") || training.contains("gradient_accumulation_steps");
  set_batches(body, training,
              is_true(body, "use_gradient_accumulation", says_how_often || kind == FinetuningKind::optimized), config);
  if (!config["run"].contains("steps") && !config["run"].contains("epochs")) config["run"]["epochs"] = 1;
}

// A line of JSON for each text, as tasks with a published model read them.
void set_texts(const Json& dataset, const fs::path& model, FinetuningJob& job) {
  for (const auto& [key, value] : dataset.items()) {
    if (key != "texts" && key != "max_length")
      throw NotAllowed("dataset_config has no " + key + "; it has texts, max_length");
  }
  if (!dataset.contains("texts") || !dataset["texts"].is_array() || dataset["texts"].empty()) {
    throw NotAllowed("dataset_config.texts must be a list of texts, with one at least");
  }
  std::size_t bytes = 0;
  for (const auto& text : dataset["texts"]) {
    if (!text.is_string()) throw NotAllowed("dataset_config.texts must be a list of texts");
    job.texts += vernier::json_text(Json{{"text", text}}) + "\n";
    bytes += text.get_ref<const std::string&>().size();
  }
  job.texts_name = "texts.jsonl";
  auto& task = job.config["task"];
  task = {{"use", task_of_model(model)}, {"folder", model.string()}, {"data", {job.texts_name}}, {"context", 128}};
  if (dataset.contains("max_length")) {
    require_type(dataset["max_length"], length_place);
    put(dataset["max_length"], length_place, job.config);
  }
  // A token is a few bytes, and rows of `context` tokens are held out.
  const auto rows = bytes / 4 / task["context"].get<std::size_t>();
  if (rows >= 20) return;
  task["validation_share"] = 0;
  const auto count = dataset["texts"].size();
  job.warnings.push_back(std::to_string(count) + (count == 1 ? " text is" : " texts are") +
                         " little to learn from: nothing is held out for a validation");
}

Json config_of_model(const fs::path& folder) {
  std::ifstream file(folder / "config.json");
  return vernier::json_in<Json>(file);
}

}  // namespace

fs::path ModelFolders::find(const std::string& name) const {
  const bool is_name = !name.empty() && name.size() <= 200 && name.front() != '/' && name.front() != '.' &&
                       name.find("/.") == name.npos && std::ranges::all_of(name, [](unsigned char c) {
                         return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '/';
                       });
  std::error_code none;
  for (const auto& folder : folders_) {
    if (is_name && fs::is_regular_file(folder / name / "config.json", none)) return folder / name;
  }
  if (folders_.empty()) throw NotAllowed("this server has no models: it must be started with --models FOLDER");
  std::string all;
  for (const auto& each : names()) all += (all.empty() ? "" : ", ") + each;
  throw NotAllowed(
      "model_name: there is no such model" + (all.empty() ? "" : "; there are " + all) +
      "; a model is added as a folder with config.json, weights and tokenizer.json below a folder that the "
      "server's --models names");
}

std::vector<std::string> ModelFolders::names() const {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& folder : folders_) {
    for (const auto& each : fs::directory_iterator(folder, none)) {
      if (fs::is_regular_file(each.path() / "config.json", none)) names.push_back(each.path().filename());
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string task_of_model(const fs::path& folder) {
  const auto config = config_of_model(folder);
  return config.is_object() && config.value("model_type", "") == "gpt2" ? "gpt" : "llama";
}

std::string in_words_of_requests(std::string refusal) {
  if (refusal.starts_with("job.toml:")) refusal.erase(0, refusal.find(": ") + 2);
  for (const auto& place : precision_places) {
    const auto option = "`" + std::string(place.option) + "`", key = "`" + std::string(place.key) + "`";
    const auto found = refusal.find(option);
    if (place.table == std::string_view("scaler") && found != refusal.npos) refusal.replace(found, option.size(), key);
  }
  return refusal;
}

Json precision_tables(Json settings, Json* warnings) {
  Json config = Json::object();
  // The first is the word of torch.amp.GradScaler, the second that of DeepSpeed, where hysteresis starts anew after it,
  // too. So only beside hysteresis they may differ.
  const auto interval = settings.value("growth_interval", Json()), window = settings.value("loss_scale_window", Json());
  const auto hysteresis = settings.value("hysteresis", Json());
  if (interval.is_number() && window.is_number() && interval != window && hysteresis.is_number() && hysteresis > 1) {
    settings.erase("loss_scale_window");
    if (warnings != nullptr) {
      warnings->push_back(
          "loss_scale_window is not used beside growth_interval: the scale grows, and hysteresis starts "
          "anew, after " +
          interval.dump() + " steps without an overflow");
    }
  }
  put_all(settings, "mixed_precision_config", precision_places, config);
  const bool is_on = is_true(settings, "enabled", true) && is_true(settings, "autocast_enabled", true);
  const auto name = is_on ? config.value(Json::json_pointer("/precision/use"), "fp16") : std::string("fp32");
  config["precision"]["use"] = name;
  if (name == "fp32") config["precision"].erase("level");
  if (auto& casts = config["precision"]; casts.contains("weight_casts")) {
    casts["weight_casts"] = casts["weight_casts"] == true ? "forward" : "none";
    if (name == "fp32") casts.erase("weight_casts");
  }
  const bool scales = is_true(settings, "scaler_enabled", name == "fp16" || name == "auto");  // auto may choose float16
  if (name == "fp16" && !scales) {
    throw NotAllowed("scaler_enabled is false, and float16 needs a loss scale; dtype = \"bfloat16\" needs none");
  }
  if (!is_on) {
    config.erase("scaler");
  } else if (scales) {
    config["scaler"]["use"] = "dynamic";
  } else if (config.contains("scaler")) {
    throw NotAllowed("the loss is scaled for float16 only; leave out init_scale and the other settings of the scale");
  }
  if (is_true(settings, "memory_efficient", false)) save_memory(config);
  if (is_true(settings, "log_precision", false)) config["callback"].push_back({{"use", "layers"}});
  if (is_true(settings, "log_memory_usage", false)) config["callback"].push_back({{"use", "memory"}});
  return config;
}

FinetuningJob finetuning_job_of(FinetuningKind kind, const Json& body, const ModelFolders& models) {
  FinetuningJob job{.config = Json::object(), .texts_name = "", .texts = ""};
  if (!body.contains("model_name") || !body["model_name"].is_string()) {
    throw NotAllowed("model_name is needed: the name of a model of this server");
  }
  set_texts(object_in(body, "dataset_config"), models.find(body["model_name"].get<std::string>()), job);
  job.config["optimizer"]["use"] = "adamw";
  auto precision = object_in(body, "mixed_precision_config");
  if (!is_true(body, "use_mixed_precision", true)) precision["enabled"] = false;
  const auto tables = precision_tables(precision, &job.warnings);
  job.config.update(tables, /*merge_objects=*/true);
  set_training(body, kind, job.config);
  // The float32 peak of the same run, for memory_savings_gb.
  if (job.config["precision"]["use"] != "fp32") job.config["run"]["measure_savings"] = true;
  return job;
}

FinetuningSettings settings_of(const std::string& config) {
  const auto table = toml::parse(config);
  FinetuningSettings settings;
  settings.is_mixed = table["precision"]["use"].value_or(std::string("fp32")) != "fp32" &&
                      table["precision"]["level"].value_or(std::string()) != "O0";
  settings.accumulates = table["accumulation"]["use"].value_or(std::string()) == "target";
  return settings;
}

Json precision_schema() {
  return schema_of(precision_places);
}

Json finetuning_properties() {
  const Json boolean = {{"type", "boolean"}}, text = {{"type", "string"}};
  Json dataset = {
      {"type", "object"},
      {"properties",
       {{"texts", {{"type", "array"}, {"items", text}, {"minItems", 1}}}, {"max_length", schema_of(length_place)}}},
      {"required", {"texts"}},
      {"additionalProperties", false}};
  return {{"model_name", text},
          {"dataset_config", dataset},
          {"training_config", schema_of(training_places)},
          {"training_args", schema_of(training_places)},
          {"mixed_precision_config", precision_schema()},
          {"use_mixed_precision", boolean},
          {"use_gradient_accumulation", boolean},
          {"target_effective_batch_size", schema_of(target_place)}};
}

}  // namespace serve
