// Files that include others, and entries that an overlay removes.
#include <doctest/doctest.h>

#include "common/config/config.h"
#include "table_text.h"
#include "temporary_folder.h"
#include "thrown.h"
#include "wiring/wiring.h"

namespace include_test {

namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;  // name and text of each file

struct Files {
  explicit Files(const Texts& texts) {
    for (const auto& [name, text] : texts) folder.write(name, text);
  }
  std::vector<std::string> paths(const std::vector<std::string>& names) const {
    std::vector<std::string> all;
    for (const auto& name : names) all.push_back(folder / name);
    return all;
  }
  TemporaryFolder folder;
};

std::string merged(const Texts& texts, const std::vector<std::string>& names = {"run.toml"},
                   const std::vector<std::string>& sets = {}) {
  const Files files(texts);
  return show(vernier::load_config(files.paths(names), sets));
}

// With the folder of the files left out.
Thrown refusal(const Texts& texts, const std::vector<std::string>& names = {"run.toml"},
               const std::vector<std::string>& sets = {}) {
  const Files files(texts);
  auto thrown = thrown_by([&] { vernier::load_config(files.paths(names), sets); });
  const auto folder = files.folder.path().string() + "/";
  for (auto at = thrown.text.find(folder); at != std::string::npos; at = thrown.text.find(folder)) {
    thrown.text.erase(at, folder.size());
  }
  return thrown;
}

constexpr const char* callbacks = "[[callback]]\nuse = 'clip_norm'\nmax_norm = 1\n[[callback]]\nuse = 'schedule'\n";

}  // namespace

TEST_CASE("include: included files are merged before the file, which wins") {
  const std::string base = "[run]\nsteps = 1\nseed = 1\n";
  const std::vector<std::pair<Texts, std::string>> cases = {
      {{{"run.toml", "include = ['base.toml']\n[run]\nsteps = 2\n"}, {"base.toml", base}}, "{run={seed=1 steps=2}}"},
      {{{"run.toml", "include = 'base.toml'\n"}, {"base.toml", base}}, "{run={seed=1 steps=1}}"},
      {{{"run.toml", "include = []\n[run]\nsteps = 2\n"}}, "{run={steps=2}}"},
      // From left to right, and of the including file's folder.
      {{{"run.toml", "include = ['base.toml', 'more/fast.toml']\n"},
        {"base.toml", base},
        {"more/fast.toml", "include = 'seed.toml'\n[run]\nsteps = 3\n"},
        {"more/seed.toml", "[run]\nseed = 7\n"}},
       "{run={seed=7 steps=3}}"},
      // A file that two others include is merged once: a's seed stays.
      {{{"run.toml", "include = ['a.toml', 'b.toml']\n"},
        {"a.toml", "include = 'base.toml'\n[run]\nseed = 5\n"},
        {"b.toml", "include = './base.toml'\n[run]\nsteps = 6\n"},
        {"base.toml", base}},
       "{run={seed=5 steps=6}}"},
      // Another strategy replaces what was included, the same one is merged.
      {{{"run.toml", "include = 'base.toml'\n[scaler]\nuse = 'none'\n"},
        {"base.toml", "[scaler]\nuse = 'static'\nscale = 2\n"}},
       R"({scaler={use="none"}})"}};
  for (const auto& [texts, table] : cases) CHECK(merged(texts) == table);
}

TEST_CASE("include: the command line's files follow in their order, each as often as it is named") {
  const Texts texts = {{"run.toml", "include = 'base.toml'\n[run]\nsteps = 2\n"}, {"base.toml", "[run]\nsteps = 1\n"}};
  CHECK(merged(texts, {"run.toml", "base.toml"}) == "{run={steps=1}}");
  CHECK(merged(texts, {"base.toml", "run.toml"}) == "{run={steps=2}}");
  CHECK(merged(texts, {"run.toml"}, {"run.steps=3"}) == "{run={steps=3}}");
}

TEST_CASE("include: an environment variable may name the folder") {
  const Files files(Texts{{"base.toml", "[run]\nsteps = 1\n"}});
  ::setenv("VERNIER_TEST_FOLDER", files.folder.path().c_str(), 1);
  CHECK(merged({{"run.toml", "include = '${VERNIER_TEST_FOLDER}/base.toml'\n"}}) == "{run={steps=1}}");
  ::unsetenv("VERNIER_TEST_FOLDER");
  CHECK(refusal({{"run.toml", "\ninclude = '${VERNIER_TEST_FOLDER}/base.toml'\n"}}) ==
        configuration("run.toml:2: ${VERNIER_TEST_FOLDER}: there is no environment variable VERNIER_TEST_FOLDER; set "
                      "it, or write ${VERNIER_TEST_FOLDER:-default}"));
}

TEST_CASE("include: values keep the places of their own files") {
  const Files files(
      Texts{{"run.toml", "include = 'base.toml'\n[run]\nsteps = 2\n"}, {"base.toml", "[run]\nseed = 1\n"}});
  const auto config = vernier::load_config(files.paths({"run.toml"}), {});
  const auto& run = std::get<vernier::Table>(config.at("run").data);
  CHECK(run.at("seed").where == files.folder / "base.toml:2");
  CHECK(run.at("steps").where == files.folder / "run.toml:3");
}

TEST_CASE("include: what cannot be included is refused in one line with its place") {
  const std::string wrong = "`include` must be a file or a list of files, as include = [\"base.toml\"]";
  const std::vector<std::pair<Texts, std::string>> cases = {
      {{{"run.toml", "\ninclude = ['none.toml']\n"}}, "run.toml:2: include: none.toml: there is no such file"},
      {{{"run.toml", "include = ['a',\n 'none.toml']\n"}, {"a", ""}},
       "run.toml:2: include: none.toml: there is no such file"},
      {{{"run.toml", "include = 'more'\n"}, {"more/x", ""}}, "run.toml:1: include: more: is a folder, not a TOML file"},
      {{{"run.toml", "include = 5\n"}}, "run.toml:1: " + wrong},
      {{{"run.toml", "include = ['']\n"}}, "run.toml:1: " + wrong},
      {{{"run.toml", "[run]\n[include]\na = 1\n"}}, "run.toml:2: " + wrong},
      {{{"run.toml", "include = 'run.toml'\n"}}, "run.toml:1: include: run.toml includes itself: run.toml -> run.toml"},
      {{{"run.toml", "include = 'a.toml'\n"}, {"a.toml", "\ninclude = 'b.toml'\n"}, {"b.toml", "include = 'a.toml'\n"}},
       "b.toml:1: include: a.toml includes itself: a.toml -> b.toml -> a.toml"}};
  for (const auto& [texts, text] : cases) CHECK(refusal(texts) == configuration(text));
  CHECK(refusal({{"run.toml", "include = 'bad.toml'\n"}, {"bad.toml", "\n[run\n"}}).text.starts_with("bad.toml:2: "));
  CHECK(refusal({{"run.toml", ""}}, {"run.toml"}, {"include=a.toml"}) ==
        configuration("--set include: is for files only; name the file before --set"));
}

TEST_CASE("include: files include each other at most 16 levels deep") {
  Texts texts = {{"0.toml", "[run]\nsteps = 1\n"}};
  for (int i = 1; i <= 17; ++i) {
    texts.emplace_back(std::to_string(i) + ".toml", "include = '" + std::to_string(i - 1) + ".toml'\n");
  }
  CHECK(merged(texts, {"16.toml"}) == "{run={steps=1}}");
  CHECK(refusal(texts, {"17.toml"}) ==
        configuration("1.toml:1: include: 0.toml: files include each other deeper than 16 levels"));
}

TEST_CASE("remove: an overlay, an including file and --set remove a callback") {
  const std::string removal = "[[callback]]\nuse = 'clip_norm'\nremove = true\n";
  const std::string left = R"({callback=[{use="schedule"}]})";
  CHECK(merged({{"run.toml", callbacks}, {"o.toml", removal}}, {"run.toml", "o.toml"}) == left);
  CHECK(merged({{"run.toml", "include = 'base.toml'\n" + removal}, {"base.toml", callbacks}}) == left);
  CHECK(merged({{"run.toml", callbacks}}, {"run.toml"}, {"callback.clip_norm.remove=true"}) == left);
  CHECK(merged({{"run.toml", "[[monitor]]\nuse = 'jsonl'\n"}}, {"run.toml"}, {"monitor.jsonl.remove=true"}) ==
        "{monitor=[]}");
  // Every one of that name goes, and one that follows is new.
  CHECK(merged({{"run.toml", callbacks + std::string("[[callback]]\nuse = 'clip_norm'\n")},
                {"o.toml", removal + "[[callback]]\nuse = 'clip_norm'\nmax_norm = 2\n"}},
               {"run.toml", "o.toml"}) == R"({callback=[{use="schedule"} {max_norm=2 use="clip_norm"}]})");
  CHECK(merged({{"run.toml", callbacks}}, {"run.toml"},
               {"callback.clip_norm.remove=true", "callback.schedule.remove=true", "callback.ema.decay=1"}) ==
        R"({callback=[{decay=1 use="ema"}]})");
  CHECK(merged({{"run.toml", "[[callback]]\nuse = 'ema'\nremove = false\n"}}) == R"({callback=[{use="ema"}]})");
}

TEST_CASE("remove: what is not there cannot be removed") {
  const Texts texts = {{"run.toml", callbacks}};
  const auto by_set = [&](const std::string& set) { return refusal(texts, {"run.toml"}, {set}); };
  CHECK(by_set("callback.clip_nrom.remove=true") ==
        configuration("--set callback.clip_nrom.remove: there is no [[callback]] use = \"clip_nrom\" to remove; did "
                      "you mean \"clip_norm\"?"));
  CHECK(by_set("monitor.jsonl.remove=true") ==
        configuration("--set monitor.jsonl.remove: there is no [[monitor]] use = \"jsonl\" to remove; a file before "
                      "this one must have it"));
  CHECK(by_set("callback.clip_norm.remove=1") ==
        configuration("--set callback.clip_norm.remove: `remove` must be true or false"));
  CHECK(by_set("callback.clip_norm={remove = true, max_norm = 2}") ==
        configuration("--set callback.clip_norm: `remove = true` stands with `use` alone; take the other options out"));
  CHECK(refusal({{"run.toml", std::string(callbacks) + "[[callback]]\nuse = 'schedule'\nremove = true\n"}}) ==
        configuration("run.toml:8: there is no [[callback]] use = \"schedule\" to remove; a file before this one must "
                      "have it"));
}

}  // namespace include_test
