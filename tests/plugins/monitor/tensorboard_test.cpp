// monitor/tensorboard: the bytes of events, and what a run leaves. The bytes are those of TensorBoard's own writer:
// tests/oracles/tensorboard_events.py.
#include <doctest/doctest.h>
#include <vernier/error.h>

#include <cstring>
#include <limits>

#include "../../../plugins/monitor/tensorboard/events.h"
#include "monitored.h"
#include "thrown.h"

namespace tensorboard_test {

namespace tensorboard = vernier::tensorboard;
using tensorboard::Message;

namespace {

std::string event_of(double time, std::int64_t step, void (*add)(Message&)) {
  Message summary;
  add(summary);
  return tensorboard::summary_event(time, step, summary);
}

void add_scalars(Message& summary) {
  tensorboard::add_scalar(summary, "loss", 0.25, "mean of the loss");
  int i = 0;
  for (const double value : {-1e-20, std::numeric_limits<double>::infinity(), 3.14159, 0.0}) {
    tensorboard::add_scalar(summary, "v" + std::to_string(i++), value, "");
  }
}

// The data of the frames of a file, whose lengths and checksums are right.
std::vector<std::string> frames(const std::string& bytes) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    REQUIRE(bytes.size() - at >= 16);
    std::memcpy(&length, bytes.data() + at, sizeof length);
    REQUIRE(bytes.size() - at >= 16 + length);
    all.push_back(bytes.substr(at + 12, length));
    REQUIRE(tensorboard::framed(all.back()) == bytes.substr(at, 16 + length));
    at += 16 + length;
  }
  return all;
}

std::vector<std::string> event_files(const TemporaryFolder& folder) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder.path() / "tensorboard"))
    files.push_back(file.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t count(const std::vector<std::string>& events, const std::string& part) {
  return std::count_if(events.begin(), events.end(), [&](const auto& event) { return says(event, part); });
}

// Step and "session log: start": the mark of a restart, without its time.
std::string restart_mark(std::int64_t step) {
  return frames(tensorboard::restart_event(0, step)).front().substr(9);
}

}  // namespace

TEST_CASE("tensorboard: events have the bytes of TensorBoard's own protocol buffers and writer") {
  std::string ours = tensorboard::version_event(1.5) + tensorboard::restart_event(2.5, 301);
  ours += event_of(3.5, 1, add_scalars);
  ours += event_of(4.5, std::int64_t{1} << 40, [](Message& summary) {
    vernier::Histogram histogram;
    histogram.name = "weights/first";
    histogram.min = -1;
    histogram.max = 1;
    histogram.count = 7;
    histogram.sum = 1.5;
    histogram.sum_of_squares = 3.25;
    histogram.counts = {1, 2, 3, 1};
    tensorboard::add_histogram(summary, histogram);
  });
  ours += event_of(5.5, 5, [](Message& summary) {
    tensorboard::add_text(summary, "notices/rewound", "größer als\n" + std::string(200, 'x'));
  });
  ours += event_of(6.5, 6, [](Message& summary) {
    tensorboard::add_hyper_parameters(
        summary, {{"a.number", 0.005}, {"b.flag", true}, {"c.text", std::string("cosine")}}, "quick", 1000.5);
  });
  ours += event_of(7.5, 7, [](Message& summary) { tensorboard::add_end(summary, false, 2000.25); });
  ours += event_of(8.5, 8, [](Message& summary) { tensorboard::add_end(summary, true, 2000.25); });
  const auto theirs = read_text(VERNIER_SOURCE_DIR "/tests/oracles/tensorboard.tfevents");
  const auto our_events = frames(ours), their_events = frames(theirs);
  REQUIRE(our_events.size() == their_events.size());
  for (std::size_t i = 0; i < our_events.size(); ++i) CHECK_MESSAGE(our_events[i] == their_events[i], "event ", i);
  CHECK(ours == theirs);
}

TEST_CASE("tensorboard: a run leaves scalars with their meaning, notices, configuration and options") {
  const TemporaryFolder folder;
  folder.write("config.toml", "[optimizer]\nuse = \"adamw\"\nlearning_rate = 0.5\n");
  Monitored monitored(folder, "monitor/tensorboard");
  monitored.run.notice("scale_low", {}, "the scale is low");
  monitored.train(3);
  monitored.validate(1.5);
  monitored.end();
  const auto files = event_files(folder);
  REQUIRE(files.size() == 1);
  CHECK(says(files[0], "/events.out.tfevents."));
  const auto events = frames(read_text(files[0]));
  REQUIRE(events.size() == 7);  // version, options, three steps, validation, end
  CHECK(says(events[0], "brain.Event:2"));
  CHECK(says(events[1], "optimizer.learning_rate"));
  CHECK(says(events[1], "configuration/text_summary"));
  CHECK(count(events, "mean of the training loss") == 1);
  CHECK(count(events, "samples_per_second") == 2);
  CHECK(says(events[2], "the scale is low"));
  CHECK(says(events[5], "validation_loss"));
  CHECK(says(events[6], "session_end_info"));
}

TEST_CASE("tensorboard: histograms of weights and gradients, at their steps alone") {
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/tensorboard", {{"histograms", toml_number(2)}});
  const auto weight = torch::linspace(-1, 1, 100), grad = torch::full({100}, 3.0);
  grad[0] = std::numeric_limits<double>::quiet_NaN();
  weight.mutable_grad() = grad;
  monitored.run.parameters = {{"layer.weight", weight, weight}, {"frozen", torch::ones({2}), torch::ones({2})}};
  monitored.train(3);
  monitored.end();
  const auto events = frames(read_text(event_files(folder).at(0)));
  for (const char* tag : {"weights/layer.weight", "gradients/layer.weight", "weights/frozen"})
    CHECK(count(events, tag) == 1);
  CHECK(count(events, "gradients/frozen") == 0);
  CHECK(says(events[3], "weights/layer.weight"));
}

TEST_CASE("tensorboard: a histogram counts more values than float32 has whole numbers") {
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/tensorboard", {{"histograms", toml_number(1)}});
  const double zeros = (1 << 24) + 15;
  auto weight = torch::zeros({(1 << 24) + 16});
  weight[0] = 1;
  monitored.run.parameters = {{"table", weight, weight}};
  monitored.step();
  monitored.end();
  const std::string bytes(reinterpret_cast<const char*>(&zeros), sizeof zeros);
  CHECK(count(frames(read_text(event_files(folder).at(0))), bytes) == 1);
}

TEST_CASE("tensorboard: a resumed run has a file of its own that drops later steps, and so does a rewind") {
  const TemporaryFolder folder;
  vernier::State saved;
  {
    Monitored killed(folder, "monitor/tensorboard");
    killed.train(10);
    saved = killed.plugin->save();
    killed.train(12);
  }
  const auto first = frames(read_text(event_files(folder).at(0)));
  CHECK(count(first, restart_mark(11)) == 0);
  Monitored resumed(folder, "monitor/tensorboard", {}, 10, &saved);
  resumed.train(14);
  resumed.run.step = resumed.run.updates = 11;  // a rewind in memory
  resumed.train(13);
  resumed.end();
  const auto files = event_files(folder);
  REQUIRE(files.size() == 2);
  const auto second = frames(read_text(files[1]));
  CHECK(says(second[1], restart_mark(11)));
  CHECK(count(second, restart_mark(12)) == 1);
}

TEST_CASE("tensorboard: where the folder is a file, the monitor is detached and the run goes on") {
  static std::vector<std::string> warnings;
  warnings.clear();
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  const TemporaryFolder folder;
  folder.write("tensorboard", "a file");
  Monitored monitored(folder, "monitor/tensorboard");
  monitored.train(2);
  monitored.end();
  vernier::set_log_sink(nullptr);
  REQUIRE(warnings.size() == 1);
  CHECK(says(warnings[0], "(the monitor is detached, the run goes on)"));
}

}  // namespace tensorboard_test
