// Laws before a run: the description of a plugin, and the values that it refuses.
#include <vernier/error.h>

#include <algorithm>
#include <regex>

#include "laws.h"
#include "trial.h"

namespace vernier {

std::vector<OptionInfo> describe(const Subject& subject, Table table) {
  Options options(subject.id(), std::move(table), "check");
  HostApi::only_describe(options);
  subject.host.make(subject.role, subject.use, options);
  return HostApi::declared(options);
}

namespace {

// "rule.match" is the key of each table in the list `rule`.
bool is_of_a_list(const OptionInfo& option) {
  return option.key.find('.') != std::string::npos;
}

// Returns the plugin's error for a table of this one key, or "" if it takes it.
std::string refusal(const Subject& subject, const std::string& key, Value value) {
  try {
    describe(subject, {{key, std::move(value)}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_refusal(const Subject& subject, const std::string& key, const Value& value, const std::string& expected) {
  const auto text = refusal(subject, key, value);
  if (text.empty()) throw Error("it takes " + key + ", where this was to be refused: " + expected);
  if (text.find(expected) == std::string::npos) {
    throw Error("to " + key + " it says \"" + text + "\" and not \"" + expected + "\"");
  }
}

}  // namespace

void check_loads(const Subject& subject) {
  Options options(subject.id(), subject.options, "check");
  const auto made = subject.host.make(subject.role, subject.use, options);
  if (made->id() != subject.id()) throw Error("its descriptor says " + made->id() + " and not " + subject.id());
  if (!std::regex_match(made->version(), std::regex(R"(\d+\.\d+\.\d+)"))) {
    throw Error("its version is \"" + made->version() + "\"; write three numbers, as in VERNIER_PLUGIN(Class, \"" +
                subject.name + "\", \"1.0.0\")");
  }
  Trial(subject.host, subject.config());
}

void check_documents_options(const Subject& subject) {
  for (const auto& option : describe(subject)) {
    if (!std::regex_match(option.key, std::regex("[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)?"))) {
      throw Error("the key `" + option.key + "` is not in lower case with underscores");
    }
    if (option.meaning.size() < 8) {
      throw Error("`" + option.key + "` means \"" + option.meaning + "\"; say what it is in a few words");
    }
  }
}

void check_refuses_unknown_keys(const Subject& subject) {
  const Value one{std::int64_t{1}, "run.toml:7"};
  expect_refusal(subject, "no_such_option", one,
                 "run.toml:7: " + subject.id() + ": `no_such_option` is not an option here");
  for (const auto& option : describe(subject)) {
    if (is_of_a_list(option)) continue;
    expect_refusal(subject, option.key + "x", one, "did you mean `" + option.key + "`?");
  }
}

void check_refuses_other_types(const Subject& subject) {
  const auto all = describe(subject);
  for (const auto& option : all) {
    // A key that is declared twice is refused as the first one.
    const bool is_again = &*std::ranges::find(all, option.key, &OptionInfo::key) != &option;
    if (is_of_a_list(option) || option.type == OptionInfo::Type::table || is_again) continue;
    expect_refusal(subject, option.key, {Table{}, "run.toml:7"},
                   "run.toml:7: " + subject.id() + ": `" + option.key + "` must be " + option.type_text());
  }
}

}  // namespace vernier
