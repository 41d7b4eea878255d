#include <doctest/doctest.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <sstream>

#include "run_folder.h"
#include "thrown.h"

// A model is used where its training data are not.
namespace whole_model_test {

namespace {

constexpr const char* frame = R"(
[run]
steps = 20
output = "out"
threads = 1
[optimizer]
use = "adamw"
learning_rate = 1e-2
[task]
validation_share = 0.2
batch_size = 8
)";

// y = words of the sum, z = 2 a + b, in 60 rows; b has the whole numbers 0 to 2, c the words of it.
std::string table(int rows, int from = 0) {
  std::ostringstream text;
  text << "a,b,c,y,z,id\n";
  const char* words[] = {"ant", "bee", "cat"};
  for (int i = from; i < from + rows; ++i) {
    const double a = std::sin(i * 1.7);
    text << a << ',' << i % 3 << ',' << words[i % 3] << ',' << (a > 0 ? "up" : "down") << ',' << 2 * a + i % 3 << ','
         << (i % 3 == 0   ? 100
             : i % 3 == 1 ? 200
                          : 90000)
         << '\n';
  }
  return text.str();
}

void write_models(const TemporaryFolder& folder) {
  torch::jit::Module linear("__torch__.Linear");
  linear.register_parameter("weight", torch::full({2, 3}, 0.1).set_requires_grad(true), false);
  linear.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  linear.save(folder / "linear.pt");
  torch::jit::Module pair("__torch__.Pair");
  pair.register_parameter("weight", torch::ones({1}).set_requires_grad(true), false);
  pair.register_parameter("table", torch::arange(3).to(torch::kFloat32).set_requires_grad(true), false);
  pair.define("def forward(self, x, c):\n  return x * self.weight + torch.embedding(self.table[:, None], c)[:, 0]\n");
  pair.save(folder / "pair.pt");
}

struct Case {
  const char* name;
  std::string task;
  std::vector<std::string> input,
      evaluate;           // the input of predict; the settings with which evaluate reads another file
  std::string held_out;   // the same as a file that is held out
  const char* described;  // in the JSON
};

const Case cases[] = {
    {"classification",
     "use = 'sequence'\nkind = 'classification'\ndata = 'data.csv:a,b'\ntargets = 'data.csv:y'\nwidth = 8\n",
     {"--input", "new.csv"},
     {"--set", "task.data=other.csv"},
     "task.validation=other.csv",
     R"("classes": [
      "down",
      "up"
    ])"},
    {"numbered",
     "use = 'sequence'\nkind = 'classification'\ndata = 'data.csv:a,b'\ntargets = 'data.csv:id'\nwidth = 8\n",
     {"--input", "new.csv"},
     {"--set", "task.data=other.csv"},
     "task.validation=other.csv",
     "\"90000\""},
    {"regression",
     "use = 'sequence'\nkind = 'regression'\ndata = 'data.csv:a,b'\ntargets = 'data.csv:z'\nwidth = 8\n",
     {"--input", "new.csv"},
     {"--set", "task.data=other.csv"},
     "task.validation=other.csv",
     "in the units of the targets"},
    {"forecast",
     "use = 'sequence'\nkind = 'forecast'\ndata = 'data.csv:a,b'\noutputs = [1]\ncontext = 4\nhorizon = 2\nwidth = 8\n",
     {"--input", "new.csv"},
     {"--set", "task.data=other.csv"},
     "task.validation=other.csv",
     R"("features": [
      "b"
    ])"},
    {"text",
     "use = 'text'\ndata = 'data.csv'\ntext = ['c']\ntarget = 'y'\nwidth = 8\n",
     {"--input", "new.csv"},
     {"--set", "task.data=other.csv"},
     "task.validation=other.csv",
     R"("classes": [
    "down",
    "up"
  ])"},
    {"script",
     "use = 'script'\nmodel = 'linear.pt'\ninputs = ['data.csv:a,b']\ntarget = 'data.csv:y'\n",
     {"--input", "new.csv"},
     {"--set", "task.inputs=[\"other.csv\"]"},
     "task.validation_inputs=[\"other.csv\"]",
     "\"logits\""},
    {"script of words",
     "use = 'script'\nmodel = 'pair.pt'\ninputs = ['data.csv:a', 'data.csv:c']\ntarget = 'data.csv:z'\nloss = 'mse'\n",
     {"--input", "new.csv"},
     {"--set", "task.inputs=[\"other.csv\"]"},
     "task.validation_inputs=[\"other.csv\"]",
     R"("words": [
        "ant",
        "bee",
        "cat"
      ])"},
    {"script of whole numbers",
     "use = 'script'\nmodel = 'pair.pt'\ninputs = ['data.csv:a', 'data.csv:b']\ntarget = 'data.csv:z'\nloss = 'mse'\n",
     {"--input", "new.csv:a", "--input", "new.csv:b"},
     {"--set", "task.inputs=[\"other.csv\"]"},
     "task.validation_inputs=[\"other.csv\"]",
     "\"int64\""},
};

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void check_exports(RunFolder& empty, const Case& each) {
  std::filesystem::create_directories(empty.at("no/folder"));
  REQUIRE_MESSAGE(empty.call({"export", "out", "--format", "torchscript", "--output", "no/folder/m.pt"}) == 0,
                  empty.err);
  const auto beside = read_text(empty.at("no/folder/m.pt.json"));
  CHECK_MESSAGE(says(beside, each.described), beside);
  auto script = torch::jit::load(empty.at("no/folder/m.pt").string());
  CHECK(script.get_method("describe")({}).toStringRef() + '\n' == beside);
  CHECK(empty.call({"export", "out", "--format", "safetensors", "--output", "n.safetensors"}) == 0);
  CHECK(read_text(empty.at("n.safetensors.json")) == beside);
  if (says(each.task, "script")) return;
  CHECK(empty.call({"export", "out", "--format", "python", "--output", "python"}) == 0);
  CHECK(read_text(empty.at("python/description.json")) == beside);
  CHECK(says(read_text(empty.at("python/model.py")), "\ndef describe():\n"));
}

// The same for every task.
void check_files_beside(RunFolder& empty) {
  empty.folder.write("no/folder/m.safetensors.json", "of another model");
  CHECK(empty.call({"export", "out", "--format", "safetensors", "--output", "no/folder/m.safetensors"}) == 2);
  CHECK(says(empty.err, "no/folder/m.safetensors.json: is there already; name another file"));
  CHECK_FALSE(std::filesystem::exists(empty.at("no/folder/m.safetensors")));
  CHECK(empty.call({"export", "out", "--format", "safetensors", "--output", "no/folder/m.pt2"}) == 0);
}

// Every task of classes writes the probability of the likeliest, and on request that of each, by one spelling.
void check_probabilities(RunFolder& empty, const Case& each) {
  const auto head = [&](const std::string& file) {
    const auto text = read_text(empty.at(file));
    return text.substr(0, text.find('\n'));
  };
  const bool of_classes = head("p.csv") == (says(each.task, "use = 'text'") ? "y,probability" : "class,probability");
  const int code = empty.call(joined({"predict", "out", "--output", "all.csv", "--probabilities"}, each.input));
  CHECK_MESSAGE(code == (of_classes ? 0 : 2), empty.err);
  if (!of_classes) {
    CHECK_MESSAGE(says(empty.err, "predicts numbers here"), empty.err);
    return;
  }
  const std::string names[] = {",probability_down,probability_up", ",probability_0,probability_1",
                               ",probability_100,probability_200,probability_90000"};
  CHECK_MESSAGE(std::ranges::any_of(names, [&](const auto& more) { return head("all.csv") == head("p.csv") + more; }),
                head("all.csv"));
}

}  // namespace

TEST_CASE("a trained model predicts, is evaluated and exported in a folder without its data") {
  for (const auto& each : cases) {
    CAPTURE(each.name);
    RunFolder home(std::string(frame) + each.task);
    write_models(home.folder);
    for (const auto* folder : {&home.folder}) {
      folder->write("data.csv", table(60));
      folder->write("new.csv", table(12, 60));
      folder->write("other.csv", table(40, 60));
    }
    REQUIRE_MESSAGE(home.train({"--quiet"}) == 0, home.err);
    REQUIRE_MESSAGE(home.call(joined({"predict", "out", "--force", "--output", "p.csv"}, each.input)) == 0, home.err);
    REQUIRE_MESSAGE(home.call({"evaluate", "out"}) == 0, home.err);
    REQUIRE_MESSAGE(home.call(joined({"evaluate", "out"}, each.evaluate)) == 0, home.err);
    const auto on_other = home.out;

    RunFolder empty("");
    std::filesystem::rename(home.at("out"), empty.at("out"));
    empty.folder.write("new.csv", table(12, 60));
    empty.folder.write("other.csv", table(40, 60));
    REQUIRE_MESSAGE(empty.call(joined({"predict", "out", "--force", "--output", "p.csv"}, each.input)) == 0, empty.err);
    CHECK(read_text(empty.at("p.csv")) == read_text(home.at("p.csv")));
    check_probabilities(empty, each);
    REQUIRE_MESSAGE(empty.call(joined({"evaluate", "out"}, each.evaluate)) == 0, empty.err);
    CHECK(empty.out == on_other);
    REQUIRE_MESSAGE(empty.call({"evaluate", "out", "--set", each.held_out}) == 0, empty.err);
    CHECK(empty.out == on_other);
    CHECK(empty.call({"evaluate", "out"}) == 2);
    CHECK_MESSAGE(says(empty.err, "'data.csv' is not here; name "), empty.err);
    CHECK(is_one_line(empty.err));
    check_exports(empty, each);
    if (&each == cases) check_files_beside(empty);
  }
}

// A batch of one sample loses its dimension in squeeze().
TEST_CASE("predict writes a row of the same columns for each sample, or refuses the batch that has another form") {
  for (const auto& [loss, target, is_right] :
       {std::tuple("cross_entropy", "y", false), {"bce", "bits", true}, {"mse", "numbers", true}}) {
    CAPTURE(loss);
    RunFolder run(std::string(frame) + "use = 'script'\nmodel = 'm.pt'\ninputs = ['d.safetensors:x']\n" +
                  "target = 'd.safetensors:" + target + "'\nloss = '" + loss + "'\n");
    torch::jit::Module squeezed("__torch__.Squeezed");
    squeezed.register_parameter("weight", torch::full({2, 3}, 0.1).set_requires_grad(true), false);
    squeezed.define("def forward(self, x):\n  return torch.matmul(x, self.weight).squeeze()\n");
    squeezed.save(run.at("m.pt"));
    const auto x = torch::randn({40, 2}), three = torch::randn({40, 3});
    vernier::save_safetensors(run.at("d.safetensors"),
                              {{"x", x},
                               {"y", torch::arange(40) % 3},
                               {"bits", (three > 0).to(torch::kFloat32)},
                               {"numbers", three},
                               {"some", x.narrow(0, 0, 17).contiguous()}},
                              {});
    REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
    const int code = run.call({"predict", "out", "--input", "d.safetensors:some", "--output", "p.csv"});
    CHECK_MESSAGE(code == (is_right ? 0 : 2), run.err);
    if (is_right) {
      CHECK(says(run.out, "p.csv: 17 rows"));
      std::istringstream lines(read_text(run.at("p.csv")));
      for (std::string line; std::getline(lines, line);) CHECK(std::ranges::count(line, ',') == 2);
    } else {
      CHECK_MESSAGE(says(run.err, "the model returns [3] for a batch of 1 sample, and classes need [samples, 3]"),
                    run.err);
      CHECK_FALSE(std::filesystem::exists(run.at("p.csv")));
    }
  }
}

TEST_CASE("several labels have a table of their own, and metrics of each label") {
  RunFolder run(std::string(frame) +
                "use = 'script'\nmodel = 'linear.pt'\ninputs = ['d.csv:a,b']\n"
                "target = 'd.csv:cats,dogs,none'\nloss = 'bce'\n"
                "metrics = ['accuracy', 'subset_accuracy', 'f1', 'auc']\n");
  write_models(run.folder);
  std::string rows = "a,b,cats,dogs,none\n";
  for (int i = 0; i < 60; ++i) {
    const double a = std::sin(i * 1.7), b = std::cos(i * 2.9);
    rows += std::to_string(a) + ',' + std::to_string(b) + (a > 0 ? ",1" : ",0") + (b > 0.3 ? ",1,0\n" : ",0,0\n");
  }
  run.folder.write("d.csv", rows);
  run.folder.write("new.csv", "a,b\n1,1\n-1,-1\n");
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  REQUIRE_MESSAGE(run.call({"evaluate", "out"}) == 0, run.err);
  CHECK_MESSAGE(says(run.out, "shares of the labels"), run.out);
  CHECK_MESSAGE(says(run.out, "label  precision"), run.out);
  CHECK_MESSAGE(says(run.out, "auc is not defined where all targets of a label are the same: 'none'"), run.out);
  REQUIRE_MESSAGE(run.call({"predict", "out", "--input", "new.csv", "--output", "p.csv"}) == 0, run.err);
  CHECK(read_text(run.at("p.csv")).starts_with("probability_cats,probability_dogs,probability_none\n"));
}

// In training mode batch normalisation refuses the one sample of which the names of the classes are read.
TEST_CASE("a graph with batch normalisation is evaluated with its table of classes") {
  RunFolder run(std::string(frame) + "use = 'graph'\nmodel = '" VERNIER_SOURCE_DIR
                                     "/tests/plugins/task/graphs/frozen.pt2'\ninputs = ['data.safetensors:x']\n"
                                     "target = 'data.safetensors:y'\n");
  vernier::save_safetensors(run.at("data.safetensors"),
                            {{"x", torch::randn({40, 2, 6, 6})}, {"y", torch::arange(40).remainder(3)}}, {});
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  CHECK(run.call({"evaluate", "out"}) == 0);
  CHECK_MESSAGE(says(run.out, "class  precision"), run.out);
  CHECK(run.err.empty());
}

TEST_CASE("columns are found by name, and other words, orders and numbers of inputs are refused in one line") {
  const auto* words = std::ranges::find(cases, std::string("script of words"), &Case::name);
  RunFolder run(std::string(frame) + words->task);
  write_models(run.folder);
  run.folder.write("data.csv", table(60));
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  run.folder.write("turned.csv", "c,a\nbee,1\nant,2\n");
  run.folder.write("mars.csv", "c,a\nmars,1\n");
  const auto predict = [&](std::vector<std::string> inputs) {
    std::vector<std::string> words = {"predict", "out", "--output", "p.csv", "--force"};
    for (auto& input : inputs) words.insert(words.end(), {"--input", input});
    return run.call(words);
  };
  REQUIRE_MESSAGE(predict({"turned.csv"}) == 0, run.err);
  CHECK(says(run.out, "p.csv: 2 rows"));
  const struct {
    std::vector<std::string> inputs;
    const char* says;
  } refused[] = {
      {{"mars.csv"}, "mars"},
      {{"turned.csv:a"}, "the model takes 2 inputs, and 'turned.csv:a' is one"},
      {{"turned.csv", "turned.csv", "turned.csv"}, "the model takes 2 inputs, and 3 are given"},
      {{"turned.csv:c", "turned.csv:a"}, "has words, and the model learned from numbers"},
      {{"data.csv:a,b", "data.csv:c"}, "and the model learned from"},
  };
  for (const auto& [inputs, text] : refused) {
    CHECK(predict(inputs) == 2);
    CHECK_MESSAGE(says(run.err, text), run.err);
    CHECK(is_one_line(run.err));
  }
}

}  // namespace whole_model_test
