// The endpoints that backends for fine-tuning send their requests to: the requests as they stand in their documents
// (the files in requests/), which jobs they become, and what is refused.
#include <toml++/toml.h>

#include "job_server.h"

namespace finetuning_test {

using namespace job_server;

namespace {

constexpr const char *finetune = "/finetuning/mixed-precision", *setup = "/finetuning/setup-mixed-precision";
const fs::path files = VERNIER_SOURCE_DIR "/tests/framework/serve";
const std::vector<std::string> with_models = {"--models", (files / "models").string()};

std::string literal(const std::string& name) {
  return read_text(files / "requests" / (name + ".json"));
}

Json body_with(const Json& more) {
  Json body = Json::parse(literal("train"));
  body.erase("training_args");
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

// The configuration that became of the newest job.
toml::table configuration(const JobServer& server, const Answer& answer) {
  INFO(answer.text);
  REQUIRE(answer.status == 202);
  const auto job = server.job(answer.body.at("job_id").get<std::int64_t>());
  return toml::parse(job.at("config").get<std::string>());
}

}  // namespace

TEST_CASE("serve: requests of fine-tuning backends, as they stand in their documents") {
  JobServer server(with_models, /*with_script=*/false);
  const char* stats = "/finetuning/mixed-precision-stats";
  auto answer = server.get(stats);
  CHECK(answer.status == 200);
  CHECK(answer.body.at("enabled") == false);

  answer = server.post(setup, literal("setup"));
  REQUIRE_MESSAGE(answer.status == 200, answer.text);
  CHECK(answer.body.at("enabled") == true);
  CHECK(answer.body.at("scaler_scale") == 65536);
  answer = server.get(stats);
  CHECK(answer.body.at("enabled") == true);
  CHECK(answer.body.at("scaler_scale") == 65536);
  CHECK(answer.body.at("setups").at(0).at("model_name") == "gpt2");

  answer = server.post(finetune, literal("mixed-precision"));
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  CHECK(answer.body.at("effective_batch_size").is_null());
  CHECK(answer.body.at("error").is_null());
  CHECK(answer.body.at("user_id") == "123");
  CHECK(answer.body.at("warnings").size() == 1);
  const auto id = answer.body.at("job_id").get<std::int64_t>();
  REQUIRE_MESSAGE(server.waits_for(id, "done"), server.log(id));
  answer = server.get(std::string(stats) + "?user_id=123");
  CHECK(answer.body.at("job_id") == id);
  CHECK(answer.body.at("enabled") == true);
  CHECK(answer.body.at("mixed_precision_enabled") == true);
  CHECK(answer.body.at("gradient_accumulation_enabled") == false);
  CHECK(answer.body.at("effective_batch_size") == 1);  // the two texts fit into a row
  CHECK(answer.body.at("scaler_scale") == 65536);
  CHECK(answer.body.at("overflow_count") == 0);
  CHECK(answer.body.at("underflow_count").is_null());  // three steps measure none
  CHECK(answer.body.at("memory_savings_gb").is_number());
  CHECK(answer.body.at("statistics").at("steps") == 3);
  CHECK(answer.body.at("statistics").at("amp").at("amp_steps") == 3);
  CHECK(fs::exists(answer.body.at("model_path").get<std::string>() + "/checkpoints"));

  answer = server.post("/finetuning/optimized", literal("optimized"));
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  CHECK(answer.body.at("mixed_precision_enabled") == true);
  CHECK(answer.body.at("gradient_accumulation_enabled") == true);
  CHECK(answer.body.at("effective_batch_size").is_null());
  const auto second = answer.body.at("job_id").get<std::int64_t>();
  CHECK_MESSAGE(server.waits_for(second, "done"), server.log(second));
  CHECK(server.get(std::string(stats) + "?job_id=" + std::to_string(second)).body.at("effective_batch_size") == 1);

  answer = server.post("/train/mixed-precision", literal("train"));
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  const auto third = answer.body.at("job_id").get<std::int64_t>();
  CHECK_MESSAGE(server.waits_for(third, "done"), server.log(third));

  answer = server.post(finetune, literal("advanced"));
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  CHECK(answer.body.at("warnings").dump().find("loss_scale_window is not used beside growth_interval") !=
        std::string::npos);
  const auto fourth = answer.body.at("job_id").get<std::int64_t>();
  CHECK_MESSAGE(server.waits_for(fourth, "done"), server.log(fourth));

  // The trained model, as transformers loads it.
  const auto model = "/v1/jobs/" + std::to_string(id) + "/model";
  CHECK(server.get(model).status == 403);
  REQUIRE(wait_until([&] { return (answer = server.ask_as("control", "GET", model)).status != 503; }));
  REQUIRE_MESSAGE(answer.status == 200, answer.text.substr(0, 2000));
  const TemporaryFolder place;
  place.write("model.tar", body_of(answer.text));
  REQUIRE(std::system(("tar -xf " + place / "model.tar" + " -C " + place.path().string()).c_str()) == 0);
  CHECK(Json::parse(read_text(place.path() / "model/config.json")).at("model_type") == "gpt2");
  CHECK(fs::file_size(place.path() / "model/model.safetensors") ==
        fs::file_size(files / "models/gpt2/model.safetensors"));
  CHECK(fs::exists(place.path() / "model/tokenizer.json"));
  const auto audit = read_text(server.path() / "audit.jsonl");
  CHECK(audit.find("\"action\":\"export\",\"job\":" + std::to_string(id)) != std::string::npos);
}

TEST_CASE("serve: a setup of mixed precision is kept by user and model, and wrong ones are refused at once") {
  JobServer server(with_models, /*with_script=*/false);
  const char* stats = "/finetuning/mixed-precision-stats";
  const std::string bob(40, 'b'), control = server.tokens.at("control");
  std::ofstream(server.path() / "tokens", std::ios::app) << "control " << bob << " bob\n";
  REQUIRE(wait_until([&] { return server.ask_as(bob, "GET", stats).status == 200; }));
  REQUIRE(server.post(setup, R"({"model_name": "gpt2", "level": "O0", "init_scale": 128})").status == 200);
  CHECK(read_text(server.path() / "audit.jsonl").find("\"action\":\"setup\",\"user\":\"control\"") !=
        std::string::npos);
  server.restart();
  server.tokens["control"] = control;
  CHECK(server.get(stats).body.at("scaler_scale") == 128);
  CHECK(server.get(stats).body.at("enabled") == false);  // O0 is float32
  CHECK(server.ask_as(bob, "GET", stats).body.at("scaler_scale").is_null());

  Json body = body_with({{"training_config", {{"max_steps", 1}}}});
  body.erase("mixed_precision_config");
  auto answer = server.post(finetune, body.dump());
  const auto table = configuration(server, answer);
  CHECK(table["precision"]["level"].value_or("") == std::string("O0"));
  CHECK(table["scaler"]["init_scale"].value_or(0.0) == 128);
  const auto id = answer.body.at("job_id").get<std::int64_t>();
  CHECK_MESSAGE(server.waits_for(id, "done"), server.log(id));
  answer = server.get(stats);
  CHECK(answer.body.at("enabled") == false);
  CHECK(answer.body.at("statistics").at("amp").at("amp_steps") == 0);
  CHECK(answer.body.at("setups").at(0).at("mixed_precision_config").at("level") == "O0");

  // A context that the model does not have is known once the model is read: the job fails, and says why.
  body["dataset_config"]["max_length"] = 100'000;
  answer = server.post(finetune, body.dump());
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  CHECK(server.waits_for(answer.body.at("job_id").get<std::int64_t>(), "failed"));
  answer = server.get(stats);
  CHECK_MESSAGE(answer.body.at("error").get<std::string>().find("context") != std::string::npos, answer.text);

  const Json wrong = {{"dtype", "float16"}, {"init_scale", 8}, {"min_loss_scale", 16}};
  for (const auto* path : {setup, finetune}) {
    const auto text = path == setup ? wrong.dump() : body_with({{"mixed_precision_config", wrong}}).dump();
    CHECK(wait_until(
        [&] { return (answer = server.post(path, text)).status == 422; }));  // it takes long on a busy machine
    CHECK_MESSAGE(answer.text.find("scaler/dynamic: `min_loss_scale` is above init_scale = 8") != std::string::npos,
                  answer.text);
  }
}

TEST_CASE("serve: advice on mixed precision is measured, or by rule where a model does not train, and trains no job") {
  const char* optimize = "/finetuning/optimize-mixed-precision";
  JobServer measures(with_models, /*with_script=*/false);
  auto answer = measures.post(optimize, literal("optimize"));
  REQUIRE_MESSAGE(answer.status == 200, answer.text);
  CHECK(answer.body.at("should_use_mixed_precision").is_boolean());
  CHECK(answer.body.at("warnings").is_array());
  // A busy machine may take too long: then it is by the machine's instructions, and never float32 alone.
  const bool is_measured = !answer.body.at("reason").get<std::string>().starts_with("it was not measured (");
  if (is_measured) {
    CHECK(answer.body.at("evidence").at(0).at("name") == "as written");
    CHECK(answer.body.at("evidence").at(1).at("name") == "bf16");
    CHECK(answer.body.at("evidence").at(1).at("samples_per_second").get<double>() > 0);
  }
  CHECK_FALSE(answer.body.at("recommendations").empty());
  auto training = body_with(answer.body.at("request"));
  if (!answer.body.at("request").contains("mixed_precision_config")) training.erase("mixed_precision_config");
  const auto should = answer.body.at("should_use_mixed_precision");
  CHECK(measures.get("/v1/jobs").body.at("jobs").empty());
  answer = measures.post(finetune, training.dump());
  REQUIRE_MESSAGE(answer.status == 202, answer.text);
  CHECK(answer.body.at("mixed_precision_enabled") == should);

  const JobServer cannot(with_models);  // in the place of vernier is a script
  answer = cannot.post(optimize, literal("optimize"));
  REQUIRE_MESSAGE(answer.status == 200, answer.text);
  CHECK(answer.body.at("reason").get<std::string>().starts_with("it was not measured ("));
  CHECK(answer.body.at("evidence").empty());
}

TEST_CASE("serve: settings of mixed precision become tables, or are refused with what there is") {
  const JobServer server(with_models);
  const struct {
    Json settings;
    int status;
    std::string part;
  } cases[] = {
      {{{"dtype", "bfloat16"}}, 200, R"({"precision":{"use":"bf16"}})"},
      {{{"dtype", "float32"}, {"level", "O1"}}, 200, R"({"precision":{"use":"fp32"}})"},
      {{{"dtype", "float16"}, {"init_scale", 8}, {"enabled", false}}, 200, R"({"precision":{"use":"fp32"}})"},
      {{{"init_scale", 8}}, 200, R"({"precision":{"use":"fp16"},"scaler":{"init_scale":8,"use":"dynamic"}})"},
      {{{"dtype", "float16"}, {"opt_level", "O2"}, {"loss_scale_window", 100}, {"max_loss_scale", 1024}},
       200,
       R"({"precision":{"level":"O2","use":"fp16"},"scaler":{"growth_interval":100,"max_scale":1024,"use":"dynamic"}})"},
      {{{"cache_enabled", false}, {"deterministic", true}, {"log_memory_usage", true}},
       200,
       R"({"callback":[{"use":"memory"}],"precision":{"use":"fp16","weight_casts":"none"},"run":{"deterministic":true},)"
       R"("scaler":{"use":"dynamic"}})"},
      {{{"growth_interval", 10}, {"loss_scale_window", 10}},
       200,
       R"({"precision":{"use":"fp16"},"scaler":{"growth_interval":10,"use":"dynamic"}})"},
      {{{"dtype", "float16"}, {"precision", "fp16"}},
       200,
       R"({"precision":{"use":"fp16"},"scaler":{"use":"dynamic"}})"},
      {{{"dtype", "auto"}}, 200, R"({"precision":{"use":"auto"},"scaler":{"use":"dynamic"}})"},
      {{{"growth_interval", 2000}, {"loss_scale_window", 1000}},
       422,
       "growth_interval = 2000 and loss_scale_window = 1000 are two names of one setting"},
      {{{"dtype", "float16"}, {"precision", "bf16"}}, 422, "two names of one setting; leave one of them out"},
      {{{"dtype", "bfloat16"}, {"init_scale", 1024}}, 422, "the loss is scaled for float16 only"},
      {{{"dtype", "float16"}, {"scaler_enabled", false}}, 422, "float16 needs a loss scale"},
      {{{"dtype", "int8"}}, 422, "dtype must be one of"},
      {{{"dtype", 16}}, 422, "dtype must be one of"},
      {{{"fp16", true}}, 422, "mixed_precision_config has no fp16; it has enabled, dtype"},
      {{{"level", "O4"}}, 422, "level must be one of"},
      {{{"enabled", 1}}, 422, "enabled must be of the type boolean"},
      {{{"dtype", "float16"}, {"growth_interval", -1}}, 422, "growth_interval must be a whole number from 0"},
      {{{"model_name", "bert"}}, 422, "there is no such model; there are gpt2; a model is added as a folder"},
      {{{"model_name", "../serve"}}, 422, "there is no such model"},
      {{{"user_id", "a b"}}, 422, "user_id must be a whole number, or have the letters of a name"}};
  for (const auto& [settings, status, part] : cases) {
    const auto answer = server.post(setup, settings.dump());
    CAPTURE(answer.text);
    CHECK(answer.status == status);
    if (status != 200) CHECK(answer.text.find(part) != std::string::npos);
    if (status == 200) CHECK(nlohmann::json(answer.body.at("config")) == nlohmann::json::parse(part));
  }
}

TEST_CASE("serve: requests of fine-tuning backends become jobs") {
  const JobServer server(with_models);
  auto table =
      configuration(server, server.post(finetune, body_with({{"mixed_precision_config", {{"dtype", "float16"}}},
                                                             {"training_config",
                                                              {{"max_steps", 7.0},
                                                               {"learning_rate", 0.5},
                                                               {"per_device_train_batch_size", 2},
                                                               {"gradient_accumulation_steps", 3},
                                                               {"gradient_checkpointing", true},
                                                               {"max_grad_norm", 0.25}}}})
                                                      .dump()));
  CHECK(table["task"]["use"].value_or("") == std::string("gpt"));
  CHECK(table["task"]["context"].value_or(0) == 128);
  CHECK(table["task"]["batch_size"].value_or(0) == 2);
  CHECK(table["task"]["recompute"].value_or("") == std::string("full"));
  CHECK(table["accumulation"]["target_effective_batch_size"].value_or(0) == 6);
  CHECK(table["optimizer"]["learning_rate"].value_or(0.0) == 0.5);
  CHECK(table["run"]["steps"].value_or(0) == 7);
  CHECK(table["run"]["measure_savings"].value_or(false));
  CHECK(table["precision"]["use"].value_or("") == std::string("fp16"));
  CHECK(table["scaler"]["use"].value_or("") == std::string("dynamic"));
  CHECK(table["callback"][0]["max_norm"].value_or(0.0) == 0.25);
  REQUIRE(wait_until([&] { return fs::exists(server.path() / "jobs/1/texts.jsonl"); }));
  CHECK(read_text(server.path() / "jobs/1/texts.jsonl") ==
        "{\"text\":\"sample text 1\"}\n{\"text\":\"sample text 2\"}\n");

  table = configuration(server, server.post("/finetuning/optimized", body_with(Json::object()).dump()));
  CHECK(table["optimizer"]["state"].value_or("") == std::string("8bit"));
  CHECK(table["accumulation"]["use"].value_or("") == std::string("target"));
  CHECK(table["run"]["epochs"].value_or(0) == 1);
  CHECK(table["precision"]["use"].value_or("") == std::string("bf16"));  // the request asked for it

  Json off = body_with({{"use_mixed_precision", false}, {"use_gradient_accumulation", false}});
  table = configuration(server, server.post("/finetuning/optimized", off.dump()));
  CHECK(table["precision"]["use"].value_or("") == std::string("fp32"));
  CHECK_FALSE(table.contains("accumulation"));

  std::string long_text(60'000, 'a');
  off = body_with({{"dataset_config", {{"texts", {long_text}}}}});
  const auto answer = server.post(finetune, off.dump());
  CHECK(answer.body.at("warnings").empty());
  CHECK_FALSE(configuration(server, answer)["task"].as_table()->contains("validation_share"));
}

TEST_CASE("serve: what a fine-tuning request does not have is refused") {
  const JobServer server(with_models);
  const struct {
    Json body;
    std::string part;
  } cases[] = {
      {Json::object(), "model_name is needed"},
      {{{"model_name", "gpt2"}}, "dataset_config.texts must be a list"},
      {body_with({{"model_name", "/etc"}}), "there is no such model"},
      {body_with({{"model_name", 1}}), "model_name is needed"},
      {body_with({{"dataset_config", {{"texts", Json::array()}}}}), "texts must be a list"},
      {body_with({{"dataset_config", {{"texts", {1}}}}}), "texts must be a list"},
      {body_with({{"dataset_config", {{"texts", {"a"}}, {"max_length", 0}}}}), "max_length must be a whole number"},
      {body_with({{"dataset_config", {{"texts", {"a"}}, {"path", "/etc"}}}}), "dataset_config has no path"},
      {body_with({{"dataset_config", 1}}), "dataset_config must be an object"},
      {body_with({{"other", 1}}), "this request has no other"},
      {body_with({{"user_id", -1}}), "user_id must be"},
      {body_with({{"target_effective_batch_size", 0}}), "target_effective_batch_size must be a whole number"},
      {body_with({{"target_effective_batch_size", 7}, {"training_config", {{"batch_size", 2}}}}),
       "must be a multiple of batch_size, 2"},
      {body_with({{"use_gradient_accumulation", "yes"}}), "must be of the type boolean"},
      {body_with({{"training_config", {{"epochs", 3}}}, {"training_args", {{"epochs", 1}}}}),
       "training_config.epochs = 3 and training_args.epochs = 1 are two names of one setting"},
      {body_with({{"training_config", {{"batch_size", 3}, {"per_device_train_batch_size", 1}}}}),
       "batch_size = 3 and per_device_train_batch_size = 1 are two names of one setting"},
      {body_with({{"training_config", {{"fp16", true}}}}), "training_config has no fp16; it has epochs"},
      {body_with({{"training_config", {{"max_steps", 1.5}}}}), "max_steps must be a whole number from 0"},
      {body_with({{"training_config", 1}}), "training_config must be an object"},
      {body_with({{"mixed_precision_config", 1}}), "mixed_precision_config must be an object"}};
  for (const auto& [body, part] : cases) {
    const auto answer = server.post(finetune, body.dump());
    CAPTURE(answer.text);
    CHECK(answer.status == 422);
    CHECK(answer.text.find(part) != std::string::npos);
  }
  const JobServer without;
  CHECK(without.post(finetune, literal("mixed-precision")).text.find("--models FOLDER") != std::string::npos);
  CHECK(server.get("/finetuning/mixed-precision-stats?job_id=99").status == 404);
  CHECK(server.get("/v1/jobs").body.at("jobs").empty());
}

}  // namespace finetuning_test
