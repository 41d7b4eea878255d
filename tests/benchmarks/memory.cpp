// Peak memory and speed of what saves memory, alone and together, on a small GPT, one thread. Peak: most bytes at one
// moment of a step (MemoryLedger), the optimizer's state included. Bars: activations computed again leave those of one
// block and the boundaries.
#include <ATen/Parallel.h>
#include <torch/utils.h>
#include <vernier/memory_ledger.h>

#include <map>
#include <optional>

#include "compare.h"
#include "vernier_loop.h"

namespace {

// A loop whose memory can be looked at.
struct Measured {
  explicit Measured(const std::vector<std::string>& more) : loop(gpt_configuration(8, 16, more)) {
    auto& bus = loop.bus();
    bus.attach(listener, false);
  }

  vernier::MemoryUse use() {
    loop.step();  // the optimizer has its state
    std::vector<torch::Tensor> masters;
    for (const auto& parameter : loop.run().parameters) masters.push_back(parameter.owned);
    listener.ledger.emplace(*loop.run().model, std::move(masters));
    listener.ledger->hold("optimizer", loop.optimizer_bytes());
    loop.step();
    const auto use = listener.ledger->stop();
    listener.ledger.reset();
    return use;
  }

  struct Listener final : vernier::Callback {
    void attach(vernier::Bus& bus) override {
      bus.on(vernier::Event::BatchReady, [this](vernier::Run&) {
        if (ledger) ledger->begin_forward();
      });
      bus.on(vernier::Event::LossReady, [this](vernier::Run&) {
        if (ledger) ledger->begin_backward();
      });
      bus.on(vernier::Event::GradientsReady, [this](vernier::Run&) {
        if (ledger) ledger->begin_update();
      });
    }
    std::optional<vernier::MemoryLedger> ledger;
  } listener;
  VernierLoop loop;
};

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  const std::vector<std::pair<std::string, std::vector<std::string>>> levers = {
      {"fp32, plain", {}},
      {"recompute, every second block", {"task.recompute=full", "task.recompute_every=2"}},
      {"recompute, all blocks", {"task.recompute=full"}},
      {"4 pieces", {"accumulation.pieces=4"}},
      {"4 pieces, recompute", {"accumulation.pieces=4", "task.recompute=full"}},
      {"bf16", {"precision.use=bf16"}},
      {"bf16, recompute", {"precision.use=bf16", "task.recompute=full"}},
      {"bf16 O3, recompute, 4 pieces",
       {"precision.use=bf16", "precision.level=O3", "task.recompute=full", "accumulation.pieces=4"}},
  };
  std::vector<std::unique_ptr<Measured>> loops;
  std::vector<Rival> rivals;
  std::printf("GPT, 8 layers of 128, 16 windows of 128: bytes of a step\n  %-44s %12s %12s\n", "", "activations",
              "peak");
  for (const auto& [name, sets] : levers) {
    loops.push_back(std::make_unique<Measured>(sets));
    const auto use = loops.back()->use();
    std::printf("  %-44s %9.1f MB %9.1f MB\n", name.c_str(), static_cast<double>(use.bytes("activations")) / 1e6,
                static_cast<double>(use.peak) / 1e6);
    std::fflush(stdout);
    rivals.push_back({name, [loop = loops.back().get()] { loop->loop.step(); }});
  }
  compare("the same, one thread", std::move(rivals), /*rounds=*/6, /*steps_a_round=*/1);
}
