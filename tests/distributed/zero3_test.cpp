// distributed/zero3 has the bits of distributed/ddp. Each rank keeps a part of the weights, the gradients and the
// optimizer's state.
#include <c10/util/StringUtil.h>
#include <doctest/doctest.h>

#include <cmath>
#include <regex>

#include "long_form.h"
#include "several_ranks.h"

namespace zero3_test {

using namespace several_ranks;

namespace {

// With matrices that are large enough to be in parts, and vectors that are not.
const std::string wide =
    std::regex_replace(std::string(mlp), std::regex("samples ="), "inputs = 64\nhidden = [64, 96, 64]\nsamples =");

const std::string language = R"([run]
steps = 12
device = "cpu"
threads = 1
output = "out"
validate_every = 5
[task]
use = "gpt"
data = ["run.toml"]
layers = 1
width = 64
heads = 2
context = 16
batch_size = 5
sample_bytes = 20
[optimizer]
use = "adamw"
[checkpoint]
every = 4
[[monitor]]
use = "jsonl"
)";

const std::string table = R"([run]
steps = 12
device = "cpu"
threads = 1
output = "out"
validate_every = 5
[task]
use = "tabular"
data = "points.csv"
target = "class"
batch_size = 13
validation_share = 0.3
hidden = [96, 96]
[optimizer]
use = "adamw"
[checkpoint]
every = 4
[[monitor]]
use = "jsonl"
)";

void write_points(const RunFolder& place) {
  std::string points = "x,y,class\n";
  for (int i = 0; i < 57; ++i) {
    points += c10::str(std::sin(i * 1.7), ',', std::cos(i * 2.3), ',', i % 3 == 0 ? "one" : "other", '\n');
  }
  place.folder.write("points.csv", points);
}

}  // namespace

TEST_CASE("zero3: has the bits of ddp, and its checkpoint") {
  struct Case {
    std::string name;
    Words settings;
    int ranks = 2;
    std::string run = wide;
    std::string own = "distributed.keep_gathered=false";
  };
  const std::string o1 = R"(precision={use="bf16",level="O1"})", o2 = R"(precision={use="bf16",level="O2"})";
  const std::string clips = R"(callback=[{use="clip_norm",max_norm=0.1}])";
  const std::string dynamic = R"(scaler={use="dynamic",init_scale=1e9,growth_interval=3,measure_every=4})";
  std::vector<Case> cases = {
      {"clipping, and ranks with 2, 1 and no micro-batches",
       {clips, "accumulation.micro_batch_size=7", "task.samples=91"},
       3},
      {"float32 masters, and a group that is frozen",
       {o2, clips, R"(optimizer.group=[{match=["*.bias"],weight_decay=0.0},{match=["layers.1.*"],frozen=true}])"}},
      {"a scale that overflows", {R"(precision={use="fp16",level="O1"})", dynamic, clips}},
      {"autocast, blocks that are computed again, a tied weight", {o1, "task.recompute=full"}, 2, language},
      {"weights that stay from forward to backward",
       {"accumulation.micro_batch_size=2"},
       2,
       language,
       "distributed.keep_gathered=true"},
      {"a table, over connections, in pieces of a few bytes",
       {"distributed.shared_memory=false", "distributed.bucket=100B",
        R"(callback=[{use="clip_value",max_value=0.01}])"},
       2,
       table},
      {"more ranks than weights in parts", {"task.hidden=[64]", "optimizer.use=sgd"}, 3},
  };
  const std::vector<Case> rest = {
      {"four ranks", {clips, "accumulation.micro_batch_size=3"}, 4},
      {"four ranks over connections", {o1, "distributed.shared_memory=false"}, 4},
      {"float32 masters and a scale", {R"(precision={use="fp16",level="O2"})", dynamic, clips}, 3},
      {"weights that are rounded at random", {R"(precision={use="bf16",level="O3",rounding="stochastic"})"}},
      {"Kahan's compensation", {R"(precision={use="bf16",level="O3",rounding="kahan"})"}},
      {"no masters", {R"(precision={use="bf16",level="O3",rounding="nearest"})", "optimizer.use=sgd"}},
      {"Muon", {"optimizer.use=muon"}},
      {"masters for some steps",
       {o2, R"(callback=[{use="switch",at_step=5,to={precision={use="fp32"}}},)"
            R"({use="switch",at_step=8,to={precision={use="bf16",level="O2"},optimizer={use="lion"}}}])"}},
      {"a language model with masters on four ranks", {o2, clips, "task.layers=3"}, 4, language},
      {"a table with masters on four ranks", {o2, clips}, 4, table},
  };
  if (is_long()) cases.insert(cases.end(), rest.begin(), rest.end());
  for (const auto& each : cases) {
    CAPTURE(each.name);
    RunFolder ddp(each.run), zero3(each.run);
    for (const auto* place : {&ddp, &zero3}) write_points(*place);
    const auto sets = sets_of(each.settings);
    train(ddp, each.ranks, with(sets, {"--set=distributed.use=ddp"}));
    train(zero3, each.ranks, with(sets, {"--set=distributed.use=zero3", "--set=" + each.own}));
    CHECK(digest_of(zero3) == digest_of(ddp));
    CHECK(read_text(zero3.at("out/losses.jsonl")) == read_text(ddp.at("out/losses.jsonl")));
    CHECK(different(state_of(zero3), state_of(ddp)).empty());
    CHECK(different(weights_of(zero3, 12), weights_of(ddp, 12)).empty());
    const bool are_apart = each.name.find("over connections") != std::string::npos;
    const auto log = read_text(zero3.at("out/log.txt"));
    CHECK(says(log, " weights are in parts"));
    CHECK(says(log, ", which the ranks read in place") == !are_apart);
  }
}

TEST_CASE("zero3: messages in fewer bits are those of ddp" * doctest::test_suite("lab")) {
  const auto sets = sets_of({"distributed.message={use=\"one_bit\"}", "accumulation.micro_batches=2",
                             R"(precision={use="fp16",level="O1"})", R"(scaler={use="static",scale=128})"});
  RunFolder ddp(wide), zero3(wide);
  train(ddp, 2, sets);
  train(zero3, 2, with(sets, {"--set=distributed.use=zero3"}));
  CHECK(digest_of(zero3) == digest_of(ddp));
}

TEST_CASE(
    "zero3: weights that a layer puts together, whose gradients share memory, and unread ones train as with ddp") {
  const auto joined = std::regex_replace(std::string(mlp), std::regex("use = \"mlp\"\nsamples = 100\nbatch_size = 30"),
                                         "use = \"" VERNIER_BINARY_DIR "/fixtures/plugins/task/joined.so\"");
  const std::vector<std::string> ways = {R"(distributed.use="zero3")", "distributed.overlap=true"};
  RunFolder ddp(joined);
  train(ddp, 2, {});
  for (const auto& way : ways) {
    for (const char* bucket : {"distributed.bucket=1B", "distributed.bucket=8MB"}) {
      CAPTURE(way);
      CAPTURE(bucket);
      RunFolder other(joined);
      train(other, 2, sets_of({way, bucket}));
      CHECK(digest_of(other) == digest_of(ddp));
      CHECK(different(weights_of(other, 12), weights_of(ddp, 12)).empty());
    }
  }
}

TEST_CASE("zero3: a weight that a task writes while others read it ends the run with its name") {
  RunFolder place(std::regex_replace(std::string(mlp), std::regex("use = \"mlp\"\nsamples = 100\nbatch_size = 30"),
                                     "use = \"" VERNIER_BINARY_DIR
                                     "/fixtures/plugins/task/joined.so\"\nwrites = true"));
  Ranks ranks(place, 2, sets_of({"distributed.use=zero3"}));
  CHECK(ranks.wait() == all_of(2, 4));
  const auto both = ranks[0].err() + ranks[1].err();
  CHECK_MESSAGE(says(both, "the weight 'first' was written after BatchReady, while other ranks could read it"), both);
}

TEST_CASE("zero3: a run is resumed, on the same ranks bit for bit, on others and by all with the same batches") {
  const auto sets = sets_of({"distributed.use=zero3", R"(callback=[{use="clip_norm",max_norm=1.0}])"});
  RunFolder whole(wide), parts(wide), others(wide);
  train(whole, 3, sets);
  train(parts, 3, with(sets, {"--set=run.steps=5"}));
  train(parts, 3, with(sets, {"--resume"}));
  CHECK(digest_of(parts) == digest_of(whole));
  CHECK(different(state_of(parts), state_of(whole)).empty());
  train(others, 3, with(sets, {"--set=run.steps=3"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=5"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=7", "--set=distributed.use=zero1"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=9", "--set=distributed.use=ddp"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=10"}));
  train(others, 1, with(sets, {"--resume", "--set=distributed.use=none"}));
  CHECK(distance(weights_of(others, 12), weights_of(whole, 12)) <= 1e-4);
  CHECK(others.summary()["samples"] == whole.summary()["samples"]);
}

TEST_CASE("zero3: a run that has swapped to masters, or from them, is resumed bit for bit") {
  const std::string fp32 = R"({use="fp32"})", o2 = R"({use="bf16",level="O2"})";
  for (const auto& [from, to] : {std::pair(fp32, o2), std::pair(o2, fp32)}) {
    CAPTURE(to);
    const auto sets = sets_of({"distributed.use=zero3", "precision=" + from,
                               "callback=[{use=\"switch\",at_step=5,to={precision=" + to + "}}]"});
    RunFolder whole(wide), parts(wide);
    train(whole, 2, sets);
    train(parts, 2, with(sets, {"--set=run.steps=8"}));
    train(parts, 2, with(sets, {"--resume"}));
    CHECK(digest_of(parts) == digest_of(whole));
    CHECK(different(state_of(parts), state_of(whole)).empty());
  }
}

TEST_CASE("zero3: each rank writes its weights, and whoever reads the model has all of them") {
  RunFolder place(wide);
  train(place, 2, sets_of({"distributed.use=zero3"}));
  const auto path = (place.at("out/checkpoints") / vernier::checkpoint_name(12)).string();
  const auto manifest = vernier::verify_checkpoint(path);
  const auto& first = manifest.files.at("model-00001-of-00002.safetensors").tensors;
  const auto& second = manifest.files.at("model-00002-of-00002.safetensors").tensors;
  CHECK(first.contains("layers.0.bias"));
  CHECK(second.size() >= 1);
  for (const auto& [name, tensor] : second) CHECK_FALSE(first.contains(name));
  CHECK(vernier::read_checkpoint_model(path).model.tensors.size() == first.size() + second.size());
}

TEST_CASE("zero3: whatever reads a checkpoint of parts does what it does with that of ddp") {
  const Words sets = {"--set=run.steps=8"};
  const auto deeper =
      std::regex_replace(table, std::regex("96, 96"), "96, 96, 96");  // one more layer, so that each rank gets a part
  RunFolder zero3(deeper), ddp(deeper);
  for (const auto* place : {&zero3, &ddp}) {
    write_points(*place);
    const Words use = {place == &zero3 ? "--set=distributed.use=zero3" : "--set=distributed.use=ddp"};
    train(*place, 2, with(sets, use));
  }
  REQUIRE(std::filesystem::exists(zero3.at("out/checkpoints/latest/model.safetensors.index.json")));
  const std::vector<Words> calls = {
      {"evaluate", "out"},
      {"evaluate", "out/checkpoints/step-00000004"},
      {"predict", "out", "--input", "points.csv", "--output", "predictions.csv"},
      {"export", "out", "--format", "safetensors", "--output", "m.safetensors"},
      {"export", "out", "--format", "onnx", "--output", "m.onnx"},
      {"checkpoint", "export", "out", "weights.safetensors"},
      {"checkpoint", "verify", "out"},
      {"checkpoint", "list", "out"},
      {"checkpoint", "show", "out", "layers.*"},
      {"train", "run.toml", "--set=run.output=next", "--set=run.steps=2", "--set=run.init_from=out"},
      {"train", "run.toml", "--set=run.output=next2", "--set=run.steps=2",
       "--set=run.init_from=out/checkpoints/step-00000004"},
      {"train", "run.toml", "--set=run.steps=12", "--resume"},
  };
  for (const auto& words : calls) {
    CAPTURE(c10::Join(" ", words));
    for (auto* place : {&zero3, &ddp}) REQUIRE_MESSAGE(place->call(words) == 0, place->err);
  }
  for (const char* file : {"predictions.csv", "m.safetensors", "m.onnx", "weights.safetensors"}) {
    CAPTURE(file);
    CHECK(read_text(zero3.at(file)) == read_text(ddp.at(file)));
  }
  for (const char* run : {"out", "next", "next2"}) {
    const auto digest = [&](const RunFolder& place) { return place.summary(run)["digest"]; };
    CHECK(digest(zero3) == digest(ddp));
  }
}

TEST_CASE("zero3: a rank that dies after the end of the run leaves a summary without a digest") {
  RunFolder place(wide);
  const std::string dies = VERNIER_BINARY_DIR "/fixtures/plugins/callback/disagrees.so";
  Ranks ranks(place, 2, sets_of({"distributed.use=zero3", "callback=[{use=\"" + dies + "\",what=\"dies\"}]"}));
  CHECK(ranks.wait() == std::vector<int>{0, 3});
  CHECK(place.summary()["steps"] == 12);
  CHECK_FALSE(place.summary().contains("digest"));
  CHECK(says(read_text(place.at("out/log.txt")), "has no digest of the weights: rank 1 is lost, as rank 0 "));
}

TEST_CASE("zero3: what needs all weights or gradients at once is refused, with what to do instead") {
  struct Case {
    std::string setting, message;
  };
  const std::vector<Case> cases = {
      {R"(callback=[{use="ema"}])", "callback/ema needs all weights, and each is on one rank; use distributed/zero1"},
      {R"(callback=[{use="swa",from=3}])", "callback/swa needs all weights"},
      {R"(callback=[{use="sam"}])", "callback/sam may read those of all; use distributed/zero1"},
      {R"(callback=[{use="early_stopping"}])", "callback/early_stopping needs all weights"},
      {R"(callback=[{use="layers"}])", "callback/layers may read those of all"},
      {R"(callback=[{use="recovery"}])", "callback/recovery may read those of all"},
      {R"(accumulation={use="fit"})", "accumulation/fit may read those of all"},
      {R"(optimizer={use="lbfgs"})", "optimizer/lbfgs needs those of all parameters at once; use distributed/ddp"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.message);
    RunFolder place(wide);
    Ranks ranks(place, 2, sets_of({each.setting, "distributed.use=zero3"}));
    CHECK(ranks.wait() == all_of(2, 2));
    for (int rank = 0; rank < 2; ++rank) CHECK_MESSAGE(says(ranks[rank].err(), each.message), ranks[rank].err());
  }
}

}  // namespace zero3_test
