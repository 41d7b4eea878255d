// `vernier quickstart`: calls of other verbs, by modes.
#include <doctest/doctest.h>

#include <filesystem>

#include "run_folder.h"
#include "thrown.h"

namespace quickstart_test {

namespace {

const std::string saves = "[checkpoint]\nuse = \"rolling\"\nevery = 2\n";

}  // namespace

TEST_CASE("quickstart prints what it calls, and its checkpoint mode resumes to the same bits") {
  RunFolder run(base_run(4) + saves);
  CHECK(run.call({"quickstart", "run.toml", "--mode", "checkpoint"}) == 0);
  CHECK(says(run.out, "$ vernier train run.toml --set run.output=runs/quickstart-modes/checkpoint"));
  CHECK(says(run.out, "--resume=runs/quickstart-modes/checkpoint/checkpoints/step-00000002"));
  CHECK(says(run.out, "== checkpoint took"));
  CHECK(says(run.out, "the weights are those of the run that was not stopped, to the bit"));
  CHECK(run.call({"quickstart", "run.toml"}) == 2);
  CHECK(is_one_line(run.err));
  CHECK(says(run.err, "runs/quickstart-modes is there already; remove it, or name another folder by --output"));
}

TEST_CASE("quickstart hands its options to the runs") {
  RunFolder run(base_run(40) + saves);
  CHECK(run.call({"quickstart", "run.toml", "--mode", "advanced", "--epochs", "2", "--batch-size", "32"}) == 0);
  CHECK(says(run.out, "--epochs 2 --batch-size 32"));
  CHECK(run.summary("runs/quickstart-modes/advanced").at("steps") == 4);  // 64 samples
  CHECK(run.call({"quickstart", "run.toml", "--mode", "memory", "--output", "other"}) == 0);
  CHECK(std::filesystem::exists(run.at("other/memory/summary.json")));
}

TEST_CASE("quickstart refuses in one line what it cannot do") {
  RunFolder run(base_run(4));
  const struct {
    std::vector<std::string> words;
    const char* says;
  } cases[] = {{{}, "configs/quickstart.toml is not here; call it in Vernier's folder, or name a TOML file"},
               {{"none.toml"}, "none.toml is not here"},
               {{"run.toml", "more.toml"}, "quickstart takes one file, and more.toml is a second"},
               {{"run.toml", "--mode", "fast"}, "--mode is fast, and must be basic, benchmark,"},
               {{"run.toml", "--epochs", "0"}, "--epochs is 0, and must be from 1"}};
  for (const auto& [words, text] : cases) {
    std::vector<std::string> all = {"quickstart"};
    all.insert(all.end(), words.begin(), words.end());
    CAPTURE(text);
    CHECK(run.call(all) == 2);
    CHECK(is_one_line(run.err));
    CHECK(says(run.err, text));
  }
  // The first call that fails ends it, with its status: `check` is not called.
  CHECK(run.call({"quickstart", "run.toml", "--mode", "all", "--batch-size", "99999999999"}) == 2);
  RunFolder single(base_run(4));
  CHECK(single.call({"quickstart", "run.toml", "--mode", "checkpoint"}) == 2);
  CHECK(says(single.err, "has no checkpoint before its end"));
}

}  // namespace quickstart_test
