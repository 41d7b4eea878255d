// The endpoints of the first service: what they take, and which jobs they become.
#include <toml++/toml.h>

#include "job_server.h"

namespace first_test {

using namespace job_server;

namespace {

constexpr const char* finetune = "/finetuning/mixed-precision";

Json body_with(const Json& more) {
  Json body = {{"texts", {"one text", "another \"text\"\n"}}};
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

TEST_CASE("serve: settings of mixed precision become tables, or are refused with what there is") {
  const JobServer server;
  const struct {
    Json config;
    int status;
    std::string part;
  } cases[] = {{{{"precision", "bf16"}}, 200, R"({"config":{"precision":{"use":"bf16"}}})"},
               {{{"precision", "no"}, {"level", "O1"}}, 200, R"({"config":{"precision":{"use":"fp32"}}})"},
               {{{"precision", "fp16"}, {"enabled", false}}, 200, R"({"config":{"precision":{"use":"fp32"}}})"},
               {{{"precision", "fp16"}, {"opt_level", "O2"}, {"init_scale", 1024}},
                200,
                R"({"config":{"precision":{"level":"O2","use":"fp16"},"scaler":{"init_scale":1024,"use":"dynamic"}}})"},
               {{{"precision", "bf16"}, {"init_scale", 1024}}, 422, "the loss is scaled for fp16 only"},
               {{{"precision", "int8"}}, 422, "precision must be one of"},
               {{{"precision", 16}}, 422, "precision must be one of"},
               {{{"dtype", "fp16"}}, 422, "config has no dtype; it has precision, enabled, level"},
               {{{"level", "O4"}}, 422, "level must be one of"},
               {{{"precision", "fp16"}, {"growth_interval", -1}}, 422, "growth_interval must be a whole number from 0"},
               {3, 422, "config is needed, an object"}};
  for (const auto& [config, status, part] : cases) {
    const auto answer = server.post("/finetuning/setup-mixed-precision", Json{{"config", config}}.dump());
    CAPTURE(answer.text);
    CHECK(answer.status == status);
    if (status != 200) CHECK(answer.text.find(part) != std::string::npos);
    if (status == 200) CHECK(nlohmann::json(answer.body) == nlohmann::json::parse(part));
  }
}

TEST_CASE("serve: requests of the first service become jobs") {
  const JobServer server;
  auto table = configuration(server, server.post(finetune, body_with({{"max_length", 64.0},
                                                                      {"user_id", "control"},
                                                                      {"config", {{"precision", "fp16"}}},
                                                                      {"training_args",
                                                                       {{"max_steps", 7.0},
                                                                        {"learning_rate", 0.5},
                                                                        {"per_device_train_batch_size", 2},
                                                                        {"gradient_accumulation_steps", 3},
                                                                        {"gradient_checkpointing", true},
                                                                        {"max_grad_norm", 0.25}}}})
                                                               .dump()));
  CHECK(table["task"]["use"].value_or("") == std::string("gpt"));
  CHECK(table["task"]["context"].value_or(0) == 64);
  CHECK(table["task"]["batch_size"].value_or(0) == 6);
  CHECK(table["task"]["recompute"].value_or("") == std::string("full"));
  CHECK(table["accumulation"]["micro_batches"].value_or(0) == 3);
  CHECK(table["optimizer"]["learning_rate"].value_or(0.0) == 0.5);
  CHECK(table["run"]["steps"].value_or(0) == 7);
  CHECK(table["precision"]["use"].value_or("") == std::string("fp16"));
  CHECK(table["scaler"]["use"].value_or("") == std::string("dynamic"));
  CHECK(table["callback"][0]["max_norm"].value_or(0.0) == 0.25);
  REQUIRE(wait_until([&] { return fs::exists(server.path() / "jobs/1/texts.txt"); }));
  CHECK(read_text(server.path() / "jobs/1/texts.txt") == "one text\nanother \"text\"\n\n");

  table = configuration(server, server.post("/finetuning/optimized", body_with(Json::object()).dump()));
  CHECK(table["optimizer"]["state"].value_or("") == std::string("8bit"));
  CHECK(table["accumulation"]["use"].value_or("") == std::string("fit"));
  CHECK(table["run"]["epochs"].value_or(0) == 1);
  CHECK(table["precision"]["use"].value_or("") == std::string("bf16"));

  table = configuration(server, server.post("/finetuning/optimize-mixed-precision", body_with(Json::object()).dump()));
  CHECK(table["precision"]["use"].value_or("") == std::string("auto"));

  const Json config = {{"run", {{"steps", 5}}}, {"task", {{"use", "mlp"}}}, {"optimizer", {{"use", "sgd"}}}};
  const Json whole = {
      {"config", config}, {"mixed_precision", {{"precision", "bf16"}}}, {"training_args", {{"seed", 3}}}};
  table = configuration(server, server.post("/train/mixed-precision", whole.dump()));
  CHECK(table["task"]["use"].value_or("") == std::string("mlp"));
  CHECK(table["precision"]["use"].value_or("") == std::string("bf16"));
  CHECK(table["run"]["seed"].value_or(0) == 3);
}

TEST_CASE("serve: what the first service does not take is refused") {
  const JobServer server;
  const struct {
    Json body;
    int status;
    std::string part;
  } cases[] = {{Json::object(), 422, "texts must be a list"},
               {{{"texts", Json::array()}}, 422, "texts must be a list"},
               {{{"texts", {1}}}, 422, "texts must be a list"},
               {{{"texts", "one"}}, 422, "texts must be a list"},
               {body_with({{"max_length", 0}}), 422, "max_length must be a whole number from 1"},
               {body_with({{"other", 1}}), 422, "this request has no other"},
               {body_with({{"user_id", "bob"}}), 403, "user_id is another user"},
               {body_with({{"model", "/etc"}}), 422, "not below a data folder"},
               {body_with({{"model", std::string("/etc\0x", 6)}}), 422, "it has a NUL character"},
               {body_with({{"model", 1}}), 422, "model must be the folder"},
               {body_with({{"training_args", {{"fp16", true}}}}), 422, "training_args has no fp16; it has"},
               {body_with({{"training_args", {{"max_steps", 1.5}}}}), 422, "max_steps must be a whole number from 0"},
               {body_with({{"training_args", {{"max_grad_norm", true}}}}), 422, "must be a number from 0"},
               {body_with({{"training_args", {{"gradient_checkpointing", 1}}}}), 422, "must be of the type boolean"},
               {body_with({{"training_args", 1}}), 422, "training_args must be an object"},
               {body_with({{"config", 1}}), 422, "config must be an object"}};
  for (const auto& [body, status, part] : cases) {
    const auto answer = server.post(finetune, body.dump());
    CAPTURE(answer.text);
    CHECK(answer.status == status);
    CHECK(answer.text.find(part) != std::string::npos);
  }
  const std::pair<const char*, const char*> trainings[] = {
      {R"({})", "config is needed"},
      {R"({"config": {}})", "config is needed"},
      {R"({"config": {"run": 3}, "training_args": {"max_steps": 1}})", "config.run must be an object"},
      {R"({"config": {"task": []}, "training_args": {"gradient_checkpointing": true}})",
       "config.task must be an object"},
      {R"({"config": {"callback": {"use": "x"}}, "training_args": {"max_grad_norm": 1}})", "callback must be a list"}};
  for (const auto& [body, part] : trainings) {
    const auto answer = server.post("/train/mixed-precision", body);
    CAPTURE(answer.text);
    CHECK(answer.status == 422);
    CHECK(answer.text.find(part) != std::string::npos);
  }
  CHECK(
      server.post("/finetuning/optimize-mixed-precision", body_with({{"config", {{"precision", 1}}}}).dump()).status ==
      422);
  CHECK(server.get("/finetuning/mixed-precision-stats").status == 404);
  CHECK(server.get("/v1/jobs").body.at("jobs").empty());
}

TEST_CASE("serve: statistics of a job of the first service, and the memory that it saves") {
  JobServer server({"--cores", "1"}, /*with_script=*/false);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "all work and no play " + std::to_string(i) + "\n";
  Json body = {{"texts", {text}}, {"max_length", 64}, {"training_args", {{"max_steps", 3}}}};
  const auto run = [&](const char* precision) {
    body["config"] = {{"precision", precision}};
    const auto id = server.post(finetune, body.dump()).body.at("job_id").get<std::int64_t>();
    REQUIRE(server.waits_for(id, "done"));
    return server.get("/finetuning/mixed-precision-stats?job_id=" + std::to_string(id)).body;
  };
  auto stats = run("bf16");
  CHECK(stats.at("status") == "done");
  CHECK(stats.at("statistics").at("steps") == 3);
  CHECK(stats.at("statistics").at("amp").at("amp_steps") == 3);
  CHECK(stats.at("memory_savings_gb").is_null());
  CHECK(fs::exists(stats.at("model_path").get<std::string>() + "/checkpoints"));
  CHECK(run("no").at("memory_savings_gb").is_null());  // it is the one that others are compared with
  stats = server.get("/finetuning/mixed-precision-stats?job_id=1").body;
  CHECK(stats.at("memory_savings_gb").is_number());
  CHECK(server.get("/finetuning/mixed-precision-stats?user_id=control").body.at("job_id") == 2);
}

}  // namespace first_test
