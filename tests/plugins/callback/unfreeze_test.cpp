// unfreeze: who has gradients and who changes in which step, also on resume; and what is refused.
#include <doctest/doctest.h>

#include "small_run.h"
#include "thrown.h"

namespace unfreeze_test {

using vernier::Event;
using vernier::Run;

namespace {

// Layers 0, 1 and 2: the last one trains at once, the one before from step 4 on, the first from step 8 on.
const std::string mlp = R"(
[run]
steps = 12
validate_every = 4
[task]
use = "mlp"
samples = 64
hidden = [16, 16]
[optimizer]
use = "adamw"
weight_decay = 0.1
[[monitor]]
use = "jsonl"
[[callback]]
use = "unfreeze"
group = [{match = ["layers.0.*"], from = 8}, {match = ["layers.1.*"], from = 4}]
)";

std::int64_t from(const std::string& name) {
  return name.starts_with("layers.0.") ? 8 : name.starts_with("layers.1.") ? 4 : 0;
}

Thrown refusal(const std::string& groups) {
  return thrown_by([&] { SmallRun run(from_toml({mlp, "[[callback]]\nuse = 'unfreeze'\ngroup = " + groups + "\n"})); });
}

}  // namespace

TEST_CASE("unfreeze: a group has no gradient and does not change before its step") {
  for (const std::string precision :
       {"use = 'fp32'", "use = 'bf16'\nlevel = 'O2'", "use = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'"}) {
    CAPTURE(precision);
    const TemporaryFolder output;
    SmallRun run(from_toml({mlp, "[precision]\n" + precision + "\n"}), output.path().string());
    vernier::Tensors before;
    run.on(Event::GradientsReady, [&](Run& now) {
      for (const auto& [name, model, master, frozen, owned] : now.parameters) {
        CAPTURE(name);
        CHECK(master.grad().defined() == (now.step >= from(name)));
        before[name] = model.detach().clone();
      }
    });
    run.on(Event::UpdateDone, [&](Run& now) {
      for (const auto& [name, model, master, frozen, owned] : now.parameters) {
        CAPTURE(name);
        CAPTURE(now.step);
        if (now.step < from(name)) CHECK(torch::equal(model, before[name]));
        if (name.ends_with("weight") && now.step >= from(name)) CHECK_FALSE(torch::equal(model, before[name]));
      }
    });
    run.train();
    CHECK(run.run.updates == 12);
    REQUIRE(before.size() == 6);
  }
}

TEST_CASE("unfreeze: what a group of the optimizer has frozen never gets a gradient") {
  const std::string frozen = "[[optimizer.group]]\nmatch = 'layers.1.*'\nfrozen = true\n";
  SmallRun run(from_toml({mlp, frozen}));
  run.on(Event::GradientsReady, [&](Run& now) {
    for (const auto& parameter : now.parameters) {
      CAPTURE(parameter.name);
      const bool trains = now.step >= from(parameter.name) && !parameter.name.starts_with("layers.1.");
      CHECK(parameter.master.grad().defined() == trains);
    }
  });
  run.train();
  const std::string rest = "[[callback]]\nuse = 'unfreeze'\ngroup = [{match = ['layers.[02].*'], from = 5}]\n";
  CHECK(says(thrown_by([&] {
               SmallRun none(from_toml({mlp, frozen, rest}));
             }).text,
             "nothing trains in the first step"));
}

TEST_CASE("unfreeze: stopped and resumed, bit for bit") {
  const auto config = from_toml({mlp});
  const TemporaryFolder whole_output;
  SmallRun whole(config, whole_output.path().string());
  whole.train();
  for (const std::int64_t stop : {1, 4, 6, 8, 10}) {
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
  }
}

TEST_CASE("unfreeze: of several groups the last counts; what matches nothing or trains nothing is refused") {
  CHECK(refusal("[{match = ['*'], from = 5}, {match = ['layers.2.*']}]") == Thrown{});
  CHECK(says(refusal("[{match = ['*'], from = 5}]").text, "nothing trains in the first step; give one group from = 0"));
  const auto misspelt = refusal("[{match = ['layers.2.weigth']}]");
  CHECK(misspelt.kind == 2);
  CHECK(says(misspelt.text,
             "`match` has \"layers.2.weigth\", which is the name of no parameter; did you mean "
             "\"layers.2.weight\"?"));
  CHECK(says(refusal("[{from = 3}]").text, "`match` is needed"));
}

}  // namespace unfreeze_test
