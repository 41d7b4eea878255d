#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/script.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include <cmath>

#include "loaded_data_task.h"
#include "picture_folder.h"
#include "run/state/snapshot.h"
#include "thrown.h"
#include "tools/export/torchscript.h"

namespace script_test {

using vernier::Table;

namespace {

torch::Tensor drawn(std::vector<std::int64_t> shape, std::uint64_t seed) {
  return torch::empty(shape).uniform_(-1, 1, at::make_generator<at::CPUGeneratorImpl>(seed));
}

torch::jit::Module linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  torch::jit::Module layer("__torch__." + name);
  layer.register_parameter("weight", drawn({inputs, outputs}, 1).set_requires_grad(true), false);
  layer.register_parameter("bias", torch::zeros({outputs}).set_requires_grad(true), false);
  layer.register_attribute("training", c10::BoolType::get(), true);
  layer.define("def forward(self, x):\n  return torch.matmul(x, self.weight) + self.bias\n");
  return layer;
}

// As Python's torch.jit.script() makes it of a module with submodules, a buffer and a branch on `training`.
std::string write_network(const TemporaryFolder& folder, std::int64_t inputs = 2, std::int64_t outputs = 3) {
  torch::jit::Module model("__torch__.Model");
  model.register_module("first", linear("First", inputs, 16));
  model.register_module("second", linear("Second", 16, outputs));
  model.register_buffer("scale", torch::full({}, 2.0));
  model.register_attribute("training", c10::BoolType::get(), true);
  model.define(R"(
def forward(self, x):
  y = self.second.forward(torch.tanh(self.first.forward(x * self.scale)))
  if self.training:
    y = y + 0.0
  else:
    y = y * 1.5
  return y
)");
  model.save(folder / "model.pt");
  return folder / "model.pt";
}

std::string write_source(const TemporaryFolder& folder, const std::string& name, const std::string& code) {
  torch::jit::Module model("__torch__." + name);
  model.register_parameter("weight", drawn({2, 3}, 2).set_requires_grad(true), false);
  model.define(code);
  model.save(folder / (name + ".pt"));
  return folder / (name + ".pt");
}

// 60 points in a plane; the label is the sector, the number is a distance.
std::string write_points(const TemporaryFolder& folder) {
  const auto x = drawn({60, 2}, 3);
  const auto labels = (torch::atan2(x.select(1, 1), x.select(1, 0)) / (2 * M_PI / 3) + 1.5).floor().to(torch::kInt64);
  auto hole = x.clone();
  hole[7][1] = NAN;
  vernier::save_safetensors(folder / "points.safetensors", {{"x", x},
                                                            {"hole", hole},
                                                            {"label", labels},
                                                            {"number", x.norm(2, 1)},
                                                            {"numbers", x},
                                                            {"share", x.select(1, 0).abs()},
                                                            {"half", (x.select(1, 0) > 0).to(torch::kFloat32)},
                                                            {"five", labels + 3},
                                                            {"four", torch::arange(60) % 4},
                                                            {"few", labels.narrow(0, 0, 50)}});
  return folder / "points.safetensors";
}

Table table_of(const TemporaryFolder& folder, Table more = {}) {
  const auto file = write_points(folder);
  Table table = {{"model", value(write_network(folder))},
                 {"inputs", list<std::string>({file + ":x"})},
                 {"target", value(file + ":label")},
                 {"batch_size", value(10)}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

}  // namespace

TEST_CASE("script: a run goes on with the same module at another path, and with no other one") {
  const TemporaryFolder folder;
  auto table = table_of(folder);
  const auto state = LoadedTask("script", table)->save();
  std::filesystem::copy_file(folder / "model.pt", folder / "moved.pt");
  table["model"] = value(folder / "moved.pt");
  CHECK(refusal([&] { LoadedTask("script", table)->load(state); }).empty());
  table["model"] =
      value(write_source(folder, "Other", "def forward(self, x):\n  return torch.matmul(x, self.weight)\n"));
  CHECK(says(refusal([&] { LoadedTask("script", table)->load(state); }),
             "the files of the model have changed since this run was saved: then 1 with XXH3 "));
}

TEST_CASE("script: a script's tensors have their names and learn") {
  const TemporaryFolder folder;
  LoadedTask task("script", table_of(folder, {{"validation_share", value(0.2)},
                                              {"metrics", list<std::string>({"accuracy", "f1"})}}));
  CHECK(task.run.parameters.size() == 4);
  CHECK(has_shape(task.parameter("first.weight"), {2, 16}));
  CHECK(has_shape(task.parameter("second.bias"), {3}));
  CHECK(task.run.model->named_buffers().contains("scale"));
  CHECK(task->batches_per_epoch() == 5);
  const double before = task.validate();
  for (int step = 0; step < 300; ++step) task.descend(task->next(), 0.2);
  CHECK(task.validate() < before / 2);
  CHECK(*task.run.metrics.value("accuracy") > 0.8);
  CHECK(*task.run.metrics.value("f1") > 0.5);
}

TEST_CASE("script: evaluation mode reaches the script, and other dtypes do") {
  const TemporaryFolder folder;
  const LoadedTask task("script", table_of(folder));
  const torch::NoGradGuard no_grad;
  const auto batch = supervised(task).example(4);
  const auto training = supervised(task).forward(batch).clone();
  task.run.model->eval();
  CHECK(supervised(task).forward(batch).allclose(training * 1.5));
  task.run.model->train();
  CHECK(supervised(task).forward(batch).equal(training));
  task.run.model->to(torch::kFloat64);
  CHECK((supervised(task).forward(batch).scalar_type() == torch::kFloat64));
}

TEST_CASE("script: the exported file is the trained script with its branches") {
  const TemporaryFolder folder;
  LoadedTask task("script", table_of(folder));
  for (int step = 0; step < 5; ++step) task.descend(task->next(), 0.2);
  task.run.model->eval();
  const torch::NoGradGuard no_grad;
  vernier::save_torchscript(folder / "out.pt", *task.run.model, supervised(task), torch::kCPU);
  auto loaded = torch::jit::load(folder / "out.pt");
  const auto batch = supervised(task).example(4);
  const auto expected = supervised(task).forward(batch);
  CHECK(loaded.forward({batch.tensors[0]}).toTensor().equal(expected));
  loaded.train();
  CHECK(loaded.forward({batch.tensors[0]}).toTensor().allclose(expected / 1.5));
}

TEST_CASE("script: a trial run leaves a buffer as it was, in place or as another tensor, and calls change it") {
  const TemporaryFolder folder;
  for (const std::string change : {"self.n.add_(1)", "self.n += 1", "self.n = self.n + 1"}) {
    CAPTURE(change);
    torch::jit::Module model("__torch__.Counter");
    model.register_parameter("weight", drawn({2, 3}, 2).set_requires_grad(true), false);
    model.register_buffer("n", torch::zeros({}, torch::kInt64));
    model.define("def forward(self, x):\n  " + change + "\n  return torch.matmul(x, self.weight)\n");
    model.save(folder / "counter.pt");
    LoadedTask task("script", table_of(folder, {{"model", value(folder / "counter.pt")}}));
    CHECK(task.run.model->named_buffers()["n"].item<int>() == 0);
    for (int step = 0; step < 5; ++step) task.descend(task->next(), 0.2);
    CHECK(task.run.model->named_buffers()["n"].item<int>() == 5);
    task.run.model->eval();
    vernier::save_torchscript(folder / "counted.pt", *task.run.model, supervised(task), torch::kCPU);
    CHECK(torch::jit::load(folder / "counted.pt").attr("n").toTensor().item<int>() == 5);
  }
}

TEST_CASE("script: refuses a change that checkpoints would lose") {
  const TemporaryFolder folder;
  const struct {
    const char *name, *change;
    c10::TypePtr type;
    c10::IValue value;
    bool is_refused = true;
  } cases[] = {
      {"steps", "self.steps += 1", c10::IntType::get(), 0},
      {"share", "if self.share < 1.0:\n    self.share = self.share * 0.5", c10::FloatType::get(), 0.5},
      {"past", "self.past.append(1)", c10::ListType::ofInts(), c10::List<std::int64_t>()},
      {"table", "self.table['a'] = 1", c10::DictType::create(c10::StringType::get(), c10::IntType::get()),
       c10::Dict<std::string, std::int64_t>()},
      {"last", "self.last = x", c10::TensorType::get(), torch::zeros({2})},
      {"last", "self.last.add_(1)", c10::TensorType::get(), torch::zeros({2})},
      {"steps", "x = x + self.steps", c10::IntType::get(), 0, false},
  };
  for (const auto& [name, change, type, value, is_refused] : cases) {
    CAPTURE(change);
    torch::jit::Module part("__torch__.Part"), model("__torch__.Whole");
    part.register_attribute(name, type, value);
    part.define("def forward(self, x):\n  " + std::string(change) + "\n  return x\n");
    part.define("def reset(self):\n  self." + std::string(name) + " = self." + name + "\n");  // nobody calls it
    model.register_module("part", part);
    model.register_parameter("weight", drawn({2, 3}, 2).set_requires_grad(true), false);
    model.define("def forward(self, x):\n  return torch.matmul(self.part.forward(x), self.weight)\n");
    model.save(folder / "whole.pt");
    const auto reason = refusal([&] {
      LoadedTask("script", table_of(folder, {{"model", ::value(folder / "whole.pt")}}));
    });
    CHECK(reason.empty() == !is_refused);
    const auto says = "forward() of the model changes self." + std::string(name) +
                      ", which checkpoints do not have; keep it in a buffer: self.register_buffer('" + name;
    if (is_refused) CHECK_MESSAGE(contains(reason, says), reason);
  }
}

TEST_CASE("script: each loss is LibTorch's") {
  const TemporaryFolder folder;
  const auto file = write_points(folder);
  const auto tensors = vernier::load_safetensors(file);
  using Loss = torch::Tensor (*)(const torch::Tensor&, const torch::Tensor&);
  const struct {
    const char *loss, *target;
    std::int64_t outputs;
    Loss expected;
  } cases[] = {
      {"cross_entropy", "label", 3, [](const auto& y, const auto& t) { return at::cross_entropy_loss(y, t); }},
      {"nll", "label", 3, [](const auto& y, const auto& t) { return at::nll_loss_nd(y, t); }},
      {"mse", "number", 1, [](const auto& y, const auto& t) { return (y.squeeze(1) - t).square().mean(); }},
      {"mse", "numbers", 2, [](const auto& y, const auto& t) { return (y - t).square().mean(); }},
      {"l1", "number", 1, [](const auto& y, const auto& t) { return (y.squeeze(1) - t).abs().mean(); }},
      {"huber", "number", 1, [](const auto& y, const auto& t) { return at::huber_loss(y.squeeze(1), t); }},
      {"bce", "share", 1,
       [](const auto& y, const auto& t) { return at::binary_cross_entropy(y.squeeze(1).sigmoid(), t); }},
  };
  for (const auto& each : cases) {
    CAPTURE(each.loss);
    auto table = table_of(folder, {{"loss", value(each.loss)}, {"target", value(file + ":" + each.target)}});
    table["model"] = value(write_network(folder, 2, each.outputs));
    const LoadedTask task("script", table);
    const auto batch = task->next();
    const auto expected = each.expected(supervised(task).forward(batch), batch.tensors[1]);
    CHECK(task->loss(batch).item<double>() == doctest::Approx(expected.item<double>()).epsilon(1e-5));
  }
}

TEST_CASE("script: a model that returns its loss gets the target, or has none") {
  const TemporaryFolder folder;
  const auto with = write_source(folder, "With",
                                 "def forward(self, x, target):\n"
                                 "  return (torch.matmul(x, self.weight)[:, :2] - target).pow(2).mean()\n");
  const auto without =
      write_source(folder, "Without", "def forward(self, x):\n  return torch.matmul(x, self.weight).pow(2).mean()\n");
  for (const auto& [model, target] :
       {std::pair(with, folder / "points.safetensors:numbers"), {without, std::string()}}) {
    LoadedTask task("script",
                    table_of(folder, {{"model", value(model)}, {"target", value(target)}, {"loss", value("output")}}));
    const double before = task.validate();
    for (int step = 0; step < 100; ++step) task.descend(task->next(), 0.05);
    CHECK(task.validate() < before * 0.9);
    CHECK(contains(refusal([&] { predictor(task).read_inputs(folder / "points.safetensors"); }),
                   "the model returns its loss, so there is nothing to predict"));
  }
}

TEST_CASE("script: takes several inputs, tables and folders of images") {
  const TemporaryFolder folder;
  const auto file = write_points(folder);
  const auto two = write_source(folder, "Two", "def forward(self, x, y):\n  return torch.matmul(x + y, self.weight)\n");
  const LoadedTask pair("script", table_of(folder, {{"model", value(two)},
                                                    {"inputs", list<std::string>({file + ":x", file + ":numbers"})}}));
  CHECK(pair->next().tensors.size() == 3);
  CHECK(pair->loss(pair->next()).isfinite().item<bool>());

  std::string csv = "x,y,name\n";
  for (int i = 0; i < 30; ++i)
    csv += std::to_string(i % 3) + "," + std::to_string(i % 5) + (i % 2 == 0 ? ",even\n" : ",odd\n");
  const auto path = folder.write("table.csv", csv);
  LoadedTask table(
      "script", table_of(folder, {{"inputs", list<std::string>({path + ":x,y"})}, {"target", value(path + ":name")}}));
  const auto rows = [&] {
    auto loader = supervised(table).loader_of(predictor(table).read_inputs(path));
    return predictor(table).predict(loader.next());
  }();
  CHECK(rows.at(0).labels == std::vector<std::string>{"even", "odd"});
  CHECK(rows.at(2).name == "probability_even");

  const auto mean = write_source(folder, "Mean",
                                 "def forward(self, x):\n  return torch.matmul(x.mean([2, 3])[:, :2], self.weight)\n");
  const LoadedTask images("script",
                          table_of(folder, {{"model", value(mean)},
                                            {"inputs", list<std::string>({write_stripes(folder, "train", 5)})},
                                            {"target", value("")},
                                            {"size", value(4)}}));
  const auto batch = images->next();
  CHECK(has_shape(batch.tensors[0], {9, 3, 4, 4}));
  CHECK((batch.tensors[0].scalar_type() == torch::kFloat32));
  CHECK(batch.tensors[0].max().item<float>() <= 1);
  CHECK(images->loss(batch).isfinite().item<bool>());
}

TEST_CASE("script: words have the same codes in any order of the rows") {
  const TemporaryFolder folder;
  const auto labels = [&](const std::string& name, const std::string& rows) {
    const auto path = folder.write(name, "x,y,word\n" + rows);
    const LoadedTask task("script", table_of(folder, {{"inputs", list<std::string>({path + ":x,y"})},
                                                      {"target", value(path + ":word")},
                                                      {"order", value("sequential")},
                                                      {"validation_share", value(0)}}));
    CHECK(contains(task->where(1), name + "' line 3"));
    return task->next().tensors[1];
  };
  CHECK(labels("a.csv", "1,1,ant\n2,2,bee\n").equal(torch::tensor({0, 1})));
  CHECK(labels("b.csv", "2,2,bee\n1,1,ant\n").equal(torch::tensor({1, 0})));
}

TEST_CASE("script: whole numbers and words become what an embedding takes, and doubles are of one kind") {
  const TemporaryFolder folder;
  torch::jit::Module words("__torch__.Words");
  words.register_parameter("table", drawn({4, 3}, 6).set_requires_grad(true), false);
  words.define("def forward(self, x, c):\n  return torch.embedding(self.table, c) + x[:, None]\n");
  words.save(folder / "words.pt");
  std::string csv = "x,c,w,y\n";
  for (int i = 0; i < 30; ++i) {
    csv +=
        std::to_string(i * 0.1) + "," + std::to_string(i % 3) + "," + "abc"[i % 3] + "," + std::to_string(i % 2) + "\n";
  }
  const auto table = folder.write("table.csv", csv);
  vernier::save_safetensors(folder / "codes.safetensors", {{"c", torch::arange(30).remainder(4).to(torch::kUInt8)},
                                                           {"f", torch::arange(30).remainder(4).to(torch::kFloat32)}});
  const struct {
    std::string codes, says;
  } cases[] = {
      {table + ":c", ""},
      {table + ":w", ""},
      {folder / "codes.safetensors:c", ""},
      // Numbers that an array has as float32 stay so.
      {folder / "codes.safetensors:f",
       "does not take `inputs`: forward() of the model fails for float32 [2], float32 [2]: Expected tensor"},
      {table + ":x", "(in `return torch.embedding(self.table, c) + x[:, None]`)"},
  };
  for (const auto& [codes, text] : cases) {
    CAPTURE(codes);
    const auto error = thrown_by([&, &codes = codes] {
      const LoadedTask task("script", table_of(folder, {{"model", value(folder / "words.pt")},
                                                        {"inputs", list<std::string>({table + ":x", codes})},
                                                        {"target", value(table + ":y")}}));
      const auto batch = task->next();
      CHECK((batch.tensors[1].scalar_type() == torch::kInt64) == text.empty());
      task->loss(batch).backward();
    });
    CAPTURE(error.text);
    CHECK(error.text.empty() == text.empty());
    CHECK(says(error.text, text));
    CHECK_FALSE(says(error.text, "\n"));
    CHECK(error.text.size() < 400);
  }
  torch::jit::Module twice("__torch__.Twice");
  twice.register_parameter("weight", drawn({2, 1}, 7).to(torch::kFloat64).detach().set_requires_grad(true), false);
  twice.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  twice.save(folder / "twice.pt");
  for (const char* loss : {"mse", "l1", "huber", "bce"}) {
    const LoadedTask task("script", table_of(folder, {{"model", value(folder / "twice.pt")},
                                                      {"loss", value(loss)},
                                                      {"target", value(write_points(folder) + ":share")}}));
    const auto value = task->loss(task->next());
    value.backward();
    CHECK((value.scalar_type() == torch::kFloat64));
  }
}

// A network of [samples, outputs] of points, whose prediction the loss reads.
TEST_CASE("script: the loss says what outputs and targets are, whatever their shapes") {
  const TemporaryFolder folder;
  const auto x = drawn({60, 4}, 3);
  const auto bits = (x > 0).to(torch::kFloat32);
  auto missing = bits.clone();
  missing.masked_fill_(drawn({60, 4}, 4) > 0.5, NAN);
  std::map<std::string, torch::Tensor> all = {{"x", x.narrow(1, 0, 2).contiguous()}, {"code", torch::arange(60) % 2}};
  for (const std::int64_t count : {1, 2, 3}) {
    all["bits" + std::to_string(count)] = bits.narrow(1, 0, count).contiguous();
    all["numbers" + std::to_string(count)] = x.narrow(1, 0, count).contiguous();
  }
  all["bit"] = bits.select(1, 0).contiguous(), all["number"] = x.select(1, 0).contiguous(), all["missing"] = missing;
  vernier::save_safetensors(folder / "all.safetensors", all);
  using Kind = vernier::Targets::Kind;
  const struct {
    const char *loss, *target;
    std::int64_t outputs;
    Kind kind;
    std::vector<std::string> columns;
  } cases[] = {
      {"cross_entropy", "code", 2, Kind::classes, {"class", "probability", "probability_0", "probability_1"}},
      {"bce", "bit", 1, Kind::labels, {"probability"}},
      {"bce", "bits1", 1, Kind::labels, {"probability"}},
      {"bce", "bits2", 2, Kind::labels, {"probability_0", "probability_1"}},
      {"bce", "bits3", 3, Kind::labels, {"probability_0", "probability_1", "probability_2"}},
      {"bce", "missing", 4, Kind::labels, {"probability_0", "probability_1", "probability_2", "probability_3"}},
      {"mse", "number", 1, Kind::numbers, {"output"}},
      {"l1", "numbers1", 1, Kind::numbers, {"output"}},
      {"huber", "numbers2", 2, Kind::numbers, {"output"}},
      {"mse", "numbers3", 3, Kind::numbers, {"output"}},
  };
  for (const auto& each : cases) {
    CAPTURE(each.loss);
    CAPTURE(each.target);
    const bool of_classes = each.kind == Kind::classes, of_labels = each.kind == Kind::labels;
    LoadedTask task("script", {{"model", value(write_network(folder, 2, each.outputs))},
                               {"inputs", list<std::string>({folder / "all.safetensors:x"})},
                               {"target", value(folder / "all.safetensors:" + each.target)},
                               {"loss", value(each.loss)},
                               {"validation_share", value(0.5)},
                               {"metrics", of_classes  ? list<std::string>({"accuracy", "f1", "auc"})
                                           : of_labels ? list<std::string>({"accuracy", "subset_accuracy", "f1", "auc"})
                                                       : list<std::string>({"mae", "rmse", "r2"})}});
    CHECK(supervised(task).targets().kind == each.kind);
    for (int step = 0; step < 60; ++step) task.descend(task->next(), 0.3);
    task.validate();
    if (of_labels) {
      CHECK(*task.run.metrics.value("auc") > (each.outputs > 2 ? 0.4 : 0.9));
      CHECK(*task.run.metrics.value("subset_accuracy") <= *task.run.metrics.value("accuracy"));
    }
    std::vector<std::string> names;
    for (const auto& column : predictor(task).predict(supervised(task).example(5))) {
      names.push_back(column.name);
      CHECK(column.numbers.size(0) == 5);
    }
    CHECK(names == each.columns);
    const auto baselines = vernier::baselines_of(supervised(task).learned().part("targets"));
    REQUIRE_FALSE(baselines.empty());
    supervised(task).validate_with(task.run, baselines[0].forward);
  }
}

TEST_CASE("script: the last batch is tried before the first step, without a trace") {
  const TemporaryFolder folder;
  const auto x = drawn({33, 2}, 3);
  vernier::save_safetensors(folder / "all.safetensors",
                            {{"x", x}, {"y", torch::arange(33) % 3}, {"two", x}, {"one", x.select(1, 0).contiguous()}});
  const auto model = [&](const char* name, const std::string& body) {
    torch::jit::Module script("__torch__." + std::string(name));
    script.register_parameter("weight", drawn({2, 3}, 2).set_requires_grad(true), false);
    script.register_buffer("calls", torch::zeros({}));
    script.define("def forward(self, x):\n  self.calls.add_(1)\n  y = torch.matmul(x, self.weight)\n  return " + body);
    script.save(folder / (std::string(name) + ".pt"));
    return value(folder / (std::string(name) + ".pt"));
  };
  const struct {
    const char *name, *body, *target;
    std::int64_t batch_size;
    double share;
    bool drops_last;
    const char* says;  // "": it is right
  } cases[] = {
      {"Squeezed", "y.squeeze()\n", "y", 32, 0, false,
       "the last batch of an epoch has one sample, of 33 in batches of 32: the model returns [3] for a batch, and the "
       "labels need [samples, 3] or more; set [task] drop_last = true, or make forward() take any number of samples"},
      {"Squeezed", "y.squeeze()\n", "y", 32, 0, true, ""},
      {"Squeezed", "y.squeeze()\n", "y", 11, 0, false, ""},
      {"Squeezed", "y.squeeze()\n", "y", 32, 0.03, false,
       "the last batch of a validation has one sample, of 1 in batches of 32: the model returns [3] for a batch"},
      {"Right", "y\n", "y", 32, 0.03, false, ""},
      {"Number", "y[:, :1].squeeze()\n", "one", 32, 0, false, ""},  // one number is one, whatever its dimensions
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    CAPTURE(each.batch_size);
    const LoadedTask task("script", {{"model", model(each.name, each.body)},
                                     {"inputs", list<std::string>({folder / "all.safetensors:x"})},
                                     {"target", value(folder / "all.safetensors:" + each.target)},
                                     {"loss", value(each.target == std::string("y") ? "cross_entropy" : "mse")},
                                     {"batch_size", value(each.batch_size)},
                                     {"validation_share", value(each.share)},
                                     {"drop_last", value(each.drops_last)}});
    const auto calls = task.run.model->buffers().at(0).clone();
    const auto random = at::detail::getDefaultCPUGenerator().get_state();
    const auto text = refusal([&] { task->check(task.run); });
    CHECK_MESSAGE(contains(text, each.says), text);
    CHECK(text.empty() == std::string(each.says).empty());
    CHECK(task.run.model->buffers().at(0).equal(calls));
    CHECK(at::detail::getDefaultCPUGenerator().get_state().equal(random));
    CHECK(task.run.model->is_training());
  }
}

TEST_CASE("script: one logit has the metrics of two classes") {
  const TemporaryFolder folder;
  const auto file = write_points(folder);
  auto table = table_of(folder, {{"loss", value("bce")},
                                 {"target", value(file + ":half")},
                                 {"validation_share", value(0.5)},
                                 {"metrics", list<std::string>({"accuracy", "f1", "auc"})}});
  table["model"] = value(write_network(folder, 2, 1));
  LoadedTask task("script", table);
  for (int step = 0; step < 200; ++step) task.descend(task->next(), 0.5);
  task.validate();
  CHECK(*task.run.metrics.value("accuracy") > 0.9);
  CHECK(*task.run.metrics.value("f1") > 0.9);
}

TEST_CASE("script: refuses models, data and options that do not fit, in one line") {
  const TemporaryFolder folder;
  const auto file = write_points(folder);
  torch::jit::Module frozen("__torch__.Frozen");
  frozen.define("def forward(self, x):\n  return x\n");
  frozen.save(folder / "frozen.pt");
  const auto pair = write_source(folder, "Pair", "def forward(self, x):\n  return x, self.weight\n");
  const auto inputs = [&](const char* name) { return list<std::string>({file + ":" + name}); };
  const auto target = [&](const char* name) { return value(file + ":" + name); };
  const struct {
    Table table;
    std::string says;
  } cases[] = {
      {{}, ""},
      {{{"model", value("no.pt")}}, "'no.pt' is not a file; export a model to it first"},
      {{{"model", value(file)}}, "points.safetensors' cannot be read as TorchScript: "},
      {{{"model", value(folder / "frozen.pt")}}, "frozen.pt' has no parameters to train"},
      {{{"model", value(pair)}}, "forward() of the model returns Tuple; it must return one tensor"},
      {{{"inputs", inputs("hole")}}, ":hole' has a NaN or infinite number in row 7"},
      {{{"inputs", inputs("nothing")}}, "has no 'nothing'; it has"},
      {{{"target", value("")}}, "`target` is needed for loss = \"cross_entropy\""},
      {{{"target", target("few")}}, "' has 60 samples, and '"},
      {{{"target", target("number")}}, "; labels are whole numbers, or words"},
      {{{"target", target("five")}}, ""},  // three classes: 3, 4, 5
      {{{"target", target("four")}}, "the model returns [10, 3] for a batch, and the labels need [samples, 4] or more"},
      {{{"loss", value("mse")}, {"target", target("number")}}, "this loss needs as many numbers of both"},
      {{{"loss", value("bce")}, {"target", target("numbers")}}, "has numbers below 0 or above 1"},
      {{{"loss", value("output")}, {"metrics", list<std::string>({"mae"})}}, "`metrics` need outputs"},
      {{{"metrics", list<std::string>({"acuracy"})}}, "did you mean accuracy?"},
      {{{"metrics", list<std::string>({"auc"})}},
       "`metrics` has \"auc\", which is for two classes, and the task has 3"},
      {{{"metrics", list<std::string>({"rmse"})}}, "`metrics` has \"rmse\", which is for numbers"},
      {{{"loss", value("mse")}, {"target", target("share")}, {"metrics", list<std::string>({"f1"})}},
       "`metrics` has \"f1\", which is for classes"},
      {{{"recompute", value("full")}}, "`recompute` has no effect on this task"},
      {{{"validation_inputs", inputs("x")}}, "`validation_inputs` and `validation_target` are given both"},
      {{{"validation_inputs", inputs("x")}, {"validation_target", target("five")}}, "has the label "},
      {{{"validation_inputs", list<std::string>({"a.npy", "b.npy"})}}, "has 2 sources, and `inputs` has 1"},
  };
  for (const auto& each : cases) {
    const auto reason = refusal([&] {
      const LoadedTask task("script", table_of(folder, each.table));
      task->loss(task->next());
    });
    CAPTURE(each.says);
    CAPTURE(reason);
    CHECK(reason.empty() == each.says.empty());
    CHECK(contains(reason, each.says));
    CHECK_FALSE(contains(reason, "\n"));
  }
}

}  // namespace script_test
