#include "use_model.h"

#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/model_adapter.h>
#include <vernier/published_model.h>
#include <vernier/safetensors.h>
#include <vernier/supervised_task.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "core/printable.h"
#include "output/log.h"
#include "predictions.h"
#include "run/prepared.h"
#include "run/snapshot.h"
#include "tools/common/text.h"
#include "torchscript.h"
#include "wiring/config.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// The configuration of the run at a path, or of the run whose checkpoint is there.
std::string configuration_at(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) refuse(path.string() + ": there is no such run or checkpoint");
  const auto folder = fs::absolute(path).lexically_normal();
  for (const auto& candidate : {folder, folder.parent_path(), folder.parent_path().parent_path()}) {
    if (fs::exists(candidate / "config.toml", none)) return (candidate / "config.toml").string();
  }
  refuse(path.string() + ": is neither a run nor a checkpoint of one: there is no config.toml");
}

// Words, classes and the columns of a table are read from the run's data. Other data may give them other codes.
void require_same_data(const std::string& path, const State& snapshot, const Plugin& task) {
  const auto before = snapshot.part("plugin/" + task.id()), now = task.save();
  for (const auto& [key, what] : {std::pair{"data", "training"}, {"held_out", "held-out"}}) {
    if (!before.has(key) || !now.has(key) || before.text(key) == now.text(key)) continue;
    refuse(path + ": the " + what + " data have changed since this checkpoint was saved: then " + before.text(key) +
           ", now " + now.text(key) + "; put the run's files back, or name them with --set task.KEY=FILE");
  }
}

bool sets_task(const std::vector<std::string>& sets) {
  return std::ranges::any_of(sets, [](const auto& each) { return each.starts_with("task."); });
}

SupervisedTask& supervised(const Prepared& prepared, const char* verb) {
  auto* task = dynamic_cast<SupervisedTask*>(prepared.wiring->task.get());
  if (task != nullptr) return *task;
  refuse(std::string(verb) + " is for tasks that are built on SupervisedTask, and " + prepared.wiring->task->id() +
         " is not; see docs/train-your-own.md");
}

// Writes a file completely or not at all.
void write_whole(const std::string& path, const std::function<void(const std::string& part)>& write) {
  const std::string part = path + ".part";
  try {
    write(part);
    fs::rename(part, path);
  } catch (...) {
    std::error_code none;
    fs::remove_all(part, none);
    throw;
  }
}

// Returns true if the path is that of a source, such as "x.csv" or "x.npz:images".
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
void refuse_data_as_output(const std::string& output, const std::string& input, const Table& config) {
  std::error_code none;
  if (!fs::exists(output, none)) return;
  if (is_same_file(input, output)) refuse(output + ": is the input, which it would replace; name another file");
  const auto task = config.find(Task::role);
  if (task != config.end() && !source_at(task->second, output).empty()) {
    refuse(output + ": is a file that [task] of the run names, and would be replaced; name another one");
  }
}

const PublishedModel& published(const Prepared& prepared) {
  const auto* model = dynamic_cast<const PublishedModel*>(prepared.wiring->task.get());
  if (model != nullptr) return *model;
  refuse(prepared.wiring->task->id() + " has no published form; it is for task/llama, and task/gpt with a `folder`");
}

std::vector<ModelAdapter*> adapters_of(const Prepared& prepared) {
  std::vector<ModelAdapter*> adapters;
  for (auto* plugin : prepared.wiring->plugins()) {
    if (auto* adapter = dynamic_cast<ModelAdapter*>(plugin)) adapters.push_back(adapter);
  }
  return adapters;
}

// Writes what each adapter of the run added; there is one, since a second one would be another model's.
void write_adapter(const Prepared& prepared, const std::string& folder) {
  const auto adapters = adapters_of(prepared);
  if (adapters.size() != 1) refuse("--format peft is for a run with callback/lora, and this run has none");
  adapters.front()->write_adapter(folder, dynamic_cast<const PublishedModel*>(prepared.wiring->task.get()));
}

[[noreturn]] void refuse_format(const std::string& format) {
  const auto near = nearest(format, {"torchscript", "safetensors", "python", "huggingface", "peft"});
  refuse("--format is " + shortened(format) + ", and must be torchscript, safetensors, python, huggingface or peft" +
         (near.empty() ? "" : "; did you mean " + near + "?"));
}

int stopped(const std::atomic<int>& stop) {
  std::cout << "stopped; nothing was written\n";
  return 128 + stop;
}

}  // namespace

std::unique_ptr<Prepared> load_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                                   const std::atomic<int>& stop, bool allow_other_data) {
  set_log_level(static_cast<int>(Level::warning));
  auto config = load_config({configuration_at(path)}, sets);
  config.erase(Monitor::role);
  auto prepared = prepare(std::move(config), "run", host, stop, [](auto&&...) { return true; });
  auto snapshot = prepared->wiring->checkpoint->read(prepared->run, path);
  if (!snapshot) refuse(path + ": there is no checkpoint in this run");
  const auto& task = *prepared->wiring->task;
  if (dynamic_cast<const SupervisedTask*>(&task) != nullptr && !allow_other_data) {
    require_same_data(path, *snapshot, task);
  }
  try {
    restore_weights(std::move(*snapshot), prepared->run, prepared->wiring->plugins());
  } catch (...) {
    rethrow_naming(path, "", Error::Kind::configuration);
  }
  return prepared;
}

int evaluate_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                 const std::atomic<int>& stop) {
  const auto prepared = load_run(path, sets, host, stop, sets_task(sets));
  Run& run = prepared->run;
  run.metrics.clear();
  const auto loss = prepared->trainer.evaluate(run, [&] { return prepared->wiring->task->validate(run); });
  if (stop != 0) return stopped(stop);
  if (!loss.defined()) refuse(path + ": " + prepared->wiring->task->id() + " has no data to validate on");
  run.metrics.set("validation_loss", loss);
  std::cout << printable(path) << " after step " << run.step << '\n';
  for (const auto* metric : run.metrics.set_now()) {
    std::cout << "  " << printable(metric->name) << ' '
              << std::string(std::max<std::size_t>(24, metric->name.size()) - metric->name.size(), ' ')
              << print_number("%.6g", metric->value()) << '\n';
  }
  return 0;
}

int predict_with_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                     const std::atomic<int>& stop, const std::string& input, const std::string& output) {
  refuse_unknown_format(output);
  const auto prepared = load_run(path, sets, host, stop);
  auto& task = supervised(*prepared, "predict");
  refuse_data_as_output(output, input, prepared->config);
  const auto dataset = task.read_inputs(input);
  if (dataset->size() == 0) refuse(input + ": there is nothing in it to predict");
  write_whole(output, [&](const std::string& part) {
    auto predictions = write_predictions(part, output);
    prepared->trainer.evaluate(prepared->run, [&] {
      auto loader = task.loader_of(dataset);
      for (auto left = loader.batches_per_epoch(); left > 0; --left) {
        if (stop != 0) throw Error("stopped; nothing was written", Error::Kind::training);
        predictions->add(task.predict(loader.next().to(prepared->run.device)));
      }
      return torch::Tensor();
    });
    predictions->finish();
  });
  std::cout << printable(output) << ": " << dataset->size() << " rows\n";
  return 0;
}

int export_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
               const std::atomic<int>& stop, const std::string& format, const std::string& output) {
  const auto prepared = load_run(path, sets, host, stop);
  Run& run = prepared->run;
  const auto weights = [&](const std::string& file) {
    save_safetensors(file, model_tensors(*run.model), Metadata{{"format", "pt"}});
  };
  // Within an evaluation: a callback that has averages puts them into the model there.
  const auto in_evaluation = [&](const std::function<void()>& body) {
    prepared->trainer.evaluate(run, [&] {
      if (format != "peft") {
        for (auto* adapter : adapters_of(*prepared)) adapter->merge();
      }
      body();
      return torch::Tensor();
    });
  };
  std::error_code none;
  if (fs::exists(output, none)) refuse(output + ": is there already; name another file");
  if (format == "safetensors") {
    write_whole(output, [&](const std::string& part) { in_evaluation([&] { weights(part); }); });
  } else if (format == "torchscript") {
    auto& task = supervised(*prepared, "export to TorchScript");
    write_whole(output, [&](const std::string& part) {
      in_evaluation([&] { save_torchscript(part, *run.model, task, run.device); });
    });
  } else if (format == "python") {
    auto& task = supervised(*prepared, "export to Python");
    const auto source = task.python_model();
    if (source.empty()) refuse(task.id() + " has no python_model(), so it has no Python form; export to torchscript");
    write_whole(output, [&](const std::string& part) {
      fs::create_directories(part);
      std::ofstream file(part + "/model.py");
      if (!(file << source).flush()) throw Error(output + ": model.py cannot be written");
      in_evaluation([&] { weights(part + "/model.safetensors"); });
    });
  } else if (format == "huggingface") {
    const auto& model = published(*prepared);
    write_whole(output, [&](const std::string& part) { in_evaluation([&] { model.write_published(part); }); });
  } else if (format == "peft") {
    write_whole(output, [&](const std::string& part) { in_evaluation([&] { write_adapter(*prepared, part); }); });
  } else {
    refuse_format(format);
  }
  std::cout << printable(output) << ": the model after step " << run.step << '\n';
  return 0;
}

}  // namespace vernier
