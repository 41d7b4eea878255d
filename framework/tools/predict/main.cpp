// `vernier predict`: writes what a trained run's model predicts for each sample of a file.
#include <vernier/data/predictor.h>
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "predictions.h"
#include "tools/model/trained_run.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr const char* usage = R"(usage: vernier predict RUN --input FILE… --output FILE [--set KEY=VALUE]…

Reads samples from the input, and writes what the model of a run's newest checkpoint predicts for each.

  --input FILE           the samples, in a format that the run's task reads. A model of several inputs (task/script)
                         takes one file that has them all, such as new.npz, or an --input for each, in their order
  --output FILE          .csv, .npy or .jsonl
  --probabilities        writes the probability of each class too, as probability_NAME, beside that of the likeliest.
                         Of several labels each has its probability anyway
  --set KEY=VALUE        changes the run's configuration
  --weights average|model
                         average: of callback/ema and the like, if the run has one (the default); model: without
  --trust                runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER   looks for plugins there first
)";

// Returns true if a source such as "x.csv" or "x.npz:images" names the file at a path.
bool is_same_file(const std::string& source, const fs::path& path) {
  std::error_code none;
  for (auto end = source.find(':');; end = source.find(':', end + 1)) {
    if (fs::equivalent(source.substr(0, end), path, none)) return true;
    if (end == std::string::npos) return false;
  }
}

// The first text in the values of a table that names the file at a path; "": there is none.
std::string source_at(const Value& value, const fs::path& path) {
  if (const auto* text = std::get_if<std::string>(&value.data)) return is_same_file(*text, path) ? *text : "";
  std::string found;
  if (const auto* list = std::get_if<Array>(&value.data)) {
    for (const auto& each : *list) found = found.empty() ? source_at(each, path) : found;
  } else if (const auto* table = std::get_if<Table>(&value.data)) {
    for (const auto& [key, each] : *table) found = found.empty() ? source_at(each, path) : found;
  }
  return found;
}

// Refuses an output that would replace data.
void refuse_data_as_output(const std::string& output, const std::vector<std::string>& inputs, const Table& config) {
  std::error_code none;
  if (!fs::exists(output, none)) return;
  if (std::ranges::any_of(inputs, [&](const auto& input) { return is_same_file(input, output); })) {
    refuse(output + ": is the input, which it would replace; name another file");
  }
  const auto task = config.find(Task::role);
  if (task != config.end() && !source_at(task->second, output).empty()) {
    refuse(output + ": is a file that [task] of the run names, and would be replaced; name another one");
  }
}

// The columns to write of a batch.
std::vector<Predictor::Column> columns_of(Predictor& predictor, SupervisedTask& task, const Batch& batch,
                                          bool has_probabilities) {
  auto columns = predictor.predict(batch);
  if (columns.empty()) columns.push_back({"output", task.forward(batch)});
  const bool has_some = std::ranges::any_of(columns, &Predictor::Column::on_request);
  if (has_probabilities && !has_some && task.targets().kind != Targets::Kind::labels) {
    refuse("--probabilities is for models of classes, and " + task.id() + " predicts numbers here");
  }
  if (!has_probabilities) std::erase_if(columns, [](const auto& column) { return column.on_request; });
  return columns;
}

int predict(const boost::program_options::variables_map& given) {
  const std::string example = "vernier predict runs/NAME --input new.csv --output predictions.csv";
  const auto call = run_of(given, example);
  const auto output = needed(given, "output", example);
  const auto inputs = words_in(given, "input");
  if (inputs.empty()) refuse("--input is missing, as in `" + example + "`");
  refuse_unknown_format(output);
  const auto prepared = load_run(call, given, Use::model);
  auto& task = supervised(*prepared, "predict");
  refuse_data_as_output(output, inputs, prepared->config);
  auto* predictor = dynamic_cast<Predictor*>(&task);
  if (predictor == nullptr) {
    refuse(task.id() + " reads no samples to predict, so it cannot predict from a file such as '" + inputs[0] + "'");
  }
  const auto dataset = predictor->read_several(inputs);
  if (dataset->size() == 0) refuse(inputs[0] + ": there is nothing in it to predict");
  WholeFile file(output);
  auto predictions = write_predictions(file.part(), output);
  prepared->trainer.validation().evaluate(prepared->run, [&] {
    auto loader = task.loader_of(dataset);
    for (auto left = loader.batches_per_epoch(); left > 0; --left) {
      if (cli::stop_signal() != 0) throw Error("stopped; nothing was written", Error::Kind::training);
      const auto batch = loader.next().to(prepared->run.device);
      predictions->add(columns_of(*predictor, task, batch, given.count("probabilities") != 0), batch.samples);
    }
    return torch::Tensor();
  });
  predictions->finish();
  file.finish();
  std::cout << printable(output) << ": " << predictions->rows() << " rows" << weights_in(*prepared, call.path) << '
';
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::run_options();
  options.add_options()("input", po::value<std::vector<std::string>>())("output", po::value<std::string>())(
      "weights", po::value<std::string>())("probabilities", "");
  return vernier::call_run_verb({"predict", vernier::usage, options, vernier::predict}, argc, argv);
}
