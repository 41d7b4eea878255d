// The model of a trained run, for the verbs that use it. They read the run's folder; evaluate alone writes into it.
#pragma once

#include <vernier/data/supervised_task.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/verb.h"
#include "run/prepared.h"
#include "wiring/host.h"

namespace vernier {

// A use of a trained run. A task that keeps what it learned from its data in checkpoints needs them for `evaluation`
// alone. Others read them always, and then they must be those of the training, except for `other_data`.
enum class Use { model, evaluation, other_data };

// Returns the run with the weights of its newest checkpoint, or of the one at `path`. The model is made again, with
// `sets` changed in the configuration.
std::unique_ptr<Prepared> load_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                                   const std::atomic<int>& stop, Use use);

// The same for the command line of a verb that takes one run, --set, --plugin-path and the shorthands. example: the
// command that errors show.
struct RunCall {
  std::string path;
  std::vector<std::string> sets;
};
RunCall run_of(const boost::program_options::variables_map& given, const std::string& example);
std::unique_ptr<Prepared> load_run(const RunCall& call, const boost::program_options::variables_map& given, Use use);
// Returns the folder of the run at a path, or of the run whose checkpoint is there.
std::string folder_of_run(const std::string& path);
// Returns the value of an option that the verb needs.
std::string needed(const boost::program_options::variables_map& given, const char* option, const std::string& example);

// Called before an evaluation, for --weights model: the model keeps its own weights, where a plugin has an average.
void choose_weights(Prepared& prepared, const boost::program_options::variables_map& given);
// Returns ", with the average of callback/ema (--weights model: without)" or the like; "" for the weights of the last
// step, if there are no others. path: the run.
std::string weights_in(Prepared& prepared, const std::string& path);

// Returns the task, or refuses one that is not built on SupervisedTask. verb: for the error.
SupervisedTask& supervised(const Prepared& prepared, const char* verb);

}  // namespace vernier
