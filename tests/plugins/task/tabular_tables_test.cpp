// Odd tables: the files of tests/plugins/task/tables, and what task/tabular prints of each.
#include <c10/util/StringUtil.h>
#include <doctest/doctest.h>
#include <vernier/data/csv.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/host.h>

#include <array>

#include "loaded_data_task.h"
#include "log_lines.h"
#include "task_cases.h"
#include "thrown.h"

namespace tabular_tables_test {

namespace {

const std::string tables = VERNIER_SOURCE_DIR "/tests/plugins/task/tables/";

vernier::SupervisedTask& supervised(LoadedTask& task) {
  return dynamic_cast<vernier::SupervisedTask&>(*task.task);
}

// A trained model that reads no data, from what training learned.
struct Trained {
  explicit Trained(const vernier::Table& options, vernier::State learned, bool reads_data)
      : task(make_plugin<vernier::Task>("task/tabular", options)) {
    dynamic_cast<vernier::SupervisedTask&>(*task).use_learned(std::move(learned), reads_data);
    run.seed = 1;
    task->prepare(run);
    run.model->eval();
  }
  std::vector<vernier::Predictor::Column> predict(const std::string& path) {
    auto& supervised = dynamic_cast<vernier::SupervisedTask&>(*task);
    auto& predictor = dynamic_cast<vernier::Predictor&>(*task);
    return predictor.predict(supervised.loader_of(predictor.read_inputs(path)).next());
  }
  std::unique_ptr<vernier::Task> task;
  vernier::TrainerRun run;
};

}  // namespace

TEST_CASE("tabular prints what it understood of odd tables, or refuses them in one line") {
  const int count = check_cases("tabular", tables);
  CHECK(count >= 60);
}

TEST_CASE("tabular says one line of a plain table") {
  const auto text = printed("tabular", tables + "plain.csv", "target = 'y'");
  CHECK(std::ranges::count(text, '\n') == 2);  // and the numbers of samples
}

TEST_CASE("tabular learns words and means from the training rows alone") {
  const TemporaryFolder folder;
  std::string text = "x,word,y\n";
  for (int i = 0; i < 20; ++i) text += i < 10 ? "1,early,0.5\n" : i == 10 ? ",early,1\n" : "100,late,2\n";
  const auto path = folder.write("a.csv", text);
  LoadedTask loaded("tabular",
                    options_of(path, "target = 'y'; missing = 'mean'; split = 'last'; validation_share = 0.45"));
  const auto buffers = loaded.run.model->named_buffers();
  CHECK(buffers["mean"].item<float>() == 1);                                        // the missing value too
  CHECK(loaded.run.model->named_parameters()["embeddings.0.weight"].size(0) == 2);  // early and unknown
  CHECK(buffers["target_mean"].item<float>() == doctest::Approx(6.0 / 11));
}

TEST_CASE("tabular keeps groups together and classes in proportion") {
  const auto groups = torch::tensor({1, 1, 1, 2, 2, 3, 3, 3, 4, 4}, torch::kInt64);
  const auto by_group = vernier::split_groups(groups, 0.3, 1);
  const auto held_out = groups.index_select(0, by_group.held_out), rest = groups.index_select(0, by_group.training);
  CHECK(held_out.numel() >= 3);
  CHECK_FALSE((held_out.unsqueeze(1) == rest.unsqueeze(0)).any().item<bool>());
  const auto classes = torch::cat({torch::zeros({90}, torch::kInt64), torch::ones({10}, torch::kInt64)});
  const auto by_class = vernier::split_classes(classes, 0.1, 1);
  CHECK(classes.index_select(0, by_class.held_out).bincount().equal(torch::tensor({9, 1}, torch::kInt64)));
  CHECK(by_class.training.numel() + by_class.held_out.numel() == 100);
  const auto single = vernier::split_classes(torch::tensor({0, 1, 2, 3}, torch::kInt64), 0.5, 1);
  CHECK(single.held_out.numel() == 0);
  CHECK(vernier::split_last(10, 0.25).held_out.equal(torch::tensor({7, 8, 9}, torch::kInt64)));
}

TEST_CASE("a trained model of tabular is whole without its data") {
  const TemporaryFolder folder;
  const auto options = options_of(tables + "plain.csv", "target = 'y'; hidden = [8]");
  LoadedTask loaded("tabular", options);
  auto& task = supervised(loaded);
  auto elsewhere = options;
  elsewhere.at("data").data = std::string("nowhere.csv");
  Trained trained(elsewhere, task.learned(), false);
  vernier::load_state_dict(*trained.run.model, vernier::state_dict(*loaded.run.model));
  loaded.run.model->eval();
  const auto rows = folder.write("new.csv", "colour,more,x\nblue,1,4\nred,2,9\n");
  auto& predictor = dynamic_cast<vernier::Predictor&>(*loaded.task);
  const auto before = predictor.predict(task.loader_of(predictor.read_inputs(rows)).next());
  const auto after = trained.predict(rows);
  CHECK(torch::equal(before.at(1).numbers, after.at(1).numbers));
  CHECK(after.at(0).labels == std::vector<std::string>{"no", "yes"});
  const auto description = dynamic_cast<vernier::Predictor&>(*trained.task).description();
  for (const char* part :
       {R"("task":"classification")", R"("name":"colour")", R"("words":["blue","red"])", R"("classes":["no","yes"])"}) {
    CHECK(says(description, part));
  }
  const LogLines log;
  trained.predict(folder.write("some.csv", "x,colour\n4,red\n5,green\n"));
  CHECK(LogLines::count("column 'colour': 1 of 2 values are unknown, such as 'green'") == 1);
  // A row has the same answer alone and beside others.
  const auto alone = trained.predict(folder.write("one.csv", "x,colour\n5,green\n"));
  const auto beside = trained.predict(folder.write("two.csv", "x,colour\n5,green\n4,red\n"));
  CHECK(torch::equal(alone.at(1).numbers[0], beside.at(1).numbers[0]));
  std::string many = "x,colour\n";
  for (int i = 0; i < 20; ++i) many += "4,Red\n";
  CHECK(says(thrown_by([&] { trained.predict(folder.write("all.csv", many)); }).text,
             "column 'colour': 20 of 20 values are unknown, such as 'Red'; write them as in training, such as "
             "'blue,red'"));
}

TEST_CASE("a trained model of tabular is evaluated on the rows that were held out, or on all rows of other data") {
  const TemporaryFolder folder;
  const auto options = options_of(tables + "plain.csv", "target = 'y'; hidden = [8]");
  LoadedTask loaded("tabular", options);
  const auto text = read_text(tables + "plain.csv");
  auto other = options;
  const auto check = [&](const std::string& path, std::int64_t samples) {
    other.at("data").data = path;
    const LogLines log;
    Trained trained(other, supervised(loaded).learned(), true);
    CHECK(LogLines::count(std::to_string(samples) + " held out") == 1);
  };
  check(folder.write("same.csv", text), 4);
  check(folder.write("other.csv", text + "3,red,no\n"), 41);
  other.at("data").data = std::string("nowhere.csv");
  CHECK(says(thrown_by([&] { Trained(other, supervised(loaded).learned(), true); }).text,
             "'nowhere.csv' is not here; name other data, as in --set task.validation=FILE"));
}

TEST_CASE("a trained model of tabular takes the options that may change, and refuses the others") {
  const TemporaryFolder folder;
  std::string text = "x,day,y\n";
  for (int i = 0; i < 40; ++i) text += c10::str(i % 7, ",", 1 + i % 28, ".2.2021,", i * 1.5, "\n");
  const auto path = folder.write("a.csv", text);
  const std::string base = "target = 'y'; hidden = [8]; ";
  LoadedTask loaded("tabular", options_of(path, base));
  const auto said = [&](const std::string& more, const std::string& row) {
    const auto rows = folder.write("new.csv", "x,day\n" + row + "\n1,3.2.2021\n");
    const auto target = more.starts_with("target") ? "hidden = [8]; " : base;
    const LogLines log;
    const auto thrown =
        thrown_by([&] { Trained(options_of(path, target + more), supervised(loaded).learned(), false).predict(rows); });
    std::string lines = thrown.text;
    for (const auto& line : LogLines::lines()) lines += line;
    return lines;
  };
  const std::vector<std::array<std::string, 3>> cases = {
      {"", ",3.2.2021",
       "column 'x' has no value; remove the line, or give --set task.missing=mean or --set task.missing=zero"},
      {"missing = 'mean'", ",3.2.2021", "column 'x': 1 of 2 values are missing: they are filled in"},
      {"missing = 'zero'", "5,", "column 'day': 1 of 2 values are missing: they are filled in"},
      {"missing = 'drop'", ",3.2.2021", "column 'x' has no value; remove the line, or give --set task.missing=mean"},
      {"leave_out = ['x']", "5,3.2.2021", "column 'x' is one of `leave_out`, and the trained model needs it"},
      {"types = {x = 'category'}", "5,3.2.2021", "column 'x' has another type in the trained model than `types` says"},
      {"", "5,02/13/2021", "write it so, or set types = {day = \"day-month-year\"} or \"month-day-year\""},
      {"columns = ['day']", "5,3.2.2021", "other `columns` than the trained model has"},
      {"kind = 'classification'", "5,3.2.2021", "the trained model is of the other kind"},
      {"target = 'x'", "5,3.2.2021", "target = \"x\", and the trained model predicts 'y'"},
  };
  for (const auto& [more, row, expected] : cases) {
    CAPTURE(more);
    CHECK_MESSAGE(says(said(more, row), expected), said(more, row));
  }
  CHECK(said("", "5,2021-02-13") == "");
  CHECK(said("types = {day = 'month-day-year'}", "5,2/13/2021") == "");
}

TEST_CASE("tabular: a file that is trained on and held out is named, also where a pattern names it") {
  const TemporaryFolder folder;
  std::string rows = "x,y\n";
  for (int i = 0; i < 40; ++i) rows += std::to_string(i) + "," + std::to_string(i * 2.5) + "\n";
  for (const char* name : {"a-1.csv", "a-2.csv", "b.csv"}) folder.write(name, rows);
  const struct {
    const char *data, *validation;
    int warnings;
  } cases[] = {{"a-1.csv", "a-1.csv", 1}, {"a-1.csv", "a-2.csv", 0}, {"a-*.csv", "a-2.csv", 1},
               {"a-1.csv", "a-*.csv", 1}, {"a-*.csv", "a-*.csv", 2}, {"a-*.csv", "b.csv", 0}};
  for (const auto& [data, validation, warnings] : cases) {
    CAPTURE(data);
    CAPTURE(validation);
    const LogLines log;
    const auto more = "target = 'y'; hidden = [8]; validation = '" + (folder.path() / validation).string() + "'";
    const LoadedTask loaded("tabular", options_of((folder.path() / data).string(), more));
    CHECK(LogLines::count("so the model trains on what is held out") == warnings);
  }
}

TEST_CASE("tabular reads dates as numbers and parts of the calendar") {
  const TemporaryFolder folder;
  vernier::CsvOptions options;
  const auto parts_of = [&](const std::string& field) {
    const auto table = vernier::read_csv(folder.write("d.csv", "d\n" + field + "\n"), options);
    return table.numbers[0].contiguous();
  };
  const auto floats = [](std::vector<float> values) { return torch::tensor(values, torch::kFloat64); };
  CHECK(torch::equal(parts_of("2024-02-29"), floats({19782, 2024, 2, 29, 3, 60})));
  CHECK(torch::equal(parts_of("29.2.2024"), floats({19782, 2024, 2, 29, 3, 60})));
  CHECK(torch::equal(parts_of("29-Feb-2024"), floats({19782, 2024, 2, 29, 3, 60})));
  CHECK(torch::equal(parts_of("\"February 29, 2024\""), floats({19782, 2024, 2, 29, 3, 60})));
  CHECK(torch::allclose(parts_of("2024-03-01T00:30:00+01:00"), floats({19782.98F, 2024, 2, 29, 3, 60, 23.5F}), 1e-4));
  CHECK(torch::equal(parts_of("1969-12-31"), floats({-1, 1969, 12, 31, 2, 365})));
}

}  // namespace tabular_tables_test
