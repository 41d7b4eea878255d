// Data that never end, in a run of one or several processes.
#include <doctest/doctest.h>

#include <string>

#include "several_ranks.h"

namespace stream_test {

using namespace several_ranks;

const std::string walk = R"([run]
steps = 20
seed = 7
device = "cpu"
threads = 1
output = "out"
validate_every = 6
[task]
use = ")" VERNIER_BINARY_DIR R"(/fixtures/plugins/task/walk.so"
workers = 2
[optimizer]
use = "adamw"
learning_rate = 0.05
[checkpoint]
every = 4
[[monitor]]
use = "jsonl"
)";

TEST_CASE("stream: a run that was killed and resumed has the bits of one that was not, and its validations" *
          doctest::test_suite("data")) {
  RunFolder whole(walk), parts(walk);
  REQUIRE_MESSAGE(whole.train() == 0, whole.err);
  const auto losses = read_text(whole.at("out/losses.jsonl"));
  CHECK(losses.find("\"mae\"") != losses.npos);
  for (const char* workers : {"0", "3"}) {
    RunFolder killed(walk);
    // It ends at the 95th sample, in a batch that the workers have prepared ahead.
    REQUIRE(killed.train({"--set=task.breaks_at=125"}) == 4);
    CHECK(killed.err.find("sample 94 of the stream: the walk has ended") != std::string::npos);
    REQUIRE_MESSAGE(killed.train({"--resume", c10::str("--set=task.workers=", workers)}) == 0, killed.err);
    CHECK(digest_of(killed) == digest_of(whole));
    CHECK(read_text(killed.at("out/losses.jsonl")) == losses);
  }
}

TEST_CASE("stream: a run that kill -9 has ended resumes to the same bits" * doctest::test_suite("data")) {
  const std::string one_file =
      "--set=checkpoint={use=\"" VERNIER_BINARY_DIR "/fixtures/plugins/checkpoint/one_file.so\",every=3,dies_after=";
  RunFolder whole(walk), killed(walk);
  REQUIRE_MESSAGE(whole.train({one_file + "0}"}) == 0, whole.err);
  CHECK(killed.train({one_file + "10}"}) != 0);
  REQUIRE_MESSAGE(killed.train({one_file + "10}", "--resume"}) == 0, killed.err);
  CHECK(digest_of(killed) == digest_of(whole));
  CHECK(read_text(killed.at("out/losses.jsonl")) == read_text(whole.at("out/losses.jsonl")));
}

TEST_CASE("stream: several ranks take their parts, and a run goes on with another number of them" *
          doctest::test_suite("data")) {
  RunFolder alone(walk), together(walk);
  REQUIRE_MESSAGE(alone.train() == 0, alone.err);
  Ranks first(together, 3, {"--set=distributed.use=ddp", "--set=run.steps=10"});
  REQUIRE_MESSAGE(first.wait() == all_of(3, 0), first.errors());
  Ranks second(together, 2, {"--set=distributed.use=ddp", "--resume"});
  REQUIRE_MESSAGE(second.wait() == all_of(2, 0), second.errors());
  CHECK(distance(weights_of(alone, 20), weights_of(together, 20)) <= 1e-6);
}

TEST_CASE("stream: what asks for an epoch or an order of it is refused" * doctest::test_suite("data")) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"--epochs=3"}, "[run] epochs: the data of task/walk never end; set [run] steps, and leave epochs out"},
      {{"--set=task.order=shuffled"}, "a stream never ends, and its order is its own; leave [task] order out"},
      {{"--set=task.drop_last=true"}, "leave [task] drop_last out"},
      {{"--set=task.fold=1/5"}, "fold"},
  };
  for (const auto& [arguments, message] : cases) {
    RunFolder place(walk);
    CHECK(place.train(arguments) == 2);
    CHECK_MESSAGE(place.err.find(message) != std::string::npos, place.err);
  }
  RunFolder place(walk);
  CHECK(place.train({"--set=run.validate_every=epoch"}) == 0);
  CHECK(place.err.find("the data never end, so the run is validated after its last step alone") != std::string::npos);
}

}  // namespace stream_test
