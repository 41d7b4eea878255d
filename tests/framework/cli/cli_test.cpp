// The program from end to end: what a person types, what they read, and what is left on the disk.
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/hardware.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "common/left_out.h"
#include "limited_files.h"
#include "pseudo_terminal.h"
#include "run_folder.h"
#include "thrown.h"

namespace cli_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

// A run of a fraction of a second. Its lines: [run] 1 to 5, [task] 6 to 8, [optimizer] 9, 10, [checkpoint] 11 to 13.
const std::string base = base_run(20) + "[checkpoint]\nuse = \"rolling\"\nevery = 5\n";

struct Place : RunFolder {
  explicit Place(const std::string& more = "", const fs::path& parent = fs::temp_directory_path())
      : RunFolder(base + more, parent) {}
};

struct Bad {
  std::string what;     // is wrong
  std::string more;     // lines of the configuration from 14 on
  Arguments arguments;  // after `train run.toml`
  int status;
  Arguments says;
};

void is_refused(const Bad& bad) {
  CAPTURE(bad.what);
  Place place(bad.more);
  CHECK(place.train(bad.arguments) == bad.status);
  CAPTURE(place.err);
  CHECK(is_one_line(place.err));
  CHECK(place.err.starts_with("vernier: "));
  for (const auto& part : bad.says) CHECK_MESSAGE(says(place.err, part), part);
  CHECK_FALSE(fs::exists(place.at("out")));
}

std::string set(const std::string& text) {
  return "--set=" + text;
}

const std::vector<Bad> bad_configurations = {
    {"unknown key",
     "[scaler]\nuse = 'dynamic'\ngrowth = 2\n",
     {},
     2,
     {"run.toml:16: scaler/dynamic: `growth` is not an option here", "vernier plugins scaler/dynamic"}},
    {"misspelt key",
     "",
     {set("task.batchsize=8")},
     2,
     {"--set task.batchsize: task/mlp: `batchsize` is not an option here; did you mean `batch_size`?"}},
    {"wrong type",
     "[scaler]\nuse = 'dynamic'\ninit_scale = 'big'\n",
     {},
     2,
     {"run.toml:16: scaler/dynamic: `init_scale` must be a number, and is a string"}},
    {"out of range",
     "[accumulation]\nuse = 'fixed'\nmicro_batches = 0\n",
     {},
     2,
     {"run.toml:16: accumulation/fixed: `micro_batches` must be at least 1, and is 0"}},
    {"unknown table",
     "[precission]\nuse = 'bf16'\n",
     {},
     2,
     {"run.toml:14: `precission` is not a table of a run; did you mean [precision]?"}},
    {"a key of another trainer",
     "",
     {set("optimizer.lr=0.1")},
     2,
     {"--set optimizer.lr: optimizer/sgd: `lr` is not an option here; did you mean `learning_rate`?"}},
    {"a key of another trainer without its table",
     "",
     {set("lr=0.1")},
     2,
     {"--set lr: `lr` is not a table of a run; did you mean `optimizer.learning_rate`?"}},
    {"a name of another trainer", "", {set("precision.use=16-mixed")}, 3, {"did you mean \"fp16\"?", "; searched: "}},
    {"nan for a name",
     "",
     {set("run.name=nan")},
     2,
     {"`name` must be a string, and is a number: nan is a number in TOML; for the text write --set "
      "'run.name=\"nan\"'"}},
    {"a name with an escape", "", {set("run.name=\x1b[31m")}, 2, {"UTF-8 without control characters", "\"\\x1b[31m\""}},
    {"a value with an escape and no UTF-8",
     "",
     {set("run.device=\x1b[31m\xff")},
     2,
     {"`device` is \"\\x1b[31m\\xff\", which is not a device"}},
    {"no folder of plugins", "", {"--plugin-path", "none"}, 2, {"--plugin-path none: there is no such folder"}},
    {"[callback]", "[callback]\nuse = 'clip_norm'\n", {}, 2, {"run.toml:14: ", "write [[callback]], not [callback]"}},
    {"two [scaler]", "[scaler]\nuse = 'none'\n[scaler]\nuse = 'static'\n", {}, 2, {"run.toml:16: ", "scaler"}},
    {"broken TOML", "[scaler\n", {}, 2, {"run.toml:14: "}},
    {"unknown plugin",
     "[precision]\nuse = 'fp61'\n",
     {},
     3,
     {"run.toml:15: no precision is called \"fp61\"; did you mean \"fp16\"?"}},
    {"fp16 without a scaler",
     "[precision]\nuse = 'fp16'\n",
     {},
     2,
     {"run.toml:14: precision/fp16: `use` needs a loss scaler", "add [scaler] use = \"dynamic\""}},
    {"a plugin of another role",
     "[[callback]]\nuse = 'wrong_role'\n",
     {"--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"},
     3,
     {"run.toml:15: ", "is a monitor"}},
    {"a plugin of another torch",
     "[[callback]]\nuse = 'wrong_torch'\n",
     {"--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"},
     3,
     {"run.toml:15: ", "built with", "rebuild the plugin"}},
    {"steps and epochs", "", {set("run.epochs=1")}, 2, {"--set run.epochs: run: `epochs` and `steps` both"}},
    {"neither", "", {set("run.steps=0")}, 2, {"--set run.steps: run: `steps` or `epochs` must say how long"}},
    {"negative steps", "", {set("run.steps=-1")}, 2, {"`steps` must be at least 0, and is -1"}},
    {"too many threads", "", {set("run.threads=100000")}, 2, {"`threads` must be 0 to 1024"}},
    {"name with a slash", "", {set("run.name=a/b")}, 2, {"`name` must be a file name, and is \"a/b\""}},
    {"no folder", "", {set("run.output=")}, 2, {"`output` must name a folder, and is \"\"; leave it out for runs/"}},
    {"name of a parent", "", {set("run.name=..")}, 2, {"`name` must be a file name"}},
    {"no device",
     "",
     {set("run.device=gpu")},
     2,
     {"--set run.device: run: `device` is \"gpu\", which is not a device; it takes auto, cpu, cuda"}},
    {"misspelt key of [run]", "", {set("run.step=5")}, 2, {"run: `step` is not an option here; did you mean `steps`?"}},
    {"more micro-batches than samples",
     "[accumulation]\nuse = 'fixed'\nmicro_batches = 9\n",
     {"--quiet"},
     2,
     {"run.toml:14: accumulation/fixed in step 1: micro_batches = 9 is more than a batch has samples (8)",
      "lower `micro_batches`"}},
    {"no checkpoint to resume",
     "",
     {"--resume"},
     2,
     {"there is no checkpoint to resume from in out; leave --resume out to start a new run"}},
    {"a checkpoint that is not there", "", {"--resume=none"}, 2, {"none"}},
    {"a checkpoint that is none", "", {"--resume=run.toml"}, 2, {"run.toml: is neither a checkpoint"}},
};

bool has_gpu() {
  return fs::exists("/dev/nvidiactl");
}

}  // namespace

TEST_CASE("cli: bad configurations end in one line with the place and the remedy") {
  for (const auto& bad : bad_configurations) is_refused(bad);
}

TEST_CASE("cli: cuda where there is none is refused with its line") {
  if (has_gpu()) {
    MESSAGE("this machine has a GPU");
    return;
  }
  Place place;
  place.folder.write("run.toml", std::string(base).replace(std::string(base).find("\"cpu\""), 5, "\"cuda\""));
  CHECK(place.train() == 2);
  CHECK(place.err ==
        "vernier: run.toml:3: run: `device` is \"cuda\", and there is no NVIDIA GPU or driver on this machine; use "
        "\"cpu\" or "
        "\"auto\"\n");
}

TEST_CASE("cli: bad calls end in one line") {
  struct Call {
    Arguments arguments;
    std::string says;
  };
  const std::vector<Call> calls = {
      {{"trian", "run.toml"}, "there is no verb \"trian\"; did you mean train?"},
      {{"fly"}, "there is no verb \"fly\"; see vernier --help"},
      {{"help", "fly"}, "there is no verb \"fly\"; see vernier --help"},
      {{"train"}, "name a TOML file, as in `vernier train configs/quickstart.toml`"},
      {{"train", "none.toml"}, "none.toml: there is no such file"},
      {{"train", "."}, ".: is a folder"},
      {{"train", "run.toml", "--fast"}, "unrecognised option '--fast'; see vernier train --help"},
      {{"train", "run.toml", "--lr", "1"},
       "unrecognised option '--lr'; write --set optimizer.learning_rate=VALUE; see vernier train --help"},
      {{"train", "run.toml", "--fp16"}, "'--fp16'; did you mean --mixed-precision fp16?; see vernier train --help"},
      {{"checkpoint", "list", "run", "--mixed-precision", "fp16"}, "unrecognised option '--mixed-precision'"},
      {{"train", "pipe.toml"}, "'pipe.toml' cannot be read: it is a pipe"},
      {{"train", "run.toml", "--set"}, "see vernier train --help"},
      {{"train", "run.toml", "--set", "run.steps"}, "--set run.steps: write --set key=value"},
      {{"train", "empty.toml"}, "`steps` or `epochs` must say how long to train"},
      {{"train", "empty.toml", "--set", "run.steps=1"}, "the configuration has no [task]; add one"},
      {{"plugins", "dynamic"}, "write role/name, as in scaler/dynamic"},
      {{"plugins", "scalar/dynamic"}, "there is no role \"scalar\""},
  };
  Place place;
  place.folder.write("empty.toml", "");
  REQUIRE(::mkfifo(place.at("pipe.toml").c_str(), 0600) == 0);
  for (const auto& call : calls) {
    CAPTURE(call.says);
    CHECK(place.call(call.arguments) == 2);
    CAPTURE(place.err);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, call.says));
    CHECK(place.out.empty());
  }
  CHECK(place.call({"plugins", "scaler/dynamc"}) == 3);
  CHECK(says(place.err, "did you mean \"dynamic\"?"));
  CHECK(place.call({}) == 2);
  CHECK(place.err.starts_with("usage: vernier VERB"));
}

TEST_CASE("cli: data that are missing, empty or too short are refused" * doctest::test_suite("text")) {
  const auto gpt = [](const std::string& data) {
    Place place;
    place.folder.write("gpt.toml", "[run]\nsteps = 1\ndevice = 'cpu'\noutput = 'out'\n[task]\nuse = 'gpt'\n" + data +
                                       "\n[optimizer]\nuse = 'sgd'\n");
    place.folder.write("empty.txt", "");
    place.folder.write("short.txt", "abc");
    const int status = place.call({"train", "gpt.toml"});
    CHECK(status == 2);
    CHECK(is_one_line(place.err));
    CHECK_FALSE(fs::exists(place.at("out")));
    return place.err;
  };
  CHECK(says(gpt("data = ['none.txt']"), "none.txt"));
  CHECK(says(gpt("data = ['empty.txt']"), "gpt.toml:5: task/gpt: data has"));
  CHECK(says(gpt("data = ['short.txt']"), "gpt.toml:5: task/gpt: data has"));
  CHECK(says(gpt(""), "gpt.toml:5: task/gpt: `data` is needed"));
}

TEST_CASE("cli: an output that cannot be written is refused") {
  for (const std::string output : {"run.toml/out", "/proc/out", "run.toml"}) {
    Place place;
    CHECK(place.train({set("run.output=" + output)}) == 2);
    CAPTURE(place.err);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, "cannot make the run's folder " + output + ": "));
    CHECK(says(place.err, "set [run] output to a folder that can be written to"));
  }
}

TEST_CASE("cli: a full disk ends in one line, and what was saved before can be resumed") {
  Place place;
  fs::create_directories(place.at("disk"));
  if (::mount("none", place.at("disk").c_str(), "tmpfs", 0, "size=160k") != 0) {
    MESSAGE("no tmpfs can be mounted here: a disk that fills up is not tried");
    return;
  }
  const Arguments onto_disk = {set("run.output=disk/out"), set("task.hidden=[256]"), set("checkpoint.keep_last=9"),
                               "--quiet"};
  CHECK(place.train(onto_disk) == 4);
  const std::string err = place.err;
  fs::create_directories(place.at("elsewhere"));
  fs::copy(place.at("disk/out"), place.at("elsewhere/out"), fs::copy_options::recursive);
  ::umount(place.at("disk").c_str());
  CAPTURE(err);
  CHECK(is_one_line(err));
  CHECK(says(err, "checkpoint/rolling "));
  CHECK(says(err, "No space left on device"));
  CHECK(place.train({set("run.output=elsewhere/out"), set("task.hidden=[256]"), set("checkpoint.keep_last=9"),
                     "--resume"}) == 0);
  CHECK(says(place.out, "resumed after step "));
  CHECK(place.summary("elsewhere/out")["steps"] == 20);
}

TEST_CASE("cli: a limit on the size of files ends in one line, as a full disk does") {
  if (!can_limit_files) return;
  Place place;
  CHECK(place.train({set("task.hidden=[256]"), "--quiet"}, &limit_files<16384>) == 4);
  CAPTURE(place.err);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, "checkpoint/rolling "));
  CHECK(says(place.err, "File too large"));
}

TEST_CASE("cli: where standard input, output and error are closed, no file of the run gets what is for them") {
  const Arguments diverging = {set("optimizer.learning_rate=1e30")};  // the log shows it
  Place open("[[monitor]]\nuse = 'jsonl'\n"), closed("[[monitor]]\nuse = 'jsonl'\n");
  CHECK(open.train(diverging) == 5);
  CHECK(says(open.err, "the training has diverged"));
  CHECK(closed.train(diverging, [] {
    for (const int file : {0, 1, 2}) ::close(file);
  }) == 5);
  CHECK(read_text(closed.at("out/losses.jsonl")) == read_text(open.at("out/losses.jsonl")));
  CHECK(read_text(closed.at("out/config.toml")) == read_text(open.at("out/config.toml")));
  CHECK(is_one_line(read_text(closed.at("out/.lock"))));
  CHECK_FALSE(says(read_text(closed.at("out/log.txt")), "optimizer"));  // the table of plugins is for the terminal
}

TEST_CASE("cli: a run leaves its summary, its configuration, and checkpoints") {
  Place place;
  REQUIRE(place.train() == 0);
  CHECK(says(place.err, "step 20/20  loss "));
  CHECK(says(place.out, "done after 20 steps, 0 skipped; everything is in out\n"));
  const auto summary = place.summary();
  CHECK(summary["steps"] == 20);
  CHECK(summary["ended_by"] == "done");
  CHECK(summary["updates_applied"] == 20);
  CHECK(summary["samples"] > 100);
  CHECK(summary["digest"].get<std::string>().starts_with("xxh3-128:"));
  CHECK(summary["configuration"]["task"]["use"] == "mlp");
  CHECK(fs::exists(place.at("out/checkpoints/step-00000020/state.safetensors")));

  Place again;
  fs::copy_file(place.at("out/config.toml"), again.at("run.toml"), fs::copy_options::overwrite_existing);
  REQUIRE(again.train({"--quiet"}) == 0);
  CHECK(again.out.empty());
  CHECK(again.summary()["digest"] == summary["digest"]);
  CHECK(again.train({set("run.seed=2")}) == 0);
  CHECK(again.summary("out-2")["digest"] != summary["digest"]);
  CHECK(again.summary("out")["digest"] == summary["digest"]);
}

TEST_CASE("cli: a quiet run prints warnings and errors only, and no progress") {
  Place place("[[monitor]]\nuse = 'progress'\nevery = 1\n");
  REQUIRE(place.train() == 0);
  CHECK(says(place.err, "step 20/20  loss "));
  REQUIRE(place.train({"--quiet"}) == 0);
  CHECK(place.out.empty());
  CHECK(place.err.empty());
  CHECK(place.train({"--quiet", set("callback.inject.where=loss"), set("callback.inject.at_step=20")}) == 5);
  CHECK(place.out.empty());
  CHECK(says(place.err, "run: the training has diverged: "));
  CHECK_FALSE((place.err.starts_with("step ") || says(place.err, "\nstep ")));  // no line of progress
  REQUIRE(place.train({"--quiet", "--resume=out"}) == 0);                       // has all its steps
  CHECK(place.out.empty());
}

namespace {

// The output of the program on a terminal.
std::string on_terminal(int columns, const Arguments& arguments, Drawing* drawing = nullptr) {
  Place place;
  StandardError terminal(columns);
  static int file = -1;
  file = ::dup(STDERR_FILENO);
  place.call(arguments, [] {
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
  });
  ::close(file);
  const auto text = terminal.read();
  if (drawing != nullptr) *drawing = terminal.drawing;
  return text;
}

}  // namespace

TEST_CASE("cli: lines that are longer than the terminal's are broken between words" * needs_terminal) {
  const Arguments check = {"check", "run.toml", set("task.hidden=[16, 16, 16, 16]"), set("task.batch_size=16"),
                           set("optimizer.momentum=0.9")};
  for (const int columns : {60, 80}) {
    CAPTURE(columns);
    Drawing drawing;
    on_terminal(columns, check, &drawing);
    CHECK(drawing.widest() <= static_cast<std::size_t>(columns));
    std::string text;
    for (const auto& line : drawing.lines())
      text += line.substr(std::min(line.size(), line.find_first_not_of(' '))) + ' ';
    CHECK(says(text, " hidden=[16, 16, 16, 16] samples=64 batch_size=16 "));
  }
}

TEST_CASE("cli: NO_COLOR switches colours off, unless it is empty" * needs_terminal) {
  const auto colours = [](const char* no_color) {
    ::setenv("NO_COLOR", no_color, 1);
    const auto text = on_terminal(80, {"train", "none.toml"});
    CHECK(says(text, "none.toml: there is no such file"));
    return says(text, "\x1b[31m") || says(text, "\x1b[1m");
  };
  CHECK(colours(""));
  CHECK_FALSE(colours("1"));
  CHECK_FALSE(colours("0"));
  ::unsetenv("NO_COLOR");
}

TEST_CASE("cli: check trains nothing and writes nothing" * doctest::test_suite("text")) {
  Place place;
  CHECK(place.call({"check", "run.toml"}) == 0);
  CHECK(says(place.out, "ready: nothing was trained or written\n"));
  CHECK(says(place.out, "  task          mlp          samples=64\n"));
  CHECK(says(place.out, "on the first batch: loss "));
  CHECK(says(place.out, "in a validation: loss "));
  CHECK(says(place.out, "memory                                    fp32\n  weights "));
  CHECK_FALSE(says(place.out, "in float32"));
  CHECK_FALSE(fs::exists(place.at("out")));
  // Options alone: no data are looked for.
  const auto data = set("task={use='gpt', data=['nosuch']}");
  CHECK(place.call({"check", "run.toml", "--options", data}) == 0);
  CHECK(place.out.empty());
  CHECK(place.call({"check", "run.toml", "--options", data, set("precision.use=fp16")}) == 2);
  CHECK(says(place.err, "precision/fp16: `use` needs a loss scaler"));
}

TEST_CASE("cli: check compares a policy with float32, and fails where the first step would") {
  Place place;
  CHECK(place.call({"check", "run.toml", set("precision.use=bf16")}) == 0);
  CHECK(says(place.out, ", in float32 "));
  CHECK(says(place.out, "memory                                    fp32        bf16\n"));
  CHECK(says(place.out, "  weight copies                              -"));
  CHECK_FALSE(fs::exists(place.at("out")));
  const bool fits_more = says(place.out, "in the memory of float32, bf16 computes about ");  // on some processors alone
  CHECK(place.call({"check", "run.toml", set("precision.use=bf16"), "--savings"}) == 0);
  CHECK(fits_more == (std::stoll(place.out) > 0));
  Place unmatched("[[precision.rule]]\nop = 'softmax'\nuse = 'fp32'\n");
  CHECK(unmatched.call({"check", "run.toml"}) == 2);
  CHECK(says(unmatched.err, "the model does not call softmax"));
  CHECK(is_one_line(unmatched.err));
}

TEST_CASE("cli: plugins are listed with what they take") {
  Place place;
  CHECK(place.call({"plugins", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"}) == 0);
  CHECK(says(place.out, "\nscaler\n"));
  CHECK(says(place.out, "\n  dynamic 1.1.0\n"));
  CHECK(says(place.out, "  wrong_abi   refused: "));
  CHECK(place.call({"plugins", "scaler/dynamic"}) == 0);
  CHECK(says(
      place.out,
      "  growth_interval = 2000   (an integer: 1 to 1e+09)\n      steps without an overflow until the scale grows\n"));
  CHECK(place.call({"plugins", "run", "scaler/none"}) == 0);
  CHECK(says(place.out, "  seed = 1   (an integer: at least 0)\n"));
  CHECK(says(place.out, "\nscaler/none: no options\n"));
  CHECK(place.call({"--version"}) == 0);
  CHECK(says(place.out, "plugin ABI "));
}

TEST_CASE("cli: a checkpoint of another model is refused, and the run is as it was") {
  Place place;
  REQUIRE(place.train({"--quiet"}) == 0);
  const auto config = read_text(place.at("out/config.toml"));
  const auto state = read_text(place.at("out/checkpoints/step-00000020/state.safetensors"));
  for (const std::string& from :
       {std::string("--resume"), std::string("--resume=out"), std::string("--resume=out/checkpoints/step-00000010")}) {
    CHECK(place.train({set("task.hidden=[7]"), from}) == 2);
    CAPTURE(place.err);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, "it is a checkpoint of another model; resume with the configuration that wrote it"));
  }
  CHECK(place.train({set("optimizer.use=adamw"), "--resume"}) == 2);
  CHECK(says(place.err, "optimizer/sgd is not in this run; optimizer/adamw is new in this run; make them the same"));
  CHECK(read_text(place.at("out/config.toml")) == config);
  CHECK(read_text(place.at("out/checkpoints/step-00000020/state.safetensors")) == state);
  CHECK_FALSE(fs::exists(place.at("out-2")));
}

TEST_CASE("cli: --resume stands anywhere, and more steps may be trained") {
  Place place;
  REQUIRE(place.train({"--quiet"}) == 0);
  CHECK(place.call({"train", "--resume", "run.toml", "--set", "run.steps=30"}) == 0);
  CAPTURE(place.err);
  CHECK(says(place.out, "resumed after step 20\n"));
  CHECK(place.summary()["steps"] == 30);
  Place whole;
  REQUIRE(whole.train({set("run.steps=30")}) == 0);
  CHECK(whole.summary()["digest"] == place.summary()["digest"]);
}

TEST_CASE("cli: a run that was killed after its last checkpoint gets its summary where it is resumed") {
  Place place;
  REQUIRE(place.train({set("run.validate_every=10")}) == 0);
  auto whole = place.summary();
  const auto state = read_text(place.at("out/checkpoints/step-00000020/state.safetensors"));
  const auto drop_times = [](auto& summary) {
    summary.erase("this_process");  // the other process has another
    summary["amp"].erase("mean_step_seconds");
  };
  drop_times(whole);
  auto shorter = whole;
  shorter["steps"] = 10;
  auto stopped = whole;
  stopped["ended_by"] = "signal 15";
  for (const std::string& left : {std::string(), std::string("{\"steps\": 2"), shorter.dump(), stopped.dump()}) {
    CAPTURE(left);
    fs::remove(place.at("out/summary.json"));
    if (!left.empty()) place.folder.write("out/summary.json", left);
    CHECK(place.train({"--resume", set("run.validate_every=10")}) == 0);
    auto summary = place.summary();
    CHECK(summary["this_process"]["steps"] == 0);
    drop_times(summary);
    CHECK(summary == whole);
    CHECK(read_text(place.at("out/checkpoints/step-00000020/state.safetensors")) == state);
  }
  CHECK_FALSE(fs::exists(place.at("out-2")));
}

TEST_CASE("cli: a finished run is left as it is, and changes are reported where a run goes on") {
  Place place;
  REQUIRE(place.train() == 0);
  const auto summary = read_text(place.at("out/summary.json")), config = read_text(place.at("out/config.toml"));
  CHECK(place.train({"--resume", set("run.validate_every=3")}) == 0);
  CHECK(says(place.out, "out has all its 20 steps; to train on, raise run.steps or run.epochs"));
  CHECK(read_text(place.at("out/summary.json")) == summary);
  CHECK(read_text(place.at("out/config.toml")) == config);
  CHECK(place.train({"--resume", set("run.steps=30")}) == 0);
  CHECK_FALSE(says(place.err, "changed"));
  CHECK(place.train({"--resume", set("run.steps=40"), set("optimizer.learning_rate=0.02")}) == 2);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, "the run cannot be resumed bit for bit: optimizer.learning_rate was 0.01 and is 0.02"));
  CHECK(place.train({"--resume", "--allow-inexact", set("run.steps=40"), set("optimizer.learning_rate=0.02")}) == 0);
  CHECK(says(place.err, "optimizer.learning_rate was 0.01 and is 0.02; it is resumed all the same"));
  CHECK(place.summary()["steps"] == 40);
  CHECK(place.call({"check", "run.toml", "--resume"}) == 2);
  CHECK(says(place.err, "optimizer.learning_rate was 0.02 and is 0.01"));
  CHECK(place.call({"check", "run.toml", "--resume", set("optimizer.learning_rate=0.02")}) == 0);
  CHECK(says(place.out, "ready: out goes on after step 40\n"));
}

TEST_CASE("cli: a run that diverges says so at its end, and has an exit code of its own") {
  Place place;
  CHECK(place.train({set("optimizer.learning_rate=1e30")}) == 5);
  CHECK(
      says(place.err, "the training has diverged: the weight layers.0.weight is not finite; lower the learning rate"));
  CHECK(says(place.out, "\ndiverged after 2 steps, 0 skipped; everything is in out\n"));
  CHECK_FALSE(says(place.out, "try next"));
  CHECK(place.summary()["ended_by"] == "diverged");
  CHECK(place.summary()["error"] == "the weight layers.0.weight is not finite");
  Place skips(
      "[[callback]]\nuse = 'recovery'\n[[callback]]\nuse = 'inject'\nwhat = 'nan'\nlayer = 'layers.0'\nat_step = 20\n");
  CHECK(skips.train() == 0);
  CHECK(skips.summary()["ended_by"] == "done");
  CHECK(skips.summary()["updates_skipped"] == 1);
}

TEST_CASE("cli: what was swapped is reported at the end, in summary.json, and where the run goes on") {
  Place place(
      "[[callback]]\nuse = 'switch'\nat_step = 5\n[callback.to]\nprecision = {use = 'fp16'}\n"
      "scaler = {use = 'dynamic', init_scale = 8.0}\n");
  REQUIRE(place.train() == 0);
  CHECK(says(place.out, "  precision/fp32 became precision/fp16 after step 5\n"));
  const auto summary = place.summary();
  CHECK(summary["swaps"] == nlohmann::json::parse(R"([
    {"after_step": 5, "role": "precision", "from": "precision/fp32", "to": "precision/fp16"},
    {"after_step": 5, "role": "scaler", "from": "scaler/none", "to": "scaler/dynamic"}])"));
  CHECK(summary["configuration"]["precision"]["use"] == "fp16");
  CHECK(summary["configuration"]["scaler"]["init_scale"] == 8);
  CHECK(says(place.out, "\n[AMP] at the end: precision/fp16 in float16; scaler/dynamic, scale 8, growth tracker "));
  const auto status = nlohmann::json::parse(read_text(place.at("out/status.json")));
  CHECK(status["precision"] == "precision/fp16");
  CHECK(status["scaler"] == "scaler/dynamic");
  CHECK(status["step"] == 20);
  CHECK(place.call({"runs", "."}) == 0);
  CHECK(says(place.out, "  fp16  "));
  CHECK(place.train({"--resume", set("run.steps=25"), set("precision.use=bf16")}) == 0);
  CHECK(says(place.err, "[precision] is not read: its plugin was swapped while the run ran"));
  CHECK(says(place.out, "  precision     fp16 "));
  CHECK(place.summary()["swaps"] == summary["swaps"]);
  CHECK(place.summary()["configuration"]["precision"]["use"] == "fp16");
}

TEST_CASE("cli: a run says which precision it uses, and takes the words of other trainers") {
  Place place;
  CHECK(place.call({"check", "run.toml"}) == 0);
  CHECK(says(place.out, "\n[AMP] precision/fp32: mixed precision is off"));
  CHECK(says(place.out, "\n[AMP] the loss is not scaled; CPU "));
  CHECK(place.call({"check", "run.toml", "--mixed-precision", "fp16", "--grad-scaler-init", "8"}) == 0);
  CHECK(says(place.out, "\n[AMP] precision/fp16: float16 autocast"));
  CHECK(says(place.out, "\n[AMP] the loss is scaled by scaler/dynamic; "));
  CHECK(says(place.out, "init_scale=8"));
  CHECK(place.train({"--epochs", "2", "--batch-size", "16", "--grad-accum-steps", "2"}) == 0);
  CHECK(place.summary()["configuration"]["run"]["epochs"] == 2);
  CHECK(place.summary()["configuration"]["accumulation"]["gradient_accumulation_steps"] == 2);
  CHECK(place.summary()["this_process"]["per_update"]["micro_batches"] == 2);
  CHECK(place.summary()["this_process"]["per_update"]["samples"] > 16);
  CHECK(
      says(place.out,
           "train on           vernier train run.toml --grad-accum-steps 2 --batch-size 16 --resume=out --epochs 4\n"));
  CHECK(place.train({"--epochs", "2", set("run.epochs=3")}) == 2);
  CHECK(place.err == "vernier: --epochs and --set run.epochs say the same; give one of them\n");
  Place recomputing;
  CHECK(recomputing.train({"--grad-ckpt"}) == 0);
  CHECK(recomputing.summary()["configuration"]["task"]["recompute"] == "full");
}

TEST_CASE("cli: the dtype of a run is the one that it computed in, whatever the plugin is called") {
  struct Row {
    Arguments sets;
    const char* dtype;
    const char* listed;  // by vernier runs
  };
  const bool is_fast = vernier::hardware_of(c10::kCPU).bf16;
  const Row rows[] = {{{}, "float32", " fp32 "},
                      {{set("precision.use=bf16")}, "bfloat16", " bf16 "},
                      {{set("precision.use=bf16"), set("precision.level=O3")}, "bfloat16", " bf16 "},
                      {{set("precision.use=bf16"), set("precision.level=O0")}, "float32", " fp32 (bf16) "},
                      {{set("precision.use=fp8")}, "bfloat16", " bf16 (fp8) "},
                      {{set("precision.use=auto")}, is_fast ? "bfloat16" : "float32", " (auto) "}};
  for (const auto& [sets, dtype, listed] : rows) {
    CAPTURE(dtype);
    Place place;
    REQUIRE(place.train(sets) == 0);
    CHECK(says(place.out, std::string(" in ") + dtype + "; peak "));
    const auto status = nlohmann::json::parse(read_text(place.at("out/status.json")));
    CHECK(status["dtype"] == dtype);
    for (const char* key : {"scaler", "scale", "growth_tracker", "memory_reserved"}) CHECK(status[key].is_null());
    CHECK(status["hardware"]["bf16"] == is_fast);
    CHECK(place.call({"runs", "."}) == 0);
    CHECK(says(place.out, listed));
  }
  Place debugged;
  CHECK(debugged.train({"--debug", "--mixed-precision", "fp16", "--grad-scaler-init", "8"}) == 0);
  CHECK(says(debugged.err, "step 20: precision/fp16 in float16; scaler/dynamic, scale 8"));
  CHECK(says(debugged.out, "\n[AMP] precision/fp16: float16 autocast (O1) over the model's weights"));
  CHECK(debugged.call({"check", "run.toml", set("precision.use=bf16"), set("precision.level=O2")}) == 0);
  CHECK(says(debugged.out, "\n[AMP] precision/bf16: bfloat16 autocast (O2) over weights in 16 bits"));
  CHECK(debugged.call({"check", "run.toml", set("precision={use='bf16',level='O3',rounding='kahan'}")}) == 0);
  CHECK(says(debugged.out, "\n[AMP] precision/bf16: bfloat16 autocast (O3) over weights in 16 bits"));
}

TEST_CASE("cli: the expected speed comes from a comparison beside the run, which the line before it asks for") {
  Place place;
  const Arguments words = {"train", "run.toml", "--mixed-precision", "bf16", "--amp-opt-level", "O2"};
  REQUIRE(place.call(words) == 0);
  const std::string begin = "speed unknown, this measures it: vernier ";
  const auto command = place.out.substr(place.out.find(begin) + begin.size());
  std::istringstream in(command.substr(0, command.find('\n')) + " --seeds 1");
  Arguments compare;
  for (std::string word; in >> word;) compare.push_back(word);
  CAPTURE(command);
  REQUIRE(place.call(compare) == 0);
  REQUIRE(place.call(words) == 0);
  CHECK(says(place.out, "x the speed of float32, as measured in out-compare\n"));
  place.folder.write("out-compare/other/summary.json", R"({"this_process":[1]})");
  REQUIRE(place.call({"check", "run.toml", "--mixed-precision", "bf16", "--amp-opt-level", "O2"}) == 0);
  CHECK(says(place.out, "x the speed of float32, as measured in out-compare\n"));
  REQUIRE(place.call({"check", "run.toml", "--mixed-precision", "bf16"}) == 0);  // at another level
  CHECK(says(place.out, "speed unknown, vernier compare measures it\n"));
}

TEST_CASE("cli: the words of other trainers may be written with underscores too") {
  Place place;
  const auto check = [&](const Arguments& words) {
    Arguments all = {"check", "run.toml"};
    all.insert(all.end(), words.begin(), words.end());
    CHECK(place.call(all) == 0);
    CAPTURE(place.err);
    return place.out;
  };
  const auto out = check({"--mixed_precision=fp16", "--grad_scaler_init", "8", "--batch_size", "4"});
  CHECK(says(out, "\n[AMP] precision/fp16: float16 autocast"));
  CHECK(says(out, "init_scale=8"));
  CHECK(says(out, "batch_size=4"));
  const auto numbers = [](const std::string& text) { return text.substr(0, text.find("memory")); };
  CHECK(numbers(out) == numbers(check({"--mixed-precision=fp16", "--grad-scaler-init", "8", "--batch-size", "4"})));
  CHECK(says(check({"--low_memory"}), "\n  accumulation  fit"));
}

TEST_CASE("cli: the command to go on with can be pasted") {
  Place place;
  CHECK(place.train({set("run.output=it's out")}) == 0);
  CHECK(says(place.out, "--set 'run.output=it'\\''s out' --resume='it'\\''s out' --set run.steps=40"));
}

namespace {

// Types a command in the place, in a shell. Returns its status.
int typed(const Place& place, const std::string& command) {
  const auto line = "cd '" + place.folder.path().string() + "' && PATH='" VERNIER_BINARY_DIR "':\"$PATH\" " + command +
                    " >typed.out 2>&1 </dev/null";
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The commands that a program prints behind these words.
Arguments commands_in(const std::string& text) {
  Arguments commands;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (const std::string begin : {"  another precision  ", "  train on           ", "  other strategies   "}) {
      if (line.starts_with(begin)) commands.push_back(line.substr(begin.size()));
    }
  }
  return commands;
}

}  // namespace

TEST_CASE("cli: each command that a run prints at its end works when it is typed") {
  const struct {
    std::string file;     // more lines of run.toml
    std::string command;  // the typed words
    std::string other;    // the precision of the first printed command; "": none is offered, as no layer is large
  } cases[] = {
      {"", "vernier train run.toml --mixed_precision fp16 --grad_scaler_init 65536", "fp32"},
      {"", "vernier train run.toml --mixed-precision fp16 --amp-opt-level O2 --set scaler.growth_interval=5", "fp32"},
      {"", "vernier train run.toml --set 'precision={use=\"bf16\", level=\"O3\"}' --set \"run.output=it's out\"",
       "fp32"},
      {"[scaler]\nuse = 'dynamic'\n", "vernier train run.toml --mixed-precision fp16 --grad-scaler-backoff 0.25",
       "fp32"},
      {"[precision]\nuse = 'fp16'\nlevel = 'O2'\n", "vernier train run.toml --set scaler.use=static", "fp32"},
      {"", "vernier train run.toml --epochs 2 --batch-size 16 --grad-accum-steps 2 --set run.resume=auto", ""},
      {"", "vernier launch -n 2 run.toml --mixed-precision fp16 --grad-scaler-init 8", "fp32"}};
  for (const auto& each : cases) {
    CAPTURE(each.command);
    if (each.command.starts_with("vernier launch") && !vernier::left_out("launch").empty()) continue;
    Place place(each.file);
    CHECK(typed(place, each.command) == 0);
    const auto commands = commands_in(read_text(place.at("typed.out")));
    const std::size_t resumes = each.other.empty() ? 0 : 1;
    REQUIRE(commands.size() == 2 + resumes);
    for (const auto& command : commands) {
      CHECK(typed(place, command) == 0);
      const auto out = read_text(place.at("typed.out"));
      CHECK_MESSAGE(out != "", command << ": " << out);
      if (resumes == 1 && command == commands[0])
        CHECK_MESSAGE(says(out, "\n[AMP] precision/" + each.other), command << ": " << out);
      if (command == commands[resumes]) CHECK_MESSAGE(says(out, "\nresumed after step "), command << ": " << out);
    }
  }
}

TEST_CASE("cli: a way out that a refusal prints is taken when it is typed") {
  const struct {
    std::string file, words;      // more lines of run.toml, and of the command line
    Arguments says, typed_after;  // parts of the refusal, and what is typed in their place
  } cases[] = {
      {"",
       "--grad_scaler_growth_interval 2000",
       {"add --mixed-precision fp16, ", "--set scaler.use=dynamic"},
       {"--grad_scaler_growth_interval 2000 --mixed-precision fp16",
        "--grad_scaler_growth_interval 2000 --set scaler.use=dynamic"}},
      {"", "--gradient_accumulation_steps 2", {"did you mean --grad-accum-steps?"}, {"--grad-accum-steps 2"}},
      {"", "--fp16", {"did you mean --mixed-precision fp16?"}, {"--mixed-precision fp16"}},
      {"", "--max-grad-norm 1", {"--set callback.clip_norm.max_norm=VALUE"}, {"--set callback.clip_norm.max_norm=1"}},
      {"[precision]\nuse = 'fp16'\n", "", {"add [scaler] use = \"dynamic\""}, {"--set scaler.use=dynamic"}},
      {"[scaler]\nuse = 'none'\n",
       "--grad_scaler_init 2048",
       {"`[scaler] use = \"dynamic\", init_scale = 2048` does it"},
       {"--set scaler.use=dynamic --set scaler.init_scale=2048"}},
      {"[accumulation]\nuse = 'target'\ntarget_effective_batch_size = 32\n",
       "--grad_accum_steps 2",
       {"both say how large an update is"},
       {""}}};
  for (const auto& each : cases) {
    CAPTURE(each.words);
    Place place(each.file);
    CHECK(typed(place, "vernier check run.toml " + each.words) == 2);
    const auto out = read_text(place.at("typed.out"));
    for (const auto& part : each.says) CHECK_MESSAGE(says(out, part), out);
    for (const auto& words : each.typed_after)
      CHECK_MESSAGE(typed(place, "vernier check run.toml " + words) == 0, words);
  }
}

TEST_CASE("cli: the command to replay a fault has the folder of plugins, and can be pasted" *
          doctest::test_suite("lab")) {
  Place place("[[callback]]\nuse = 'fits'\n[[callback]]\nuse = 'flight_recorder'\n");
  const std::string plugins = VERNIER_BINARY_DIR "/fixtures/plugins";
  REQUIRE(place.train({"--plugin-path", plugins, set("callback.inject.what=\"nan\""),
                       set("callback.inject.where=\"loss\""), set("callback.inject.at_step=5")}) == 0);
  CAPTURE(place.err);
  CHECK(says(place.err, "; vernier replay --plugin-path " + plugins + " out/capsules/step-00000005\n"));
  CHECK(place.call({"replay", "--plugin-path", plugins, "out/capsules/step-00000005"}) == 0);
  CHECK(place.call({"replay", "out/capsules/step-00000005"}) == 3);
  CHECK(says(place.err, "no callback is called \"fits\""));
  CHECK(says(place.err, "; searched: "));
}

TEST_CASE("cli: a plugin that throws anything ends the run in one line, a monitor does not") {
  for (const std::string kind : {"std", "int"}) {
    CAPTURE(kind);
    const auto with = [&](const std::string& role) {
      return "[[" + role + "]]\nuse = 'throws_at'\nevent = 'GradientsReady'\nstep = 3\nkind = '" + kind + "'\n";
    };
    const Arguments arguments = {"--quiet", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"};
    const std::string what =
        " at GradientsReady of step 3: " + std::string(kind == "int" ? "it threw no std::exception" : "boom");
    Place callback(with("callback"));
    CHECK(callback.train(arguments) == 4);
    CHECK(callback.err == "vernier: callback/throws_at" + what + "\n");
    Place monitor(with("monitor"));
    CHECK(monitor.train(arguments) == 0);
    CHECK(monitor.err == "monitor/throws_at" + what + " (the monitor is detached, the run goes on)\n");
    CHECK(monitor.summary()["steps"] == 20);
  }
}

namespace {

const Arguments endless = {"train", "run.toml", "--set=run.steps=100000000"};

// True if a process has a handler for a signal.
bool listens_for(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string key, value; status >> key; std::getline(status, value)) {
    if (key == "SigCgt:" && status >> value) return (std::stoull(value, nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

}  // namespace

TEST_CASE("cli: a signal ends the run with a checkpoint, and the run can be resumed") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    CAPTURE(signal);
    Place place;
    {
      Program program(endless, place.folder.path());
      REQUIRE(program.wait_for(place.at("out/checkpoints/latest")));
      program.send(signal);
      CHECK(program.wait() == 128 + signal);
      CHECK(says(program.out(), "resume with:  vernier train run.toml"));
    }
    const auto stopped = place.summary();
    const std::int64_t steps = stopped["steps"];
    CHECK(stopped["ended_by"] == "signal " + std::to_string(signal));
    REQUIRE(steps > 0);
    CHECK(place.train({set("run.steps=" + std::to_string(steps + 5)), "--resume"}) == 0);
    CHECK(says(place.out, "resumed after step " + std::to_string(steps) + "\n"));
    CHECK(place.summary()["steps"] == steps + 5);
  }
}

TEST_CASE("cli: while a run starts, a signal ends it before anything is written") {
  Place place;
  // It listens first, and then makes so many points that a signal comes before the first step.
  Program program({"train", "run.toml", "--set=task.samples=3000000"}, place.folder.path());
  REQUIRE(program.wait_until([&] { return listens_for(program.pid(), SIGUSR1); }));
  program.send(SIGTERM);
  CHECK(program.wait() == 128 + SIGTERM);
  CHECK(says(program.out(), "stopped before the first step; nothing was trained or written\n"));
  CHECK_FALSE(fs::exists(place.at("out")));
}

TEST_CASE("cli: after a signal another SIGTERM is not a reason to end at once, a SIGINT is") {
  Place place;
  Program program(endless, place.folder.path());
  REQUIRE(program.wait_for(place.at("out/checkpoints/latest")));
  for (int i = 0; i < 3; ++i) program.send(SIGTERM);
  CHECK(program.wait() == 128 + SIGTERM);

  Program stuck(endless, place.folder.path());
  REQUIRE(stuck.wait_for(place.at("out-2/checkpoints/latest")));
  ::kill(stuck.pid(), SIGSTOP);  // so that both come before the step is over
  stuck.send(SIGUSR1);
  stuck.send(SIGINT);
  ::kill(stuck.pid(), SIGCONT);
  const int status = stuck.wait();
  CHECK((status == -SIGINT || status == 128 + SIGINT || status == 128 + SIGUSR1));
}

TEST_CASE("cli: a second SIGINT ends a run in the middle of its step, the last checkpoint whole") {
  Place place;
  Program program({"train", "run.toml", "--quiet", "--set=checkpoint.every=1", "--set=callback.inject.what=slow",
                   "--set=callback.inject.at_step=5", "--set=callback.inject.milliseconds=600000"},
                  place.folder.path());
  REQUIRE(program.wait_for(place.at("out/checkpoints/step-00000004/manifest.json")));
  program.send(SIGINT);
  ::usleep(300'000);  // two that are pending at once are one
  program.send(SIGINT);
  const int status = program.wait();
  CHECK((status == -SIGINT || status == 128 + SIGINT));
  CHECK(place.call({"checkpoint", "verify", place.at("out")}) == 0);
  CHECK(place.train({"--quiet", "--resume", "--allow-inexact"}) == 0);  // without the slow step
}

TEST_CASE("cli: resume = auto starts a run, goes on with it, and leaves a finished one") {
  Place place;
  const Arguments automatic = {set("run.resume=auto")};
  REQUIRE(place.train(automatic) == 0);
  CHECK_FALSE(says(place.out, "resumed"));
  CHECK(place.train(automatic) == 0);
  CHECK(says(place.out, "out has all its 20 steps"));
  CHECK(place.train({set("run.resume=auto"), set("run.steps=30")}) == 0);
  CHECK(says(place.out, "resumed after step 20\n"));
  CHECK_FALSE(fs::exists(place.at("out-2")));
  Place whole;
  REQUIRE(whole.train({set("run.steps=30")}) == 0);
  CHECK(whole.summary()["digest"] == place.summary()["digest"]);
}

TEST_CASE("cli: resume = auto takes the folder of a run that was killed before its first checkpoint, unless it lives") {
  Place place("[[monitor]]\nuse = 'jsonl'\n");
  Arguments automatic = endless;
  automatic.insert(automatic.end(), {set("run.resume=auto"), set("run.validate_every=0"), set("checkpoint.every=0")});
  const auto has_lines = [&](const std::string& run) {
    return [&place, run] { return says(read_text(place.at(run + "/losses.jsonl")), "\n"); };
  };
  {
    Program killed(automatic, place.folder.path());
    REQUIRE(killed.wait_until(has_lines("out")));
    killed.send(SIGKILL);
    killed.wait();
  }
  Program again(automatic, place.folder.path());
  REQUIRE(again.wait_until([&] { return says(again.err(), "killed here before its first checkpoint"); }));
  REQUIRE(again.wait_until(has_lines("out")));
  CHECK_FALSE(fs::exists(place.at("out-2")));
  Program beside(automatic, place.folder.path());
  REQUIRE(beside.wait_until(has_lines("out-2")));
  for (auto* program : {&again, &beside}) {
    program->send(SIGTERM);
    CHECK(program->wait() == 128 + SIGTERM);
  }
  std::istringstream lines(read_text(place.at("out/losses.jsonl")));
  std::int64_t step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    REQUIRE(nlohmann::json::parse(line)["step"] == step + 1);
  }
  CHECK(step == place.summary()["steps"]);
}

TEST_CASE("cli: a preempted job of Slurm is put back into the queue, once its checkpoint is whole") {
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
    CAPTURE(signal);
    Place place;
    const auto scontrol =
        place.folder.write("bin/scontrol", "#!/bin/sh\necho \"$@\" > called\nls out/checkpoints >> called\n");
    fs::permissions(scontrol, fs::perms::owner_all);
    const std::string path = place.folder / "bin:" + std::string(std::getenv("PATH"));
    ::setenv("PATH", path.c_str(), 1);
    ::setenv("SLURM_JOB_ID", "4711", 1);
    Arguments arguments = endless;
    arguments.insert(arguments.end(), {set("run.resume=auto"), set("run.requeue=true")});
    {
      Program program(arguments, place.folder.path());
      REQUIRE(program.wait_for(place.at("out/checkpoints/latest")));
      program.send(signal);
      CHECK(program.wait() == 128 + signal);
    }
    ::setenv("PATH", path.substr(path.find(':') + 1).c_str(), 1);
    ::unsetenv("SLURM_JOB_ID");
    CHECK(fs::exists(place.at("called")) == (signal != SIGINT));
    if (signal == SIGINT) continue;
    const auto called = read_text(place.at("called"));
    CHECK(called.starts_with("requeue 4711\n"));
    CHECK(says(called, vernier::checkpoint_name(place.summary()["steps"])));
  }
  is_refused({"requeue alone", "", {set("run.requeue=true")}, 2, {"`requeue` needs resume = \"auto\""}});
}

TEST_CASE("cli: a new run takes its weights from a file or a checkpoint, by name") {
  Place place;
  REQUIRE(place.train({"--quiet"}) == 0);
  const auto init = [&](Arguments more) {
    more.insert(more.end(), {set("run.steps=1"), set("optimizer.learning_rate=0"), set("run.seed=2")});
    return place.train(more);
  };
  CHECK(init({set("run.init_from=out/checkpoints/latest")}) == 0);
  CHECK(place.summary("out-2")["digest"] == place.summary("out")["digest"]);
  CHECK(init({set("run.init_from=out/checkpoints/latest/model.safetensors")}) == 0);
  CHECK(place.summary("out-3")["digest"] == place.summary("out")["digest"]);
  CHECK(init({set("run.init_from=out")}) == 0);
  CHECK(place.summary("out-4")["digest"] == place.summary("out")["digest"]);
  CHECK(init({set("run.init_from=out/checkpoints/latest"), set("task.hidden=[7]")}) == 2);
  CAPTURE(place.err);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, " in the model"));
  CHECK(init({set("run.init_from=none.safetensors")}) == 2);
  CHECK(says(place.err, "[run] init_from: none.safetensors: cannot be opened"));
}

TEST_CASE("cli: a run's folder that is a link, or that others may write to, is refused") {
  Place place;
  fs::create_directory(place.at("real"));
  fs::create_directory_symlink(place.at("real"), place.at("out"));
  CHECK(place.train() == 2);
  CHECK(says(place.err, "the run's folder out: is a symbolic link; give the folder itself"));
  fs::remove(place.at("out"));
  fs::create_directory(place.at("out"));
  for (const auto more : {fs::perms::none, fs::perms::sticky_bit}) {
    fs::permissions(place.at("out"), fs::perms::all | more);
    CHECK(place.train() == 2);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, "the run's folder out: can be written to by others; chmod go-w it, or take another folder"));
  }
  fs::permissions(place.at("out"), fs::perms::owner_all);
  CHECK(place.train() == 0);
}

TEST_CASE("cli: two runs at once get a folder each, and a run in work cannot be resumed") {
  Place place;
  Program first(endless, place.folder.path());
  Program second(endless, place.folder.path());
  REQUIRE(first.wait_for(place.at("out/checkpoints/latest")));
  REQUIRE(second.wait_for(place.at("out-2/checkpoints/latest")));
  CHECK(place.train({"--resume=out"}) == 2);
  CAPTURE(place.err);
  CHECK(is_one_line(place.err));
  const bool is_first = says(place.err, "process " + std::to_string(first.pid()) + " on ");
  CHECK((is_first || says(place.err, "process " + std::to_string(second.pid()) + " on ")));
  CHECK(says(place.err, "out is in use by another run"));
  for (auto* program : {&first, &second}) {
    program->send(SIGTERM);
    CHECK(program->wait() == 128 + SIGTERM);
  }
}

namespace {

// A folder in memory where there is one: these tests are about processes that end, not about disks.
fs::path in_memory() {
  return fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
}

std::string newest_checkpoint(const Place& place) {
  std::string newest;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(place.at("out/checkpoints"), none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) newest = std::max(newest, name);
  }
  return newest;
}

}  // namespace

TEST_CASE("cli: killed at random moments and resumed, a run ends in the same bits") {
  std::mt19937 random(7);
  int kills = 0;
  for (const char* precision :
       {"[precision]\nuse = 'fp32'\n", "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 1e9\n"}) {
    for (const char* threads : {"run.threads=1", "run.threads=2"}) {
      CAPTURE(precision);
      CAPTURE(threads);
      Place place(precision, in_memory());
      Arguments arguments = {"train",      "run.toml",           "--quiet",
                             set(threads), set("run.steps=600"), set("run.validate_every=7")};
      Arguments whole = arguments;
      whole.push_back(set("run.output=whole"));
      REQUIRE(place.call(whole) == 0);
      for (int nth = 0; nth < 2; ++nth) {
        const std::string before = newest_checkpoint(place);
        Program program(arguments, place.folder.path());
        REQUIRE(program.wait_until([&] { return newest_checkpoint(place) > before; }));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 50000));
        program.send(SIGKILL);
        kills += program.wait() == -SIGKILL ? 1 : 0;
        if (nth == 0) arguments.emplace_back("--resume");
        if (newest_checkpoint(place) == "step-00000600") break;
      }
      REQUIRE(place.call(arguments) == 0);
      const auto resumed = place.summary(), uninterrupted = place.summary("whole");
      CHECK(resumed["digest"] == uninterrupted["digest"]);
      for (const char* key : {"steps", "updates_skipped", "samples", "loss", "validation_loss"}) {
        CHECK(resumed[key] == uninterrupted[key]);
      }
      CHECK((uninterrupted["updates_skipped"] > 0) == says(precision, "fp16"));
    }
  }
  CHECK(kills > 2);
}

}  // namespace cli_test
