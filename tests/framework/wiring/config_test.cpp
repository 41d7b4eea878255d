#include "common/config/config.h"
#include "wiring/wiring.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "common/toml_depth.h"
#include "table_text.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace config_test {

using vernier::Array;
using vernier::Table;

namespace {

struct Files {
  TemporaryFolder folder;
  std::vector<std::string> paths;
  std::string add(const std::string& text) {
    return paths.emplace_back(folder.write(std::to_string(paths.size()) + ".toml", text));
  }
};

std::string merged(const std::vector<std::string>& texts, const std::vector<std::string>& sets = {}) {
  Files files;
  for (const auto& text : texts) files.add(text);
  return show(vernier::load_config(files.paths, sets));
}

// Returns the refusal, with "FILE" in place of the file's name.
Thrown refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  Files files;
  const std::string file = files.add(text);
  auto thrown = thrown_by([&] { vernier::load_config(files.paths, sets); });
  if (const auto place = thrown.text.find(file); place != std::string::npos)
    thrown.text.replace(place, file.size(), "FILE");
  return thrown;
}

}  // namespace

TEST_CASE("config: files are merged left to right") {
  CHECK(merged({"[run]\nsteps = 1\nseed = 2", "[run]\nsteps = 3\n[task]\nuse = 'mlp'"}) ==
        R"({run={seed=2 steps=3} task={use="mlp"}})");
  CHECK(merged({"[task]\ndata = ['a', 'b']", "[task]\ndata = ['c']"}) == R"({task={data=["c"]}})");
  CHECK(merged({"", ""}) == "{}");
}

TEST_CASE("config: another strategy replaces the table, the same one is merged") {
  const std::string base = "[scaler]\nuse = 'dynamic'\ninit_scale = 8";
  CHECK(merged({base, "[scaler]\nuse = 'static'\nscale = 2"}) == R"({scaler={scale=2 use="static"}})");
  CHECK(merged({base, "[scaler]\nuse = 'dynamic'\ngrowth_interval = 5"}) ==
        R"({scaler={growth_interval=5 init_scale=8 use="dynamic"}})");
  CHECK(merged({base, "[scaler]\ngrowth_interval = 5"}) ==
        R"({scaler={growth_interval=5 init_scale=8 use="dynamic"}})");
  CHECK(merged({base}, {"scaler.use=none"}) == R"({scaler={use="none"}})");
}

TEST_CASE("config: lists of plugins are matched by use, new ones are appended") {
  const std::string base = "[[callback]]\nuse = 'clip_norm'\nmax_norm = 1\n[[callback]]\nuse = 'schedule'";
  CHECK(merged({base, "[[callback]]\nuse = 'schedule'\nwarmup = 5\n[[callback]]\nuse = 'ema'"}) ==
        R"({callback=[{max_norm=1 use="clip_norm"} {use="schedule" warmup=5} {use="ema"}]})");
  CHECK(merged({base}, {"callback.clip_norm.max_norm=0.5", "callback.ema.decay=0.9"}) ==
        R"({callback=[{max_norm=0.500000 use="clip_norm"} {use="schedule"} {decay=0.900000 use="ema"}]})");
  const std::string two = "[[callback]]\nuse = 'schedule'\na = 1\n[[callback]]\nuse = 'schedule'\nb = 2";
  CHECK(merged({base, two}) ==
        R"({callback=[{max_norm=1 use="clip_norm"} {a=1 use="schedule"} {b=2 use="schedule"}]})");
  CHECK(merged({two, "[[callback]]\nuse = 'schedule'\na = 3\n[[callback]]\nuse = 'schedule'\nb = 4"}) ==
        R"({callback=[{a=3 use="schedule"} {b=4 use="schedule"}]})");
  CHECK(merged({"[[monitor]]\nuse = 'jsonl'\n[[monitor]]\nuse = 'jsonl'\nevery = 2"}) ==
        R"({monitor=[{use="jsonl"} {every=2 use="jsonl"}]})");
}

TEST_CASE("config: [callback] is refused, and not replaced by the entries of --set or of another file") {
  const std::string one = "[callback]\nuse = 'clip_norm'", list = "[[callback]]\nuse = 'ema'";
  const auto refused = configuration("FILE:1: there may be several of these: write [[callback]], not [callback]");
  CHECK(refusal(one) == refused);
  CHECK(refusal(one, {"callback.ema.decay=0.9"}) == refused);
  CHECK(says(thrown_by([&] { merged({one, list}); }).text, "write [[callback]], not [callback]"));
  CHECK(says(thrown_by([&] { merged({list, one}); }).text, "write [[callback]], not [callback]"));
  CHECK(merged({"callback = ['clip_norm']", list}) == R"({callback=["clip_norm" {use="ema"}]})");  // refused later
  CHECK(merged({list, "callback = []"}, {"monitor.jsonl.every=2"}) ==
        R"({callback=[] monitor=[{every=2 use="jsonl"}]})");
}

TEST_CASE("config: --set takes TOML, and what is not TOML as a string") {
  const std::vector<std::pair<std::string, std::string>> sets = {
      {"run.steps=100", "{run={steps=100}}"},
      {"optimizer.learning_rate=3e-4", "{optimizer={learning_rate=0.000300}}"},
      {"a.b=true", "{a={b=true}}"},
      {"precision.use=bf16", R"({precision={use="bf16"}})"},
      {"precision.use='bf16'", R"({precision={use="bf16"}})"},
      {"run.name=a b.c", R"({run={name="a b.c"}})"},
      {"run.name=", R"({run={name=""}})"},
      {"run.name=a=b", R"({run={name="a=b"}})"},
      {R"(task.data=["a", "b"])", R"({task={data=["a" "b"]}})"},
      {"task.data=[]", "{task={data=[]}}"},
      {"callback.clip_norm={max_norm = 2}", R"({callback=[{max_norm=2 use="clip_norm"}]})"},
      {"run.steps = 100", "{run={steps=100}}"},
  };
  for (const auto& [set, table] : sets) CHECK(merged({}, {set}) == table);
  CHECK(merged({"[run]\nsteps = 1"}, {"run.steps=2", "run.steps=3"}) == "{run={steps=3}}");
  CHECK(thrown_by([] { merged({}, {"run.steps"}); }) ==
        configuration("--set run.steps: write --set key=value, as --set run.steps=100"));
  CHECK(thrown_by([] { merged({}, {"=1"}); }).kind == 2);
  CHECK(thrown_by([] { merged({}, {"run..steps=1"}); }).kind == 2);
  CHECK(thrown_by([] { merged({}, {"run.steps=1979-05-27"}); }) ==
        configuration("--set run.steps: dates and times are not used here; write a number or a string"));
  CHECK(thrown_by([] { merged({}, {"callback.clip_norm=1"}); }) ==
        configuration("--set callback.clip_norm: name the option too, as --set callback.clip_norm.max_norm=1.0"));
}

TEST_CASE("config: --set names strategy and options in any order, and loses none") {
  CHECK(merged({""}, {"scaler.growth_interval=5", "scaler.use=dynamic"}) ==
        "{scaler={growth_interval=5 use=\"dynamic\"}}");
  CHECK(merged({"[optimizer]\nuse = 'adamw'\neps = 1\n"}, {"optimizer.momentum=1", "optimizer.use=sgd"}) ==
        "{optimizer={momentum=1 use=\"sgd\"}}");
}

TEST_CASE("config: every value knows where it was written") {
  Files files;
  const std::string first = files.add("# a comment\n[run]\nsteps = 1\n\nseed =  2\n[[callback]]\nuse = 'a'\n");
  const std::string second = files.add("[run]\nseed = 3\n[task]\nlist = [\n  1,\n  2,\n]\n");
  const auto config = vernier::load_config(files.paths, {"run.name=x"});
  const auto& run = std::get<Table>(config.at("run").data);
  CHECK(config.at("run").where == first + ":2");
  CHECK(run.at("steps").where == first + ":3");
  CHECK(run.at("seed").where == second + ":2");
  CHECK(run.at("name").where == "--set run.name");
  const auto& callback = std::get<Array>(config.at("callback").data).at(0);
  CHECK(callback.where == first + ":6");
  CHECK(std::get<Table>(callback.data).at("use").where == first + ":7");
  CHECK(config.at("task").where == second + ":3");
  CHECK(std::get<Table>(config.at("task").data).at("list").where == second + ":4");
}

TEST_CASE("config: what is not TOML is refused with its line") {
  const std::vector<std::pair<std::string, std::string>> broken = {
      {"[run]\nsteps = \n", "FILE:2: "},
      {"[run\n", "FILE:1: "},
      {"[run]\nsteps = 1\nsteps = 2\n", "FILE:3: "},
      {"[scaler]\nuse = 'a'\n[scaler]\nuse = 'b'\n", "FILE:3: "},
      {"[[callback]]\nuse = 'a'\n[callback]\nuse = 'b'\n", "FILE:3: "},
      {"a = 'x\n", "FILE:1: "},
      {"a = 99999999999999999999\n", "FILE:1: "},
      {"a = '\xff'\n", "FILE:1: "},
      {std::string("a = 1\n\0", 7), "FILE:2: "},
      {"a = " + std::string(1000, '[') + "\n", "FILE:1: "},
  };
  for (const auto& [text, place] : broken) {
    CAPTURE(text);
    const auto thrown = refusal(text);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(thrown.text.starts_with(place), thrown.text);
    CHECK(thrown.text.size() > place.size());
    CHECK_FALSE(says(thrown.text, "\n"));
  }
  // As messages name options.
  for (const std::string text : {"[scaler] use = \"dynamic\"\n", "[scaler]\nuse = \"dynamic\", init_scale = 8\n"}) {
    CHECK(says(refusal(text).text, "; a table's name has a line of its own, and so has each key below it"));
  }
  CHECK_FALSE(says(refusal("a = {b = 1, c = }\n").text, "line of its own"));
  CHECK(refusal("[run]\nstart = 1979-05-27T07:32:00Z\n") ==
        configuration("FILE:2: dates and times are not used here; write a number or a string"));
  CHECK(refusal("a = [\n1,\n07:32:00]\n") ==
        configuration("FILE:3: dates and times are not used here; write a number or a string"));
}

TEST_CASE("config: a file that is not there, or is a folder, is refused") {
  const TemporaryFolder folder;
  for (const std::string& path :
       {folder / "none.toml", folder.path().string(), std::string(5000, 'x'), std::string()}) {
    const auto thrown = thrown_by([&] { vernier::load_config({path}, {}); });
    CHECK(thrown.kind == 2);
    CHECK(thrown.text.starts_with(path + ":"));
  }
}

namespace {

// The same text so many times, with something between.
std::string repeated(int times, const std::string& text, const std::string& between = "") {
  std::string all = text;
  for (int i = 1; i < times; ++i) all += between + text;
  return all;
}

}  // namespace

TEST_CASE("config: what nests deeper than 64 levels is refused with its line, however it is written") {
  const std::string tail = ": tables and lists are in each other deeper than 64 levels; no option needs that";
  const std::vector<std::string> deep = {
      "a = 1\n" + repeated(40'000, "a", ".") + " = 1\n",
      "a = 1\n[" + repeated(40'000, "a", " . ") + "]\n",
      "a = 1\n[[" + repeated(65, "'a.b'", ".") + "]]\n",
      "a = 1\nb = " + repeated(65, "[") + repeated(65, "]") + "\n",
      "a = 1\nb = " + repeated(40, "{a.b = ") + "1" + repeated(40, "}") + "\n",
      "\n[" + repeated(40, "a", ".") + "]\n" + repeated(40, "a", ".") + " = 1",
      "a = '''\n''' # \"\n" + repeated(70, "\"\\\"\"", ".") + " = 1\n",
  };
  for (const auto& text : deep) {
    CAPTURE(text.substr(0, 100));
    const auto thrown = refusal(text);
    CHECK(thrown.kind == 2);
    CHECK((thrown.text == "FILE:2" + tail || thrown.text == "FILE:3" + tail));
  }
  const std::string dots = repeated(100, "a", ".");
  const std::vector<std::string> flat = {
      repeated(64, "a", ".") + " = 1\n",
      "a = " + repeated(63, "[") + repeated(63, "]"),
      "a = '" + dots + "' # " + dots + "\n",
      "a = \"\"\"\n\\\"\"\"" + dots + "\n\"\"\"\"\n",
      "a = '''" + dots + "'''\n",
      "a = [" + repeated(1000, "1.5", ", ") + "]\n",
      repeated(100, "a.b.c = 1.5\n[x.y]\n"),
      "a = {" + repeated(100, "b.c = {d = 1.5}", ", ") + "}\n",
  };
  for (const auto& text : flat) {
    CAPTURE(text.substr(0, 100));
    CHECK(vernier::line_too_deep(text) == 0);
  }
}

TEST_CASE("config: --set is as deep and as long as a file may be") {
  const std::string tail = ": tables and lists are in each other deeper than 64 levels; no option needs that";
  const auto key = thrown_by([] { merged({}, {repeated(40'000, "a", ".") + "=1"}); });
  CHECK(key.kind == 2);
  CHECK(key.text.ends_with(tail));
  CHECK(key.text.size() < 300);
  for (const std::string& value : {repeated(1000, "[") + repeated(1000, "]"), "{" + repeated(40'000, "a", ".") + "=1}",
                                   "1\n" + repeated(40'000, "a", ".") + "=1"}) {
    CHECK(thrown_by([&] { merged({}, {"task.x=" + value}); }) == configuration("--set task.x" + tail));
  }
  const auto path = repeated(100, "..", "/");
  CHECK(merged({}, {"task.data=" + path}) == "{task={data=\"" + path + "\"}}");
  CHECK(thrown_by([] { merged({}, {"a.b=" + std::string(1 << 20, 'x')}); }) ==
        configuration("--set a.b: has 1048580 bytes; at most 1048576 are read"));
}

TEST_CASE("config: a file that is not a regular one, or longer than 1 MiB, is refused") {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe.toml", large = folder.write("large.toml", "");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::resize_file(large, std::uintmax_t{1} << 40);
  CHECK(thrown_by([&] { vernier::load_config({pipe}, {}); }) ==
        configuration("'" + pipe + "' cannot be read: it is a pipe; name a regular file"));
  CHECK(thrown_by([&] { vernier::load_config({"/dev/zero"}, {}); }).kind == 2);
  CHECK(thrown_by([&] { vernier::load_config({large}, {}); }) ==
        configuration("'" + large + "' has 1099511627776 bytes; at most 1048576 are read"));
}

TEST_CASE("config: a NUL character is refused, and what is quoted is short and printable") {
  const std::string tail = " has a NUL character (\\u0000), which none may have";
  CHECK(refusal("a = 1\nb = \"x\\u0000y\"\n") == configuration("FILE:2: the text \"x\\x00y\"" + tail));
  CHECK(refusal("[run]\n\"x\\u0000y\" = 1\n") == configuration("FILE:1: the text \"x\\x00y\"" + tail));
  CHECK(refusal("", {"a.b=[\"\\u0000\"]"}) == configuration("--set a.b: the text \"\\x00\"" + tail));
  const std::string escape = "\x1b[31m\xff" + std::string(100'000, 'x');
  const auto thrown = refusal("", {escape});
  CHECK(thrown.text.starts_with("--set \\x1b[31m\\xffxxx"));
  CHECK(thrown.text.ends_with(": write --set key=value, as --set run.steps=100"));
  CHECK(thrown.text.size() < 300);
}

TEST_CASE("config: what is written as TOML reads back the same") {
  const std::string text =
      "[run]\nname = 'a \"b\" \\'\n[task]\ndata = ['a', 'b']\nrate = 0.1\ntiny = 5e-324\nlarge = inf\nflag = true\n"
      "seed = 9223372036854775807\nempty = []\n[[callback]]\nuse = 'clip_norm'\nnested = {a = [1, "
      "2]}\n[[callback]]\nuse = 'b'\n";
  const std::string multiline = "[run]\nname = \"\"\"two\nlines\"\"\"\n";
  for (const auto& each : {text, multiline, std::string()}) {
    Files files;
    files.add(each);
    const auto once = vernier::load_config(files.paths, {});
    Files again;
    again.add(vernier::to_toml(once));
    CHECK(show(vernier::load_config(again.paths, {})) == show(once));
  }
}

}  // namespace config_test
