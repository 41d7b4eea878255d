// distributed/model_parallel: two ranks that hold a model together train as one process does with the whole model. The
// numbers of one process are PyTorch's: graphs/record.py.
#include <c10/util/StringUtil.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/safetensors.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "several_ranks.h"

namespace model_parallel_test {

using namespace several_ranks;

namespace {

const std::string folder = VERNIER_SOURCE_DIR "/tests/distributed/graphs/";

// The numbers of record.py.
torch::Tensor numbers(std::vector<std::int64_t> shape, std::int64_t salt) {
  const auto places = torch::arange(c10::multiply_integers(shape));
  return (((places * 7919 + salt * 104729).remainder(2003) - 1001).to(torch::kFloat64) / 1024)
      .to(torch::kFloat32)
      .reshape(shape);
}

struct Model {
  std::string name;
  std::vector<std::int64_t> shape;
  std::map<std::string, std::int64_t> sharded;  // the dimension in which a tensor is divided
};

const std::array<Model, 3> models = {{
    {"mlp", {6}, {{"up.weight", 0}, {"up.bias", 0}, {"down.weight", 1}}},
    {"sequence", {4, 6}, {{"up.weight", 0}, {"up.bias", 0}, {"down.weight", 1}}},
    {"block",
     {4, 8},
     {{"query.weight", 0},
      {"query.bias", 0},
      {"key.weight", 0},
      {"value.weight", 0},
      {"value.bias", 0},
      {"up.weight", 0},
      {"up.bias", 0},
      {"out.weight", 1},
      {"down.weight", 1}}},
}};

const Words sgd = {"optimizer={use=\"sgd\",learning_rate=0.05,momentum=0.9}",
                   "callback=[{use=\"clip_norm\",max_norm=1e9}]"};
const Words adamw = {"optimizer={use=\"adamw\",learning_rate=0.01,weight_decay=0.1}",
                     "callback=[{use=\"clip_norm\",max_norm=0.3}]"};

const std::string run_toml = R"([run]
steps = 50
device = "cpu"
threads = 1
output = "out"
[task]
use = "graph"
model = "FOLDER/NAME-{rank}.pt2"
inputs = ["data.safetensors:x"]
target = "data.safetensors:y"
validation_inputs = ["data.safetensors:x"]
validation_target = "data.safetensors:y"
batch_size = 8
order = "sequential"
[optimizer]
use = "sgd"
[distributed]
use = "model_parallel"
timeout = 30
[checkpoint]
every = 20
[[monitor]]
use = "jsonl"
)";

std::string toml_of(const std::string& name) {
  const auto toml = std::regex_replace(run_toml, std::regex("FOLDER/"), folder);
  return std::regex_replace(toml, std::regex("NAME"), name);
}

// A run of one of the models, with the data of record.py.
struct GraphRun : RunFolder {
  GraphRun(const std::string& name, std::vector<std::int64_t> sizes) : RunFolder(toml_of(name)) {
    constexpr std::int64_t samples = 24;
    sizes.insert(sizes.begin(), samples);
    vernier::save_safetensors(at("data.safetensors").string(),
                              {{"x", numbers(sizes, 1)}, {"y", (torch::arange(samples) * 5).remainder(3)}});
  }
};

// A metric of each step.
std::vector<double> of_steps(const RunFolder& place, const std::string& metric) {
  std::ifstream lines(place.at("out/losses.jsonl"));
  std::vector<double> values;
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains(metric)) values.push_back(entry[metric]);
  }
  return values;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < a.size() && most < HUGE_VAL; ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// The weights of the whole model, from the parts in a checkpoint of two ranks.
vernier::Tensors whole_weights(const RunFolder& place, const Model& model, int step = 50) {
  auto [about, whole, state] =
      vernier::read_checkpoint((place.at("out/checkpoints") / vernier::checkpoint_name(step)).string());
  for (const auto& [name, dimension] : model.sharded) {
    CHECK_FALSE(whole.has(name));  // nobody takes a part for the whole
    whole.put(name, at::cat({state.tensor("rank/0/model/" + name), state.tensor("rank/1/model/" + name)}, dimension));
  }
  return whole.tensors;
}

}  // namespace

TEST_CASE("model_parallel: two ranks with parts of a model train as one process does with the whole" *
          doctest::test_suite("graph")) {
  struct Case {
    Model model;
    std::string rule;
    Words more = {};
  };
  const auto& [mlp, sequence, block] = models;
  const std::vector<Case> cases = {
      {mlp, "sgd"},
      {sequence, "sgd", {"distributed.overlap=true", "distributed.bucket=100B"}},
      {block, "sgd"},
      {block, "adamw", {"accumulation.micro_batch_size=3", "distributed.shared_memory=false"}},
  };
  const auto recorded = nlohmann::json::parse(read_text(folder + "losses.json"));
  const auto weights = vernier::load_safetensors(folder + "whole.safetensors");
  for (const auto& [model, rule, more] : cases) {
    CAPTURE(model.name);
    CAPTURE(rule);
    const GraphRun place(model.name, model.shape);
    train(place, 2, sets_of(with(rule == "sgd" ? sgd : adamw, more)));
    const auto& wanted = recorded[model.name + "/" + rule];
    CHECK(farthest(of_steps(place, "loss"), wanted["losses"]) <= 1e-6);
    CHECK(farthest(of_steps(place, "grad_norm"), wanted["norms"]) <= 5e-6);
    CHECK(std::abs(double(place.summary()["validation_loss"]["final"]) - double(wanted["validation"])) <= 1e-6);
    CHECK(place.summary()["samples"] == 400);
    vernier::Tensors whole;
    for (const auto& [name, tensor] : weights) {
      const auto prefix = model.name + "/" + rule + "/";
      if (name.starts_with(prefix)) whole[name.substr(prefix.size())] = tensor;
    }
    CHECK(distance(whole, whole_weights(place, model)) <= 1e-6);
  }
}

TEST_CASE("model_parallel: a scale that overflows on a rank skips the update on all" * doctest::test_suite("graph")) {
  const GraphRun place("block", {4, 8});
  train(place, 2,
        sets_of(with(adamw, {R"(precision={use="fp16",level="O2"})",
                             R"(scaler={use="dynamic",init_scale=1e9,growth_interval=3})"})));
  CHECK(place.summary()["updates_skipped"] >= 3);
  CHECK(of_steps(place, "loss").back() < 1.05);
}

TEST_CASE("model_parallel: a run that was killed is resumed with the same bits" * doctest::test_suite("graph")) {
  const auto sets =
      sets_of({"run.steps=400", "optimizer.use=adamw", R"(callback=[{use="clip_norm",max_norm=0.3},{use="ema"}])"});
  const GraphRun whole("sequence", {4, 6}), killed("sequence", {4, 6});
  train(whole, 2, sets);
  {
    Ranks ranks(killed, 2, sets);
    REQUIRE(ranks[0].wait_for(killed.at("out/checkpoints/step-00000040/manifest.json")));
    for (int rank = 0; rank < 2; ++rank) ranks[rank].send(SIGKILL);
    for (int rank = 0; rank < 2; ++rank) CHECK(ranks[rank].wait() == -SIGKILL);
  }
  train(killed, 2, with(sets, {"--resume"}));
  for (const auto* part : {"rank/0/model/up.weight", "rank/1/model/up.weight"})
    CHECK(state_of(whole, 400, "").contains(part));
  const auto changes = different(state_of(killed, 400, "plugin/"), state_of(whole, 400, "plugin/"));
  CHECK_MESSAGE(changes.empty(), *changes.begin());
  CHECK(different(state_of(killed, 400, "rank/"), state_of(whole, 400, "rank/")).empty());
  CHECK(different(weights_of(killed, 400), weights_of(whole, 400)).empty());
  CHECK(of_steps(killed, "loss").back() == of_steps(whole, "loss").back());
}

TEST_CASE("model_parallel: a rank that is lost in a collective of the model is named" * doctest::test_suite("graph")) {
  const GraphRun place("block", {4, 8});
  Ranks ranks(place, 2, sets_of({"run.steps=1000000"}));
  REQUIRE(ranks[0].wait_for(place.at("out/checkpoints/step-00000020/manifest.json")));
  ranks[1].send(SIGKILL);
  CHECK(ranks[0].wait() == 4);
  CHECK_MESSAGE(says(ranks[0].err(), "rank 1 is lost, as rank 0 has seen in a "), ranks[0].err());
}

TEST_CASE("model_parallel: what would train another model is refused before the first step" *
          doctest::test_suite("graph")) {
  struct Case {
    std::string message;
    Words settings;
    std::string name = "mlp";
    int ranks = 2;
  };
  const std::vector<Case> cases = {
      {"all_reduce.default takes the \"max\" of the ranks, which has no gradient here", {}, "max"},
      {"the ranks differ in layer.bias, which the model's files do not name as sharded", {}, "unnamed"},
      {"start 2 ranks", {}, "mlp", 3},
      {"is of several ranks that hold one model together; train it by vernier launch", {"distributed.use=none"}},
      {"is of several ranks that hold one model together", {"distributed.use=ddp"}},
      {"does not say which of its tensors are sharded",
       {"task.model=" VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/mlp.pt2"}},
      {"model_parallel is for a model in parts", {R"(task={use="mlp"})"}},
      {"is the part of rank 0 of 2, and this is rank 1 of 2", {"task.model=" + folder + "mlp-0.pt2"}},
      {"optimizer/muon looks at the whole of it", {R"(optimizer={use="muon"})"}},
      {"callback/recovery reads all", {R"(callback=[{use="recovery"}])"}},
      {"accumulation/fit may change their sizes", {R"(accumulation={use="fit"})"}},
  };
  for (const auto& each : cases) {
    CAPTURE(each.message);
    const GraphRun place(each.name, {6});
    Ranks ranks(place, each.ranks, sets_of(each.settings));
    CHECK(ranks.wait() == all_of(each.ranks, 2));
    CHECK_MESSAGE(says(ranks.errors(), each.message), ranks.errors());
  }
}

TEST_CASE("model_parallel: a checkpoint of parts is for as many ranks" * doctest::test_suite("graph")) {
  GraphRun place("mlp", {6});
  train(place, 2, sets_of({"run.steps=5"}));
  CHECK(place.call({"evaluate", "out"}) == 2);
  CHECK_MESSAGE(says(place.err, "is of several ranks that hold one model together"), place.err);
  CHECK(place.train({"--set=run.init_from=out", "--set=run.output=other", "--set=distributed.use=none",
                     "--set=task={use=\"mlp\"}"}) == 2);
  CHECK_MESSAGE(says(place.err, "has a part of the model for each of several ranks"), place.err);
  CHECK(place.call({"checkpoint", "export", "out", "model.safetensors", "--weights", "model"}) != 0);
  CHECK_MESSAGE(says(place.err, "has a part of the model for each of several ranks"), place.err);
  CHECK(place.call({"export", "out", "--format", "safetensors", "--output", "model.safetensors"}) == 2);
}

}  // namespace model_parallel_test
