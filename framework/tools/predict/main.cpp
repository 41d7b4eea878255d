// `vernier predict`: writes what a trained run's model predicts for each sample of a file.
#include <vernier/data/predictor.h>
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>

#include "cli/command.h"
#include "cli/program.h"
#include "common/config/recorded_configuration.h"
#include "common/output_file.h"
#include "predictions.h"
#include "rows.h"
#include "server.h"
#include "tools/model/trained_run.h"
#include "wiring/wiring.h"

namespace vernier {

namespace {

constexpr const char* usage = R"(usage: vernier predict RUN --input FILE… [--output FILE]
       vernier predict RUN --row NAME=VALUE…
       vernier predict RUN --listen ADDRESS:PORT

Reads samples, and writes what the model of a run's newest checkpoint predicts for each.

  --input FILE           the samples, in a format that the run's task reads. A model of several inputs (task/script)
                         takes one file that has them all, such as new.npz, or an --input for each, in their order.
                         "-": standard input, which has CSV, JSON Lines or a JSON array of rows
  --row NAME=VALUE…      one row in the command, a word for each column; or JSON: --row '{"carat": 0.3, "colour": "E"}'
  --output FILE          .csv, .npy, .npz or .jsonl; a file that is there is kept. Without it, or as "-", the rows go
                         to standard output: as CSV, or as JSON Lines where they came as JSON. A path that ends in /
                         is a new folder, which gets a PNG for each mask
  --force                replaces a file that is there
  --probabilities        writes the probability of each class too, as probability_NAME, beside that of the likeliest.
                         Of several labels each has its probability anyway. Of masks: the array `probability`
  --set KEY=VALUE        changes the run's configuration
  --weights average|model
                         average: of callback/ema and the like, if the run has one (the default); model: without
  --trust                runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER   looks for plugins there first

a server on this machine that answers rows of JSON: POST /v1/predict {"instances": [{"carat": 0.3}]}
  --listen ADDRESS:PORT  127.0.0.1:8000; port 0: one that the system chooses
  --tokens FILE          file with the token that clients send (predict.tokens); it is made where there is none
  --queue NUMBER         requests that may wait; more are answered with 503 (16)
)";

// If a batch is refused, its samples are tried one by one, and the error names the first that fails.
std::vector<Predictor::Column> predicted(Predictor& predictor, const Batch& batch, const Dataset& dataset) try {
  return predictor.predict(batch);
} catch (const Error& error) {
  for (std::int64_t i = 0; batch.samples > 1 && i < batch.samples; ++i)
    predicted(predictor, batch.narrow(i, 1), dataset);
  if (batch.samples > 1 || batch.indices.empty()) throw;
  throw Error(dataset.where(batch.indices[0]) + ": " + error.what(), error.kind());
}

// The columns to write of a batch.
std::vector<Predictor::Column> columns_of(Predictor& predictor, SupervisedTask& task, const Batch& batch,
                                          bool has_probabilities, const Dataset& dataset) {
  auto columns = predicted(predictor, batch, dataset);
  if (columns.empty()) columns.push_back({"output", task.forward(batch)});
  const bool has_some = std::ranges::any_of(columns, &Predictor::Column::on_request);
  if (has_probabilities && !has_some && task.targets().kind != Targets::Kind::labels) {
    refuse("--probabilities is for models of classes, and " + task.id() + " predicts numbers here");
  }
  if (!has_probabilities) std::erase_if(columns, [](const auto& column) { return column.on_request; });
  return columns;
}

// A run's model, in an evaluation.
struct Model {
  Prepared& prepared;
  SupervisedTask& task;
  Predictor& predictor;
  bool has_probabilities;

  // Returns the number of samples in the files. use: called with the columns and the samples of each batch.
  std::int64_t predict(const std::vector<std::string>& files,
                       const std::function<void(const std::vector<Predictor::Column>&, std::int64_t)>& use) const {
    const auto dataset = predictor.read_several(files);
    if (dataset->size() == 0) refuse("'" + files[0] + "' has nothing to predict");
    auto loader = task.loader_of(dataset);
    for (auto left = loader.batches_per_epoch(); left > 0; --left) {
      if (cli::stop_signal() != 0) throw Error("stopped; nothing was written", Error::Kind::training);
      const auto batch = loader.next().to(prepared.run.device);
      use(columns_of(predictor, task, batch, has_probabilities, *dataset), batch.samples);
    }
    return dataset->size();
  }
};

Model model_of(Prepared& prepared, bool has_probabilities) {
  auto& task = supervised(prepared, "predict");
  auto* predictor = dynamic_cast<Predictor*>(&task);
  if (predictor == nullptr) refuse(task.id() + " reads no samples to predict, so it cannot predict");
  return {prepared, task, *predictor, has_probabilities};
}

// Calls the body, whose errors are about given rows.
template <class Body>
auto about(const GivenRows& rows, const Body& body) try {
  return body();
} catch (const Error& error) {
  throw Error(rows.reworded(error.what()), error.kind());
}

void serve(const Model& model, const Table& config, const boost::program_options::variables_map& given) {
  GivenRows rows(config, "instances");
  const auto folder = std::filesystem::weakly_canonical(std::filesystem::absolute(words_of(given).front()));
  const PredictionServer server{.listen = given["listen"].as<std::string>(),
                                .tokens = given["tokens"].as<std::string>(),
                                .model = folder.filename().string(),
                                .queue = static_cast<std::size_t>(number_in<std::int64_t>(given, "queue", 1, 10'000)),
                                .stop_signal = &cli::stop_signal()};
  serve_predictions(server, [&](const auto& instances, const auto& is_wanted) {
    auto answers = nlohmann::ordered_json::array();
    about(rows, [&] {
      model.predict(rows.write(instances), [&](const auto& columns, std::int64_t samples) {
        if (!is_wanted()) throw Error("the client disconnected before its answer was ready");
        for (auto& row : rows_of(columns, samples)) answers.push_back(std::move(row));
      });
    });
    return answers;
  });
}

std::string read_stdin() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.empty()) refuse("--input -: standard input is empty");
  return text;
}

int predict(const boost::program_options::variables_map& given) {
  const std::string example = "vernier predict runs/NAME --input new.csv --output predictions.csv";
  auto call = run_of(given, example);
  const bool listens = given.count("listen") != 0, has_words = given.count("row") != 0;
  auto inputs = words_in(given, "input");
  if (listens + has_words + !inputs.empty() != 1) {
    refuse("give --input FILE, --row NAME=VALUE… or --listen ADDRESS:PORT, as in `" + example + "`");
  }
  const bool has_stdin = inputs == std::vector<std::string>{"-"};
  const auto output = word_or(given, "output", "-");
  if (listens && given.count("output") != 0) refuse("--output is not for --listen, whose answers go to the clients");
  const bool has_pictures = is_folder_of_pictures(output);
  const auto place = has_pictures ? output.substr(0, output.find_last_not_of('/') + 1) : output;
  if (output != "-") {
    refuse_unknown_format(output);
    refuse_output(given, place);
  }
  const auto text = has_stdin ? read_stdin() : "";
  nlohmann::ordered_json json;
  if (has_words) json = rows_of_words(words_in(given, "row"));
  if (has_stdin) json = rows_of_text(text);
  const auto config = load_config({cli::configuration_at(call.path)}, call.sets);
  if (listens || !json.is_null()) {
    const auto sets = plain_form(config);
    call.sets.insert(call.sets.end(), sets.begin(), sets.end());
  }
  const bool has_json = !json.is_null() && (!has_words || words_in(given, "row")[0].find_first_of("{[") == 0);
  std::optional<GivenRows> rows;
  if (has_words || has_stdin) rows.emplace(config, has_words ? "row" : "standard input");
  if (rows) inputs = json.is_null() ? rows->write(text) : rows->write(json);

  const auto prepared = load_run(call, given, Use::model);
  const auto model = model_of(*prepared, given.count("probabilities") != 0);
  const auto with_model = [&](const std::function<void()>& body) {
    prepared->trainer.validation().use(prepared->run, [&] { rows ? about(*rows, body) : body(); });
  };
  if (listens) {
    with_model([&] { serve(model, config, given); });
    return 0;
  }
  std::int64_t samples = 0;
  const auto write = [&](const std::string& path, const std::string& name) {
    const auto predictions = write_predictions(path, name);
    with_model([&] {
      model.predict(inputs, [&](const auto& columns, std::int64_t count) { predictions->add(columns, count); });
    });
    samples = predictions->rows();
    predictions->finish();
  };
  if (output == "-") {
    std::signal(SIGPIPE, SIG_DFL);  // `vernier predict … | head` ends here
    print_result([&] {
      const ScratchFolder scratch;
      write(scratch.path() + "/rows", has_json ? "-.jsonl" : "-.csv");
      std::ifstream file(scratch.path() + "/rows", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    });
    return 0;
  }
  if (has_pictures) {
    write(place, output);
  } else {
    WholeFile file(output);
    write(file.part(), output);
    file.finish();
  }
  std::cout << printable(output) << ": " << samples << " rows" << weights_in(*prepared, call.path) << '\n';
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::run_options();
  options.add_options()("input", po::value<std::vector<std::string>>())("output", po::value<std::string>())(
      "row", po::value<std::vector<std::string>>()->multitoken())("probabilities", "")("force", "")(
      "weights", po::value<std::string>())("listen", po::value<std::string>())(
      "tokens", po::value<std::string>()->default_value("predict.tokens"))(
      "queue", po::value<std::int64_t>()->default_value(16));
  return vernier::call_run_verb({"predict", vernier::usage, options, vernier::predict}, argc, argv);
}
