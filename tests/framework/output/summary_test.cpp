// summary.json of a run that failed.
#include <doctest/doctest.h>

#include "run_folder.h"
#include "thrown.h"

namespace summary_test {

namespace fs = std::filesystem;

namespace {

// Every step from the `from`-th on overflows, and the third in a row ends the run.
std::string storm(int from) {
  return "[scaler]\nuse = \"dynamic\"\noverflows_in_a_row = 3\n[[callback]]\nuse = \"inject\"\nwhat = \"inf\"\nwhere = "
         "\"gradient\"\nlayer = \"layers.0\"\nevery = 1\nat_step = " +
         std::to_string(from) + "\n";
}

struct Place : RunFolder {
  explicit Place(const std::string& more)
      : RunFolder(
            "[run]\nsteps = 10\ndevice = \"cpu\"\nthreads = 1\noutput = \"out\"\n[task]\nuse = \"mlp\"\nsamples = 64\n"
            "[optimizer]\nuse = \"sgd\"\n[checkpoint]\nuse = \"rolling\"\n" +
            more) {}
};

void check_storm(Place& place, int steps) {
  CAPTURE(place.err);
  const auto summary = place.summary();
  CHECK(summary["ended_by"] == "error");
  CHECK(says(summary["error"].get<std::string>(), "3 updates in a row overflowed"));
  CHECK(says(place.err, summary["error"].get<std::string>()));
  CHECK(summary["steps"] == steps);
  CHECK(summary["updates_applied"] == steps - 3);
  CHECK(summary["updates_skipped"] == 3);
  CHECK(summary["amp"]["total_steps"] == steps);
  CHECK(summary["amp"]["overflow_count"] == 3);
  CHECK(summary["digest"].get<std::string>().starts_with("xxh3-128:"));
}

}  // namespace

TEST_CASE("summary: of a run that a storm of overflows ended") {
  Place place(storm(5) + "[[callback]]\nuse = \"memory\"\nevery = 1\n[[monitor]]\nuse = \"jsonl\"\n");
  CHECK(place.train({"--quiet"}) == 4);
  check_storm(place, 7);
  CHECK(place.summary()["this_process"]["steps"] == 7);
  // The newest value of a metric that losses.jsonl leaves out.
  CHECK(place.summary()["this_process"]["metrics"].at("memory_weights").get<double>() > 0);
  CHECK_FALSE(says(read_text(place.at("out/losses.jsonl")), "memory_weights"));
}

TEST_CASE("summary: a finished run that goes on into a storm has the storm's") {
  Place place(storm(12));
  REQUIRE(place.train({"--quiet"}) == 0);
  CHECK(place.summary()["ended_by"] == "done");
  CHECK_FALSE(place.summary().contains("error"));
  CHECK(place.train({"--quiet", "--resume", "--set", "run.steps=20"}) == 4);
  check_storm(place, 14);
}

TEST_CASE("summary: one that cannot be written does not hide why the run failed") {
  Place place(storm(12));
  REQUIRE(place.train({"--quiet"}) == 0);
  fs::remove(place.at("out/summary.json"));
  fs::create_directories(place.at("out/summary.json/in the way"));
  CHECK(place.train({"--quiet", "--resume", "--set", "run.steps=20"}) == 4);
  CAPTURE(place.err);
  CHECK(says(place.err, "3 updates in a row overflowed"));
  CHECK(says(place.err, "summary.json"));
}

TEST_CASE(
    "summary: what a step saves beside float32 is what [AMP] expected says, more or less, and null if it lowers "
    "nothing") {
  const struct {
    const char* precision;
    bool lowers;
  } cases[] = {{"use = \"bf16\"\n", true},
               {"use = \"bf16\"\nlevel = \"O3\"\n", true},
               {"use = \"bf16\"\nlevel = \"O0\"\n", false}};
  for (const auto& [precision, lowers] : cases) {
    CAPTURE(precision);
    Place place(std::string("[precision]\n") + precision);
    REQUIRE(place.train({"--set", "run.measure_savings=true"}) == 0);
    const auto summary = place.summary();
    CAPTURE(place.out);
    const auto& saved = summary["amp"]["avg_memory_savings"];
    CHECK(saved.is_number() == lowers);
    CHECK(summary["amp"]["amp_steps"] == (lowers ? 10 : 0));
    CHECK(summary["amp"]["mean_step_seconds"] == summary["this_process"]["per_update"]["seconds"]);
    CHECK(says(place.out, "[AMP] expected: a step takes ") == lowers);
    CHECK_FALSE(says(place.out, "takes -"));
    if (!lowers) continue;
    const auto sign = std::string(saved.get<double>() < 0 ? " more" : " less");
    CHECK(says(place.out, sign + " than in float32 with the same other options, as measured"));
  }
}

}  // namespace summary_test
