// Tests of what plugins give to a step and to a checkpoint: what cannot be used is refused in the name of who gave it,
// before anything is lost.
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <utility>

#include <vernier/checkpoint_folder.h>

#include "log_lines.h"
#include "run/training_loop.h"
#include "run_folder.h"
#include "thrown.h"
#include "toy_run.h"

namespace step_results_test {

using torch::Tensor;
using toy::Toy;
using vernier::Event;
using vernier::Run;
using vernier::State;

namespace {

using Change = std::function<Tensor(const Tensor& loss)>;

struct LossTask final : toy::Task {
  explicit LossTask(Change change) : change_(std::move(change)) {}
  Tensor loss(const vernier::Batch& micro_batch) override { return change_(toy::Task::loss(micro_batch)); }
  Change change_;
};

struct Forwards final : vernier::Precision {
  explicit Forwards(Change change) : change_(std::move(change)) { set_id("precision/forwards"); }
  Tensor forward(const std::function<Tensor()>& body) override { return change_(body()); }
  Change change_;
};

struct Scales final : vernier::Scaler {
  explicit Scales(
      Change change, std::function<void(Run&)> unscale = [](Run&) {})
      : change_(std::move(change)), unscale_(std::move(unscale)) {
    set_id("scaler/scales");
  }
  Tensor scale(const Tensor& loss) override { return change_(loss); }
  void unscale(Run& run) override { unscale_(run); }
  Change change_;
  std::function<void(Run&)> unscale_;
};

struct Saves final : vernier::Callback {
  explicit Saves(std::function<State()> save) : save_(std::move(save)) { set_id("callback/saves"); }
  State save() const override { return save_(); }
  std::function<State()> save_;
};

Thrown trained(Toy& toy) {
  return thrown_by([&] { toy.prepare().train(toy.run); });
}

const Change same = [](const Tensor& loss) { return loss; };

struct WrongLoss {
  const char* is;  // the message's word for it
  Change change;
};

const WrongLoss wrong_losses[] = {
    {"an undefined tensor", [](const Tensor&) { return Tensor(); }},
    {"a tensor of shape [2]", [](const Tensor& loss) { return loss.expand({2}); }},
    {"a tensor of shape [1]", [](const Tensor& loss) { return loss.unsqueeze(0); }},
    {"a tensor of dtype Long", [](const Tensor& loss) { return loss.detach().to(torch::kInt64); }},
    {"a tensor of dtype ComplexFloat", [](const Tensor& loss) { return loss.to(torch::kComplexFloat); }},
    {"a tensor on meta, and the run is on cpu", [](const Tensor& loss) { return loss.to(torch::kMeta); }},
    {"a loss without a graph", [](const Tensor& loss) { return loss.detach(); }},
    {"a loss without a graph", [](const Tensor& loss) {
       const torch::NoGradGuard no_grad;
       return loss * 2;
     }}};

}  // namespace

TEST_CASE("step results: a wrong loss is refused in the name of the task, precision, scaler or listener that gave it") {
  const std::string in_step = " in step 1: ";
  for (const auto& [is, change] : wrong_losses) {
    CAPTURE(is);
    Toy task, precision, scaler, listener;
    task.wiring.task = std::make_unique<LossTask>(change);
    const bool has_graph = std::string(is) != "a loss without a graph";
    CHECK(trained(task) ==
          failed("task/toy in step 1: " +
                 (has_graph ? "its loss() returned " + std::string(is) +
                                  "; return the mean over the samples, a 0-dim tensor, as loss.mean() gives it"
                            : "its loss has no gradient: it does not depend on run.model's parameters")));
    precision.wiring.precision = std::make_unique<Forwards>(change);
    CHECK(trained(precision) == failed("precision/forwards in step 1: its forward() returned " + std::string(is) +
                                       "; return the loss that `body` returns"));
    scaler.wiring.scaler = std::make_unique<Scales>(change);
    CHECK(trained(scaler) == failed("scaler/scales in step 1: its scale() returned " + std::string(is) +
                                    "; return the loss times a scale"));
    listener.on(Event::LossReady, [&change](Run& run) { run.micro_batch_loss = change(run.micro_batch_loss); });
    listener.on(
        Event::LossReady, [](Run&) {}, "callback/innocent");
    CHECK(trained(listener) == failed("callback/told at LossReady of step 1: it set run.micro_batch_loss to " +
                                      std::string(is) + "; compute it from the loss that was there"));
  }
  Toy in_place;
  in_place.on(Event::LossReady, [](Run& run) { run.micro_batch_loss.detach_(); });
  CHECK(says(trained(in_place).text, "callback/told at LossReady of step 1: it set run.micro_batch_loss to a loss "));
}

TEST_CASE("step results: a loss of a precision, scaler or listener that can be used is used") {
  const auto weights_with = [](const std::function<void(Toy&)>& change) {
    Toy toy;
    change(toy);
    CHECK(trained(toy) == Thrown{});
    return toy.weights()[0];
  };
  const auto plain = weights_with([](Toy&) {});
  const auto twice = weights_with(
      [](Toy& toy) { toy.on(Event::LossReady, [](Run& run) { run.micro_batch_loss = run.micro_batch_loss * 2; }); });
  CHECK_FALSE(plain.equal(twice));
  CHECK(twice.equal(weights_with(
      [](Toy& toy) { toy.wiring.scaler = std::make_unique<Scales>([](const Tensor& loss) { return loss * 2; }); })));
  CHECK(plain.equal(weights_with([](Toy& toy) {
    toy.wiring.precision = std::make_unique<Forwards>([](const Tensor& loss) { return loss.to(torch::kFloat64); });
  })));
}

TEST_CASE("step results: a loss of weights that are not the model's is refused") {
  Toy toy;
  const auto own = torch::ones({}, torch::requires_grad());
  toy.wiring.task = std::make_unique<LossTask>([own](const Tensor& loss) { return loss.detach() * own; });
  CHECK(trained(toy) ==
        failed("task/toy in step 1: its loss has no gradient: it does not depend on run.model's parameters"));
}

TEST_CASE("step results: what a scaler sets wrongly is refused in its name") {
  struct Case {
    const char* is;
    std::function<void(Run&)> unscale;
    const char* remedy;
  };
  const char* flag = "set a 0-dim float32 on the run's device: 1 where a gradient is not finite, else 0";
  const char* divisor = "the gradients are divided by it: set a 0-dim float32 above 0 on the run's device";
  const auto found = [](const Tensor& value) { return [value](Run& run) { run.found_inf = value; }; };
  const auto scale = [](const Tensor& value) { return [value](Run& run) { run.grad_scale = value; }; };
  const Case cases[] = {{"found_inf to a tensor of shape [1]", found(torch::zeros({1})), flag},
                        {"found_inf to a Bool on cpu", found(torch::zeros({}, torch::kBool)), flag},
                        {"found_inf to a Float on meta", found(torch::zeros({}, torch::kMeta)), flag},
                        {"found_inf to a sparse tensor", found(torch::zeros({}).to_sparse()), flag},
                        {"found_inf to 2", found(torch::full({}, 2.0)), flag},
                        {"found_inf to nan", found(torch::full({}, NAN)), flag},
                        {"grad_scale to a tensor of shape [2]", scale(torch::ones({2})), divisor},
                        {"grad_scale to a Double on cpu", scale(torch::ones({}, torch::kFloat64)), divisor},
                        {"grad_scale to a Long on cpu", scale(torch::ones({}, torch::kInt64)), divisor},
                        {"grad_scale to 0", scale(torch::zeros({})), divisor},
                        {"grad_scale to -4", scale(torch::full({}, -4.0)), divisor},
                        {"grad_scale to inf", scale(torch::full({}, HUGE_VAL)), divisor},
                        {"grad_scale to nan", scale(torch::full({}, NAN)), divisor}};
  for (const auto& [is, unscale, remedy] : cases) {
    CAPTURE(is);
    Toy toy;
    toy.wiring.scaler = std::make_unique<Scales>(same, unscale);
    CHECK(trained(toy) == refused("scaler/scales in step 1: it set run." + std::string(is) + "; " + remedy));
  }
}

TEST_CASE("step results: what a listener replaces wrongly is refused in its name, and the run is saved") {
  struct Case {
    const char* is;
    std::function<void(Run&)> change;
  };
  const Case cases[] = {
      {"skip_update to a Long on cpu; call run.skip_when(flag)",
       [](Run& run) { run.skip_update = torch::zeros({}, torch::kInt64); }},
      {"skip_update to a tensor of shape [2]", [](Run& run) { run.skip_update = torch::zeros({2}); }},
      {"found_inf to nan", [](Run& run) { run.found_inf = torch::full({}, NAN); }},
      {"loss to an undefined tensor", [](Run& run) { run.loss.reset(); }},
      {"loss to a tensor of shape [2]", [](Run& run) { run.loss = torch::ones({2}); }},
      {"grad_scale to 0", [](Run& run) { run.grad_scale = torch::zeros({}); }},
      {"grad_scale to nan", [](Run& run) { run.grad_scale = torch::full({}, NAN); }},
      {"grad_scale to a Double on cpu", [](Run& run) { run.grad_scale = torch::ones({}, torch::kFloat64); }},
      {"learning_rate_factor to nan", [](Run& run) { run.learning_rate_factor = NAN; }},
      {"learning_rate_factor to -1", [](Run& run) { run.learning_rate_factor *= -1; }}};
  for (const auto& [is, change] : cases) {
    CAPTURE(is);
    Toy toy;
    toy.on(Event::GradientsReady, [&change](Run& run) {
      if (run.step == 2) change(run);
    });
    toy.on(
        Event::GradientsReady, [](Run&) {}, "callback/innocent");
    const auto thrown = trained(toy);
    CHECK(thrown.kind == 3);
    CHECK(thrown.text.starts_with("callback/told at GradientsReady of step 3: it set run." + std::string(is)));
    CHECK(toy.memory().steps == std::vector<std::int64_t>{2});
  }
}

TEST_CASE("step results: a clipped gradient that is not finite is not the fault of who clips") {
  Toy toy;
  toy.task().overflows_in = 2;
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  toy.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/sgd", {{"learning_rate", {0.1, "test.toml:3"}}});
  toy.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/clip_norm"));
  CHECK(trained(toy) == Thrown{});
  CHECK(toy.run.updates == 5);
  Toy unscaled;
  unscaled.task().overflows_in = 2;
  unscaled.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/clip_norm"));
  CHECK(trained(unscaled) == Thrown{});
}

namespace {

void assign(Run& run, const Tensor& gradient) {
  auto weight = run.parameters.at(0).master;
  weight.mutable_grad() = gradient;
}

// An embedding whose gradient is sparse.
struct SparseTask final : toy::Task {
  Tensor loss(const vernier::Batch& micro_batch) override {
    const auto rows = at::embedding(model->first, torch::arange(4), -1, false, /*sparse=*/true);
    return rows.square().mean() + model->second.square().mean();
  }
};

}  // namespace

TEST_CASE("step results: a wrong gradient is refused with its parameter, in the name of who may have made it") {
  const std::string remedy = "; write into the gradient that is there, or assign one that is alike";
  const std::string shape = "the gradient of first is ", parameter = ", and the parameter Float [4, 3] on cpu";
  const std::pair<std::string, Tensor> wrong[] = {{"Float [1] on cpu", torch::ones({1})},
                                                  {"Float [3] on cpu", torch::ones({3})},
                                                  {"Double [4, 3] on cpu", torch::ones({4, 3}, torch::kFloat64)},
                                                  {"Float [4, 3] on meta", torch::ones({4, 3}, torch::kMeta)}};
  for (const auto& [is, gradient] : wrong) {
    CAPTURE(is);
    for (const auto event : {Event::BackwardDone, Event::GradientsReady}) {
      Toy one;
      one.on(event, [&](Run& run) { assign(run, gradient); });
      const auto thrown = trained(one);
      CHECK(says(thrown.text, shape + is + parameter + remedy));
      if (event == Event::BackwardDone) {
        CHECK(thrown.text.starts_with("callback/told in step 1: "));
      } else {
        CHECK(thrown.text.ends_with("it was made by precision/fp32 or scaler/none or callback/told"));
      }
    }
    Toy scaler;
    scaler.wiring.scaler = std::make_unique<Scales>(same, [&](Run& run) { assign(run, gradient); });
    CHECK(says(trained(scaler).text, "scaler/scales"));
  }
}

TEST_CASE("step results: a sparse gradient is refused with its parameter, whatever the optimizer and the precision") {
  const auto expected = failed(
      "task/toy in step 1: the gradient of first is sparse, and only dense ones are trained with; make its layer with "
      "sparse = false");
  for (const std::string optimizer : {"", "sgd", "adamw", "lbfgs"}) {
    for (const std::string scaler : {"none", "dynamic", "statistical", "per_layer"}) {
      CAPTURE(optimizer);
      CAPTURE(scaler);
      Toy toy;
      toy.wiring.task = std::make_unique<SparseTask>();
      if (!optimizer.empty()) toy.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/" + optimizer);
      toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/" + scaler);
      toy.wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/clip_norm"));
      CHECK(trained(toy) == expected);
    }
  }
}

namespace {

State entry(const std::string& name, const Tensor& tensor) {
  return State{{name, tensor}};
}

Tensor freed(std::int64_t first = 0) {
  auto tensor = torch::ones({4}).slice(0, first);
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(0);
  return tensor;
}

const std::pair<std::string, std::function<State()>> unsavable[] = {
    {"'x': it is undefined", [] { return entry("x", {}); }},
    {"'x': only dense tensors", [] { return entry("x", torch::eye(3).to_sparse()); }},
    {"'x': only dense tensors", [] { return entry("x", torch::eye(3).to_sparse_csr()); }},
    {"'x': only dense tensors can be saved, and this one, on meta, has no values",
     [] { return entry("x", torch::ones({3}, torch::kMeta)); }},
    {"'x': a quantized tensor",
     [] { return entry("x", at::quantize_per_tensor(torch::ones({3}), 0.1, 0, at::kQInt8)); }},
    {"'x': a nested tensor",
     [] {
       return entry("x", at::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})}));
     }},
    {"'x': its dtype ComplexDouble", [] { return entry("x", torch::ones({3}, torch::kComplexDouble)); }},
    {"'x': its memory is too small", [] { return entry("x", freed()); }},
    {"'x': its memory is too small", [] { return entry("x", freed(2)); }},
    {"'\\xff': its name is not printable UTF-8", [] { return entry("\xff", torch::ones({3})); }},
    {"'a\\x0a': its name is not printable UTF-8", [] { return entry("a\n", torch::ones({3})); }}};

}  // namespace

TEST_CASE("step results: an entry of save() that no checkpoint can keep is refused before the first step") {
  for (const auto& [text, save] : unsavable) {
    CAPTURE(text);
    Toy toy;
    toy.wiring.callbacks.push_back(std::make_unique<Saves>(save));
    const auto thrown = trained(toy);
    CHECK_MESSAGE(thrown.text.starts_with("callback/saves while it was saved: " + text), thrown.text);
    CHECK(toy.run.step == 0);
  }
  const Tensor fine[] = {torch::ones({3}).expand({2, 3}), torch::ones({4}).slice(0, 0, 4, 2), torch::ones({0, 3}),
                         torch::ones({3}, torch::kComplexFloat).conj(), torch::ones({3}, torch::kBool)};
  for (const auto& tensor : fine) {
    Toy toy;
    toy.wiring.callbacks.push_back(std::make_unique<Saves>([&] { return entry("x", tensor); }));
    CHECK(trained(toy) == Thrown{});
  }
  struct Adjacent final : toy::Task {
    void prepare(Run& run) override {
      toy::Task::prepare(run);
      model->register_buffer("adjacency", torch::eye(3).to_sparse());
    }
  };
  Toy buffer;
  buffer.wiring.task = std::make_unique<Adjacent>();
  CHECK(trained(buffer).text.starts_with("task/toy while its model was saved: 'adjacency': only dense tensors"));
}

TEST_CASE("step results: a state that cannot be saved later is left out, and the rest is rescued") {
  const LogLines log;
  for (const bool throws : {false, true}) {
    int steps = 0;
    const auto save = [&] {
      if (steps >= 4 && throws) throw std::runtime_error("boom");
      return entry("x", steps < 4 ? torch::ones({3}) : torch::eye(3).to_sparse());
    };
    Toy toy;
    toy.wiring.callbacks.push_back(std::make_unique<Saves>(save));
    toy.look(Event::StepEnd, [&](const Run&) { ++steps; });
    toy.memory().every = 5;
    CHECK(trained(toy).text.starts_with("callback/saves while it was saved: "));
    CHECK(toy.memory().steps == std::vector<std::int64_t>{5});
    Toy resumed;
    resumed.wiring.callbacks.push_back(std::make_unique<Saves>([] { return State(); }));
    const auto thrown = thrown_by([&] { resumed.prepare().resume(resumed.run, *toy.memory().last, false); });
    CHECK(says(thrown.text, "callback/saves is new in this run"));
    CHECK(resumed.run.step == 0);
    resumed.trainer->resume(resumed.run, *toy.memory().last, true);
    CHECK(resumed.run.step == 5);
  }
  CHECK(LogLines::count("(the checkpoint is without its state)") == 2);
}

// PyTorch adds the second micro-batch's gradients of such parameters twice, and divides and clips them twice.
TEST_CASE("gradients that share memory are added, unscaled and clipped once") {
  const std::string joined = "[run]\nsteps = 1\ndevice = \"cpu\"\noutput = \"out\"\n[task]\nuse = \"" VERNIER_BINARY_DIR
                             "/fixtures/plugins/task/joined.so\"\n[optimizer]\nuse = \"sgd\"\nlearning_rate = 1.0\n";
  const auto trained_with = [&](const std::vector<std::string>& sets) {
    RunFolder place(joined);
    REQUIRE_MESSAGE(place.train(sets) == 0, place.err);
    return vernier::read_checkpoint_model(place.at("out/checkpoints/step-00000001").string()).model.tensors;
  };
  const auto before = trained_with({"--set=optimizer.learning_rate=0.0"});
  const auto moved = [&](const std::vector<std::string>& sets) {
    const auto after = trained_with(sets);
    const auto of = [&](const char* name) { return (after.at(name) - before.at(name)).norm().item<double>(); };
    CHECK(of("second") == doctest::Approx(of("first")).epsilon(1e-3));
    return of("first");
  };
  const double whole = moved({});
  CHECK(moved({"--set=accumulation.micro_batches=3"}) == doctest::Approx(whole).epsilon(1e-4));
  CHECK(moved({R"(--set=precision={use="fp16",level="O1"})", R"(--set=scaler={use="static",scale=128})"}) ==
        doctest::Approx(whole).epsilon(1e-2));
  CHECK(moved({R"(--set=callback=[{use="clip_norm",max_norm=0.001}])"}) < whole);
}

}  // namespace step_results_test
