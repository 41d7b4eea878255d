// fp32, bf16 and fp16.
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <vernier/hardware.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace precision_test {

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
  vernier::TrainerRun run;
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
    if (now.step == 1) trained.first_loss = now.loss.item<double>();
  });
  const auto outcome = run.train();
  trained.last_loss = outcome.validation_loss.value();
  trained.updates = run.run.updates;
  return trained;
}

// The digest of a task trained for 12 steps.
std::string digest_of(const std::string& precision, const std::string& task = "use = \"mlp\"", int micro_batches = 1) {
  const TemporaryFolder output;
  SmallRun run(from_toml({"[run]\nsteps = 12\n[task]\n" + task +
                          "\nbatch_size = 12\n[optimizer]\nuse = \"adamw\"\n"
                          "learning_rate = 0.01\n[checkpoint]\nuse = \"none\"\n[accumulation]\nmicro_batches = " +
                          std::to_string(micro_batches) +
                          "\n[scaler]\nuse = \"static\"\nscale = 1024.0\n[precision]\n" + precision}),
               output.path().string());
  run.train();
  return run.digest();
}

std::string trouble_of(const std::string& precision) {
  return thrown_by([&] { digest_of(precision); }).text;
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
      all[parameter.name] = c10::str(parameter.model.scalar_type(), " of ", parameter.master.scalar_type());
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
  kept = dtypes("level = 'O3'\n[[precision.rule]]\nmatch = '*.0'\n[[precision.rule]]\nuse = 'fp32'\n");
  CHECK(kept["layers.0.weight"] == "BFloat16 of BFloat16");  // the rule matches this layer alone
  CHECK(kept["layers.1.weight"] == "Float of Float");
}

TEST_CASE("precision: an optimizer that asks again gets the gradient where it has gone") {
  for (const std::string level : {"level = 'O1'", "level = 'O2'", "level = 'O3'",
                                  "level = 'O3'\nrounding = 'stochastic'", "level = 'O3'\nrounding = 'kahan'"}) {
    CAPTURE(level);
    const TemporaryFolder output;
    SmallRun run(from_toml({"[run]\nsteps = 3\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n[checkpoint]\nuse = "
                            "'none'\n[precision]\nuse = 'bf16'\n" +
                            level}),
                 output.path().string());
    run.on(vernier::Event::GradientsReady, [](vernier::Run& now) {
      auto& parameter = now.parameters[0];
      const auto before = parameter.master.detach().clone();
      const double loss = now.loss.item<double>();
      {
        const torch::NoGradGuard no_grad;
        parameter.master.neg_();
      }
      CHECK(now.control->recompute().item<double>() != loss);
      CHECK(torch::equal(parameter.model, -before.to(parameter.model.scalar_type())));
      CHECK(torch::allclose(parameter.master, -before, 1e-4));
      CHECK(parameter.master.grad().defined());
    });
    run.train();
  }
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
  refused("fp32", "rounding", "rounding = 'nearest'\n");
  refused("adaptive", "level", "level = 'O1'\n");
  refused("bf16", "rounding", "level = 'O2'\nrounding = 'kahan'\n");
  refused("bf16", "rounding", "rounding = 'stochastic'\n");
  refused("fp16", "rounding", "level = 'O3'\nrounding = 'kahan'\n");
  refused("bf16", "autocast_mode", "level = 'O2'\nautocast_mode = 'training'\n");
  refused("bf16", "autocast_mode", "cast_inputs = true\nautocast_mode = 'inference'\n");
  refused("fp32", "autocast_mode", "autocast_mode = 'training'\n");
  refused("fp32", "cast_outputs", "cast_outputs = true\n");
  refused("bf16", "cast_outputs", "cast_outputs = true\nlevel = 'O2'\n");
  refused("adaptive", "cast_outputs", "cast_outputs = true\n");
  for (const char* name : {"bf16", "fp16", "fp8"}) {
    refused(name, "cast_outputs", "level = 'O0'\ncast_outputs = true\n");
    refused(name, "autocast_mode", "level = 'O0'\nautocast_mode = 'training'\n");
    refused(name, "autocast_mode", "level = 'O0'\nautocast_mode = 'inference'\n");
  }
}

TEST_CASE("precision: fp32 takes the levels O0 and O1, which are the same") {
  const auto plain = digest_of("use = \"fp32\"");
  for (const std::string level : {"O0", "O1"}) CHECK(digest_of("use = \"fp32\"\nlevel = \"" + level + "\"") == plain);
}

TEST_CASE("precision: mixed is what computes some operations below float32") {
  const auto is_mixed = [](const std::string& name, const std::string& options = "") {
    const auto config = from_toml({"[precision]\n" + options});
    return make_plugin<Precision>("precision/" + name, std::get<vernier::Table>(config.at("precision").data))
        ->is_mixed();
  };
  for (const char* name : {"bf16", "fp16", "fp8"}) CHECK(is_mixed(name));
  for (const char* name : {"fp32", "adaptive"}) CHECK_FALSE(is_mixed(name));  // adaptive has decided nothing yet
  CHECK(is_mixed("auto") == (vernier::hardware_of(torch::kCPU).fastest() != torch::kFloat32));
  for (const char* name : {"bf16", "fp16", "fp8"}) CHECK_FALSE(is_mixed(name, "level = 'O0'\n"));
  for (const std::string use : {"bf16", "fp16", "fp8"})
    CHECK(is_mixed("fp32", "rule = [{op = 'linear', use = '" + use + "'}]\n"));
  CHECK_FALSE(is_mixed("fp32", "rule = [{op = 'linear', use = 'fp32'}]\n"));
  CHECK(is_mixed("adaptive", "rule = [{op = 'linear', use = 'bf16'}]\n"));
  const std::string modes = "cast_outputs = true\nautocast_mode = 'training'\n";  // auto takes them on every machine
  CHECK(is_mixed("auto", modes) == is_mixed("auto"));
  CHECK(is_mixed("bf16", modes + "level = 'O0'\nrule = [{op = 'linear', use = 'bf16'}]\n"));
}

TEST_CASE("precision: float16 weights want an eps that does not vanish beside their squares") {
  const auto refusal = thrown_by([] { train("[precision]\nuse = 'fp16'\nlevel = 'O3'\n[scaler]\nuse = 'dynamic'\n"); });
  CHECK(refusal.kind == 2);
  CHECK_MESSAGE(says(refusal.text, "set eps = 1e-4"), refusal);
}

TEST_CASE("precision: in fp16 a skipped step changes no weight, halves the scale and is reported") {
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
      if (now.skip_update.item<float>() == 0) {
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

TEST_CASE("precision rules: the policy is what its rules are, bit for bit") {
  const auto fp32 = digest_of("use = \"fp32\""), bf16 = digest_of("use = \"bf16\""), fp16 = digest_of("use = \"fp16\"");
  CHECK(fp32 != bf16);
  CHECK(fp16 != bf16);
  CHECK(digest_of("use = \"fp32\"\nrule = [{op = \"linear\", use = \"bf16\"}]") == bf16);
  CHECK(digest_of("use = \"fp32\"\nrule = [{match = \"*\", op = \"linear\", use = \"fp16\"}]") == fp16);
  CHECK(digest_of("use = \"bf16\"\nrule = [{op = \"linear\", use = \"fp32\"}]") == fp32);
  CHECK(digest_of("use = \"bf16\"\nrule = [{op = \"linear\"}]") == bf16);  // use = "policy"
  // The first that matches holds.
  CHECK(digest_of("use = \"bf16\"\nrule = [{op = \"linear\", use = \"fp32\"}, {op = \"linear\", use = \"fp16\"}]") ==
        fp32);
}

TEST_CASE("precision rules: a rule for a layer is for that layer only" * doctest::test_suite("text")) {
  const auto task = std::string("use = \"gpt\"\ndata = [\"") + VERNIER_SOURCE_DIR +
                    "/sdk/core/optim/include\"]\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 16";
  const auto fp32 = digest_of("use = \"fp32\"", task);
  const auto one = digest_of("use = \"fp32\"\nrule = [{match = \"h.0.mlp.*\", use = \"bf16\"}]", task);
  CHECK(one != fp32);
  CHECK(digest_of("use = \"fp32\"\nrule = [{match = \"h.?.mlp.*\", use = \"bf16\"}]", task) != one);
  CHECK(
      digest_of("use = \"fp32\"\nrule = [{match = \"h.1.*\", use = \"fp32\"}, {match = \"h.*.mlp.*\", use = \"bf16\"}]",
                task) == one);
  // Attention by hand is another sum, near the kernel's.
  CHECK(digest_of("use = \"fp32\"\nrule = [{op = \"scaled_dot_product_attention\", kernel = \"matmul\"}]", task) ==
        digest_of("use = \"fp32\"\nattention = \"matmul\"", task));
  CHECK(digest_of("use = \"fp32\"\nattention = \"matmul\"\nrule = [{op = \"scaled_dot_product_attention\", kernel = "
                  "\"fused\"}]",
                  task) == fp32);
}

TEST_CASE("precision: however long casts of weights are kept, the numbers are the same") {
  for (const std::string use : {"use = \"bf16\"", "use = \"fp32\"\nrule = [{match = \"*\", use = \"bf16\"}]"}) {
    const auto kept = digest_of(use, "use = \"mlp\"", 4);
    CHECK(digest_of(use + "\nweight_casts = \"update\"", "use = \"mlp\"", 4) == kept);
    CHECK(digest_of(use + "\nweight_casts = \"none\"", "use = \"mlp\"", 4) == kept);
  }
}

TEST_CASE("precision rules: results are cast where that is asked for, and inputs of the batch") {
  Forward forward("fp32", {{"rule",
                            {vernier::Array{{vernier::Table{{"match", {std::string("head"), ""}},
                                                            {"use", {std::string("bf16"), ""}},
                                                            {"cast_outputs", {true, ""}}},
                                             ""}},
                             ""}}});
  const auto output = forward.linear();
  CHECK((output.scalar_type() == torch::kFloat32));
  CHECK(torch::equal(
      output, at::linear(forward.input.to(torch::kBFloat16), forward.weight.to(torch::kBFloat16)).to(torch::kFloat32)));
  CHECK(digest_of("use = \"bf16\"\ncast_inputs = true") ==
        digest_of("use = \"bf16\""));  // autocast would cast them too
  Forward all("bf16", {{"cast_outputs", {true, ""}}});
  CHECK(torch::equal(all.linear(), Forward("bf16").linear().to(torch::kFloat32)));
  CHECK((all.linear().scalar_type() == torch::kFloat32));
  Forward spared("bf16", {{"cast_outputs", {true, ""}},
                          {"rule", {vernier::Array{{vernier::Table{{"match", {std::string("head"), ""}}}, ""}}, ""}}});
  CHECK((spared.linear().scalar_type() == torch::kBFloat16));  // its rule says so
}

TEST_CASE("precision rules: running averages of a norm under a 16-bit rule are still updated, in float32") {
  vernier::TrainerRun run;
  torch::nn::BatchNorm1d norm(3);
  run.model = std::make_shared<torch::nn::Module>();
  run.model->register_module("norm", norm.ptr());
  const auto precision = make_plugin<Precision>(
      "precision/fp32", {{"rule", {vernier::Array{{vernier::Table{{"use", {std::string("bf16"), ""}}}, ""}}, ""}}});
  precision->prepare(run);
  const auto x = torch::randn({8, 3}) + 5;
  const auto y = precision->forward([&] { return norm->forward(x); });
  CHECK((y.scalar_type() == torch::kBFloat16));
  CHECK((norm->running_mean.scalar_type() == torch::kFloat32));
  CHECK(norm->running_mean.mean().item<double>() > 0.3);  // a tenth of the way to 5
}

TEST_CASE("precision rules: what matches nothing is refused, naming what is near and where it stands") {
  const std::pair<const char*, const char*> wrong[] = {
      {"match = \"layer.*\"\nuse = \"fp32\"",
       ":19: precision/bf16: [[precision.rule]] 1: `match` is \"layer.*\", and no layer of this model has such a name; "
       "did "
       "you mean \"layers.*\"? It has layers.0, layers.1"},
      {"op = \"softmx\"\nuse = \"fp32\"",
       ":19: precision/bf16: [[precision.rule]] 1: `op` is \"softmx\", and no operator of "
       "that name can be seen; did you mean \"softmax\"?"},
      {"op = \"conv2d\"\nuse = \"fp32\"",
       ":19: precision/bf16: [[precision.rule]] 1: `op` matches nothing: the model does not "
       "call conv2d; it calls linear, relu, cross_entropy_loss"},
      {"op = \"linear\"\nkernel = \"matmul\"",
       ":20: precision/bf16: [[precision.rule]] 1: `kernel` is for attention only; add "
       "op = \"scaled_dot_product_attention\""},
      {"op = \"linear\"\nuse = \"bf17\"",
       ":20: precision/bf16: [[precision.rule]] 1: `use` is \"bf17\"; did you mean \"bf16\"? "
       "It takes policy | fp32 | bf16 | fp16 | fp8"},
      {"opp = \"linear\"",
       ":19: precision/bf16: [[precision.rule]] 1: `opp` is not an option here; did you mean `op`?"},
  };
  for (const auto& [rule, message] : wrong) {
    CAPTURE(rule);
    const auto trouble = trouble_of(std::string("use = \"bf16\"\n[[precision.rule]]\n") + rule);
    CHECK(trouble.find("0.toml:") != std::string::npos);
    CHECK(trouble.ends_with(message));
  }
  CHECK(trouble_of("use = \"bf16\"\nrule = 3")
            .ends_with("`rule` must be a list of tables: write [[precision.rule]] (dtypes by layer "
                       "and operator; the first that matches an operation holds)"));
}

TEST_CASE("precision rules: a rule in float16 needs a scaler as the policy would") {
  CHECK(
      make_plugin<Precision>("precision/fp32",
                             {{"rule", {vernier::Array{{vernier::Table{{"use", {std::string("fp16"), ""}}}, ""}}, ""}}})
          ->needs_scaler());
}

TEST_CASE("precision: auto is the policy of the dtype that the machine multiplies fast, and says why") {
  const auto hardware = vernier::hardware_of(torch::kCPU);
  const auto dtype = hardware.fastest();
  const char* name = dtype == torch::kBFloat16 ? "bf16" : dtype == torch::kHalf ? "fp16" : "fp32";
  CHECK(make_plugin<Precision>("precision/auto")->needs_scaler() == (dtype == torch::kHalf));
  CHECK(digest_of("use = \"auto\"") == digest_of(std::string("use = \"") + name + "\""));
  Forward chosen("auto");
  CHECK((chosen.linear().scalar_type() == dtype));
  CHECK(chosen.plugin->describe().ends_with("; chosen for the " + hardware.name));
}

TEST_CASE("precision: autocast can be left to training, or to validation") {
  struct Mode {
    std::string name;
    bool in_training, in_validation;
  };
  for (const auto& [name, in_training, in_validation] :
       {Mode{"default", true, true}, Mode{"training", true, false}, Mode{"inference", false, true}}) {
    CAPTURE(name);
    Forward forward("bf16", {{"autocast_mode", {name, ""}}});
    CHECK((forward.linear().scalar_type() == torch::kBFloat16) == in_training);
    const torch::NoGradGuard as_in_validation;
    CHECK((forward.linear().scalar_type() == torch::kBFloat16) == in_validation);
  }
}

TEST_CASE("precision: where the machine has no instructions for the dtype, float32 can be asked for") {
  const auto hardware = vernier::hardware_of(torch::kCPU);
  for (const auto& [name, has] : {std::pair("bf16", hardware.bf16), std::pair("fp16", hardware.fp16)}) {
    for (const std::string level : {"O1", "O2"}) {
      CAPTURE(name);
      CAPTURE(level);
      Forward asks(name, {{"level", {level, ""}}});
      CHECK(asks.plugin->is_mixed());
      Forward falls(name, {{"level", {level, ""}}, {"fallback", {std::string("float32"), ""}}});
      CHECK(falls.plugin->is_mixed() == has);
      CHECK((falls.weight.scalar_type() == torch::kFloat32) == (!has || level == "O1"));
      if (!has) CHECK(torch::equal(falls.linear(), at::linear(falls.input, falls.weight)));
    }
  }
}

TEST_CASE("precision: each says what it does and what to expect") {
  CHECK(says(Forward("fp32").plugin->describe(), "mixed precision is off"));
  CHECK(says(Forward("bf16").plugin->describe(), "bfloat16 autocast"));
  CHECK(says(Forward("fp16").plugin->describe(), "float16 autocast"));
}

TEST_CASE("precision: a weight that was first used without a gradient still gets its own") {
  for (const std::string casts : {"forward", "update"}) {
    vernier::Array rules = {{vernier::Table{{"use", {std::string("bf16"), ""}}}, ""}};
    Forward forward("fp32", {{"weight_casts", {casts, ""}}, {"rule", {std::move(rules), ""}}});
    forward.plugin
        ->forward([&] {
          torch::Tensor target;
          {
            const torch::NoGradGuard no_grad;
            target = at::linear(forward.input, forward.weight);
          }
          return (at::linear(forward.input, forward.weight) - target + 1).square().sum();
        })
        .backward();
    REQUIRE(forward.weight.grad().defined());
    CHECK(forward.weight.grad().abs().sum().item<double>() > 0);
  }
}

}  // namespace precision_test
