// The samples that make a step of several ranks bad, as callback/recovery finds them, and the rank whose hardware did,
// as callback/recheck does.
#include <cmath>
#include <random>
#include <set>
#include <sstream>

#include "long_form.h"
#include "several_ranks.h"
#include "small_run.h"

namespace culprit_test {

using namespace several_ranks;
using vernier::Event;
using vernier::Run;

namespace {

constexpr const char* base = R"([run]
steps = 10
[distributed]
use = "ddp"
timeout = 20
[optimizer]
use = "sgd"
learning_rate = 0.01
[checkpoint]
use = "none"
[[callback]]
use = "recovery"
non_finite = ["drop_samples 100"]
)";
constexpr const char* with_indices = R"([task]
use = "mlp"
samples = 120
batch_size = 24
)";
// A task of somebody else, which does not number its samples: the rows of a batch are named.
constexpr const char* without_indices = R"([task]
use = "ragged"
batch_size = 24
)";
constexpr std::int64_t bad_step = 8;

std::set<std::int64_t> numbers_in(const std::string& text) {
  std::istringstream words(text);
  std::set<std::int64_t> numbers;
  for (std::int64_t number = 0; words >> number;) numbers.insert(number);
  return numbers;
}

// Makes the input of some rows of the bad step NaN. is_bad: says it of a row of a micro-batch.
void poison(SmallRun& run, std::function<bool(const Run& now, std::int64_t row)> is_bad) {
  run.on(Event::BatchReady, [is_bad = std::move(is_bad)](Run& now) {
    if (now.step + 1 != bad_step) return;
    auto& input = now.micro_batch.tensors[0];
    input = input.clone();
    for (std::int64_t row = 0; row < input.size(0); ++row) {
      if (is_bad(now, row)) input[row].flatten()[0].fill_(std::nan(""));
    }
  });
}

// Trains, and returns the samples that were left out, then the digest of the weights.
std::string trained(SmallRun& run) {
  std::string samples = "none";
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name != "recovered") continue;
      for (const auto& [key, value] : notice.details) {
        if (key == "samples") samples = std::get<std::string>(value);
      }
    }
  });
  run.train();
  return samples + " | " + run.digest();
}

// The samples of the bad step's whole batch, in its order.
std::vector<std::int64_t> batch_of(const std::string& config, const TemporaryFolder& folder) {
  const auto texts = texts_of(1, folder, [&](int) {
    SmallRun run(from_toml({config}), folder.path(), plugins_and_fixtures());
    std::string all;
    run.on(Event::StepEnd, [&](Run& now) {
      if (now.step != bad_step) return;
      for (const auto index : now.batch.indices) all += std::to_string(index) + " ";
    });
    run.train();
    return all;
  });
  const auto numbers = numbers_in(texts[0]);
  return {numbers.begin(), numbers.end()};
}

void check_told(const std::vector<std::string>& texts, const std::set<std::int64_t>& guilty) {
  for (const auto& text : texts) {
    CAPTURE(text);
    CHECK(text == texts[0]);  // the same samples, and then the same weights
    CHECK(numbers_in(text.substr(0, text.find(" |"))) == guilty);
  }
}

}  // namespace

TEST_CASE("culprit: on two ranks the same samples are found and left out, whichever rank has them") {
  const TemporaryFolder folder;
  const auto all = batch_of(std::string(base) + with_indices, folder);
  REQUIRE(all.size() == 24);
  std::mt19937 random(4);
  const int trials = is_long() ? 100 : 6;
  for (int trial = 0; trial < trials; ++trial) {
    std::set<std::int64_t> guilty;
    while (std::ssize(guilty) < 1 + trial % 3) guilty.insert(all[random() % all.size()]);
    const std::string more = (trial % 2 == 0 ? "" : "[accumulation]\nuse = \"fixed\"\nmicro_batches = 2\n") +
                             std::string(trial % 4 < 2 ? "" : "[precision]\nuse = \"bf16\"\n");
    check_told(texts_of(2, folder,
                        [&](int) {
                          SmallRun run(from_toml({base, with_indices, more}), folder.path(), plugins_and_fixtures());
                          poison(run, [&](const Run& now, std::int64_t row) {
                            return guilty.contains(now.micro_batch.indices.at(static_cast<std::size_t>(row)));
                          });
                          return trained(run);
                        }),
               guilty);
  }
}

TEST_CASE("culprit: rows of a task that does not number its samples are found on two ranks, too") {
  const TemporaryFolder folder;
  // In the batch of this step, row r begins with cos(longest r + number).
  constexpr std::int64_t number = bad_step - 1, longest = 1 + number % 5;
  for (const std::set<std::int64_t>& guilty : {std::set<std::int64_t>{3}, {20}, {0, 11, 12, 23}}) {
    check_told(texts_of(2, folder,
                        [&](int) {
                          SmallRun run(from_toml({base, without_indices}), folder.path(), plugins_and_fixtures());
                          poison(run, [&](const Run& now, std::int64_t row) {
                            const auto word = now.micro_batch.tensors[0][row][0].item<double>();
                            return std::ranges::any_of(guilty, [&](auto r) {
                              return std::abs(word - std::cos(double(longest * r + number))) < 1e-6;
                            });
                          });
                          return trained(run);
                        }),
               guilty);
  }
}

TEST_CASE(
    "recheck: a number that is wrong once on one rank is found, with the rank, and the repeat has the right bits") {
  const TemporaryFolder folder;
  const std::string config = R"([run]
steps = 10
[distributed]
use = "ddp"
timeout = 20
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[[callback]]
use = "recheck"
every = 1
on_fault = "repeat"
)" + std::string(with_indices);
  const auto texts_with = [&](int bad_rank) {
    return texts_of(2, folder, [&](int rank) {
      SmallRun run(from_toml({config}), folder.path(), plugins_and_fixtures());
      bool is_over = rank != bad_rank;
      run.on(Event::BatchReady, [&](Run& now) {
        if (is_over || now.step + 1 != bad_step) return;
        is_over = true;
        now.micro_batch.tensors[0] = now.micro_batch.tensors[0] * 1.0001;
      });
      std::string reported;
      run.on(Event::StepEnd, [&](Run& now) {
        for (const auto& notice : now.notices) {
          if (notice.name != "recheck") continue;
          for (const auto& [key, value] : notice.details) {
            if (key == "rank") reported += "rank " + std::to_string(std::get<std::int64_t>(value));
          }
        }
      });
      run.train();
      return reported + "|" + run.digest();
    });
  };
  const auto clean = texts_with(-1);
  CHECK(clean[0].starts_with('|'));
  CHECK(clean[1] == clean[0]);
  for (const int bad_rank : {0, 1}) {
    for (const auto& text : texts_with(bad_rank)) CHECK(text == "rank " + std::to_string(bad_rank) + clean[0]);
  }
}

}  // namespace culprit_test
