#include <c10/util/ScopeExit.h>
#include <doctest/doctest.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <vernier/data/images.h>
#include <vernier/data/numpy.h>
#include <vernier/model_adapter.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "common/own_runs.h"
#include "files/weights.h"
#include "limited_files.h"
#include "picture_folder.h"
#include "run/prepared.h"
#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"
#include "tools/evaluate/class_table.h"
#include "tools/model/trained_run.h"
#include "tools/predict/predictions.h"

// evaluate, predict and export, called as a person would.
namespace use_model_test {

using Column = vernier::Predictor::Column;

namespace {

const std::string configuration = R"(
[run]
steps = 60
output = "out"
[task]
use = "tabular"
data = "points.csv"
target = "class"
hidden = [16]
[optimizer]
use = "adamw"
learning_rate = 1e-2
)";

struct Points : RunFolder {
  explicit Points(const std::string& more = "", std::vector<std::string> sets = {}) : RunFolder(configuration + more) {
    std::ostringstream text, inputs;
    text << "x,y,class\n";
    inputs << "x,y\n";
    for (int i = 0; i < 80; ++i) {
      const double x = std::sin(i * 1.7), y = std::cos(i * 2.3);
      text << x << ',' << y << ',' << (x + y > 0 ? "up, or \"so\"" : "down") << '\n';
      inputs << x << ',' << y << '\n';
    }
    auto quoted = text.str();
    for (std::size_t at = 0; (at = quoted.find("up, or \"so\"", at)) != std::string::npos; at += 15) {
      quoted.replace(at, 11, "\"up, or \"\"so\"\"\"");
    }
    folder.write("points.csv", quoted);
    folder.write("new.csv", inputs.str());
    const bool is_usual = more.empty() && sets.empty();
    static std::optional<TemporaryFolder> usual;  // the run without options, which is trained once
    const auto copy = [](const std::filesystem::path& from, const std::filesystem::path& to) {
      using std::filesystem::copy_options;
      std::filesystem::copy(from, to, copy_options::recursive | copy_options::copy_symlinks);
    };
    if (is_usual && usual) {
      copy(usual->path() / "out", at("out"));
      return;
    }
    sets.emplace_back("--quiet");
    REQUIRE_MESSAGE(train(sets) == 0, err);
    if (is_usual) copy(at("out"), usual.emplace().path() / "out");
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string number_after(const std::string& text, const std::string& name) {
  std::istringstream in(text.substr(text.find(name) + name.size()));
  std::string number;
  in >> number;
  return number;
}

}  // namespace

TEST_CASE("evaluate prints what the run's last validation was, also with an average of the weights") {
  const std::string ema = "[[callback]]\nuse = 'ema'\ndecay = 0.9\n";
  const std::string averaged = "optimizer={use=\"asgd\",learning_rate=0.5,t0=2}";
  const std::string swaps = "[[callback]]\nuse = 'switch'\nat_step = 30\n[callback.to]\n";
  struct Case {
    std::string more;
    std::vector<std::string> sets = {};
    std::string average = {};
  };
  const std::vector<Case> cases = {
      {""},
      {ema, {}, ", with the average of callback/ema (--weights model: without)"},
      {ema + "validate = 'trained'\n"},
      {"[precision]\nuse = 'bf16'\nlevel = 'O2'\n"},
      {"", {"--set=" + averaged}, ", with the average of optimizer/asgd (--weights model: without)"},
      {ema, {"--set=" + averaged}, ", with the average of callback/ema (--weights model: without)"},
      {swaps + "precision = {use = 'bf16', level = 'O2'}\n"},
      {swaps + "precision = {use = 'fp16'}\nscaler = {use = 'dynamic', init_scale = 1024}\n"},
      {swaps + "optimizer = {use = 'asgd', learning_rate = 0.5, t0 = 2}\n",
       {},
       ", with the average of optimizer/asgd (--weights model: without)"},
  };
  for (const auto& [more, sets, average] : cases) {
    CAPTURE(more);
    CAPTURE(sets.size());
    Points points(more, sets);
    REQUIRE_MESSAGE(points.call({"evaluate", "out"}) == 0, points.err);
    CHECK_MESSAGE(points.out.starts_with("out after step 60" + average + ", on 8 samples\n"), points.out);
    const double before = points.summary()["validation_loss"]["final"].get<double>();
    CHECK(std::stod(number_after(points.out, "validation_loss")) == doctest::Approx(before).epsilon(1e-5));
    CHECK(std::stod(number_after(points.out, "accuracy")) > 0.8);
  }
}

TEST_CASE("evaluate takes other data, and writes into the run only what a report draws") {
  Points points;
  points.folder.write("others.csv", "x,y,class\n1,1,down\n-1,-1,\"up, or \"\"so\"\"\"\n");
  const auto before = read_text(points.at("out/log.txt"));
  REQUIRE(points.call({"evaluate", "out", "--set", "task.validation=others.csv"}) == 0);
  CHECK(number_after(points.out, "accuracy") == "0");
  CHECK(says(points.out, ", on 2 samples\n"));
  CHECK(read_text(points.at("out/log.txt")) == before);
  REQUIRE(points.call({"evaluate", "out", "--set", "task.data=others.csv"}) == 0);
  CHECK(says(points.out, ", on 2 samples\n"));
  const auto seen = nlohmann::json::parse(read_text(points.at("out/evaluation.json")));
  CHECK(seen["metrics"]["model"]["accuracy"] == 0);
  CHECK(seen["validation"][0]["confusion"] == nlohmann::json::parse("[[0, 1], [1, 0]]"));
}

TEST_CASE("evaluate takes the validation that is named, whatever became of the other data") {
  Points points;
  const auto few = [](int rows) {
    std::string text = "x,y,class\n";
    for (int i = 0; i < rows; ++i) text += "1,1,down\n";
    return text;
  };
  points.folder.write("two.csv", few(2));
  points.folder.write("three.csv", few(3));
  const auto text = read_text(points.at("points.csv"));
  REQUIRE_MESSAGE(
      points.train({"--quiet", "--set=run.steps=2", "--set=run.output=held", "--set=task.validation=two.csv"}) == 0,
      points.err);
  const struct {
    const char* run;
    std::vector<std::string> sets;
    int samples;
  } cases[] = {{"held", {}, 2},
               {"held", {"--set=task.validation=three.csv"}, 3},
               {"held", {"--set=task.data=three.csv"}, 3},
               {"out", {"--set=task.validation=three.csv"}, 3},
               {"out", {"--set=task.validation=three.csv", "--set=task.validation_share=0.2"}, 3},
               {"out", {"--set=task.validation=three.csv", "--set=task.split=last"}, 3}};
  for (const char* more : {"", "1,1,down\n"}) {
    points.folder.write("points.csv", text + more);
    for (const auto& [run, sets, samples] : cases) {
      std::vector<std::string> words = {"evaluate", run};
      words.insert(words.end(), sets.begin(), sets.end());
      CAPTURE(words.back());
      CHECK_MESSAGE(points.call(words) == 0, points.err);
      CHECK_MESSAGE(says(points.out, c10::str(", on ", samples, " samples\n")), points.out);
    }
    CHECK(points.call({"evaluate", "out", "--set=task.batch_size=8"}) == (*more == '\0' ? 0 : 2));
  }
  points.folder.write("two.csv", few(5));
  CHECK_MESSAGE(points.call({"evaluate", "held"}) == 0, points.err);
  CHECK_MESSAGE(says(points.out, ", on 5 samples\n"), points.out);
}

TEST_CASE("evaluate names the worst rows, and a report draws what it saw") {
  Points points;
  points.folder.write("others.csv", "x,y,class\n0.9,0.9,\"up, or \"\"so\"\"\"\n1,1,down\n-0.1,0,down\n");
  REQUIRE_MESSAGE(points.call({"evaluate", "out", "--worst", "2", "--set", "task.validation=others.csv"}) == 0,
                  points.err);
  const auto lines = lines_of(points.out);
  REQUIRE(lines.size() > 3);
  CHECK(lines[lines.size() - 3].starts_with("  worst samples"));
  CHECK(lines[lines.size() - 2].starts_with("  'others.csv' line 3"));
  CHECK(says(lines[lines.size() - 2], "down    up, or \"so\""));
  REQUIRE_MESSAGE(points.call({"report", "out"}) == 0, points.err);
  const auto page = read_text(points.at("report.html"));
  for (const char* part : {"Evaluation of ", "most frequent class", "'others.csv' line 3", "hits of each class, ROC",
                           "expected calibration error", "up, or &quot;so&quot;"}) {
    CHECK_MESSAGE(says(page, part), part);
  }
  points.folder.write("out/evaluation.json", R"({"step": 1, "metrics": {}, "validation": [{"name": 3}]})");
  CHECK(points.call({"report", "out", "--force"}) == 2);
  CHECK(says(points.err, "evaluation.json is damaged (type must be string, but is number); run `vernier evaluate`"));
}

TEST_CASE("folds: each row is held out once, and the metrics have an interval") {
  Points points;
  const std::vector<std::string> words = {"evaluate", "run.toml", "--folds", "3", "--set", "run.steps=20"};
  REQUIRE_MESSAGE(points.call(words) == 0, points.err);
  const auto lines = lines_of(points.out);
  REQUIRE(lines.size() > 4);
  CHECK(lines[1].find("mean") != std::string::npos);
  CHECK(lines[1].ends_with("fold 3"));
  CHECK(says(points.out, "\naccuracy "));
  CHECK(says(points.out, "over the folds the model is better than no model: \"most frequent class\" has the "));
  const auto first = points.out;
  REQUIRE(points.call(words) == 0);  // nothing is trained again
  CHECK(points.out == first);
  std::int64_t samples = 0;
  for (int fold = 1; fold <= 3; ++fold) {
    const auto run = "runs/run-folds/run/fold-" + std::to_string(fold) + "-of-3";
    REQUIRE_MESSAGE(points.call({"evaluate", run, "--mixed-precision=fp16"}) == 0, points.err);
    const auto seen = nlohmann::json::parse(read_text(points.at(run + "/evaluation.json")));
    for (const auto& row : seen["validation"][0]["confusion"]) {
      for (const auto& count : row) samples += count.get<std::int64_t>();
    }
  }
  CHECK(samples == 80);
  std::string noise = "a\n";
  for (int i = 0; i < 60; ++i) noise += std::to_string(i * i * 7 % 31) + "\n";
  points.folder.write("noise.csv", noise);
  points.folder.write("noise.toml",
                      "[run]\nsteps = 4\n[task]\nuse = \"sequence\"\nkind = \"forecast\"\ndata = \"noise.csv:a\"\n"
                      "context = 4\nwidth = 4\n[optimizer]\nuse = \"sgd\"\nlearning_rate = 9.0\n"
                      "[[callback]]\nuse = \"declares\"\npath = \"a\"\n");
  std::filesystem::create_directories(points.at("plugins/callback"));
  std::filesystem::copy_file(VERNIER_BINARY_DIR "/fixtures/plugins/callback/declares.so",
                             points.at("plugins/callback/declares.so"));
  CHECK_MESSAGE(
      points.call({"evaluate", "noise.toml", "--folds=3", "--output=of_noise", "--mixed-precision=fp16"}) == 0,
      points.err);
  CHECK_MESSAGE(says(points.out, "over the folds the model is not better than no model: \"mean\" has the "),
                points.out);
  const struct {
    std::vector<std::string> words;
    std::string says;
  } wrong[] = {
      {{"evaluate", "out", "--folds", "4"}, "--folds trains a TOML file: name one"},
      {{"evaluate", "run.toml", "--folds", "1"}, "--folds"},
      {{"evaluate", "run.toml", "--folds=3", "--output=a", "--set=task.validation=points.csv"},
       "a fold needs data of which a share is held out"},
      {{"evaluate", "run.toml", "--folds=3", "--trust"}, "--trust is for the files of a run, and --folds reads no run"},
      {{"compare", "run.toml", "--folds=3", "--seeds=4"}, "--folds takes the place of --seeds"}};
  for (const auto& [given, part] : wrong) {
    CHECK(points.call(given) == 2);
    CHECK_MESSAGE(says(points.err, part), points.err);
    CHECK(!says(points.err, "vernier: vernier:"));
  }
  // Runs of other data are not shown as if they were of these.
  points.folder.write("points.csv", read_text(points.at("points.csv")) + "1,1,down\n");
  CHECK(points.call(words) == 2);
  CHECK_MESSAGE(says(points.err, "data have changed since this run was saved: then "), points.err);
  CHECK(points.err.ends_with("; choose another --output, or remove runs/run-folds\n"));
}

// Expected values: scikit-learn 1.9.1, roc_auc_score of each class against the others; the calibration by its formula
// in NumPy.
TEST_CASE("classes: areas under the ROC and the calibration are those of scikit-learn") {
  const auto logits = (torch::arange(180, torch::kFloat64) * 1.7).sin().mul(2).round(1).reshape({60, 3});
  const auto number = torch::arange(60);
  const auto target = (number * 7 + number.div(5, "floor")).remainder(3);
  vernier::ClassTable table;
  for (int i = 0; i < 3; ++i) {
    table.update(logits.narrow(0, 20 * i, 20).to(torch::kFloat32), target.narrow(0, 20 * i, 20));
  }
  table.update(torch::zeros({1, 3}), torch::full({1}, -100, torch::kInt64));  // is left out
  const auto seen = table.json({"a", "b"});
  const double areas[] = {0.505787037, 0.436921296, 0.479166667};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(seen["roc"][i]["auc"].get<double>() == doctest::Approx(areas[i]).epsilon(1e-6));
    CHECK(seen["roc"][i]["points"].front() == nlohmann::json({0, 0}));
    CHECK(seen["roc"][i]["points"].back() == nlohmann::json({1, 1}));
  }
  CHECK(seen["classes"] == nlohmann::json({"a", "b", "2"}));
  CHECK(seen["ece"].get<double>() == doctest::Approx(0.46437353).epsilon(1e-6));
  REQUIRE(seen["reliability"].size() == 6);
  CHECK(seen["reliability"][3]["samples"] == 14);
  CHECK(seen["reliability"][3]["accuracy"].get<double>() == doctest::Approx(0.28571429));
  CHECK(says(table.text({}), "calibration: expected error 0.4644, the mean distance of accuracy and probability"));
}

TEST_CASE("classes: an output with a NaN is none, and is counted apart") {
  vernier::ClassTable table, none;
  const auto logits = torch::tensor({{1.0F, 0.0F}, {NAN, 0.0F}, {0.0F, 1.0F}});
  table.update(logits, torch::tensor({0, 0, 1}));
  const auto seen = table.json({"a", "b"});
  CHECK(seen["without_class"] == 1);
  CHECK(seen["confusion"] == nlohmann::json::parse("[[1, 0], [0, 1]]"));
  CHECK(seen["roc"][0]["auc"] == 1);
  CHECK(seen["reliability"][0]["samples"] == 2);
  CHECK(says(table.text({"a", "b"}), "\n  a              1     0.5  0.667        2        1\n"));
  CHECK(says(table.text({"a", "b"}), "  outputs that have a NaN, and so no class: 1; they count as wrong\n"));
  none.update(logits.slice(0, 1, 2), torch::tensor({0}));
  CHECK(none.json({})["reliability"].empty());
  CHECK(says(none.text({}), "no class: 1;"));
}

TEST_CASE("evaluate has baselines beside the metrics, and lists classes") {
  Points points;
  points.folder.write("others.csv", "x,y,class\n1,1,down\n-1,-1,\"up, or \"\"so\"\"\"\n-1,-0.9,down\n");
  REQUIRE_MESSAGE(points.call({"evaluate", "out", "--set", "task.validation=others.csv"}) == 0, points.err);
  const auto lines = lines_of(points.out);
  REQUIRE(lines.size() >= 12);
  CHECK(lines[1].find("model") == 27);
  CHECK(lines[1].ends_with("most frequent class"));
  CHECK(says(points.out,
             "  class        precision  recall   f1  support  roc auc\n"
             "  down               0.5     0.5  0.5        2  "));
  CHECK(says(points.out, "\n  up, or \"so\"          0       0    0        1  "));
  CHECK(says(points.out,
             "  target \\ prediction  down  up, or \"so\"\n"
             "  down                    1            1\n"
             "  up, or \"so\"             1            0\n"));
}

TEST_CASE("classes: many of them are the worst ones and the pairs that are confused most") {
  vernier::ClassTable table;
  CHECK(table.empty());
  const auto target = torch::arange(40).repeat({3});
  auto said = target.clone();
  said[7] = 9, said[47] = 9, said[8] = 9;
  table.update(torch::nn::functional::one_hot(said, 40).to(torch::kFloat32), target);
  table.update(torch::zeros({2, 3, 5}), torch::zeros({2, 5}, torch::kInt64));  // not a class for each sample
  const auto text = table.text({});
  CHECK(says(text, "\n  7              1   0.333    0.5        3  "));
  CHECK(says(text, "the worst of 40 classes\n"));
  CHECK(says(text, "\n  7                      9               2\n  8                      9               1\n"));
  CHECK(lines_of(text).size() == 30);
}

TEST_CASE("predict writes the same rows as CSV and JSON Lines") {
  Points points;
  for (const char* file : {"p.csv", "p.jsonl"}) {
    REQUIRE_MESSAGE(points.call({"predict", "out", "--input", "new.csv", "--output", file}) == 0, points.err);
    CHECK(points.out == std::string(file) + ": 80 rows\n");
  }
  const auto csv = lines_of(read_text(points.at("p.csv"))), json = lines_of(read_text(points.at("p.jsonl")));
  REQUIRE(csv.size() == 81);
  REQUIRE(json.size() == 80);
  CHECK(csv[0] == "class,probability");
  for (std::size_t row = 0; row < 80; ++row) {
    const auto line = nlohmann::json::parse(json[row]);
    const bool is_down = line["class"] == "down";
    CHECK((is_down || line["class"] == "up, or \"so\""));
    CHECK(csv[row + 1].starts_with(is_down ? "down," : "\"up, or \"\"so\"\"\","));
    const auto probability = static_cast<float>(line["probability"].get<double>());
    CHECK(std::stof(csv[row + 1].substr(csv[row + 1].rfind(',') + 1)) == probability);
  }
}

TEST_CASE("predict refuses the first sample whose output is NaN") {
  Points points;
  points.folder.write("far.csv", "x,y\n1,1\n3.3e38,3.3e38\n1,2\n");
  CHECK(points.call({"predict", "out", "--input", "far.csv", "--output", "p.csv"}) == 2);
  CHECK_MESSAGE(says(points.err, "'far.csv' line 3: the model returns NaN, which is not a class; correct the sample"),
                points.err);
  CHECK(is_one_line(points.err));
}

TEST_CASE("predict writes the probabilities of all classes on request") {
  Points points;
  points.folder.write("two.csv", "x,y\n1,1\n-1,-1\n");
  for (const char* file : {"p.csv", "p.jsonl"}) {
    REQUIRE_MESSAGE(points.call({"predict", "out", "--input", "two.csv", "--output", file, "--probabilities"}) == 0,
                    points.err);
  }
  CHECK(read_text(points.at("p.csv"))
            .starts_with("class,probability,probability_down,\"probability_up, or \"\"so\"\"\"\n"));
  const auto line = nlohmann::json::parse(lines_of(read_text(points.at("p.jsonl"))).at(1));
  CHECK(line["class"] == "down");
  CHECK(line["probability_down"] == line["probability"]);
}

TEST_CASE("predictions have the labels and the names of their numbers in each format") {
  const TemporaryFolder folder;
  const std::vector<Column> columns = {
      {"class", torch::tensor({2, 0}), {"3", "5", "10"}},
      {"chance", torch::tensor({{0.25F, 0.75F}, {1.0F, 0.0F}})},
      {"output", torch::tensor({{1, 2}, {3, 4}})},
  };
  for (const char* name : {"p.csv", "p.jsonl", "p.npy"}) {
    const auto file = vernier::write_predictions(folder / name, name);
    file->add(columns, 2);
    file->finish();
  }
  CHECK(read_text(folder / "p.csv") == "class,chance_0,chance_1,output_0,output_1\n10,0.25,0.75,1,2\n3,1,0,3,4\n");
  CHECK(lines_of(read_text(folder / "p.jsonl")).at(0) == R"({"class":"10","chance":[0.25,0.75],"output":[1,2]})");
  const auto expected = torch::tensor({{10.0, 0.25, 0.75, 1.0, 2.0}, {3.0, 1.0, 0.0, 3.0, 4.0}}, torch::kFloat64);
  CHECK(vernier::read_npy(folder / "p.npy").equal(expected));
}

TEST_CASE("labels of any bytes are written") {
  const TemporaryFolder folder;
  for (const char* name : {"p.csv", "p.jsonl"}) {
    const auto file = vernier::write_predictions(folder / name, name);
    file->add({{"class", torch::tensor({0}), {"gr\xf6"}}}, 1);
    file->finish();
  }
  CHECK(read_text(folder / "p.csv") == "class\ngr\xf6\n");
  CHECK(read_text(folder / "p.jsonl") == "{\"class\":\"gr\xef\xbf\xbd\"}\n");
}

TEST_CASE("predictions that a file cannot hold are refused") {
  const TemporaryFolder folder;
  const auto numbers = torch::zeros({2}), codes = torch::zeros({2}, torch::kInt64);
  const struct {
    const char* name;
    std::vector<Column> columns;
    const char* says;
  } cases[] = {
      {"p.npy", {{"class", codes, {"ant"}}}, "column 'class' has the word 'ant', and .npy holds numbers; write .csv"},
      {"p.csv", {{"a", numbers}, {"a", numbers}}, "two columns named 'a'"},
      {"p.jsonl", {{"a", numbers}, {"a", numbers}}, "two columns named 'a'"},
      {"p.csv", {{"a_1", numbers}, {"a", torch::zeros({2, 2})}}, "two columns named 'a_1'"},
      {"p.csv", {{"a", torch::zeros({3})}}, "the model returns [3] in column 'a' for a batch of 2 samples"},
      {"p.npy", {{"a", torch::zeros({})}}, "the model returns [] in column 'a' for a batch of 2 samples"},
  };
  for (const auto& [name, columns, text] : cases) {
    CAPTURE(text);
    const auto file = vernier::write_predictions(folder / name, name);
    const auto error = thrown_by([&, &columns = columns] { file->add(columns, 2); });
    CHECK_MESSAGE(says(error.text, text), error.text);
  }
}

TEST_CASE("the columns of predictions stay as they were in the first batch") {
  const TemporaryFolder folder;
  const std::vector<Column> others[] = {{{"a", torch::zeros({1, 4})}},
                                        {{"a", torch::zeros({1})}},
                                        {{"b", torch::zeros({1, 3})}},
                                        {{"a", torch::zeros({1, 3})}, {"b", torch::zeros({1})}}};
  for (const char* name : {"p.csv", "p.jsonl", "p.npy"}) {
    const auto file = vernier::write_predictions(folder / name, name);
    file->add({{"a", torch::zeros({2, 3})}}, 2);
    for (const auto& columns : others) {
      const auto text = thrown_by([&, &columns = columns] { file->add(columns, 1); }).text;
      CHECK_MESSAGE(says(text, "for rows from 3 on, and 'a' of [3] before"), text);
    }
    file->add({{"a", torch::zeros({1, 3})}}, 1);
    CHECK(file->rows() == 3);
  }
}

TEST_CASE("a run is not evaluated on other data than it was trained with, and used without them") {
  Points points;
  const auto text = read_text(points.at("points.csv"));
  auto other = text;  // the same classes by other words, in another order
  for (std::size_t at = 0; (at = other.find("down", at)) != std::string::npos;) other.replace(at, 4, "zero");
  points.folder.write("moved.csv", text);
  const auto evaluate = [&](const std::string& data, const std::string& says_what) {
    points.folder.write("points.csv", data);
    CHECK(points.call({"evaluate", "out"}) == 2);
    CHECK_MESSAGE(says(points.err, says_what), points.err);
    CHECK(is_one_line(points.err));
  };
  CHECK_MESSAGE(points.call({"check", "run.toml", "--resume"}) == 0, points.err);
  CHECK(points.out == "ready: out goes on after step 60\n");
  evaluate(text + "1,1,down\n", "'points.csv': the model was trained on it, and since then it has changed, or options");
  CHECK(points.call({"check", "run.toml", "--resume"}) == 2);
  CHECK_MESSAGE(says(points.err, "data have changed since this run was saved"), points.err);
  evaluate(other, "column 'class' is 'zero', which is none of the 2 known categories");
  CHECK_MESSAGE(points.call({"evaluate", "out", "--set", "task.data=moved.csv"}) == 0, points.err);
  std::filesystem::remove(points.at("points.csv"));
  CHECK(points.call({"evaluate", "out"}) == 2);
  CHECK_MESSAGE(says(points.err, "'points.csv' is not here; name other data, as in --set task.validation=FILE"),
                points.err);
  CHECK_MESSAGE(points.call({"predict", "out", "--input", "new.csv", "--output", "p.csv"}) == 0, points.err);
  CHECK_MESSAGE(points.call({"export", "out", "--format", "python", "--output", "py"}) == 0, points.err);
}

TEST_CASE("a model is exported to TorchScript, safetensors and Python") {
  Points points;
  REQUIRE_MESSAGE(points.call({"export", "out", "--format", "torchscript", "--output", "m.pt"}) == 0, points.err);
  REQUIRE(points.call({"export", "out", "--format", "safetensors", "--output", "m.safetensors"}) == 0);
  REQUIRE(points.call({"export", "out", "--format", "python", "--output", "folder"}) == 0);
  CHECK(read_text(points.at("folder/model.py")).starts_with("# The network"));
  CHECK(read_text(points.at("folder/model.safetensors")) == read_text(points.at("m.safetensors")));

  if (can_limit_files) {
    const std::vector<std::string> words = {"export", "out", "--format", "torchscript", "--output", "full.pt"};
    CHECK(points.call(words, &limit_files<1024>) == 4);
    CHECK_MESSAGE(says(points.err, "cannot be written"), points.err);
    CHECK(!has_partial(points.folder.path()));
  }

  auto model = torch::jit::load(points.at("m.pt").string());
  const auto inputs = torch::tensor({{0.0F, 1.0F}, {-0.9F, -0.7F}, {0.4F, 0.4F}});
  points.folder.write("three.csv", "x,y\n0,1\n-0.9,-0.7\n0.4,0.4\n");
  REQUIRE(points.call({"predict", "out", "--input", "three.csv", "--output", "three.jsonl"}) == 0);
  const torch::NoGradGuard no_grad;
  const auto [probability, code] = model.forward({inputs}).toTensor().softmax(1).max(1);
  const auto three = lines_of(read_text(points.at("three.jsonl")));
  for (std::int64_t row = 0; row < 3; ++row) {
    const auto line = nlohmann::json::parse(three.at(static_cast<std::size_t>(row)));
    CHECK(line["class"] == (code[row].item<int>() == 0 ? "down" : "up, or \"so\""));
    CHECK(line["probability"].get<double>() == doctest::Approx(probability[row].item<double>()).epsilon(1e-5));
  }
  const auto saved = vernier::load_safetensors(points.at("m.safetensors").string());
  for (const auto& parameter : model.named_parameters()) CHECK(saved.at(parameter.name).equal(parameter.value));
}

TEST_CASE("what cannot be done is one line, and leaves no file") {
  Points points;
  points.folder.write("bad.csv", "x,y\n1,one\n");
  points.folder.write("there.pt", "");
  struct Case {
    std::vector<std::string> arguments;
    const char* says;
  };
  const Case cases[] = {
      {{"evaluate"}, "name a run or a checkpoint"},
      {{"evaluate", "out", "--set", "task.validation_share=0"}, "has no data to validate on; name some, as in --set"},
      {{"predict", "out", "--input", "new.csv", "--input", "new.csv", "--output", "p.csv"},
       "the model takes one input, and --input is given 2 times"},
      {{"evaluate", "none"}, "there is no such run or checkpoint"},
      {{"evaluate", "points.csv"}, "is neither a run nor a checkpoint"},
      {{"evaluate", "run.toml"}, "name the run that `vernier train run.toml` writes, such as runs/run"},
      {{"evaluate", "."}, "there is no config.toml; name a run in it, such as ./out"},
      {{"report", "nosuch"}, "nosuch: there is no such folder; `vernier runs` lists the runs that are there"},
      {{"train", "run.toml", "--trust"}, "--trust is for runs, and none is read; leave it out"},
      {{"predict", "out", "--output", "p.csv"}, "give --input FILE, --row NAME=VALUE"},
      {{"predict", "out", "--input", "new.csv", "--output", "p.txt"},
       "must be .csv, .npy, .npz or .jsonl, or / for a folder of masks"},
      {{"predict", "out", "--input", "none.csv", "--output", "p.csv"}, "none.csv"},
      {{"predict", "out", "--input", "bad.csv", "--output", "p.csv"}, "bad.csv"},
      {{"predict", "out", "--input", "new.csv", "--output", "no/such/p.csv"},
       "no/such/p.csv: there is no folder no/such; make it with `mkdir -p no/such`"},
      {{"predict", "out", "--input", "new.csv", "--output", "p.npy"}, "has the word '"},
      {{"predict", "out", "--input", "new.csv", "--output", "./new.csv"},
       "is data, a configuration or a file of a run"},
      {{"predict", "out", "--input", "new.csv", "--output", "points.csv"},
       "is data, a configuration or a file of a run"},
      {{"export", "out", "--format", "torchscrip", "--output", "m.pt"}, "did you mean torchscript?"},
      {{"export", "out", "--format", "torchscript", "--output", "there.pt"}, "is there already"},
  };
  for (const auto& [arguments, text] : cases) {
    CAPTURE(arguments.back());
    CHECK(points.call(arguments) == 2);
    CHECK_MESSAGE(points.err.find(text) != std::string::npos, points.err);
    CHECK(is_one_line(points.err));
    CHECK_FALSE(std::filesystem::exists(points.at("p.csv")));
    CHECK_FALSE(has_partial(points.folder.path()));
    CHECK_FALSE(std::filesystem::exists(points.at("p.npy")));
  }
  points.folder.write("mlp.toml", "[run]\nsteps = 1\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n");
  REQUIRE(points.call({"train", "mlp.toml", "--quiet"}) == 0);
  CHECK(points.call({"predict", "runs/mlp", "--input", "new.csv", "--output", "p.csv"}) == 2);
  CHECK(says(points.err, "predict is for tasks with data and a loss, such as task/tabular"));
}

// Every verb that writes a file whose name it is given, up to that name, and the words behind it.
struct Writer {
  std::vector<std::string> words, more = {};
  std::string ending = ".csv";
};

TEST_CASE("no verb replaces data, a configuration or a file of a run, and any other file with --force alone") {
  Points points;
  points.folder.write("prompts.jsonl", "{\"prompt\": \"up\"}\n");
  points.folder.write("linked.toml", "include = ['run.toml']\n");
  points.folder.write("texts.txt", "a text of some words, and a text of others\n");
  REQUIRE(points.call({"checkpoint", "export", "out", "w.safetensors"}) == 0);
  REQUIRE(points.call({"tokenize", "texts.txt", "--train", "--vocabulary", "260", "--tokenizer", "bpe"}) == 0);
  const Writer writers[] = {
      {{"report", "out", "--output"}},
      {{"report", "out", "--png"}},
      {{"predict", "out", "--input", "new.csv", "--output"}},
      {{"export", "out", "--format", "safetensors", "--output"}},
      {{"export", "out", "--format", "python", "--output"}},
      {{"checkpoint", "export", "out"}, {}, ".safetensors"},
      {{"checkpoint", "import", "w.safetensors"}, {}, ".safetensors"},
      {{"advise", "run.toml", "--output"}},
      {{"advise", "linked.toml", "--output"}},
      {{"profile", "run.toml", "--steps", "2", "--output"}},
      {{"new", "toml", "points.csv", "--output"}},
      {{"tokenize", "points.csv", "--tokenizer", "bpe", "--output"}},
      {{"generate", "out", "--input", "prompts.jsonl", "--output"}},
  };
  const auto refused = [&](const Writer& writer, const std::string& file, bool is_forced, const std::string& why) {
    auto words = writer.words;
    words.push_back(file);
    words.insert(words.end(), writer.more.begin(), writer.more.end());
    if (is_forced) words.emplace_back("--force");
    CAPTURE(words);
    const auto before = std::filesystem::is_regular_file(points.at(file)) ? read_text(points.at(file)) : "";
    CHECK(points.call(words) == 2);
    CHECK_MESSAGE(points.err.find(file + ": " + why) != std::string::npos, points.err);
    CHECK(is_one_line(points.err));
    CHECK((before.empty() || read_text(points.at(file)) == before));
    CHECK_FALSE(has_partial(points.folder.path()));
  };
  const std::string named = "is data, a configuration or a file of a run";
  for (const auto& writer : writers) {
    points.folder.write("other" + writer.ending, "of another program");
    refused(writer, "other" + writer.ending, false, "is there already; name another file, or replace it with --force");
    if (writer.ending == ".csv") refused(writer, "points.csv", true, named);
  }
  // One function refuses for all of them: the others of its reasons by one verb.
  const auto& report = writers[0];
  refused(report, "no/such/file.csv", false, "there is no folder no/such; make it with `mkdir -p no/such`");
  points.folder.write("folder/file", "");
  refused(report, "folder", true, "is a folder that is there already; name another place");
  std::filesystem::create_symlink("points.csv", points.at("link.csv"));
  refused(report, "link.csv", true, "is a link; name its target");
  for (const char* data : {"./points.csv", "out/config.toml"}) refused(report, data, true, named);
  refused({{"checkpoint", "import", "w.safetensors"}}, "w.safetensors", true, named);
  refused({{"report", "out", "--output"}}, "out/summary.json", true, named);
  // The remedies, as they are typed.
  CHECK(points.call({"report", "out", "--output", "other.csv", "--force"}) == 0);
  CHECK(read_text(points.at("other.csv")).starts_with("<!"));
  CHECK(points.call({"predict", "out", "--input", "new.csv", "--output", "other.csv", "--force"}) == 0);
  CHECK(read_text(points.at("other.csv")).starts_with("class,"));
  std::filesystem::create_directories(points.at("no/such"));
  CHECK(points.call({"predict", "out", "--input", "new.csv", "--output", "no/such/p.csv"}) == 0);
  CHECK(points.call({"report", "out", "--output", "/dev/null"}) == 0);
}

namespace {

const std::string tiny = R"(
[run]
steps = 12
validate_every = 2
threads = 1
[task]
use = "mlp"
samples = 64
batch_size = 4
)";

// Runs in this process, each in a folder of its own.
struct Runs {
  using Made = std::unique_ptr<vernier::Prepared>;

  Made make(const std::string& name, const std::string& toml, const std::string& from = "") {
    std::filesystem::create_directories(folder.path() / name);
    std::vector<std::string> sets = {"run.output=" + (folder / name)};
    if (!from.empty()) sets.push_back("run.init_from=" + (folder / from));
    const auto file = folder.write(name + "/config.toml", toml);
    return vernier::prepare(vernier::load_config({file}, sets), name, host, stop, [](auto&&...) { return false; });
  }
  Made used(const std::string& path) const {
    return vernier::load_run(folder / path, {}, host, stop, vernier::Use::evaluation);
  }
  static double loss(vernier::Prepared& run) { return run.trainer.validation().evaluate(run.run).item<double>(); }
  // As `vernier export --format safetensors` does.
  void write(vernier::Prepared& run, const std::string& file) const {
    run.trainer.validation().use(run.run, [&] {
      for (auto* plugin : run.wiring->plugins()) {
        if (auto* adapter = dynamic_cast<vernier::ModelAdapter*>(plugin)) adapter->merge();
      }
      vernier::save_safetensors(folder / file, vernier::model_tensors(*run.run.model), {});
    });
  }

  TemporaryFolder folder;
  vernier::Host host = plugins_and_fixtures();
  std::atomic<int> stop = 0;
};

struct Weights {
  const char *name, *toml, *average;  // average: the plugin that has one, or ""
  bool has_adapter = false;
};

const std::string adamw = "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n";
const Weights all_weights[] = {
    {"none", "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n", ""},
    {"ema", "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n[[callback]]\nuse = 'ema'\ndecay = 0.7\n",
     "callback/ema"},
    {"ema beside the trained weights",
     "[optimizer]\nuse = 'sgd'\n[[callback]]\nuse = 'ema'\ndecay = 0.7\nvalidate = 'both'\n", "callback/ema"},
    {"ema that is not validated",
     "[optimizer]\nuse = 'sgd'\n[[callback]]\nuse = 'ema'\ndecay = 0.7\nvalidate = 'trained'\n", ""},
    {"swa", "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n[[callback]]\nuse = 'swa'\nfrom = 1\n", "callback/swa"},
    {"swa before its start", "[optimizer]\nuse = 'sgd'\n[[callback]]\nuse = 'swa'\nfrom = 13\n", ""},
    {"asgd", "[optimizer]\nuse = 'asgd'\nlearning_rate = 0.5\nt0 = 8\n", "optimizer/asgd"},
    {"asgd of two groups",
     "[optimizer]\nuse = 'asgd'\nlearning_rate = 0.5\nt0 = 8\n[[optimizer.group]]\nmatch = 'layers.0.*'\nuse = 'asgd'\n"
     "learning_rate = 0.25\nt0 = 8\n",
     "optimizer/asgd"},
    {"schedule-free", "[optimizer]\nuse = 'schedule_free'\nlearning_rate = 0.5\n", "optimizer/schedule_free"},
    {"masters", "[optimizer]\nuse = 'sgd'\n[precision]\nuse = 'bf16'\nlevel = 'O2'\n", ""},
    {"masters and ema",
     "[optimizer]\nuse = 'sgd'\n[precision]\nuse = 'bf16'\nlevel = 'O2'\n[[callback]]\nuse = 'ema'\ndecay = 0.7\n",
     "callback/ema"},
    {"lora", "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n[[callback]]\nuse = 'lora'\ntargets = ['*']\n", "",
     true},
    {"lora and ema",
     "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n[[callback]]\nuse = 'lora'\ntargets = ['*']\n"
     "[[callback]]\nuse = 'ema'\ndecay = 0.7\n",
     "callback/ema", true},
    {"lora and ema beside the trained weights",
     "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.05\n[[callback]]\nuse = 'lora'\ntargets = ['*']\n"
     "[[callback]]\nuse = 'ema'\ndecay = 0.7\nvalidate = 'both'\n",
     "callback/ema", true},
};
const std::string stopping = "[[callback]]\nuse = 'early_stopping'\npatience = 2\n";

}  // namespace

TEST_CASE("the model of a run is one thing: reported, evaluated, exported, and taken by a new run") {
  for (const auto& [name, toml, average, has_adapter] : all_weights) {
    for (const std::string way : {"plain", "stopped early", "best", "signal", "resumed"}) {
      CAPTURE(name);
      CAPTURE(way);
      Runs runs;
      const auto base = tiny + toml;
      auto config = way == "stopped early" ? base + stopping : base;
      if (way == "best") config += "[checkpoint]\nuse = 'rolling'\nevery = 2\nkeep_best = 1\n";
      const auto trained = runs.make("out", config);
      if (way == "signal" || way == "resumed") {
        while (trained->run.step < 6) trained->trainer.train_step(trained->run);
        runs.stop = SIGINT;
      }
      auto reported = trained->trainer.train(trained->run).validation_loss.value();
      runs.stop = 0;
      if (way == "resumed") {
        const auto resumed = runs.make("out", config);
        resumed->trainer.resume(resumed->run, resumed->wiring->checkpoint->read(resumed->run, "").value());
        reported = resumed->trainer.train(resumed->run).validation_loss.value();
      }
      std::string path = "out";
      if (way == "best") {
        path = "out/checkpoints/best";
        reported = trained->trainer.outcome().best_validation_loss.value();
      }
      const auto close = doctest::Approx(reported).epsilon(1e-5);
      const auto used = runs.used(path);
      CHECK(Runs::loss(*used) == close);
      std::vector<double> losses;  // a use has one model, also where an evaluation has two
      used->trainer.validation().use(used->run,
                                     [&] { losses.push_back(used->wiring->task->validate(used->run).item<double>()); });
      REQUIRE(losses.size() == 1);
      CHECK(losses[0] == close);
      const bool has_begun = used->run.updates > 8 || !std::string(name).starts_with("asgd");
      const std::string by = has_begun ? average : "";
      CHECK(used->trainer.validation().average(used->run).by == by);
      const auto said = vernier::weights_in(*used, path);
      CHECK_MESSAGE(says(said, by.empty() ? "" : "the average of " + by + " (--weights model"), said);
      CHECK_MESSAGE(says(said, "average") == !by.empty(), said);
      const auto plain = has_adapter ? tiny + adamw : base;  // without the average's effect before the first step
      if (has_adapter) {
        const auto text = thrown_by([&] { runs.make("next", plain, path); }).text;
        CHECK_MESSAGE(says(text, "the adapter of callback/lora; write the model of this run first, `vernier export "),
                      text);
      } else {
        CHECK(Runs::loss(*runs.make("next", plain, path)) == close);
      }
      runs.write(*used, "model.safetensors");
      CHECK(Runs::loss(*runs.make("again", plain, "model.safetensors")) == close);
    }
  }
}

TEST_CASE("code of a run that others made is refused until it is trusted, and data are not") {
  const std::string plugins = VERNIER_BINARY_DIR "/plugins/";
  const auto library = [&](const std::string& name) { return "use = '" + plugins + name + ".so'\n"; };
  struct Case {
    const char *name, *refused;  // refused: what is code in it; "": nothing is
    std::string task, more;
  };
  const std::string table = "use = 'tabular'\ndata = 'points.csv'\ntarget = 'z'\nhidden = [4]\n";
  const Case cases[] = {
      {"data", "", table, "[[callback]]\nuse = 'ema'\n"},
      {"TorchScript", "the TorchScript in 'm.pt' is code",
       "use = 'script'\nmodel = 'm.pt'\ninputs = ['points.csv:x']\ntarget = 'points.csv:z'\nloss = 'mse'\n", ""},
      {"a library", "callback/ema.so is code", table, "[[callback]]\n" + library("callback/ema")},
      {"a library that was swapped in", "optimizer/sgd.so is code", table,
       "[[callback]]\nuse = 'switch'\nat_step = 4\n[callback.to]\noptimizer = {" +
           library("optimizer/sgd").substr(0, library("optimizer/sgd").size() - 1) + "}\n"},
  };
  const std::vector<std::vector<std::string>> verbs = {
      {"evaluate", "RUN"},
      {"predict", "RUN", "--input", "new.csv", "--output", "p.csv"},
      {"export", "RUN", "--format", "onnx", "--output", "m.onnx"},
      {"replay", "RUN", "--step", "6"},
  };
  const TemporaryFolder state;
  ::setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  const auto unset = c10::make_scope_exit([] { ::unsetenv("XDG_STATE_HOME"); });
  for (const auto& [name, refused, task, more] : cases) {
    CAPTURE(name);
    RunFolder run("[run]\nsteps = 8\noutput = 'out'\n[task]\n" + task + "[optimizer]\nuse = 'adamw'\n" + more);
    torch::jit::Module script("m");
    script.register_parameter("w", torch::ones({1}).set_requires_grad(true), false);
    script.define("def forward(self, x):\n  return x * self.w\n");
    script.save(run.at("m.pt").string());
    std::string rows = "x,z\n";
    for (int i = 0; i < 40; ++i) rows += std::to_string(0.1 + i * 0.37) + "," + std::to_string(0.2 + i * 0.71) + "\n";
    run.folder.write("points.csv", rows);
    run.folder.write("new.csv", rows);
    REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
    const auto call = [&](std::vector<std::string> words, const char* folder, bool trusts = false) {
      for (const char* file : {"m.onnx", "m.onnx.json", "p.csv"}) std::filesystem::remove(run.at(file));
      std::ranges::replace(words, "RUN", folder);
      if (trusts) words.emplace_back("--trust");
      return run.call(words);
    };
    // A folder that was copied is what a folder is that was unpacked.
    std::filesystem::copy(run.at("out"), run.at("copy"),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    const bool is_code = *refused != '\0';
    CHECK_MESSAGE(call(verbs[0], "out") == 0,
                  run.err);  // the other verbs take the copy below, which becomes the user's
    for (const auto& verb : verbs) {
      CAPTURE(verb[0]);
      CHECK_MESSAGE(call(verb, "copy") == (is_code ? 2 : 0), run.err);
      if (is_code) CHECK_MESSAGE(says(run.err, std::string(refused) + ", which would run with all"), run.err);
    }
    if (!is_code) continue;
    CHECK_MESSAGE(call(verbs[0], "copy", /*trusts=*/true) == 0, run.err);
    for (const auto& verb : verbs) CHECK_MESSAGE(call(verb, "copy") == 0, run.err);
  }
}

TEST_CASE("graph: operators of a library that the user names are called, and are code in a run of others") {
  const std::string graphs = VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/";
  const std::string library = VERNIER_BINARY_DIR "/fixtures/libown_operators.so";
  const auto graph = [&](const char* name) {
    return "[run]\nsteps = 8\noutput = 'out'\n[checkpoint]\nevery = 4\n[optimizer]\nuse = 'adamw'\n[task]\nuse = "
           "'graph'\n" +
           std::string("inputs = ['points.csv:x,w']\ntarget = 'points.csv:z'\nloss = 'mse'\nmodel = '") + graphs +
           name + "'\n";
  };
  std::string rows = "x,w,z\n";
  for (int i = 0; i < 40; ++i) rows += c10::str(0.1 + i * 0.07, ",", i % 5, ",", 0.2 + i * 0.05, "\n");
  const TemporaryFolder state;
  ::setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  const auto unset = c10::make_scope_exit([] { ::unsetenv("XDG_STATE_HOME"); });
  const std::vector<std::string> take = {"--quiet", "--set", "task.operators=['" + library + "']"};

  RunFolder plain(graph("plain_operators.pt2"));
  plain.folder.write("points.csv", rows);
  REQUIRE_MESSAGE(plain.train({"--quiet"}) == 0, plain.err);
  RunFolder run(graph("own_operator.pt2"));
  run.folder.write("points.csv", rows);
  CHECK(run.train({"--quiet"}) == 2);
  CHECK_MESSAGE(says(run.err,
                     "mine.swish.default: no named library has registered them; name the one that does, as in [task] "
                     "operators = "),
                run.err);
  REQUIRE_MESSAGE(run.train(take) == 0, run.err);
  const auto loss = run.summary("out")["validation_loss"]["final"].get<double>();
  CHECK(loss == doctest::Approx(plain.summary("out")["validation_loss"]["final"].get<double>()).epsilon(1e-5));

  // A run that was stopped and resumed has the same bits.
  auto part = take;
  for (const char* word : {"--set", "run.steps=4", "--set", "run.output=part"}) part.emplace_back(word);
  REQUIRE_MESSAGE(run.train(part) == 0, run.err);
  part = take;
  for (const char* word : {"--set", "run.output=part", "--resume"}) part.emplace_back(word);
  REQUIRE_MESSAGE(run.train(part) == 0, run.err);
  CHECK(run.summary("part")["digest"] == run.summary("out")["digest"]);

  // A folder that was copied is a run of others.
  std::filesystem::copy(run.at("out"), run.at("copy"), std::filesystem::copy_options::recursive);
  const std::vector<std::vector<std::string>> verbs = {{"evaluate", "RUN"},
                                                       {"predict", "RUN", "--input", "points.csv"}};
  for (const auto& verb : verbs) {
    auto call = verb;
    std::ranges::replace(call, "RUN", "out");
    CHECK_MESSAGE(run.call(call) == 0, run.err);
    call = verb;
    std::ranges::replace(call, "RUN", "copy");
    CHECK(run.call(call) == 2);
    CHECK_MESSAGE(says(run.err, "the library '" + library + "' is code, which would run with all your rights"),
                  run.err);
  }
  CHECK_MESSAGE(run.call({"evaluate", "copy", "--trust"}) == 0, run.err);

  const std::pair<std::string, std::string> wrong[] = {
      {"nosuch.so", "the library 'nosuch.so' cannot be opened: No such file or directory"},
      {"points.csv", "the library 'points.csv' cannot be opened: "},
      {VERNIER_BINARY_DIR "/libvernier_data.so", "registers no operators; TORCH_LIBRARY does"},
  };
  for (const auto& [file, said] : wrong) {
    CAPTURE(file);
    CHECK(run.train({"--quiet", "--set", "task.operators=['" + file + "']", "--set", "run.output=wrong"}) != 0);
    CHECK_MESSAGE(says(run.err, said), run.err);
  }
  std::filesystem::copy_file(library, run.at("open.so"));
  std::filesystem::permissions(run.at("open.so"), std::filesystem::perms::all);
  CHECK(run.train({"--quiet", "--set", "task.operators=['open.so']", "--set", "run.output=wrong"}) == 3);
  CHECK_MESSAGE(
      says(run.err, "can be written to by others; chmod go-w it, or move the library to a folder of your own"),
      run.err);
}

// From a model, pictures and their masks to the masks of other pictures, in three commands.
TEST_CASE("graph: masks are learned and predicted, as pictures and as arrays") {
  RunFolder place("");
  const std::string model = VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/pixels.pt2";
  // Pictures whose masks are 2 where they are bright, and 1 elsewhere. Returns the masks.
  const auto write = [&](const std::string& photos, const std::string& masks, std::int64_t first, std::int64_t count) {
    std::filesystem::create_directory(place.at(masks));
    auto all = torch::ones({count, 6, 6}, torch::kUInt8);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto name = c10::str("/photo ", first + i, ".png");
      const auto bytes = striped(static_cast<std::uint32_t>(first + i), 6, 6);
      place.folder.write(photos + name, png(6, 6, 3, bytes));
      for (std::int64_t j = 0; j < 36; ++j) {
        if (static_cast<unsigned char>(bytes[3 * static_cast<std::size_t>(j)]) > 100) all[i][j / 6][j % 6] = 2;
      }
      vernier::write_mask(place.at(masks + name), all[i]);
    }
    return all;
  };
  write("photos", "masks", 10, 12);
  const auto wanted = write("others", "their masks", 30, 5);
  REQUIRE_MESSAGE(place.call({"new", "toml", model, "photos", "--target", "masks"}) == 0, place.err);
  REQUIRE_MESSAGE(place.call({"train", "pixels.toml", "--quiet", "--set", "run.epochs=20", "--set",
                              "optimizer.learning_rate=0.05", "--set", "task.batch_size=4"}) == 0,
                  place.err);
  const auto predict = [&](const std::string& output, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"predict", "runs/pixels", "--input", "others", "--output", output});
    return place.call(more);
  };
  REQUIRE_MESSAGE(predict("found/") == 0, place.err);
  CHECK(place.out == "found/: 5 rows\n");
  auto found = torch::zeros_like(wanted);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto file = place.at(c10::str("found/photo ", 30 + i, ".png"));
    found[i].copy_(vernier::read_image(file, {.channels = 0}).squeeze(0));
  }
  const auto right = (found == wanted).to(torch::kFloat64).mean().item<double>();
  CHECK(right > 0.9);

  REQUIRE_MESSAGE(predict("found.npy") == 0, place.err);
  const auto masks = vernier::read_npy(place.at("found.npy"));
  CHECK(masks.equal(found));
  REQUIRE_MESSAGE(predict("found.npz", {"--probabilities"}) == 0, place.err);
  const auto all = vernier::read_npz(place.at("found.npz"));
  CHECK(all.at("class").equal(masks));
  CHECK(all.at("probability").argmax(1).equal(masks.to(torch::kInt64)));
  CHECK(all.at("probability").sum(1).allclose(torch::ones({5, 6, 6})));
  REQUIRE_MESSAGE(predict("found.jsonl") == 0, place.err);
  const auto line = nlohmann::json::parse(lines_of(read_text(place.at("found.jsonl"))).at(2));
  CHECK(line["image"] == "photo 32.png");
  CHECK(line["class"][5][4] == masks[2][5][4].item<int>());
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"found/"}, "found: is a folder that is there already; name another place"},
      {{"a.npy", "--probabilities"}, "the columns 'class' and 'probability' have other shapes, and .npy has one array"},
      {{"a/", "--probabilities"}, "column 'probability' has no masks, but Float [3, 6, 6] of each sample; write .npz"},
      {{"a"}, "must be .csv, .npy, .npz or .jsonl, or / for a folder of masks"},
  };
  for (const auto& [words, said] : wrong) {
    CHECK(predict(words[0], {words.begin() + 1, words.end()}) != 0);
    CHECK_MESSAGE(says(place.err, said), place.err);
    CHECK_FALSE(std::filesystem::exists(place.at("a")));
  }

  // Data that the model was not trained on are scored whole.
  REQUIRE_MESSAGE(place.call({"evaluate", "runs/pixels", "--set", "task.inputs=['others']", "--set",
                              "task.target=their masks"}) == 0,
                  place.err);
  CHECK_MESSAGE(says(place.out, ", on 5 samples\n"), place.out);
  CHECK(std::stod(number_after(place.out, "accuracy")) == doctest::Approx(right).epsilon(1e-5));
  CHECK(place.call({"evaluate", "runs/pixels", "--set", "task.validation_share=0"}) == 2);
  CHECK_MESSAGE(says(place.err,
                     "name some, as in --set 'task.validation_inputs=[\"FILE\"]' --set "
                     "task.validation_target=FILE\n"),
                place.err);
}

TEST_CASE("a run is known as the user's where there is no home, or none that can be written to") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "run");
  std::filesystem::create_directory(folder.path() / "other");
  const auto run = folder.path() / "run";
  const std::string home = ::getenv("HOME") == nullptr ? "" : ::getenv("HOME");
  ::unsetenv("XDG_STATE_HOME");
  for (const char* place : {"", "/proc/none"}) {
    *place == '\0' ? ::unsetenv("HOME") : ::setenv("HOME", place, 1);
    vernier::note_own_run(run);
    CHECK(vernier::is_own_run(run));
    CHECK_FALSE(vernier::is_own_run(folder.path() / "other"));
  }
  ::setenv("HOME", home.c_str(), 1);
  std::filesystem::rename(run, folder.path() / "moved");
  CHECK(vernier::foreign(folder.path() / "moved").empty());
  std::filesystem::create_directory(run);
  CHECK(vernier::foreign(run) == run);
  CHECK_FALSE(vernier::is_own_run(folder.path() / "none"));
}

}  // namespace use_model_test
