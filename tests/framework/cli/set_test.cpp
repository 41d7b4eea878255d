// --set, which means the same in every verb that takes it.
#include <doctest/doctest.h>

#include "common/left_out.h"
#include "run_folder.h"
#include "thrown.h"

namespace set_test {

namespace {

using Words = std::vector<std::string>;

struct Call {
  Words words;
  bool makes_plugins = true;  // by itself, and before it starts other programs
};

const std::vector<Call> calls = {
    {{"train", "run.toml"}},
    {{"check", "run.toml"}},
    {{"check", "run.toml", "--find-lr"}},
    {{"profile", "run.toml"}},
    {{"evaluate", "out"}},
    {{"predict", "out", "--input", "points.csv", "--output", "found.csv"}},
    {{"export", "out", "--format", "safetensors", "--output", "model.safetensors"}},
    {{"generate", "out", "--prompt", "x"}},
    {{"replay", "out", "--step", "1"}},
    {{"launch", "-n", "1", "run.toml"}},
    {{"config", "run.toml"}, false},
    {{"compare", "run.toml", "--seeds", "1"}, false},
    {{"advise", "run.toml"}, false},
    {{"new", "toml", "points.csv"}, false},
    {{"check", VERNIER_BINARY_DIR "/plugins/callback/clip_norm.so", "--law", "loads"}, false},
};

struct Wrong {
  Words sets;
  std::string says;
};

const std::vector<Wrong> wrong_everywhere = {
    {{"task.samples"}, "--set task.samples: write --set key=value, as --set run.steps=100"},
    {{"task.'samples'=1"}, "--set task.'samples'=1: a key in quotes can be set in a file only"},
    {{"task.target=${NO_SUCH_NAME}"}, "--set task.target: ${NO_SUCH_NAME}: there is no environment variable"},
};

// `use` goes first, so the options that stand before it are those of the new plugin, and not the file's.
const std::vector<Wrong> wrong_for_plugins = {
    {{"optimizer.betas=5", "optimizer.use=lion"}, "--set optimizer.betas: optimizer/lion: "},
};

struct Place : RunFolder {
  Place() : RunFolder(base_run(2) + "momentum = 0.5\n[checkpoint]\nevery = 1\n") {
    folder.write("points.csv", "x,class\n1,a\n2,b\n3,a\n4,b\n");
    REQUIRE_MESSAGE(train({"--quiet"}) == 0, err);
  }
  int call_with(Words words, const Words& sets) {
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    return call(words);
  }
};

}  // namespace

TEST_CASE("set: the same mistake is refused in the same words by every verb") {
  Place place;
  const auto refuses = [&](const Call& each, const Wrong& wrong) {
    CAPTURE(each.words[0]);
    CAPTURE(wrong.sets[0]);
    CHECK(place.call_with(each.words, wrong.sets) == 2);
    CHECK_MESSAGE(says(place.err, wrong.says), place.err);
  };
  for (const auto& each : calls) {
    if (!vernier::left_out(each.words[0] == "new" ? "new-toml" : each.words[0]).empty()) continue;
    for (const auto& wrong : wrong_everywhere) refuses(each, wrong);
    if (!each.makes_plugins) continue;
    for (const auto& wrong : wrong_for_plugins) refuses(each, wrong);
  }
}

TEST_CASE("set: what a verb leaves out of a run cannot be set" * doctest::test_suite("graph")) {
  Place place;
  for (const Words& words : {Words{"evaluate", "out"}, {"profile", "run.toml", "--steps", "1"}}) {
    CAPTURE(words[0]);
    CHECK(place.call_with(words, {"monitor.csv.every=5"}) == 2);
    CHECK_MESSAGE(says(place.err, "--set monitor.csv.every: has no effect here"), place.err);
  }
  CHECK(place.call_with({"export", "out", "--format", "safetensors", "--output", "x"},
                        {"accumulation.micro_batches=2"}) == 2);
  CHECK_MESSAGE(says(place.err, "--set accumulation.micro_batches: has no effect here"), place.err);
}

TEST_CASE("set: the last one counts, over the file") {
  Place place;
  const Words sets = {"optimizer.momentum=wrong", "optimizer.momentum = 0.25"};
  CHECK(place.call_with({"config", "run.toml"}, sets) == 0);
  CHECK_MESSAGE(says(place.out, "momentum = 0.25  # --set optimizer.momentum\n"), place.out);
  CHECK(place.call_with({"check", "run.toml"}, sets) == 0);
  CHECK_MESSAGE(says(place.out, "momentum=0.25"), place.out);
}

TEST_CASE("set: over a run's own configuration, the last one counts too" * doctest::test_suite("data")) {
  Place place;
  CHECK_MESSAGE(place.call_with({"evaluate", "out"}, {"optimizer.momentum=wrong", "optimizer.momentum = 0.25"}) == 0,
                place.err);
}

}  // namespace set_test
