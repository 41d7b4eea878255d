// The ONNX file of a table takes its columns: words as texts, dates as days, and NaN for a missing number. The tables
// are in tests/plugins/task/columns.
#include <ATen/ops/cat.h>
#include <doctest/doctest.h>
#include <vernier/graph/graph_export.h>
#include <vernier/safetensors.h>

#include <limits>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "python.h"
#include "small_run.h"
#include "thrown.h"

namespace tabular_onnx_test {

namespace {

const std::string files = VERNIER_SOURCE_DIR "/tests/plugins/task/columns/";
constexpr double none = std::numeric_limits<double>::quiet_NaN();

vernier::ExportedModel onnx_model(const LoadedTask& loaded) {
  return dynamic_cast<vernier::OnnxExportable&>(*loaded.task).onnx_model();
}

vernier::Batch new_rows(const LoadedTask& loaded) {
  const auto rows = dynamic_cast<vernier::Predictor&>(*loaded.task).read_inputs(files + "new.csv");
  return supervised(loaded).loader_of(rows).next();
}

// The columns of new.csv, which the reader has filled: its second number lacks two values, and its date one.
std::vector<torch::Tensor> columns_of(const vernier::Batch& batch) {
  const auto numbers = batch.tensors.at(0).slice(1, 0, 3).clone();
  for (const auto& [row, column] : {std::pair{1, 1}, {5, 1}, {4, 2}}) numbers[row][column] = none;
  const auto number = [&](int column) { return numbers.slice(1, column, column + 1); };
  const auto code = [&](int column) { return batch.tensors.at(1).slice(1, column, column + 1); };
  return {number(0), number(1), code(0), number(2), code(1)};
}

void check_in_python(const TemporaryFolder& folder, const std::string& rows) {
  if (!has_python("onnxruntime")) return;
  std::string out;
  const auto script = VERNIER_SOURCE_DIR "/tests/support/run_table.py . " + rows;
  CHECK_MESSAGE(python(script, folder.path(), out) == 0, out);
}

}  // namespace

TEST_CASE("tabular's ONNX file computes from columns what predict computes from rows") {
  const TemporaryFolder folder;
  const LogLines log;
  for (const auto& [target, other] : {std::pair{"rent", "class"}, {"class", "rent"}}) {
    CAPTURE(target);
    LoadedTask loaded("tabular", {{"data", value(files + "rows.csv")},
                                  {"target", value(target)},
                                  {"leave_out", list<std::string>({other})},
                                  {"missing", value("mean")}});
    loaded.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto model = onnx_model(loaded);
    CHECK(model.inputs == std::vector<std::string>{"mean", "output", "place", "when", "kind"});
    CHECK(model.classes.size() == (target == std::string("class") ? 3 : 0));
    const auto& place = model.texts.at("place");
    CHECK(place.codes.at("n/a") == place.codes.at(""));
    CHECK(place.other == 5);
    const auto batch = new_rows(loaded);
    const auto expected = supervised(loaded).forward(batch);
    CHECK(model.forward(columns_of(batch)).equal(expected));
    export_onnx(model, folder / (std::string(target) + ".onnx"));
    vernier::save_safetensors(folder / (std::string(target) + ".safetensors"), {{"output", expected}}, {});
  }
  check_in_python(folder, files + "new.csv");
}

TEST_CASE("a missing number of a table that training filled none of is NaN in the ONNX file, unless `missing` is set") {
  const LogLines log;
  const TemporaryFolder folder;
  const auto rows = folder.write("rows.csv", "output,x,y\n1,1,a\n2,5,b\n4,2,a\n3,6,b\n6,8,b\n");
  const auto new_rows = folder.write("new.csv", "output,x\n,1\n2,1\n");
  for (const std::string missing : {"refuse", "zero"}) {
    LoadedTask loaded("tabular", {{"data", value(rows)}, {"target", value("y")}, {"missing", value(missing)}});
    loaded.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto model = onnx_model(loaded);
    const auto output = model.forward({torch::tensor({{none}, {2.0}}, torch::kFloat64), torch::ones({2, 1})});
    CHECK(output[0].isnan().all().item<bool>() == (missing == "refuse"));
    CHECK_FALSE(output[1].isnan().any().item<bool>());
    export_onnx(model, folder / (missing + ".onnx"));
    vernier::save_safetensors(folder / (missing + ".safetensors"), {{"output", output}}, {});
  }
  check_in_python(folder, new_rows);
}

}  // namespace tabular_onnx_test
