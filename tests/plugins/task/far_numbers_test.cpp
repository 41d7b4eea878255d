// Numbers whose spread is small beside their size, such as seconds since 1970, for which float32 has steps of 128.
#include <doctest/doctest.h>
#include <torch/script.h>
#include <vernier/data/digits.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "python.h"
#include "small_run.h"
#include "tools/export/torchscript.h"

namespace far_numbers_test {

namespace {

constexpr double far = 1.7e9;
constexpr std::int64_t rows = 240;

// From -50 to 50, in whole numbers and in no order.
torch::Tensor near() {
  return (torch::arange(rows, torch::kFloat64) * 37).remainder(101) - 50;
}

std::string array(const std::string& dtype, const torch::Tensor& numbers) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (";
  for (const auto size : numbers.sizes()) header += std::to_string(size) + ", ";
  header += "), }";
  header.resize(117, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
  return bytes + header + std::string(static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes());
}

// t and at are far numbers, u and y near ones; y = u / 10 and at = far + u.
void write_files(const TemporaryFolder& folder) {
  const auto u = near(), t = u + far, y = u / 10;
  std::ostringstream table, times;
  table.precision(17), times.precision(17);
  table << "t,u,y,at\n", times << "when,y\n";
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto x = u[i].item<double>();
    table << far + x << ',' << x << ',' << x / 10 << ',' << far + x << '\n';
    const auto minute = static_cast<int>(x) + 50;
    times << "2024-05-17 0" << 7 + minute / 60 << ':' << minute % 60 / 10 << minute % 10 << ',' << x / 10 << '\n';
  }
  folder.write("table.csv", table.str());
  folder.write("times.csv", times.str());
  folder.write("t.npy", array("<f8", t.unsqueeze(1).contiguous()));
  folder.write("seconds.npy", array("<i8", t.to(torch::kInt64).unsqueeze(1).contiguous()));
  folder.write("u.npy", array("<f8", u.unsqueeze(1).contiguous()));
  folder.write("y.npy", array("<f8", y));
  folder.write("at.npy", array("<f8", t));
  folder.write("at_seconds.npy", array("<i8", t.to(torch::kInt64)));
  const auto steps = t.view({rows, 1, 1}) + torch::arange(3).view({1, 3, 1});
  vernier::save_safetensors(folder / "all.safetensors", {{"steps", steps.contiguous()},
                                                         {"near_steps", (steps - far).contiguous()},
                                                         {"x", (u / 50).unsqueeze(1).contiguous()},
                                                         {"t", t.unsqueeze(1).contiguous()},
                                                         {"y", y},
                                                         {"at", t},
                                                         {"half", (u > 0).to(torch::kFloat64)},
                                                         {"label", (u > 0).to(torch::kInt64)}});
}

vernier::Table config(const std::string& task, int steps) {
  return from_toml({"[run]\nsteps = " + std::to_string(steps) + "\n[task]\n" + task +
                    "\n[optimizer]\nuse = 'adamw'\nlearning_rate = 1e-2\n[checkpoint]\nuse = 'none'\n"});
}

double r2_after(const std::string& task, int steps) {
  SmallRun run(config(task, steps));
  double value = NAN;
  run.on(vernier::Event::Validated, [&](vernier::Run& now) { value = now.metrics.value("r2").value_or(NAN); });
  run.train();
  return value;
}

// A network of one layer.
std::string write_network(const TemporaryFolder& folder, torch::ScalarType dtype) {
  torch::jit::Module model("__torch__.Model");
  model.register_parameter("weight", torch::full({1, 1}, 0.5, dtype).set_requires_grad(true), false);
  model.register_parameter("bias", torch::zeros({1}, dtype).set_requires_grad(true), false);
  model.define("def forward(self, x):\n  return torch.matmul(x, self.weight) + self.bias\n");
  model.save(folder / "model.pt");
  return folder / "model.pt";
}

}  // namespace

TEST_CASE("far numbers are learned as near ones are, as inputs and as targets") {
  const TemporaryFolder folder;
  write_files(folder);
  const auto in = [&](const char* file) { return "'" + (folder / file) + "'"; };
  const auto of = [&](const char* file, const char* part) { return "'" + (folder / file) + ":" + part + "'"; };
  const std::string tabular = "use = 'tabular'\nkind = 'regression'\nhidden = [16]\n";
  const std::string sequence = "use = 'sequence'\nwidth = 16\n", whole = sequence + "kind = 'regression'\n";
  const struct {
    const char* name;
    std::string task;
  } cases[] = {
      {"a column", tabular + "data = " + in("table.csv") + "\ntarget = 'y'\ncolumns = ['t']"},
      {"a column to predict", tabular + "data = " + in("table.csv") + "\ntarget = 'at'\ncolumns = ['u']"},
      {"minutes of a day", tabular + "data = " + in("times.csv") + "\ntarget = 'y'"},
      {"float64", tabular + "data = " + in("t.npy") + "\ntargets = " + in("y.npy")},
      {"int64", tabular + "data = " + in("seconds.npy") + "\ntargets = " + in("y.npy")},
      {"float64 to predict", tabular + "data = " + in("u.npy") + "\ntargets = " + in("at.npy")},
      {"int64 to predict", tabular + "data = " + in("u.npy") + "\ntargets = " + in("at_seconds.npy")},
      {"bf16", tabular + "data = " + in("table.csv") + "\ntarget = 'at'\ncolumns = ['t']\n[precision]\nuse = 'bf16'\n"},
      {"O3", tabular + "data = " + in("table.csv") +
                 "\ntarget = 'at'\ncolumns = ['t']\n[precision]\nuse = 'bf16'\n"
                 "level = 'O3'\n"},
      {"sequences", whole + "data = " + of("all.safetensors", "steps") + "\ntargets = " + of("all.safetensors", "y")},
      {"sequences of both",
       whole + "data = " + of("all.safetensors", "steps") + "\ntargets = " + of("all.safetensors", "at")},
      {"a series", sequence + "kind = 'forecast'\ncontext = 4\ndata = " + of("table.csv", "t")},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    const LogLines log;
    CHECK(r2_after(each.task, 300) > 0.9);
    CHECK(LogLines::count("float32") == 0);
  }
}

TEST_CASE("predictions of far numbers have all their digits, also of exported models") {
  const TemporaryFolder folder;
  write_files(folder);
  const bool has_torch = has_python("torch, safetensors");
  const auto file = folder / "all.safetensors";
  const std::pair<const char*, vernier::Table> tasks[] = {
      {"tabular", {{"data", value(folder / "table.csv")}, {"target", value("at")}, {"kind", value("regression")}}},
      {"sequence",
       {{"data", value(file + ":steps")}, {"targets", value(file + ":at")}, {"kind", value("regression")}}}};
  for (const auto& [name, table] : tasks) {
    CAPTURE(name);
    LoadedTask task(name, table);
    auto& predictor = dynamic_cast<vernier::Predictor&>(*task.task);
    for (int step = 0; step < 400; ++step) task.descend(task->next(), 0.05);
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto batch = supervised(task).example(8);
    const auto numbers = predictor.predict(batch).at(0).numbers;
    const auto truth = batch.tensors[0].reshape({8, -1}).select(1, 0);
    CHECK((numbers.reshape({-1}) - truth).abs().max().item<double>() < 30);
    CHECK(std::get<0>(at::_unique(numbers)).numel() > 5);
    vernier::save_torchscript(folder / "model.pt", *task.run.model, supervised(task), torch::kCPU);
    const auto again = torch::jit::load(folder / "model.pt").forward({batch.tensors[0]}).toTensor();
    CHECK((again.reshape({-1}) - numbers.reshape({-1})).abs().max().item<double>() < 1e-2);
    if (!has_torch) continue;
    folder.write("model.py", predictor.python_model());
    vernier::save_safetensors(folder / "model.safetensors", vernier::state_dict(*task.run.model).tensors);
    vernier::save_safetensors(folder / "batch.safetensors", {{"x", batch.tensors[0]}, {"y", numbers}});
    folder.write("check.py",
                 "from safetensors.torch import load_file\nfrom model import load\nimport torch\n"
                 "batch = load_file('batch.safetensors')\nwith torch.no_grad():\n"
                 "    y = load('model.safetensors')(batch['x'])\n"
                 "torch.testing.assert_close(y, batch['y'], rtol=0, atol=1e-2)\n");
    std::string out;
    CHECK_MESSAGE(python("check.py", folder.path(), out) == 0, out);
  }
}

TEST_CASE("script trains float64 networks on numbers, with every loss") {
  const TemporaryFolder folder;
  write_files(folder);
  const auto file = folder / "all.safetensors";
  const auto model = write_network(folder, torch::kFloat64);
  for (const std::string loss : {"mse", "l1", "huber", "bce"}) {
    CAPTURE(loss);
    LoadedTask task("script", {{"model", value(model)},
                               {"inputs", list<std::string>({file + ":x"})},
                               {"target", value(file + (loss == "bce" ? ":half" : ":y"))},
                               {"loss", value(loss)},
                               {"metrics", list<std::string>({loss == "bce" ? "accuracy" : "r2"})}});
    const auto before = task.validate();
    for (int step = 0; step < 100; ++step) task.descend(task->next(), 0.1);
    CHECK((task->loss(task->next()).scalar_type() == torch::kFloat64));
    CHECK(task.validate() < before / 1.5);
  }
  LoadedTask task("script", {{"model", value(model)},
                             {"inputs", list<std::string>({file + ":t"})},
                             {"target", value(file + ":at")},
                             {"loss", value("mse")}});
  const auto batch = task->next();
  CHECK((batch.tensors[0].select(1, 0) == batch.tensors[1]).all().item<bool>());  // no digit is lost
}

TEST_CASE("digits that float32 loses all the same are warned of") {
  const TemporaryFolder folder;
  write_files(folder);
  const auto file = folder / "all.safetensors";
  const auto model = write_network(folder, torch::kFloat32);
  for (const auto& [input, target] : {std::pair{":t", ":y"}, {":x", ":at"}}) {
    const LogLines log;
    LoadedTask task("script", {{"model", value(model)},
                               {"inputs", list<std::string>({file + input})},
                               {"target", value(file + target)},
                               {"loss", value("mse")}});
    CHECK(LogLines::count("where the steps of float32 are 128; the network is float32") == 1);
  }

  const auto u = near().unsqueeze(1);
  auto outlier = u + far;
  outlier[3][0] = 0;
  const auto infinity = std::numeric_limits<double>::infinity();
  const struct {
    const char* name;
    torch::Tensor numbers;
    bool is_lost, is_lost_centred;
  } cases[] = {
      {"near", u, false, false},
      {"years", u.floor() + 1950, false, false},
      {"far", u + far, true, false},
      {"far below", u - far, true, false},
      {"far in float32", (u + far).to(torch::kFloat32), false, false},  // the file has lost them
      {"nanoseconds", (u + far) * 1e9, true, false},
      {"beyond float64", u + 1.7e18, false, false},  // nothing is left of them
      {"one far from all others", outlier, true, true},
      {"always the same", u * 0 + far, false, false},
      {"mostly the same", at::where(u > 49, u, u * 0) + far, true, false},
      {"far apart", u * 1e30, false, false},
      {"one row", (u + far).narrow(0, 0, 1), false, false},
      {"with a NaN", at::where(u == 3, u * NAN, u + far), true, false},
      {"with an infinite one", at::where(u == 3, u * infinity, u), false, false},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    const auto both =
        torch::cat({u.to(each.numbers.scalar_type()).narrow(0, 0, each.numbers.size(0)), each.numbers}, 1);
    const auto lost = vernier::lost_digits(both, false, {"near", "other"});
    CHECK((lost.find("column 'other': half of its numbers lie within") == 0) == each.is_lost);
    CHECK(!vernier::lost_digits(both, true).empty() == each.is_lost_centred);
  }
}

}  // namespace far_numbers_test
