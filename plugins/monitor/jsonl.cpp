// jsonl: what the run measures, a line of JSON a step, for plots and for comparing runs:
//   {"step":200,"loss":2.25,"scale":32768,"updates":199,"overflows":1,"notices":[{"name":"step_skipped","step":200}]}
//   {"step":200,"validation_loss":2.5}
// Each metric that was set in the step has its key; "updates" counts those applied, "overflows" the steps whose gradients
// were not finite, from the first that a scaler checked; "notices" stands where there are any. Numbers read back exactly;
// those that JSON lacks are "nan", "inf" and "-inf". A resumed run goes on in the same file, which becomes that of a run
// that was never stopped: there is nothing in it about time or checkpoints. Where a run goes back in memory, the steps
// that come again have a second line, the first of them with the notice "rewound", and are counted once.
//   file = "losses.jsonl"   in the run's output folder
//   every = 1               steps between lines; a step with notices and the last one always have theirs
// On a GPU each line waits for the device.
#include <fcntl.h>
#include <unistd.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace {

namespace fs = std::filesystem;
using vernier::Error;
using vernier::Event;
using vernier::Notice;
using vernier::Run;

// One JSON object in the making.
class Object {
 public:
  void add(std::string_view key, double value) {
    start(key);
    if (std::isfinite(value)) return append_number(value);
    text_ += std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
  }
  void add(std::string_view key, std::int64_t value) {
    start(key);
    append_number(value);
  }
  void add(std::string_view key, std::string_view value) {
    start(key);
    append_string(value);
  }
  void add(std::string_view key, const std::vector<Object>& values) {
    start(key);
    text_ += '[';
    for (const auto& value : values) text_ += (&value == values.data() ? "" : ",") + value.text();
    text_ += ']';
  }
  std::string text() const { return text_ + '}'; }

 private:
  void start(std::string_view key) {
    if (text_.size() > 1) text_ += ',';
    append_string(key);
    text_ += ':';
  }

  // The shortest text that reads back as the same number.
  template <class Number>
  void append_number(Number value) {
    char digits[32];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  void append_string(std::string_view value) {
    constexpr char digits[] = "0123456789abcdef";
    text_ += '"';
    for (const char c : value) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x20) {
        text_ += {'\\', 'u', '0', '0', digits[code >> 4], digits[code & 15]};
      } else {
        if (c == '"' || c == '\\') text_ += '\\';
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_ = "{";
};

// The step of a line that append() below wrote, -1 where it is none.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view head = "{\"step\":";
  std::int64_t step = -1;
  if (line.starts_with(head)) std::from_chars(line.data() + head.size(), line.data() + line.size(), step);
  return step;
}

// A loss of power may leave half of a line, or zeros in the place of some.
bool is_whole(std::string_view line) {
  return step_of(line) >= 0 && line.ends_with('}') && line.find('\0') == line.npos;
}

// Takes off what a process wrote after the checkpoint that the run now goes on from, and what is no line of it. A run
// that went back has the lines of a step twice: only their number tells. lines: -1 where it is not known. Returns how
// many there are.
std::int64_t cut(const fs::path& path, std::int64_t last_step, std::int64_t lines) {
  if (!fs::is_regular_file(path)) return 0;  // /dev/stdout
  std::uintmax_t whole = 0;
  std::ifstream in(path, std::ios::binary);
  std::int64_t count = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); ++count, whole += line.size() + 1) {
    if (!is_whole(line) || (lines >= 0 ? count == lines : step_of(line) > last_step)) break;
  }
  in.close();
  if (whole != fs::file_size(path)) fs::resize_file(path, whole);
  return count;
}

// Appends lines to a file, at the latest a second after they were given.
class File {
 public:
  explicit File(fs::path path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("cannot be opened");
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(descriptor_); }

  void append(const Object& line) {
    waiting_ += line.text() + '\n';
    if (std::chrono::steady_clock::now() - flushed_ >= std::chrono::seconds(1)) flush();
  }

  // What could not be written goes on waiting, so that a later call leaves no gap.
  void flush() {
    flushed_ = std::chrono::steady_clock::now();
    while (!waiting_.empty()) {
      const auto written = ::write(descriptor_, waiting_.data(), waiting_.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot be written");
      waiting_.erase(0, static_cast<std::size_t>(written));
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(path_.string() + ": " + what + ": " + std::generic_category().message(errno));
  }

  fs::path path_;
  int descriptor_ = -1;
  std::string waiting_;
  std::chrono::steady_clock::time_point flushed_;
};

class Jsonl final : public vernier::Monitor {
 public:
  explicit Jsonl(vernier::Options& options)
      : name_(options.get("file", "losses.jsonl", "name in the run's output folder")),
        every_(options.get("every", 1, "steps between lines", vernier::at_least(1))) {
    if (name_.empty()) options.refuse("file", "must be the name of a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { open(run); });
    bus.on(Event::StepEnd, [this](const Run& run) { write_step(run); });
    bus.on(Event::Validated, [this](const Run& run) { write_validation(run); });
    bus.on(Event::RunEnd, [this](const Run& run) { close(run, run.step); });
    bus.on(Event::RunFailed, [this](const Run& run) { close(run, run.step + 1); });
  }

  // Called for each checkpoint: the lines up to it must not be lost when the process is killed after it.
  vernier::State save() const override {
    try {
      if (file_) file_->flush();
    } catch (const Error&) {  // the lines wait; the next event tells
    }
    vernier::State state;
    state.put("lines", lines_);
    return state;
  }
  // Before RunBegin: the run is resumed. Later it goes back: what was written stays, and the steps come again.
  void load(const vernier::State& state) override {
    if (!file_ && state.has("lines")) lines_ = state.integer("lines");
  }

 private:
  void open(const Run& run) {
    const auto path = fs::path(run.output) / name_;
    const bool was_there = fs::is_regular_file(path);  // or it goes on in another folder, or never was a file
    file_ = std::make_unique<File>(path);
    const auto counted = lines_;
    lines_ = cut(path, run.step, counted);
    if (was_there && lines_ < counted) {
      warn(path.string(), ": has lost ", counted - lines_, " of the ", counted, " lines up to step ", run.step,
           "; those of the steps to come follow");
    }
  }

  void write_step(const Run& run) {
    const auto metrics = run.metrics.set_now();
    of_step_.clear();
    for (const auto* metric : metrics) of_step_.push_back(metric->name);
    const auto notices = to_tell(run);
    const std::int64_t step = run.step + 1;
    if (step % every_ != 0 && step != run.steps && notices.empty()) return;
    Object line;
    line.add("step", step);
    if (run.loss.defined()) line.add("loss", run.loss.item<double>());
    for (const auto* metric : metrics) line.add(metric->name, metric->value());
    line.add("updates", run.updates);
    if (run.amp.amp_steps() > 0) line.add("overflows", run.amp.overflows());
    if (!notices.empty()) line.add("notices", notices);
    append(line);
  }

  void write_validation(const Run& run) {
    Object line;
    line.add("step", run.step);
    const std::string loss = "validation_loss";
    if (const auto value = run.metrics.value(loss.c_str())) line.add(loss, *value);
    for (const auto* metric : run.metrics.set_now()) {
      const bool is_of_step = std::ranges::find(of_step_, metric->name) != of_step_.end();
      if (!is_of_step && metric->name != loss) line.add(metric->name, metric->value());
    }
    append(line);
    file_->flush();
  }

  void close(const Run& run, std::int64_t step) {
    if (!file_) return;  // it failed before it began
    if (const auto notices = to_tell(run); !notices.empty()) {
      Object line;
      line.add("step", step);
      line.add("notices", notices);
      append(line);
    }
    file_->flush();
  }

  void append(const Object& line) {
    file_->append(line);
    lines_ += 1;
  }

  static std::vector<Object> to_tell(const Run& run) {
    std::vector<Object> told;
    for (const auto& notice : run.notices) {
      if (notice.name.starts_with("checkpoint_")) continue;  // of this process, not of the training
      auto& object = told.emplace_back();
      object.add("name", std::string_view(notice.name));
      for (const auto& [key, detail] : notice.details) {
        std::visit([&object, &key = key](const auto& value) { object.add(key, value); }, detail);
      }
    }
    return told;
  }

  std::string name_;
  std::int64_t every_;
  std::unique_ptr<File> file_;
  std::int64_t lines_ = -1;           // written; before RunBegin those of the run that is resumed, -1 where it is new
  std::vector<std::string> of_step_;  // metrics of the last step, to tell validation's from them
};

}  // namespace

VERNIER_PLUGIN(Jsonl, "jsonl", "1.0.0")
