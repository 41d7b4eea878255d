// Copies of a device for a save in the background: on one that is made for tests, and on a GPU.
#include <doctest/doctest.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <filesystem>
#include <thread>
#include <utility>

#include "fake_device.h"
#include "plugin_library.h"
#include "run/process/device.h"
#include "temporary_folder.h"

namespace copies_test {

using vernier::Event;
using vernier::State;
using vernier::Tensors;

namespace {

constexpr std::int64_t many = 1000;

// A run on a device, saved in the background.
struct Saving {
  explicit Saving(torch::Device device, bool async = true)
      : plugin(make_plugin<vernier::Checkpoint>(
            "checkpoint/rolling",
            {{"keep_last", vernier::Value{std::int64_t{9}, ""}}, {"async", vernier::Value{async, ""}}})) {
    vernier::HostApi::attach(bus, *plugin, false);
    run.output = folder.path().string();
    run.device = device;
  }
  void save(Tensors tensors) {
    run.step += 1;
    State snapshot;
    snapshot.tensors = std::move(tensors);
    plugin->write(snapshot, run);
  }
  void tell(Event event) { vernier::HostApi::emit(bus, event, run); }
  // True if a saved tensor has this value everywhere.
  bool has(std::int64_t step, const char* name, double value) {
    const auto path = std::filesystem::path(run.output) / "checkpoints" / vernier::checkpoint_name(step);
    return plugin->read(run, path.string())->tensor(name).eq(value).all().item<bool>();
  }

  TemporaryFolder folder;
  vernier::TrainerRun run;
  vernier::Bus bus;
  std::unique_ptr<vernier::Checkpoint> plugin;
};

constexpr const char *weight = "model/weight", *moment = "plugin/optimizer/adamw/exp_avg";

}  // namespace

TEST_CASE("copies: in whatever order a device does what no event orders, what is saved is the state of the step") {
  auto& device = FakeDevice::get();
  int were_beside_forward = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    device.draw_anew(seed);
    Saving saving(FakeDevice::device);
    std::vector<float> weights(many), moments(many);
    const Tensors live = {{weight, device.tensor(weights)}, {moment, device.tensor(moments)}};
    const auto fill = [&](std::vector<float>& memory, int value) {
      device.give([&memory, value] { std::ranges::fill(memory, static_cast<float>(value)); });
    };
    const int copies_before = device.copies();
    for (int step = 1; step <= 3; ++step) {
      fill(weights, step);
      fill(moments, -step);
      saving.save(live);
      device.give([&, copied = copies_before + 2 * step] { were_beside_forward += device.copies() < copied ? 1 : 0; });
      fill(weights, 100);  // a callback of the next step may change them
      saving.tell(Event::LossReady);
      fill(moments, 100);
    }
    saving.tell(Event::RunEnd);
    for (int step = 1; step <= 3; ++step) {
      CAPTURE(step);
      CHECK(saving.has(step, weight, step));
      CHECK(saving.has(step, moment, -step));
    }
    device.synchronizeDevice(0);  // before the memory is gone
    for (const auto& [name, tensor] : live) CHECK(device.is_kept_for_stream(tensor));
  }
  CHECK(were_beside_forward > 0);
  CHECK_FALSE(device.has_waited(std::this_thread::get_id()));
}

TEST_CASE(
    "copies: on the host, what is saved is the state of the step, though the optimizer's is copied beside the next") {
  for (const bool async : {true, false}) {
    Saving saving(torch::kCPU, async);
    const auto weights = torch::zeros({1 << 18}), moments = torch::zeros({1 << 22});
    const auto count = torch::zeros({});
    for (int step = 1; step <= 6; ++step) {
      weights.fill_(step);
      moments.fill_(-step);
      count.fill_(10 * step);
      saving.save({{weight, weights}, {moment, moments}, {"plugin/optimizer/adamw/step", count}});
      weights.fill_(100);
      if (step % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(step));
      saving.tell(Event::LossReady);
      moments.fill_(100);
      count.fill_(100);
    }
    saving.tell(Event::RunEnd);
    for (int step = 1; step <= 6; ++step) {
      CAPTURE(step);
      CHECK(saving.has(step, weight, step));
      CHECK(saving.has(step, moment, -step));
      CHECK(saving.has(step, "plugin/optimizer/adamw/step", 10 * step));
    }
  }
}

TEST_CASE("copies: from a GPU, what is saved is the state of the step, whatever the GPU is given meanwhile") {
  const auto gpu = vernier::open_device("auto");
  if (gpu.is_cpu()) {
    MESSAGE("skipped: there is no GPU here");
    return;
  }
  Saving saving(gpu);
  const auto large = torch::rand({4096, 4096}, gpu);
  const auto weights = torch::zeros({16 << 20}, gpu), moments = torch::zeros({16 << 20}, gpu);
  for (int step = 1; step <= 5; ++step) {
    auto work = large;
    for (int i = 0; i < 20; ++i) work = torch::mm(work, large).clamp(0, 1);  // so that nothing below has begun yet
    weights.fill_(step);
    moments.fill_(-step);
    // The last one's memory is free again when the snapshot is gone.
    saving.save({{weight, weights}, {moment, moments}, {"plugin/callback/ema/weight", weights + 1}});
    const auto takes_it = torch::full_like(weights, 100);
    weights.fill_(100);
    saving.tell(Event::LossReady);
    moments.fill_(100);
  }
  saving.tell(Event::RunEnd);
  for (int step = 1; step <= 5; ++step) {
    CAPTURE(step);
    CHECK(saving.has(step, weight, step));
    CHECK(saving.has(step, moment, -step));
    CHECK(saving.has(step, "plugin/callback/ema/weight", step + 1));
  }
}

}  // namespace copies_test
