// Two ranks of which one does something alone: both say so, at once, with what differs.
#include "several_ranks.h"
#include "small_run.h"

namespace apart_test {

using namespace several_ranks;

namespace {

constexpr const char* base = R"([run]
steps = 8
device = "cpu"
validate_every = 4
[task]
use = "mlp"
samples = 120
batch_size = 10
[optimizer]
use = "adamw"
[distributed]
use = "ddp"
timeout = 20
[checkpoint]
every = 4
)";

// How the two ranks of a run ended; "" is well.
std::vector<std::string> ends_of(const std::string& more, const TemporaryFolder& folder) {
  return texts_of(2, folder, [&](int) -> std::string {
    SmallRun(from_toml({base, more}), folder.path(), plugins_and_fixtures()).train();
    return "";
  });
}

}  // namespace

TEST_CASE("apart: what one of two ranks does alone ends both within that step or the next, and is named") {
  struct Case {
    std::string what, says;
  };
  const std::string apart = "the ranks have come apart: ";
  const std::string next = apart + "what comes next is the gradients of a step on rank 0, and ";
  const std::vector<Case> cases = {
      {"factor", apart + "the learning rate factor is 1 on rank 0, and 0.5 on rank 1"},
      {"late factor", apart + "the learning rate factor of the step before is 1 on rank 0, and 0.5 on rank 1"},
      {"gradients", apart + "the weight layers.0.weight is norm "},
      {"weight", apart + "the weight layers.0.bias is norm "},
      {"veto", apart + "the number of updates is 6 on rank 0, and 5 on rank 1"},
      {"recompute", apart + "the number of steps is 6 on rank 0, and 5 on rank 1"},
      {"swap", next + "swap by callback/disagrees on rank 1"},
      {"finish", apart + "what comes next is "},
      {"rewind", apart + "keep_savepoints is 0 of each 0 steps on rank 0, and 2 of each 2 steps on rank 1"},
      {"fail", next + "fail by callback/disagrees: it has seen too much on rank 1"},
      {"gather early", next + "gather by callback/disagrees on rank 1"},
      {"gather", next + "gather by callback/disagrees on rank 1"},
      {"keep_savepoints", apart + "keep_savepoints is 0 of each 0 steps on rank 0, and 2 of each 5 steps on rank 1"},
      {"want_rerun", apart + "want_rerun is not asked for on rank 0, and asked for on rank 1"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.what);
    const TemporaryFolder folder;
    const auto begin = Clock::now();
    for (const auto& end : ends_of("[[callback]]\nuse = \"disagrees\"\nwhat = \"" + each.what + "\"\n", folder)) {
      CHECK_MESSAGE(says(end, each.says), end);
    }
    CHECK(seconds_since(begin) < 10);
  }
}

TEST_CASE("apart: a veto of one rank alone ends all, also in the last step, and where weights are in parts") {
  for (const std::string use : {"ddp", "zero1", "zero3"}) {
    for (const std::string steps : {"6", "8"}) {
      CAPTURE(use);
      CAPTURE(steps);
      const TemporaryFolder folder;
      const auto ends =
          ends_of("[run]\nsteps = " + steps + "\n[task]\ninputs = 64\nhidden = [64, 96]\n[distributed]\nuse = '" + use +
                      "'\n[[callback]]\nuse = 'disagrees'\nwhat = 'veto'\n",
                  folder);
      for (const auto& end : ends) {
        CHECK_MESSAGE(says(end, "the number of updates is 6 on rank 0, and 5 on rank 1"), end);
      }
    }
  }
}

TEST_CASE("apart: a refusal of one rank alone, before the first step, ends all at once") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ddp", "check"}, {"zero3", "prepare"}, {"zero3", "check"}};
  for (const auto& [use, where] : cases) {
    CAPTURE(use);
    CAPTURE(where);
    const TemporaryFolder folder;
    const auto begin = Clock::now();
    const auto ends = ends_of("[task]\ninputs = 64\nhidden = [64, 96]\n[distributed]\nuse = '" + use +
                                  "'\n[[callback]]\nuse = 'disagrees'\nwhat = 'refuse in " + where + "'\n",
                              folder);
    CHECK_MESSAGE(says(ends[0], "rank 1 is lost"), ends[0]);
    CHECK_MESSAGE(says(ends[1], "it wants nothing to do with this"), ends[1]);
    CHECK(seconds_since(begin) < 10);
  }
}

TEST_CASE("apart: an option of one rank alone, such as the timeout, is a mistake of the configuration") {
  const TemporaryFolder folder;
  const auto ends = texts_of(2, folder, [&](int rank) -> std::string {
    const std::string other = rank == 1 ? "[distributed]\ntimeout = 21\n" : "";
    SmallRun(from_toml({base, other}), folder.path(), plugins_and_fixtures()).train();
    return "";
  });
  for (const auto& end : ends) {
    CHECK_MESSAGE(says(end, "the ranks differ in the plugin distributed: rank 0 has distributed/ddp"), end);
    CHECK_MESSAGE(says(end, "; start all of them with the same options"), end);
  }
}

TEST_CASE("apart: an update of other batches on one rank, and a gather where micro-batches may differ") {
  const TemporaryFolder folder;
  for (const auto& end : ends_of("[accumulation]\nuse = \"uneven\"\n", folder)) {
    CHECK_MESSAGE(says(end, "the batches of an update is 1 on rank 0, and 2 on rank 1"), end);
  }
  const auto ends = ends_of("[[callback]]\nuse = \"disagrees\"\nwhat = \"gather in a micro-batch\"\n", folder);
  CHECK_MESSAGE(says(ends[1], "callback/disagrees"), ends[1]);
  CHECK(says(ends[1], "gather() between the micro-batches of a step"));
  CHECK_MESSAGE(says(ends[0], "rank 1 is lost"), ends[0]);
}

TEST_CASE("apart: a plugin adds numbers of all ranks up, and each rank gets the same") {
  const TemporaryFolder folder;
  for (const auto& end : ends_of("[[callback]]\nuse = \"disagrees\"\nwhat = \"sum\"\n", folder)) {
    CHECK_MESSAGE(says(end, "sums 3 0.75 Long 1099511627776"), end);
  }
}

TEST_CASE("apart: random numbers of validations and of one rank alone change nothing that the ranks share") {
  const std::string precision = "[precision]\nuse = 'format'\n", random = "{rounding = 'stochastic'}",
                    operands = "operands = {x = " + random + ", w = " + random + ", g = " + random,
                    weight = "weight = {use = 'bf16', rounding = 'stochastic'}}\n";
  for (const std::string& format : {"forward = 'e3m2'\n" + operands + "}\n", "forward = 'fp32'\noperands = {" + weight,
                                    "forward = 'mxfp8'\n" + operands + ", " + weight + "[run]\nvalidate_every = 1\n"}) {
    for (const std::string what : {"nothing", "draws"}) {
      CAPTURE(format);
      CAPTURE(what);
      const TemporaryFolder folder;
      const auto ends =
          ends_of(precision + format + "[[callback]]\nuse = 'disagrees'\nwhat = '" + what + "'\n", folder);
      CHECK(ends == std::vector<std::string>{"", ""});
    }
  }
}

TEST_CASE("apart: ranks that agree end well, with all that they may ask for") {
  const TemporaryFolder folder;
  const auto ends = ends_of(
      "[[callback]]\nuse = \"disagrees\"\nwhat = \"nothing\"\n[[callback]]\nuse = \"recovery\"\n"
      "[[callback]]\nuse = \"early_stopping\"\n",
      folder);
  CHECK(ends == std::vector<std::string>{"", ""});
}

}  // namespace apart_test
