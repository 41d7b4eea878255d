// fp32, bf16 and fp16.
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <vernier/roles.h>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

using vernier::Precision;

namespace {

struct Forward {
  explicit Forward(const std::string& name, vernier::Table options = {})
      : plugin(make_plugin<Precision>("precision/" + name, std::move(options))) {
    torch::manual_seed(3);
    input = torch::randn({4, 8});
    run.model = std::make_shared<torch::nn::Module>();
    auto layer = run.model->register_module("head", std::make_shared<torch::nn::Module>());
    weight = layer->register_parameter("weight", torch::randn({5, 8}));
    plugin->prepare(run);
  }
  torch::Tensor linear() {
    return plugin->forward([this] { return at::linear(input, weight); });
  }
  vernier::Run run;
  std::unique_ptr<Precision> plugin;
  torch::Tensor input, weight;
};

// Steps, losses and skips of a small classifier.
struct Trained {
  double first_loss = 0, last_loss = 0;
  std::int64_t updates = 0;
};

Trained train(const std::string& overlay) {
  const TemporaryFolder output;
  SmallRun run(from_toml({"[run]\nsteps = 300\n[task]\nuse = \"mlp\"\nbatch_size = 32\n[optimizer]\nuse = \"adamw\"\n"
                          "learning_rate = 0.01\n[checkpoint]\nuse = \"none\"\n",
                          overlay}),
               output.path().string());
  Trained trained;
  run.on(vernier::Event::StepEnd, [&trained](vernier::Run& now) {
    if (now.step == 0) trained.first_loss = now.loss.item<double>();
  });
  const auto outcome = run.train();
  trained.last_loss = outcome.validation_loss.value();
  trained.updates = run.run.updates;
  return trained;
}

}  // namespace

TEST_CASE("precision: fp32 leaves everything as it is") {
  Forward forward("fp32");
  CHECK_FALSE(forward.plugin->needs_scaler());
  CHECK(torch::equal(forward.linear(), at::linear(forward.input, forward.weight)));
}

TEST_CASE("precision: bf16 and fp16 round what goes into a matrix product, and nothing else") {
  for (const auto& [name, dtype] : {std::pair("bf16", torch::kBFloat16), std::pair("fp16", torch::kFloat16)}) {
    CAPTURE(name);
    Forward forward(name);
    CHECK(forward.plugin->needs_scaler() == (dtype == torch::kFloat16));
    const auto output = forward.linear();
    CHECK((output.scalar_type() == dtype));
    CHECK(torch::equal(output, at::linear(forward.input.to(dtype), forward.weight.to(dtype))));
    output.sum().backward();
    CHECK((forward.weight.scalar_type() == torch::kFloat32));
    CHECK((forward.weight.grad().scalar_type() == torch::kFloat32));
    CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
    CHECK((at::linear(forward.input, forward.weight).scalar_type() == torch::kFloat32));
  }
}

TEST_CASE("precision: autocast ends where a forward throws") {
  for (const std::string name : {"bf16", "fp16"}) {
    Forward forward(name);
    CHECK_THROWS(forward.plugin->forward([]() -> torch::Tensor { throw std::runtime_error("in the middle"); }));
    CHECK_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  }
}

TEST_CASE("precision: a small training ends where it does in float32, also when its first updates are skipped") {
  const auto fp32 = train("");
  CHECK(fp32.updates == 300);
  CHECK(fp32.last_loss < fp32.first_loss / 2);
  const auto bf16 = train("[precision]\nuse = \"bf16\"\n");
  CHECK(bf16.updates == 300);
  CHECK(bf16.last_loss == doctest::Approx(fp32.last_loss).epsilon(0.15));
  const auto fp16 = train("[precision]\nuse = \"fp16\"\n[scaler]\nuse = \"dynamic\"\ninit_scale = 1073741824.0\n");
  CHECK(fp16.updates < 300);  // 2^30 times a gradient is over what float16 holds
  CHECK(fp16.updates > 270);
  CHECK(fp16.last_loss == doctest::Approx(fp32.last_loss).epsilon(0.15));
}

TEST_CASE("precision: at every level a small training ends where it does in float32") {
  const auto fp32 = train("");
  const auto level = [](const std::string& precision) { return train("[precision]\n" + precision); };
  CHECK(level("use = 'bf16'\nlevel = 'O0'\n").last_loss == fp32.last_loss);
  CHECK(level("use = 'bf16'\nlevel = 'O1'\n").last_loss == level("use = 'bf16'\n").last_loss);
  for (const std::string precision :
       {"use = 'bf16'\nlevel = 'O2'\n", "use = 'bf16'\nlevel = 'O3'\n",
        "use = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n", "use = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
        "use = 'fp16'\nlevel = 'O2'\n[scaler]\nuse = 'dynamic'\n",
        "use = 'fp16'\nlevel = 'O3'\n[scaler]\nuse = 'dynamic'\n[optimizer]\neps = 1e-4\n"}) {
    CAPTURE(precision);
    const auto trained = level(precision);
    CHECK(trained.updates >= 295);
    CHECK(trained.last_loss == doctest::Approx(fp32.last_loss).epsilon(0.2));
  }
}

TEST_CASE("precision: where the weights are in 16 bits, and what a rule keeps") {
  const auto dtypes = [](const std::string& precision) {
    const TemporaryFolder output;
    SmallRun run(from_toml({"[run]\nsteps = 2\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'adamw'\n[checkpoint]\nuse = "
                            "'none'\n[precision]\nuse = 'bf16'\n",
                            "[precision]\n" + precision}),
                 output.path().string());
    run.train();
    std::map<std::string, std::string> all;
    for (const auto& parameter : run.run.parameters) {
      all[parameter.name] = c10::str(parameter.model.scalar_type(), " of ", parameter.owned.scalar_type());
    }
    return all;
  };
  CHECK(dtypes("level = 'O1'\n")["layers.0.weight"] == "Float of Float");
  CHECK(dtypes("level = 'O2'\n")["layers.0.weight"] == "BFloat16 of Float");
  CHECK(dtypes("level = 'O3'\n")["layers.0.weight"] == "BFloat16 of BFloat16");
  auto kept = dtypes("level = 'O2'\n[[precision.rule]]\nmatch = '*.1'\nuse = 'fp32'\n");
  CHECK(kept["layers.0.weight"] == "BFloat16 of Float");
  CHECK(kept["layers.1.weight"] == "Float of Float");
  CHECK(kept["layers.1.bias"] == "Float of Float");
}

TEST_CASE("precision: a level that makes no sense is refused") {
  const auto refused = [](const std::string& name, const std::string& key, const std::string& options) {
    const auto config = from_toml({"[precision]\n" + options});
    const auto refusal = thrown_by(
        [&] { make_plugin<Precision>("precision/" + name, std::get<vernier::Table>(config.at("precision").data)); });
    CHECK_MESSAGE(says(refusal.text, "`" + key + "`"), refusal);
  };
  refused("bf16", "level", "level = 'O4'\n");
  refused("fp32", "level", "level = 'O2'\n");
  refused("bf16", "rounding", "level = 'O2'\nrounding = 'kahan'\n");
  refused("bf16", "rounding", "rounding = 'stochastic'\n");
  refused("fp16", "rounding", "level = 'O3'\nrounding = 'kahan'\n");
}

TEST_CASE("precision: float16 weights want an eps that does not vanish beside their squares") {
  const auto refusal = thrown_by([] { train("[precision]\nuse = 'fp16'\nlevel = 'O3'\n[scaler]\nuse = 'dynamic'\n"); });
  CHECK(refusal.kind == 2);
  CHECK_MESSAGE(says(refusal.text, "set eps = 1e-4"), refusal);
}

TEST_CASE("precision: in fp16 a skipped step changes no weight, halves the scale and is told") {
  for (const std::string level : {"O1", "O2", "O3"}) {
    CAPTURE(level);
    const TemporaryFolder output;
    SmallRun run(from_toml({"[run]\nsteps = 30\n[task]\nuse = \"mlp\"\n[precision]\nuse = \"fp16\"\n[scaler]\nuse = "
                            "\"dynamic\"\ninit_scale = 1073741824.0\n[optimizer]\nuse = \"adamw\"\neps = 1e-4\n"
                            "[checkpoint]\nuse = \"none\"\n",
                            "[precision]\nlevel = '" + level + "'\n"}),
                 output.path().string());
    std::string digest = run.digest();
    double scale = 1073741824.0;
    std::int64_t skipped = 0;
    run.on(vernier::Event::StepEnd, [&](vernier::Run& now) {
      CHECK(now.metrics.value("scale") == scale);
      const auto before = std::exchange(digest, run.digest());
      std::vector<std::string> notices;
      for (const auto& notice : now.notices) notices.push_back(notice.name);
      if (now.found_inf.item<float>() == 0) {
        CHECK(before != digest);
        CHECK(notices.empty());
        return;
      }
      CHECK(before == digest);
      CHECK(std::ranges::count(notices, "step_skipped") == 1);
      CHECK(std::ranges::count(notices, "scale_changed") == 1);
      scale /= 2;
      skipped += 1;
    });
    run.train();
    CHECK(skipped > 0);
    CHECK(skipped < 30);
    CHECK(run.run.updates == 30 - skipped);
  }
}
