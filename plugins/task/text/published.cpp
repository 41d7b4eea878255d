#include "published.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "../gpt/family.h"
#include "../language/model_files.h"
#include "../llama/families.h"

namespace text {

namespace {

using Json = nlohmann::ordered_json;

const std::string own_prefix = "model.";  // prefix of a PublishedNetwork's parameters, except its head's

// "GPT2ForSequenceClassification" for "GPT2LMHeadModel" or "GPT2Model"; "" where the name has another form.
std::string architecture_of(const Json& config) {
  const auto named = config.find("architectures");
  if (named == config.end() || !named->is_array() || named->empty() || !named->front().is_string()) return "";
  const auto name = named->front().get<std::string>();
  for (const std::string end : {"LMHeadModel", "ForCausalLM", "ForSequenceClassification", "Model"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size()) + "ForSequenceClassification";
  }
  return "";
}

// The config.json of the model with its new head, by the names of transformers.
std::string with_head(const std::string& text, const std::vector<std::string>& classes) {
  auto config = vernier::json_in<Json>(text);
  if (const auto name = architecture_of(config); !name.empty()) config["architectures"] = {name};
  config["problem_type"] = classes.empty() ? "regression" : "single_label_classification";
  auto names = Json::object(), numbers = Json::object();
  for (std::size_t i = 0; i < std::max<std::size_t>(classes.size(), 1); ++i) {
    const auto name = classes.empty() ? "score" : classes[i];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  config["id2label"] = names;
  config["label2id"] = numbers;
  // transformers finds the last token of a text by the padding, and refuses batches without one.
  const auto end = config.find("eos_token_id");
  if ((!config.contains("pad_token_id") || config["pad_token_id"].is_null()) && end != config.end()) {
    config["pad_token_id"] = end->is_array() ? end->front() : *end;
  }
  return vernier::json_text(config, 2) + "\n";
}

language::Family family_of(const language::Config& config) {
  auto gpt = gpt::family(), llama = llama::family();
  auto all = gpt.layout.model_types;
  all.insert(all.end(), llama.layout.model_types.begin(), llama.layout.model_types.end());
  language::require_model_type(config, all, /*is_language_model=*/false);
  return config.text("model_type", "") == gpt.layout.model_types.front() ? gpt : llama;
}

}  // namespace

PublishedFolder::PublishedFolder(const std::string& folder) : config_(folder), family_(family_of(config_)) {}

std::int64_t PublishedFolder::longest() const {
  return config_.text("model_type", "") == "gpt2" ? config_.integer("n_positions", 1024) : 0;
}

std::shared_ptr<PublishedNetwork> PublishedFolder::make(const Shape& shape, double dropout, std::uint64_t seed,
                                                        const std::string& weights_of) const {
  const auto network = std::make_shared<PublishedNetwork>(family_.make(config_, dropout, seed), shape, seed);
  const auto longest = network->model().longest(), vocabulary = network->model().vocabulary();
  if (longest > 0 && shape.length > longest) {
    vernier::refuse(c10::str("the texts have up to ", shape.length,
                             " tokens, and the model of `folder` has positions for ", longest,
                             "; set length = ", longest));
  }
  if (const auto made_for = network->model().context(); longest == 0 && shape.length > made_for && made_for > 0) {
    vernier::log(vernier::Level::warning, "task/text",
                 c10::str("the texts have up to ", shape.length, " tokens, and the model of `folder` was made for ",
                          made_for, " (max_position_embeddings); set length = ", made_for));
  }
  if (shape.tokens > vocabulary) {
    vernier::refuse(c10::str("the tokenizer has ", shape.tokens, " tokens, and the model of `folder` knows ",
                             vocabulary, "; name the model's own `tokenizer`"));
  }
  if (!weights_of.empty()) language::read_weights(weights_of, network->model(), family_.layout);
  return network;
}

std::string PublishedFolder::published_name(const std::string& name) const {
  if (!name.starts_with(own_prefix)) return name;
  return language::published_name(family_.layout, name.substr(own_prefix.size()));
}

void PublishedFolder::write(const std::string& to, vernier::State files, const Code& code,
                            const PublishedNetwork& network, const std::vector<std::string>& classes) const {
  const auto config = with_head(language::text_of(files, "config.json"), classes);
  const auto padding = vernier::json_in<Json>(config).value("pad_token_id", Json());
  if (!code.behind.empty() && padding == code.behind.back()) {
    vernier::refuse(c10::str("the tokenizer ends a text with token ", code.behind.back(),
                             ", which is pad_token_id of config.json, so transformers would read the token before it; "
                             "export onnx or pt2"));
  }
  language::put_text(files, "config.json", config);
  language::write_folder(to, files, network.model(), family_.layout, {{"score.weight", network.head()}});
}

}  // namespace text
