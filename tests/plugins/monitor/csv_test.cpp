// monitor/csv: the table, and what becomes of it where columns, disk or process fail.
#include <doctest/doctest.h>
#include <vernier/error.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "monitored.h"
#include "thrown.h"

namespace csv_test {

namespace {

using Rows = std::vector<std::vector<std::string>>;

// Without quotes in it.
Rows rows_of(const std::string& text) {
  Rows rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto& row = rows.emplace_back(1);
    for (const char c : line) {
      if (c == ',') {
        row.emplace_back();
      } else {
        row.back() += c;
      }
    }
  }
  return rows;
}

// The cells of a column, from the first row.
std::vector<std::string> column(const Rows& rows, const std::string& name) {
  const auto found = std::find(rows.at(0).begin(), rows.at(0).end(), name);
  REQUIRE_MESSAGE(found != rows[0].end(), name);
  std::vector<std::string> cells;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    REQUIRE(rows[i].size() == rows[0].size());
    cells.push_back(rows[i][static_cast<std::size_t>(found - rows[0].begin())]);
  }
  return cells;
}

std::vector<std::string> warnings;
void collect_warnings(vernier::Level level, const std::string&, const std::string& text) {
  if (level >= vernier::Level::warning) warnings.push_back(text);
}

using Cells = std::vector<std::string>;

}  // namespace

TEST_CASE("csv: a row for each step and each validation, and a metric that comes late gets a column") {
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/csv");
  monitored.run.metrics.set("learning_rate", 0.25);
  monitored.step(0.5);
  monitored.validate(1.5);
  monitored.step(std::nan(""));
  monitored.step(-std::numeric_limits<double>::infinity());
  monitored.end();
  const auto text = read_text(folder / "metrics.csv");
  CHECK(text.starts_with("step,time,loss,epoch,samples,updates,skipped_updates,learning_rate,"));
  const auto rows = rows_of(text);
  CHECK(column(rows, "step") == Cells{"1", "1", "2", "3"});
  CHECK(column(rows, "loss") == Cells{"0.5", "", "nan", "-inf"});
  CHECK(column(rows, "learning_rate") == Cells{"0.25", "", "", ""});
  CHECK(column(rows, "validation_loss") == Cells{"", "1.5", "", ""});
  CHECK(column(rows, "samples") == Cells{"8", "", "16", "24"});
  for (const auto& time : column(rows, "time")) CHECK(std::stod(time) > 1.6e9);
  CHECK_FALSE(has_partial(folder.path()));
}

TEST_CASE("csv: numbers read back exactly, and names with commas and quotes are one cell") {
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/csv");
  monitored.run.metrics.set("a,\"b\"", 1.0 / 3);
  monitored.step();
  monitored.end();
  const auto text = read_text(folder / "metrics.csv");
  CHECK(text.find(",\"a,\"\"b\"\"\"\n") != text.npos);
  CHECK(text.ends_with("0.3333333333333333\n"));
}

TEST_CASE("csv: every, notices and the last step decide which steps have rows") {
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/csv", {{"every", toml_number(10)}});
  monitored.run.steps = 25;
  monitored.train(13);
  monitored.run.notice("step_skipped");
  monitored.train(25);
  monitored.end();
  CHECK(column(rows_of(read_text(folder / "metrics.csv")), "step") == Cells{"10", "14", "20", "25"});
}

TEST_CASE("csv: a resumed run has the file of one that was not stopped, also where the process was killed in a line") {
  for (const auto& tail : {std::string(), std::string("31,17"), std::string("31,1,2\n\n"), std::string(3, '\0')}) {
    CAPTURE(tail);
    const TemporaryFolder folder;
    vernier::State saved;
    {
      Monitored killed(folder, "monitor/csv");
      killed.train(10);
      killed.validate(1.5);
      saved = killed.plugin->save();
      killed.train(15);
      killed.plugin->save();
    }
    CHECK(rows_of(read_text(folder / "metrics.csv")).size() == 17);
    std::ofstream(folder / "metrics.csv", std::ios::app) << tail;
    Monitored resumed(folder, "monitor/csv", {}, 10, &saved);
    resumed.train(12);
    resumed.end();
    const auto rows = rows_of(read_text(folder / "metrics.csv"));
    CHECK(column(rows, "step") == Cells{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "10", "11", "12"});
    CHECK(column(rows, "validation_loss")[10] == "1.5");
    CHECK(column(rows, "loss")[11] == "10");
  }
}

TEST_CASE("csv: without its state a resumed run cuts by the step, and a file of something else is begun anew") {
  const TemporaryFolder folder;
  folder.write("metrics.csv", "step,time,loss\n1,5,0.5\n2,6,0.25\n3,7,0.125\n");
  {
    Monitored resumed(folder, "monitor/csv", {}, 2);
    resumed.step(9);
    resumed.end();
  }
  CHECK(column(rows_of(read_text(folder / "metrics.csv")), "loss") == Cells{"0.5", "0.25", "9"});
  folder.write("metrics.csv", "something else\n1,2\n");
  Monitored fresh(folder, "monitor/csv");
  fresh.step(9);
  fresh.end();
  CHECK(column(rows_of(read_text(folder / "metrics.csv")), "loss") == Cells{"9"});
}

TEST_CASE("csv: a full disk does not stop training, and the rows that are missing are counted") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/csv", {{"file", toml_text("/dev/full")}});
  monitored.train(3);
  monitored.plugin->save();  // must not throw: it would end the run
  monitored.validate(1);
  monitored.end();
  CHECK(monitored.run.notices.empty());
  REQUIRE(warnings.size() == 3);
  CHECK(warnings[0].starts_with("/dev/full: cannot be written: No space left on device; rows wait in memory"));
  CHECK(warnings[1] == "/dev/full: cannot be written anew, so it lacks a column for samples_per_second");
  CHECK(warnings[2] == "/dev/full: rows that are missing at its end: 5");
  vernier::set_log_sink(nullptr);
}

TEST_CASE("csv: a link keeps its rows, and gets no new column") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder / "elsewhere.csv", folder / "metrics.csv");
  Monitored monitored(folder, "monitor/csv");
  monitored.train(3);
  monitored.run.metrics.set("late", 1.0);
  monitored.step();
  monitored.end();
  CHECK(column(rows_of(read_text(folder / "elsewhere.csv")), "step") == Cells{"1", "2", "3", "4"});
  REQUIRE_FALSE(warnings.empty());
  CHECK(says(warnings[0], "metrics.csv: cannot be written anew, so it lacks a column for "));
  vernier::set_log_sink(nullptr);
}

TEST_CASE("csv: a folder that cannot be written detaches it with a reason, and the run goes on") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/csv", {{"file", toml_text("/nowhere/metrics.csv")}});
  monitored.step();
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].starts_with("/nowhere/metrics.csv: cannot be opened: No such file or directory"));
  vernier::set_log_sink(nullptr);
  CHECK(thrown_by([] {
          make_plugin<vernier::Monitor>("monitor/csv", {{"file", toml_text("")}});
        }).text.find("must be the name of a file") != std::string::npos);
}

}  // namespace csv_test
