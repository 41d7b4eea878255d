// A loss over the tensors of all ranks.
#include <doctest/doctest.h>

#include <string>

#include "several_ranks.h"

namespace gather_test {

using namespace several_ranks;

const std::string contrastive = R"([run]
steps = 50
seed = 7
device = "cpu"
threads = 1
output = "out"
validate_every = 20
[task]
use = ")" VERNIER_BINARY_DIR R"(/fixtures/plugins/task/contrastive.so"
[optimizer]
use = "sgd"
learning_rate = 0.05
momentum = 0.9
[distributed]
use = "none"
[checkpoint]
every = 10
)";

TEST_CASE("gather: a contrastive loss over the ranks is that of one process" * doctest::test_suite("data")) {
  RunFolder alone(contrastive);
  REQUIRE_MESSAGE(alone.train() == 0, alone.err);
  const auto expected = weights_of(alone, 50);
  struct Case {
    int ranks;
    std::vector<std::string> sets;
    double tolerance = 1e-6;
  };
  const std::vector<Case> cases = {
      {2, {"--set=distributed.use=ddp"}},
      {3, {"--set=distributed.use=ddp", "--set=distributed.shared_memory=false"}},
      {2, {"--set=distributed.use=ddp", "--set=distributed.overlap=true"}},
      {5, {"--set=distributed.use=zero1"}},  // shares of 3, 3, 2, 2 and 2 samples
  };
  for (const auto& [count, sets, tolerance] : cases) {
    CAPTURE(sets);
    RunFolder together(contrastive);
    Ranks ranks(together, count, sets);
    REQUIRE_MESSAGE(ranks.wait() == all_of(count, 0), ranks.errors());
    CHECK(distance(expected, weights_of(together, 50)) <= tolerance);
    const double loss = alone.summary()["validation_loss"]["final"];
    CHECK(double(together.summary()["validation_loss"]["final"]) == doctest::Approx(loss).epsilon(tolerance * 10));
  }
}

TEST_CASE("gather: a run that was stopped and resumed has the same bits" * doctest::test_suite("data")) {
  RunFolder whole(contrastive), parts(contrastive);
  const std::vector<std::string> sets = {"--set=distributed.use=ddp", "--set=run.steps=24"};
  Ranks first(whole, 2, sets);
  REQUIRE_MESSAGE(first.wait() == all_of(2, 0), first.errors());
  Ranks part(parts, 2, {"--set=distributed.use=ddp", "--set=run.steps=11"});
  REQUIRE_MESSAGE(part.wait() == all_of(2, 0), part.errors());
  Ranks rest(parts, 2, {"--set=distributed.use=ddp", "--set=run.steps=24", "--resume"});
  REQUIRE_MESSAGE(rest.wait() == all_of(2, 0), rest.errors());
  CHECK(digest_of(parts) == digest_of(whole));
}

TEST_CASE("gather: ranks with different numbers of micro-batches are refused in the first step" *
          doctest::test_suite("data")) {
  const std::vector<std::vector<std::string>> cases = {
      {"--set=task.batch_size=7", "--set=accumulation.micro_batch_size=3"},  // two micro-batches, and one
      {"--set=task.batch_size=1"},                                           // one, and none
  };
  for (const auto& sets : cases) {
    CAPTURE(sets);
    RunFolder place(contrastive);
    auto all = sets;
    all.push_back("--set=distributed.use=ddp");
    all.push_back("--set=distributed.timeout=30");
    Ranks ranks(place, 2, all);
    for (const int status : ranks.wait()) CHECK(status != 0);
    const auto errors = ranks.errors();
    CHECK_MESSAGE(errors.find("the ranks have different numbers of micro-batches") != errors.npos, errors);
  }
}

}  // namespace gather_test
