#include "run/state/snapshot.h"
#include <vernier/host.h>

#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace snapshot_test {

using toy::Toy;
using vernier::State;

namespace {

// As a checkpoint keeps it.
State copy_of(const State& state) {
  State copy;
  for (const auto& [name, tensor] : state.tensors) copy.tensors[name] = tensor.clone();
  return copy;
}

struct Prepared : Toy {
  explicit Prepared(std::int64_t width = 4) {
    at::set_num_threads(1);
    wiring.task = std::make_unique<toy::Task>(3, width);
    wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
    prepare();
  }
  State snapshot() { return copy_of(take_snapshot(run, wiring.plugins())); }
  Thrown restore(const State& state, const std::string& configuration = "", bool allow_inexact = false) {
    return thrown_by([&] { restore_snapshot(state, run, wiring.plugins(), configuration, allow_inexact); });
  }
  std::string digest() { return vernier::digest(*run.model); }
};

}  // namespace

TEST_CASE("snapshot: all that a run depends on comes back") {
  Prepared saved, fresh;
  saved.trainer->train(saved.run);
  saved.task().model->seen.fill_(7);
  torch::manual_seed(5);
  const State snapshot = saved.snapshot();
  const auto random = torch::rand({4});
  CHECK(fresh.digest() != saved.digest());
  CHECK(fresh.restore(snapshot) == Thrown{});
  CHECK(fresh.digest() == saved.digest());
  CHECK(fresh.task().model->seen.item<double>() == 7);
  CHECK(fresh.run.step == 6);
  CHECK(fresh.run.updates == 6);
  CHECK(fresh.run.epoch == 2);
  CHECK(fresh.run.samples == 36);
  CHECK(fresh.run.tokens == 360);
  CHECK(torch::rand({4}).equal(random));
  const State again = fresh.snapshot();
  REQUIRE(again.tensors.size() == snapshot.tensors.size());
  for (const auto& [name, tensor] : snapshot.tensors) {
    CAPTURE(name);
    if (!name.starts_with("random/")) CHECK(again.tensors.at(name).equal(tensor));
  }
}

TEST_CASE("snapshot: one of another model or other plugins is refused before anything changes") {
  Prepared saved;
  saved.trainer->train(saved.run);
  const State good = saved.snapshot();
  const std::string remedy = ": it is a checkpoint of another model; resume with the configuration that wrote it";
  const auto refusal = [&](Prepared& into, const std::function<void(State&)>& damage) {
    State state = copy_of(good);
    damage(state);
    const auto before = into.digest();
    const auto thrown = into.restore(state);
    CHECK(into.digest() == before);
    CHECK(into.run.step == 0);
    return thrown;
  };
  Prepared same, wider(5);
  CHECK(refusal(wider, [](State&) {}) ==
        configuration("'first' is Float [4, 3] in the checkpoint and Float [5, 3] in this model" + remedy));
  CHECK(refusal(same, [](State& s) { s.tensors.erase("model/seen"); }) ==
        configuration("the checkpoint has no tensor 'seen'" + remedy));
  CHECK(refusal(same, [](State& s) { s.put("model/third", torch::zeros({1})); }) ==
        configuration("the checkpoint's 'third' is not in this model" + remedy));
  const auto inexact = [](const std::string& what) {
    return configuration("the run cannot be resumed bit for bit: " + what +
                         "; make them the same, or give --allow-inexact to resume all the same");
  };
  CHECK(refusal(same, [](State& s) { s.tensors["model/first"] = s.tensors["model/first"].to(torch::kFloat64); }) ==
        inexact("'first' was Double and is Float"));
  CHECK(refusal(same, [](State& s) { s.put("run/plugins", s.text("run/plugins") + " callback/ema"); }) ==
        inexact("callback/ema is not in this run"));
  CHECK(refusal(same, [](State& s) {
          s.put("run/plugins", std::string("task/toy precision/fp32 scaler/none optimizer/adamw"));
        }) == inexact("accumulation/micro_batches is new in this run"));
  CHECK(refusal(same, [](State& s) { s.put("run/versions", std::string("optimizer/adamw 0.9.0\n")); }) ==
        inexact("the version of optimizer/adamw was 0.9.0 and is ?"));
  CHECK(refusal(same, [](State& s) { s.put("run/threads", std::int64_t{7}); }) == inexact("threads was 7 and is 1"));
  CHECK(refusal(same, [](State& s) { s.put("run/device", std::string("cuda")); }) ==
        inexact("device was cuda and is cpu"));
  CHECK(refusal(same, [](State& s) {
          s.put("run/libtorch", std::string("2.0.0"));
        }).text.find("LibTorch was 2.0.0 and is ") != std::string::npos);
  CHECK(refusal(same, [](State& s) {
          s.put("run/processor", std::string("abacus"));
        }).text.find("processor was abacus and is ") != std::string::npos);
}

TEST_CASE("snapshot: options that change the numbers are compared, the rest is not") {
  const std::string before = R"({"run":{"seed":1,"steps":6},"optimizer":{"use":"adamw","learning_rate":0.1},
    "callback":[{"use":"clip_norm","max_norm":1.0}],"checkpoint":{"use":"rolling","every":5},
    "monitor":[{"use":"jsonl"}]})";
  Prepared saved, fresh;
  State snapshot = saved.snapshot();
  snapshot.put("run/configuration", before);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string now = before;
    now.replace(now.find(from), from.size(), to);
    return fresh.restore(snapshot, now).text;
  };
  CHECK(fresh.restore(snapshot, before) == Thrown{});
  CHECK(with("\"steps\":6", "\"steps\":60") == "");
  CHECK(with("\"every\":5", "\"every\":7") == "");
  CHECK(with("{\"use\":\"jsonl\"}", "{\"use\":\"jsonl\",\"every\":2}") == "");
  CHECK(says(with("\"seed\":1", "\"seed\":2"), "bit for bit: run.seed was 1 and is 2; make"));
  CHECK(says(with("0.1", "0.2"), "bit for bit: optimizer.learning_rate was 0.1 and is 0.2; make"));
  CHECK(says(with("1.0}", "2.0}"), "bit for bit: callback.clip_norm.max_norm was 1.0 and is 2.0; make"));
  CHECK(says(with("0.1", "0.1,\"eps\":1"), "bit for bit: optimizer.eps was not there and is 1; make"));
}

TEST_CASE("snapshot: where it is allowed a run goes on inexactly, and says what differs") {
  static std::vector<std::string> warnings;
  warnings.clear();
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  Prepared saved, fresh;
  saved.trainer->train(saved.run);
  State snapshot = saved.snapshot();
  CHECK(fresh.restore(snapshot) == Thrown{});
  CHECK(warnings.empty());
  snapshot.put("run/threads", std::int64_t{7});
  snapshot.put("run/plugins",
               std::string("task/toy precision/fp32 scaler/none accumulation/micro_batches optimizer/sgd"));
  for (auto entry = snapshot.tensors.lower_bound("plugin/optimizer/"); entry != snapshot.tensors.end();) {
    entry = entry->first.starts_with("plugin/optimizer/") ? snapshot.tensors.erase(entry) : std::next(entry);
  }
  snapshot.tensors["model/first"] = snapshot.tensors["model/first"].to(torch::kFloat64);
  CHECK(fresh.restore(snapshot, "", /*allow_inexact=*/true) == Thrown{});
  vernier::set_log_sink(nullptr);
  CHECK(fresh.run.step == 6);
  CHECK(fresh.digest() == saved.digest());
  REQUIRE(warnings.size() == 1);
  for (const char* part : {"optimizer/sgd is not in this run", "optimizer/adamw is new in this run",
                           "threads was 7 and is 1", "'first' was Double and is Float", "it is resumed all the same"}) {
    CHECK_MESSAGE(says(warnings[0], part), part);
  }
}

TEST_CASE("snapshot: a run may be resumed with other monitors") {
  struct Counting final : vernier::Monitor {
    void load(const State& state) override { seen = state.integer("seen"); }
    State save() const override {
      State state;
      state.put("seen", seen);
      return state;
    }
    std::int64_t seen = 3;
  };
  const auto watched = [] {
    auto toy = std::make_unique<Prepared>();
    toy->wiring.monitors.push_back(std::make_unique<Counting>());
    vernier::HostApi::set_id(*toy->wiring.monitors.back(), "monitor/counting");
    return toy;
  };
  Prepared saved;
  const auto fresh = watched(), other = watched();
  CHECK(fresh->restore(saved.snapshot()) == Thrown{});
  static_cast<Counting&>(*fresh->wiring.monitors[0]).seen = 8;
  CHECK(other->restore(fresh->snapshot()) == Thrown{});
  CHECK(static_cast<Counting&>(*other->wiring.monitors[0]).seen == 8);
  CHECK(saved.restore(fresh->snapshot()) == Thrown{});
}

TEST_CASE("snapshot: what save throws names the plugin, and a monitor's is only reported") {
  struct BrokenTask final : toy::Task {
    State save() const override { throw std::runtime_error("boom"); }
  };
  struct BrokenMonitor final : vernier::Monitor {
    State save() const override { throw std::runtime_error("boom"); }
  };
  Prepared broken;
  broken.wiring.task = std::make_unique<BrokenTask>();
  CHECK(thrown_by([&] { broken.snapshot(); }) == failed("task/toy while it was saved: boom"));

  static std::vector<std::string> warnings;
  warnings.clear();
  vernier::set_log_sink(
      [](vernier::Level, const std::string& who, const std::string& text) { warnings.push_back(who + ": " + text); });
  Prepared watched, fresh;
  watched.wiring.monitors.push_back(std::make_unique<BrokenMonitor>());
  vernier::HostApi::set_id(*watched.wiring.monitors.back(), "monitor/broken");
  CHECK(fresh.restore(watched.snapshot()) == Thrown{});
  vernier::set_log_sink(nullptr);
  CHECK(warnings == std::vector<std::string>{"monitor/broken while it was saved: boom (the run goes on)"});
}

TEST_CASE("snapshot: a digest changes with a bit, a name, a shape, a dtype") {
  const auto digest_of = [](const char* name, torch::Tensor tensor, bool buffer = false) {
    torch::nn::Module model;
    if (buffer) {
      model.register_buffer(name, std::move(tensor));
    } else {
      model.register_parameter(name, std::move(tensor), false);
    }
    return vernier::digest(model);
  };
  const auto zeros = torch::zeros({2, 3});
  const auto base = digest_of("a", zeros);
  CHECK(base.size() == 32);
  CHECK(digest_of("a", zeros.clone()) == base);
  CHECK(digest_of("a", torch::zeros({3, 2}).t()) == base);
  CHECK(digest_of("a", zeros, true) == base);
  CHECK(digest_of("b", zeros) != base);
  CHECK(digest_of("a", torch::zeros({3, 2})) != base);
  CHECK(digest_of("a", torch::zeros({2, 3}, torch::kInt32)) != base);
  CHECK(digest_of("a", -zeros) != base);
  auto one_bit = zeros.clone();
  one_bit.view(torch::kInt32)[1][2] = 1;
  CHECK(digest_of("a", one_bit) != base);
  CHECK(digest_of("a", torch::zeros({0})) != base);
}

TEST_CASE("snapshot: a plugin that was built anew under the same version is named on resume") {
  const auto config =
      from_toml({"[run]\nsteps = 2\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n[checkpoint]\nuse = 'none'\n"});
  const auto warned = [&](bool is_rebuilt) {
    SmallRun first(config), second(config);
    auto snapshot = first.trainer->saving().snapshot(first.run);
    auto builds = snapshot.text("run/builds");
    if (is_rebuilt) builds[builds.find("optimizer/sgd ") + 14] ^= 1;
    snapshot.put("run/builds", builds);
    const LogLines log;
    second.trainer->resume(second.run, snapshot);
    return LogLines::count("built anew since the checkpoint, under the same version: optimizer/sgd;");
  };
  CHECK(warned(true) == 1);
  CHECK(warned(false) == 0);
}

}  // namespace snapshot_test
