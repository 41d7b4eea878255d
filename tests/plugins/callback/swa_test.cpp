// swa: the arithmetic mean of the weights, what validation sees, and a resumed run.
#include <ATen/ops/stack.h>
#include <doctest/doctest.h>

#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace swa_test {

using vernier::Event;
using vernier::Run;

namespace {

constexpr const char* mlp = R"(
[run]
steps = 14
validate_every = 3
[task]
use = "mlp"
samples = 64
batch_size = 12
[optimizer]
use = "adamw"
learning_rate = 0.01
[[monitor]]
use = "jsonl"
[[callback]]
use = "swa"
from = 4
every = 3
)";

vernier::Tensors averages_of(const SmallRun& run) {
  auto tensors = run.wiring->callbacks.front()->save().tensors;
  tensors.erase("averaged");
  return tensors;
}

}  // namespace

TEST_CASE("swa: the mean of the best weights after steps 4, 7, 10 and 13, in every precision") {
  for (const std::string precision : {"use = 'fp32'", "use = 'bf16'\nlevel = 'O2'", "use = 'bf16'\nlevel = 'O3'",
                                      "use = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'"}) {
    CAPTURE(precision);
    const TemporaryFolder output;
    SmallRun run(from_toml({mlp, "[precision]\n" + precision + "\n"}), output.path().string());
    std::map<std::string, std::vector<torch::Tensor>> seen;
    run.on(Event::StepEnd, [&seen](Run& now) {
      const auto step = now.step;
      if (step != 4 && step != 7 && step != 10 && step != 13) return;
      for (const auto& parameter : now.parameters) {
        seen["average/" + parameter.name].push_back(parameter.best().detach().to(torch::kDouble, false, true));
      }
    });
    run.train();
    const auto averages = averages_of(run);
    REQUIRE(averages.size() == seen.size());
    for (const auto& [name, weights] : seen) {
      CAPTURE(name);
      REQUIRE(weights.size() == 4);
      CHECK((averages.at(name).scalar_type() == torch::kFloat));
      CHECK(averages.at(name).to(torch::kDouble).allclose(at::stack(weights).mean(0), 1e-6, 1e-7));
    }
  }
}

TEST_CASE("swa: the first average validates, the trained weights return, and the training is what it is without it") {
  class Looking final : public toy::Task {
   public:
    torch::Tensor validate(Run& run) override {
      seen.clear();
      for (const auto& parameter : run.parameters) seen.push_back(parameter.model.clone());
      return toy::Task::validate(run);
    }
    std::vector<torch::Tensor> seen;
  };
  toy::Toy toy, without;
  auto task = std::make_unique<Looking>();
  const auto& looking = *task;
  toy.wiring.task = std::move(task);
  toy.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/swa", from_toml({"from = 2\nevery = 2\n"})));
  std::vector<std::vector<torch::Tensor>> trained;
  toy.on(Event::StepEnd, [&](Run&) { trained.push_back(toy.weights()); });
  int validated = 0;
  toy.on(Event::Validated, [&](Run& run) {
    ++validated;
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(torch::equal(run.parameters[i].model, trained.back()[i]));
      if (run.step == 1) CHECK(torch::equal(looking.seen[i], trained[0][i]));
      if (run.step == 3) CHECK(torch::equal(looking.seen[i], trained[1][i]));
      if (run.step == 4) CHECK(looking.seen[i].allclose((trained[1][i] + trained[3][i]) / 2));
    }
  });
  toy.prepare(1).train(toy.run);
  without.prepare(1).train(without.run);
  CHECK(validated == 6);
  for (std::size_t i = 0; i < 2; ++i) CHECK(torch::equal(toy.weights()[i], without.weights()[i]));
}

TEST_CASE("swa: stopped and resumed, bit for bit") {
  const auto config = from_toml({mlp});
  const TemporaryFolder whole_output;
  SmallRun whole(config, whole_output.path().string());
  whole.train();
  for (const std::int64_t stop : {2, 4, 8, 13}) {
    CAPTURE(stop);
    const TemporaryFolder output;
    {
      SmallRun first(config, output.path().string());
      first.stop_after(stop);
      first.train();
    }
    SmallRun second(config, output.path().string());
    REQUIRE(second.resume());
    second.train();
    CHECK(second.digest() == whole.digest());
    check_equal(averages_of(second), averages_of(whole));
    CHECK(read_text(second.run.output + "/losses.jsonl") == read_text(whole.run.output + "/losses.jsonl"));
  }
}

TEST_CASE("swa: needs to know when to begin") {
  CHECK(says(thrown_by([] { make_plugin<vernier::Callback>("callback/swa"); }).text, "`from` is needed"));
}

}  // namespace swa_test
