// `vernier digits`: how many digits of a step are significant, and where they are lost.
#include <ATen/ops/cross_entropy_loss.h>
#include <doctest/doctest.h>
#include <torch/nn/modules.h>
#include <vernier/data/supervised_task.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"
#include "tools/digits/step_digits.h"

namespace digits_test {

using Json = nlohmann::json;
using vernier::Run;
using vernier::StepDigits;
using vernier::Table;
using vernier::Value;

namespace {

enum class Kind { plain, cancels, branches };

struct Model final : torch::nn::Module {
  explicit Model(Kind of_kind) : kind(of_kind) {
    first = register_module("first", torch::nn::Linear(6, 16));
    middle = register_module("middle", torch::nn::Linear(16, 16));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = at::tanh(first->forward(x));
    if (kind == Kind::cancels) y = (y + 1e6) - 1e6;
    y = at::tanh(middle->forward(y));
    if (kind == Kind::branches && ++calls == 4) y = y * 0.3;
    return last->forward(y);
  }
  Kind kind;
  int calls = 0;
  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
};

class Own final : public vernier::SupervisedTask {
 public:
  Own(vernier::Options options, Kind kind) : SupervisedTask(options, 8), kind_(kind) { set_id("task/own"); }
  void build(Run&) override {
    const auto x = torch::randn({80, 6});
    set_training(vernier::tensor_dataset({x, x.slice(1, 0, 3).argmax(1)}));
    set_model(std::make_shared<Model>(kind_));
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
  }

 private:
  Kind kind_;
};

StepDigits digits_of(Kind kind, const std::string& more = "", std::int64_t samples = 10) {
  const auto config =
      from_toml({"[run]\nsteps = 9\ndevice = 'cpu'\nseed = 4\n[optimizer]\nuse = 'sgd'\n"
                 "learning_rate = 0.1\n[checkpoint]\nuse = 'none'\n",
                 more});
  const vernier::Options options("task/own", Table{}, "");
  std::vector<vernier::Given> given;
  given.push_back(vernier::given("task", std::make_unique<Own>(options, kind), options));
  const std::atomic<int> stop = 0;
  const TemporaryFolder folder;
  const auto prepared = vernier::prepare(
      config, "digits", built_plugins(), stop, [](auto&&...) { return false; }, 1, std::move(given));
  prepared->run.output = folder.path().string();
  prepared->run.quiet = true;
  REQUIRE(prepared->trainer.train_step(prepared->run));
  return vernier::digits_of_step(*prepared, samples, stop);
}

constexpr const char* base = R"([run]
steps = 12
seed = 3
device = "cpu"
output = "out"
[task]
use = "mlp"
samples = 80
batch_size = 12
[optimizer]
use = "adamw"
learning_rate = 0.01
[checkpoint]
use = "rolling"
every = 4
[[callback]]
use = "clip_norm"
max_norm = 0.5
)";

}  // namespace

TEST_CASE("digits: an addition that cancels is named as the place where digits are lost first") {
  const auto digits = digits_of(Kind::cancels);
  CHECK(digits.step == 2);
  REQUIRE(digits.first);
  CHECK(digits.first->name == "sub");
  CHECK(digits.first->after == "first");
  CHECK(digits.first->input > 7);
  // Numbers of about 0.5 keep a 16th as their last bit.
  CHECK(digits.first->output == doctest::Approx(-std::log10(std::sqrt(1.0 / 6) / 16 / 0.5)).epsilon(0.2));
  CHECK(*digits.layers[0].output > 6.5);
  CHECK(*digits.layers[1].output < 2.5);
  CHECK(digits.layers[1].gradient->digits < 2.5);
  CHECK(digits.loss_digits < 4);
  const auto text = vernier::text_of(digits);
  CHECK(says(text, "digits are lost first at sub, after the layer 'first': its output has 1."));
  const auto json = Json::parse(vernier::json_of(digits));
  CHECK(json["lost_first"]["operator"] == "sub");
  CHECK(json["operators"].size() == digits.operators.size());
  CHECK(json["loss"]["samples"].size() == 10);
}

TEST_CASE("digits: a network that loses none has those of its format, and updates what the weights can hold") {
  const auto digits = digits_of(Kind::plain);
  CHECK(!digits.first);
  CHECK(digits.loss_digits > 6.5);
  CHECK(digits.skipped == 0);
  REQUIRE(digits.layers.size() == 3);
  for (const auto& layer : digits.layers) {
    CAPTURE(layer.layer);
    CHECK(*layer.output > 6.5);
    CHECK(layer.gradient->digits > 6);
    // The update is the difference of two float32 weights.
    CHECK(layer.update->digits < layer.gradient->digits);
    CHECK(layer.update->digits > 3);
  }
  CHECK(says(vernier::text_of(digits), "no operator of the forward pass loses 1 digit or more"));
  const auto still = digits_of(Kind::plain, "[optimizer]\nlearning_rate = 0.0\n", 3);
  for (const auto& layer : still.layers) CHECK(layer.update->digits == doctest::Approx(24 * std::log10(2.0)));
  const auto half = digits_of(Kind::plain, "[precision]\nuse = 'bf16'\n");
  CHECK(!half.first);
  for (const auto& layer : half.layers) {
    CHECK(*layer.output > 1.5);
    CHECK(*layer.output < 2.5);
    CHECK(layer.gradient->digits < 3.2);
  }
}

TEST_CASE("digits: skipped updates and samples that take another way are said") {
  const auto skipped = digits_of(Kind::plain, "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'static'\nscale = 1e9\n", 3);
  CHECK(skipped.skipped == 3);
  CHECK(!skipped.layers[0].update);
  CHECK(says(vernier::text_of(skipped), "the update is skipped in 3 of 3"));
  const auto branch = digits_of(Kind::branches, "", 4);
  REQUIRE(branch.other_way);
  CHECK(*branch.other_way == "mul, after the layer 'middle'");
  CHECK(says(vernier::text_of(branch), "the samples call other operators from mul, after the layer 'middle' on"));
}

TEST_CASE("digits: a step is sampled beside plugins that compute it again, and these do not look at random bits") {
  const std::string recheck = "[[callback]]\nuse = 'recheck'\nevery = 1\non_fault = 'stop'\n";
  const auto plain = digits_of(Kind::plain, "", 3);
  CHECK(vernier::json_of(digits_of(Kind::plain, recheck, 3)) == vernier::json_of(plain));
  const std::string format = "[precision]\nuse = 'format'\nforward = 'e5m10'\n";
  const auto once = digits_of(Kind::plain, format, 3),
             measured = digits_of(Kind::plain, format + "measure_every = 1\n", 3);
  CHECK(measured.losses[0] == doctest::Approx(once.losses[0]).epsilon(0.001));
  CHECK(measured.layers[0].gradient->digits == doctest::Approx(once.layers[0].gradient->digits).epsilon(0.2));
  CHECK(thrown_by([] { digits_of(Kind::plain, "[precision]\nuse = 'adaptive'\nmeasure_steps = 2\n", 3); }) ==
        configuration("precision/adaptive has not chosen a policy yet, and random last bits would change its choice; "
                      "take a configuration with the policy that it chose, or without --steps a later --step"));
  RunFolder run(base + recheck);
  CHECK(run.call({"digits", "run.toml", "--steps", "2", "--samples", "3"}) == 0);
  CHECK(run.err == "");
}

TEST_CASE("vernier digits: the same output for any number of threads, of a file and of a run; nothing is written") {
  RunFolder run(base);
  std::string expected;
  for (const char* threads : {"1", "2", "4"}) {
    REQUIRE(run.call({"digits", "run.toml", "--step", "7", "--json", "--set", std::string("run.threads=") + threads}) ==
            0);
    CHECK(run.err == "");
    if (expected.empty()) expected = run.out;
    CHECK(run.out == expected);
  }
  CHECK(!std::filesystem::exists(run.at("out")));
  REQUIRE(run.train({"--set", "run.threads=1"}) == 0);
  REQUIRE(run.call({"digits", "out", "--step", "7", "--json"}) == 0);
  CHECK(run.out == expected);
  REQUIRE(run.call({"digits", "run.toml", "--set", "run.threads=1", "--samples", "3"}) == 0);
  CHECK(says(run.out, "step 1 under precision/fp32, 3 times with random last bits of "));
  CHECK(says(run.out, "layers.1 "));
  CHECK(says(run.out, "loss: 7."));
}

TEST_CASE("vernier digits: over a run, the losses of equal configurations spread, and the spread is a tolerance") {
  RunFolder run(base);
  const std::vector<std::string> words = {"digits", "run.toml", "--steps",       "12",    "--samples",
                                          "3",      "--set",    "run.threads=1", "--json"};
  REQUIRE(run.call(words) == 0);
  CHECK(run.err == "");
  const auto json = Json::parse(run.out);
  const auto once = run.out;
  REQUIRE(run.call(words) == 0);
  CHECK(run.out == once);
  CHECK(!std::filesystem::exists(run.at("out")));
  REQUIRE(json["losses"].size() == 3);
  REQUIRE(json["losses"][0].size() == 12);
  const auto loss = [&](int sample, int step) { return json["losses"][sample][step].get<double>(); };
  CHECK(loss(0, 11) != loss(1, 11));
  CHECK(json["tolerance"].get<double>() >= std::abs(loss(0, 11) - loss(1, 11)));
  CHECK(json["tolerance"].get<double>() < 0.01 * loss(0, 11));
  CHECK(json["loss_digits"].get<double>() > 4);
  CHECK(json["weight_digits"].get<double>() > 3);
  CHECK(json["weight_digits"].get<double>() < 7.2);
  REQUIRE(run.call({"digits", "run.toml", "--steps", "5", "--samples", "3", "--set", "precision.use=bf16"}) == 0);
  CHECK(says(run.out, "5 steps under precision/bf16, 3 times with random last bits of all operators"));
  CHECK(says(run.out, "with a confidence of 99.5 %; vernier compare claims no less with --tolerance "));
}

TEST_CASE("vernier digits: what is wrong is refused in one line") {
  RunFolder run(base);
  run.folder.write("bad.toml", "[run]\ndevice = 'cpu'\n[task]\nuse = 'mlp'\n");
  const auto refuses = [&](const std::vector<std::string>& words, const std::string& text) {
    auto all = words;
    all.insert(all.begin(), "digits");
    CHECK(run.call(all) == 2);
    CHECK(run.out == "");
    CHECK(is_one_line(run.err));
    CAPTURE(run.err);
    CHECK(says(run.err, text));
  };
  refuses({}, "name a TOML file");
  refuses({"run.toml", "--step", "13"}, "--step 13: the run has 12 steps, so there is no step 13");
  refuses({"run.toml", "--step", "0"}, "--step 0: give an integer from 1 up; the first step is 1");
  refuses({"run.toml", "--step", "2..3"}, "--step 2..3: give an integer from 1 up");
  refuses({"run.toml", "--samples", "2"}, "--samples 2: give an integer from 3 to 1000; at least 3 samples are");
  refuses({"run.toml", "--steps", "13"}, "--steps 13: the run has 12 steps");
  refuses({"run.toml", "--steps", "0"}, "--steps 0: give an integer from 1 up; a run has a step at least");
  refuses({"run.toml", "--steps", "2", "--step", "2"}, "give one of the two");
  refuses({"bad.toml"}, "must say how long to train");
  refuses({"none.toml"}, "there is no such file");
  refuses({"run.toml", "--resume", "out"}, "name the folder of a run instead of --resume");
  REQUIRE(run.train() == 0);
  refuses({"out", "--step", "13"}, "out: the run has 12 steps, so there is no step 13");
  refuses({"out", "--steps", "3"}, "name its TOML files, or the config.toml of the run");
  refuses({"out", "--set", "run.seed=1"}, "--set changes a TOML file, and out is a run; name its config.toml");
}

}  // namespace digits_test
