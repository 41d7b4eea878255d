// A run that is wired and prepared, but has not begun.
#pragma once

#include <vernier/matmul.h>

#include "training_loop.h"

namespace vernier {

struct Prepared {
  Table config;
  Options run_table;
  RunOptions options;
  MatmulChoice matmul;
  bool resumes = false;
  std::unique_ptr<Wiring> wiring;
  TrainerRun run;
  TrainingLoop trainer;
  bool logs_steps = false;                    // --debug: the status of each step is logged
  std::unique_ptr<Monitor> status = nullptr;  // writes status.json, from open_run() on
};

// Returns true if the run in a folder is resumed, so that its first weights come from a checkpoint and init_from is not
// read. Called once, when the plugins are made and nothing is prepared.
using Resumes = std::function<bool(const Wiring& wiring, const RunOptions& options, const std::string& output)>;

// use: a trained model is evaluated, exported or predicts, so what only a training needs is not checked.
enum class Purpose { training, use };

// default_name: the run's, where the table gives none. threads: of the kernels, in the place of the table's; 0: the
// table's. given: plugins that are not made from tables.
std::unique_ptr<Prepared> prepare(Table config, const std::string& default_name, const Host& host,
                                  const std::atomic<int>& stop, const Resumes& resumes, int threads = 0,
                                  std::vector<Given> given = {}, Purpose purpose = Purpose::training);

// Throws Error if the LibTorch that was loaded is not the one of the headers, as with a stray LD_LIBRARY_PATH.
void refuse_another_libtorch();

}  // namespace vernier
