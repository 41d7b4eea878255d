// A Control for tests of a plugin without a trainer: it records requests and does nothing else.
#pragma once

#include <vernier/control.h>
#include <vernier/plugin.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

class FakeControl : public vernier::Control {
 public:
  struct Rewind {
    std::int64_t back, drop;
    std::string also;
  };

  void swap(const vernier::Table& roles) override { swaps.push_back(roles); }
  void try_swap(const vernier::Table& roles) override { tried.push_back(roles); }
  void keep_savepoints(std::int64_t every, std::int64_t keep) override {
    savepoints_every = every;
    savepoints_kept = keep;
  }
  void rewind(vernier::Plugin&, std::int64_t back, std::int64_t drop, const std::string& also) override {
    rewinds.push_back({back, drop, also});
  }
  void fail(const vernier::Plugin&, const std::string& why) override { failure = why; }
  void finish(const vernier::Plugin&, const std::string& why) override { finished = why; }
  bool finishes() const override { return !finished.empty(); }
  std::int64_t rank() const override { return 0; }
  std::int64_t ranks() const override { return 1; }
  std::vector<vernier::State> gather(const vernier::State& of_this_rank) override { return {of_this_rank}; }
  void between_steps(const vernier::Plugin&, std::function<bool(vernier::BetweenSteps&)> look) override {
    looks.push_back(std::move(look));
  }
  vernier::State snapshot() override { return {}; }
  torch::Tensor recompute() override { return {}; }
  torch::Tensor recompute_at(const std::function<void()>&) override { return {}; }
  void want_rerun(const vernier::Plugin&) override {}
  bool rerun(const std::function<void()>&, const std::function<void()>&) override { return true; }

  std::string failure;                // the text of the last fail(); empty: none
  std::string finished;               // the same of finish()
  std::vector<vernier::Table> swaps;  // the tables given to swap()
  std::vector<vernier::Table> tried;  // the tables given to try_swap()
  std::vector<std::function<bool(vernier::BetweenSteps&)>> looks;
  std::vector<Rewind> rewinds;
  std::int64_t savepoints_every = 0, savepoints_kept = 0;
};
