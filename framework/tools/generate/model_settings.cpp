#include "model_settings.h"

#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>

#include "files/json.h"
#include "limits.h"

namespace vernier {

namespace {

constexpr std::uint64_t longest_file = 16'000'000;  // bytes
constexpr std::size_t deepest_json = 16;

// Keys that change no text, are read below, or say what the command line says.
constexpr std::string_view without_effect = R"(
  _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind
  assistant_token_id bos_token_id cache_config cache_implementation chat_format decoder_start_token_id
  disable_compile do_sample early_stopping eos_token_id generation_kwargs is_assistant length_penalty low_memory
  max_length max_matching_ngram_size max_new_tokens max_window_size min_length min_new_tokens min_p
  no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_return_sequences output_attentions
  output_hidden_states output_logits
  output_scores pad_token_id prompt_lookup_num_tokens repetition_penalty
  return_dict_in_generate return_legacy_cache stop_strings target_lookbehind temperature top_k top_p
  transformers_version trust_remote_code use_cache user_token_id
)";

bool has_effect(const std::string& key) {
  static const auto others = [] {
    std::istringstream words{std::string(without_effect)};
    return std::set<std::string>(std::istream_iterator<std::string>(words), {});
  }();
  return !others.contains(key);
}

// The value of these keys that changes nothing.
bool is_neutral(const std::string& key, const Json& value) {
  if (value.is_null() || value == false || value == Json::array() || value == Json::object()) return true;
  static const std::set<std::string, std::less<>> neutral_at_1 = {"num_beams", "num_beam_groups", "typical_p",
                                                                  "encoder_repetition_penalty", "guidance_scale"};
  if (!value.is_number()) return false;
  return value.get<double>() == (neutral_at_1.contains(key) ? 1.0 : 0.0);
}

// One file, whose errors name it.
class SettingsFile {
 public:
  explicit SettingsFile(std::string path) : path_(std::move(path)) {
    try {
      json_ = std::move(
          parse_json("'" + path_ + "'", "configuration", read_data_file(path_, longest_file), deepest_json).value);
    } catch (const Error& error) {
      vernier::refuse(message(error));
    }
    if (!json_.is_object()) vernier::refuse("'" + path_ + "' is not a JSON object");
  }
  const Json& json() const { return json_; }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  template <class Number>
  std::optional<Number> number(const char* key, limits::Range range) const {
    if (!has(key)) return std::nullopt;
    const auto& value = json_.at(key);
    const bool is_right = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
    if (!is_right || !(value.get<double>() >= range.least && value.get<double>() <= range.most)) {
      refuse(key, c10::str("must be a number from ", range.least, " to ", range.most));
    }
    return value.get<Number>();
  }
  std::vector<TokenId> ends() const {
    if (!has("eos_token_id")) return {};
    const auto& value = json_.at("eos_token_id");
    std::vector<TokenId> ends;
    for (const auto& each : value.is_array() ? value : Json::array({value})) {
      if (!each.is_number_integer() || each < 0 || each > INT32_MAX) {
        refuse("eos_token_id", "must be the number of a token, or a list of such");
      }
      ends.push_back(each.get<TokenId>());
    }
    return ends;
  }
  std::optional<std::string> early_stopping() const {
    if (!has("early_stopping")) return std::nullopt;
    const auto& value = json_.at("early_stopping");
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value != "never") refuse("early_stopping", "must be true, false or \"never\"");
    return "never";
  }
  std::vector<std::string> stops() const {
    if (!has("stop_strings")) return {};
    const auto& value = json_.at("stop_strings");
    std::vector<std::string> stops;
    for (const auto& each : value.is_array() ? value : Json::array({value})) {
      if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
        refuse("stop_strings", "must be a text, or a list of such");
      }
      stops.push_back(each.get<std::string>());
    }
    return stops;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const {
    vernier::refuse("'" + path_ + "': " + key + " is " + shortened(json_text(json_.at(key))) + ", and " + reason);
  }
  std::string path_;
  Json json_;
};

}  // namespace

ModelSettings read_model_settings(const std::string& folder) {
  namespace fs = std::filesystem;
  ModelSettings settings;
  const auto path = [&](const char* name) { return (fs::path(folder) / name).string(); };
  std::error_code none;
  if (folder.empty()) return settings;
  if (!fs::exists(path("generation_config.json"), none)) {
    if (fs::exists(path("config.json"), none)) settings.ends = SettingsFile(path("config.json")).ends();
    return settings;
  }
  const SettingsFile file(path("generation_config.json"));
  settings.ends = file.ends();
  settings.stops = file.stops();
  settings.temperature = file.number<double>("temperature", limits::temperature);
  settings.top_k = file.number<std::int64_t>("top_k", limits::top_k);
  settings.top_p = file.number<double>("top_p", limits::top_p);
  settings.min_p = file.number<double>("min_p", limits::min_p);
  settings.repetition_penalty = file.number<double>("repetition_penalty", limits::repetition_penalty);
  settings.max_tokens = file.number<std::int64_t>("max_new_tokens", limits::max_tokens);
  settings.min_tokens = file.number<std::int64_t>("min_new_tokens", limits::min_tokens);
  settings.min_length = file.number<std::int64_t>("min_length", limits::min_tokens);
  settings.no_repeat_ngram = file.number<std::int64_t>("no_repeat_ngram_size", limits::no_repeat_ngram);
  settings.length_penalty = file.number<double>("length_penalty", limits::length_penalty);
  settings.early_stopping = file.early_stopping();
  const bool draws = file.json().contains("do_sample") && file.json()["do_sample"] == true;
  const auto beams = file.number<std::int64_t>("num_beams", limits::beams);
  if (beams.value_or(1) > 1 && !draws) {
    settings.beams = beams;
    settings.temperature = 0;
  }
  if (file.json().contains("do_sample") && file.json()["do_sample"] == false) settings.temperature = 0;
  for (const auto& [key, value] : file.json().items()) {
    const bool is_applied = key == "num_beams" && !draws;
    if (is_applied || !has_effect(key) || is_neutral(key, value)) continue;
    settings.ignored.push_back(printable(shortened(key + " = " + json_text(value))));
  }
  return settings;
}

}  // namespace vernier
