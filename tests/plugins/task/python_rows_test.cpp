// The rows of an exported Python model: its model.py reads each value as `vernier predict` does, or refuses it as that
// does. The files of tests/plugins/task/rows: NAME.csv is trained on, by the options in NAME.toml, and NAME.new.csv is
// read. No row needs PyTorch, and where the machine has none there is a stand-in.
#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "loaded_task.h"
#include "log_lines.h"
#include "python.h"
#include "small_run.h"
#include "thrown.h"

namespace python_rows_test {

namespace {

const std::string files = VERNIER_SOURCE_DIR "/tests/plugins/task/rows/";

std::vector<double> numbers_of(const torch::Tensor& row) {
  const auto wide = row.to(torch::kFloat64).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// Each line behind the first as `predict` reads it, a file of its own: numbers and codes; or null.
nlohmann::json read_by_vernier(LoadedTask& loaded, const std::string& text, const TemporaryFolder& folder) {
  auto& task = dynamic_cast<vernier::SupervisedTask&>(*loaded.task);
  auto& predictor = dynamic_cast<vernier::Predictor&>(*loaded.task);
  auto read = nlohmann::json::array();
  std::istringstream lines(text);
  std::string header;
  std::getline(lines, header);
  for (std::string line; std::getline(lines, line);) {
    const auto path = folder.write("line.csv", header + "\n" + line + "\n");
    nlohmann::json row;
    const auto thrown = thrown_by([&] {
      const auto batch = task.loader_of(predictor.read_inputs(path)).next();
      row = {numbers_of(batch.tensors.at(0)), numbers_of(batch.tensors.at(1))};
    });
    CHECK_MESSAGE((thrown.kind == 0 || thrown.kind == 2), thrown.text);
    read.push_back(row);
  }
  return read;
}

bool are_near(const nlohmann::json& one, const nlohmann::json& other) {
  if (one.is_null() || other.is_null()) return one.is_null() && other.is_null();
  for (const std::size_t part : {0U, 1U}) {
    if (one[part].size() != other[part].size()) return false;
    for (std::size_t i = 0; i < one[part].size(); ++i) {
      const double a = one[part][i], b = other[part][i];
      if (!(std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(a)))) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("an exported Python model reads rows as predict does") {
  if (!has_python("json")) {
    MESSAGE("skipped: there is no python3");
    return;
  }
  for (const std::string name : {"german", "english", "plain"}) {
    CAPTURE(name);
    const TemporaryFolder folder;
    const LogLines log;
    auto options = from_toml({read_text(files + name + ".toml")});
    options["data"] = value(files + name + ".csv");
    options["target"] = value("y");
    LoadedTask loaded("tabular", options);
    folder.write("model.py", dynamic_cast<vernier::Predictor&>(*loaded.task).python_model());
    const auto text = read_text(files + name + ".new.csv");
    const auto expected = read_by_vernier(loaded, text, folder);
    const std::string stand_in = has_python("torch") ? "" : "PYTHONPATH='" + files + "' ";
    std::string out;
    const auto status =
        python_in(stand_in, "'" + files + "read.py' . '" + files + name + ".new.csv' ';'", folder.path(), out);
    REQUIRE_MESSAGE(status == 0, out);
    const auto read = nlohmann::json::parse(out);
    REQUIRE(read.size() == expected.size());
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    int refused = 0;
    for (std::size_t i = 0; i < read.size(); ++i) {
      std::getline(lines, line);
      refused += expected[i].is_null() ? 1 : 0;
      CHECK_MESSAGE(are_near(expected[i], read[i]), line, ": ", expected[i].dump(), " is right, and it is ",
                    read[i].dump());
    }
    CHECK(refused > 5);
    CHECK(refused + 10 <= static_cast<int>(read.size()));
  }
}

}  // namespace python_rows_test
