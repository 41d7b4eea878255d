// Several processes that train one model, as a launcher starts them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <vernier/inner_plugin.h>
#include <vernier/launch_place.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <sstream>

#include "run/state/snapshot.h"
#include "several_ranks.h"
#include "small_run.h"
#include "toy_run.h"

namespace ddp_test {

using namespace several_ranks;

TEST_CASE("ddp: several ranks train as one process does") {
  struct Case {
    std::string name;
    std::vector<std::string> sets;
    double tolerance;
    int ranks = 3;
  };
  const std::vector<Case> cases = {
      {"two ranks", {}, 1e-6, 2},
      {"shares of 8, 8, 7 and 7, and of 3, 3, 2 and 2 samples", {}, 1e-6, 4},
      {"a batch of two samples, so that one rank has none", {"task.batch_size=2"}, 1e-6},
      {"micro-batches", {"accumulation.micro_batches=3"}, 1e-6},
      {"an update of several batches", {"accumulation={use=\"target\",target_effective_batch_size=60}"}, 1e-6},
      {"recovery, clipping and an average of the weights",
       {R"(callback=[{use="clip_norm",max_norm=0.1},{use="recovery"},{use="ema"}])"},
       1e-6},
      {"fp16 with a scale that overflows",
       {"precision.use=fp16", "scaler={use=\"dynamic\",init_scale=1e9,growth_interval=3}"},
       2e-3},
      {"bf16 weights with float32 masters", {"precision={use=\"bf16\",level=\"O2\"}"}, 2e-2},
      {"gradients that are sent in bf16", {"distributed.compress=bf16"}, 2e-2},
      {"small buckets", {"distributed.bucket=1KB"}, 1e-6},
      {"connections in the place of shared memory", {"distributed.shared_memory=false"}, 1e-6, 4},
      {"an interface and an address", {R"(distributed.interface="lo")", R"(distributed.address="127.0.0.1")"}, 1e-6, 2},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    std::vector<std::string> sets;
    for (const auto& set : each.sets) sets.push_back("--set=" + set);
    RunFolder alone(mlp), together(mlp);
    REQUIRE_MESSAGE(alone.train(sets) == 0, alone.err);
    Ranks ranks(together, each.ranks, sets);
    REQUIRE_MESSAGE(ranks.wait() == all_of(each.ranks, 0), ranks.errors());
    CHECK(distance(weights_of(alone, 12), weights_of(together, 12)) <= each.tolerance);
    const auto one = alone.summary(), several = together.summary();
    CHECK(several["steps"] == one["steps"]);
    CHECK(several["samples"] == one["samples"]);
    const double loss = one["validation_loss"]["final"];
    CHECK(double(several["validation_loss"]["final"]) == doctest::Approx(loss).epsilon(each.tolerance * 10));
  }
}

TEST_CASE("ddp: in float64 the ranks differ from one process by rounding alone, with padding in uneven shares") {
  const std::string exact = R"([run]
steps = 20
device = "cpu"
threads = 1
output = "out"
[task]
use = ")" VERNIER_BINARY_DIR R"(/fixtures/plugins/task/exact.so"
[accumulation]
weight = "tokens"
[optimizer]
use = "sgd"
learning_rate = 0.02
momentum = 0.9
[[callback]]
use = "clip_norm"
max_norm = 5.0
[distributed]
use = "none"
)";
  RunFolder alone(exact);
  REQUIRE_MESSAGE(alone.train() == 0, alone.err);
  const auto expected = weights_of(alone, 20);
  REQUIRE((expected.at("first").scalar_type() == at::kDouble));
  struct Case {
    int ranks;
    std::vector<std::string> sets;
  };
  const std::vector<Case> cases = {
      {2, {"--set=distributed.use=ddp"}},
      {3, {"--set=distributed.use=ddp", "--set=distributed.overlap=true", "--set=accumulation.micro_batches=2"}},
      {4, {"--set=distributed.use=zero1"}},
      {8, {"--set=distributed.use=zero1"}},  // one without a sample
      {3, {"--set=distributed.use=zero1", "--set=distributed.shared_memory=false"}},
  };
  for (const auto& [count, sets] : cases) {
    CAPTURE(count);
    RunFolder together(exact);
    Ranks ranks(together, count, sets);
    REQUIRE_MESSAGE(ranks.wait() == all_of(count, 0), ranks.errors());
    CHECK(distance(expected, weights_of(together, 20)) <= 1e-12);
  }
}

TEST_CASE("ddp: sums that begin in backward have the same bits") {
  const std::vector<std::vector<std::string>> cases = {
      {"distributed.bucket=1KB", "task.hidden=[24,16]", "accumulation.micro_batches=3"},
      {"distributed.bucket=1B", "task.batch_size=2", "distributed.compress=bf16"},  // a rank has no samples
      {"distributed.shared_memory=false", "distributed.bucket=1KB", "task.hidden=[24,16]"},
      {R"(callback=[{use="sam"}])", R"(optimizer.group=[{match=["layers.0.*"],frozen=true}])"},
  };
  for (const auto& settings : cases) {
    CAPTURE(settings[0]);
    std::vector<std::string> sets;
    for (const auto& setting : settings) sets.push_back("--set=" + setting);
    RunFolder after(mlp), within(mlp);
    REQUIRE(Ranks(after, 3, sets).wait() == all_of(3, 0));
    sets.push_back("--set=distributed.overlap=true");
    Ranks ranks(within, 3, sets);
    REQUIRE_MESSAGE(ranks.wait() == all_of(3, 0), ranks.errors());
    CHECK(digest_of(within) == digest_of(after));
    CHECK(read_text(within.at("out/losses.jsonl")) == read_text(after.at("out/losses.jsonl")));
  }
}

TEST_CASE("ddp: a run equals itself, and one that was stopped and resumed, bit for bit" * doctest::test_suite("text")) {
  // Dropout has other masks on each rank, and the histories of fp8 other ranges.
  const std::string language = R"([run]
steps = 8
device = "cpu"
threads = 1
output = "out"
validate_every = 1
[task]
use = "gpt"
data = ["run.toml"]
layers = 1
width = 16
heads = 2
context = 16
batch_size = 7
dropout = 0.2
sample_bytes = 0
[precision]
use = "fp8"
[optimizer]
use = "adamw"
[distributed]
use = "ddp"
[[monitor]]
use = "jsonl"
)";
  RunFolder first(language), second(language), parts(language);
  const auto train = [](RunFolder& place, const std::vector<std::string>& more = {}) {
    Ranks ranks(place, 3, more);
    REQUIRE_MESSAGE(ranks.wait() == all_of(3, 0), ranks.errors());
  };
  train(first);
  train(second);
  CHECK(digest_of(first) == digest_of(second));
  train(parts, {"--set=run.steps=3"});
  train(parts, {"--resume"});
  CHECK(digest_of(parts) == digest_of(first));
  CHECK(read_text(parts.at("out/losses.jsonl")) == read_text(first.at("out/losses.jsonl")));
}

TEST_CASE("ddp: one bit with error feedback sends what 1-bit Adam does, and all ranks get the sum" *
          doctest::test_suite("lab")) {
  const TemporaryFolder folder;
  const auto texts = texts_of(2, folder, [&](int rank) {
    at::set_num_threads(1);
    vernier::set_plugin_maker([](const std::string& role, const vernier::Value& table) {
      return vernier::make(built_plugins(), role, table).plugin;
    });
    const vernier::Table one_bit = {{"use", {std::string("one_bit"), "test"}}};
    const auto ddp = make_plugin<vernier::Distributed>("distributed/ddp", {{"message", {one_bit, "test"}}});
    vernier::TrainerRun run;
    const auto weight = at::zeros({4}).requires_grad_();
    run.parameters = {{.name = "weight", .model = weight, .master = weight}};
    vernier::HostApi::prepare(*ddp, run);
    vernier::Bus bus;
    vernier::HostApi::attach(bus, *ddp, false);
    const std::vector<std::vector<float>> sent = {
        {.3F, -.3F, .3F, -.3F}, {.35F, .35F, .35F, -.35F}, {.45F, -.45F, -.45F, -.45F}};
    std::string text;
    const auto compare = [&](const at::Tensor& found, const at::Tensor& expected) {
      text += at::allclose(found, expected, 0, 1e-6) ? "" : c10::str(found, " and not ", expected, '\n');
    };
    const auto gradient = at::tensor({.5F, -.1F, .2F, -.4F}) * (rank + 1);  // rank 1 sends twice as much as rank 0
    const auto update = [&](const at::Tensor& own) {
      weight.mutable_grad() = own.defined() ? own.clone() : own;
      ddp->all_reduce(run, at::zeros({1}, at::kDouble));
      ddp->load(ddp->save());  // a rerun ends with this
      vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
    };
    for (const auto& of_first : sent) {
      update(gradient);
      compare(weight.grad(), at::tensor(of_first) * 3);
    }
    const auto compare_error = [&] {
      compare(ddp->save().tensor("message/error/0/weight"), at::tensor({.4F, .1F, .4F, -.1F}) * (rank + 1));
    };
    compare_error();
    update(at::tensor({.5F, NAN, .2F, -.4F}));
    text += weight.grad().isnan().any().item<bool>() ? "" : "a NaN was hidden";
    compare_error();
    run.skip_update = at::ones({});
    update(gradient);
    compare_error();
    run.skip_update.reset();
    update({});  // no rank has a gradient
    compare_error();
    update(rank == 0 ? gradient : at::Tensor());
    if (rank == 1) compare_error();
    return text.empty() ? "equal" : text;
  });
  CHECK(texts == std::vector<std::string>{"equal", "equal"});
}

TEST_CASE("ddp: with rounded messages a run that was stopped and resumed has the same bits, and trains nearly as well" *
          doctest::test_suite("lab")) {
  const std::vector<std::vector<std::string>> cases = {
      {"distributed.message={use=\"one_bit\"}", "task.hidden=[700,400]",  // an error of more than 1 MiB
       "precision.use=fp16", "scaler={use=\"dynamic\",init_scale=1024,growth_interval=3}"},
      {"distributed.message={use=\"format\",format=\"mxfp8\",rounding=\"stochastic\"}", "distributed.use=zero1",
       "distributed.overlap=true", "distributed.error_feedback=false"},
      {"distributed.message={use=\"one_bit\"}",  // it rewinds to before the stop
       "callback=[{use=\"inject\",what=\"nan\",layer=\"layers.1\",at_batch=6},"
       "{use=\"recovery\",non_finite=[\"rewind\"],snapshot_every=3,rewind_back=1}]"},
  };
  RunFolder exact(mlp);
  REQUIRE(exact.train({"--set=run.steps=6"}) == 0);
  for (const auto& settings : cases) {
    CAPTURE(settings);
    std::vector<std::string> sets;
    for (const auto& setting : settings) sets.push_back("--set=" + setting);
    const auto train = [&](RunFolder& place, const std::vector<std::string>& more) {
      auto all = sets;
      all.insert(all.end(), more.begin(), more.end());
      Ranks ranks(place, 2, all);
      REQUIRE_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
    };
    RunFolder whole(mlp), parts(mlp);
    train(whole, {"--set=run.steps=6"});
    train(parts, {"--set=run.steps=4"});
    train(parts, {"--set=run.steps=6", "--resume"});
    CHECK(digest_of(parts) == digest_of(whole));
    CHECK(digest_of(whole) != digest_of(exact));
    const double loss = exact.summary()["validation_loss"]["final"];
    CHECK(double(whole.summary()["validation_loss"]["final"]) < 1.1 * loss);
  }
}

TEST_CASE("ddp: a data loader reads its rank's share, and all metrics of a validation are those of one process" *
          doctest::test_suite("data")) {
  const std::string table = R"([run]
steps = 6
device = "cpu"
threads = 1
output = "out"
validate_every = 3
[task]
use = "tabular"
data = "points.csv"
target = "class"
metrics = ["accuracy", "f1", "auc"]
batch_size = 13
validation_share = 0.3
workers = 2
[optimizer]
use = "adamw"
[distributed]
use = "ddp"
[[monitor]]
use = "jsonl"
)";
  std::string points = "x,y,class\n";
  for (int i = 0; i < 57; ++i) {
    points += c10::str(std::sin(i * 1.7), ',', std::cos(i * 2.3), ',', i % 3 == 0 ? "one" : "other", '\n');
  }
  RunFolder alone(table), together(table);
  for (auto* place : {&alone, &together}) place->folder.write("points.csv", points);
  REQUIRE_MESSAGE(alone.train() == 0, alone.err);
  Ranks ranks(together, 3);
  REQUIRE_MESSAGE(ranks.wait() == all_of(3, 0), ranks.errors());
  CHECK(distance(weights_of(alone, 6), weights_of(together, 6)) <= 1e-6);
  std::istringstream one(read_text(alone.at("out/losses.jsonl"))), several(read_text(together.at("out/losses.jsonl")));
  int validations = 0;
  for (std::string a, b; std::getline(one, a) && std::getline(several, b);) {
    const auto expected = nlohmann::json::parse(a), found = nlohmann::json::parse(b);
    REQUIRE(expected.size() == found.size());
    validations += expected.contains("validation_loss") ? 1 : 0;
    for (const auto& [key, value] : expected.items()) {
      CAPTURE(key);
      if (value.is_number()) CHECK(double(found[key]) == doctest::Approx(double(value)).epsilon(1e-5));
    }
  }
  CHECK(validations == 2);
}

TEST_CASE("ddp: rows of texts, which learn different numbers of tokens, train as one process does" *
          doctest::test_suite("text")) {
  const std::string tokenizer = VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/gpt2";
  const auto words = nlohmann::json::parse(read_text(tokenizer + "/tokenizer.json"))["model"]["vocab"].size();
  const nlohmann::json config = {{"model_type", "gpt2"}, {"n_embd", 8},       {"n_layer", 1},
                                 {"n_head", 2},          {"n_positions", 16}, {"vocab_size", words}};
  const std::string run = R"([run]
steps = 6
seed = 7
device = "cpu"
threads = 1
output = "out"
validate_every = 3
[task]
use = "gpt"
folder = "model"
weights = "random"
data = ["texts.jsonl"]
validation = ["texts.jsonl"]
packing = false
dropout = 0.0
context = 16
batch_size = 5
tokenizer = ")" + tokenizer +
                          "\"\n[optimizer]\nuse = \"sgd\"\nlearning_rate = 0.1\n[checkpoint]\nevery = 3\n" +
                          "[[monitor]]\nuse = \"jsonl\"\n";
  std::string lines;
  for (const char* answer : {" naïve", " b", " It goes on, and on.", " one two", " x", " what is it?", " yes"}) {
    lines += nlohmann::json{{"prompt", "a"}, {"completion", answer}}.dump() + "\n";
  }
  RunFolder alone(run), several(run);
  for (const auto* place : {&alone, &several}) {
    std::filesystem::create_directory(place->at("model"));
    place->folder.write("model/config.json", config.dump());
    place->folder.write("texts.jsonl", lines);
  }
  REQUIRE_MESSAGE(alone.train() == 0, alone.err);
  Ranks ranks(several, 3, {"--set=distributed.use=ddp"});
  REQUIRE_MESSAGE(ranks.wait() == all_of(3, 0), ranks.errors());
  CHECK(distance(weights_of(alone, 6), weights_of(several, 6)) <= 1e-6);
  const auto validated = [](const RunFolder& place) {
    return place.summary()["validation_loss"]["final"].get<double>();
  };
  CHECK(validated(several) == doctest::Approx(validated(alone)).epsilon(1e-6));
}

namespace {

// Buffers that forward writes in every way: by batch and by instance normalisation, which raise no version, through
// .data, and as plain memory. A mask is never written.
class Normed final : public torch::nn::Module {
 public:
  Normed() {
    weight = register_parameter("weight", torch::linspace(-1, 1, 12).reshape({4, 3}));
    head = register_parameter("head", torch::linspace(1, -1, 8).reshape({2, 4}));
    for (const char* name : {"batch_mean", "instance_mean", "through_data", "by_pointer"}) {
      register_buffer(name, torch::zeros({name[0] == 'i' ? 2 : 4}));
    }
    register_buffer("batch_variance", torch::ones({4}));
    register_buffer("instance_variance", torch::ones({2}));
    register_buffer("count", torch::zeros({1}, torch::kInt64));
    register_buffer("mask", torch::ones({64, 64}, torch::kBool));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const bool trains = is_training();
    auto all = named_buffers();
    auto h = at::linear(x, weight);
    if (trains) {
      all["through_data"].variable_data().add_(h.detach().mean(0));
      for (int i = 0; i < 4; ++i) all["by_pointer"].mutable_data_ptr<float>()[i] += h[0][i].item<float>();
      all["count"].mutable_data_ptr<std::int64_t>()[0] +=
          x.size(0) * static_cast<std::int64_t>(1 + 10 * std::abs(h[0][0].item<float>()));
    }
    h = at::batch_norm(h, {}, {}, all["batch_mean"], all["batch_variance"], trains, 0.3, 1e-5, false);
    h = at::instance_norm(h.reshape({-1, 2, 2}), {}, {}, all["instance_mean"], all["instance_variance"], trains, 0.3,
                          1e-5, false)
            .reshape({-1, 4});
    const auto shift = all["through_data"] + all["by_pointer"] * 0.01 + all["count"] * 0.001;
    return at::linear(at::tanh(h + shift), head);
  }
  torch::Tensor weight, head;
};

class NormedTask final : public toy::Task {
 public:
  void prepare(vernier::Run& run) override { run.set_model(model_ = std::make_shared<Normed>()); }
  torch::Tensor loss(const vernier::Batch& part) override {
    return at::mse_loss(model_->forward(part.tensors[0]), part.tensors[1]);
  }

 private:
  std::shared_ptr<Normed> model_;
};

}  // namespace

TEST_CASE("ddp: all ranks validate and save one model, whose buffers are rank 0's, however they were written") {
  for (const std::string distributed : {"distributed/ddp", "distributed/zero1"}) {
    CAPTURE(distributed);
    const TemporaryFolder folder;
    const auto texts = texts_of(2, folder, [&](int) {
      at::set_num_threads(1);
      std::string text;
      toy::Toy toy;
      toy.wiring.task = std::make_unique<NormedTask>();
      toy.wiring.accumulation = make_plugin<vernier::Accumulation>("accumulation/fixed");
      toy.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
      toy.wiring.distributed = make_plugin<vernier::Distributed>(distributed);
      toy.wiring.checkpoint = make_plugin<vernier::Checkpoint>("checkpoint/none");
      toy.on(vernier::Event::Validated, [&](vernier::Run& run) {
        text += c10::str(run.step, ' ', *run.metrics.value("validation_loss"), ' ', vernier::digest(*run.model), '\n');
      });
      toy.on(vernier::Event::StepEnd, [&](vernier::Run& run) {  // a listener writes on its own rank
        if (run.step == 4)
          run.model->named_buffers()["by_pointer"].mutable_data_ptr<float>()[0] +=
              static_cast<float>(run.control->rank());
      });
      toy.prepare(2).train(toy.run);
      return text;
    });
    CHECK_MESSAGE(std::ranges::count(texts[0], '\n') == 3, texts[0]);
    CHECK(texts[0] == texts[1]);
  }
}

TEST_CASE("ddp: with batch normalisation validations are those of one process, before and after a resume" *
          doctest::test_suite("data")) {
  const auto idx = [](const std::vector<int>& sizes, int (*byte)(int)) {
    std::string bytes = {0, 0, 8, static_cast<char>(sizes.size())};
    int count = 1;
    for (const auto size : sizes) {
      bytes += {0, 0, 0, static_cast<char>(size)};
      count *= size;
    }
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(byte(i));
    return bytes;
  };
  const std::string table = R"([run]
steps = 6
device = "cpu"
threads = 1
output = "out"
validate_every = 2
[task]
use = "images"
images = "images"
labels = "labels"
validation_share = 0.3
model = "resnet"
channels = 4
blocks = [1]
batch_size = 9
[optimizer]
use = "sgd"
learning_rate = 0.1
[checkpoint]
every = 3
[[monitor]]
use = "jsonl"
)";
  for (const char* use : {"ddp", "zero1"}) {
    CAPTURE(use);
    RunFolder whole(table), parts(table);
    for (const auto* place : {&whole, &parts}) {
      place->folder.write("images", idx({40, 6, 6}, [](int i) { return i * i % 251 + i / 36 % 2 * (i % 5); }));
      place->folder.write("labels", idx({40}, [](int i) { return i % 2; }));
    }
    const auto train = [&](RunFolder& place, const std::vector<std::string>& more = {}) {
      auto all = more;
      all.push_back(std::string("--set=distributed.use=") + use);
      Ranks ranks(place, 2, all);
      REQUIRE_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
    };
    train(whole);
    train(parts, {"--set=run.steps=3"});
    train(parts, {"--resume", "--set=run.steps=6"});
    CHECK(digest_of(parts) == digest_of(whole));
    const auto last_of = [](const RunFolder& place) {
      return place.summary()["validation_loss"]["final"].get<double>();
    };
    CHECK(last_of(parts) == last_of(whole));
    REQUIRE_MESSAGE(whole.call({"evaluate", "out", "--set=distributed.use=none"}) == 0, whole.err);
    const auto place = whole.out.find("validation_loss") + 15;
    CHECK(std::abs(std::stod(whole.out.substr(place)) - last_of(whole)) <= 1e-6);
  }
}

// Tensors of up to 1 MiB are compared between the ranks before a checkpoint: here weights and averages of 12 MB.
TEST_CASE("ddp: a checkpoint with many tensors just below 1 MiB is saved, and the run goes on") {
  const std::vector<std::string> wide = {"--set=task.hidden=[500,500,500,500,500]", "--set=optimizer.use=adamw",
                                         "--set=optimizer.learning_rate=1e-3", "--set=run.steps=2"};
  RunFolder together(mlp), alone(mlp);
  REQUIRE_MESSAGE(alone.train(wide) == 0, alone.err);
  Ranks ranks(together, 2, wide);
  REQUIRE_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
  CHECK(distance(weights_of(alone, 2), weights_of(together, 2)) <= 1e-4);
}

TEST_CASE("ddp: a run is resumed with what the ranks send as before, or refused") {
  RunFolder place(mlp);
  train(place, 2, sets_of({"run.steps=3", "distributed.compress=bf16"}));
  const auto resumed = [&](const Words& words) {
    Ranks ranks(place, 2, with({"--resume"}, words));
    const auto status = ranks.wait();
    return std::pair(status[0], ranks.errors());
  };
  const auto [status, errors] = resumed({"--set=run.steps=4"});
  CHECK(status == 2);
  CHECK_MESSAGE(says(errors, R"(distributed.compress was "bf16" and is "none"; make them the same)"), errors);
  CHECK(resumed(sets_of({"run.steps=4", "distributed.compress=bf16", "distributed.overlap=true"})).first == 0);
  CHECK(resumed({"--set=run.steps=5", "--allow-inexact"}).first == 0);
}

TEST_CASE("ddp: a run is resumed on another number of ranks with the same batches") {
  RunFolder alone(mlp), place(mlp);
  REQUIRE(alone.train() == 0);
  for (const auto& [ranks, steps] : {std::pair(3, 4), {2, 8}, {1, 12}}) {
    Ranks programs(place, ranks, {"--set=run.resume=auto", "--set=run.steps=" + std::to_string(steps)});
    REQUIRE_MESSAGE(programs.wait() == all_of(ranks, 0), programs.errors());
  }
  CHECK(distance(weights_of(alone, 12), weights_of(place, 12)) <= 1e-6);
  CHECK(place.summary()["samples"] == alone.summary()["samples"]);
}

TEST_CASE("ddp: a run by a compiled program is resumed on several ranks, which use the operators") {
  RunFolder place(mlp);
  const std::vector<std::string> compiled = {"--set=run.engine=\"compiled\"", "--set=run.steps=10"};
  REQUIRE_MESSAGE(place.train(compiled) == 0, place.err);
  CHECK_MESSAGE(says(read_text(place.at("out/log.txt")), "a recording computes forward and backward"), place.err);
  Ranks ranks(place, 2, {"--resume", "--set=run.engine=\"compiled\""});
  CHECK_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
}

TEST_CASE("ddp: a signal to one rank stops all after the same step, with one checkpoint") {
  RunFolder place(mlp);
  const std::vector<std::string> endless = {"--set=run.steps=1000000", "--set=run.validate_every=0",
                                            "--set=checkpoint.every=0"};
  Ranks ranks(place, 3, endless);
  const bool trains = ranks[2].wait_until([&] { return read_text(place.at("out/losses.jsonl")).size() > 2000; });
  REQUIRE_MESSAGE(trains, ranks.errors());
  ranks[2].send(SIGTERM);
  CHECK(ranks.wait() == all_of(3, 128 + SIGTERM));
  CHECK(place.summary()["ended_by"] == "signal 15");
  CHECK(vernier::checkpoints_in(place.at("out/checkpoints").string()).size() == 1);
}

TEST_CASE("ddp: the rank that was killed is named by the others, which end with 4, the run is resumed") {
  RunFolder whole(mlp), place(mlp);
  const std::vector<std::string> sets = {"--set=run.steps=300", "--set=run.validate_every=0", "--set=run.resume=auto",
                                         "--set=checkpoint.every=20"};
  REQUIRE(Ranks(whole, 3, sets).wait() == all_of(3, 0));
  for (const int victim : {1, 0}) {
    CAPTURE(victim);
    Ranks ranks(place, 3, sets);
    REQUIRE(ranks[victim].wait_for(place.at("out/checkpoints") / vernier::checkpoint_name(victim == 1 ? 40 : 100)));
    const auto begin = Clock::now();
    ranks[victim].send(SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(ranks[rank].wait() == (rank == victim ? -SIGKILL : 4));
      if (rank != victim) CHECK(says(ranks[rank].err(), "rank " + std::to_string(victim) + " is lost, as rank "));
    }
    CHECK(seconds_since(begin) < 10);  // 2 on a machine that does nothing else
  }
  Ranks resumed(place, 3, sets);
  REQUIRE_MESSAGE(resumed.wait() == all_of(3, 0), resumed.errors());
  CHECK(digest_of(place) == digest_of(whole));
  const auto losses_of = [](const RunFolder& run) {  // without the notice of a rank that was slow
    return std::regex_replace(read_text(run.at("out/losses.jsonl")), std::regex(R"(,"notices":\[.*?\])"), "");
  };
  CHECK(losses_of(place) == losses_of(whole));
}

TEST_CASE("ddp: a rank that dies while a checkpoint is made is named at once") {
  RunFolder place(mlp);
  const auto begin = Clock::now();
  Ranks ranks(place, 3,
              {"--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins",
               R"(--set=callback=[{use="ends",event="save",step=8}])"});
  const auto status = ranks.wait();
  CHECK(status[0] == 4);
  CHECK(status[1] != 0);  // -SIGSEGV, or the thread sanitizer's 66
  CHECK(status[2] == 4);
  for (const int rank : {0, 2}) CHECK(says(ranks[rank].err(), "rank 1 is lost, as rank "));
  CHECK(seconds_since(begin) < patience::limit(20));  // the timeout is 30
  CHECK(std::filesystem::exists(place.at("out/checkpoints") / vernier::checkpoint_name(4)));
}

TEST_CASE("ddp: a rank that does not answer is lost at the timeout") {
  RunFolder place(mlp);
  Ranks ranks(place, 3, {"--set=run.steps=1000000", "--set=distributed.timeout=" + std::to_string(seconds_to_meet())});
  REQUIRE(ranks[1].wait_until([&] { return read_text(place.at("out/losses.jsonl")).size() > 2000; }));
  ranks[1].send(SIGSTOP);
  CHECK(ranks[0].wait() == 4);
  CHECK(ranks[2].wait() == 4);
  CHECK(says(ranks[0].err(), "rank 1 is lost, as rank "));
}

TEST_CASE("ddp: ranks that differ are refused on every rank, with the key and both values") {
  struct Case {
    std::string set, message;
  };
  const std::vector<Case> cases = {
      {"optimizer.learning_rate=0.5",
       "the ranks differ in optimizer.learning_rate: rank 0 has 0.01, rank 1 has 0.5; start all of them alike"},
      {"run.seed=8", "the ranks differ in run.seed: rank 0 has 7, rank 1 has 8"},
      {"task.samples=99", "the ranks differ in task.samples: rank 0 has 100, rank 1 has 99"},
      {"scaler.use=dynamic", "the ranks differ in "},
  };
  for (const auto& each : cases) {
    CAPTURE(each.set);
    RunFolder place(mlp);
    Ranks ranks(place, 2, {}, [&](int rank) {
      return rank == 1 ? std::vector<std::string>{"--set=" + each.set} : std::vector<std::string>{};
    });
    CHECK(ranks.wait() == all_of(2, 2));
    for (int rank = 0; rank < 2; ++rank) CHECK(says(ranks[rank].err(), each.message));
    CHECK(!std::filesystem::exists(place.at("out")));
  }
}

TEST_CASE("ddp: ranks that were started wrongly end with one line") {
  RunFolder place(mlp);
  const std::vector<std::string> soon = {"--set=distributed.timeout=2"};
  SUBCASE("one never comes") {
    Ranks ranks(place, 1, soon, {}, {{"WORLD_SIZE", "3"}});
    CHECK(ranks.wait() == std::vector{4});
    CHECK(says(ranks.errors(), "of 3 ranks these did not come within 2 s: 1,2"));
  }
  SUBCASE("rank 0 never comes") {
    Ranks ranks(place, 1, soon, {}, {{"WORLD_SIZE", "2"}, {"RANK", "1"}});
    CHECK(ranks.wait() == std::vector{4});
    CHECK(says(ranks.errors(), "rank 1 cannot reach rank 0 at 127.0.0.1, port "));
  }
  SUBCASE("two are the same rank") {
    Ranks ranks(place, 2, soon, {}, {{"WORLD_SIZE", "3"}, {"RANK", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}});
    CHECK(ranks.wait() == all_of(2, 4));  // there is no rank 0
  }
  SUBCASE("no such interface") {
    Ranks ranks(place, 2, {"--set=distributed.timeout=10", R"(--set=distributed.interface="nowhere0")"});
    for (const int code : ranks.wait()) CHECK(code != 0);
    CHECK(says(ranks.errors(), "the network of this machine cannot be used by [distributed] interface = \"nowhere0\""));
  }
  SUBCASE("no number") {
    Ranks ranks(place, 1, soon, {}, {{"WORLD_SIZE", "many"}});
    CHECK(ranks.wait() == std::vector{2});
    CHECK(says(ranks.errors(), "the environment has WORLD_SIZE = \"many\", which is not a number"));
  }
  SUBCASE("what cannot train on several ranks") {
    for (const char* set : {"precision.use=adaptive", "scaler.use=per_layer"}) {
      Ranks ranks(place, 2, {"--set=" + std::string(set)});
      CHECK(ranks.wait() == all_of(2, 2));
      CHECK(says(ranks.errors(), "cannot train on several ranks"));
    }
  }
  SUBCASE("what contradicts an option") {
    for (const auto& [set, message] :
         {std::pair("optimizer.in_backward=true", "optimizer/adamw steps in it; leave in_backward out"),
          std::pair("accumulation.use=fit", "accumulation/fit may compute a batch again that ran out of memory")}) {
      Ranks ranks(place, 2, {"--set=distributed.overlap=true", "--set=" + std::string(set)});
      CHECK(ranks.wait() == all_of(2, 2));
      for (int rank = 0; rank < 2; ++rank) CHECK(says(ranks[rank].err(), message));
    }
  }
}

TEST_CASE("ddp: the place of a process, as launchers name it") {
  struct Case {
    Environment environment;
    vernier::LaunchPlace place;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{{"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"MASTER_ADDR", "a"},
        {"MASTER_PORT", "29400"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"SLURM_PROCID", "3"}},
       {1, 4, 1, "a", 29400, "2", true, "torchrun"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       {1, 4, 1, "a", 0, "0", false, "torchrun"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       {1, 2, 1, "127.0.0.1", 0, "0", false, "torchrun"}},
      {{{"SLURM_STEP_ID", "3"},
        {"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_ID", "20011"},
        {"SLURM_STEP_NODELIST", "gpu[003-005,9],cpu1"}},
       {5, 8, 1, "gpu003", 15014, "0", false, "Slurm"}},
      {{{"SLURM_STEP_ID", "3"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_STEP_NUM_NODES", "1"},
        {"SLURM_JOB_ID", "20011"},
        {"SLURM_STEP_NODELIST", "gpu003"}},
       {1, 2, 0, "127.0.0.1", 15014, "0", false, "Slurm"}},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}, {}},  // the batch script itself
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"MASTER_ADDR", "b"}},
       {1, 2, 1, "b", 0, "0", false, "Open MPI"}},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MASTER_ADDR", "b"}},
       {1, 2, 1, "127.0.0.1", 0, "0", false, "Open MPI"}},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, {0, 2, 0, "", 0, "0", false, "MPI"}},
      {{{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"PMI_LOCAL_RANK", "1"}, {"MASTER_ADDR", "c"}},
       {3, 8, 1, "c", 0, "0", false, "MPI"}},
      {{{"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NTASKS", "8"}},
       {1, 2, 0, "", 15003, "0", false, "Slurm"}},
      {{{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, {}},  // salloc's shell
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}},
       {2, 4, 0, "", 15003, "0", false, "Slurm"}},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "1"},
        {"TORCHELASTIC_RUN_ID", "none"},
        {"SLURM_STEP_ID", "3"},
        {"SLURM_PROCID", "2"},
        {"SLURM_NTASKS", "4"}},
       {0, 1, 0, "", 0, "0", false, "torchrun"}},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "d"}, {"PET_MASTER_PORT", "29400"}},
       {1, 2, 0, "d", 29400, "0", false, "Kubeflow"}},
      {{{"SM_HOSTS", "[\"algo-1\",\"algo-2\"]"}, {"SM_CURRENT_HOST", "algo-2"}},
       {1, 2, 0, "algo-1", 0, "0", false, "SageMaker"}},
      {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "1"}, {"FLUX_TASK_LOCAL_ID", "1"}},
       {1, 2, 1, "", 0, "0", false, "Flux"}},
  };
  for (const auto& each : cases) {
    const Variables variables(each.environment);
    const auto found = vernier::place_in_environment();
    CAPTURE(each.place.launcher);
    CHECK(found.rank == each.place.rank);
    CHECK(found.ranks == each.place.ranks);
    CHECK(found.local_rank == each.place.local_rank);
    CHECK(found.address == each.place.address);
    CHECK(found.port == each.place.port);
    CHECK(found.attempt == each.place.attempt);
    CHECK(found.launcher_has_store == each.place.launcher_has_store);
    CHECK(found.launcher == each.place.launcher);
  }
  const Variables pod({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "4"}});
  CHECK(says(thrown_by([] { vernier::place_in_environment(); }).text,
             "Kubeflow wants 4 processes on each machine (PET_NPROC_PER_NODE)"));
  CHECK(vernier::first_node("r[01-02]n[3-9]") == "r01n3");
  CHECK(vernier::first_node("n[2,5]-ib") == "n2-ib");
  CHECK(vernier::first_node("one,two") == "one");
}

}  // namespace ddp_test
