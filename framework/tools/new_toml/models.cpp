// Models from elsewhere: folders of Hugging Face, programs of torch.export, and TorchScript.
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/text/quoting.h"
#include "records.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_without_data(const std::string& model, const std::string& what, const std::string& data) {
  refuse("'" + model + "' is " + what + "; name the data that it learns from too: vernier new toml " +
         shell_quoted(model) + " " + data);
}

// Findings of a folder of Hugging Face. The options follow from config.json.
Findings look_at_published(const std::string& folder, const std::vector<std::string>& data, const GivenData& given) {
  const auto path = fs::path(folder) / "config.json";
  std::ifstream file(path);
  const auto config = json_in<Json>(file);
  if (!config.is_object()) refuse("'" + path.string() + "' is not a JSON object");
  const auto type = config.value("model_type", std::string());
  const bool is_gpt = type == "gpt2";
  const auto has = [&](const char* name) { return fs::exists(fs::path(folder) / name); };
  const bool has_weights = has("model.safetensors") || has("model.safetensors.index.json");
  if (!has_weights && has("pytorch_model.bin")) {
    refuse("'" + folder + "' has its weights in pytorch_model.bin; write safetensors: python3 -c \"import " +
           "transformers; transformers.AutoModelForCausalLM.from_pretrained('" + folder + "').save_pretrained('" +
           folder + "')\"");
  }
  if (data.empty()) refuse_without_data(folder, "a model of type '" + type + "'", "texts.jsonl");
  const auto ending = ending_of(data[0]);
  std::optional<Findings> found;
  if (ending == ".jsonl" || ending == ".json") {
    const auto records = records_of_lines(data[0]);
    found = given.use == "text" ? std::nullopt : look_at_chats(records, folder);
    if (!found) found = look_at_texts(records, given, folder);
    if (!found) refuse("'" + data[0] + "' has no chats, prompts or texts, and no texts with a --target");
  } else if (ending == ".csv" || ending == ".tsv") {
    const auto records = records_of_csv(data[0], given);
    if (records) found = look_at_texts(*records, given, folder);
    if (!found) refuse("'" + data[0] + "' has no texts and a target that --target names, from which a model learns");
  } else {
    found.emplace();
    found->samples = 1000;  // rows of tokens, of which their number does not matter here
    found->lines.push_back(printable(some_of(data)) + (ending == ".txt" ? ": texts" : ": tokens"));
  }
  found->lines.push_back(printable(folder) + ": a model of type '" + type + "'" +
                         (has_weights ? "" : " without weights, which are drawn at random"));
  if (found->option("use") != nullptr) return *found;
  const auto longest = config.value(is_gpt ? "n_positions" : "max_position_embeddings", std::int64_t{1024});
  constexpr std::int64_t usual = 256;
  found->task.insert(
      found->task.begin(),
      {{"use", is_gpt ? "\"gpt\"" : "\"llama\""}, {"folder", toml_value(folder)}, {"data", toml_list(data)}});
  found->task.emplace_back("context", std::to_string(std::min(usual, longest)));
  if (!has_weights) found->task.emplace_back("weights", "\"random\"");
  found->epochs = 3;
  found->batch = 8;
  found->learning_rate = has_weights ? "2e-5" : "1e-3";
  return *found;
}

// A script has its code beside its constants; a file of torch.save has weights alone.
void require_script(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.find("constants.pkl") != std::string::npos) return;
  refuse("'" + path +
         "' is no TorchScript: it has weights alone, without a network; write the network and its weights "
         "by torch.export: plugins/task/graph/export.py shows how");
}

Findings look_at_program(const std::string& model, const std::vector<std::string>& data, const GivenData& given) {
  const bool is_graph = ending_of(model) == ".pt2";
  if (!is_graph) require_script(model);
  const bool has_inputs = given.task.contains("inputs");
  if (data.empty() && !has_inputs) {
    refuse_without_data(model, is_graph ? "a program of torch.export" : "TorchScript", "data.csv --target COLUMN");
  }
  Findings found;
  std::vector<std::string> inputs;
  std::string target = given.target;
  bool is_folder = false, is_whole = true;
  found.samples = 1000;
  for (const auto& each : data) {
    is_folder |= fs::is_directory(each);
    const auto ending = ending_of(each);
    if (ending != ".csv" && ending != ".tsv") {
      inputs.push_back(each);
      continue;
    }
    const auto records = records_of_csv(each, given);
    if (!records) return look_at_table(each, given);  // its error has the remedy
    const auto name = target.empty() ? records->fields.back().name : target;
    std::vector<std::string> columns, words;
    for (const auto& field : records->fields) {
      if (field.name != name) (field.has_words() ? words : columns).push_back(field.name);
    }
    if (!columns.empty()) inputs.push_back(each + ":" + c10::Join(",", columns));
    for (const auto& word : words) inputs.push_back(each + ":" + word);
    if (const auto* field = records->find(name); field != nullptr) {
      target = each + ":" + name;
      is_whole = field->has_words() || field->values.equal(field->values.round());
    }
    if (!records->has_header) found.task.emplace_back("header", "false");
    found.samples = records->rows;
  }
  for (auto& input : inputs) {
    if (ending_of(input) != ".npz") continue;
    const auto arrays = read_npz(input);
    for (const char* name : {"x", "X", "inputs", "arr_0"}) {
      if (!arrays.contains(name)) continue;
      if (target.empty()) target = input + ":y";
      input += std::string(":") + name;
      break;
    }
  }
  if (target.empty() && !is_folder && !given.task.contains("target") && !given.task.contains("loss")) {
    refuse("name what '" + model + "' is to predict, as in --target y.npy");
  }
  found.task.insert(found.task.begin(), {{"use", is_graph ? "\"graph\"" : "\"script\""}, {"model", toml_value(model)}});
  if (!inputs.empty()) found.task.emplace_back("inputs", toml_list(inputs));
  if (!target.empty()) found.task.emplace_back("target", toml_value(target));
  if (const auto file = file_of(target); ending_of(file) == ".npy" || ending_of(file) == ".npz") {
    const auto numbers = read_source(target).tensor.to(torch::kFloat64);
    is_whole = numbers.equal(numbers.round());
  }
  // Whole numbers are classes, or what another loss of main.cpp takes that `vernier check` accepts.
  found.task.emplace_back("loss", is_whole ? "\"cross_entropy\"" : "\"mse\"");
  found.lines.push_back(printable(model) + (is_graph ? ": a program of torch.export" : ": TorchScript"));
  found.lines.push_back("inputs " + some_of(inputs) + (target.empty() ? "" : "; target " + target));
  found.learning_rate = "1e-3";
  return found;
}

}  // namespace

bool is_model(const std::string& path) {
  const auto ending = ending_of(path);
  return ending == ".pt2" || ending == ".pt" || fs::exists(fs::path(path) / "config.json");
}

Findings look_at_model(const std::string& model, const std::vector<std::string>& data, const GivenData& given) {
  return fs::is_directory(model) ? look_at_published(model, data, given) : look_at_program(model, data, given);
}

}  // namespace vernier
