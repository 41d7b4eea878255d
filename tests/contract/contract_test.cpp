// The contract of every plugin: the suite runs over all that were built.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <torch/csrc/jit/api/module.h>
#include <unistd.h>
#include <vernier/error.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <span>
#include <sstream>

#include "long_form.h"
#include "metric_row.h"
#include "run/preparation.h"
#include "small_run.h"
#include "thrown.h"
#include "tools/check_plugin/laws.h"
#include "tools/check_plugin/trial.h"

using vernier::Host;
using vernier::Options;
using vernier::Subject;
using vernier::Table;
using vernier::Trained;
namespace fs = std::filesystem;

namespace {

std::string id_of(const Host::Listed& plugin) {
  return plugin.role + "/" + plugin.name;
}

std::string output_of(const std::string& command, int& status) {
  std::string output;
  std::array<char, 4096> bytes;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  while (const auto count = std::fread(bytes.data(), 1, bytes.size(), pipe)) output.append(bytes.data(), count);
  status = ::pclose(pipe);
  return output;
}

// The comments of a header that a plugin's comment names, for options that several plugins share.
std::string comments_of_headers_in(const std::string& text) {
  std::string comments;
  const std::regex header(R"(vernier/[\w/]+\.h)");
  const fs::path sdk = fs::path(VERNIER_SOURCE_DIR) / "sdk";
  std::vector<fs::path> folders = {sdk / "plugin", sdk / "data", sdk / "text", sdk / "graph", sdk / "lab"};
  for (const auto& room : fs::directory_iterator(sdk / "core")) folders.push_back(room.path());
  for (std::sregex_iterator found(text.begin(), text.end(), header), end; found != end; ++found) {
    const auto has_it = [&](const fs::path& folder) { return fs::exists(folder / "include" / found->str()); };
    const auto folder = std::ranges::find_if(folders, has_it);
    if (folder == folders.end()) continue;
    std::ifstream in(*folder / "include" / found->str());
    for (std::string line; std::getline(in, line);) {
      if (const auto start = line.find_first_not_of(' ');
          start != std::string::npos && line.compare(start, 2, "//") == 0) {
        comments += line.substr(start + 2) + '\n';
      }
    }
  }
  return comments;
}

// The comment that a plugin's source opens with.
std::string head_of(const Host::Listed& plugin) {
  const auto folder = fs::path(VERNIER_SOURCE_DIR) / "plugins" / plugin.role;
  auto path = folder / (plugin.name + ".cpp");
  if (!fs::exists(path)) path = folder / plugin.name / (plugin.name + ".cpp");
  if (!fs::exists(path)) path = folder / "../precision" / plugin.name / (plugin.role + ".cpp");  // shares its files
  std::ifstream in(path);
  REQUIRE_MESSAGE(in, path.string());
  std::string head;
  for (std::string line; std::getline(in, line) && line.starts_with("//");) head += line.substr(2) + '\n';
  return head + comments_of_headers_in(head);
}

// Returns the value behind "key =" in a text: a string, a list, or all up to a space or comma.
std::string default_in(const std::string& text, const std::string& key) {
  const std::regex pattern("(?:^|[\\s,])" + key + R"(\s*=\s*("[^"]*"|\[[^\]]*\]|[^\s,]+))");
  std::smatch found;
  return std::regex_search(text, found, pattern) ? found[1].str() : "";
}

bool is_same_value(const std::string& a, const std::string& b) {
  std::istringstream first(a), second(b);
  double x = 0, y = 0;
  if (first >> x && first.eof() && second >> y && second.eof()) return x == y;
  return a == b;
}

// A train set of 64 little images in the format of MNIST.
std::string write_images(const TemporaryFolder& folder) {
  std::string images("\0\0\x08\x03\0\0\0\x40\0\0\0\x08\0\0\0\x08", 16), labels("\0\0\x08\x01\0\0\0\x40", 8);
  for (int i = 0; i < 64; ++i) {
    labels += static_cast<char>(i % 10);
    for (int pixel = 0; pixel < 64; ++pixel) images += static_cast<char>((i % 10) * 20 + pixel);
  }
  return "images='" + folder.write("images", images) + "'\nlabels='" + folder.write("labels", labels) + "'\n";
}

// A sensor of a processor at 40 degrees, since not every machine has one.
std::string cool() {
  static const TemporaryFolder folder;
  return folder.write("temperature", "40000\n");
}

// 200 rows of three columns of numbers.
std::string write_series(const TemporaryFolder& folder) {
  std::string text = "a,b,label\n";
  for (int i = 0; i < 200; ++i) {
    text += std::to_string(i * 7 % 11) + "," + std::to_string(i * i % 13) + "," + std::to_string(i % 2) + "\n";
  }
  return folder.write("series.csv", text);
}

// A layer as Python exports it.
std::string write_script(const TemporaryFolder& folder) {
  torch::jit::Module layer("__torch__.Layer");
  layer.register_parameter("weight", torch::arange(4, torch::kFloat32).reshape({2, 2}).cos().set_requires_grad(true),
                           false);
  layer.define("def forward(self, x):\n  return torch.matmul(x, self.weight)\n");
  layer.save(folder / "layer.pt");
  return folder / "layer.pt";
}

// Two classes of points in a plane; record.py beside it writes it.
const std::string plane_graph = VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/plane.pt2";

// 120 texts of two classes.
const std::string adverts = VERNIER_SOURCE_DIR "/tests/plugins/task/texts/adverts.csv";

// 40 rows of numbers and a category.
std::string write_table(const TemporaryFolder& folder) {
  std::string text = "x,kind,y\n";
  for (int i = 0; i < 40; ++i) text += std::to_string(i % 7) + (i % 3 == 0 ? ",a," : ",b,") + std::to_string(i) + '\n';
  return "data='" + folder.write("table.csv", text) + "'\ntarget='y'\n";
}

// The config.json of a small model, and tokens for it.
std::string write_language_model(const TemporaryFolder& folder) {
  folder.write("model/config.json",
               R"({"model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1})");
  std::string tokens;
  for (int i = 0; i < 400; ++i) tokens += {static_cast<char>(i * i % 13), '\0'};
  return "folder = '" + (folder / "model") + "'\nweights = 'random'\ndata = ['" + folder.write("tokens.bin", tokens) +
         "']\ncontext = 8\ndropout = 0.1\n";
}

// The options that a plugin requires. Tasks are small, so that their steps are quick.
std::string options_for(const Host::Listed& plugin, const TemporaryFolder& folder) {
  if (id_of(plugin) == "precision/adaptive") return "min_gain = -1000\n";  // a choice that does not hang on times
  if (id_of(plugin) == "task/images") return write_images(folder) + "batch_size = 16\n";
  if (id_of(plugin) == "task/llama") return write_language_model(folder);
  if (id_of(plugin) == "task/sequence") {
    return "kind = 'forecast'\ndata = '" + write_series(folder) +
           "'\ncontext = 8\nwidth = 8\nlayers = 2\ndropout = 0.1\nbatch_size = 8\n";
  }
  if (id_of(plugin) == "task/script" || id_of(plugin) == "task/graph") {
    const auto series = write_series(folder);
    return "model = '" + (id_of(plugin) == "task/graph" ? plane_graph : write_script(folder)) + "'\ninputs = ['" +
           series + ":a,b']\ntarget = '" + series + ":label'\nbatch_size = 8\n";
  }
  if (id_of(plugin) == "task/tabular") return write_table(folder) + "hidden = [8]\ndropout = 0.1\n";
  if (id_of(plugin) == "task/text") {
    return "data = '" + adverts + "'\nwidth = 8\nheads = 2\nlayers = 2\nbatch_size = 8\n";
  }
  if (id_of(plugin) == "accumulation/target") return "target_effective_batch_size = 16\n";
  if (id_of(plugin) == "accumulation/schedule") return "effective_batch_size = [8, 16]\nfrom = [0, 5]\n";
  if (id_of(plugin) == "optimizer/lbfgs") return "max_iter = 2\nline_search = 'strong_wolfe'\nhistory_size = 5\n";
  if (id_of(plugin) == "callback/flight_recorder") return "every = 10\n";
  if (id_of(plugin) == "callback/inject") return "where = 'loss'\nat_step = 7\n";
  if (id_of(plugin) == "callback/lora") return "targets = ['layers.*']\nrank = 2\n";
  if (id_of(plugin) == "callback/profiler") return "first_step = 3\nsteps = 2\n";
  if (id_of(plugin) == "callback/thermal_guard") return "sensor = '" + cool() + "'\n";
  if (id_of(plugin) == "monitor/prometheus") return "listen = '127.0.0.1:0'\n";
  if (id_of(plugin) == "callback/swa") return "from = 4\nevery = 3\n";
  if (id_of(plugin) == "callback/alarm") return "metric = 'loss'\nabove = 1e9\n";
  if (id_of(plugin) == "callback/switch") return "at_step = 4\n[callback.to]\nprecision = {use = 'bf16'}\n";
  if (id_of(plugin) != "task/gpt") return "";
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i * i) + '\n';
  return "data = [\"" + folder.write("text", text) +
         "\"]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\ndropout = 0.1\n";
}

// A run in which the plugin fills its role, with neighbours whose state shows in the numbers.
Subject subject_of(const Host::Listed& plugin, const TemporaryFolder& folder) {
  const bool many = plugin.role == vernier::Callback::role || plugin.role == vernier::Monitor::role;
  const std::string header = many ? "[[" + plugin.role + "]]" : "[" + plugin.role + "]";
  const auto own = from_toml({header + "\nuse = '" + plugin.name + "'\n" + options_for(plugin, folder)});
  const auto& value = own.at(plugin.role);
  auto options = std::get<Table>((many ? std::get<vernier::Array>(value.data).front() : value).data);
  options.erase("use");
  return {built_plugins(), plugin.role, plugin.name, plugin.name, std::move(options), vernier::small_base()};
}

Trained train(const Table& config, int threads = 1) {
  return vernier::train(built_plugins(), config, threads);
}

Trained train_in_two_parts(const Table& config, std::int64_t stop, int threads = 1) {
  const auto trained = vernier::train_in_two_parts(built_plugins(), config, stop, threads);
  REQUIRE(trained.has_value());
  return *trained;
}

Trained train_after_failure(const Table& config, vernier::Event event,
                            const std::function<bool(const vernier::Run&)>& fails) {
  const auto after = vernier::train_after_failure(built_plugins(), config, event, fails);
  if (!after.may_be_lost) REQUIRE(after.is_resumed);
  if (!after.may_be_lost) CHECK(after.resumed_at == after.failed_at);
  return after.trained;
}

// Among others before the last step of an epoch of `crowded`, below, and after it.
void check_going_on(const Table& config, bool is_repeatable = true) {
  const auto whole = train(config);
  CHECK(!whole.losses.empty());
  CHECK(whole.updates >= 10);  // a plugin that skips nearly all updates has nothing to forget
  for (const std::int64_t stop : {1, 3, 4, 5, 10}) {
    CAPTURE(stop);
    CHECK(train_in_two_parts(config, stop) == whole);
  }
  if (!is_repeatable) return;
  using vernier::Event;
  constexpr std::array before_the_update = {Event::StepBegin, Event::BatchReady, Event::LossReady,
                                            Event::GradientsReady};
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(whole.digest)));
  const auto event = before_the_update[random() % before_the_update.size()];
  const auto step = static_cast<std::int64_t>(1 + random() % 10);
  CAPTURE(static_cast<int>(event));
  CAPTURE(step);
  CHECK(train_after_failure(config, event, [step](const vernier::Run& run) { return run.step >= step; }) == whole);
}

// Returns the component of sdk/components.tsv to which a plugin, as "task/mlp", belongs.
std::string component_of(const std::string& id) {
  std::ifstream rows(fs::path(VERNIER_SOURCE_DIR) / "sdk" / "components.tsv");
  for (std::string row; std::getline(rows, row);) {
    std::istringstream folders(row.substr(row.rfind('\t') + 1));
    for (std::string folder; folders >> folder;) {
      if (("plugins/" + id + "/").starts_with(folder + "/") || "plugins/" + id + ".cpp" == folder) {
        return row.substr(0, row.find('\t'));
      }
    }
  }
  FAIL(id, " belongs to no component");
  return "";
}

// Calls body for the plugins of the component that the environment names, or for all. So the plugins of a pack are
// tried by a test with the pack's label.
template <class Body>
void for_each_plugin(const Body& body) {
  const auto all = built_plugins().list();
  REQUIRE(all.size() >= 18);
  const char* component = std::getenv("VERNIER_TESTED_COMPONENT");
  for (const auto& plugin : all) {
    const std::string id = id_of(plugin);
    if (component != nullptr && component_of(id) != component) continue;
    CAPTURE(id);
    body(plugin);
  }
}

const fs::path configs = fs::path(VERNIER_SOURCE_DIR) / "configs";

// Returns whether this build has the plugins that a configuration names, and the one that it includes.
bool is_built(const fs::path& path) {
  const auto text = read_text(path);
  std::smatch included;
  if (std::regex_search(text, included, std::regex(R"re(include = \[?"([^"]+)")re")) &&
      !is_built(path.parent_path() / included[1].str())) {
    return false;
  }
  const std::regex table(R"re(\[+(\w+)\]+\nuse = "(\w+)")re");
  const auto all = built_plugins().list();
  return std::all_of(std::sregex_iterator(text.begin(), text.end(), table), {}, [&](const std::smatch& found) {
    return std::ranges::any_of(all, [&](const auto& each) { return each.role == found[1] && each.name == found[2]; });
  });
}

// The strategies', and those that show a strategy's options.
template <class Function>
void for_each_overlay(const Function& function) {
  for (const auto& entry : fs::recursive_directory_iterator(configs)) {
    if (!entry.is_regular_file() || entry.path().parent_path() == configs || !is_built(entry.path())) continue;
    CAPTURE(entry.path().string());
    function(entry.path());
  }
}

// Decides the parts of an overlay that depend on the machine or differ each time, as the times of precision/adaptive
// do.
std::string decided_beforehand(const std::string& overlay) {
  if (overlay == "thermal_guard") return "[[callback]]\nuse = 'thermal_guard'\nsensor = '" + cool() + "'\n";
  if (overlay == "prometheus") return "[[monitor]]\nuse = 'prometheus'\nlisten = '127.0.0.1:0'\n";
  if (overlay != "adaptive") return "";
  return "[precision]\nmin_gain = -1000\n";
}

// Progress would be drawn among the test's own lines.
struct Quiet {
  Quiet() : saved(::dup(STDERR_FILENO)) {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
    const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nothing, STDERR_FILENO);
    ::close(nothing);
  }
  ~Quiet() {
    vernier::set_log_sink(nullptr);
    ::dup2(saved, STDERR_FILENO);
    ::close(saved);
  }
  int saved;
};

}  // namespace

TEST_CASE("every plugin fits this build") {
  for_each_plugin([](const Host::Listed& plugin) {
    CHECK(plugin.trouble == "");
    CHECK(std::string(vernier::PluginFile(plugin.file, "").descriptor().role) == plugin.role);
    CHECK(std::string(vernier::PluginFile(plugin.file, "").descriptor().name) == plugin.name);
  });
}

TEST_CASE("every plugin exports its descriptor alone") {
  for_each_plugin([](const Host::Listed& plugin) {
    int status = 0;
    const auto symbols = output_of("nm -D --defined-only --format=posix '" + plugin.file.string() + "'", status);
    CHECK(status == 0);
    CHECK(std::regex_match(symbols, std::regex("vernier_plugin [A-Z] \\w+ \\w+\\s*")));
  });
}

// A metric's source in docs/reference/metrics.md: the plugins that declare it, or their role where many do.
std::string source_of(const vernier::MetricInfo& info) {
  const auto role = info.source.substr(0, info.source.find('/'));
  return role == "task" || std::ranges::count(info.source, ',') > 1 ? role : info.source;
}

TEST_CASE("every metric is declared with a unit, a meaning and a source, as docs/reference/metrics.md lists it") {
  const std::set<std::string> units = {"", "s", "bytes", "1/s", "ratio", "degrees Celsius", "W", "J", "Hz", "dB"};
  const auto page = read_text(VERNIER_SOURCE_DIR "/docs/reference/metrics.md");
  const auto host = built_plugins();
  vernier::MetricInfos all;
  vernier::HostApi::declare(all, vernier::trainer_metrics(), "trainer");
  for_each_plugin([&](const Host::Listed& plugin) {
    Options options(id_of(plugin), {}, "");
    vernier::HostApi::only_describe(options);
    vernier::HostApi::declare(all, host.make(plugin.role, plugin.name, options)->metrics(), id_of(plugin));
  });
  CHECK(all.size() > 50);
  for (const auto& [name, info] : all) {
    CAPTURE(name);
    CHECK(units.contains(info.unit));
    CHECK(info.meaning.size() > 10);
    CHECK_FALSE(info.meaning.ends_with('.'));
    const auto row = metric_row(info, source_of(info));
    CHECK_MESSAGE(page.find('\n' + row) != std::string::npos, "docs/reference/metrics.md lacks this row: " << row);
  }
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line == "<!-- /metrics -->") break;
    const auto name = line.starts_with("| `") ? line.substr(3, line.find('`', 3) - 3) : "";
    const auto source = line.substr(line.rfind("| ", line.size() - 3) + 1);
    const bool is_of_task = source == " task |";  // sdk/data/evaluation_test has these
    const bool is_built = source == " trainer |" || std::ranges::any_of(host.list(), [&](const auto& plugin) {
                            return source.find(' ' + id_of(plugin)) != std::string::npos;
                          });
    if (!name.empty() && !is_of_task && is_built) CHECK_MESSAGE(all.contains(name), name, " is declared by nobody");
  }
}

TEST_CASE("every plugin's source opens with its name, and with its options and their defaults") {
  for_each_plugin([](const Host::Listed& plugin) {
    const auto head = head_of(plugin);
    CHECK_MESSAGE(head.starts_with(" " + plugin.name + ": "), head);
    // A source may say that with an option it has those of another one.
    std::smatch other;
    std::string more;
    if (std::regex_search(head, other, std::regex("options are then those of task/(\\w+)"))) {
      for (const auto& each : built_plugins().list()) {
        if (id_of(each) == "task/" + other[1].str()) more = head_of(each);
      }
    }
    const TemporaryFolder folder;
    for (const auto& option : vernier::describe(subject_of(plugin, folder))) {
      CAPTURE(option.key);
      const std::regex required("\\b" + option.key + "\\b[ \\w,]*required");
      const bool is_required = std::regex_search(head, required) || std::regex_search(more, required);
      const auto fallback = option.fallback_text();
      if (option.is_required || (fallback == "\"\"" && is_required)) {
        CHECK(is_required);
      } else {
        const auto written = default_in(head, option.key), there = more.empty() ? "" : default_in(more, option.key);
        CHECK_MESSAGE((is_same_value(written, fallback) || is_same_value(there, fallback)), written, " is written, ",
                      fallback, " is meant");
      }
    }
  });
}

namespace {

// By name, for all plugins to which they apply, or for those of `only`. may_skip: plugins for which a law may be
// skipped. leave_out: roles.
void check_laws(const std::set<std::string>& names, const std::set<std::string>& may_skip = {},
                const std::set<std::string>& leave_out = {}, const std::set<std::string>& only = {}) {
  const Quiet quiet;
  std::size_t tried = 0;
  for (const auto& law : vernier::laws()) {
    if (names.count(law.name) == 0) continue;
    const std::string name = law.name;
    CAPTURE(name);
    tried += 1;
    for_each_plugin([&](const Host::Listed& plugin) {
      if (!only.empty() && only.count(id_of(plugin)) == 0) return;
      const TemporaryFolder folder;
      const auto subject = subject_of(plugin, folder);
      if (!vernier::applies(law, subject) || leave_out.count(subject.role) == 1) return;
      try {
        law.check(subject);
      } catch (const vernier::LawSkipped& skipped) {
        CHECK_MESSAGE(may_skip.count(subject.id()) == 1, skipped.what());
      } catch (...) {
        FAIL_CHECK(vernier::caught().message);
      }
    });
  }
  CHECK(tried == names.size());
}

}  // namespace

TEST_CASE("every plugin loads, and refuses what is wrong in its table") {
  check_laws({"loads", "documents its options", "refuses unknown keys", "refuses values of another type"});
}

TEST_CASE("with every plugin a run can be repeated, and the thread is left as it was") {
  check_laws({"repeats", "leaves the thread as it was", "leaves the process as it was", "its save() takes no time"});
}

TEST_CASE("with every plugin a run that was stopped and resumed is the run that was not, bit for bit") {
  check_laws({"resumes"}, {"checkpoint/none"});  // it keeps nothing to go on from
}

// Seconds for each plugin: the short form tries those that keep the most.
TEST_CASE("with every plugin a run resumes in micro-batches, with weights of 16 bits, and on two ranks" *
          doctest::test_suite("text")) {
  const char* conditions = "resumes in micro-batches, at O2 and at O3";
  if (is_long()) return check_laws({conditions, "trains on two ranks"}, {"checkpoint/none", "distributed/none"});
  check_laws({conditions}, {}, {}, {"callback/ema", "optimizer/adamw", "scaler/per_layer", "task/gpt"});
  check_laws({"trains on two ranks"}, {}, {}, {"callback/swa", "scaler/statistical"});
}

TEST_CASE("with every plugin a step in which another one throws is undone") {
  check_laws({"undoes a failed step"}, {"checkpoint/none"});
}

TEST_CASE("with every plugin a run in which another one throws ends with its error") {
  check_laws({"bears failures of others"});
}

TEST_CASE("with every plugin all weights are trained, and an evaluation leaves them as they are") {
  check_laws({"trains every weight", "leaves evaluations alone"}, {"scaler/per_layer"});  // it refuses O2
}

TEST_CASE("every plugin keeps the laws of its role") {
  check_laws({"its loader resumes", "its loss is one mean, however a batch is split",
              "its gradients are the plain ones", "its micro-batches cover the batch",
              "its loss is the mean of the whole batch", "changes nothing where the update is skipped",
              "obeys the learning rate's factor", "updates each parameter alone, if it says so",
              "takes the same step at any loss scale", "leaves loss and batch as they are",
              "loses nothing if it is killed while it writes", "reads the snapshot that is asked for", "only looks"},
             {"checkpoint/none", "optimizer/lbfgs"});
}

// A thousand steps take a second each time, with tasks several. A sanitizer's malloc cannot be read.
TEST_CASE("with every plugin that is a callback, monitor, scaler or checkpoint a run does not grow") {
  if (!std::string(VERNIER_SANITIZER).empty()) return;
  check_laws({"does not grow"}, {"callback/early_stopping"},
             {"task", "precision", "optimizer", "accumulation", "distributed"});
}

namespace {

// Epochs of 50 samples: three batches of 16, and one of 2. The scale is too high at first, so steps are skipped.
constexpr const char* crowded = R"(
[run]
steps = 20
validate_every = 5
[task]
use = "mlp"
samples = 50
batch_size = 16
validation = 0
[precision]
use = "fp16"
[scaler]
use = "dynamic"
init_scale = 5e5
growth_interval = 3
[optimizer]
use = "adamw"
[[monitor]]
use = "jsonl"
)";

// Options with which a plugin remembers what it does not with its defaults: each file of the folder, by name.
std::map<std::string, std::string> remembering() {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(VERNIER_SOURCE_DIR "/tests/contract/remembering")) {
    all.emplace(entry.path().stem().string(), read_text(entry.path()));
  }
  REQUIRE(!all.empty());
  return all;
}

}  // namespace

TEST_CASE("with options that make it remember more, a stopped and resumed run is the run that was not") {
  const Quiet quiet;
  for (const auto& each : remembering()) {
    CAPTURE(each.first);
    const auto& options = each.second;
    const bool is_transient = says(options, "transient");  // a fault that does not come again where a step does
    check_going_on(from_toml({crowded, options}), !is_transient);
  }
}

TEST_CASE("a step that fails after it has asked to go back or for other plugins is undone with what it asked") {
  const Quiet quiet;
  const std::string fault = "[[callback]]\nuse = 'inject'\nwhere = 'loss'\nat_batch = 8\n";
  for (const std::string recovery :
       {"non_finite = ['rewind']\nrewind_back = 3\nsnapshot_every = 2\nspike = ['skip']\nwindow = 6\nz_score = 2.0\n",
        "non_finite = ['fallback', 'skip']\nto = {precision = {use = 'bf16'}, scaler = {use = 'none'}}\n",
        "non_finite = ['lower_learning_rate']\nrate_steps = 2\n"}) {
    CAPTURE(recovery);
    const auto config = from_toml({crowded, fault + "[[callback]]\nuse = 'recovery'\n" + recovery});
    const auto whole = train(config);
    const auto reports = [](std::set<std::string> names) {
      return [names](const vernier::Run& run) {
        return std::ranges::any_of(run.notices, [&](const auto& notice) { return names.count(notice.name) != 0; });
      };
    };
    CHECK(train_after_failure(config, vernier::Event::GradientsReady, reports({"recovered"})) == whole);
    // And in the step after it, which begins with going back, or in which the others are at work.
    if (says(recovery, "lower_learning_rate")) continue;
    CHECK(train_after_failure(config, vernier::Event::BatchReady, reports({"rewound", "policy_changed"})) == whole);
  }
}

TEST_CASE("with the same options on two threads, a stopped and resumed run is the run that was not") {
  const Quiet quiet;
  for (const auto& each : remembering()) {
    CAPTURE(each.first);
    const auto& options = each.second;
    // Large enough for two threads to share a sum.
    const auto config = from_toml({crowded, "[task]\ninputs = 64\nhidden = [192]\n", options});
    CHECK(train_in_two_parts(config, 5, 2) == train(config, 2));
  }
  at::set_num_threads(1);
}

TEST_CASE("with every overlay in configs, a stopped and resumed run is the run that was not") {
  const Quiet quiet;
  for_each_overlay([](const fs::path& path) {
    if (path.parent_path().filename() == "checkpoint" && path.stem() == "none") return;
    // fp16 needs the scaler that some overlays replace.
    const bool is_scaler_none = path.parent_path().filename() == "scaler" && path.stem() == "none";
    check_going_on(from_toml({crowded, "[task]\nvalidation = 0.2\n", decided_beforehand(path.stem()),
                              is_scaler_none ? "[precision]\nuse = 'bf16'\n" : "", read_text(path)}));
  });
}

namespace {

using Choices = std::vector<std::pair<std::string, std::string>>;  // name, table

// The overlays of a role in configs; of one that sets another role too only the role's own table.
Choices overlays_of(const std::string& role) {
  Choices overlays;
  for (const auto& entry : fs::directory_iterator(configs / role)) {
    if (!entry.is_regular_file() || !is_built(entry.path())) continue;
    auto text = read_text(entry.path());
    text.erase(0, text.find('[' + role));
    REQUIRE(!text.empty());
    overlays.emplace_back(entry.path().stem().string(), text.substr(0, text.find("\n[", 1)) + '\n');
  }
  std::ranges::sort(overlays);
  return overlays;
}

// Makes the parts of an overlay that are for longer runs happen around the stop.
std::string sooner(const std::string& overlay) {
  if (overlay.starts_with("dynamic") || overlay == "per_layer") {
    return "[scaler]\ngrowth_interval = 3\ninit_scale = 5e5\n";
  }
  return overlay == "schedule" ? "[accumulation]\nfrom = [0, 5]\n" : "";
}

// Large enough for two threads to share a sum. It is stopped in the middle of an epoch.
constexpr const char* wide = R"(
[run]
steps = 8
validate_every = 4
[task]
use = "mlp"
inputs = 64
hidden = [192]
samples = 80
batch_size = 32
)";

// The short form tries every pair of a precision and a scaler with one accumulation and one optimizer, in turn.
void check_every_combination(int threads) {
  const Quiet quiet;
  const auto precisions = overlays_of("precision"), scalers = overlays_of("scaler"),
             accumulations = overlays_of("accumulation"), optimizers = overlays_of("optimizer");
  std::set<std::string> tried;
  std::size_t pair = 0;
  for (const auto& [precision, precision_table] : precisions) {
    for (const auto& [scaler, scaler_table] : scalers) {
      std::size_t turn = pair++ % (accumulations.size() * optimizers.size());
      for (const auto& [accumulation, accumulation_table] : accumulations) {
        for (const auto& [optimizer, optimizer_table] : optimizers) {
          if (!is_long() && turn-- != 0) continue;
          const std::string which = precision + ", " + scaler + ", " + accumulation + ", " + optimizer;
          CAPTURE(which);
          const auto config =
              from_toml({wide, decided_beforehand(precision), precision_table, scaler_table, accumulation_table,
                         optimizer_table, sooner(scaler), sooner(accumulation), "[[monitor]]\nuse = 'jsonl'\n"});
          const auto refused = thrown_by([&] { SmallRun fits(config); });
          if (refused.kind == 2) continue;  // a pair that contradicts itself, as fp16 without a scaler
          REQUIRE(refused == Thrown{});
          const auto whole = train(config, threads);
          CHECK(!whole.losses.empty());
          CHECK(whole.updates > 0);
          CHECK(train_in_two_parts(config, 4, threads) == whole);
          for (const auto& table : {precision_table, scaler_table, accumulation_table, optimizer_table}) {
            tried.insert(table);
          }
        }
      }
    }
  }
  at::set_num_threads(1);
  for (const auto& choices : {precisions, scalers, accumulations, optimizers}) {
    for (const auto& [name, table] : choices) CHECK_MESSAGE(tried.count(table) == 1, name, " goes with nothing");
  }
}

}  // namespace

TEST_CASE("with every precision, scaler, accumulation and optimizer, on one thread, resuming is exact") {
  check_every_combination(1);
}

TEST_CASE("with every precision, scaler, accumulation and optimizer, on two threads, resuming is exact") {
  check_every_combination(2);
}

TEST_CASE("with dropout and micro-batches, a stopped and resumed run is the run that was not" *
          doctest::test_suite("text")) {
  const Quiet quiet;
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "line " + std::to_string(i * i) + '\n';
  const std::string task = "[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
                           "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\ndropout = 0.2\nvalidation = 0.1\n" +
                           "sample_bytes = 20\nbatch_size = 8\n[accumulation]\nuse = 'fixed'\nmicro_batches = 4\n";
  check_going_on(from_toml({crowded, task}));
  check_going_on(from_toml({crowded, task, "[precision]\nlevel = 'O2'\n"}));
}

TEST_CASE("with activations computed again, in every precision, the run has the same bits" *
          doctest::test_suite("text")) {
  const Quiet quiet;
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  const std::string task =
      "[run]\nsteps = 6\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
      "']\nlayers = 3\nheads = 2\nwidth = 32\ncontext = 16\ndropout = 0.2\nvalidation = 0.1\n" +
      "sample_bytes = 0\nbatch_size = 8\n[optimizer]\nuse = 'adamw'\n[[monitor]]\nuse = 'jsonl'\n" +
      "[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n[scaler]\nuse = 'dynamic'\ninit_scale = 1024\n";
  auto precisions = overlays_of("precision");
  precisions.emplace_back("casts kept", "[precision]\nuse = 'bf16'\nweight_casts = 'update'\n");
  precisions.emplace_back("rules",
                          "[precision]\nuse = 'bf16'\nrule = [{match = "
                          "'h.1.*', use = 'fp32'}]\n");
  for (const char* format : {"e2m1", "mxfp8"}) {
    precisions.emplace_back(std::string("stochastic ") + format,
                            "[precision]\nuse = 'format'\noperands = {x = {rounding = 'stochastic'}, g = {rounding = "
                            "'stochastic'}}\nforward = '" +
                                std::string(format) + "'\n");
  }
  std::size_t place = 0;
  for (const auto& [name, precision] : precisions) {
    if (says(precision, "\"adaptive\"")) continue;  // its choice hangs on times
    CAPTURE(name);
    const auto plain = train(from_toml({task, precision}));
    CHECK(plain.updates >= 3);
    std::size_t turn = place++;
    for (const char* how :
         {"recompute = 'full'", "recompute = 'full'\nrecompute_every = 2", "recompute = 'selective'",
          "recompute = 'selective'\nrecompute_every = 2", "recompute = 'full'\nrecompute_budget = '70%'",
          "recompute = 'selective'\nrecompute_budget = '90%'"}) {
      if (!is_long() && turn++ % 3 != 0) continue;  // two ways with each precision
      CAPTURE(how);
      CHECK(train(from_toml({task, precision, "[task]\n" + std::string(how)})) == plain);
    }
  }
}

// Configurations: each base run, and each overlay on a base run, is wired and prepared by the program itself.
namespace {

constexpr const char* is_ready = "ready: nothing was trained or written";

std::string checked(const std::string& arguments, int& status) {
  return output_of("cd '" VERNIER_SOURCE_DIR "' && '" VERNIER_BINARY_DIR "/vernier' check " + arguments, status);
}

void check(const std::string& arguments) {
  int status = 0;
  const auto text = checked(arguments, status);
  CHECK_MESSAGE(status == 0, arguments, ": ", text);
  CHECK(says(text, is_ready));
}

// Overlays that cannot be combined are checked in halves.
void check_overlays(const std::string& base, std::span<const std::string> together) {
  if (together.size() == 1) return check(base + ' ' + together[0]);
  std::string all = base;
  for (const auto& each : together) all += ' ' + each;
  int status = 0;
  if (says(checked(all, status), is_ready) && status == 0) return;
  const auto half = together.size() / 2;
  check_overlays(base, together.first(half));
  check_overlays(base, together.subspan(half));
}

}  // namespace

TEST_CASE("every base run in configs is ready to train") {
  const TemporaryFolder folder;
  write_table(folder);
  for (const auto& entry : fs::directory_iterator(configs)) {
    if (entry.path().extension() != ".toml" || !is_built(entry.path())) continue;
    CHECK(read_text(entry.path()).starts_with("# "));
    std::string sets;
    std::istringstream lines(entry.path().stem() == "images" ? write_images(folder) : "");
    for (std::string line; std::getline(lines, line);) sets += " --set \"task." + line + '"';
    if (!sets.empty()) sets += " --set task.validation_images= --set task.validation_labels=";
    if (entry.path().stem() == "tabular") sets = " --set task.target=y --set task.data=" + (folder / "table.csv");
    if (entry.path().stem() == "clips") {
      int made = 0;
      output_of("python3 '" VERNIER_SOURCE_DIR "/examples/data/clips.py' " + (folder / "clips"), made);
      sets = " --set task.images=" + (folder / "clips/train") +
             " --set task.validation_images=" + (folder / "clips/validation");
    }
    if (entry.path().stem() == "text") sets = " --set run.epochs=9 --set task.data=" + adverts;
    if (entry.path().stem() == "sequence") sets = " --set task.context=8 --set task.data=" + write_series(folder);
    if (entry.path().stem() == "script" || entry.path().stem() == "graph") {
      const auto series = write_series(folder);
      sets = " --set task.model=" + (entry.path().stem() == "graph" ? plane_graph : write_script(folder)) +
             " --set 'task.inputs=[\"" + series + ":a,b\"]' --set task.target=" + series + ":label";
    }
    if (entry.path().stem() == "byte_lm") sets = " --set task.validation_batches=1 --set task.batch_size=4";
    check(entry.path().string() + sets);
  }
}

TEST_CASE("every strategy has an overlay in configs that is ready to train") {
  for_each_plugin([](const Host::Listed& plugin) {
    if (plugin.role == vernier::Task::role) return;  // base runs
    if (plugin.role == "quantizer") {                // a part of recipes, with other names
      const auto is_in = [&](const char* folder) {
        const auto recipes = fs::directory_iterator(configs / folder);
        return std::any_of(begin(recipes), end(recipes),
                           [&](const auto& recipe) { return says(read_text(recipe.path()), '"' + plugin.name + '"'); });
      };
      CHECK((is_in("precision/formats") || is_in("distributed")));
      return;
    }
    const auto overlay = configs / plugin.role / (plugin.name + ".toml");
    REQUIRE(fs::exists(overlay));
    const auto text = read_text(overlay);
    CHECK(text.starts_with("# "));
    CHECK(says(text, "use = \"" + plugin.name + "\""));
  });
  // One process checks an overlay of each role, and of callbacks two, since a process starts slowly.
  std::map<std::string, std::vector<std::string>> overlays;
  for_each_overlay([&](const fs::path& path) {
    overlays[path.parent_path().filename()].push_back(
        path.string() +
        (path.stem() == "thermal_guard" ? " --set callback.thermal_guard.sensor=" + cool() : std::string()));
  });
  std::vector<std::vector<std::string>> processes(overlays["optimizer"].size());
  for (auto& [role, of_role] : overlays) {
    std::ranges::sort(of_role);
    for (std::size_t i = 0; i < of_role.size(); ++i) processes[i % processes.size()].push_back(of_role[i]);
  }
  for (const auto& together : processes) check_overlays((configs / "mlp.toml").string(), together);
}
