// `vernier quickstart`: calls of other verbs, by modes.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "run_folder.h"
#include "thrown.h"

namespace quickstart_test {

namespace {

// The status of a shell that runs the calls that were printed, with the built program as `vernier`. The call that an
// exception ends has status 4.
int type_again(const RunFolder& run) {
  std::string script = "PATH=" VERNIER_BINARY_DIR ":$PATH\n";
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("$ ")) continue;
    const bool fails = says(line, "inject.what=exception") && !says(line, "--resume");
    script += line.substr(2) + (fails ? "; test $? = 4 || exit 1\n" : " || exit 1\n");
  }
  run.folder.write("again.sh", script);
  return std::system(("cd '" + run.folder.path().string() + "' && sh again.sh >again.log 2>&1").c_str());
}

}  // namespace

TEST_CASE("quickstart: a mode says itself what it needs, and each call that it prints works again") {
  const struct {
    const char* mode;
    std::vector<std::string> says;
  } cases[] = {{"basic", {"--set precision.use=auto --set scaler.use=dynamic", "epoch 1  loss "}},
               {"memory", {"--set precision.use=bf16", "less than in float32 with the same other options"}},
               {"checkpoint", {"the weights are those of the run that was not stopped, to the bit"}},
               {"errors",
                {"loss is nan; the run goes back", "the loss scale changed from 65536 to 32768",
                 "an exception is injected", "the exception ended that run with status 4", "resumed after step 2"}}};
  // A run of one epoch that saves nothing, with a scaler and a callback of its own.
  RunFolder run(
      "[run]\nepochs = 1\ndevice = \"cpu\"\nthreads = 1\n[task]\nuse = \"mlp\"\nsamples = 200\n[optimizer]\n"
      "use = \"sgd\"\n[scaler]\nuse = \"static\"\nscale = 4.0\n[checkpoint]\nuse = \"none\"\n[[callback]]\n"
      "use = \"clip_norm\"\n");
  for (const auto& [mode, texts] : cases) {
    CAPTURE(mode);
    const auto output = std::string("modes/") + mode;
    const int status = run.call({"quickstart", "run.toml", "--mode", mode, "--output", output});
    CHECK_MESSAGE(status == 0, run.err);
    for (const auto& text : texts) CHECK_MESSAGE(says(run.out + run.err, text), text);
    CHECK(std::filesystem::remove(run.at(output + "/report.html")));  // a report keeps a page that is there
    CHECK_MESSAGE(type_again(run) == 0, read_text(run.at("again.log")));
    CHECK(std::filesystem::exists(run.at(output + "/report.html")));
  }
}

TEST_CASE("quickstart hands its options to the runs, and refuses a folder that is there") {
  RunFolder run(base_run(40));
  CHECK(run.call({"quickstart", "run.toml", "--mode", "advanced", "--epochs", "2", "--batch-size", "32"}) == 0);
  CHECK(says(run.out, "--epochs 2 --batch-size 32"));
  CHECK(says(run.out, "== advanced took"));
  CHECK(run.summary("runs/quickstart-modes/advanced").at("steps") == 4);  // 64 samples
  CHECK(run.call({"quickstart", "run.toml"}) == 2);
  CHECK(is_one_line(run.err));
  CHECK(says(run.err, "runs/quickstart-modes is there already; remove it, or name another folder by --output"));
}

TEST_CASE("quickstart refuses in one line what it cannot do") {
  RunFolder run(base_run(4));
  const struct {
    std::vector<std::string> words;
    const char* says;
  } cases[] = {{{}, "configs/quickstart_small.toml is not here; call it in Vernier's folder, or name a TOML file"},
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
  RunFolder single(base_run(1));
  CHECK(single.call({"quickstart", "run.toml", "--mode", "checkpoint"}) == 2);
  CHECK(says(single.err, "run.toml trains a single step, so nothing can be resumed before its end; add --epochs 2"));
}

}  // namespace quickstart_test
