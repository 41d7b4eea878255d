// `vernier new`. tests/examples builds and runs what is written here.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <set>

#include "limited_files.h"
#include "run_folder.h"
#include "thrown.h"

namespace new_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

struct Place : RunFolder {
  Place() : RunFolder("") {}
  std::set<std::string> files_in(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(at(name))) names.insert(entry.path().filename().string());
    return names;
  }
};

struct Written {
  Arguments arguments;        // after `new`
  std::set<std::string> own;  // files besides those that all have
  std::string source, text;   // a file, and what it has
};

const std::set<std::string> plugin_files = {"grad_watch.cpp", "grad_watch_test.cpp", "run.toml"};

const std::vector<Written> kinds = {
    {{"plugin", "accumulation", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::Accumulation"},
    {{"plugin", "callback", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::Callback"},
    {{"plugin", "checkpoint", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::Checkpoint"},
    {{"plugin", "distributed", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::Distributed"},
    {{"plugin", "monitor", "grad_watch"}, plugin_files, "grad_watch.cpp", "GradWatch final : public vernier::Monitor"},
    {{"plugin", "optimizer", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::RuleOptimizer"},
    {{"plugin", "precision", "grad_watch"},
     plugin_files,
     "grad_watch.cpp",
     "GradWatch final : public vernier::Precision"},
    {{"plugin", "quantizer", "grad_watch"},
     plugin_files,
     "CMakeLists.txt",
     "find_package(Vernier REQUIRED COMPONENTS lab)"},
    {{"plugin", "scaler", "grad_watch"}, plugin_files, "grad_watch.cpp", "GradWatch final : public vernier::Scaler"},
    {{"plugin", "task", "grad_watch"},
     {"grad_watch.cpp", "grad_watch_test.cpp", "run.toml", "points.csv"},
     "CMakeLists.txt",
     "vernier_add_plugin(task grad_watch grad_watch.cpp)"},
    {{"task", "grad_watch"},
     {"grad_watch.cpp", "grad_watch_test.cpp", "run.toml", "points.csv"},
     "run.toml",
     "use = \"grad_watch\""},
    {{"app", "grad_watch"},
     {"main.cpp", "train.h", "grad_watch_test.cpp"},
     "CMakeLists.txt",
     "add_executable(grad_watch main.cpp)"}};

// No word of the templates is left, and the README names this very Vernier.
void has_no_word_of_a_template(const Place& place, const std::string& folder) {
  for (const auto& name : place.files_in(folder)) {
    const auto text = read_text(place.at(folder) / name);
    CAPTURE(name);
    CHECK_FALSE(text.empty());
    for (const char* word : {"my_name", "MyName", "my_role", "VERNIER_PREFIX", "VERNIER_PROGRAM"}) {
      CHECK_MESSAGE(text.find(word) == std::string::npos, word);
    }
  }
  CHECK(says(read_text(place.at(folder) / "README.md"), "-DCMAKE_PREFIX_PATH=" VERNIER_BINARY_DIR "\n"));
}

struct Refused {
  Arguments arguments;  // after `new`
  std::string says;
};

const std::vector<Refused> refusals = {
    {{}, "say what to write, as in `vernier new plugin callback grad_watch`"},
    {{"plguin", "scaler", "mine"}, "`new` writes a plugin, a task, an app or a toml; did you mean plugin?"},
    {{"everything"}, "`new` writes a plugin, a task, an app or a toml\n"},
    {{"plugin"}, "write `vernier new plugin ROLE NAME`"},
    {{"plugin", "scaler"}, "write `vernier new plugin scaler NAME`"},
    {{"scaler", "mine"}, "write `vernier new plugin scaler NAME`"},
    {{"task"}, "write `vernier new task NAME`"},
    {{"task", "one", "two"}, "write `vernier new task NAME`"},
    {{"plugin", "sclaer", "mine"}, "scaler, task; did you mean scaler?"},
    {{"plugin", "rank", "mine"}, "the roles of a plugin are accumulation, callback,"},
    {{"app", "Mine"}, "a name has small letters, digits and underscores"},
    {{"app", "2mine"}, "begins with a letter"},
    {{"app", "_mine"}, "begins with a letter"},
    {{"app", "../mine"}, "a name has small letters"},
    {{"app", ""}, "a name has small letters"},
    {{"app", std::string(48, 'a')}, "a name has at most 47 characters"},
    {{"app", "new"}, "new is a reserved word of C++ or CMake"},
    {{"app", "test"}, "test is a reserved word of C++ or CMake"},
    {{"app", "taken"}, "taken is there already"},
    {{"app", "mine", "--output", "run.toml"}, "run.toml is there already"},
    {{"app", "mine", "--output", "no/mine"}, "there is no folder no; make it first"},
    {{"app", "mine", "--output", "run.toml/mine"}, "there is no folder run.toml; make it first"},
    {{"app", "mine", "--output", ""}, "--output names no folder"},
    {{"app", "mine", "--outptu", "x"}, "see vernier new --help"}};

}  // namespace

TEST_CASE("each kind writes a folder with its name in it") {
  for (const auto& [arguments, own, source, text] : kinds) {
    CAPTURE(arguments.front());
    CAPTURE(text);
    Place place;
    Arguments all = arguments;
    all.insert(all.begin(), "new");
    CHECK(place.call(all) == 0);
    CHECK(place.err.empty());
    CHECK(says(place.out, "cd grad_watch\n  cmake -B build -DCMAKE_PREFIX_PATH=" VERNIER_BINARY_DIR "\n"));
    std::set<std::string> files = {".clang-format", ".gitignore", "CMakeLists.txt", "README.md"};
    files.insert(own.begin(), own.end());
    CHECK(place.files_in("grad_watch") == files);
    CHECK(says(read_text(place.at("grad_watch") / source), text));
    has_no_word_of_a_template(place, "grad_watch");
  }
}

TEST_CASE("--output names another folder") {
  Place place;
  CHECK(place.call({"new", "task", "rings", "--output", place.folder / "else where/"}) == 0);
  CHECK(fs::exists(place.at("else where") / "rings.cpp"));
  CHECK_FALSE(fs::exists(place.at("rings")));
  CHECK(says(place.out, "cd '" + place.folder / "else where" + "'\n"));
}

TEST_CASE("what cannot be written is refused in one line, and leaves nothing") {
  for (const auto& [arguments, reason] : refusals) {
    Place place;
    fs::create_directory(place.at("taken"));
    Arguments all = arguments;
    all.insert(all.begin(), "new");
    CHECK(place.call(all) == 2);
    CAPTURE(reason);
    CAPTURE(place.err);
    CHECK(is_one_line(place.err));
    CHECK(place.err.starts_with("vernier: "));
    CHECK(says(place.err, reason));
    CHECK(place.files_in(".") == std::set<std::string>{"run.toml", "taken"});
    CHECK(fs::is_empty(place.at("taken")));
  }
}

TEST_CASE("a disk that is full leaves no half folder") {
  if (!can_limit_files) return;
  Place place;
  CHECK(place.call({"new", "task", "rings"}, &limit_files<600>) == 4);  // the smallest template is smaller
  CHECK(place.err == "vernier: rings cannot be written: File too large\n");
  CHECK(place.files_in(".") == std::set<std::string>{"run.toml"});
}

}  // namespace new_test
