// Option `in_backward` of optimizers: each gradient is used and freed as soon as the backward pass of the batch's last
// piece has completed it (vernier::FusedOptimizer::step_in_backward). docs/optimizers.md says what is given up for it.
#pragma once

#include <vernier/sdk.h>

#include <functional>

class InBackward {
 public:
  explicit InBackward(vernier::Options& options)
      : is_on_(options.get("in_backward", false, "use and free each gradient in backward: less memory, no clipping")) {}

  bool is_on() const { return is_on_; }

  // begin: called before the pieces' backward, with whether theirs is the pass that updates.
  void attach(vernier::Bus& bus, std::function<void(vernier::Run& run, bool updates)> begin) {
    if (!is_on_) return;
    bus.on(vernier::Event::StepBegin, [this](vernier::Run&) { samples_ = 0; });
    bus.on(vernier::Event::BatchReady, [this, begin = std::move(begin)](vernier::Run& run) {
      samples_ += run.piece.samples;
      begin(run, samples_ == run.batch.samples);
    });
  }

  void prepare(const vernier::Run& run, const char* optimizer) const {
    if (!is_on_) return;
    for (const auto& parameter : run.parameters) {
      if (parameter.owned.is_same(parameter.model)) continue;
      throw vernier::Error(c10::str("optimizer/", optimizer, ": in_backward updates the model's own weights, and the ",
                                    "precision keeps others for it (", parameter.name,
                                    "); choose one without masters, or leave in_backward out"),
                           vernier::Error::Kind::configuration);
    }
  }

 private:
  bool is_on_;
  std::int64_t samples_ = 0;  // of this batch's pieces so far
};
