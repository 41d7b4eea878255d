// The requests of the fine-tuning endpoints, translated to configurations of jobs. The names of their keys are those
// that backends for fine-tuning send: {"model_name": "gpt2", "dataset_config": {"texts": […]}, "training_config": {…},
// …}.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace serve {

using Json = nlohmann::ordered_json;

// A request is turned into this.
struct FinetuningJob {
  Json config;                    // configuration of the job
  std::string texts_name, texts;  // a file that it reads
  Json warnings = Json::array();  // sentences for the user
};

// optimized: with gradient accumulation and what saves memory, unless the request says otherwise.
enum class FinetuningKind { finetune, optimized };

// The published models below folders of the server, by the names of their own folders.
class ModelFolders {
 public:
  explicit ModelFolders(std::vector<std::filesystem::path> folders) : folders_(std::move(folders)) {}
  // Throws NotAllowed with the names that there are.
  std::filesystem::path find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::vector<std::filesystem::path> folders_;
};

// "gpt" or "llama": the task that trains the model of this folder.
std::string task_of_model(const std::filesystem::path& folder);

// The tables of {"enabled": true, "dtype": "float16", "init_scale": 65536, …}. Throws NotAllowed for another key,
// naming those that there are, and for two names of one setting with two values.
Json precision_tables(Json settings, Json* warnings = nullptr);

// A refusal of `vernier check`, with the keys of requests in the place of a configuration's, and without its file.
std::string in_words_of_requests(std::string refusal);

// Throws NotAllowed. Values are checked later, by the job's plugins.
FinetuningJob finetuning_job_of(FinetuningKind kind, const Json& body, const ModelFolders& models);

// Settings that a job of these requests uses, as its configuration says.
struct FinetuningSettings {
  bool is_mixed = false, accumulates = false;
};
FinetuningSettings settings_of(const std::string& config);

// The schemas of a request: of its properties, and of the settings of mixed precision.
Json finetuning_properties();
Json precision_schema();

}  // namespace serve
