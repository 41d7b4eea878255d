// The configurations of the ready tasks, with the data that our scripts write: their results are better than guessing.
#include <doctest/doctest.h>
#include <torch/script.h>
#include <vernier/data/csv.h>

#include <map>

#include "python.h"
#include "small_run.h"

namespace ready_tasks_test {

namespace {

const std::string source = VERNIER_SOURCE_DIR;

// Writes the data as the head of the configuration says, in the folder.
void make(const TemporaryFolder& folder, const std::string& command) {
  std::filesystem::create_directories(folder / "data");
  std::string out;
  const int status = python(source + "/" + command, folder.path(), out);
  REQUIRE_MESSAGE(status == 0, out);
}

// The metrics of the last validation of a run of the configuration, whose data/ is in the folder.
std::map<std::string, double> result_of(const TemporaryFolder& folder, const std::string& name) {
  auto text = read_text(source + "/configs/" + name + ".toml");
  for (auto at = text.find("\"data/"); at != std::string::npos; at = text.find("\"data/", at + 1)) {
    text.insert(at + 1, folder.path().string() + "/");
  }
  auto config = from_toml({text});
  config.erase("monitor");
  const TemporaryFolder output;
  SmallRun run(config, output.path().string());
  std::map<std::string, double> last;
  run.on(vernier::Event::Validated, [&last](vernier::Run& now) {
    for (const auto* entry : now.metrics.set_now()) last[entry->name] = entry->value();
  });
  run.train();
  return last;
}

// The mean squared error of a forecast of six hours that repeats the last value, in units of each column's deviation.
// It is over the last tenth of the rows, as in the configuration.
double loss_of_repeating(const torch::Tensor& rows) {
  const auto held_out = rows.size(0) / 10, training = rows.size(0) - held_out;
  const auto deviation = rows.narrow(0, 0, training).std(0, /*unbiased=*/false);
  torch::Tensor sum = torch::zeros({});
  for (std::int64_t first = training; first + 6 <= rows.size(0); ++first) {
    sum += ((rows.narrow(0, first, 6) - rows[first - 1]) / deviation).square().mean();
  }
  return sum.item<double>() / static_cast<double>(held_out - 5);
}

// A table of 60 rows: a number, a text, and whether the number is above 29.
std::string rows() {
  std::string text = "a,words,high\n";
  for (int i = 0; i < 60; ++i) text += c10::str(i, i > 29 ? ",a long word,yes\n" : ",some other words,no\n");
  return text;
}

}  // namespace

TEST_CASE("every task is validated after each epoch by default, and as if the default were written out") {
  const TemporaryFolder folder;
  const auto file = folder.write("rows.csv", rows()), data = "data = '" + file + "'\n";
  const auto text = "use = 'gpt'\nlayers = 1\nheads = 2\nwidth = 8\ncontext = 4\nsample_bytes = 0\n" + data;
  const auto table = "use = 'tabular'\ntarget = 'high'\nhidden = [4]\n" + data;
  for (const auto& [task, holds_out] : std::vector<std::pair<std::string, bool>>{
           {"use = 'mlp'\nsamples = 40\n", true},
           {"use = 'mlp'\nsamples = 40\nvalidation = 0\n", false},
           {text, true},
           {text + "validation = 0\n", false},
           {table, true},
           {table + "validation_share = 0\n", false},
           {"use = 'sequence'\nkind = 'forecast'\ncontext = 4\nhorizon = 2\nwidth = 4\ndata = '" + file + ":a'\n",
            true},
           {"use = 'text'\ntext = ['words']\ntarget = 'high'\n" + data, true}}) {
    CAPTURE(task);
    for (const std::string every : {"", "validate_every = 'epoch'\n"}) {
      SmallRun run(
          from_toml({"[run]\nepochs = 3\n" + every + "[optimizer]\nuse = 'sgd'\n[task]\nbatch_size = 8\n" + task}));
      const auto batches = run.wiring->task->batches_per_epoch();
      std::vector<std::int64_t> after;
      run.on(vernier::Event::Validated, [&after](vernier::Run& now) { after.push_back(now.step); });
      run.train();
      CHECK(after == (holds_out ? std::vector{batches, 2 * batches, 3 * batches} : std::vector<std::int64_t>()));
    }
  }
}

TEST_CASE("configs/images.toml tells three shapes apart") {
  const TemporaryFolder folder;
  make(folder, "examples/data/shapes.py data/shapes");
  const auto result = result_of(folder, "images");
  CHECK(result.at("accuracy") > 0.85);  // guessing: 0.33
  CHECK(result.at("validation_loss") < 0.5);
}

TEST_CASE("configs/clips.toml tells four directions of a motion apart") {
  const TemporaryFolder folder;
  make(folder, "examples/data/clips.py data/clips");
  CHECK(result_of(folder, "clips").at("accuracy") > 0.9);  // guessing, and by single frames: 0.25
}

TEST_CASE("configs/sequence.toml forecasts better than the last value and the mean") {
  const TemporaryFolder folder;
  make(folder, "examples/data/waves.py data/waves.csv");
  const auto repeating = loss_of_repeating(vernier::read_csv(folder / "data/waves.csv").numbers);
  const auto result = result_of(folder, "sequence");
  CHECK(repeating > 0.3);
  CHECK(result.at("validation_loss") < repeating / 3);
  CHECK(result.at("validation_loss") < 0.3);  // the mean: about 1
  CHECK(result.at("r2") > 0.9);
}

TEST_CASE("configs/text.toml finds misleading advertisements") {
  const TemporaryFolder folder;
  make(folder, "examples/data/texts.py data/texts");
  const auto result = result_of(folder, "text");
  CHECK(result.at("accuracy") > 0.95);  // guessing: 0.75
  CHECK(result.at("auc") > 0.98);
}

TEST_CASE("configs/graph.toml tells three spirals apart with the model that export.py writes" *
          doctest::skip(!has_python("torch"))) {
  const TemporaryFolder folder;
  make(folder, "examples/data/spirals.py data/spirals.csv");
  make(folder, "plugins/task/graph/export.py data/spirals.pt2");
  CHECK(result_of(folder, "graph").at("accuracy") > 0.85);  // guessing: 0.33
}

TEST_CASE("configs/script.toml tells three spirals apart with the model that export.py writes" *
          doctest::skip(!has_python("torch"))) {
  const TemporaryFolder folder;
  make(folder, "examples/data/spirals.py data/spirals.csv");
  make(folder, "plugins/task/script/export.py data/spirals.pt");
  const auto result = result_of(folder, "script");
  CHECK(result.at("accuracy") > 0.85);  // guessing: 0.33
  CHECK(result.at("f1") > 0.85);
}

}  // namespace ready_tasks_test
