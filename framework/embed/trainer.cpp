#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <unistd.h>
#include <vernier/checkpoint_split.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/trainer.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <optional>

#include "common/config/config.h"
#include "common/config/plugin_folders.h"
#include "common/log.h"
#include "common/scratch_folder.h"
#include "core/plugin_calls.h"
#include "output/recorded_run.h"
#include "output/summary.h"
#include "run/prepared.h"
#include "wiring/wiring.h"

namespace vernier {

namespace {

// The trainer that is between its first use and the end of its run.
std::atomic<const void*> in_use = nullptr;

// The process in which a trainer was first used; 0: none was.
std::atomic<pid_t> used_in = 0;

bool is_forked() {
  return used_in != 0 && used_in != ::getpid();
}

// A forked process lacks the threads of LibTorch, of data loaders and of checkpoints, and would wait for them for ever.
void refuse_forked() {
  if (!is_forked()) return;
  refuse(
      "this process was forked from one that uses a vernier::Trainer, whose threads are not in it; fork before the "
      "first use of a trainer, or start a program of its own");
}

// Whatever else is thrown (a file system's error, LibTorch's) becomes an Error of the same text.
template <class Body>
auto as_errors(const Body& body) {
  try {
    refuse_forked();
    return body();
  } catch (const Error&) {
    throw;
  } catch (...) {
    const auto [text, kind] = caught();
    std::throw_with_nested(Error(text, kind));
  }
}

Value table_using(const char* name) {
  return {Table{{"use", {std::string(name), ""}}}, ""};
}

}  // namespace

struct Trainer::Impl {
  explicit Impl(TrainerOptions given_options)
      : options(std::move(given_options)), config(load_config(options.files, options.sets, options.toml)) {}
  ~Impl() {
    lift_memory_limit();
    prepared.reset();  // waits for what is being written, into the folder that is locked
    if (!is_over) close();
  }

  void ready();
  void enter();
  bool step();
  void finish();
  void close();

  std::optional<double> evaluated(const std::function<torch::Tensor(TrainerRun& run)>& loss);
  void prepare_run();
  void save_nothing_without_folder();
  void lift_memory_limit() const;
  TrainingLoop& loop() const { return prepared->trainer; }
  Wiring& wiring() const { return *prepared->wiring; }
  bool saves() const { return use_of(wiring().table_of(*wiring().checkpoint)) != "none"; }

  TrainerOptions options;
  Table config;
  std::vector<Given> given;
  std::string without_options;  // ids of the objects that came without Options
  const std::thread::id thread = std::this_thread::get_id();
  std::optional<OutputFolder> folder;
  std::optional<ScratchFolder> scratch;  // without writes_folder: for what plugins write
  std::unique_ptr<Prepared> prepared;
  std::exception_ptr refused;    // why this trainer cannot train
  Value precision, scaler;       // the configuration's tables, before any swap
  std::optional<Metrics> shown;  // metrics of a validation that the program requested after the last step
  std::atomic<int> own_stop = 0;
  std::atomic<int>& stop = options.stop != nullptr ? *options.stop : own_stop;
  std::string resume_from;
  bool resumes = false, allows_inexact = false;
  bool is_entered = false;             // the run has its folder, and is where it is to continue
  bool is_over = false;                // nothing trains any more
  bool is_stopped_before_all = false;  // by stop(), before the first step
};

// Makes plugins, data and model, once.
void Trainer::Impl::ready() {
  if (std::this_thread::get_id() != thread) {
    refuse("a vernier::Trainer is used on the thread that made it, and on no other; stop() may be called by any");
  }
  if (refused) std::rethrow_exception(refused);
  if (prepared != nullptr) return;
  used_in = ::getpid();
  const void* other = nullptr;
  if (!in_use.compare_exchange_strong(other, this)) {
    refuse(
        "another vernier::Trainer of this process has not ended its run; LibTorch's random numbers and thread count "
        "belong to the process: end or destroy that trainer first");
  }
  try {
    prepare_run();
    if (prepared->resumes) enter();
  } catch (...) {
    refused = std::current_exception();
    close();
    throw;
  }
}

void Trainer::Impl::prepare_run() {
  refuse_another_libtorch();
  if (!options.writes_folder) save_nothing_without_folder();
  const Host host(plugin_folders(options.plugin_paths, "TrainerOptions::plugin_paths: ", options.files));
  const auto wants_to_resume = [&](const Wiring& wired, const RunOptions& run, const std::string& output) {
    if (resumes || !options.writes_folder || run.resume != "auto") return resumes;
    return OutputFolder::is_there(output, *wired.checkpoint);
  };
  auto name = options.name;
  if (name.empty() && !options.files.empty()) name = std::filesystem::path(options.files.front()).stem().string();
  if (name.empty()) name = "run";
  prepared = prepare(config, name, host, stop, wants_to_resume, 0, std::move(given));
  prepared->run.quiet = options.quiet;
  if (prepared->options.measure_savings) {
    prepared->run_table.refuse("measure_savings",
                               "needs a process of its own, which only `vernier train` starts: set it to false, and "
                               "`vernier check FILE --savings` prints the figure");
  }
  precision = wiring().table_of(*wiring().precision);
  scaler = wiring().table_of(*wiring().scaler);
}

void Trainer::Impl::save_nothing_without_folder() {
  const auto is_checkpoint = [](const Given& each) { return each.role == Checkpoint::role; };
  if (std::ranges::any_of(given, is_checkpoint)) return;
  const auto table = config.try_emplace(Checkpoint::role, table_using("none")).first;
  if (use_of(table->second) == "none") return;
  refuse(table->second.where + ": [checkpoint] has no folder to write to, since TrainerOptions::writes_folder is " +
         "false; leave the table out, or set it");
}

// Opens the folder, and resumes the run if the options request it, once.
void Trainer::Impl::enter() {
  ready();
  if (listening_now() != nullptr) {
    refuse("a function of vernier::Trainer is called by a listener of " + listening_now()->id() +
           ", within a step; use run.control there, or call the function between two steps");
  }
  if (is_entered || is_over) return;
  is_entered = true;
  if (stop != 0) {  // perhaps there is no model yet
    is_stopped_before_all = true;
    return close();
  }
  try {
    if (options.writes_folder) {
      folder.emplace(open_run(*prepared, resume_from, allows_inexact, [](const std::string& path) {
        open_log_file(path);
        copy_log_to([](Level level, const std::string& who, const std::string& text) {
          write_log_file(static_cast<int>(level), who, printable(text, "\n\t"));
        });
      }));
      if (has_all_it_needs(*prepared)) return close();
      write_config(*prepared);
    } else if (prepared->resumes) {
      vernier::resume(*prepared, resume_from, allows_inexact);
    }
    // An own checkpoint object writes into the run's folder, where resume() looks for its checkpoints.
    if (!options.writes_folder && !saves()) prepared->run.output = scratch.emplace().path();
    if (prepared->resumes && !without_options.empty()) {
      log(Level::warning, "resume",
          without_options + ": came without Options, so nothing says whether it has the numbers of the run that goes " +
              "on; give use() and add() the Options that the object is made from, or ones with its id alone");
    }
  } catch (...) {
    refused = std::current_exception();
    close();
    throw;
  }
}

bool Trainer::Impl::step() {
  enter();
  if (is_over) return false;
  shown.reset();
  bool is_trained = false;
  try {
    is_trained = loop().train_step(prepared->run);
  } catch (...) {
    if (folder) summarize_failure(*prepared, loop().outcome(), caught().kind);
    close();
    throw;
  }
  if (!loop().is_running()) finish();
  return is_trained;
}

void Trainer::Impl::finish() {
  const auto closed = c10::make_scope_exit([this] { close(); });
  const auto outcome = loop().outcome();
  if (folder) summarize(*prepared, outcome);
  warn_of_divergence(prepared->run, outcome);
}

// Gives back what belongs to the process.
void Trainer::Impl::close() {
  is_over = true;
  lift_memory_limit();
  if (in_use != this) return;
  copy_log_to(nullptr);
  close_log_file();
  folder.reset();
  in_use = nullptr;
}

void Trainer::Impl::lift_memory_limit() const {
  if (prepared != nullptr && in_use == this && !prepared->options.memory_limit.empty()) {
    limit_memory(prepared->run.device, 0);
  }
}

Trainer::Trainer(TrainerOptions options)
    : impl_(as_errors([&] { return std::make_unique<Impl>(std::move(options)); })) {}

Trainer::~Trainer() {
  if (is_forked()) (void)impl_.release();  // a forked child has none of its threads to wait for
}

void Trainer::use(const std::string& role, std::unique_ptr<Plugin> plugin, const Options& options) {
  refuse_forked();
  if (impl_->prepared != nullptr || impl_->refused) {
    refuse("the " + role + " comes too late: use() and add() stand before the first use of the trainer");
  }
  impl_->given.push_back(given(role, std::move(plugin), options));
  if (!options.owner().empty() || role == Monitor::role || role == Checkpoint::role) return;
  auto& ids = impl_->without_options;
  ids += (ids.empty() ? "" : ", ") + impl_->given.back().made.plugin->id();
}

void Trainer::resume(const std::string& path, bool allow_inexact) {
  refuse_forked();
  auto& impl = *impl_;
  if (impl.is_entered) refuse("resume() stands before the first step, and once");
  impl.resumes = true;
  impl.resume_from = path;
  impl.allows_inexact = allow_inexact;
  as_errors([&] {
    impl.ready();
    impl.prepared->resumes = true;
    impl.enter();
  });
}

bool Trainer::train_step() {
  return as_errors([&] { return impl_->step(); });
}

std::int64_t Trainer::train_epoch() {
  return as_errors([&] {
    impl_->enter();
    const auto epoch = impl_->prepared->run.epoch;
    std::int64_t steps = 0;
    while (impl_->prepared->run.epoch <= epoch && impl_->step()) ++steps;
    return steps;
  });
}

TrainOutcome Trainer::train() {
  as_errors([&] {
    while (impl_->step()) {
    }
  });
  return outcome();
}

TrainOutcome Trainer::outcome() const {
  refuse_forked();
  const auto& impl = *impl_;
  TrainOutcome result;
  if (impl.prepared == nullptr) return result;
  const auto& run = impl.prepared->run;
  const auto& outcome = impl.loop().outcome();
  result.steps = run.step;
  if (run.loss.defined()) result.loss = run.loss.item<double>();
  result.validation_loss = impl.loop().validation().outcome().validation_loss;
  result.seconds = outcome.seconds;
  if (!impl.is_over) return result;
  const bool was_finished =
      run.step < run.steps && !impl.loop().requests().finished().empty();  // perhaps before it was resumed
  result.ended_by = impl.is_stopped_before_all ? "stopped" : ended_by(outcome);
  if (result.ended_by == "done" && was_finished) result.ended_by = "finished";
  result.why = outcome.error.value_or(outcome.diverged);
  if (result.ended_by == "finished") result.why = impl.loop().requests().finished();
  return result;
}

void Trainer::stop() {
  refuse_forked();
  impl_->stop = stopped_by_program;
}

std::optional<double> Trainer::Impl::evaluated(const std::function<torch::Tensor(TrainerRun& run)>& loss_of) {
  ready();
  auto& run = prepared->run;
  if (run.model == nullptr) return std::nullopt;
  static const std::atomic<int> none = 0;
  if (is_over) run.stop = &none;  // there is nothing left to stop
  const Metrics of_step = run.metrics;
  const auto put_back = c10::make_scope_exit([&] { run.metrics = of_step; });
  std::optional<double> loss;
  loop().roles().calls.attributed(run, [&] {  // no event, so the run's numbers do not depend on it
    HostApi::clear(run.metrics);
    const auto value = loss_of(run);
    if (!run.is_stopping() && value.defined()) loss = value.item<double>();
  });
  if (!loss) return std::nullopt;
  shown = run.metrics;
  shown->set("validation_loss", *loss);
  return loss;
}

std::optional<double> Trainer::validate() {
  return as_errors(
      [&] { return impl_->evaluated([&](auto& run) { return impl_->loop().validation().evaluate(run); }); });
}

std::optional<double> Trainer::validate_step(const Batch& batch) {
  return as_errors([&] {
    return impl_->evaluated([&](auto& run) {
      return impl_->loop().validation().evaluate(
          run, [&] { return impl_->wiring().task->validate_batch(run, batch.to(run.device)); });
    });
  });
}

void Trainer::validate(const std::function<void(Task& task)>& body) {
  as_errors([&] {
    impl_->evaluated([&](auto& run) {
      impl_->loop().validation().use(run, [&] { body(*impl_->wiring().task); });
      return torch::Tensor();
    });
  });
}

std::map<std::string, double> Trainer::metrics() const {
  refuse_forked();
  std::map<std::string, double> all;
  if (impl_->prepared == nullptr) return all;
  const auto& run = impl_->prepared->run;
  if (run.loss.defined()) all["loss"] = run.loss.item<double>();
  for (const auto* entry : (impl_->shown ? *impl_->shown : run.metrics).set_now()) all[entry->name] = entry->value();
  return all;
}

void Trainer::save(const std::string& path) {
  as_errors([&] {
    impl_->enter();
    auto& run = impl_->prepared->run;
    auto& saving = impl_->loop().saving();
    if (!path.empty()) {
      if (impl_->wiring().distributed->ranks() > 1) refuse("save(path) is for one process; save() has all ranks save");
      auto [manifest, model, state] = split_snapshot(saving.snapshot(run));
      manifest.step = run.step;
      manifest.run = run.name;
      write_checkpoint(path, std::move(manifest), model, state);
    } else if (!impl_->options.writes_folder && !impl_->saves()) {
      refuse("save() has nowhere to write to, since TrainerOptions::writes_folder is false; give it a path");
    } else if (!impl_->is_over) {
      saving.save_now(run);
    }
  });
}

void Trainer::swap(const std::string& toml) {
  as_errors([&] {
    impl_->enter();
    if (impl_->is_over) refuse("the run has ended: nothing is swapped");
    impl_->loop().requests().swap(impl_->prepared->run, load_config({}, {}, toml));
  });
}

void Trainer::use_mixed_precision(bool on) {
  auto& impl = *impl_;
  as_errors([&] {
    impl.enter();
    if (impl.is_over) refuse("the run has ended: its precision stays");
    if (on && use_of(impl.precision) == "fp32") {
      refuse("the precision of the configuration is fp32, which is not mixed; name another with swap()");
    }
    Table roles;
    const auto choose = [&](const char* role, const Plugin& plugin, const Value& configured, const char* off) {
      const auto& now = impl.wiring().table_of(plugin);
      if (use_of(configured).empty()) {
        if (on) return;
        refuse(plugin.id() + " is an object of the program, which could not come back; switch it off itself");
      }
      auto wanted = on ? configured : table_using(off);
      if (!is_same(now, wanted)) roles.emplace(role, std::move(wanted));
    };
    choose(Precision::role, *impl.wiring().precision, impl.precision, "fp32");
    choose(Scaler::role, *impl.wiring().scaler, impl.scaler, "none");
    if (!roles.empty()) impl.loop().requests().swap(impl.prepared->run, roles);
  });
}

const Run& Trainer::run() {
  as_errors([&] { impl_->ready(); });
  return impl_->prepared->run;
}

torch::nn::Module& Trainer::model() {
  const auto& model = run().model;
  if (model == nullptr) throw Error("there is no model: stop() was called before it was made");
  return *model;
}

AmpStats Trainer::amp() {
  return run().amp;
}

void Trainer::reset_amp() {
  as_errors([&] {
    impl_->enter();
    auto& run = impl_->prepared->run;
    run.amp = {};
    if (run.model == nullptr) return;  // stopped before it was prepared
    impl_->loop().step().update_log().take_scale(run, impl_->loop().roles().scaler.current());
  });
}

}  // namespace vernier
