#include "completion.h"

#include <vernier/host.h>

#include <set>

#include "plugin_list.h"
#include "wiring/wiring.h"

namespace vernier {

namespace {

using WordSet = std::set<std::string>;

// The options of a plugin with the words that each may be, "true | false" and "bf16 | fp16" alike.
std::map<std::string, WordSet> options_with_words(const Host& host, const std::string& id) {
  std::map<std::string, WordSet> options;
  try {
    const auto described = options_of(host, id);
    for (const auto& option : HostApi::declared(described)) {
      if (option.key.find('.') != std::string::npos) continue;  // an option in a list of tables
      WordSet& words = options[option.key];
      if (option.type == OptionInfo::Type::boolean) words = {"true", "false"};
      words.insert(option.words.begin(), option.words.end());
    }
  } catch (const Error&) {  // a library that cannot be used offers nothing
  }
  return options;
}

// Words that --set takes: "run.steps=", "optimizer.use=", "callback.clip_norm.max_norm=". `key` is the part that is
// already typed. A role's plugins are opened only once its name stands there.
WordSet keys_from(const Host& host, const std::string& key) {
  WordSet keys;
  const std::string table = key.substr(0, key.find('.'));
  if (key.find('.') == std::string::npos) {
    keys.insert("run.");
    for (const auto& plugin : host.list()) keys.insert(plugin.role + ".");
    return keys;
  }
  const auto add = [&](const std::string& begin, const std::string& id) {
    for (const auto& [option, words] : options_with_words(host, id)) keys.insert(begin + option + "=");
  };
  if (table == "run") add("run.", "run");
  const bool is_list = table == Callback::role || table == Monitor::role;
  for (const auto& plugin : host.list()) {
    if (plugin.role != table) continue;
    const std::string begin = is_list ? table + "." + plugin.name + "." : table + ".";
    const bool is_named = !is_list || key.starts_with(begin);
    if (is_named) add(begin, table + "/" + plugin.name);
    keys.insert(is_list ? begin : begin + "use=");
  }
  return keys;
}

// "run.matmul=auto" and so on, for a key that is typed whole.
WordSet settings_from(const Host& host, const std::string& key) {
  WordSet settings;
  const auto first = key.find('.'), last = key.rfind('.');
  if (first == std::string::npos) return settings;
  const std::string table = key.substr(0, first), option = key.substr(last + 1);
  const auto add = [&](const std::string& id) {
    const auto options = options_with_words(host, id);
    const auto found = options.find(option);
    if (found == options.end()) return;
    for (const auto& word : found->second) settings.insert(key + "=" + word);
  };
  if (table == "run") add("run");
  for (const auto& plugin : host.list()) {
    if (plugin.role != table) continue;
    const bool is_other = first != last && key.substr(first + 1, last - first - 1) != plugin.name;
    if (option == "use") settings.insert(key + "=" + plugin.name);
    if (option != "use" && !is_other) add(table + "/" + plugin.name);
  }
  return settings;
}

// Returns the keys and values that --set and --sweep take; nothing if the last word is not theirs.
WordSet settings(const std::vector<std::string>& words, const Host& host) {
  const std::string &now = words.back(), set = "--set=";
  const std::string before = words.size() > 1 ? words[words.size() - 2] : "";
  const bool is_value = before == "--set" || before == "--sweep";
  if (!is_value && !now.starts_with(set)) return {};
  const std::string begin = is_value ? "" : set, key = now.substr(begin.size());
  const auto sign = key.find('=');
  WordSet found;
  for (const auto& each : sign == std::string::npos ? keys_from(host, key) : settings_from(host, key.substr(0, sign))) {
    found.insert(begin + each);
  }
  return found;
}

}  // namespace

std::vector<std::string> completions(const Verb& verb, const std::vector<std::string>& words, const Host& host) {
  WordSet offered = settings(words, host);
  if (offered.empty()) {
    if (verb.name != "plugins" || words.back().starts_with("-")) return completions_of(verb, words);
    offered = {"run"};
    for (const auto& plugin : host.list()) offered.insert(plugin.role + "/" + plugin.name);
  }
  std::erase_if(offered, [&](const auto& word) { return !word.starts_with(words.back()); });
  return {offered.begin(), offered.end()};
}

}  // namespace vernier
