#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <sstream>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "python.h"
#include "run/state/snapshot.h"
#include "small_run.h"
#include "thrown.h"

namespace tabular_test {

using vernier::Table;

namespace {

// Rents of flats, as examples/data/flats.sh prints them.
std::string flats(const TemporaryFolder& folder, int rows = 600) {
  const auto path = folder / "flats.csv";
  const auto command =
      "sh '" VERNIER_SOURCE_DIR "/examples/data/flats.sh' " + std::to_string(rows) + " > '" + path + "'";
  REQUIRE(std::system(command.c_str()) == 0);
  return path;
}

// 100 points whose class is the sign of their product, which no line divides.
std::string points(const TemporaryFolder& folder, const std::string& name = "points.csv") {
  std::ostringstream text;
  text << "x,y,class\n";
  for (int i = 0; i < 100; ++i) {
    const double x = std::sin(i * 1.7), y = std::cos(i * 2.3);
    text << x << ',' << y << ',' << (x * y > 0 ? "same" : "other") << '\n';
  }
  return folder.write(name, text.str());
}

vernier::Table config(const std::string& task, int steps) {
  return from_toml({"[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'tabular'\n" + task +
                    "\n[optimizer]\nuse = 'adamw'\nlearning_rate = 1e-2\n[checkpoint]\nuse = 'none'\n"});
}

double metric_after(const vernier::Table& config, const char* name) {
  SmallRun run(config);
  double value = NAN;
  run.on(vernier::Event::Validated, [&](vernier::Run& now) { value = now.metrics.value(name).value_or(NAN); });
  run.train();
  return value;
}

// float32 or int64 numbers in version 1.0 of NumPy's format.
template <class T>
std::string npy(const std::string& dtype, const std::string& shape, const std::vector<T>& numbers) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00\x76\x00", 10);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return bytes;
}

vernier::Predictor& predictor(vernier::SupervisedTask& task) {
  return dynamic_cast<vernier::Predictor&>(task);
}

}  // namespace

// The task computes them without a copy of the training rows, which stay as they are.
TEST_CASE("tabular: numbers are standardised by the training rows, bit for bit as LibTorch does it") {
  const TemporaryFolder folder;
  const auto numbers = torch::randn({301, 5}, torch::kFloat64).mul(1000).round().div(8);
  std::ostringstream text;
  text << "a,b,c,d,y\n";
  for (std::int64_t i = 0; i < numbers.size(0); ++i) {
    for (std::int64_t j = 0; j < 5; ++j) text << numbers[i][j].item<double>() << (j < 4 ? ',' : '\n');
  }
  for (const double share : {0.0, 0.25}) {
    CAPTURE(share);
    const LoadedTask task("tabular", {{"data", value(folder.write("a.csv", text.str()))},
                                      {"target", value("y")},
                                      {"kind", value("regression")},
                                      {"validation_share", value(share)},
                                      {"order", value("sequential")},
                                      {"batch_size", value(301)},
                                      {"workers", value(0)}});
    const auto rows = vernier::split_random(301, share, 1).training;
    const auto x = numbers.narrow(1, 0, 4).contiguous().index_select(0, rows);
    const auto buffers = task.run.model->named_buffers();
    CHECK(torch::equal(buffers["mean"], x.mean(0)));
    CHECK(torch::equal(buffers["deviation"], x.std(0, false)));
    CHECK(torch::equal(task->next().tensors[0], x));
  }
}

TEST_CASE("tabular learns numbers and classes, with plain and residual layers") {
  const TemporaryFolder folder;
  const auto rents = "data = '" + flats(folder) + "'\ntarget = 'rent'\n";
  const auto classes = "data = '" + points(folder) + "'\ntarget = 'class'\nvalidation = '" + points(folder) + "'\n";
  for (const char* shape : {"hidden = [32, 32]\n", "hidden = [32, 32, 32]\nresidual = true\n"}) {
    CAPTURE(shape);
    CHECK(metric_after(config(rents + shape, 400), "r2") > 0.9);  // the mean has 0
    CHECK(metric_after(config(classes + shape, 300), "accuracy") > 0.9);
    CHECK(metric_after(config(classes + shape + "balanced = true\n", 300), "auc") > 0.95);
  }
}

// Numbers that are close together and far from 0, so that 16 bits do not tell them apart.
TEST_CASE("tabular computes in the units of the data, whatever the precision is") {
  const TemporaryFolder folder;
  std::ostringstream text;
  text << "x,y\n";
  for (int i = 0; i < 200; ++i) text << 1001 + std::sin(i * 1.7) << ',' << 2000 + 3 * std::sin(i * 1.7) << '\n';
  const auto task = "data = '" + folder.write("far.csv", text.str()) + "'\ntarget = 'y'\nhidden = [16]\n";
  for (const char* precision : {"use = 'fp32'", "use = 'bf16'", "use = 'bf16'\nlevel = 'O2'"}) {
    CAPTURE(precision);
    CHECK(metric_after(config(task + "[precision]\n" + precision, 300), "r2") > 0.9);
  }
}

TEST_CASE("recompute gives the same weights") {
  const TemporaryFolder folder;
  const auto base = "data = '" + points(folder) + "'\ntarget = 'class'\ndropout = 0.2\n";
  const auto digest = [&](const char* more) {
    SmallRun run(config(base + more, 20));
    run.train();
    return run.digest();
  };
  CHECK(digest("recompute = 'full'\n") == digest(""));
  CHECK(digest("recompute = 'selective'\nworkers = 0\n") == digest(""));
}

TEST_CASE("tabular predicts for a file without targets, also of categories that training has not seen") {
  const TemporaryFolder folder;
  LoadedTask loaded("tabular", {{"data", value(flats(folder))}, {"target", value("rent")}});
  auto& task = dynamic_cast<vernier::SupervisedTask&>(*loaded.task);
  loaded.run.model->eval();
  const auto predict = [&](const std::string& csv) {
    auto loader = task.loader_of(predictor(task).read_inputs(folder.write("new.csv", csv)));
    return predictor(task).predict(loader.next());
  };
  const auto columns = predict("year,floor,rooms,area,district\n1990,2,3,70,mill\n1990,2,3,70,moon\n");
  REQUIRE(columns.size() == 1);
  CHECK(columns[0].name == "rent");
  CHECK(columns[0].numbers.numel() == 2);
  CHECK(columns[0].numbers.isfinite().all().item<bool>());
  const auto embedding = loaded.run.model->named_parameters()["embeddings.0.weight"];
  CHECK(embedding[-1].eq(0).all().item<bool>());  // the row for "moon", a new word
  CHECK(embedding.narrow(0, 0, embedding.size(0) - 1).ne(0).all().item<bool>());
  const auto other_order = predict("district,area,rooms,floor,year\nmill,70,3,2,1990\n");
  CHECK(other_order[0].numbers[0].item<float>() == columns[0].numbers[0].item<float>());
  CHECK(says(thrown_by([&] { predict("district,area,rooms,floor\nmill,70,3,2\n"); }).text, "year"));

  LoadedTask classes("tabular", {{"data", value(points(folder))}, {"target", value("class")}});
  auto& classifier = dynamic_cast<vernier::SupervisedTask&>(*classes.task);
  auto loader = classifier.loader_of(predictor(classifier).read_inputs(folder.write("xy.csv", "x,y\n0.5,0.5\n")));
  const auto answer = predictor(classifier).predict(loader.next());
  CHECK(answer.at(0).labels == std::vector<std::string>{"other", "same"});
  CHECK(answer.at(1).name == "probability");
  CHECK(answer.at(1).numbers.item<float>() >= 0.5F);
  CHECK(answer.at(2).on_request);
  CHECK(answer.at(3).name == "probability_same");
  CHECK((answer.at(2).numbers + answer.at(3).numbers).item<float>() == doctest::Approx(1));

  const auto named = folder.write("named.csv", "x,probability\n1,low\n2,high\n3,low\n");
  LoadedTask same("tabular", {{"data", value(named)}, {"target", value("probability")}});
  auto& of_same = dynamic_cast<vernier::SupervisedTask&>(*same.task);
  const auto both = predictor(of_same).predict(of_same.example(1));
  CHECK(both.at(0).name == "probability");
  CHECK(both.at(1).name == "class_probability");
  CHECK(both.at(2).name == "class_probability_high");
}

TEST_CASE("tabular: class_weights makes the loss of each class count the same, in any micro-batches") {
  const TemporaryFolder folder;
  const auto data = folder.write("few.csv", "x,y\n1,few\n2,few\n3,many\n4,many\n5,many\n6,many\n7,many\n8,many\n");
  const LoadedTask task("tabular", {{"data", value(data)},
                                    {"target", value("y")},
                                    {"validation_share", value(0)},
                                    {"class_weights", value("balanced")},
                                    {"order", value("sequential")}});
  const torch::NoGradGuard no_grad;
  const auto batch = task->next();
  const auto logits = dynamic_cast<vernier::SupervisedTask&>(*task.task).forward(batch).log_softmax(1);
  const auto losses = -logits.gather(1, batch.tensors[1].unsqueeze(1)).squeeze(1);
  const auto few = losses.narrow(0, 0, 2).mean(), many = losses.narrow(0, 2, 6).mean();
  CHECK(task->loss(batch).item<double>() == doctest::Approx(((few + many) / 2).item<double>()));
}

TEST_CASE("tabular makes classes of labels with gaps, and keeps their numbers") {
  const TemporaryFolder folder;
  const auto x = folder.write("x.npy", npy<float>("<f4", "(4, 1)", {1, 2, 3, 4}));
  const auto y = folder.write("y.npy", npy<std::int64_t>("<i8", "(4,)", {90000, 100, 200, 100}));
  const LoadedTask task(
      "tabular",
      {{"data", value(x)}, {"targets", value(y)}, {"kind", value("classification")}, {"validation_share", value(0)}});
  CHECK(task->next().tensors[1].max().item<int>() == 2);
  auto& supervised = dynamic_cast<vernier::SupervisedTask&>(*task.task);
  CHECK(predictor(supervised).predict(supervised.example(1)).at(0).labels ==
        std::vector<std::string>{"100", "200", "90000"});
}

TEST_CASE("tabular takes unsigned labels of NumPy") {
  const TemporaryFolder folder;
  const auto x = folder.write("x.npy", npy<float>("<f4", "(4, 1)", {1, 2, 3, 4}));
  const auto y = folder.write("y.npy", npy<std::uint16_t>("<u2", "(4,)", {0, 2, 1, 0}));
  const Table table = {
      {"data", value(x)}, {"targets", value(y)}, {"kind", value("classification")}, {"validation_share", value(0)}};
  const LoadedTask task("tabular", table);
  const auto batch = task->next();
  CHECK((batch.tensors[1].scalar_type() == torch::kInt64));
  CHECK(batch.tensors[1].max().item<int>() == 2);
}

TEST_CASE("tabular reads NumPy arrays, whole numbers as classes") {
  const TemporaryFolder folder;
  std::vector<float> numbers;
  std::vector<std::int64_t> targets;
  for (int i = 0; i < 200; ++i) {
    numbers.push_back(static_cast<float>(std::sin(i)));
    targets.push_back(numbers.back() > 0 ? 1 : 0);
  }
  const auto data = folder.write("x.npy", npy("<f4", "(200, 1)", numbers));
  const auto classes = folder.write("y.npy", npy("<i8", "(200,)", targets));
  CHECK(metric_after(config("data = '" + data + "'\ntargets = '" + classes + "'", 200), "accuracy") > 0.95);
  const auto reals = folder.write("z.npy", npy("<f4", "(200,)", numbers));
  CHECK(metric_after(config("data = '" + data + "'\ntargets = '" + reals + "'", 200), "r2") > 0.95);
}

TEST_CASE("tabular names a column of an array that is constant") {
  const TemporaryFolder folder;
  const auto x = folder.write("x.npy", npy<float>("<f4", "(4, 2)", {1, 7, 2, 7, 3, 7, 4, 7}));
  const auto y = folder.write("y.npy", npy<std::int64_t>("<i8", "(4,)", {0, 1, 1, 0}));
  const LogLines log;
  const LoadedTask task("tabular", {{"data", value(x)}, {"targets", value(y)}, {"validation_share", value(0)}});
  CHECK(LogLines::count("column 1 is always 7, so nothing is learned from it") == 1);
}

TEST_CASE("wrong tables and options are one line with their place") {
  const TemporaryFolder folder;
  const auto data = flats(folder, 50), few = folder.write("few.csv", "a,b\n1,x\n2,x\n");
  const auto x = folder.write("x.npy", npy<float>("<f4", "(2, 1)", {1, 2}));
  const auto nan = folder.write("nan.npy", npy<float>("<f4", "(2, 1)", {1, NAN}));
  const auto y = folder.write("y.npy", npy<std::int64_t>("<i8", "(2,)", {0, -1}));
  const auto halves = folder.write("halves.npy", npy<float>("<f4", "(2,)", {0.5, 1.5}));
  const auto no_number = folder.write("no_number.npy", npy<float>("<f4", "(2,)", {1, NAN}));
  const auto long_y = folder.write("long.npy", npy<std::int64_t>("<i8", "(3,)", {0, 1, 0}));
  struct Case {
    Table table;
    const char* says;
  };
  const Case cases[] = {
      {{{"data", value(data)}}, "`target` is missing: name a column"},
      {{{"data", value(data)}, {"target", value("price")}}, "price"},
      {{{"data", value(data)}, {"target", value("rent")}, {"metrics", list<const char*>({"acuracy"})}},
       "did you mean accuracy?"},
      {{{"data", value(data)}, {"target", value("rent")}, {"balanced", value(true)}}, "`balanced` is for classes"},
      {{{"data", value(data)}, {"target", value("rent")}, {"residual", value(true)}, {"hidden", list<int>({3, 4})}},
       "must have equal widths"},
      {{{"data", value(data)},
        {"target", value("rent")},
        {"validation", value(data)},
        {"validation_share", value(0.2)}},
       "`validation_share` has no effect with `validation`; leave one of them out"},
      {{{"data", value(data)}, {"target", value("rent")}, {"validation", value(data)}, {"split", value("last")}},
       "`split` has no effect with `validation`; leave one of them out"},
      {{{"data", value(points(folder))},
        {"target", value("class")},
        {"balanced", value(true)},
        {"order", value("sequential")}},
       "weights, such as those of `balanced`, draw the samples at random; leave `order` out"},
      {{{"data", value(few)}, {"target", value("b")}}, "a classification needs at least 2"},
      {{{"data", value(folder.write("bad.csv", "a,b\n1,2\nlarge,3\n"))}, {"target", value("b")}}, "bad.csv"},
      {{{"data", value(folder.write("empty.csv", ""))}, {"target", value("b")}}, "empty.csv"},
      {{{"data", value(x)}}, "`targets` is missing"},
      {{{"data", value(x)}, {"targets", value(halves)}, {"kind", value("classification")}},
       "halves.npy' has the label 0.5 in row 0; labels are whole numbers"},
      {{{"data", value(x)}, {"targets", value(no_number)}}, "no_number.npy' has a NaN or infinite number in row 1"},
      {{{"data", value(folder.write("alone.csv", "b\n1\n2\n"))}, {"target", value("b")}},
       "there is no column to learn from but the target"},
      {{{"data", value(data)}, {"target", value("rent")}, {"metrics", list<const char*>({"accuracy"})}},
       "`metrics` has \"accuracy\", which is for classes, and the task predicts numbers"},
      {{{"data", value(data)}, {"target", value("district")}, {"metrics", list<const char*>({"mae"})}},
       "`metrics` has \"mae\", which is for numbers, and the task predicts classes"},
      {{{"data", value(data)}, {"target", value("district")}, {"metrics", list<const char*>({"auc"})}},
       "`metrics` has \"auc\", which is for two classes, and the task has "},
      {{{"data", value(nan)}, {"targets", value(y)}}, "a number that is not finite in row 1"},
      {{{"data", value(x)}, {"targets", value(long_y)}}, "a target for each row"},
      {{{"data", value(y)}, {"targets", value(y)}}, "wanted is [rows, columns]"},
  };
  for (const auto& [table, text] : cases) {
    const auto error = thrown_by([&] { LoadedTask("tabular", table); });
    CAPTURE(error);
    CHECK(error.kind == 2);
    CHECK(says(error.text, text));
    CHECK_FALSE(says(error.text, "\n"));
  }
}

TEST_CASE("the Python form gives the same outputs, of tensors and of rows by name") {
  if (!has_python("torch")) {
    MESSAGE("skipped: there is no python3 with torch");
    return;
  }
  const TemporaryFolder folder;
  for (const bool residual : {false, true}) {
    Table table = {{"data", value(flats(folder, 100))}, {"target", value("rent")}, {"residual", value(residual)}};
    LoadedTask loaded("tabular", table);
    auto& task = dynamic_cast<vernier::SupervisedTask&>(*loaded.task);
    loaded.run.model->eval();
    const auto batch = task.example(5);
    const torch::NoGradGuard no_grad;
    folder.write("model.py", predictor(task).python_model());
    vernier::save_safetensors(folder / "model.safetensors", vernier::model_tensors(*loaded.run.model));
    const auto rows = "year,floor,rooms,area,district\n1990,2,3,70,mill\n1990,2,3,70,moon\n";
    auto loader = task.loader_of(predictor(task).read_inputs(folder.write("new.csv", rows)));
    vernier::save_safetensors(folder / "batch.safetensors", {{"numbers", batch.tensors[0]},
                                                             {"categories", batch.tensors[1]},
                                                             {"expected", task.forward(batch)},
                                                             {"of_rows", task.forward(loader.next())}});
    folder.write("check.py", R"(
import csv, model
b = model.read_safetensors("batch.safetensors")
y = model.load()(b["numbers"], b["categories"])
assert y.shape == b["expected"].shape and (y - b["expected"]).abs().max() < 1e-2, (y, b)
rents = model.load_model()(list(csv.DictReader(open("new.csv"))))
assert all(abs(a - b) < 1e-2 for a, b in zip(rents, b["of_rows"].tolist())), (rents, b)
)");
    std::string out;
    const int status = python("check.py", folder.path(), out);
    CHECK_MESSAGE(status == 0, out);
  }
}

TEST_CASE("the Python form reads dates, missing values and classes as training does") {
  if (!has_python("torch")) {
    MESSAGE("skipped: there is no python3 with torch");
    return;
  }
  const TemporaryFolder folder;
  std::string text = "at,price,colour,y\n";
  for (int i = 0; i < 40; ++i) {
    text += std::to_string(1 + i % 28) + ".3.2024 12:" + std::to_string(10 + i) + ",$" + std::to_string(i * 7 % 11) +
            (i % 2 == 0 ? ",red,no\n" : ",,yes\n");
  }
  const auto types = from_toml({"types = {price = 'number'}\nmissing = 'mean'"});
  Table table = {{"data", value(folder.write("a.csv", text))}, {"target", value("y")}};
  table.insert(types.begin(), types.end());
  LoadedTask loaded("tabular", table);
  auto& task = dynamic_cast<vernier::SupervisedTask&>(*loaded.task);
  loaded.run.model->eval();
  const torch::NoGradGuard no_grad;
  folder.write("model.py", predictor(task).python_model());
  vernier::save_safetensors(folder / "model.safetensors", vernier::model_tensors(*loaded.run.model));
  auto loader = task.loader_of(predictor(task).read_inputs(folder / "a.csv"));
  vernier::save_safetensors(folder / "batch.safetensors", {{"expected", task.forward(loader.next()).softmax(1)}});
  folder.write("check.py", R"(
import csv, model
expected = model.read_safetensors("batch.safetensors")["expected"]
rows = list(csv.DictReader(open("a.csv")))[:len(expected)]
for row, right in zip(model.load_model().probabilities(rows), expected.tolist()):
    assert list(row) == ["no", "yes"] and abs(row["no"] - right[0]) < 1e-4, (row, right)
assert set(model.load_model()(rows)) <= {"no", "yes"}
)");
  std::string out;
  const int status = python("check.py", folder.path(), out);
  CHECK_MESSAGE(status == 0, out);
}

}  // namespace tabular_test
