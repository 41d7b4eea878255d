// A checkpoint plugin of one's own, which has files of its own: whoever asks for a run's checkpoints asks the plugin.
#include <doctest/doctest.h>

#include "run_folder.h"
#include "thrown.h"

namespace own_checkpoint_test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

namespace {

// The plugin is beside the TOML file, as a user's own.
struct Place : RunFolder {
  explicit Place(const std::string& keeps)
      : RunFolder(base_run(24) + "[checkpoint]\nuse = \"one_file\"\nkeeps = \"" + keeps + "\"\nevery = 6\n") {
    fs::create_directories(at("plugins/checkpoint"));
    fs::copy_file(VERNIER_BINARY_DIR "/fixtures/plugins/checkpoint/one_file.so", at("plugins/checkpoint/one_file.so"));
  }
  int ask(Words words) {
    words.insert(words.end(), {"--plugin-path", "plugins"});
    return call(words);
  }
};

std::string undisturbed_digest() {
  static const std::string digest = [] {
    Place place("steps");
    REQUIRE_MESSAGE(place.train({"--quiet"}) == 0, place.err);
    return std::string(place.summary()["digest"]);
  }();
  return digest;
}

}  // namespace

TEST_CASE("own checkpoint: a run that was killed goes on wherever one of rolling does" *
          doctest::test_suite("distributed")) {
  for (const std::string keeps : {"steps", "newest"}) {
    CAPTURE(keeps);
    const std::string newest = keeps == "steps" ? "out/checkpoints/step-12.one" : "out/checkpoints/all.db";
    Place place(keeps);
    CHECK(place.call({"launch", "-n", "1", "run.toml", "--restarts", "2", "--set=checkpoint.dies_after=15"}) == 0);
    CHECK_MESSAGE(says(place.err, "attempt 2 of 3: 1 rank with --resume=out\n"), place.err);
    CHECK(says(place.out, "resumed after step 12\n"));
    CHECK(place.summary()["digest"] == undisturbed_digest());
    CHECK_FALSE(fs::exists(place.at("out-2")));
    fs::remove_all(place.at("out"));

    const Words killed = {"--quiet", "--set=checkpoint.dies_after=15"};
    for (const Words& how :
         {Words{"--set=run.resume=auto"}, Words{"--resume"}, Words{"--resume=out"}, Words{"--resume=" + newest}}) {
      CAPTURE(how.front());
      CHECK(place.train(killed) == -SIGKILL);
      CHECK_MESSAGE(place.train(how) == 0, place.err);
      CHECK(says(place.out, "resumed after step 12\n"));
      CHECK(place.summary()["digest"] == undisturbed_digest());
      CHECK_FALSE(fs::exists(place.at("out-2")));
      fs::remove_all(place.at("out"));
    }
  }
}

TEST_CASE("own checkpoint: it is listed, verified, shown, exported and used") {
  for (const std::string keeps : {"steps", "newest"}) {
    CAPTURE(keeps);
    Place place(keeps);
    CHECK(place.train({"--quiet"}) == 0);
    const std::string newest = keeps == "steps" ? "out/checkpoints/step-24.one" : "out/checkpoints/all.db";
    CHECK_MESSAGE(place.ask({"checkpoint", "list", "out"}) == 0, place.err);
    CHECK(says(place.out, "    24 "));
    CHECK(says(place.out, "  whole"));
    CHECK(says(place.out, "     6 ") == (keeps == "steps"));
    CHECK_FALSE(says(place.out, "not whole"));
    CHECK(place.ask({"checkpoint", "verify", newest}) == 0);
    CHECK(says(place.out, newest + ": whole, "));
    CHECK(place.ask({"checkpoint", "show", "out", "*weight"}) == 0);
    CHECK(says(place.out, "step 24 of run out"));
    for (const std::string path : {"out", newest.c_str()}) {
      CAPTURE(path);
      CHECK_MESSAGE(place.ask({"checkpoint", "export", path, "weights.safetensors"}) == 0, place.err);
      CHECK_MESSAGE(place.ask({"evaluate", path}) == 0, place.err);
      fs::remove(place.at("weights.safetensors"));
    }
    fs::resize_file(place.at(newest), 100);
    CHECK(place.ask({"checkpoint", "verify", "out"}) == 4);
    CHECK(says(place.err, newest));
    CHECK(is_one_line(place.err));
    CHECK(place.ask({"checkpoint", "list", "out"}) == (keeps == "steps" ? 0 : 4));
    CHECK(says(place.out + place.err, keeps == "steps" ? "not whole" : "is cut short"));
  }
}

TEST_CASE("own checkpoint: without the plugin, what it kept is refused in one line that names it") {
  Place place("steps");
  CHECK(place.train({"--quiet"}) == 0);
  for (const std::string tool : {"list", "verify", "show"}) {
    CHECK(place.call({"checkpoint", tool, "out"}) == 3);
    CHECK(says(place.err, "one_file"));
    CHECK(is_one_line(place.err));
  }
}

}  // namespace own_checkpoint_test
