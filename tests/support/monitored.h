// A monitor with what the trainer does around it, and losses that are given.
#pragma once

#include <torch/types.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <memory>
#include <string>
#include <utility>

#include "plugin_library.h"
#include "run/preparation.h"
#include "temporary_folder.h"

struct Monitored {
  explicit Monitored(const TemporaryFolder& folder, const std::string& id, vernier::Table options = {},
                     std::int64_t first_step = 0, const vernier::State* saved = nullptr)
      : plugin(make_plugin<vernier::Monitor>(id, std::move(options))) {
    vernier::HostApi::declare(run.metric_infos, vernier::trainer_metrics(), "trainer");
    vernier::HostApi::attach(bus, *plugin, true);
    if (saved != nullptr) plugin->load(*saved);
    run.name = "quick";
    run.output = folder.path().string();
    run.steps = 1000;
    run.step = run.updates = first_step;
    run.samples = 8 * first_step;
    vernier::HostApi::emit(bus, vernier::Event::RunBegin, run);
  }

  void step(double loss = 0.5) {
    run.loss = torch::full({}, loss, torch::kFloat32);
    run.updates += 1;
    run.samples += 8;
    run.step += 1;
    vernier::HostApi::emit(bus, vernier::Event::StepEnd, run);
    run.notices.clear();
  }
  void train(std::int64_t to) {
    while (run.step < to) step(static_cast<double>(run.step));
  }
  void validate(double loss) {
    vernier::HostApi::clear(run.metrics);
    run.metrics.set("validation_loss", loss);
    vernier::HostApi::emit(bus, vernier::Event::Validated, run);
    vernier::HostApi::clear(run.metrics);
  }
  void end() { vernier::HostApi::emit(bus, vernier::Event::RunEnd, run); }

  vernier::TrainerRun run;
  std::unique_ptr<vernier::Monitor> plugin;
  vernier::Bus bus;
};

inline vernier::Value toml_text(const std::string& text) {
  return {text, "test.toml:2"};
}
inline vernier::Value toml_number(std::int64_t number) {
  return {number, "test.toml:3"};
}
