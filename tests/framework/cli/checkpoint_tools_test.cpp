#include "tools/checkpoint/checkpoint_tools.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <torch/headeronly/version.h>
#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/safetensors.h>

#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program.h"
#include "python.h"
#include "same_tensors.h"
#include "thrown.h"

namespace checkpoint_tools_test {

namespace fs = std::filesystem;
using vernier::Tensors;
using Words = std::vector<std::string>;

namespace {

// The output of a tool, its status, and its exception.
struct Called {
  int status = -1;
  std::string out;
  Thrown thrown;
};

Called call(Words words) {
  words.insert(words.begin(), "checkpoint");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  std::ostringstream out;
  auto* const before = std::cout.rdbuf(out.rdbuf());
  Called called;
  called.thrown = thrown_by([&] {
    called.status = vernier::run_verb(vernier::checkpoint_verb(), static_cast<int>(argv.size()), argv.data());
  });
  std::cout.rdbuf(before);
  called.out = out.str();
  return called;
}

Thrown refusal(const Words& words) {
  return call(words).thrown;
}

// A run with checkpoints, as the runner leaves it.
struct FakeRun {
  FakeRun() {
    fs::create_directory(checkpoints());
    fs::permissions(checkpoints(), fs::perms::owner_all);
  }
  fs::path checkpoints() const { return folder.path() / "checkpoints"; }
  std::string at(std::int64_t step) const { return (checkpoints() / vernier::checkpoint_name(step)).string(); }
  std::string path() const { return folder.path().string(); }

  void save(std::int64_t step, const Tensors& model, const Tensors& state = {}, const std::string& record = "") const {
    vernier::CheckpointManifest about;
    about.step = step;
    about.run = "test";
    about.plugins = {{"task/mlp", "1.0.0"}, {"optimizer/adamw", "1.2.0"}};
    vernier::State all{state};
    if (!record.empty()) all.put("trainer/model", record);
    vernier::write_checkpoint(at(step), about, model, all.tensors);
  }
  void flip_a_byte(std::int64_t step, const std::string& file) const {
    std::fstream bytes(at(step) + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-1, std::ios::end);
    const char last = static_cast<char>(bytes.get());
    bytes.seekp(-1, std::ios::end);
    bytes.put(static_cast<char>(last ^ 1));
  }

  TemporaryFolder folder;
};

// The record of a run whose evaluation has the average of a plugin: entries of the state by the names of weights.
std::string record_of(const std::string& plugin, const std::map<std::string, std::string>& entries) {
  return nlohmann::json{{"average", plugin}, {"weights", entries}}.dump();
}

Tensors weights() {
  return {{"layer.weight", torch::arange(6, torch::kFloat32).reshape({2, 3})}, {"layer.bias", torch::zeros({2})}};
}

}  // namespace

TEST_CASE("checkpoint list: step, size, whether it is whole, and what the links lead to") {
  const FakeRun run;
  for (const std::int64_t step : {5, 10, 900}) run.save(step, weights());
  fs::create_directory_symlink("step-00000900", run.checkpoints() / "latest");
  fs::create_directory_symlink("step-00000010", run.checkpoints() / "best");
  fs::resize_file(run.at(5) + "/model.safetensors", 20);
  const auto size = fs::file_size(run.at(10) + "/model.safetensors");
  for (const auto& path : {run.path(), run.checkpoints().string()}) {
    const auto called = call({"list", path});
    CHECK(called.thrown == Thrown{});
    CHECK(called.status == 0);
    CHECK(called.out == run.checkpoints().string() +
                            "\n  step   size  age\n   900  272 B  0 s  whole      latest\n"
                            "    10  272 B  0 s  whole      best\n     5         0 s  not whole\n" +
                            run.at(5) + "/model.safetensors: has 20 bytes, and " + std::to_string(size) +
                            " in the manifest\n");
  }
}

TEST_CASE("checkpoint list: a checkpoint of another version is told apart from one that is not whole") {
  const FakeRun run;
  run.save(5, weights());
  std::ofstream(run.at(5) + "/manifest.json") << R"({"format":"vernier.checkpoint","version":3)"
                                              << R"(,"checksum":"bf398561e4bc923ec7fb2c106b287ef3"})" << '\n';
  const auto called = call({"list", run.path()});
  CHECK(says(called.out, "  of another version\n"));
  CHECK(says(called.out, run.at(5) + "/manifest.json: its format is version 3, and this Vernier reads version 2"));
}

TEST_CASE("checkpoint verify: reads every byte, and names file and tensor") {
  const FakeRun run;
  for (const std::int64_t step : {1, 2, 3}) run.save(step, weights(), {{"run/step", torch::ones({3})}});
  auto called = call({"verify", run.path()});
  CHECK(called.status == 0);
  CHECK(called.out == run.at(3) + ": whole, 3 tensors, 340 B\n" + run.at(2) + ": whole, 3 tensors, 340 B\n" +
                          run.at(1) + ": whole, 3 tensors, 340 B\n");
  run.flip_a_byte(2, "model.safetensors");
  CHECK(call({"verify", run.path()}).status == 4);
  CHECK(call({"verify", run.at(1), run.at(3)}).status == 0);
  Program program({"checkpoint", "verify", run.at(2)}, run.folder.path());
  CHECK(program.wait() == 4);
  CHECK(program.out().empty());
  CHECK(program.err().starts_with("vernier: " + run.at(2) +
                                  "/model.safetensors: tensor 'layer.weight': its bytes were changed"));
  CHECK(std::ranges::count(program.err(), '\n') == 1);
  run.flip_a_byte(3, "manifest.json");
  CHECK(call({"verify", run.at(3)}).status == 4);
}

namespace {

// Takes what is printed. At the first line a checkpoint is removed, as by a run beside.
class Removing final : public std::stringbuf {
 public:
  explicit Removing(std::string path) : path_(std::move(path)) {}

 private:
  int sync() override {
    fs::remove_all(path_);
    return 0;
  }
  std::string path_;
};

}  // namespace

TEST_CASE("checkpoint verify: one that its run removes meanwhile is left out, and damage is still found") {
  const FakeRun run;
  for (const bool is_damaged : {false, true}) {
    for (const std::int64_t step : {1, 2, 3}) run.save(step, weights());
    if (is_damaged) run.flip_a_byte(1, "model.safetensors");
    Removing out(run.at(2));
    auto* const before = std::cout.rdbuf(&out);
    std::string words[] = {"checkpoint", "verify", run.path()};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data()};
    const int status = vernier::run_verb(vernier::checkpoint_verb(), 3, argv);
    std::cout.rdbuf(before);
    CHECK(status == (is_damaged ? 4 : 0));
    CHECK(out.str().starts_with(run.at(3) + ": whole, 2 tensors, 272 B\n" + run.at(2) +
                                ": skipped: the running training has deleted it\n"));
    CHECK(says(out.str(), run.at(1) + ": whole") == !is_damaged);
  }
}

TEST_CASE("checkpoint show: statistics of what matches") {
  const FakeRun run;
  auto spoiled = torch::tensor({1.0F, -3.0F, 2.0F, 0.0F});
  spoiled[3] = std::nanf("");
  const std::string device = "cpu";
  run.save(7, {{"a", spoiled}, {"b.half", torch::full({2, 2}, 0.5, torch::kBFloat16)}},
           {{"run/step", torch::scalar_tensor(7, torch::kInt64)},
            {"run/device", torch::tensor({99, 112, 117}, torch::kUInt8)},
            {"empty", torch::empty({0})}});
  auto called = call({"show", run.path()});
  CHECK(called.status == 0);
  CHECK(says(called.out, run.at(7) + "\nstep 7 of run test, format 2, torch " TORCH_VERSION));
  CHECK(says(called.out, "\ntask/mlp 1.0.0, optimizer/adamw 1.2.0\n"));
  CHECK(says(called.out, "\nmodel: 2 tensors, 8 elements\n"));
  CAPTURE(called.out);
  CHECK(says(called.out, "\n  a       F32    [4]      -3    2     0  2.16           1\n"));
  CHECK(says(called.out, "\n  b.half  BF16   [2, 2]  0.5  0.5   0.5   0.5           0\n"));
  CHECK(says(called.out, "\n  empty       F32    [0]\n"));
  CHECK(says(called.out, "\n  run/device  U8     [3]    \"cpu\"\n"));
  CHECK(says(called.out, "\n  run/step    I64    []     7\n"));
  called = call({"show", run.at(7), "*.half"});
  CHECK(says(called.out, "b.half"));
  CHECK_FALSE(says(called.out, "run/step"));
  CHECK(refusal({"show", run.at(7), "none*"}) ==
        configuration(run.at(7) + ": no tensor has a name that matches none*"));
}

TEST_CASE("checkpoint export: masters where there are, another dtype, one file") {
  const FakeRun run;
  const auto master = torch::tensor({1.0009765F, 2.0F}), low = master.to(torch::kBFloat16);
  const auto rest = torch::tensor({0.001F, 0.0F}).to(torch::kBFloat16);
  run.save(1, {{"w", low}, {"kahan", low}, {"seen", torch::ones({1}, torch::kInt64)}},
           {{"plugin/precision/bf16/master/w", master},
            {"plugin/precision/bf16/compensation/kahan", rest},
            {"plugin/callback/ema/master/seen", torch::zeros({1})}});
  CHECK(call({"export", run.path(), run.folder / "best.safetensors"}).status == 0);
  check_equal(vernier::load_safetensors(run.folder / "best.safetensors"),
              {{"w", master}, {"kahan", low.to(torch::kFloat32) + rest}, {"seen", torch::ones({1}, torch::kInt64)}});
  CHECK(call({"export", run.at(1), run.folder / "model.safetensors", "--weights", "model"}).status == 0);
  check_equal(vernier::load_safetensors(run.folder / "model.safetensors"),
              {{"w", low}, {"kahan", low}, {"seen", torch::ones({1}, torch::kInt64)}});
  CHECK(call({"export", run.at(1), run.folder / "half.safetensors", "--dtype=float16"}).status == 0);
  CHECK(refusal({"export", run.at(1), run.folder / "average.safetensors", "--weights=average"}) ==
        configuration(run.at(1) +
                      ": an evaluation of this run has no average of the weights; a run with [[callback]] use = "
                      "\"ema\" or \"swa\", or with [optimizer] use = \"asgd\", keeps one once it has begun"));
  run.save(2, {{"w", low}, {"seen", torch::ones({1}, torch::kInt64)}}, {{"plugin/callback/swa/average/w", 4 * master}},
           record_of("callback/swa", {{"w", "plugin/callback/swa/average/w"}}));
  CHECK(call({"export", run.at(2), run.folder / "swa.safetensors", "--weights=average"}).status == 0);
  check_equal(vernier::load_safetensors(run.folder / "swa.safetensors"),
              {{"w", 4 * master}, {"seen", torch::ones({1}, torch::kInt64)}});
  run.save(3, {{"w", low}, {"seen", torch::ones({1}, torch::kInt64)}},
           {{"plugin/precision/bf16/master/w", master},
            {"plugin/callback/ema/updates", torch::scalar_tensor(3, torch::kInt64)},
            {"plugin/callback/ema/average/w", 2 * master},
            {"plugin/callback/ema#2/average/w", 3 * master}},
           record_of("callback/ema", {{"w", "plugin/callback/ema/average/w"}}));
  CHECK(call({"export", run.at(3), run.folder / "average.safetensors", "--weights=average"}).status == 0);
  check_equal(vernier::load_safetensors(run.folder / "average.safetensors"),
              {{"w", 2 * master}, {"seen", torch::ones({1}, torch::kInt64)}});
  const auto half = vernier::read_safetensors(run.folder / "half.safetensors");
  CHECK(half.tensors.at("w").equal(master.to(torch::kFloat16)));
  CHECK(half.metadata == vernier::Metadata{{"format", "pt"}});
  run.save(4, {{"w", torch::full({2}, 1e6)}});
  CHECK(refusal({"export", run.path(), run.folder / "large.safetensors", "--dtype=float16"}) ==
        configuration(run.at(4) + ": tensor 'w': 2 of its values are too large for float16; take bfloat16 or float32"));
  CHECK_FALSE(fs::exists(run.folder / "large.safetensors"));
}

TEST_CASE("checkpoint: the exported average is the one that an evaluation has, under all names of a tied weight") {
  const auto trained = torch::ones({2, 2}), other = torch::full({2, 2}, 5.0);
  const Tensors model = {{"embedding", trained}, {"head", trained}, {"own", other}};
  const struct {
    const char *plugin, *entry;
    double average;
  } cases[] = {{"callback/ema", "plugin/callback/ema/average/embedding", 2},
               {"callback/swa", "plugin/callback/swa/average/embedding", 3},
               {"optimizer/asgd", "plugin/optimizer/asgd/embedding/ax", 4}};
  Tensors state;
  for (const auto& each : cases) state[each.entry] = torch::full({2, 2}, each.average);
  for (const auto& [plugin, entry, average] : cases) {
    CAPTURE(average);
    const FakeRun run;
    run.save(1, model, state, record_of(plugin, {{"embedding", entry}, {"head", entry}}));
    REQUIRE(call({"export", run.at(1), run.folder / "average.safetensors", "--weights=average"}).status == 0);
    const auto expected = torch::full({2, 2}, average);
    check_equal(vernier::load_safetensors(run.folder / "average.safetensors"),
                {{"embedding", expected}, {"head", expected}, {"own", other}});
  }
  const FakeRun run;
  run.save(1, model, state, R"({"average": "callback/own"})");
  CHECK(says(refusal({"export", run.at(1), run.folder / "average.safetensors", "--weights=average"}).text,
             "callback/own keeps the average of the weights in a form of its own; write the model of this run first"));
}

TEST_CASE("checkpoint: bad calls end in one line that says what to do") {
  const FakeRun run;
  run.save(1, weights());
  const auto file = run.folder.write("there.safetensors", "x"), out = run.folder / "out.safetensors";
  CHECK(refusal({}) ==
        configuration("name a tool: list, verify, show, export or import; see vernier checkpoint --help"));
  CHECK(refusal({"verfy", "x"}) == configuration("checkpoint has no tool \"verfy\"; did you mean verify?"));
  CHECK(refusal({"list", "nowhere"}) == configuration("nowhere: there is no such file or folder"));
  const TemporaryFolder empty;
  CHECK(refusal({"list", empty.path()}) == configuration(empty.path().string() + ": holds no checkpoint"));
  CHECK(refusal({"verify"}).kind == 2);
  CHECK(refusal({"verify", file}) ==
        configuration(file + ": is neither a checkpoint nor the folder of a run with one"));
  CHECK(refusal({"show"}).kind == 2);
  CHECK(refusal({"export", run.path()}).kind == 2);
  CHECK(refusal({"export", run.path(), run.folder / "a.bin"}) ==
        configuration(run.folder / "a.bin" + ": its name must end in .safetensors"));
  CHECK(says(refusal({"export", run.path(), file}).text, file + ": is data, a configuration or a file of a run"));
  CHECK(refusal({"export", run.path(), out, "--dtype=fp8"}) ==
        configuration("--dtype is fp8, and must be float32, bfloat16 or float16"));
  CHECK(refusal({"export", run.path(), out, "--weights=best"}) ==
        configuration("--weights is best, and must be masters, model or average"));
  CHECK(says(refusal({"list", run.path(), "--force"}).text,
             "`vernier checkpoint list` does not read --force; leave it out"));
  CHECK(says(refusal({"show", run.path(), "--dtype=float16"}).text, "show` does not read --dtype"));
  CHECK(says(refusal({"import", file, out, "--weights=model"}).text, "import` does not read --weights"));
  CHECK(refusal({"import", file}).kind == 2);
  CHECK(says(refusal({"import", file, out}).text, file + ": is not a safetensors file"));
  CHECK_FALSE(fs::exists(out));
  run.flip_a_byte(1, "model.safetensors");
  CHECK(refusal({"export", run.path(), out}).kind == 4);
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("checkpoint import: the shards of a model become one file") {
  const TemporaryFolder folder;
  const auto all = weights();
  vernier::save_safetensors(folder / "1.safetensors", {{"layer.weight", all.at("layer.weight")}});
  vernier::save_safetensors(folder / "2.safetensors", {{"layer.bias", all.at("layer.bias")}});
  const auto one = folder / "1.safetensors", two = folder / "2.safetensors", whole = folder / "whole.safetensors";
  const auto called = call({"import", one, two, whole});
  CHECK(called.thrown == Thrown{});
  CHECK(called.out.starts_with(whole + ": 2 tensors, 8 elements, "));
  check_equal(vernier::load_safetensors(whole), all);
  CHECK(says(refusal({"import", one, whole}).text, whole + ": is there already; name another file"));
  CHECK(call({"import", one, two, folder / "half.safetensors", "--dtype=bfloat16"}).status == 0);
  CHECK((vernier::load_safetensors(folder / "half.safetensors").at("layer.bias").scalar_type() == torch::kBFloat16));
  CHECK(refusal({"import", one, one, folder / "twice.safetensors"}) ==
        configuration(one + ": tensor 'layer.weight': there are two of this name"));
}

TEST_CASE("checkpoint: Python reads what a run saved, and what was exported, without Vernier") {
  const FakeRun run;
  run.save(3, weights());
  CHECK(call({"export", run.path(), run.folder / "exported.safetensors", "--dtype=bfloat16"}).status == 0);
  if (!has_python("torch, safetensors")) {
    MESSAGE("python3 has no torch with safetensors here: what it reads is not tried");
    return;
  }
  run.folder.write("read.py", R"(from safetensors.torch import load_file
for file in ("checkpoints/step-00000003/model.safetensors", "exported.safetensors"):
    print({name: (str(tensor.dtype), tensor.tolist()) for name, tensor in sorted(load_file(file).items())})
)");
  std::string out;
  CHECK(python("read.py", run.folder.path(), out) == 0);
  CHECK(out ==
        "{'layer.bias': ('torch.float32', [0.0, 0.0]), "
        "'layer.weight': ('torch.float32', [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])}\n"
        "{'layer.bias': ('torch.bfloat16', [0.0, 0.0]), "
        "'layer.weight': ('torch.bfloat16', [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])}\n");
}

TEST_CASE("checkpoint: weights go out of a run of task/gpt and into a new one" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  folder.write("data.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  folder.write("run.toml", R"([run]
steps = 1
device = "cpu"
threads = 1
output = "out"
[task]
use = "gpt"
data = ["data.txt"]
layers = 1
heads = 1
width = 8
context = 8
batch_size = 2
[optimizer]
use = "sgd"
)");
  const auto vernier = [&](const Words& words) {
    Program program(words, folder.path());
    const int status = program.wait();
    CHECK_MESSAGE(status == 0, program.err());
  };
  vernier({"train", "run.toml", "--quiet"});
  vernier({"checkpoint", "verify", "out"});
  vernier({"checkpoint", "export", "out", "w.safetensors"});
  vernier({"checkpoint", "import", "w.safetensors", "again.safetensors"});
  vernier({"train", "run.toml", "--quiet", "--set", "run.output=next", "--set", "run.init_from=again.safetensors",
           "--set", "optimizer.learning_rate=0.0"});
  const auto saved = vernier::read_checkpoint_model(folder / "out/checkpoints/latest");
  const auto next = vernier::read_checkpoint_model(folder / "next/checkpoints/latest");
  check_equal(saved.model.tensors, next.model.tensors);
}

}  // namespace checkpoint_tools_test
