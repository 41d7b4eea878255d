// A run as the command line makes it, from TOML, with all of it in a test's hands.
#pragma once

#include <ATen/Parallel.h>
#include <torch/utils.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/config/config.h"
#include "run/state/snapshot.h"
#include "run/training_loop.h"
#include "temporary_folder.h"
#include "wiring/wiring.h"

// The plugins of the build.
inline vernier::Host built_plugins() {
  return vernier::Host({std::filesystem::path(VERNIER_BINARY_DIR) / "plugins"});
}

// And those that are made for tests.
inline vernier::Host plugins_and_fixtures() {
  const std::filesystem::path build = VERNIER_BINARY_DIR;
  return vernier::Host({build / "plugins", build / "fixtures" / "plugins"});
}

// Several texts are merged left to right, as several files are.
inline vernier::Table from_toml(const std::vector<std::string>& texts) {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  for (const auto& text : texts) files.push_back(folder.write(std::to_string(files.size()) + ".toml", text));
  return vernier::load_config(files, {});
}

class SmallRun {
 public:
  // One thread for the kernels: the same sums on every machine. The output folder must exist.
  explicit SmallRun(const vernier::Table& config, const std::string& output = "",
                    const vernier::Host& host = built_plugins(), int threads = 1,
                    vernier::MakeDeviceGraph make_graph = nullptr,
                    vernier::Recordings recordings = vernier::Recordings::exact) {
    at::set_num_threads(threads);
    vernier::Options table("run", std::get<vernier::Table>(config.at("run").data), "test.toml:1");
    const vernier::RunOptions options(table, "test");
    torch::manual_seed(options.seed);
    wiring = vernier::wire(config, host);
    trainer = std::make_unique<vernier::TrainingLoop>(*wiring, options.validate_every, stop_);
    run.name = options.name;
    run.output = output;
    run.seed = options.seed;
    run.steps = options.steps;
    trainer->step().transaction().undo_failed_steps(options.undo_failed_steps);
    if (make_graph) trainer->step().record_with(vernier::recorded_passes(std::move(make_graph), recordings));
    trainer->prepare(run, options.epochs);
  }

  // Lets a test look, after the callbacks.
  void on(vernier::Event event, std::function<void(vernier::Run&)> listener) {
    class Listener final : public vernier::Callback {
     public:
      Listener(vernier::Event event, std::function<void(vernier::Run&)> call) : event_(event), call_(std::move(call)) {}
      void attach(vernier::Bus& bus) override { bus.on(event_, call_); }

     private:
      vernier::Event event_;
      std::function<void(vernier::Run&)> call_;
    };
    listeners_.push_back(std::make_unique<Listener>(event, std::move(listener)));
    vernier::HostApi::attach(wiring->bus, *listeners_.back(), false);
  }

  // As Ctrl-C does: the run ends after this step, with a checkpoint.
  void stop_after(std::int64_t step) {
    on(vernier::Event::StepEnd, [this, step](vernier::Run& now) {
      if (now.step == step) stop_ = SIGINT;
    });
  }

  // Trains on in the same process after that.
  void go_on() { stop_ = 0; }

  bool resume(const std::string& from = "") {
    auto snapshot = wiring->checkpoint->read(run, from);
    if (snapshot) trainer->resume(run, std::move(*snapshot));
    return snapshot.has_value();
  }

  vernier::Outcome train() { return trainer->train(run); }
  std::string digest() const { return vernier::digest(*run.model); }

  std::vector<std::unique_ptr<vernier::Plugin>> listeners_;  // outlive the bus
  std::unique_ptr<vernier::Wiring> wiring;
  std::unique_ptr<vernier::TrainingLoop> trainer;
  vernier::TrainerRun run;

 private:
  std::atomic<int> stop_ = 0;
};
