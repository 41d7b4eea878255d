#include "prepared.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/utils.h>
#include <vernier/cores.h>
#include <vernier/fused_kernels.h>
#include <vernier/launch_place.h>
#include <vernier/memory.h>

#include <cstdlib>

#include "common/config/config.h"

namespace vernier {

namespace {

Options run_options_table(const Table& config) {
  const auto found = config.find("run");
  if (found == config.end()) return {"run", {}, ""};
  const auto* table = std::get_if<Table>(&found->second.data);
  if (table == nullptr) throw Error(found->second.where + ": [run] must be a table", Error::Kind::configuration);
  return {"run", *table, found->second.where};
}

// Calls body, whose errors are about an option of [run].
template <class Body>
auto for_option(const Options& run_table, const char* option, const Body& body) try {
  return body();
} catch (const Error& error) {
  run_table.refuse(option, error.what());
}

// Called before the first matrix product, because MKL chooses its path once.
MatmulChoice choose_kernels(const RunOptions& options, const Options& run_table) {
  at::globalContext().setFloat32MatmulPrecision(options.matmul_precision);
  use_fused_kernels(options.fused);
  at::globalContext().setDeterministicAlgorithms(options.deterministic, /*warn_only=*/false);
  // cuBLAS is deterministic with a workspace of its own for each stream (its documentation, "Results reproducibility").
  if (options.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  try {
    return use_matmul(options.matmul);
  } catch (const Error& error) {
    run_table.refuse("matmul", std::string("cannot be had: ") + error.what());
  }
}

// Returns the cores that a quota leaves, if these are fewer than OpenMP counts, which knows no quotas; else 0.
int fewer_threads() {
  const auto cores = available_cores();
  return std::getenv("OMP_NUM_THREADS") == nullptr && cores < at::get_num_threads() ? static_cast<int>(cores) : 0;
}

// Returns null for the operators, and, when it has said why, where the device or the build has no such engine.
std::unique_ptr<RecordedPasses> passes_by(const std::string& engine, c10::Device device) try {
  if (engine == "operators") return nullptr;
  const bool is_compiled = engine == "compiled";
  if (is_compiled ? !device.is_cpu() : !device.is_cuda()) throw Error(c10::str("the run trains on ", device));
  return recorded_passes(is_compiled ? compiled_graphs() : cuda_graphs(device),
                         is_compiled ? Recordings::faster : Recordings::exact);
} catch (const std::exception& error) {
  log(Level::info, "run",
      "engine: the operators compute, because there is no engine \"" + engine + "\": " + error.what());
  return nullptr;
}

// Refuses a run of one process that a launcher started as one of several. A [distributed] that is written out, or an
// object of the program, is what the user wants.
void refuse_to_train_alone(const Table& config, const Wiring& wiring) {
  const auto table = config.find(Distributed::role);
  const bool is_written = table != config.end() && !use_of(table->second).empty();
  if (is_written || use_of(wiring.table_of(*wiring.distributed)).empty()) return;
  if (const auto reason = several_of_launcher(); !reason.empty()) refuse(reason);
}

}  // namespace

std::unique_ptr<Prepared> prepare(Table config, const std::string& default_name, const Host& host,
                                  const std::atomic<int>& stop, const Resumes& resumes, int threads,
                                  std::vector<Given> given, Purpose purpose) {
  auto run_table = run_options_table(config);
  RunOptions options(run_table, default_name);
  // The device comes before anything asks about CUDA, and the limit before the first tensor, so that all are counted.
  const auto device = for_option(run_table, "device", [&] { return open_device(options.device); });
  for_option(run_table, "memory_limit", [&, &limit = options.memory_limit] {
    limit_memory(device, limit.empty() ? 0 : bytes_of(limit, device_memory(device)));
  });
  auto matmul = choose_kernels(options, run_table);
  if (threads == 0) threads = static_cast<int>(options.threads);
  if (threads == 0) threads = fewer_threads();
  if (threads > 0) at::set_num_threads(threads);
  torch::manual_seed(options.seed);
  auto wiring = wire(config, host, std::move(given));
  if (purpose == Purpose::training) refuse_to_train_alone(config, *wiring);
  auto& wired = *wiring;
  const auto validate_every = options.validate_every;
  auto prepared = std::unique_ptr<Prepared>(new Prepared{std::move(config), std::move(run_table), std::move(options),
                                                         std::move(matmul), false, std::move(wiring), TrainerRun{},
                                                         TrainingLoop(wired, validate_every, stop)});
  TrainerRun& run = prepared->run;
  run.name = prepared->options.name;
  run.output = prepared->options.output;
  if (const auto place = run.output.find("{name}"); place != std::string::npos) run.output.replace(place, 6, run.name);
  while (run.output.size() > 1 && run.output.back() == '/') run.output.pop_back();  // a number may be put behind it
  run.device = device;
  run.seed = prepared->options.seed;
  run.steps = prepared->options.steps;
  prepared->resumes = resumes(wired, prepared->options, run.output);
  const auto init = [&](torch::nn::Module& model) {
    const auto& from = prepared->options;
    try {
      if (!prepared->resumes) init_weights(model, {from.init_from, from.init_rename, from.init_strict});
    } catch (const Error& error) {
      refuse(std::string("[run] init_from: ") + error.what());
    }
  };
  const bool trains = purpose == Purpose::training;
  auto& trainer = prepared->trainer;
  trainer.step().transaction().undo_failed_steps(prepared->options.undo_failed_steps);
  trainer.ending().limit_time(prepared->options.time_limit);
  if (trains) trainer.step().record_with(passes_by(prepared->options.engine, device));
  trainer.saving().keep_configuration(
      [&wired, &table = prepared->run_table](Keys keys) { return resolved_configuration(table, wired, keys); });
  trainer.prepare(run, prepared->options.epochs, init, trains);
  return prepared;
}

void refuse_another_libtorch() {
  constexpr int patch_bits = 48;  // LibTorch's patch releases keep the binary interface
  if (aoti_torch_abi_version() >> patch_bits == TORCH_ABI_VERSION >> patch_bits) return;
  throw Error(std::string("the LibTorch that was loaded is not the ") + TORCH_VERSION +
                  " that Vernier was built with; unset LD_LIBRARY_PATH, or rebuild",
              Error::Kind::plugin);
}

}  // namespace vernier
