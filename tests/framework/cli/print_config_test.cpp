// `vernier config`, and what a run keeps of references and removed callbacks.
#include <doctest/doctest.h>

#include <cstdlib>

#include "run_folder.h"
#include "thrown.h"

namespace print_config_test {

namespace {

using Arguments = std::vector<std::string>;

// Lines 1 to 14.
constexpr const char* base = R"([run]
steps = 4
device = "cpu"
threads = 1
output = "runs/{name}-${run.seed}"
[task]
use = "mlp"
samples = 64
batch_size = "${VERNIER_TEST_SAMPLES:-8}"
[optimizer]
use = "sgd"
[[callback]]
use = "clip_norm"
max_norm = 1.0
)";

// batch_size is a number, so it cannot be the text of an environment variable.
std::string with_number() {
  std::string text = base;
  const std::string reference = "\"${VERNIER_TEST_SAMPLES:-8}\"";
  return text.replace(text.find(reference), reference.size(), "8");
}

}  // namespace

TEST_CASE("config: prints what the files and --set say together, with places") {
  RunFolder place(base);
  place.folder.write("more/overlay.toml",
                     "include = 'small.toml'\n[[callback]]\nuse = 'clip_norm'\nremove = true\n[precision]\nuse = "
                     "'no such one'\n");
  place.folder.write("more/small.toml", "[task]\nsamples = 32\n");
  CHECK(place.call({"config", "run.toml", "more/overlay.toml", "--set", "run.seed=7", "--epochs", "2"}) == 0);
  CHECK(place.err == "");
  CHECK(place.out == R"(callback = []  # run.toml:12

[optimizer]
use = "sgd"  # run.toml:11

[precision]
use = "no such one"  # more/overlay.toml:6

[run]
device = "cpu"  # run.toml:3
epochs = 2  # --set run.epochs
output = "runs/{name}-7"  # run.toml:5
seed = 7  # --set run.seed
steps = 0  # --set run.steps
threads = 1  # run.toml:4

[task]
batch_size = "8"  # run.toml:9
samples = 32  # more/small.toml:2
use = "mlp"  # run.toml:7
)");
  // It can be read again, and is the same then.
  const auto once = place.out;
  place.folder.write("again.toml", once);
  CHECK(place.call({"config", "again.toml"}) == 0);
  const auto without_places = [](std::string text) {
    for (auto at = text.find("  # "); at != std::string::npos; at = text.find("  # ")) {
      text.erase(at, text.find('\n', at) - at);
    }
    return text;
  };
  CHECK(without_places(place.out) == without_places(once));
}

TEST_CASE("config: bad calls end in one line") {
  struct Call {
    Arguments arguments;
    std::string says;
  };
  const std::vector<Call> calls = {
      {{"config"}, "name a TOML file, as in `vernier config configs/quickstart.toml`"},
      {{"config", "--resume"}, "name a TOML file, as in `vernier config configs/quickstart.toml`"},
      {{"config", "--resume=nowhere"}, "nowhere: there is no such run or checkpoint"},
      {{"config", "run.toml", "--schema"}, "--schema is that of every configuration; name tables, not a file"},
      {{"config", "--schema", "mlp"}, "write role/name, as in scaler/dynamic, or run"},
      {{"train", "run.toml", "--schema"}, "unrecognised option '--schema'"},
      {{"config", "run.toml", "--set", "run.name=${run.nam}"},
       "--set run.name: ${run.nam}: the configuration has no value run.nam; did you mean ${run.name}?"},
      {{"cnofig", "run.toml"}, "there is no verb \"cnofig\"; did you mean config?"}};
  RunFolder place(base);
  for (const auto& [arguments, text] : calls) {
    CHECK(place.call(arguments) == 2);
    CHECK_MESSAGE(says(place.err, text), place.err);
    CHECK(is_one_line(place.err));
    CHECK(place.out == "");
  }
}

TEST_CASE("config: --schema prints JSON, with the plugins of --plugin-path") {
  RunFolder place(base);
  CHECK(place.call({"config", "--schema", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"}) == 0);
  const auto schema = nlohmann::json::parse(place.out);
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  const auto callbacks = schema["properties"]["callback"]["items"]["properties"]["use"]["anyOf"][0]["enum"];
  const auto has = [&](const char* name) { return std::ranges::find(callbacks, name) != callbacks.end(); };
  CHECK(has("ema"));
  CHECK(has("throws_at"));
  CHECK_FALSE(has("wrong_torch"));  // one that cannot be used is left out, with a warning
  CHECK(says(place.err, "callback/wrong_torch is left out: "));
  CHECK(place.call({"config", "--schema", "run", "optimizer/adamw"}) == 0);
  const auto tables = nlohmann::json::parse(place.out);
  CHECK(tables.size() == 2);
  CHECK(tables["run"] == schema["properties"]["run"]);
  CHECK(tables["optimizer/adamw"]["properties"]["state"]["default"] == "float32");
}

TEST_CASE("config: a run keeps the expanded values, and resumes without the environment") {
  RunFolder place(with_number() + "[[monitor]]\nuse = \"jsonl\"\n");
  const Arguments more = {"--set", "run.name=${VERNIER_TEST_NAME}", "--set", "monitor.jsonl.remove=true"};
  ::setenv("VERNIER_TEST_NAME", "$${odd", 1);
  CHECK(place.train(more) == 0);
  ::unsetenv("VERNIER_TEST_NAME");
  const auto output = place.at("runs/$${odd-1");
  REQUIRE(std::filesystem::exists(output / "config.toml"));
  CHECK_FALSE(std::filesystem::exists(output / "losses.jsonl"));
  const auto digest = place.summary("runs/$${odd-1")["digest"];
  CHECK(place.train(more) == 2);
  CHECK(says(place.err, "there is no environment variable VERNIER_TEST_NAME"));
  std::filesystem::copy_file(output / "config.toml", place.at("kept.toml"));
  CHECK(place.call({"train", "kept.toml", "--resume", "--set", "run.steps=8"}) == 0);
  CHECK(says(place.out, "resumed after step 4"));
  CHECK(place.summary("runs/$${odd-1")["name"] == "$${odd");
  CHECK(place.summary("runs/$${odd-1")["digest"] != digest);
}

TEST_CASE("what plugins print is not in what other programs read, whenever they print it" *
          doctest::test_suite("lab")) {
  RunFolder place(base_run(3) + "learning_rate = 0.1\n[[callback]]\nuse = \"chatty\"\n");
  const std::string fixtures = VERNIER_BINARY_DIR "/fixtures/plugins";
  const std::vector<Arguments> calls = {{"config", "--schema", "--plugin-path", fixtures},
                                        {"digits", "run.toml", "--json", "--samples", "3", "--plugin-path", fixtures}};
  for (const auto& arguments : calls) {
    CAPTURE(arguments[0]);
    CHECK(place.call(arguments) == 0);
    CHECK(nlohmann::json::accept(place.out));
    for (const char* said : {"hello\n", "made\n", "good-bye\n"}) CHECK_MESSAGE(says(place.err, said), place.err);
  }
  CHECK(place.call({"config", "run.toml", "--low-memory", "--plugin-path", fixtures}) == 0);
  CHECK(place.out.starts_with("["));
  CHECK_FALSE(says(place.out, "hello"));
}

}  // namespace print_config_test
