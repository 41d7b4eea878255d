#include "shorthands.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>

#include "core/synonyms.h"

namespace vernier {

namespace po = boost::program_options;

namespace {

// The key that a shorthand sets, and, unless it takes any value, its words and their values.
struct Shorthand {
  const char *name, *key;
  std::vector<std::pair<std::string, std::string>> words;
  const char* always = nullptr;  // the value of one that is given alone
};

const std::vector<Shorthand>& shorthands() {
  static const std::vector<Shorthand> all = {
      {"mixed-precision", "precision.use", {{"no", "fp32"}, {"fp16", "fp16"}, {"bf16", "bf16"}, {"fp8", "fp8"}}},
      {"amp-opt-level", "precision.level", {{"O0", "O0"}, {"O1", "O1"}, {"O2", "O2"}, {"O3", "O3"}}},
      {"grad-scaler-init", "scaler.init_scale", {}},
      {"grad-scaler-growth-interval", "scaler.growth_interval", {}},
      {"grad-scaler-backoff", "scaler.backoff_factor", {}},
      {"grad-accum-steps", "accumulation.gradient_accumulation_steps", {}},
      {"batch-size", "task.batch_size", {}},
      {"grad-ckpt", "task.recompute", {}, "full"},
      {"epochs", "run.epochs", {}}};
  return all;
}

std::string key_of(const std::string& set) {
  const auto key = set.substr(0, set.find('='));
  return key.substr(0, key.find_last_not_of(' ') + 1);
}

bool sets_key(const std::vector<std::string>& sets, const std::string& key) {
  return std::ranges::any_of(sets, [&](const auto& set) { return key_of(set) == key; });
}

std::string value_of(const Shorthand& shorthand, const std::string& given) {
  if (shorthand.words.empty() && given != "0") return given;
  if (shorthand.words.empty()) refuse("--" + std::string(shorthand.name) + " 0: it must be more than 0");
  std::vector<std::string> words;
  std::string all;
  for (const auto& [word, value] : shorthand.words) {
    if (word == given) return value;
    words.push_back(word);
    all += (all.empty() ? "" : ", ") + word;
  }
  const auto near = nearest(given, words);
  refuse("--" + std::string(shorthand.name) + " " + shortened(given) + ": " +
         (near.empty() ? "it" : "did you mean " + near + "? It") + " takes " + all);
}

}  // namespace

void add_shorthands(po::options_description& known) {
  for (const auto& shorthand : shorthands()) {
    auto* value = po::value<std::string>();
    if (shorthand.always != nullptr) value->zero_tokens()->implicit_value(shorthand.always);
    known.add_options()(shorthand.name, value);
  }
}

std::vector<std::string> sets_of_shorthands(const po::variables_map& given, const std::vector<std::string>& sets,
                                            bool has_scaler) {
  std::vector<std::string> added;
  const auto add = [&](const Shorthand& shorthand, const std::string& key, const std::string& value) {
    if (sets_key(sets, key)) {
      refuse("--" + std::string(shorthand.name) + " and --set " + key + " say the same; give one of them");
    }
    added.push_back(key + "=" + value);
  };
  for (const auto& shorthand : shorthands()) {
    if (given.count(shorthand.name) == 0) continue;
    const auto value = value_of(shorthand, given[shorthand.name].as<std::string>());
    add(shorthand, shorthand.key, value);
    const bool needs_scaler = std::string_view(shorthand.name) == "mixed-precision" && value == "fp16";
    if (needs_scaler && !has_scaler && !sets_key(sets, "scaler.use")) added.emplace_back("scaler.use=dynamic");
    has_scaler = has_scaler || needs_scaler || sets_key(sets, "scaler.use") || sets_key(sets, "scaler");
    if (!has_scaler && is_in({"scaler"}, shorthand.key)) {
      refuse("--" + std::string(shorthand.name) + " is for a loss scaler, and this run has none; add " +
             "--mixed-precision fp16, or for another precision --set scaler.use=dynamic");
    }
    if (std::string_view(shorthand.name) == "epochs") add(shorthand, "run.steps", "0");
    if (std::string_view(shorthand.name) == "grad-accum-steps") add(shorthand, "accumulation.use", "target");
  }
  return added;
}

bool is_in(const std::vector<std::string>& keys_or_tables, const std::string& key) {
  const auto is_there = [&](const auto& each) { return (key_of(key) + '.').starts_with(each + '.'); };
  return std::ranges::any_of(keys_or_tables, is_there);
}

std::vector<std::string> shorthands_given(const po::variables_map& given, const std::vector<std::string>& without) {
  std::vector<std::string> words;
  for (const auto& shorthand : shorthands()) {
    if (given.count(shorthand.name) == 0 || is_in(without, shorthand.key)) continue;
    words.push_back("--" + std::string(shorthand.name));
    if (shorthand.always == nullptr) words.push_back(given[shorthand.name].as<std::string>());
  }
  return words;
}

std::map<std::string, std::vector<std::string>> words_of_shorthands() {
  std::map<std::string, std::vector<std::string>> all;
  for (const auto& shorthand : shorthands()) {
    for (const auto& [word, value] : shorthand.words) all["--" + std::string(shorthand.name)].push_back(word);
  }
  return all;
}

std::string hint_for_flag(const std::string& flag, const po::options_description& known) {
  const auto word = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::vector<std::string> names;
  for (const auto& option : known.options()) names.push_back(option->long_name());
  std::erase_if(names, [](const auto& name) { return name == "resume-newest" || name == "schema"; });
  if (const auto same = synonym(word, names); !same.empty()) {
    const auto words = words_of_shorthands()["--" + same];
    return "; did you mean --" + same + (words.empty() ? "" : ", which takes " + c10::Join(", ", words)) + "?";
  }
  if (const auto value = synonym(word, {"fp16", "bf16", "fp8"}); !value.empty()) {
    return "; did you mean --mixed-precision " + value + "?";
  }
  const auto key = common_key(word), other = done_by(word);
  if (!other.empty() && !key.starts_with("callback.")) return "; " + other;
  if (!key.empty()) return "; write --set " + key + "=VALUE";
  const auto near = nearest(word, names);
  return near.empty() ? "" : "; did you mean --" + near + "?";
}

}  // namespace vernier
