#include "tools/schema/schema.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iostream>
#include <regex>
#include <sstream>

#include "built.h"
#include "cli/options/completion.h"
#include "cli/options/plugin_list.h"
#include "cli/program.h"
#include "python.h"
#include "small_run.h"
#include "temporary_folder.h"

namespace schema_test {

using vernier::OrderedJson;

namespace {

const OrderedJson& schema() {
  static const OrderedJson made = vernier::schema_of(built_plugins());
  return made;
}

// The schema of a plugin's table, where `use` names it.
const OrderedJson& table_of(const std::string& role, const std::string& name) {
  const OrderedJson* table = &schema()["properties"][role];
  if (table->contains("items")) table = &(*table)["items"];
  while (table->contains("else") && (*table)["if"]["properties"]["use"]["const"] != name) table = &(*table)["else"];
  return (*table)["then"];
}

// Checks the lines "file TAB text of the file" with a validator of another project; returns the files that it refuses.
constexpr const char* validator = R"(
import json, jsonschema, sys, tomllib
schema = json.load(open("schema.json"))
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        errors = list(validator.iter_errors(tomllib.load(file)))
    if errors:
        print(name)
)";

// The names of the files that are invalid, one a line.
std::string invalid(const TemporaryFolder& folder, const std::vector<std::string>& files) {
  folder.write("schema.json", schema().dump());
  folder.write("validate.py", validator);
  std::string arguments = "validate.py", out;
  for (const auto& file : files) arguments += " '" + file + "'";
  const int status = python(arguments, folder.path(), out);
  CHECK_MESSAGE(status == 0, out);
  return out;
}

bool has_validator() {
  if (has_python("jsonschema, tomllib")) return true;
  MESSAGE("skipped: python3 has no jsonschema or no tomllib here, so nothing validates the files");
  return false;
}

struct Case {
  const char *name, *text;
};

// Each is wrong in one thing.
const std::vector<Case> wrong = {{"table", "[optimiser]\nuse = 'sgd'\n"},
                                 {"key", "[optimizer]\nuse = 'sgd'\nlerning_rate = 1\n"},
                                 {"key_of_another", "[optimizer]\nuse = 'sgd'\nbeta1 = 0.9\n"},
                                 {"key_without_use", "[optimizer]\nlerning_rate = 1\n"},
                                 {"key_of_run", "[run]\nstep = 1\n"},
                                 {"plugin", "[optimizer]\nuse = 'sdg'\n"},
                                 {"type", "[optimizer]\nuse = 'sgd'\nlearning_rate = 'big'\n"},
                                 {"integer", "[run]\nsteps = 1.5\n"},
                                 {"text", "[run]\nname = 1\n"},
                                 {"flag", "[optimizer]\nuse = 'sgd'\nnesterov = 1\n"},
                                 {"list", "[task]\nuse = 'mlp'\nhidden = 5\n"},
                                 {"element", "[task]\nuse = 'mlp'\nhidden = [0]\n"},
                                 {"range", "[run]\nsteps = -1\n"},
                                 {"above", "[scaler]\nuse = 'dynamic'\ninit_scale = 0\n"},
                                 {"word", "[precision]\nuse = 'bf16'\nlevel = 'O5'\n"},
                                 {"rule", "[precision]\nuse = 'bf16'\n[[precision.rule]]\nmach = '*'\n"},
                                 {"one_callback", "[callback]\nuse = 'ema'\n"},
                                 {"no_use", "[[callback]]\ndecay = 0.5\n"},
                                 {"include", "include = 5\n"},
                                 {"neither", "[task]\nuse = 'gpt'\nvalidation = true\n"}};

const std::vector<Case> right = {
    {"references",
     "[run]\nsteps = '${task.samples}'\nname = '${USER}'\n[optimizer]\nuse = 'sgd'\nnesterov = '${x.y}'\n"
     "[task]\nuse = 'mlp'\nhidden = '${x.y}'\n[precision]\nuse = '${PRECISION:-bf16}'\n"},
    {"number", "[optimizer]\nuse = 'sgd'\nlearning_rate = 1\n"},
    {"includes", "include = ['a.toml']\n"},
    {"one_include", "include = 'a.toml'\n"},
    {"removal", "[[callback]]\nuse = 'ema'\nremove = true\n[[monitor]]\nuse = 'jsonl'\nremove = true\n"},
    {"rules", "[precision]\nuse = 'bf16'\n[[precision.rule]]\nmatch = '*'\nuse = 'fp32'\n"},
    {"library", "[optimizer]\nuse = './mine.so'\nanything = 1\n"},
    {"of_another_file", "[optimizer]\nlearning_rate = 1\n"},
    {"bytes", "[task]\nuse = 'gpt'\ndata = ['a']\nvalidation = 0.2\nsample_prompt = 'a'\n"},
    {"with_folder",
     "[task]\nuse = 'gpt'\nfolder = 'm'\ndata = ['a.jsonl']\nvalidation = ['b.jsonl']\nlearn = 'all'\n"
     "packing = false\nsample_prompts = ['a']\nobjective = 'dpo'\nbeta = 0.2\n"}};

}  // namespace

TEST_CASE("schema: options have their type, default, range and meaning") {
  const auto& sgd = table_of("optimizer", "sgd");
  CHECK(sgd["additionalProperties"] == false);
  const auto& rate = sgd["properties"]["learning_rate"];
  CHECK(rate["type"] == OrderedJson::parse(R"(["number", "string"])"));
  CHECK(rate["default"].is_number());
  CHECK_FALSE(rate["description"].get<std::string>().empty());
  const auto& hidden = table_of("task", "mlp")["properties"]["hidden"];
  CHECK(hidden["items"]["minimum"] == 1);
  CHECK(hidden["items"]["maximum"] == 1e6);
  CHECK(hidden["default"] == OrderedJson::parse("[32]"));
  const auto& level = table_of("precision", "fp32")["properties"]["level"];
  CHECK(level["anyOf"][0]["enum"] == OrderedJson::parse(R"(["O0", "O1"])"));
  CHECK(schema()["properties"]["run"]["properties"]["steps"]["minimum"] == 0);
}

TEST_CASE("schema: it, completion and the list of options say what an option declares") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "callback");
  std::filesystem::copy_file(VERNIER_BINARY_DIR "/fixtures/plugins/callback/declares.so",
                             folder.path() / "callback/declares.so");
  const vernier::Host host({folder.path()});
  const auto made = vernier::schema_of(host);
  const auto& options = made["properties"]["callback"]["items"]["then"]["properties"];
  std::ostringstream list;
  auto* const before = std::cout.rdbuf(list.rdbuf());
  vernier::describe_plugin(host, "callback/declares");
  std::cout.rdbuf(before);
  // schema: JSON with ' for quotes. listed: of `vernier plugins callback/declares`. words: those that completion
  // offers.
  const auto check = [&](const std::string& key, std::string schema, const std::string& listed,
                         const std::vector<std::string>& words = {}) {
    CAPTURE(key);
    std::ranges::replace(schema, '\'', '"');
    CHECK(options[key] == OrderedJson::parse(schema));
    CHECK_MESSAGE(list.str().find("\n  " + key + " = " + listed + "\n") != std::string::npos, list.str());
    const auto typed = "callback.declares." + key + "=";
    std::vector<std::string> completed;
    for (const auto& word : words) completed.push_back(typed + word);
    const vernier::Verb train = {"train", "", vernier::configuration_options(), {}};
    CHECK(vernier::completions(train, {"--set", typed}, host) == completed);
  };
  const auto or_reference = [](const std::string& type) {
    return "{'type': ['" + type + "', 'string'], 'if': {'type': 'string', 'pattern': '^\\\\$\\\\{.*\\\\}$'}, " +
           "'else': {'type': '" + type + "'}, ";
  };
  const std::string count = or_reference("integer") + "'minimum': 1";
  const std::string number = or_reference("number");
  const std::string list_of = or_reference("array") + "'items': ";
  check("flag", or_reference("boolean") + "'description': 'a switch', 'default': true}",
        "true   (true or false)\n      a switch", {"false", "true"});
  check("whole", count + ", 'description': 'a count (at least 1)', 'default': 3}",
        "3   (an integer: at least 1)\n      a count");
  check("real", number + "'exclusiveMinimum': 0, 'description': 'a rate (above 0)', 'default': 0.5}",
        "0.5   (a number: above 0)\n      a rate");
  check("share", number + "'minimum': 0, 'maximum': 1, 'description': 'a share (0 to 1)', 'default': 1}",
        "1   (a number: 0 to 1)\n      a share");
  check("endless", number + "'description': 'a bound'}", "inf   (a number)\n      a bound");
  check("colour",
        "{'type': 'string', 'anyOf': [{'enum': ['red', 'blue']}, {'pattern': '\\\\$\\\\{'}], "
        "'description': 'a colour (red | blue)', 'default': 'red'}",
        "\"red\"   (a string: red | blue)\n      a colour", {"blue", "red"});
  check("names",
        "{'type': ['array', 'string'], 'items': {'type': 'string'}, 'description': 'some names', 'default': ['a']}",
        "[\"a\"]   (a list of strings)\n      some names");
  check("sizes", list_of + count + "}, 'description': 'some sizes (at least 1)', 'default': [3]}",
        "[3]   (a list of integers: at least 1)\n      some sizes");
  check("path", "{'type': 'string', 'description': 'a file; required'}", "required   (a string)\n      a file");
  check("rule",
        list_of +
            "{'type': 'object', 'properties': {'match': {'type': 'string', 'description': 'a name', "
            "'default': ''}}, 'additionalProperties': false}, 'description': 'some rules', 'default': []}",
        "[]   (a list of tables)\n      some rules");
}

TEST_CASE("schema: no range of a number is left out, and none is forgotten") {
  int ranges = 0;
  for (const auto& plugin : built_plugins().list()) {
    for (const auto& [key, option] : table_of(plugin.role, plugin.name)["properties"].items()) {
      if (!option.contains("description")) continue;
      const auto& numbers = option.contains("items") ? option["items"] : option;
      const auto text = option["description"].get<std::string>();
      const bool has_range = std::regex_search(text, std::regex(R"(\((at (least|most)|above|-?[0-9.e+-]+ (to|<)) )"));
      const bool has_limit =
          numbers.contains("minimum") || numbers.contains("exclusiveMinimum") || numbers.contains("maximum");
      CAPTURE(plugin.role + "/" + plugin.name + " " + key + ": " + text);
      CHECK(has_range == has_limit);
      ranges += has_range;
    }
  }
  CHECK(ranges > 50);
}

TEST_CASE("schema: every configuration of the project is valid") {
  if (!has_validator() || !is_all_built()) return;
  const TemporaryFolder folder;
  std::vector<std::string> files;
  for (const char* root : {"configs", "examples", "plugins", "tests"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(VERNIER_SOURCE_DIR) / root)) {
      const bool is_part =
          entry.path().string().find("/tests/plugins/task/rows/") != std::string::npos;  // its test adds the rest
      if (entry.path().extension() == ".toml" && !is_part) files.push_back(entry.path().string());
    }
  }
  REQUIRE(files.size() > 30);
  CHECK(invalid(folder, files) == "");
}

TEST_CASE("schema: a wrong key, type, word or table is invalid, and each thing that is right is valid") {
  if (!has_validator() || !is_all_built()) return;
  const TemporaryFolder folder;
  std::vector<std::string> files;
  std::string all;
  for (const auto& [name, text] : wrong) {
    files.push_back(folder.write(name, text));
    all += files.back() + "\n";
  }
  for (const auto& [name, text] : right) files.push_back(folder.write(name, text));
  CHECK(invalid(folder, files) == all);
}

}  // namespace schema_test
