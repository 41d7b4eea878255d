#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/event.h>
#include <vernier/host.h>
#include <vernier/memory_ledger.h>

#include <algorithm>
#include <random>

#include "loaded_task.h"
#include "small_gpt.h"
#include "temporary_folder.h"

namespace gpt_recompute_test {

using vernier::Batch;
using vernier::Table;

namespace {

// The bytes that a micro-batch leaves for backward, those of block 1 of them, and the gradients.
struct MicroBatch {
  std::int64_t bytes = 0, of_block = 0;
  std::vector<torch::Tensor> gradients;
};

MicroBatch micro_batch_of(const LoadedTask& gpt, const Batch& batch) {
  torch::manual_seed(7);
  for (const auto& parameter : gpt.run.parameters) torch::Tensor(parameter.model).mutable_grad().reset();
  vernier::MemoryLedger ledger(*gpt.run.model);
  ledger.begin_forward();
  const auto loss = gpt->loss(batch);
  ledger.begin_backward();
  loss.backward();
  const auto use = ledger.stop();
  MicroBatch micro_batch{use.bytes("activations") + 4, 0, {loss.detach()}};  // the loss is there too
  for (const auto& [layer, bytes] : use.layers) micro_batch.of_block += layer.starts_with("h.1.") ? bytes : 0;
  for (const auto& parameter : gpt.run.parameters) micro_batch.gradients.push_back(parameter.model.grad());
  return micro_batch;
}

bool have_same_bits(const MicroBatch& a, const MicroBatch& b) {
  return std::equal(a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
                    [](const auto& x, const auto& y) { return x.equal(y); });
}

}  // namespace

TEST_CASE("gpt: a block keeps what theory says: all, its products, or its output") {
  const TemporaryFolder folder;
  const auto text = folder.write("a.txt", lorem(5000));
  const std::int64_t heads = 2, windows = 3, length = 16;
  const std::int64_t stream = windows * length * 32 * 4;  // bytes of what flows from block to block
  const auto micro_batch = [&](const Table& more) {
    auto table = small(text, {{"layers", value(3)}, {"width", value(32)}, {"context", value(16)}});
    for (const auto& [key, entry] : more) table[key] = entry;
    const LoadedTask gpt("gpt", table);
    return micro_batch_of(gpt, gpt->next());
  };
  const auto all = micro_batch({}), full = micro_batch({{"recompute", value("full")}}),
             selective = micro_batch({{"recompute", value("selective")}});
  const auto statistics = windows * length * 4;  // a number for each row
  // Two norms' results and statistics, queries, keys and values, attention's result and its sums, the stream between
  // the halves, gelu's input and result, the output.
  CHECK(all.of_block == (2 + 3 + 1 + 1 + 4 + 4 + 1) * stream + (4 + heads) * statistics);
  // The results of four products, attention's and its sums, the output.
  CHECK(selective.of_block == (3 + 1 + 4 + 1 + 1 + 1) * stream + heads * statistics);
  CHECK(full.of_block == stream);
  CHECK(have_same_bits(full, all));
  CHECK(have_same_bits(selective, all));
}

TEST_CASE("gpt: recompute_budget is kept to, with the fewest blocks, for larger micro-batches too") {
  const TemporaryFolder folder;
  const auto text = folder.write("a.txt", lorem(5000));
  const auto table_with = [&](const std::string& how, const std::string& budget) {
    auto table = small(text, {{"layers", value(6)},
                              {"width", value(32)},
                              {"context", value(16)},
                              {"dropout", value(0.1)},
                              {"batch_size", value(4)}});
    if (!how.empty()) table["recompute"] = value(how);
    if (!budget.empty()) table["recompute_budget"] = value(budget);
    return table;
  };
  const LoadedTask unbounded("gpt", table_with("", ""));
  const auto large = unbounded->next();
  const auto little = large.narrow(0, 2);
  const auto plain = micro_batch_of(unbounded, large), plain_little = micro_batch_of(unbounded, little);
  std::mt19937 random(3);
  CaughtLog log;
  for (const std::string how : {"full", "selective"}) {
    // All blocks but the last.
    const LoadedTask frugal("gpt", table_with(how, "100%"));
    const auto least = micro_batch_of(frugal, large);
    const auto saved = (plain.bytes - least.bytes) / 5;
    for (int i = 0; i < 12; ++i) {
      const auto budget = std::uniform_int_distribution<std::int64_t>(least.bytes, plain.bytes + 1000)(random);
      CAPTURE(budget);
      const LoadedTask gpt("gpt", table_with(how, std::to_string(budget)));
      CHECK(have_same_bits(micro_batch_of(gpt, little), plain_little));  // measured
      CHECK(have_same_bits(micro_batch_of(gpt, large), plain));          // measured once more
      const auto kept_to = micro_batch_of(gpt, large);
      CHECK(have_same_bits(kept_to, plain));
      CHECK(kept_to.bytes <= budget);
      CHECK((kept_to.bytes == plain.bytes || kept_to.bytes + saved > budget));
      CHECK(have_same_bits(micro_batch_of(gpt, little), plain_little));
    }
    CaughtLog::text.clear();
    const LoadedTask gpt("gpt", table_with(how, std::to_string(least.bytes)));
    micro_batch_of(gpt, large);
    CHECK(contains(CaughtLog::text, "computes 5 of 6 blocks again in backward: "));
    CHECK(contains(refusal([&] {
                     const LoadedTask too_little("gpt", table_with(how, std::to_string(least.bytes - 1)));
                     too_little->loss(large);
                   }),
                   "at least, with 5 of 6 blocks computed again, and the budget is "));
  }
}

TEST_CASE("gpt: after another precision took over, the next micro-batch is measured anew") {
  const TemporaryFolder folder;
  LoadedTask gpt("gpt", small(folder.write("a.txt", lorem(100)),
                              {{"recompute", value("full")}, {"recompute_budget", value("100%")}}));
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *gpt.task, false);
  const auto batch = gpt->next();
  const auto measures = [&] {
    CaughtLog log;
    vernier::HostApi::emit(bus, vernier::Event::StepBegin, gpt.run);
    gpt->loss(batch);
    return contains(CaughtLog::text, "computes 0 of 2 blocks again");
  };
  CHECK(measures());
  CHECK_FALSE(measures());
  gpt.run.swapped = {"precision"};
  CHECK(measures());
  gpt.run.swapped.clear();
  CHECK_FALSE(measures());
}

TEST_CASE("gpt: which blocks are computed again is said once, in an amount of memory") {
  const TemporaryFolder folder;
  const auto text = folder.write("a.txt", lorem(200));
  const auto refused = [&](const Table& more) {
    return refusal([&] { const LoadedTask gpt("gpt", small(text, more)); });
  };
  const auto full = value("full");
  CHECK(contains(refused({{"recompute", value("ful")}}), "did you mean \"full\""));
  CHECK(contains(refused({{"recompute_every", value(2)}}), "`recompute_every` is for recompute = \"full\" or"));
  CHECK(contains(refused({{"recompute_budget", value("60MB")}}), "`recompute_budget` is for recompute = \"full\" or"));
  CHECK(contains(refused({{"recompute", full}, {"recompute_every", value(2)}, {"recompute_budget", value("60MB")}}),
                 "give one of them"));
  for (const char* wrong : {"", "MB", "-1MB", "0", "60 parsecs", "1e999GB", "nan", "%"}) {
    CAPTURE(wrong);
    CHECK(contains(refused({{"recompute", full}, {"recompute_budget", value(wrong)}}), "is not an amount of memory"));
  }
  for (const char* right : {"60MB", "1.5GiB", "50%", "123456", "2kB", "1e300GB"}) {
    CHECK(refused({{"recompute", full}, {"recompute_budget", value(right)}}).empty());
  }
}

}  // namespace gpt_recompute_test
