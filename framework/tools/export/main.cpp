// `vernier export`: writes a trained run's model for other programs.
#include <vernier/autocast.h>
#include <vernier/data/predictor.h>
#include <vernier/data/trainer_program.h>
#include <vernier/error.h>
#include <vernier/graph/graph_export.h>
#include <vernier/model_adapter.h>
#include <vernier/options.h>
#include <vernier/published_model.h>
#include <vernier/safetensors.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "cli/program.h"
#include "common/config/config.h"
#include "common/output_file.h"
#include "common/scratch_folder.h"
#include "gguf_model.h"
#include "run/state/snapshot.h"
#include "tools/model/trained_run.h"
#include "torchscript.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr const char* usage = R"(usage: vernier export RUN --format FORMAT --output FILE [--set KEY=VALUE]…

Writes the model of a run's newest checkpoint, as its validation has it.

  --format FORMAT        onnx, pt2 (for torch.export.load), torchscript, safetensors, python, trainer (a C++ program
                         that continues training without LibTorch), huggingface for a published language model, gguf for
                         llama.cpp, or peft for what an adapter such as callback/lora added; the other formats have the
                         adapter merged
  --dtype DTYPE          of the matrices in gguf: f32, f16, bf16 or q8_0; f16, if not given
  --output FILE          the file, or the folder of python, trainer, huggingface and peft; one that is there is kept. A
                         task such as tabular describes inputs and outputs in a JSON file beside it: model.pt gets
                         model.pt.json; a TorchScript module and model.py return it as text from describe()
  --force                replaces files that are there
  --set KEY=VALUE        changes the run's configuration
  --weights average|model
                         average: of callback/ema and the like, if the run has one (the default); model: without
  --trust                runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER   looks for plugins there first
)";

const std::vector<std::string> formats = {"onnx",    "pt2",         "torchscript", "safetensors", "python",
                                          "trainer", "huggingface", "gguf",        "peft"};
const std::map<std::string, gguf::Type> gguf_types = {
    {"f32", gguf::Type::f32}, {"f16", gguf::Type::f16}, {"bf16", gguf::Type::bf16}, {"q8_0", gguf::Type::q8_0}};

const PublishedModel& published(const Prepared& prepared) {
  const auto* model = dynamic_cast<const PublishedModel*>(prepared.wiring->task.get());
  if (model != nullptr) return *model;
  refuse(prepared.wiring->task->id() +
         " has no published form; it is for task/llama, and task/gpt and task/text with a `folder`");
}

ExportedModel on_device(ExportedModel model, const Prepared& prepared) {
  for (auto& example : model.examples) example = example.to(prepared.run.device);
  return model;
}

// Calls the body, whose refusals then say what cannot be exported.
template <class Body>
auto exporting(const Prepared& prepared, bool is_onnx, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::configuration) throw;
    const auto task = prepared.wiring->task->id();
    throw Error(task + " cannot be exported to " + (is_onnx ? "ONNX" : "pt2") + ": " + error.what(),
                Error::Kind::configuration);
  }
}

// The model of a task that has one of its own for ONNX.
std::optional<ExportedModel> onnx_of(const Prepared& prepared, const std::string& format) {
  auto* onnx = dynamic_cast<OnnxExportable*>(prepared.wiring->task.get());
  if (format != "onnx" || onnx == nullptr) return {};
  return exporting(prepared, /*is_onnx=*/true, [&] { return on_device(onnx->onnx_model(), prepared); });
}

ExportedModel graph_of(const Prepared& prepared) {
  if (auto* exportable = dynamic_cast<Exportable*>(prepared.wiring->task.get())) {
    return on_device(exportable->exported_model(), prepared);
  }
  auto& task = supervised(prepared, "export to ONNX or pt2");
  const auto* predictor = dynamic_cast<const Predictor*>(&task);
  const auto forward = [&task](const std::vector<torch::Tensor>& inputs) {
    Batch batch;
    batch.tensors = inputs;
    batch.samples = inputs.at(0).size(0);
    return task.forward(batch);
  };
  return {*prepared.run.model,
          forward,
          task.example(2).to(prepared.run.device).tensors,
          {},
          predictor == nullptr ? "" : predictor->description(),
          {},
          predictor == nullptr ? std::vector<std::string>() : predictor->classes()};
}

// To ONNX or pt2. onnx: of onnx_of().
void export_graph(const Prepared& prepared, bool is_onnx, const std::string& file,
                  const std::optional<ExportedModel>& onnx = {}) {
  const Autocast without(prepared.run.device.type(), torch::kFloat, /*enabled=*/false);
  exporting(prepared, is_onnx, [&] {
    const auto model = onnx ? *onnx : graph_of(prepared);
    is_onnx ? export_onnx(model, file) : export_pt2(model, file);
  });
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

void check_format(const std::string& format) {
  if (std::ranges::find(formats, format) != formats.end()) return;
  const auto near = nearest(format, formats);
  refuse("--format is " + shortened(format) +
         ", and must be onnx, pt2, torchscript, safetensors, python, trainer, huggingface, gguf or peft" +
         (near.empty() ? "" : "; did you mean " + near + "?"));
}

gguf::Type gguf_type(const std::string& format, const boost::program_options::variables_map& given) {
  if (given.count("dtype") == 0) return gguf::Type::f16;
  if (format != "gguf") refuse("--dtype is for --format gguf; the other formats have the dtype of the weights");
  const auto dtype = given["dtype"].as<std::string>();
  const auto found = gguf_types.find(dtype);
  if (found == gguf_types.end()) refuse("--dtype is " + shortened(dtype) + ", and must be f32, f16, bf16 or q8_0");
  return found->second;
}

void export_gguf(const PublishedModel& model, const std::string& file, gguf::Type type) {
  const ScratchFolder scratch(file);
  model.write_published(scratch.path() + "/model");
  gguf::write_model(scratch.path() + "/model", file, type);
}

void write_text(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  if (!(out << text).flush()) throw Error(file + ": cannot be written; the disk may be full");
}

// The text of the file beside the model; "": there is none.
std::string description_of(const Prepared& prepared, const std::string& format) {
  if (format == "python" || format == "trainer" || format == "huggingface" || format == "gguf" || format == "peft")
    return "";
  const auto* predictor = dynamic_cast<const Predictor*>(prepared.wiring->task.get());
  return predictor == nullptr ? "" : predictor->description();
}

// Returns true if the description of the same model is there.
bool is_there(const std::string& file, const std::string& description) {
  std::ifstream in(file, std::ios::binary);
  return in && std::string(std::istreambuf_iterator<char>(in), {}) == description + '\n';
}

// The folder of the Python form, without the weights.
void write_python(const std::string& folder, const SupervisedTask& task, const Predictor* predictor) {
  const auto source = predictor == nullptr ? "" : predictor->python_model();
  if (source.empty()) refuse(task.id() + " has no Python form; export to pt2 or onnx");
  const auto description = predictor->description();
  const bool has_describe = source.find("\ndef describe(") != std::string::npos;
  fs::create_directories(folder);
  write_text(folder + "/model.py", description.empty() || has_describe ? source : source + R"(

def describe():
    """Returns the names, order and words of the inputs, and what the outputs are, as JSON text."""
    from pathlib import Path

    return Path(__file__).with_name("description.json").read_text(encoding="utf-8")
)");
  if (!description.empty()) write_text(folder + "/description.json", description + '\n');
}

// The options of optimizer/adamw in the run's configuration. A trainer has one group of parameters.
std::optional<TrainerDefaults> adamw_of(const Table& config) {
  const auto found = config.find("optimizer");
  const auto* table = found == config.end() ? nullptr : std::get_if<Table>(&found->second.data);
  if (table == nullptr || use_of(found->second) != "adamw") return {};
  Options options("optimizer/adamw", *table, found->second.where);
  const bool is_one_group = !options.given("group") && options.get("layer_decay", 1.0, "") == 1;
  if (!is_one_group || options.get("amsgrad", false, "")) {
    refuse("a trainer cannot have `group`, `layer_decay` or `amsgrad` of optimizer/adamw");
  }
  const TrainerDefaults own;
  return TrainerDefaults{.learning_rate = options.get("learning_rate", own.learning_rate, ""),
                         .weight_decay = options.get("weight_decay", own.weight_decay, ""),
                         .beta1 = options.get("beta1", own.beta1, ""),
                         .beta2 = options.get("beta2", own.beta2, ""),
                         .epsilon = options.get("eps", own.epsilon, "")};
}

// The folder of the program, without the weights.
void write_trainer(const std::string& folder, const Prepared& prepared) {
  const auto* model = dynamic_cast<const TrainerExportable*>(prepared.wiring->task.get());
  if (model == nullptr) {
    refuse(prepared.wiring->task->id() +
           " cannot be exported as a trainer; task/tabular and LSTMs of task/sequence can");
  }
  const auto adamw = adamw_of(prepared.config);
  const auto plan = model->trainer_plan();
  fs::create_directories(folder);
  write_text(folder + "/trainer.cpp", trainer_program(plan, adamw.value_or(TrainerDefaults())));
  const bool is_table = !plan.columns.empty();
  const std::string data = is_table ? "data.csv" : "x.npy",
                    with_targets = plan.horizon > 0 ? data : data + (is_table ? "" : " y.npy");
  write_text(folder + "/README.md",
             c10::str(R"(# A program that continues training

Vernier wrote this folder. `trainer.cpp` needs a compiler of C++20 and the C library. The weights are in
`model.safetensors`.

```sh
c++ -std=c++20 -O3 -march=native trainer.cpp -o trainer
./trainer evaluate )",
                      with_targets, "\n./trainer predict ", data, "\n./trainer train ", with_targets,
                      " --epochs 10 --output trained.safetensors\n```\n\n",
                      is_table ? "The table needs a line of names. It has the columns of the training, in any order.\n"
                               : "Arrays are `.npy` files, or `.f32` files of float32 numbers without a header.\n",
                      plan.horizon > 0 ? "The array is a series, [steps] or [steps, features], oldest first.\n" : "",
                      R"(
The losses and weights have the same bits on every processor. The program trains with AdamW; )",
                      adamw ? "the options are those of the run"
                            : "the run had another optimizer, so the options are PyTorch's defaults",
                      R"(.
`--learning-rate` and `--weight-decay` change them. Schedules are not continued, and the averages of AdamW begin with
zeros. To train the weights further with Vernier, set `[run] init_from = "trained.safetensors"`.
)"));
}

// Converts tensors to float32, which the program reads. float64 and integers stay.
Tensors floats(Tensors tensors) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point() && tensor.scalar_type() != torch::kFloat64) tensor = tensor.to(torch::kFloat);
  }
  return tensors;
}

// Writes the model to a file or folder that does not exist yet. gguf_type: of its matrices; onnx: of onnx_of().
void write_as(const std::string& format, const std::string& part, Prepared& prepared, gguf::Type gguf_type,
              const std::optional<ExportedModel>& onnx) {
  TrainerRun& run = prepared.run;
  const auto weights = [&](const std::string& file) {
    const auto* python = dynamic_cast<const PythonModule*>(prepared.wiring->task.get());
    const auto tensors = python == nullptr ? model_tensors(*run.model) : python->state_dict();
    save_safetensors(file, tensors, Metadata{{"format", "pt"}});
  };
  // Within an evaluation: a callback that has averages puts them into the model there.
  const auto in_evaluation = [&](const std::function<void()>& body) {
    prepared.trainer.validation().use(run, [&] {
      if (format != "peft") {
        for (auto* adapter : adapters_of(prepared)) adapter->merge();
      }
      body();
    });
  };
  const auto* predictor = dynamic_cast<const Predictor*>(prepared.wiring->task.get());
  if (format == "safetensors") {
    in_evaluation([&] { weights(part); });
  } else if (format == "torchscript") {
    auto& task = supervised(prepared, "export to TorchScript");
    in_evaluation([&] { save_torchscript(part, *run.model, task, run.device); });
  } else if (format == "pt2") {
    in_evaluation([&] {
      if (predictor != nullptr && predictor->save_pt2(part)) return;  // the model came as such a file
      export_graph(prepared, /*is_onnx=*/false, part);
    });
  } else if (format == "onnx") {
    in_evaluation([&] { export_graph(prepared, /*is_onnx=*/true, part, onnx); });
  } else if (format == "python") {
    const auto& task = supervised(prepared, "export to Python");
    write_python(part, task, predictor);
    in_evaluation([&] { weights(part + "/model.safetensors"); });
  } else if (format == "trainer") {
    write_trainer(part, prepared);
    in_evaluation([&] { save_safetensors(part + "/model.safetensors", floats(model_tensors(*run.model)), {}); });
  } else if (format == "huggingface") {
    const auto& model = published(prepared);
    in_evaluation([&] { model.write_published(part); });
  } else if (format == "gguf") {
    const auto& model = published(prepared);
    if (model.task_type() != "CAUSAL_LM")
      refuse(prepared.wiring->task->id() + " writes no texts, and gguf is for models that do");
    in_evaluation([&] { export_gguf(model, part, gguf_type); });
  } else {  // peft
    in_evaluation([&] { write_adapter(prepared, part); });
  }
}

int export_run(const boost::program_options::variables_map& given) {
  const std::string example = "vernier export runs/NAME --format torchscript --output model.pt";
  const auto call = run_of(given, example);
  const auto format = needed(given, "format", example);
  auto output = needed(given, "output", example);
  while (output.size() > 1 && output.ends_with('/')) output.pop_back();  // shells end the name of a folder so
  check_format(format);
  const auto type = gguf_type(format, given);
  refuse_output(given, output);
  const auto prepared = load_run(call, given, Use::model);
  const auto onnx = onnx_of(*prepared, format);
  const auto description = onnx ? onnx->description : description_of(*prepared, format);
  const auto beside = output + ".json";
  if (!description.empty() && !is_there(beside, description)) refuse_output(given, beside);
  WholeFile file(output), description_file(beside);
  const auto& part = file.part();
  write_as(format, part, *prepared, type, onnx);
  if (!description.empty()) write_text(description_file.part(), description + '\n'), description_file.finish();
  file.finish();
  std::cout << printable(output) << ": the model after step " << prepared->run.step << weights_in(*prepared, call.path)
            << '\n';
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::run_options();
  options.add_options()("format", po::value<std::string>())("dtype", po::value<std::string>())(
      "output", po::value<std::string>())("force", "")("weights", po::value<std::string>());
  return vernier::call_run_verb(
      {"export", vernier::usage, options, vernier::export_run, {{"--format", vernier::formats}}}, argc, argv);
}
