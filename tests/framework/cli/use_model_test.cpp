#include <doctest/doctest.h>
#include <torch/script.h>
#include <torch/torch.h>
#include <vernier/numpy.h>
#include <vernier/safetensors.h>

#include <sstream>

#include "run_folder.h"

// evaluate, predict and export, called as a person would.
namespace use_model_test {

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
  explicit Points(const std::string& more = "") : RunFolder(configuration + more) {
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
    REQUIRE_MESSAGE(train({"--quiet"}) == 0, err);
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
  for (const char* more :
       {"", "[[callback]]\nuse = 'ema'\ndecay = 0.9\n", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n"}) {
    CAPTURE(more);
    Points points(more);
    REQUIRE(points.call({"evaluate", "out"}) == 0);
    CHECK(points.out.starts_with("out after step 60\n"));
    const double before = points.summary()["validation_loss"]["final"].get<double>();
    CHECK(std::stod(number_after(points.out, "validation_loss")) == doctest::Approx(before).epsilon(1e-5));
    CHECK(std::stod(number_after(points.out, "accuracy")) > 0.8);
  }
}

TEST_CASE("evaluate takes other data, and writes nothing into the run") {
  Points points;
  points.folder.write("others.csv", "x,y,class\n1,1,down\n-1,-1,\"up, or \"\"so\"\"\"\n");
  const auto before = read_text(points.at("out/log.txt"));
  REQUIRE(points.call({"evaluate", "out", "--set", "task.validation=others.csv"}) == 0);
  CHECK(number_after(points.out, "accuracy") == "0");
  CHECK(read_text(points.at("out/log.txt")) == before);
}

TEST_CASE("predict writes the same rows as CSV, NumPy and JSON Lines") {
  Points points;
  for (const char* file : {"p.csv", "p.npy", "p.jsonl"}) {
    REQUIRE_MESSAGE(points.call({"predict", "out", "--input", "new.csv", "--output", file}) == 0, points.err);
    CHECK(points.out == std::string(file) + ": 80 rows\n");
  }
  const auto csv = lines_of(read_text(points.at("p.csv"))), json = lines_of(read_text(points.at("p.jsonl")));
  const auto array = vernier::read_npy(points.at("p.npy"));
  REQUIRE(csv.size() == 81);
  REQUIRE(json.size() == 80);
  REQUIRE(array.sizes() == torch::IntArrayRef({80, 2}));
  CHECK(csv[0] == "class,probability");
  for (std::size_t row = 0; row < 80; ++row) {
    const auto line = nlohmann::json::parse(json[row]);
    const auto code = array[static_cast<std::int64_t>(row)][0].item<double>();
    CHECK(line["class"] == (code == 0 ? "down" : "up, or \"so\""));
    CHECK(csv[row + 1].starts_with(code == 0 ? "down," : "\"up, or \"\"so\"\"\","));
    const double probability = array[static_cast<std::int64_t>(row)][1].item<double>();
    CHECK(line["probability"].get<double>() == doctest::Approx(probability));
    CHECK(std::stof(csv[row + 1].substr(csv[row + 1].rfind(',') + 1)) == static_cast<float>(probability));
  }
}

TEST_CASE("a model is exported to TorchScript, safetensors and Python") {
  Points points;
  REQUIRE_MESSAGE(points.call({"export", "out", "--format", "torchscript", "--output", "m.pt"}) == 0, points.err);
  REQUIRE(points.call({"export", "out", "--format", "safetensors", "--output", "m.safetensors"}) == 0);
  REQUIRE(points.call({"export", "out", "--format", "python", "--output", "folder"}) == 0);
  CHECK(read_text(points.at("folder/model.py")).starts_with("# The network"));
  CHECK(read_text(points.at("folder/model.safetensors")) == read_text(points.at("m.safetensors")));

  REQUIRE(points.call({"predict", "out", "--input", "new.csv", "--output", "p.npy"}) == 0);
  auto model = torch::jit::load(points.at("m.pt").string());
  const auto inputs = torch::tensor({{0.0F, 1.0F}, {-0.9F, -0.7F}, {0.4F, 0.4F}});
  points.folder.write("three.csv", "x,y\n0,1\n-0.9,-0.7\n0.4,0.4\n");
  REQUIRE(points.call({"predict", "out", "--input", "three.csv", "--output", "three.npy"}) == 0);
  const torch::NoGradGuard no_grad;
  const auto [probability, code] = model.forward({inputs}).toTensor().softmax(1).max(1);
  const auto three = vernier::read_npy(points.at("three.npy"));
  CHECK(code.to(torch::kFloat64).equal(three.select(1, 0)));
  CHECK(probability.to(torch::kFloat64).allclose(three.select(1, 1), 1e-5, 1e-6));
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
      {{"evaluate", "none"}, "there is no such run or checkpoint"},
      {{"evaluate", "points.csv"}, "is no run and no checkpoint"},
      {{"predict", "out", "--output", "p.csv"}, "--input is missing"},
      {{"predict", "out", "--input", "new.csv", "--output", "p.txt"}, "must be .csv, .npy or .jsonl"},
      {{"predict", "out", "--input", "none.csv", "--output", "p.csv"}, "none.csv"},
      {{"predict", "out", "--input", "bad.csv", "--output", "p.csv"}, "bad.csv"},
      {{"predict", "out", "--input", "new.csv", "--output", "no/such/p.csv"}, "No such file or directory"},
      {{"export", "out", "--format", "torchscrip", "--output", "m.pt"}, "did you mean torchscript?"},
      {{"export", "out", "--format", "torchscript", "--output", "there.pt"}, "is there already"},
  };
  for (const auto& [arguments, text] : cases) {
    CAPTURE(arguments.back());
    CHECK(points.call(arguments) == 2);
    CHECK_MESSAGE(points.err.find(text) != std::string::npos, points.err);
    CHECK(is_one_line(points.err));
    CHECK_FALSE(std::filesystem::exists(points.at("p.csv")));
    CHECK_FALSE(std::filesystem::exists(points.at("p.csv.part")));
  }
  points.folder.write("mlp.toml", "[run]\nsteps = 1\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n");
  REQUIRE(points.call({"train", "mlp.toml", "--quiet"}) == 0);
  CHECK(points.call({"predict", "runs/mlp", "--input", "new.csv", "--output", "p.csv"}) == 2);
  CHECK(points.err.find("task/mlp is not") != std::string::npos);
}

}  // namespace use_model_test
