// Peak memory and speed of what saves memory, alone and together, on a small GPT, one thread: docs/guides/memory.md's
// table. Peak: most bytes at one moment of a step (MemoryLedger), the optimizer's state included. Time: the
// processor's, median of the rounds, against that of nothing. What the plugins that are built do not know is left out.
#include <ATen/Parallel.h>
#include <torch/utils.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/memory.h>
#include <vernier/memory_ledger.h>

#include <ctime>
#include <optional>

#include "compare.h"
#include "vernier_loop.h"

namespace {

// A loop whose memory can be looked at.
struct Measured {
  explicit Measured(const std::vector<std::string>& more) : loop(gpt_configuration(8, 16, more)) {
    auto& bus = loop.bus();
    vernier::HostApi::attach(bus, listener, false);
  }

  vernier::MemoryUse use() {
    loop.step();  // the optimizer has its state
    std::vector<torch::Tensor> masters;
    for (const auto& parameter : loop.run().parameters) masters.push_back(parameter.master);
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

struct Lever {
  std::string name;
  std::vector<std::string> sets;
  std::int64_t limit = 0;  // bytes beside those of the other loops; 0: none
};

// As [run] memory_limit.
struct Limited {
  explicit Limited(std::int64_t bytes) {
    vernier::count_memory(torch::kCPU);
    if (bytes > 0) vernier::limit_memory(torch::kCPU, vernier::allocated_memory(torch::kCPU).now + bytes);
  }
  ~Limited() { vernier::limit_memory(torch::kCPU, 0); }
};

const std::vector<Lever> levers = {
    {"nothing", {}},
    {"`task.recompute=selective`", {"task.recompute=selective"}},
    {"`task.recompute=full`, `recompute_every=2`", {"task.recompute=full", "task.recompute_every=2"}},
    {"`task.recompute=full`, `recompute_budget=80MB`", {"task.recompute=full", "task.recompute_budget=80MB"}},
    {"`--grad-ckpt` (`task.recompute=full`)", {"task.recompute=full"}},
    {"`--set accumulation.micro_batches=4`", {"accumulation.micro_batches=4"}},
    {"`--set accumulation.micro_batches=4 --grad-ckpt`", {"accumulation.micro_batches=4", "task.recompute=full"}},
    {"`accumulation.use=fit`, `run.memory_limit=100MB`", {"accumulation.use=fit"}, 100'000'000},
    {"`--mixed-precision bf16`", {"precision.use=bf16"}},
    {"`--mixed-precision bf16`, `task.recompute=selective`", {"precision.use=bf16", "task.recompute=selective"}},
    {"`--mixed-precision bf16 --grad-ckpt`", {"precision.use=bf16", "task.recompute=full"}},
    {"`optimizer.state=bf16`", {"optimizer.state=bf16"}},
    {"`optimizer.state=8bit`", {"optimizer.state=8bit"}},
    {"`optimizer.in_backward=true`", {"optimizer.in_backward=true"}},
    {"`--mixed-precision bf16 --amp-opt-level O3 --grad-ckpt --set accumulation.micro_batches=4`",
     {"precision.use=bf16", "precision.level=O3", "task.recompute=full", "accumulation.micro_batches=4"}},
    {"the same with O2, `optimizer.state=8bit`",
     {"precision.use=bf16", "precision.level=O2", "task.recompute=full", "accumulation.micro_batches=4",
      "optimizer.state=8bit"}},
    {"`--grad-ckpt`, `optimizer.state=8bit`, `optimizer.in_backward=true`",
     {"task.recompute=full", "optimizer.state=8bit", "optimizer.in_backward=true"}},
};

// A row of the table; time is measured later.
struct Row {
  std::unique_ptr<Measured> measured;
  vernier::MemoryUse use;
  Rival rival;
};

std::optional<Row> row_of(const Lever& lever) {
  try {
    const Limited limited(lever.limit);
    auto measured = std::make_unique<Measured>(lever.sets);
    auto use = measured->use();
    Rival rival{lever.name, [loop = measured.get()] { loop->loop.step(); }};
    return Row{std::move(measured), std::move(use), std::move(rival)};
  } catch (const vernier::Error& error) {
    std::printf("left out: %s: %s\n", lever.name.c_str(), error.what());
    return std::nullopt;
  }
}

// In turn, so that a noisy machine disturbs all of them alike.
void time(std::vector<Row>& rows, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // one to warm up
    for (auto& row : rows) {
      const auto start = std::clock();
      row.rival.body();
      if (round >= 0) row.rival.seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  std::vector<Row> rows;
  for (const auto& lever : levers) {
    if (auto row = row_of(lever)) rows.push_back(std::move(*row));
  }
  time(rows, /*rounds=*/7);
  std::printf("\nGPT, 8 layers of 128, 16 windows of 128 bytes, AdamW: MB of a step, time of a step\n\n");
  std::printf("| | activations | peak | time |\n| --- | --- | --- | --- |\n");
  const double nothing = rows.front().rival.median();
  for (auto& [measured, use, rival] : rows) {
    std::printf("| %s | %.1f | %.1f | %.2f |\n", rival.name.c_str(),
                static_cast<double>(use.bytes("activations")) / 1e6, static_cast<double>(use.peak) / 1e6,
                rival.median() / nothing);
  }
  std::printf("\nnothing: %.0f ms\n", nothing * 1e3);
}
