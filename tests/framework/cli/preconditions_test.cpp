// Refusals of `train` and `check` before the first step, runs that go on with mended or moved data, and failures that
// leave nothing behind.
#include <doctest/doctest.h>

#include <cstdlib>

#include "picture_folder.h"
#include "run_folder.h"
#include "thrown.h"

namespace preconditions_test {

namespace fs = std::filesystem;

namespace {

constexpr const char* pictures = R"([run]
epochs = 1
device = "cpu"
threads = 1
output = "out"
[task]
use = "images"
images = "d"
validation_share = 0.0
order = "sequential"
batch_size = 4
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
[optimizer]
use = "sgd"
learning_rate = 0.01
)";

constexpr const char* table = R"([run]
steps = 6
device = "cpu"
threads = 1
output = "out"
[task]
use = "tabular"
data = "d.csv"
target = "label"
batch_size = 16
[optimizer]
use = "adamw"
learning_rate = 0.01
)";

std::string rows(int count) {
  std::string text = "x,label\n";
  for (int i = 0; i < count; ++i) text += std::to_string(i % 3 * 10) + "," + "abc"[i % 3] + "\n";
  return text;
}

}  // namespace

TEST_CASE("preconditions: a damaged file is found before the first step, and other content on resume") {
  RunFolder place(pictures);
  write_stripes(place.folder, "d", 20);
  const auto file = place.at("d/left/112.png");
  const auto whole = read_text(file);
  const auto cut = whole.substr(0, 40);
  place.folder.write("d/left/112.png", cut);
  CHECK(place.call({"check", "run.toml"}) != 0);
  CHECK(says(place.err, "d/left/112.png' is a damaged PNG"));
  CHECK(place.train() != 0);
  CHECK(says(place.err, "d/left/112.png' is a damaged PNG"));
  CHECK_FALSE(fs::exists(place.at("out")));
  place.folder.write("d/left/112.png", whole);
  CHECK(place.train({"--quiet"}) == 0);
  for (int i = 0; i < 20; ++i) {  // other pictures by the same names
    place.folder.write("d/left/" + std::to_string(100 + 2 * i) + ".png", png(8, 10, 3, std::string(240, '\xff')));
  }
  CHECK(place.train({"--resume", "--set=run.epochs=2"}) != 0);
  CHECK(is_one_line(place.err.substr(place.err.find("vernier: "))));
  CHECK(says(place.err, "give the same files, give --allow-inexact to resume all the same, or start a new run"));
  CHECK(place.train({"--resume", "--set=run.epochs=2", "--allow-inexact"}) == 0);
  CHECK(says(place.err, "the run is resumed all the same"));
}

TEST_CASE("preconditions: held-out data are read before the first step, and nothing is left behind") {
  RunFolder place(pictures);
  write_stripes(place.folder, "d", 20);
  write_stripes(place.folder, "v", 4);
  const auto whole = read_text(place.at("v/right/103.png"));
  place.folder.write("v/right/103.png", whole.substr(0, 40));
  CHECK(place.train({"--set=task.validation_images=v"}) != 0);
  CHECK(says(place.err, "v/right/103.png' is a damaged PNG"));
  CHECK_FALSE(fs::exists(place.at("out")));
}

TEST_CASE("preconditions: content counts on resume, not its path") {
  RunFolder place(table);
  place.folder.write("d.csv", rows(90));
  REQUIRE(place.train({"--quiet"}) == 0);
  fs::create_directory(place.at("moved"));
  fs::rename(place.at("d.csv"), place.at("moved/d.csv"));
  CHECK(place.train({"--resume", "--set=run.steps=8", "--set=task.data=moved/d.csv"}) == 0);
  CHECK(place.summary()["steps"] == 8);
  place.folder.write("more.csv", rows(120));
  CHECK(place.train({"--resume", "--set=run.steps=9", "--set=task.data=more.csv"}) != 0);
  CHECK(says(place.err, "then 81 samples"));
  CHECK(says(place.err, "give --allow-inexact to resume all the same"));
  CHECK(place.train({"--resume", "--set=run.steps=30", "--set=task.data=more.csv", "--allow-inexact"}) == 0);
  CHECK(says(place.err, "the held-out data have changed since this run was saved"));
  CHECK(place.summary()["steps"] == 30);
}

TEST_CASE("preconditions: one of several processes does not train alone, unless that is written out") {
  RunFolder place(base_run(2));
  const struct {
    void (*environment)();
    const char* text;
  } cases[] = {
      {[] { setenv("RANK", "1", 1), setenv("WORLD_SIZE", "2", 1); },
       "torchrun has started this process as rank 1 of 2"},
      {[] { setenv("SLURM_STEP_ID", "0", 1), setenv("SLURM_PROCID", "1", 1), setenv("SLURM_NTASKS", "2", 1); },
       "Slurm has started this process as rank 1 of 2"},
      {[] { setenv("OMPI_COMM_WORLD_RANK", "0", 1), setenv("OMPI_COMM_WORLD_SIZE", "4", 1); },
       "Open MPI has started this process as rank 0 of 4"},
      {[] { setenv("PMI_RANK", "0", 1), setenv("PMI_SIZE", "3", 1); }, "MPI has started this process as rank 0 of 3"},
      {[] { setenv("PET_NNODES", "2", 1); }, "Kubeflow has started this process as one of 2"},
      {[] { setenv("PMIX_RANK", "1", 1); }, "PMIx has started this process as rank 1 of an unknown number"},
      {[] { setenv("RANK", "1", 1); },
       "torchrun has started this process as rank 1 of an unknown number, and the rest of its place is missing; set "
       "WORLD_SIZE"}};
  for (const auto& [environment, text] : cases) {
    CAPTURE(text);
    CHECK(place.train({}, environment) == 2);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, text));
    CHECK(says(place.err, "--set distributed.use=none"));
    CHECK(place.call({"check", "run.toml"}, environment) == 2);
    CHECK_FALSE(fs::exists(place.at("out")));
  }
  CHECK(place.train({"--set=distributed.use=none"}, cases[0].environment) == 0);
  const auto one_of_one = [] { setenv("RANK", "0", 1), setenv("WORLD_SIZE", "1", 1); };
  CHECK(place.train({"--set=run.output=one"}, one_of_one) == 0);
  const auto shell_of_salloc = [] {
    setenv("SLURM_STEP_ID", "4294967290", 1), setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1), setenv("SLURM_NTASKS", "8", 1);
  };
  CHECK(place.train({"--set=run.output=shell"}, shell_of_salloc) == 0);
  CHECK(place.train({"--set=distributed.use=ddp"}, [] { setenv("RANK", "1", 1); }) == 2);
  CHECK(says(place.err, "set WORLD_SIZE to their number and RANK to the place of each"));
}

TEST_CASE("preconditions: batch normalisation of a last batch of one sample") {
  RunFolder place(pictures);
  write_stripes(place.folder, "d", 16, 8, 8);
  place.folder.write("d/left/200.png", png(8, 8, 3, striped(100, 8, 8)));
  const std::vector<std::string> deep = {"--set=task.model=resnet", "--set=task.blocks=[1, 1, 1, 1]",
                                         "--set=task.channels=4", "--set=task.batch_size=32"};
  const auto with = [&](const std::string& set) {
    auto all = deep;
    all.push_back(set);
    return all;
  };
  CHECK(place.train(deep) != 0);
  CHECK(says(place.err, "the last batch of an epoch has one sample, of 33 in batches of 32"));
  CHECK(says(place.err, "set [task] drop_last = true, another batch_size, or larger micro-batches"));
  CHECK_FALSE(fs::exists(place.at("out")));
  CHECK(place.train(with("--set=task.drop_last=true")) == 0);
  CHECK(place.train(with("--set=task.batch_size=31")) == 0);
  auto alone = with("--set=task.drop_last=true");
  alone.push_back("--set=accumulation.micro_batches=32");
  alone.push_back("--set=run.output=first_step_failed");
  CHECK(place.train(alone) != 0);
  CHECK(says(place.err, "batch normalisation cannot train on a batch of one sample"));
  CHECK_FALSE(fs::exists(place.at("first_step_failed")));
}

TEST_CASE("preconditions: a diverged run stops at the first weight that is not finite") {
  RunFolder place(base_run(4000));
  CHECK(place.train({"--set=optimizer.learning_rate=1e30"}) == 5);
  CHECK(says(place.err, "the training has diverged"));
  CHECK(place.summary()["steps"] < 20);
}

TEST_CASE("preconditions: a run without monitors shows its progress, and `monitor = []` nothing") {
  RunFolder place(base_run(2));
  CHECK(place.train() == 0);
  CHECK(says(place.err, "step 2/2  loss "));
  CHECK(place.train({"--set=monitor=[]"}) == 0);
  CHECK_FALSE(says(place.err, "loss"));
  CHECK(place.train({"--set=run.steps=1"}) == 0);
  CHECK(says(place.out, "done after 1 step, "));
}

TEST_CASE("preconditions: ~ in a configuration is the home folder") {
  RunFolder place(table);
  static std::string home;
  home = place.folder.path();
  place.folder.write("data/d.csv", rows(60));
  CHECK(place.train({"--set=task.data=~/data/d.csv"}, [] { setenv("HOME", home.c_str(), 1); }) == 0);
}

TEST_CASE("preconditions: more steps on resume keep the schedule of the learning rate unless asked otherwise") {
  RunFolder place(base_run(20) + "[[callback]]\nuse = \"schedule\"\nkind = \"cosine\"\nfinal_factor = 0.1\n");
  REQUIRE(place.train({"--quiet"}) == 0);
  CHECK(place.train({"--resume", "--set=run.steps=30"}) == 0);
  CHECK(says(place.err,
             "planned updates were 20 and are 30: the schedule of 20 is kept, and the learning rate is 0.1 times"));
  CHECK(place.train({"--resume", "--set=run.steps=40", "--set=callback.schedule.replan=true"}) == 0);
  CHECK(says(place.err, "planned updates were 20 and are 40: the learning rate goes from 0.1 to "));
  // --set reaches no second schedule.
  RunFolder two(base_run(2) + "[[callback]]\nuse = \"schedule\"\nreplan = true\n[[callback]]\nuse = \"schedule\"\n");
  REQUIRE(two.train() == 0);
  CHECK_FALSE(says(two.out, "callback.schedule.replan"));
  CHECK(two.train({"--resume", "--set=run.steps=3"}) == 0);
  CHECK(says(two.err, "callback/schedule#2: planned updates were 2 and are 3: "));
  CHECK(says(two.err, "; replan = true in its [[callback]] goes to "));
  for (const auto& [set, text] : std::vector<std::pair<std::string, std::string>>{
           {"warmup_steps=100", "`warmup_steps` is 100, and the run has 20 updates; lower it, or train longer"},
           {"phase=[{updates=30},{kind=\"constant\"}]",
            "`phase` has a 2. one that begins after 30 updates, and the run has 20 steps"}}) {
    CAPTURE(set);
    RunFolder other(base_run(20) + "[[callback]]\nuse = \"schedule\"\n");
    CHECK(other.call({"check", "run.toml", "--set=callback.schedule." + set}) == 2);
    CHECK(says(other.err, text));
  }
}

namespace {

// Rows that all differ: two numbers, and the class.
std::string different_rows(int count, const std::string& word = "") {
  std::string text = "x,word,label\n";
  for (int i = 0; i < count; ++i) {
    text += std::to_string(0.37 * i) + "," +
            (i % 4 == 0     ? "a"
             : i % 4 == 1   ? "b"
             : word.empty() ? "c"
                            : word) +
            "," + (i % 2 == 0 ? "up" : "down") + "\n";
  }
  return text;
}

struct Mistake {
  std::vector<std::string> words;
  std::string says;
  std::vector<std::string> remedy = {};  // the words as the error has them; none: it names another place
};

}  // namespace

TEST_CASE("preconditions: a mistake is one line with its place and a remedy, and the remedy works") {
  RunFolder place(table);
  place.folder.write("d.csv", different_rows(60));
  place.folder.write("page.csv", "<!doctype html>\n<html><body>Not found</body></html>\n");
  place.folder.write("upper.toml", "include = ['run.toml']\n[task]\nmissing = 'mean'\ndata = 'D.CSV'\n");
  const auto check = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"check", "run.toml", "--set"});
    return more;
  };
  const Mistake mistakes[] = {
      {check({"task.data=dd.csv"}),
       "--set task.data: task/tabular: 'dd.csv' cannot be opened: No such file or directory; did you mean 'd.csv'?",
       check({"task.data=d.csv"})},
      {{"check", "upper.toml"},
       "upper.toml:4: task/tabular: 'D.CSV'",
       {"check", "upper.toml", "--set", "task.data=d.csv"}},
      {check({"task.data=https://example.org/d.csv"}),
       "download it with `curl -LO 'https://example.org/d.csv'`, and name d.csv", check({"task.data=d.csv"})},
      {check({"task.data='C:\\data\\d.csv'"}), "that is a path of Windows; did you mean 'd.csv'?",
       check({"task.data=d.csv"})},
      {check({"task.data=page.csv"}), "'page.csv' is a page of the web or XML"},
      {check({"task.leave_out=[word]"}), R"(write --set 'task.leave_out=["word"]')",
       check({R"(task.leave_out=["word"])"})},
      {check({"task.metrics=[accuracy, f1]"}), R"(write --set 'task.metrics=["accuracy", "f1"]')",
       check({R"(task.metrics=["accuracy", "f1"])"})},
      {check({"task.types={word=category,x=number}"}), R"(write --set 'task.types={word = "category", x = "number"}')",
       check({R"(task.types={word = "category", x = "number"})"})},
      {check({"task.target=1"}), R"(write --set 'task.target="1"')"},
      {check({"run.steps", "=", "3"}), "write it without spaces, --set run.steps=3", check({"run.steps=3"})},
      {check({"run.steps=", "3"}), "write it without spaces, --set run.steps=3", check({"run.steps=3"})},
      {{"check", "run.toml", "--set=run.steps", "=", "3"}, "write it without spaces, --set run.steps=3"},
      {check({"task.metrics=accuracy", "task.types.word=category"}),
       "the shell cut it: write --set 'KEY=VALUE' in quotes"},
      {{"check", "run.tml"}, "run.tml: there is no such file; did you mean 'run.toml'?", {"check", "run.toml"}},
      {check({"optimizer.learning_rate=inf"}), "`learning_rate` must be finite, and is inf",
       check({"optimizer.learning_rate=0.1"})},
      {check({"optimizer.weight_decay=inf"}), "`weight_decay` must be finite, and is inf"},
      {check({"run.steps=1000000000000000000"}),
       "[run] has 1000000000000000000 steps, more than can be trained; lower `steps` or `epochs`"},
      {check({"run.epochs=1000000000000000000", "--set", "run.steps=0"}), "more than can be"},
      {check({R"(task.columns=["x", "label"])"}), "leave it out of `columns`", check({R"(task.columns=["x"])"})},
  };
  for (const auto& [words, text, remedy] : mistakes) {
    CAPTURE(words.back());
    CHECK(place.call(words) == 2);
    CHECK_MESSAGE(says(place.err, text), place.err);
    CHECK(is_one_line(place.err.substr(place.err.find("vernier: "))));
    if (!remedy.empty()) CHECK_MESSAGE(place.call(remedy) == 0, place.err);
  }
}

TEST_CASE("preconditions: what is taken and does not help is a warning with its numbers") {
  RunFolder place(table);
  place.folder.write("d.csv", different_rows(60));
  std::string copies = different_rows(60);
  place.folder.write("copies.csv", copies + copies.substr(copies.find('\n') + 1));
  place.folder.write("kinds.csv", rows(60));
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"optimizer.learning_rate=0"}, "optimizer/adamw: learning_rate = 0: a step changes no weight; set it above 0"},
      {{"task.batch_size=1000"}, "batch_size = 1000 is more than the 54 samples, so each update is of all of them"},
      {{"task.data=copies.csv"}, " of 12 held-out samples are training samples too"},
      {{"run.steps=2", "run.steps=3"}, "--set: run.steps is given twice, and the last holds: run.steps=3"},
  };
  for (const auto& [sets, text] : cases) {
    std::vector<std::string> words = {"check", "run.toml"};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    CAPTURE(sets.back());
    CHECK_MESSAGE(place.call(words) == 0, place.err);
    CHECK_MESSAGE(says(place.err, text), place.err);
  }
  for (const char* set : {"task.data=d.csv", "task.data=kinds.csv"}) {
    CHECK_MESSAGE(place.call({"check", "run.toml", "--set", set, "--set", set}) == 0, place.err);
    for (const char* word : {"training samples too", "given twice", "is more than the"}) {
      CHECK_MESSAGE(!says(place.err, word), place.err);
    }
  }
}

TEST_CASE("preconditions: a run is resumed by its folder, and of changed data the data are what is said") {
  RunFolder place(table);
  place.folder.write("d.csv", different_rows(60));
  REQUIRE_MESSAGE(place.train({"--quiet"}) == 0, place.err);
  CHECK_MESSAGE(place.call({"train", "--resume=out", "--set", "run.steps=8", "--quiet"}) == 0, place.err);
  CHECK(place.summary()["steps"] == 8);
  CHECK_MESSAGE(place.call({"train", "--resume=out/checkpoints/latest", "--set", "run.steps=9", "--quiet"}) == 0,
                place.err);
  CHECK(place.call({"train", "--resume=ot", "--quiet"}) == 2);
  CHECK(says(place.err, "ot: there is no such run or checkpoint; did you mean 'out'?"));
  // Another number of words makes another embedding.
  place.folder.write("d.csv", different_rows(50, "b"));
  CHECK(place.call({"train", "--resume=out", "--set", "run.steps=12", "--quiet"}) == 2);
  CHECK_MESSAGE(says(place.err, "the data have changed since this run was saved"), place.err);
}

}  // namespace preconditions_test
