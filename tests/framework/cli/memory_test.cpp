// Limits to memory, as a person sets them.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include "run_folder.h"
#include "thrown.h"

namespace memory_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

constexpr const char* wide = R"([run]
steps = 6
device = "cpu"
threads = 1
output = "out"
[task]
use = "mlp"
hidden = [128, 128]
samples = 4000
batch_size = 2000
validation = 0
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
every = 2
[[monitor]]
use = "jsonl"
)";

struct Place : RunFolder {
  Place() : RunFolder(wide) {}
  std::string losses() const { return read_text(at("out/losses.jsonl")); }
};

}  // namespace

TEST_CASE("memory limit: a run that would pass it ends in one line with a checkpoint, and goes on with a larger one") {
  // From the fourth step on the micro-batches are ten times as large.
  const Arguments growing = {"--quiet",
                             "--set=task.batch_size=200",
                             "--set=accumulation.use=schedule",
                             "--set=accumulation.effective_batch_size=[200, 2000]",
                             "--set=accumulation.from=[0, 3]",
                             "--set=accumulation.micro_batch_size=2000"};
  const auto with = [&](std::initializer_list<const char*> more) {
    auto all = growing;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Place limited, free;
  REQUIRE(free.train(growing) == 0);
  CHECK(limited.train(with({"--set=run.memory_limit=4MB"})) == 4);
  CAPTURE(limited.err);
  CHECK(is_one_line(limited.err));
  CHECK(says(limited.err, "vernier: task/mlp in step 4: "));
  CHECK(says(limited.err, " more were requested, and "));
  CHECK(says(limited.err,
             " of 4.00 MB are in use; train in smaller micro-batches: [accumulation] use = \"fit\" finds their size"));
  CHECK(fs::exists(limited.folder.path() / "out/checkpoints/step-00000003"));
  CHECK(limited.train(with({"--resume", "--set=run.memory_limit=60MB"})) == 0);
  CHECK(limited.summary()["digest"] == free.summary()["digest"]);
  CHECK(limited.losses() == free.losses());
}

TEST_CASE("memory limit: accumulation.use = \"fit\" trains below it what does not fit whole, and goes on exactly") {
  Place whole, place, halves;
  CHECK(whole.train({"--quiet", "--set=run.memory_limit=4MB"}) == 4);
  const Arguments fit = {"--set=run.memory_limit=4MB", "--set=accumulation.use=fit", "--set=run.steps=8"};
  CHECK(place.train(fit) == 0);
  CHECK(says(place.out + place.err, "accumulation/fit: micro-batches of "));
  CHECK(place.summary()["steps"] == 8);
  CHECK_FALSE(says(place.losses(), "out_of_memory"));
  auto half = fit;
  half.back() = "--set=run.steps=2";  // not settled yet
  CHECK(halves.train(half) == 0);
  half.back() = "--set=run.steps=8";
  half.emplace_back("--resume");
  CHECK(halves.train(half) == 0);
  CHECK(halves.summary()["digest"] == place.summary()["digest"]);
  CHECK(halves.losses() == place.losses());
}

TEST_CASE("memory limit: what `ulimit -v` leaves is found and kept to") {
  if (!std::string(VERNIER_SANITIZER).empty()) return;  // its shadow takes terabytes of addresses
  Place place;
  CHECK(place.train({"--set=accumulation.use=fit", "--set=task.batch_size=400000", "--set=task.samples=400000",
                     "--set=run.steps=3"},
                    [] {
                      const rlimit limit{3'000'000'000, 3'000'000'000};
                      ::setrlimit(RLIMIT_AS, &limit);
                    }) == 0);
  CAPTURE(place.err);
  const auto losses = place.losses();
  CHECK(says(losses, "\"micro_batches\":"));
}

TEST_CASE("memory limit: amounts that are none are refused, with their place") {
  for (const auto* amount : {"6.9", "0GB", "many", "120%"}) {
    CAPTURE(amount);
    Place place;
    CHECK(place.train({std::string("--set=run.memory_limit=\"") + amount + "\""}) ==
          (std::string(amount) == "6.9" ? 4 : 2));
    if (std::string(amount) != "6.9") CHECK(says(place.err, "--set run.memory_limit: run: `memory_limit` is \""));
    CHECK(is_one_line(place.err));
  }
}

TEST_CASE("low memory: each lever that the plugins have is set and reported, and what the files say stays") {
  Place place;
  CHECK(place.train({"--low-memory"}) == 0);
  const auto told = place.out + place.err;
  CHECK(says(told, "accumulation.use = \"fit\": "));
  CHECK(says(told, "task.recompute = "));
  CHECK(place.summary()["configuration"]["accumulation"]["use"] == "fit");

  Place half;
  CHECK(half.train({"--low-memory", "--set=precision.use=bf16", "--set=precision.level=O3"}) == 0);
  CHECK(says(half.out + half.err, "[optimizer] stays as it is: "));
  CHECK(half.summary()["configuration"]["optimizer"]["state"] == "float32");

  Place own;
  CHECK(own.train({"--low-memory", "--set=accumulation.micro_batches=2"}) == 0);
  CHECK(own.summary()["configuration"]["accumulation"]["use"] == "fixed");
  CHECK(own.summary()["configuration"]["accumulation"]["micro_batches"] == 2);
  const auto update = own.summary()["this_process"]["per_update"];
  CHECK(update["micro_batches"] == 2);
  CHECK(update["samples"] == 2000);
  CHECK(update["seconds"] > 0);
}

}  // namespace memory_test
