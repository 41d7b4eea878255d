#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/optim/adam.h>
#include <vernier/data/baselines.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <functional>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "python.h"
#include "temporary_folder.h"
#include "tools/export/torchscript.h"

namespace sequence_test {

using vernier::Table;

namespace {

constexpr const char* models[] = {"lstm", "gru", "transformer"};

// 60 sequences of 12 steps and 2 features. Class: whether the first feature rises. Number: its rise in a step.
struct Sequences {
  torch::Tensor x, rises, rate;
};
Sequences sequences() {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto rate = torch::empty({60}).uniform_(-2, 2, generator);
  const auto line = rate.unsqueeze(1) * torch::arange(12, torch::kFloat32) + 50;
  const auto noise = torch::empty({60, 12}).uniform_(-1, 1, generator);
  return {torch::stack({line + noise, noise.flip({0}) * 1000}, 2), (rate > 0).to(torch::kInt64), rate * 100 + 7};
}

std::string write_sequences(const TemporaryFolder& folder, const vernier::Tensors& more = {}) {
  const auto all = sequences();
  vernier::Tensors tensors = {{"x", all.x}, {"rises", all.rises}, {"rate", all.rate}};
  for (const auto& [name, tensor] : more) tensors[name] = tensor;
  const auto file = folder / (more.empty() ? "all.safetensors" : "more.safetensors");
  vernier::save_safetensors(file, tensors);
  return file;
}

Table table_of(const TemporaryFolder& folder, const char* kind, Table more = {}) {
  const auto file = write_sequences(folder);
  Table table = {{"kind", value(kind)},
                 {"data", value(file + ":x")},
                 {"targets", value(file + (std::string(kind) == "regression" ? ":rate" : ":rises"))},
                 {"width", value(16)},
                 {"batch_size", value(9)}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

// Steps 0, 1, … of two features; the second is 1000 lower.
std::string series(int steps) {
  std::string text = "a,b\n";
  for (int i = 0; i < steps; ++i) text += std::to_string(i) + "," + std::to_string(i - 1000) + "\n";
  return text;
}

Table forecast(const TemporaryFolder& folder, Table more = {}) {
  Table table = {{"kind", value("forecast")}, {"data", value(folder.write("series.csv", series(50)))},
                 {"context", value(5)},       {"horizon", value(3)},
                 {"width", value(8)},         {"order", value("sequential")}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

// A series of two features, of which the second, with a season of 4, is predicted beyond its season.
Table seasonal(const TemporaryFolder& folder, Table more = {}) {
  std::string text = "a,b\n";
  for (int i = 0; i < 60; ++i) text += std::to_string(i * i % 17) + "," + std::to_string(i % 4 * 10 + i) + "\n";
  more.merge(Table{{"data", value(folder.write("seasonal.csv", text))},
                   {"context", value(6)},
                   {"horizon", value(7)},
                   {"validation_share", value(0.2)},
                   {"outputs", list<int>({1})}});
  return more;
}

// Rows of the series "north", "south" and "tiny" by turns, of 50, 30 and 3 steps from 0, 1000 and 2000.
std::string shops() {
  std::string text = "a,shop,b\n";
  const std::pair<const char*, int> all[] = {{"south", 30}, {"north", 50}, {"tiny", 3}};
  for (int i = 0; i < 50; ++i) {
    for (const auto& [name, steps] : all) {
      const int first = name[0] == 'n' ? 0 : name[0] == 's' ? 1000 : 2000;
      if (i < steps) text += std::to_string(first + i) + "," + name + "," + std::to_string(-i) + "\n";
    }
  }
  return text;
}

std::vector<vernier::Predictor::Column> predicted(const LoadedTask& task, const std::string& path) {
  const torch::NoGradGuard no_grad;
  task.run.model->eval();
  auto loader = supervised(task).loader_of(predictor(task).read_inputs(path));
  return predictor(task).predict(loader.next());
}

torch::Tensor buffer(const LoadedTask& task, const std::string& name) {
  return task.run.model->named_buffers()[name];
}

}  // namespace

TEST_CASE("sequence: each model learns to classify and to predict numbers") {
  const TemporaryFolder folder;
  for (const char* model : models) {
    for (const char* kind : {"classification", "regression"}) {
      CAPTURE(model);
      CAPTURE(kind);
      LoadedTask task("sequence", table_of(folder, kind, {{"model", value(model)}, {"validation_share", value(0.2)}}));
      CHECK(task->batches_per_epoch() == 6);  // there are 48 samples
      const double before = task.validate();
      for (int step = 0; step < 300; ++step) task.descend(task->next(), 0.05);
      CHECK(task.validate() < before / 3);
      if (std::string(kind) == "classification") CHECK(*task.run.metrics.value("accuracy") > 0.8);
      if (std::string(kind) == "regression") CHECK(*task.run.metrics.value("r2") > 0.6);
    }
  }
}

TEST_CASE("sequence: inputs and numbers are normalized with the training part, in buffers") {
  const TemporaryFolder folder;
  const auto all = sequences();
  const LoadedTask task("sequence", table_of(folder, "regression", {{"validation_share", value(0)}}));
  const auto flat = all.x.flatten(0, 1).to(torch::kFloat64), rate = all.rate.to(torch::kFloat64);
  CHECK(buffer(task, "input_mean").allclose(flat.mean(0)));
  CHECK(buffer(task, "input_std").allclose(flat.std(0, /*unbiased=*/false)));
  CHECK(buffer(task, "output_mean").allclose(rate.mean()));
  CHECK(buffer(task, "output_std").allclose(rate.std(/*unbiased=*/false)));
  const LoadedTask classes("sequence", table_of(folder, "classification"));
  CHECK_FALSE(classes.run.model->named_buffers().contains("output_mean"));
  const auto file = write_sequences(folder, {{"x", torch::full({60, 12}, 3.0)}});  // without deviation
  const LoadedTask flat_data("sequence", table_of(folder, "classification", {{"data", value(file + ":x")}}));
  CHECK(flat_data->loss(flat_data->next()).isfinite().item<bool>());
}

TEST_CASE("sequence: a forecast sees its context alone, and training nothing of the part held out") {
  const TemporaryFolder folder;
  const LoadedTask task("sequence", forecast(folder, {{"validation_share", value(0.2)}, {"batch_size", value(100)}}));
  const auto batch = task->next();
  REQUIRE(has_shape(batch.tensors[0], {33, 5, 2}));  // 40 steps have 33 windows of 8
  REQUIRE(has_shape(batch.tensors[1], {33, 3, 2}));
  for (std::int64_t i = 0; i < 33; ++i) {
    const auto first = static_cast<float>(i);
    CHECK(torch::equal(batch.tensors[0][i].select(1, 0), torch::arange(5, torch::kFloat64) + first));
    CHECK(torch::equal(batch.tensors[1][i].select(1, 0), torch::arange(5, 8, torch::kFloat64) + first));
    CHECK(torch::equal(batch.tensors[1][i].select(1, 1), torch::arange(5, 8, torch::kFloat64) + first - 1000));
  }
  CHECK(buffer(task, "input_mean").allclose(torch::tensor({19.5, 19.5 - 1000}, torch::kFloat64)));
  const LoadedTask wide("sequence", forecast(folder, {{"validation_share", value(0)},
                                                      {"stride", value(4)},
                                                      {"outputs", list<int>({1})},
                                                      {"batch_size", value(100)}}));
  const auto strided = wide->next();
  REQUIRE(has_shape(strided.tensors[0], {11, 5, 2}));  // 50 steps
  REQUIRE(has_shape(strided.tensors[1], {11, 3, 1}));
  CHECK(strided.tensors[1][1][0][0].item<float>() == 9 - 1000);
}

// The 45 steps behind the first context are 6 parts. Each but the first is held out once.
TEST_CASE("sequence: in folds the part after the steps to train on is held out, and goes on with each") {
  const TemporaryFolder folder;
  const std::pair<std::int64_t, std::int64_t> ends[] = {{12, 20}, {20, 27}, {27, 35}, {35, 42}, {42, 50}};
  for (std::int64_t fold = 1; fold <= 5; ++fold) {
    CAPTURE(fold);
    const auto& [training, held_out] = ends[fold - 1];
    LoadedTask task(
        "sequence",
        forecast(folder, {{"fold", value(c10::str(fold, "/5"))}, {"horizon", value(1)}, {"batch_size", value(100)}}));
    CHECK(task->next().samples == training - 5);
    const torch::NoGradGuard no_grad;
    std::int64_t samples = 0;
    supervised(task).validate_with(task.run, [&](const vernier::Batch& batch) {
      samples += batch.samples;
      return batch.tensors[1];
    });
    CHECK(samples == held_out - training);
  }
}

TEST_CASE("sequence: several series in one file have the windows and the means of each series alone") {
  const TemporaryFolder folder;
  LoadedTask task("sequence", forecast(folder, {{"data", value(folder.write("shops.csv", shops()))},
                                                {"series", value("shop")},
                                                {"level", value("training")},
                                                {"validation_share", value(0.2)},
                                                {"batch_size", value(100)}}));
  const auto batch = task->next();
  REQUIRE(has_shape(batch.tensors[0], {33 + 17, 5, 2}));  // 40 and 24 steps, and none of "tiny"
  for (std::int64_t i = 0; i < 50; ++i) {
    const auto step = static_cast<double>(i < 33 ? i : i - 33), first = i < 33 ? 0.0 : 1000.0;
    CHECK(batch.tensors[0][i].select(1, 0).equal(torch::arange(5, torch::kFloat64) + step + first));
    CHECK(batch.tensors[0][i].select(1, 1).equal(-torch::arange(5, torch::kFloat64) - step));
    CHECK(batch.tensors[1][i].select(1, 0).equal(torch::arange(5, 8, torch::kFloat64) + step + first));
  }
  const auto seen = at::cat({torch::arange(40), torch::arange(1000, 1024)}).to(torch::kFloat64);
  CHECK(buffer(task, "input_mean")[0].allclose(seen.mean()));
  CHECK(task->where(batch.indices[49]).ends_with("shops.csv' line 37 to '" + folder / "shops.csv" + "' line 51"));
  // A network of zeros predicts the means, so its loss names the steps that are held out.
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : task.run.model->parameters()) parameter.zero_();
  const auto held_out = at::cat({torch::arange(40, 50), torch::arange(1024, 1030)}).to(torch::kFloat64);
  const auto both = torch::stack({held_out, -held_out.fmod(1000)}, 1);
  const auto square = ((both - buffer(task, "output_mean")[0]) / buffer(task, "output_std")[0]).square();
  const auto of_windows = at::cat({square.slice(0, 0, 10).unfold(0, 3, 1), square.slice(0, 10).unfold(0, 3, 1)});
  CHECK(task.validate() == doctest::Approx(of_windows.mean().item<double>()));
  const auto rows = predicted(task, folder.write("new.csv", shops()));
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].name == "shop");
  CHECK(rows[0].labels == std::vector<std::string>{"north", "south", "tiny"});
  const auto shop = at::cat({torch::zeros({46}), torch::ones({26})}).to(torch::kInt64);
  CHECK(rows[0].numbers.equal(shop));
  CHECK(rows[1].numbers.equal(at::cat({torch::arange(5, 51), torch::arange(5, 31)})));
}

TEST_CASE("sequence: predictions have names, words and the units of the data") {
  const TemporaryFolder folder;
  const LoadedTask task("sequence", forecast(folder));
  const auto rows = predicted(task, folder.write("other.csv", series(9)));
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].name == "step");
  CHECK(rows[0].numbers.equal(torch::arange(5, 10)));
  CHECK(rows[1].name == "a");
  CHECK(rows[2].name == "b");
  CHECK(has_shape(rows[1].numbers, {5, 3}));  // also of the last window, which nothing follows
  CHECK((rows[2].numbers - buffer(task, "output_mean").select(-1, 1)).abs().max().item<float>() < 40);
  const LoadedTask strided("sequence", forecast(folder, {{"stride", value(3)}}));
  CHECK(predicted(strided, folder / "other.csv").at(0).numbers.equal(torch::tensor({6, 9})));  // the last one, too

  const auto file = write_sequences(folder);
  const LoadedTask classes("sequence", table_of(folder, "classification"));
  CHECK(has_shape(predicted(classes, file).at(1).numbers, {9}));
  std::string words = "direction\n";
  const auto rises = sequences().rises;
  for (std::int64_t i = 0; i < 60; ++i) words += rises[i].item<int>() == 1 ? "up\n" : "down\n";
  const auto csv = folder.write("words.csv", words);
  LoadedTask named("sequence", table_of(folder, "classification", {{"targets", value(csv + ":direction")}}));
  for (int step = 0; step < 200; ++step) named.descend(named->next(), 0.05);
  CHECK(predicted(named, file).at(2).name == "probability_down");
  CHECK(dynamic_cast<vernier::Predictor&>(*named.task).classes() == std::vector<std::string>{"down", "up"});
  const auto found = predicted(named, file).at(0);
  int right = 0;
  for (std::int64_t i = 0; i < 9; ++i) {
    const auto word = found.labels.at(static_cast<std::size_t>(found.numbers[i].item<int>()));
    right += word == (rises[i].item<int>() == 1 ? "up" : "down") ? 1 : 0;
  }
  CHECK(right >= 8);
}

TEST_CASE("sequence: a source that is trained on and held out is named") {
  const TemporaryFolder folder;
  const auto sequences = write_sequences(folder), steps = folder.write("series.csv", series(50));
  const auto other = folder.write("other.csv", series(40));
  const struct {
    const char* kind;
    std::string validation;
    int warnings;
  } cases[] = {{"classification", sequences + ":x", 1},
               {"forecast", steps, 1},
               {"forecast", (folder.path() / "." / "series.csv").string() + ":a,b", 1},
               {"forecast", other, 0}};
  for (const auto& [kind, validation, warnings] : cases) {
    CAPTURE(kind);
    const LogLines log;
    Table held_out = {{"validation", value(validation)}};
    if (kind[0] == 'f') {
      const LoadedTask task("sequence", forecast(folder, held_out));
    } else {
      held_out["validation_targets"] = value(sequences + ":rises");
      const LoadedTask task("sequence", table_of(folder, kind, held_out));
    }
    CHECK(LogLines::count("so the model trains on what is held out") == warnings);
  }
}

TEST_CASE("sequence: inputs are normalized in float64, also for weights in 16 bits") {
  const TemporaryFolder folder;
  const auto x = torch::rand({60, 12, 2}, at::make_generator<at::CPUGeneratorImpl>(7)) + 1000;  // one in bfloat16
  const auto file = write_sequences(folder, {{"x", x}});
  for (const char* model : models) {
    CAPTURE(model);
    LoadedTask task("sequence",
                    table_of(folder, "classification", {{"data", value(file + ":x")}, {"model", value(model)}}));
    for (auto& parameter : task.run.parameters) parameter.model.set_data(parameter.model.to(torch::kBFloat16));
    const torch::NoGradGuard no_grad;
    const auto output = supervised(task).forward(supervised(task).example(2));
    CHECK((output.scalar_type() == torch::kBFloat16));
    CHECK_FALSE(output[0].equal(output[1]));
  }
}

TEST_CASE("sequence: with recompute the gradients are the same") {
  const TemporaryFolder folder;
  for (const char* model : models) {
    std::vector<torch::Tensor> gradients;
    for (const char* recompute : {"none", "full", "selective"}) {
      const LoadedTask task("sequence", table_of(folder, "classification",
                                                 {{"model", value(model)},
                                                  {"layers", value(2)},
                                                  {"dropout", value(0.2)},
                                                  {"recompute", value(recompute)}}));
      task->loss(task->next()).backward();
      std::vector<torch::Tensor> all;
      for (const auto& parameter : task.run.parameters) all.push_back(parameter.model.grad().flatten());
      gradients.push_back(torch::cat(all));
      CHECK(gradients.back().allclose(gradients.front(), 1e-5, 1e-7));
    }
  }
}

TEST_CASE("sequence: TorchScript and Python compute what the network does, for any number of sequences") {
  const TemporaryFolder folder;
  const bool has_torch = has_python("torch, safetensors");
  for (const char* model : models) {
    for (const char* kind : {"classification", "forecast", "season"}) {
      Table more = {{"model", value(model)}, {"layers", value(2)}};
      if (std::string(kind) == "season") more.merge(seasonal(folder));
      const LoadedTask task(
          "sequence", std::string(kind) == "classification" ? table_of(folder, kind, more) : forecast(folder, more));
      task.run.model->eval();
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : task.run.model->parameters()) parameter.uniform_(-0.3, 0.3);
      vernier::save_torchscript(folder / "model.pt", *task.run.model, supervised(task), torch::kCPU);  // compares
      if (!has_torch) continue;
      const auto batch = supervised(task).example(3);
      folder.write("model.py", predictor(task).python_model());
      vernier::save_safetensors(folder / "model.safetensors", vernier::state_dict(*task.run.model).tensors);
      vernier::save_safetensors(folder / "batch.safetensors",
                                {{"x", batch.tensors[0]}, {"y", supervised(task).forward(batch)}});
      folder.write("check.py",
                   "from safetensors.torch import load_file\nfrom model import load\nimport torch\n"
                   "batch = load_file('batch.safetensors')\n"
                   "torch.testing.assert_close(load('model.safetensors')(batch['x']), batch['y'])\n");
      std::string out;
      CHECK(python("check.py", folder.path(), out) == 0);
      CHECK(out == "");
    }
  }
}

TEST_CASE("sequence: auto takes the level of the window where repeating a season does well, and learns which") {
  const TemporaryFolder folder;
  struct Case {
    const char *name, *level;
    std::function<double(int)> at;
    std::int64_t season;  // 0: the level of the training data
  };
  const auto noise = [](int i) { return std::fmod(i * 0.6180339887 + i * i * 0.4142135, 1.0); };
  const Case cases[] = {
      {"a trend", "auto", [](int i) { return 5.0 * i; }, 1},
      {"a walk up", "auto", [&](int i) { return i + noise(i); }, 1},
      {"a season", "auto", [](int i) { return std::sin(i * M_PI / 4); }, 8},
      {"a season on a trend", "auto", [](int i) { return i * 0.2 + 9 * std::sin(i * M_PI / 4); }, 8},
      {"noise", "auto", noise, 0},
      {"noise, by option", "window", noise, -1},  // any
      {"no variance", "auto", [](int) { return 7.0; }, 0},
      {"a trend, by option", "training", [](int i) { return 5.0 * i; }, 0},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    std::string text = "a,still\n";
    for (int i = 0; i < 120; ++i) text += std::to_string(each.at(i)) + ",3\n";
    LoadedTask task("sequence", forecast(folder, {{"data", value(folder.write("auto.csv", text))},
                                                  {"context", value(10)},
                                                  {"level", value(each.level)}}));
    const auto season = supervised(task).learned().integer("season");
    CHECK((each.season < 0 ? season > 0 : season == each.season));
    CHECK(std::isfinite(task.validate()));
  }
}

TEST_CASE("sequence: a forecast at its window's level goes with the level and the scale of the window") {
  const TemporaryFolder folder;
  for (const char* model : models) {
    CAPTURE(model);
    const LoadedTask task("sequence", forecast(folder, seasonal(folder, {{"model", value(model)}})));
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto window = supervised(task).example(4).tensors[0];
    const auto of = [&](const torch::Tensor& x) { return supervised(task).forward({{x}, 4}); };
    const auto before = window.narrow(1, 2, 4).narrow(2, 1, 1);             // a season of 4 in a context of 6
    CHECK(of(window).equal(at::cat({before, before.narrow(1, 0, 3)}, 1)));  // a new network
    for (const auto& parameter : task.run.model->parameters()) parameter.uniform_(-0.3, 0.3);
    const auto output = of(window);
    CHECK(of(window + 1e6).allclose(output + 1e6, 0, 1e-3));
    CHECK(of(window * 50).allclose(output * 50, 1e-2, 1e-2));
    CHECK(of(window.narrow(1, 0, 1).expand_as(window)).isfinite().all().item<bool>());  // without a deviation
  }
}

// Series of R's datasets, with the last fifth held out. The naive forecasts repeat the last value or the last season.
TEST_CASE("sequence: five real series are forecast better than by repeating their last value or season") {
  struct Case {
    const char* name;
    int context, horizon;
    double r2;  // reached for the part held out
  };
  for (const auto& [name, context, horizon, r2] :
       {Case{"airpassengers", 24, 12, 0.8}, Case{"ukgas", 12, 4, 0.96}, Case{"sunspots", 24, 6, 0.48},
        Case{"lynx", 24, 5, 0.0}, Case{"nile", 20, 5, -1.0}}) {
    CAPTURE(name);
    const auto file = std::string(VERNIER_SOURCE_DIR "/examples/data/series/") + name + ".csv";
    LoadedTask task("sequence", {{"kind", value("forecast")},
                                 {"data", value(file)},
                                 {"context", value(context)},
                                 {"horizon", value(horizon)},
                                 {"validation_share", value(0.2)},
                                 {"model", value("gru")},
                                 {"width", value(16)}});
    double naive = HUGE_VAL;
    for (const auto& baseline : vernier::baselines_of(supervised(task).learned().part("targets"))) {
      if (baseline.name == "mean") continue;  // no forecast of the Nile is better
      naive = std::min(naive, supervised(task).validate_with(task.run, baseline.forward).item<double>());
    }
    torch::optim::Adam optimizer(task.run.model->parameters(), torch::optim::AdamOptions(1e-2));
    double best = task.validate(), best_r2 = *task.run.metrics.value("r2");
    for (int step = 1; step <= 160; ++step) {
      optimizer.zero_grad();
      task->loss(task->next()).backward();
      optimizer.step();
      if (step % 8 != 0) continue;  // callback/early_stopping keeps the best weights, too
      if (const double loss = task.validate(); loss < best) best = loss, best_r2 = *task.run.metrics.value("r2");
    }
    CHECK(best < naive);
    CHECK(best_r2 > r2);
  }
}

namespace {

struct Refused {
  const char* kind;
  Table table;
  std::string says;  // in one line; "": nothing is refused
};

void check_refusals(const TemporaryFolder& folder, const std::vector<Refused>& cases) {
  for (const auto& each : cases) {
    const auto reason = refusal([&] {
      const bool is_forecast = std::string(each.kind) == "forecast";
      const LoadedTask task("sequence",
                            is_forecast ? forecast(folder, each.table) : table_of(folder, each.kind, each.table));
    });
    CAPTURE(each.says);
    CAPTURE(reason);
    CHECK(reason.empty() == each.says.empty());
    CHECK(contains(reason, each.says));
    CHECK_FALSE(contains(reason, "\n"));
  }
}

}  // namespace

TEST_CASE("sequence: refuses data that do not fit, in one line") {
  const TemporaryFolder folder;
  auto hole = sequences().x.clone(), rate = sequences().rate.clone();
  hole[17][3][1] = NAN;
  rate[5] = INFINITY;
  const auto file = write_sequences(folder, {{"hole", hole},
                                             {"holes", rate},
                                             {"halves", sequences().rate * 0.5},
                                             {"minus", sequences().rises - 1},
                                             {"zeros", torch::zeros({60}, torch::kInt64)},
                                             {"hundred", torch::where(torch::arange(60) < 6, -100, sequences().rises)},
                                             {"many", torch::arange(60) * 10},
                                             {"few", torch::zeros({59}, torch::kInt64)},
                                             {"deep", torch::zeros({60, 2, 2, 2})},
                                             {"wide", torch::zeros({60, 12, 3})},
                                             {"three", sequences().rises + 1}});
  const auto source = [&](const char* name) { return value(file + ":" + name); };
  const auto shop = value(folder.write("shops.csv", shops()));
  check_refusals(
      folder,
      {
          {"classification", {}, ""},
          {"classification", {{"data", value(file)}}, "' has deep,few,halves and 11 more; name one, as in"},
          {"classification", {{"data", source("nothing")}}, "has no 'nothing'; it has"},
          {"classification", {{"data", value("x.txt")}}, "'x.txt' is not a source of data"},
          {"classification", {{"data", value("none.npy")}}, "'none.npy' cannot be opened"},
          {"classification", {{"data", value("none.safetensors:x")}}, "none.safetensors: cannot be opened"},
          {"classification", {{"data", source("hole")}}, ":hole' has a NaN or infinite number in row 17"},
          {"classification",
           {{"data", source("deep")}},
           "sequences have [samples, steps] or [samples, steps, features]"},
          {"classification", {{"targets", source("few")}}, "' has 60 sequences, and '"},
          {"classification", {{"targets", source("halves")}}, "; labels are whole numbers, or words"},
          {"classification", {{"targets", source("minus")}}, ""},  // two classes: -1 and 0
          {"classification", {{"targets", source("hundred")}}, "has the label -100 in row 0, which PyTorch's losses"},
          {"classification",
           {{"validation", source("x")}, {"validation_targets", source("hundred")}},
           "has the label -100 in row 0, which PyTorch's losses"},
          {"classification", {{"targets", source("many")}}, "has 60 different labels in 60 samples"},
          {"classification", {{"targets", source("x")}}, "labels have [samples]"},
          {"classification", {{"targets", source("zeros")}}, "has a single class; there is nothing to tell apart"},
          {"classification",
           {{"validation", source("x")}, {"validation_targets", source("three")}},
           "has the label 2 in row"},
          {"classification",
           {{"validation", source("wide")}, {"validation_targets", source("rises")}},
           "has 12 steps of 3 features; those to train on have 12 of 2"},
          {"regression", {{"targets", source("holes")}}, ":holes' has a NaN or infinite number in row 5"},
          {"regression", {{"targets", source("deep")}}, "numbers have [samples] or [samples, numbers]"},
          {"forecast", {{"data", source("x")}}, "a series has [steps] or [steps, features]"},
          {"forecast", {{"data", value(folder.write("gap.csv", "a,b\n1,2\n3,\n"))}}, "gap.csv' line 3"},
          {"forecast",
           {{"validation", value(folder.write("short.csv", series(4)))}},
           "' has 4 steps, and a window has 8"},
          {"forecast", {{"data", shop}, {"series", value("store")}}, "has no column 'store'; its columns are a,shop,b"},
          {"forecast", {{"data", shop}, {"series", value("shop")}, {"context", value(60)}}, "the longest series in '"},
          {"forecast", {{"data", source("x")}, {"series", value("shop")}}, "has no 'shop'; it has"},
          {"forecast",
           {{"data", shop}, {"series", value("shop")}, {"missing", value("previous")}},
           "`missing` is \"previous\", and the row before may be of another series"},
      });
}

TEST_CASE("sequence: refuses options that do not fit, in one line") {
  const TemporaryFolder folder;
  const auto file = write_sequences(folder);
  check_refusals(
      folder,
      {
          {"classification", {{"targets", value("")}}, "`targets` is needed for classification"},
          {"classification", {{"series", value("shop")}}, "`series` is for kind = \"forecast\""},
          {"regression", {{"level", value("window")}}, "`level` is for kind = \"forecast\""},
          {"forecast", {{"level", value("last")}}, "auto"},
          {"forecast",
           {{"validation", value(folder.write("other.csv", series(40)))}, {"validation_share", value(0.2)}},
           "`validation_share` has no effect with `validation`; leave one of them out"},
          {"classification", {{"context", value(4)}}, "`context` is for kind = \"forecast\""},
          {"classification",
           {{"validation", value(file + ":x")}},
           "`validation` and `validation_targets` are given both"},
          {"classification",
           {{"model", value("transformer")}, {"width", value(6)}},
           "`heads` does not divide a width of 6"},
          {"classification", {{"dropout", value(0.5)}}, "`dropout` is between the layers, and there is one"},
          {"forecast", {{"context", value(48)}}, "' has 45 steps to train on and 5 held out; a window has 48 and 3"},
          {"forecast", {{"outputs", list<int>({2})}}, "outputs has 2, and '"},
          {"forecast", {{"outputs", list<int>({1, 0, 1})}}, "`outputs` has 1 twice"},
          {"forecast", {{"targets", value(file + ":rises")}}, "`targets` is without meaning"},
      });
}

}  // namespace sequence_test
