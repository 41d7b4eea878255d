// The trainer of `vernier` in a program of your own: link vernier::trainer. docs/guides/embedding.md shows a whole
// program.
//
//   vernier::Trainer trainer({.toml = "[run]\nsteps = 100\n[optimizer]\nuse = \"adamw\""});
//   trainer.use(std::make_unique<MyTask>());
//   const auto outcome = trainer.train();  // or: while (trainer.train_step()) { … }
//
// It installs no signal handler and nothing at exit. This header is not part of the plugin ABI.
#pragma once

#include <vernier/roles.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

struct TrainerOptions {
  std::vector<std::string> files = {};         // TOML files, merged left to right, as `vernier train` takes them
  std::string toml = {};                       // TOML text without `include`, merged after the files
  std::vector<std::string> sets = {};          // "run.steps=100" and so on, as --set takes them, merged last
  std::vector<std::string> plugin_paths = {};  // folders with <role>/<name>.so, as --plugin-path; searched first
  std::string name = {};                       // name of the run if [run] has none; "": the first file's, or "run"
  // If true, [run] output gets config.toml, log.txt, summary.json and checkpoints, as from the program. If false,
  // `checkpoint` is "none", and Run::output is a temporary folder of this Trainer. With a checkpoint object of yours,
  // Run::output stays [run] output, where it may save.
  bool writes_folder = true;
  bool quiet = false;                // monitors print nothing to the terminal
  std::atomic<int>* stop = nullptr;  // your own flag, which outlives the trainer: -1 in it acts as stop()
};

struct TrainOutcome {
  std::int64_t steps = 0;                       // finished in the whole run
  std::optional<double> loss, validation_loss;  // loss: the last step's; validation_loss: the run's last one
  double seconds = 0;                           // duration of this trainer's steps, without validations and checkpoints
  std::string ended_by;  // done, finished, stopped, time_limit, diverged, error; "" while the run goes on
  std::string why;       // finished: the plugin and its reason; diverged and error: what is wrong
};

// One run. For the thread that made it, but for stop(). A process that is forked after the first use of a trainer gets
// an error from each function. Errors are vernier::Error, with the texts of the program. The constructor reads the
// TOML; the first use of anything but use() and add() makes plugins, data and model. One trainer at a time may be
// between its first use and the end of its run, since LibTorch's random numbers, thread count and memory limit belong
// to the process: another is refused.
class VERNIER_API Trainer {
 public:
  explicit Trainer(TrainerOptions options);
  ~Trainer();  // waits for checkpoints that are being written; a run that has not ended is not saved

  // Before the first use. Makes an object the plugin of its role, which then may have no table. Its id is its own, or
  // the owner of `options`, or "task/object". options: those it was made from, which a resumed run must have too;
  // without them a resumed run warns that nothing is compared. A role that is neither a table nor an object gets the
  // program's default.
  template <class Role>
  void use(std::unique_ptr<Role> plugin, const Options& options = Options("", {}, "")) {
    use(Role::role, std::unique_ptr<Plugin>(std::move(plugin)), options);
  }
  // Adds a callback or monitor behind those of the TOML.
  template <class Listener>
  void add(std::unique_ptr<Listener> plugin, const Options& options = Options("", {}, "")) {
    use(Listener::role, std::unique_ptr<Plugin>(std::move(plugin)), options);
  }

  // Before the first step: continues from a checkpoint, or the newest of a run, at `path`; "": of [run] output. Refuses
  // what would not equal a run that was never stopped, unless allow_inexact.
  void resume(const std::string& path = "", bool allow_inexact = false);

  // One update, with the validation, checkpoint and end of an epoch that come after it: the same bits as in train().
  // The last planned one also ends the run. Returns false if the run has ended or ends now, without a step.
  bool train_step();
  std::int64_t train_epoch();  // steps until the epoch or the run ends; returns how many
  TrainOutcome train();        // all steps that are left
  TrainOutcome outcome() const;
  // Any thread. Ends the run after the step in work, or in the next call of a function above, with a checkpoint.
  void stop();

  // The task's loss over its whole validation set now, in evaluation mode; nothing if it has none or stop() was called.
  // The run's numbers do not depend on it: no event is emitted.
  std::optional<double> validate();
  // The same of one batch, on the host: validate_step(trainer.run().batch) is about the samples of the last step. Then
  // metrics() has the loss as "validation_loss", and beside it what the task measures, as "accuracy".
  std::optional<double> validate_step(const Batch& batch);
  // Calls body with the task now, while the model is that of a validation: in evaluation mode, with the average of the
  // weights where the run has one, without gradients. Not called if stop() came before there was a model.
  void validate(const std::function<void(Task& task)>& body);
  // By name, "loss" among them: of the last step, or of the validation after it. Waits for the device.
  std::map<std::string, double> metrics() const;
  // A checkpoint now, by the checkpoint plugin, perhaps in the background; nothing after the run's end. path: there,
  // complete on return, whatever the checkpoint plugin is, in the format of checkpoint/rolling.
  void save(const std::string& path = "");

  // Between two steps: other plugins for some roles, as TOML: "[precision]\nuse = \"bf16\"". Not for task, callbacks
  // and monitors. If it is refused, the run is as before.
  void swap(const std::string& toml);
  // Between two steps. false: precision fp32 and scaler none. true: those of the configuration again, with new memory.
  void use_mixed_precision(bool on);

  const Run& run();
  torch::nn::Module& model();
  AmpStats amp();    // statistics of mixed precision so far
  void reset_amp();  // between two steps: they begin anew

 private:
  void use(const std::string& role, std::unique_ptr<Plugin> plugin, const Options& options);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vernier
