// csv: writes every number of the run into a table, for spreadsheets and pandas: a row for each step and each
// validation.
//   file = "metrics.csv"    in the run's output folder
//   every = 1               steps between rows; a step with notices and the last planned step always have a row
// The first line has the names of the columns: step, time (seconds since 1970), and those of docs/reference/metrics.md.
// A cell is empty where the row has no such number. Numbers read back exactly; "inf", "-inf" and "nan" stand for what
// is not finite. A metric that first appears later gets a new last column: the file is then written anew, through a
// second file. A resumed run cuts off the rows after its checkpoint and goes on. After a rewind in memory, the steps
// that come again have a second row. If the disk is full, rows wait in memory until there is room; those beyond 1 MB
// are lost. Source of the format: RFC 4180, with "\n" at the end of a line.
#include <vernier/append_file.h>
#include <vernier/record_monitor.h>
#include <vernier/sdk.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

namespace {

namespace fs = std::filesystem;
using vernier::AppendFile;
using vernier::Record;
using vernier::Run;

// In quotes where a comma, a quote or the end of a line would end the cell.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : c == '\r' || c == '\n' ? " " : std::string(1, c);
  return quoted + '"';
}

std::vector<std::string> cells(std::string_view line) {
  std::vector<std::string> all(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (is_quoted && i + 1 < line.size() && line[i + 1] == '"') {
        all.back() += line[++i];
      } else {
        is_quoted = !is_quoted;
      }
    } else if (line[i] == ',' && !is_quoted) {
      all.emplace_back();
    } else {
      all.back() += line[i];
    }
  }
  return all;
}

std::int64_t step_of(std::string_view row) {
  std::int64_t step = -1;
  std::from_chars(row.data(), row.data() + row.size(), step);
  return step;
}

class Table final : public vernier::RecordSink {
 public:
  // lines: of the file, in the run that is resumed; -1: unknown.
  Table(const fs::path& path, const Run& run, std::int64_t lines, AppendFile::Warn warn)
      : path_(path), warn_(std::move(warn)) {
    lines_ = vernier::keep_lines(path, [&](std::string_view line, std::int64_t number) {
      if (number == 0) return line.starts_with("step,time");
      return step_of(line) >= 0 && (lines >= 0 ? number < lines : step_of(line) <= run.step);
    });
    if (lines_ > 0) {
      std::ifstream in(path);
      std::string header;
      std::getline(in, header);
      columns_ = cells(header);
    }
    file_ = std::make_unique<AppendFile>(path, "rows", warn_);
  }

  void write(const Record& record) override {
    if (record.kind == Record::Kind::end) return;
    for (const auto& entry : record.entries) {
      const bool is_known =
          column_of(&entry.metric->name) >= 0 || std::ranges::find(fresh_, entry.metric->name) != fresh_.end();
      if (!is_known) fresh_.push_back(entry.metric->name);
    }
    if (lines_ == 0) {
      begin(std::exchange(fresh_, {}));
    } else {
      add_columns();
    }
    std::vector<std::string> row(columns_.size());
    row[0] = std::to_string(record.step);
    row[1] = vernier::shortest(record.time);
    for (const auto& entry : record.entries) {
      if (const auto column = column_of(&entry.metric->name); column >= 0)
        row[static_cast<std::size_t>(column)] = vernier::shortest(entry.value);
    }
    append(c10::Join(",", row) + '\n');
  }

  void flush() override { file_->flush(); }

  vernier::State save() const override {
    vernier::State state;
    state.put("lines", lines_);
    return state;
  }

  void end(const Run&, bool) override {
    next_try_ = {};
    add_columns();
    file_->warn_of_missing();
  }

 private:
  void append(const std::string& line) {
    if (file_->append(line)) lines_ += 1;
  }

  void begin(const std::vector<std::string>& fresh) {
    columns_ = {"step", "time"};
    columns_.insert(columns_.end(), fresh.begin(), fresh.end());
    numbers_.clear();
    append(header());
  }

  std::string header() const {
    std::vector<std::string> names;
    for (const auto& column : columns_) names.push_back(cell(column));
    return c10::Join(",", names) + '\n';
  }

  // -1: there is none.
  std::ptrdiff_t column_of(const std::string* name) {
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    const auto found = std::find(columns_.begin(), columns_.end(), *name);
    return found == columns_.end() ? -1 : numbers_.emplace(name, found - columns_.begin()).first->second;
  }

  // Every row gets empty cells for the columns that the file lacks. A disk that is full is tried again after some
  // seconds, and at the end; until then the rows lack these numbers.
  void add_columns() {
    constexpr std::chrono::seconds pause{10};
    const auto now = std::chrono::steady_clock::now();
    if (fresh_.empty() || now < next_try_) return;
    file_->flush();
    const auto before = columns_.size();
    columns_.insert(columns_.end(), fresh_.begin(), fresh_.end());
    // A symbolic link would be overwritten in place, while write_anew() reads it.
    const bool may_work = file_->missing() == 0 && fs::is_regular_file(fs::symlink_status(path_));
    if (may_work && write_anew(std::string(fresh_.size(), ','))) {
      fresh_.clear();
      has_warned_ = false;
      return;
    }
    columns_.resize(before);
    next_try_ = now + pause;
    if (!std::exchange(has_warned_, true))
      warn_(path_.string() + ": cannot be written anew, so it lacks a column for " + fresh_.front());
  }

  bool write_anew(const std::string& more) try {
    vernier::WholeFile next(path_);
    {
      std::ifstream in(path_, std::ios::binary);
      std::ofstream out(next.part(), std::ios::binary);
      std::string line;
      std::getline(in, line);
      out << header();
      while (std::getline(in, line)) out << line << more << '\n';
      if (!out.flush()) return false;
    }
    next.finish();
    file_ = std::make_unique<AppendFile>(path_, "rows", warn_);
    return true;
  } catch (const fs::filesystem_error&) {
    return false;
  }

  fs::path path_;
  AppendFile::Warn warn_;
  std::unique_ptr<AppendFile> file_;
  std::vector<std::string> columns_;
  std::map<const std::string*, std::ptrdiff_t> numbers_;  // index of each column
  std::int64_t lines_ = 0;
  std::vector<std::string> fresh_;  // columns that the file lacks
  bool has_warned_ = false;         // a warning has named the fresh columns
  std::chrono::steady_clock::time_point next_try_;
};

class Csv final : public vernier::RecordMonitor {
 public:
  explicit Csv(vernier::Options& options)
      : RecordMonitor(options), name_(options.get("file", "metrics.csv", "name in the run's output folder")) {
    if (name_.empty()) options.refuse("file", "must be the name of a file");
  }

 protected:
  std::unique_ptr<vernier::RecordSink> open(const Run& run, const vernier::State& saved) override {
    return std::make_unique<Table>(fs::path(run.output) / name_, run, saved.has("lines") ? saved.integer("lines") : -1,
                                   [this](const std::string& text) { warn(text); });
  }

 private:
  std::string name_;
};

}  // namespace

VERNIER_PLUGIN(Csv, "csv", "1.0.0")
