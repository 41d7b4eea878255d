// The comment over `enum Event` and the order in which the trainer emits the events are one.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "toy_run.h"

namespace event_order_test {

using vernier::Event;
using Names = std::vector<std::string>;

namespace {

struct Line {
  std::size_t depth;
  std::string event, remark;
};

// The lines of the comment from "// RunBegin" down to the enum.
std::vector<Line> comment() {
  std::ifstream header(std::string(VERNIER_SOURCE_DIR) + "/sdk/plugin/include/vernier/event.h");
  std::vector<Line> lines;
  for (std::string text; std::getline(header, text) && !text.starts_with("enum class Event");) {
    if (lines.empty() && !text.starts_with("// RunBegin")) continue;
    REQUIRE(text.starts_with("// "));
    const std::size_t indent = text.find_first_not_of(' ', 3) - 3;
    REQUIRE(indent % 2 == 0);
    std::istringstream words(text.substr(3));
    Line line{indent / 2, "", ""};
    words >> line.event >> std::ws;
    std::getline(words, line.remark);
    lines.push_back(line);
  }
  return lines;
}

constexpr std::int64_t epochs = 2, batches = 3, micro_batches = 2, validate_every = 4;

// Reads the comment as a program: what is indented below a line is repeated. Below RunBegin are steps, below StepBegin
// micro-batches.
class Reader {
 public:
  Names run() {
    block(0, lines_.size(), 0);
    return told_;
  }

 private:
  void block(std::size_t begin, std::size_t end, std::size_t depth) {
    for (std::size_t i = begin; i < end;) {
      REQUIRE(lines_[i].depth == depth);
      std::size_t next = i + 1;
      while (next < end && lines_[next].depth > depth) ++next;
      tell(lines_[i].event);
      constexpr std::int64_t times[] = {epochs * batches, micro_batches};
      for (std::int64_t n = 0; n < (next > i + 1 ? times[depth] : 0); ++n) block(i + 1, next, depth + 1);
      i = next;
    }
  }
  void tell(const std::string& event) {
    if (event == "StepEnd") ++step_;
    const bool is_last = step_ == epochs * batches;
    if (event == "Validated" && step_ % validate_every != 0 && !is_last) return;
    if (event == "EpochEnd" && step_ % batches != 0) return;
    told_.push_back(event);
  }

  std::vector<Line> lines_ = comment();
  std::int64_t step_ = 0;
  Names told_;
};

// The events that reach a listener to every event.
Names events_of(toy::Toy& toy) {
  Names told;
  for (int i = 0; i < vernier::event_count; ++i) {
    const auto event = static_cast<Event>(i);
    toy.on(event, [&told, event](vernier::Run&) { told.emplace_back(vernier::name_of(event)); });
  }
  toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{4, 2});
  auto& trainer = toy.prepare(validate_every, epochs);
  try {
    trainer.train(toy.run);
  } catch (const std::exception&) {
    told.emplace_back("thrown");
  }
  return told;
}

}  // namespace

TEST_CASE("event order: the comment over the enum is what the trainer does") {
  toy::Toy toy;
  const Names told = events_of(toy);
  CHECK(told.size() > 40);
  CHECK(told == Reader().run());
}

TEST_CASE("event order: the comment names every event, in the order of the enum") {
  Names named;
  for (const auto& line : comment()) named.push_back(line.event);
  const std::string last = comment().back().remark;
  REQUIRE(last.find("RunFailed instead where an error ends the run") != std::string::npos);
  named.emplace_back("RunFailed");
  Names all;
  for (int i = 0; i < vernier::event_count; ++i) all.emplace_back(vernier::name_of(static_cast<Event>(i)));
  CHECK(named == all);
}

TEST_CASE("event order: an error ends in RunFailed instead of RunEnd") {
  toy::Toy toy;
  toy.on(Event::GradientsReady, [](vernier::Run& run) {
    if (run.step == 1) throw std::runtime_error("boom");
  });
  const Names told = events_of(toy);
  REQUIRE(told.size() > 2);
  CHECK(told[told.size() - 3] == "BackwardDone");
  CHECK(told[told.size() - 2] == "RunFailed");
  CHECK(told.back() == "thrown");
  CHECK(std::count(told.begin(), told.end(), "RunEnd") == 0);
}

}  // namespace event_order_test
