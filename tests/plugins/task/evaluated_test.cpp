// The data that trained models are evaluated on, by the rule of docs/guides/tasks.md#what-is-evaluated.
#include <c10/util/StringUtil.h>
#include <doctest/doctest.h>
#include <torch/script.h>

#include <filesystem>
#include <functional>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "picture_folder.h"
#include "published_folder.h"

namespace evaluated_test {

using vernier::Table;

namespace {

// Data of so many rows, the number `from` first: a table, or the file or folder that a task reads.
void write_table(const TemporaryFolder& folder, const std::string& name, int rows, int from) {
  std::string text = "words,a,b,y\n";
  for (int i = from; i < from + rows; ++i) {
    text += c10::str("w", i, " w", i % 3, ",", i * 7 % 11, ".5,", i, i % 2 == 0 ? ",up\n" : ",down\n");
  }
  folder.write(name, text);
}
void write_pictures(const TemporaryFolder& folder, const std::string& name, int rows, int) {
  std::filesystem::remove_all(folder / name);
  write_stripes(folder, name, static_cast<std::uint32_t>(rows / 2));
}
void write_tokens(const TemporaryFolder& folder, const std::string& name, int rows, int from) {
  std::string bytes;
  for (int i = 0; i <= 4 * rows; ++i) bytes += {static_cast<char>((i * i + from) % 7), '\0'};
  folder.write(name, bytes);
}

// A task, its options, and its data. part, targets: of the sources, and the option of the targets, or "".
struct Kind {
  std::string name, task, ending, data, part, validation, targets, validation_targets;
  bool is_list;
  int fewer;  // so many samples less than rows
  void (*write)(const TemporaryFolder& folder, const std::string& name, int rows, int from);
  Table more;
};

std::vector<Kind> kinds(const published_folder::PublishedFolder& model) {
  torch::jit::Module linear("__torch__.Linear");
  linear.register_parameter("weight", torch::full({2, 2}, 0.1).set_requires_grad(true), false);
  linear.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  linear.save(model.folder / "linear.pt");
  auto tokens = model.table({{"context", value(4)}, {"stride", value(4)}, {"token_type", value("uint16")}});
  for (const char* key : {"data", "validation_share"}) tokens.erase(key);
  return {
      {"tabular",
       "tabular",
       ".csv",
       "data",
       "",
       "validation",
       "",
       "",
       false,
       0,
       write_table,
       {{"target", value("y")}, {"leave_out", list<std::string>({"words"})}}},
      {"text",
       "text",
       ".csv",
       "data",
       "",
       "validation",
       "",
       "",
       false,
       0,
       write_table,
       {{"text", list<std::string>({"words"})}, {"target", value("y")}, {"width", value(8)}}},
      {"images",
       "images",
       "",
       "images",
       "",
       "validation_images",
       "",
       "",
       false,
       0,
       write_pictures,
       {{"channels", value(4)}}},
      {"sequence",
       "sequence",
       ".csv",
       "data",
       ":a,b",
       "validation",
       "targets",
       "validation_targets",
       false,
       0,
       write_table,
       {{"width", value(4)}}},
      {"forecast",
       "sequence",
       ".csv",
       "data",
       ":a,b",
       "validation",
       "",
       "",
       false,
       4,
       write_table,
       {{"width", value(4)}, {"kind", value("forecast")}, {"context", value(4)}}},
      {"script",
       "script",
       ".csv",
       "inputs",
       ":a,b",
       "validation_inputs",
       "target",
       "validation_target",
       true,
       0,
       write_table,
       {{"model", value(model.folder / "linear.pt")}}},
      {"language", "gpt", ".bin", "data", "", "validation", "", "", true, 0, write_tokens, tokens},
  };
}

// Prepares an evaluation of a trained model. Returns why it is refused, or "". held_out: becomes its data.
std::string refusal_of(const LoadedTask& trained, const std::string& name, const Table& table,
                       std::string* held_out = nullptr) {
  const auto task = make_plugin<vernier::Task>(name, table);
  dynamic_cast<vernier::SupervisedTask&>(*task).use_learned(supervised(trained).learned(), /*reads_data=*/true);
  vernier::TrainerRun run;
  run.seed = trained.run.seed;
  const auto refused = refusal([&] { task->prepare(run); });
  if (refused.empty() && held_out != nullptr) *held_out = task->save().text("held_out");
  return refused;
}

// A change of the options or of the files, and what is then measured: "own", a file, or a part of the refusal.
struct Case {
  const char* change;
  std::vector<std::pair<std::string, std::string>> named;  // "data", "validation": a file, or none; "share"
  const char* measured;
};

const Case of_drawn[] = {
    {"", {}, "own"},
    {"", {{"data", "copy"}}, "own"},
    {"", {{"data", "./data"}}, "own"},
    {"", {{"data", "other"}}, "other"},
    {"", {{"validation", "other"}}, "other"},
    {"", {{"data", "copy"}, {"validation", "other"}}, "other"},
    {"", {{"share", ""}}, "hold samples out; name other data"},
    {"", {{"share", ""}, {"data", "copy"}}, "hold samples out; name other data"},
    {"", {{"share", ""}, {"data", "other"}}, "other"},
    {"", {{"share", ""}, {"validation", "other"}}, "other"},
    {"data", {}, "hold samples out; name other data"},
    {"data", {{"data", "./data"}}, "hold samples out; name other data"},
    {"data", {{"data", "other"}}, "other"},
    {"data", {{"validation", "other"}}, "other"},
    {"data gone", {}, "is not here; name other data"},
    {"data gone", {{"data", "nowhere"}}, "is not here; name other data"},
    {"data gone", {{"validation", "other"}}, "other"},
};
const Case of_held[] = {
    {"", {}, "held"},
    {"", {{"data", "copy"}}, "held"},
    {"", {{"data", "other"}}, "other"},
    {"", {{"validation", "other"}}, "other"},
    {"", {{"data", "copy"}, {"validation", "other"}}, "other"},
    {"", {{"validation", ""}}, "held"},
    {"", {{"data", "copy"}, {"validation", ""}}, "held"},
    {"data", {}, "held"},
    {"data", {{"data", "other"}}, "other"},
    {"held", {}, "held"},
    {"data gone", {}, "held"},
    {"held gone", {}, "is not here; name other data"},
    {"held gone", {{"validation", "other"}}, "other"},
};

struct Runs {
  explicit Runs(const Kind& of) : kind(of) {
    write("data", 20), write("copy", 20), write("held", 6), write("other", 8);
    has_validation = false;
  }

  void write(const std::string& name, int rows) {
    sizes[name] = rows;
    kind.write(folder, name + kind.ending, rows, name == "held" ? 100 : name == "other" ? 200 : 0);
  }
  void change(const std::string& what) {
    const auto name = what.substr(0, what.find(' '));
    if (what.ends_with(" gone")) std::filesystem::remove_all(folder / (name + kind.ending));
    if (what == name && !name.empty()) write(name, sizes[name] + 2);
  }
  void change_back() { write("data", 20), write("held", 6); }

  void name(Table& table, const std::string& key, const std::string& source) const {
    table[key] = !kind.is_list    ? value(source)
                 : source.empty() ? list(std::vector<std::string>())
                                  : list<std::string>({source});
  }
  std::string path(const std::string& name) const { return folder.path().string() + "/" + name + kind.ending; }

  Table options() const {
    auto table = kind.more;
    table["workers"] = value(0);
    name(table, kind.data, path("data") + kind.part);
    if (!kind.targets.empty()) table[kind.targets] = value(path("data") + ":y");
    if (!has_validation) return table["validation_share"] = value(0.2), table;
    name(table, kind.validation, path("held") + kind.part);
    if (!kind.targets.empty()) table[kind.validation_targets] = value(path("held") + ":y");
    return table;
  }

  // Returns the number of samples, or the refusal.
  std::string measured(const LoadedTask& trained, const Case& of) const {
    auto table = options();
    for (const auto& [key, file] : of.named) {
      if (key == "share") table["validation_share"] = value(0.4);
      if (key == "data") name(table, kind.data, path(file));
      if (key == "validation") name(table, kind.validation, file.empty() ? "" : path(file));
      if (key == "validation" && file.empty() && has_validation) table.erase(kind.validation_targets);
    }
    const LogLines log;
    std::string held_out;
    const auto refused = refusal_of(trained, "task/" + kind.task, table, &held_out);
    if (!refused.empty()) return refused;
    if (std::string(of.measured) == "own") CHECK(held_out == trained->save().text("held_out"));
    for (const auto& line : LogLines::lines()) {
      const auto end = line.rfind(" held out"), begin = line.rfind(", ", end);
      if (end != std::string::npos && line.ends_with(" held out")) return line.substr(begin + 2, end - begin - 2);
    }
    return "nothing";
  }

  void check(const LoadedTask& trained, const Case& of) {
    std::string all = of.change;
    for (const auto& [key, file] : of.named) all += ", " + key + " = " + file;
    CAPTURE(all);
    change(of.change);
    const auto found = measured(trained, of);
    const auto own = std::string(of.measured) == "own", is_file = own || sizes.contains(of.measured);
    if (is_file) CHECK(found == std::to_string(own ? 4 : sizes[of.measured] - kind.fewer));
    if (!is_file) {
      CHECK_MESSAGE(contains(found, of.measured), found);
      CHECK_MESSAGE(contains(found, std::string(kind.is_list ? "'task." : "task.") + kind.validation + "="), found);
    }
    change_back();
  }

  const Kind& kind;
  TemporaryFolder folder;
  std::map<std::string, int> sizes;
  bool has_validation;
};

}  // namespace

TEST_CASE("a trained model is evaluated on the data that are named anew, or on what its training held out") {
  const published_folder::PublishedFolder model("gpt2");
  for (const auto& kind : kinds(model)) {
    CAPTURE(kind.name);
    Runs runs(kind);
    for (const bool has_validation : {false, true}) {
      runs.has_validation = has_validation;
      const NoLog quiet;
      const LoadedTask trained(kind.task, runs.options());
      if (!has_validation) {
        for (const auto& each : of_drawn) runs.check(trained, each);
      } else {
        for (const auto& each : of_held) runs.check(trained, each);
      }
    }
  }
}

TEST_CASE("a trained model is evaluated with the targets of the data that are named") {
  const TemporaryFolder folder;
  for (const char* name : {"x.csv", "y.csv"}) write_table(folder, name, 20, 0);
  for (const char* name : {"new.csv", "labels.csv"}) write_table(folder, name, 8, 100);
  const Table apart = {{"data", value(folder / "x.csv:a,b")}, {"targets", value(folder / "y.csv:y")}};
  const LoadedTask trained("sequence", apart);
  const auto refused = [&](const std::map<std::string, std::string>& named) {
    auto table = apart;
    for (const auto& [key, file] : named) table[key] = value(folder / file);
    return refusal_of(trained, "task/sequence", table);
  };
  CHECK(refused({}).empty());
  CHECK(refused({{"validation", "new.csv"}, {"validation_targets", "labels.csv"}}).empty());
  const std::string both = "; name other data, as in --set task.validation=FILE --set task.validation_targets=FILE";
  CHECK(contains(refused({{"validation", "new.csv"}}), "new.csv:a,b' has no targets" + both));
  CHECK(contains(refused({{"data", "none.csv"}}), "none.csv' is not here" + both));
  write_table(folder, "y.csv", 20, 1);
  CHECK(contains(refused({}), "hold samples out" + both));
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  for (const char* name : {"x.csv", "./x.csv:a,b"}) {
    auto table = apart;
    table["data"] = value(name);
    CHECK(contains(refusal_of(trained, "task/sequence", table), "hold samples out" + both));
  }
  std::filesystem::current_path(here);
}

TEST_CASE("a model is not evaluated on some of the files that it was trained on") {
  const published_folder::PublishedFolder model("gpt2");
  for (const char* name : {"a", "b", "copy", "new"}) {
    write_tokens(model.folder, name + std::string(".bin"), 20, name[0] == 'c' ? 'a' : name[0]);
  }
  const auto table = [&](const std::vector<std::string>& names) {
    std::vector<std::string> files;
    for (const auto& name : names) files.push_back(model.folder / (name + ".bin"));
    return model.table({{"data", list(files)},
                        {"context", value(4)},
                        {"stride", value(4)},
                        {"token_type", value("uint16")},
                        {"validation_share", value(0.2)}});
  };
  const LoadedTask trained("gpt", table({"a", "b"}));
  const auto refused = [&](const std::vector<std::string>& names) {
    return contains(refusal_of(trained, "task/gpt", table(names)), "the model was trained on it");
  };
  CHECK(!refused({"a", "b"}));
  CHECK(!refused({"copy", "b"}));
  CHECK(!refused({"new"}));
  CHECK(refused({"a"}));
  CHECK(refused({"b", "a"}));
  CHECK(refused({"new", "copy"}));
}

}  // namespace evaluated_test
