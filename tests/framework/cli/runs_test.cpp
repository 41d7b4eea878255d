// `vernier runs` and `report`: what they say of runs that ended, go on, were killed or are damaged.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <regex>

#include "run_folder.h"
#include "thrown.h"

namespace runs_test {

namespace fs = std::filesystem;

namespace {

constexpr const char* small = R"([run]
steps = 12
validate_every = 4
device = "cpu"
threads = 1
name = "small"
output = "runs/small"
[task]
use = "mlp"
samples = 64
[precision]
use = "bf16"
[optimizer]
use = "sgd"
[checkpoint]
use = "none"
[[monitor]]
use = "jsonl"
)";

// A folder with files that a test writes, as a run would leave them.
struct Left : RunFolder {
  Left() : RunFolder("") {}
  void write(const std::string& run, const std::string& history, const std::string& summary = "") const {
    folder.write("runs/" + run + "/config.toml", "[run]\nname = '" + run + "'\nsteps = 9\n[precision]\nuse = 'fp16'\n");
    folder.write("runs/" + run + "/losses.jsonl", history);
    if (!summary.empty()) folder.write("runs/" + run + "/summary.json", summary);
  }
};

std::string lines(int count, const std::string& more = "") {
  std::string text;
  for (int step = 1; step <= count; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(4.0 / step) + more + "}\n";
  }
  return text;
}

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

}  // namespace

TEST_CASE("runs: a run that vernier has trained is listed, drawn and reported") {
  RunFolder place(small);
  REQUIRE(place.train() == 0);
  CHECK(place.call({"runs"}) == 0);
  const auto best = place.summary("runs/small")["validation_loss"]["best"].get<double>();
  char number[32];
  std::snprintf(number, sizeof number, "%.5g", best);
  CHECK(matches(place.out, "small +done +12 of 12 +.* " + std::string(number) + " .*bf16"));
  CHECK(place.call({"report", "runs/small"}) == 0);
  CHECK(place.out == "wrote report.html\n");
  const auto page = read_text(place.at("report.html"));
  CHECK(says(page, "<h1>small</h1>"));
  CHECK_FALSE(says(page, "http"));  // it loads nothing
  CHECK(says(page, place.summary("runs/small")["digest"].get<std::string>()));
  CHECK(says(page, "<th>task.samples</th><td class=number>64</td>"));
}

TEST_CASE("runs: the report has the share of the machine's floor, or says how to measure it") {
  Left place;
  const std::string times = R"("times":{"forward":2.0,"backward":3.0})";
  place.write("near", lines(2), R"({"device":"cpu","this_process":{)" + times + R"(,"metrics":{"sol":0.3125}}})");
  place.write("unknown", lines(2), R"({"device":"cpu","this_process":{)" + times + "}}");
  place.write("gpu", lines(2), R"({"device":"cuda","this_process":{)" + times + "}}");
  for (const std::string run : {"near", "unknown", "gpu"}) {
    REQUIRE(place.call({"report", "runs/" + run, "--output", run + ".html"}) == 0);
    const auto page = read_text(place.at(run + ".html"));
    CHECK(says(page, "allows, as a share (sol)</th><td class=number>0.3125</td>") == (run == "near"));
    CHECK(says(page, "<code>vernier profile --floor</code>") == (run == "unknown"));
  }
}

TEST_CASE("runs: what was killed, goes on, or ended with an error is told apart") {
  Left place;
  place.write("killed", lines(3));
  place.write("half", lines(4) + "{\"step\":5,\"lo");
  place.write("failed", lines(2), R"({"ended_by":"error","error":"no <memory>","steps":3,
    "loss":{"final":0.25,"best":0.125},
    "configuration":{"callback":[{"use":"alarm","above":1.5},{"use":"alarm","above":2.5}]}})");
  place.write("deeper/running", lines(5));
  place.folder.write("runs/deeper/running/.lock", "1 here\n");
  place.folder.write("runs/empty/readme", "no run");
  const int lock = ::open(place.at("runs/deeper/running/.lock").c_str(), O_RDWR);
  REQUIRE(::flock(lock, LOCK_EX) == 0);
  CHECK(place.call({"runs"}) == 0);
  ::close(lock);
  CHECK(matches(place.out, "\nkilled +killed +3 of 9 +1.3333 +1.3333 +fp16"));
  CHECK(matches(place.out, "\nhalf +killed +4 of 9"));
  CHECK(matches(place.out, "\nfailed +error +3 of 9 +0.25 +0.125"));
  CHECK(matches(place.out, "\ndeeper/running +running +5 of 9"));
  CHECK_FALSE(says(place.out, "empty"));
  CHECK(place.call({"report", "runs/failed", "runs/killed", "--output", "two.html"}) == 0);
  const auto page = read_text(place.at("two.html"));
  CHECK(says(page, "no &lt;memory&gt;"));
  CHECK(matches(page, "callback\\.alarm\\.above<.*1\\.5<"));
  CHECK(matches(page, "callback\\.alarm#2\\.above<.*2\\.5<"));
  CHECK(says(page, "<polyline class=c1"));
  place.write("silent", "");
  CHECK(place.call({"report", "runs/silent", "--output", "silent.html"}) == 0);
  CHECK(says(read_text(place.at("silent.html")), "silent: no curve: the run wrote no losses; add [[monitor]]"));
}

TEST_CASE("runs: a metric of layers is drawn as a heat map, and not as a curve for each layer") {
  Left place;
  std::string history;
  for (int step = 1; step <= 240; ++step) {
    history += "{\"step\":" + std::to_string(step) + ",\"loss\":1";
    if (step % 2 == 0) {
      history += ",\"layer_grad_norm/a.<b>\":" + std::to_string(step) +
                 ",\"layer_grad_norm/c\":" + (step == 100 ? "\"inf\"" : "0.5") + ",\"layer_precision/c\":8";
    }
    history += "}\n";
  }
  place.write("layers", history);
  CHECK(place.call({"report", "runs/layers"}) == 0);
  const auto page = read_text(place.at("report.html"));
  CHECK(says(page, "<h2>Layers</h2>"));
  CHECK(says(page, "<figcaption>layer_grad_norm</figcaption>"));
  CHECK(says(page, "<figcaption>layer_precision</figcaption>"));
  CHECK_FALSE(says(page, "<figcaption>layer_grad_norm/"));
  CHECK(says(page, "a.&lt;b&gt;, steps 2 to 4: 4</title>"));  // two measurements share a column: the larger one
  CHECK(matches(page, "class=bad [^>]*><title>c, steps 98 to 100: inf</title>"));
  CHECK(matches(page, "fill-opacity=1.00><title>a.&lt;b&gt;, steps 238 to 240: 240</title>"));
  CHECK(matches(page, "fill-opacity=0.08><title>c, steps 2 to 4: 0.5</title>"));
  CHECK(says(page, "from 0.5 (light) to 240 (dark), logarithmic"));
  CHECK(says(page, ">8 everywhere<"));
  CHECK(says(page, "<tr><th>last measured</th><th>layer_grad_norm</th><th>layer_precision</th></tr>"));
  CHECK(says(page, "<tr><th>a.&lt;b&gt;</th><td class=number>240</td><td class=number></td></tr>"));
  CHECK(says(page, "<tr><th>c</th><td class=number>0.5</td><td class=number>8</td></tr>"));
}

// A browser as the report calls it. Its page is 321 pixels high where `measured`, and its picture a signature and what
// it was called with.
constexpr const char* fake_browser = R"(#!/bin/sh
for argument; do
  case $argument in
    --screenshot=*) picture=${argument#*=} ;;
    --dump-dom) echo '<html lang="en" data-height="321"><body>'; exit ;;
  esac
done
[ -e silent ] && exit
[ -e broken ] && { echo noise >&2; echo 'no display' >&2; exit 7; }
printf '\211PNG\r\n\032\n%s' "$*" >"$picture"
)";

TEST_CASE("runs: the report is drawn as a picture by a browser on PATH, or it is said why not") {
  Left place;
  place.write("one", lines(3));
  const std::vector<std::string> report = {"report", "runs/one", "--png", "one.png", "--force"};
  CHECK(place.call(report, [] { ::setenv("PATH", "nowhere", 1); }) == 2);
  CHECK(says(place.err, "chromium"));
  CHECK(is_one_line(place.err));
  const auto with_browser = [] { ::setenv("PATH", "nowhere:browsers", 1); };
  fs::create_directory(place.at("browsers"));
  place.folder.write("browsers/chromium", "not executable");
  fs::permissions(place.folder.write("browsers/google-chrome", fake_browser), fs::perms::owner_all);
  CHECK(place.call(report, with_browser) == 0);
  CHECK(place.out == "wrote one.png\n");
  const auto picture = read_text(place.at("one.png"));
  CHECK(says(picture, "--headless"));
  CHECK(says(picture, "--window-size=1200,321"));  // the window is as high as the page
  CHECK(says(picture, "--no-sandbox") == (::geteuid() == 0));
  CHECK_FALSE(fs::exists(place.at("report.html")));
  CHECK(std::distance(fs::directory_iterator(place.folder.path()), {}) == 4);  // its own files are gone
  auto with_page = report;
  with_page.insert(with_page.end(), {"--output", "one.html"});
  CHECK(place.call(with_page, with_browser) == 0);
  CHECK(place.out == "wrote one.html\nwrote one.png\n");
  CHECK_FALSE(says(read_text(place.at("one.html")), "<script"));
  fs::create_directory(place.at("a#b ?%41"));
  CHECK(place.call({"report", "runs/one", "--png", "a#b ?%41/one.png"}, with_browser) == 0);
  CHECK(says(read_text(place.at("a#b ?%41/one.png")), "/a%23b%20%3F%2541/one.png-"));
  CHECK(place.call({"report", "runs/one", "--png", "no/one.png"}, with_browser) == 2);
  CHECK(says(place.err, "no/one.png: there is no folder no; make it with `mkdir -p no`"));
  place.folder.write("silent", "");
  CHECK(place.call(report, with_browser) == 2);
  CHECK(says(place.err, "browsers/google-chrome drew no picture: it says nothing"));
  fs::remove(place.at("silent"));
  place.folder.write("broken", "");
  CHECK(place.call(report, with_browser) == 2);
  CHECK(says(place.err, "browsers/google-chrome failed with exit status 7: no display"));
  CHECK(is_one_line(place.err));
}

TEST_CASE("runs: losses that are not finite break a curve, and notices stand below it") {
  Left place;
  place.write("nan", lines(3) +
                         "{\"step\":4,\"loss\":\"nan\",\"notices\":[{\"name\":\"non_finite\",\"step\":4,"
                         "\"what\":\"<loss>\"}]}\n{\"step\":5,\"loss\":1.0}\n{\"step\":6,\"loss\":2.0}\n");
  CHECK(place.call({"report", "runs/nan"}) == 0);
  const auto page = read_text(place.at("report.html"));
  CHECK(std::regex_search(page, std::regex("<polyline[^>]*>\\s*<polyline")));
  CHECK(says(page, "step 4: non_finite what=&lt;loss&gt;</title>"));
}

TEST_CASE("runs: a long history keeps its spike and makes a small page") {
  Left place;
  std::string history;
  for (int step = 1; step <= 20000; ++step) {
    history += "{\"step\":" + std::to_string(step) + ",\"loss\":" + (step == 7777 ? "9.5" : "1.0") + "}\n";
  }
  place.write("long", history);
  CHECK(place.call({"report", "runs/long"}) == 0);
  const auto page = read_text(place.at("report.html"));
  CHECK(page.size() < 60000);
  CHECK(matches(page, "[0-9.]+,10\\.0 "));  // the spike touches the top
}

TEST_CASE("runs: numbers that are close together, or as far apart as they can be, are drawn") {
  const std::string largest = "1.7976931348623157e308";
  const std::vector<std::array<std::string, 4>> cases = {{"1", "0.1", "2", "0.10000000000000002"},
                                                         {"144115188075855872", "0.5", "144115188075855874", "0.25"},
                                                         {"1", largest, "2", "-" + largest},
                                                         {"1", largest, "2", largest},
                                                         {"1", "0", "2", "5e-324"}};
  for (const auto& [step, loss, last_step, last_loss] : cases) {
    CAPTURE(last_loss);
    Left place;
    std::string history;
    for (const auto& [at, value] : {std::pair(step, loss), std::pair(last_step, last_loss)}) {
      history += "{\"step\":" + at + ",\"loss\":" + value + ",\"layer_grad_norm/a\":" + value + "}\n";
    }
    place.write("one", history);
    REQUIRE(place.call({"report", "runs/one"}) == 0);
    const auto page = read_text(place.at("report.html"));
    CHECK(page.size() < 60000);
    CHECK(says(page, "<polyline class=c0"));
    CHECK_FALSE(matches(page, "[=, -](nan|inf)[ ,]"));
  }
}

TEST_CASE("runs: a report replaces the last one, and no other file") {
  Left place;
  place.write("one", lines(2));
  const std::string mine = "<!doctype html>\n<html lang=en>\n<title>mine</title>\n";
  place.folder.write("report.html", mine);
  CHECK(place.call({"report", "runs/one"}) == 2);
  CHECK(says(place.err, "report.html: is there already"));
  CHECK(read_text(place.at("report.html")) == mine);
  fs::remove(place.at("report.html"));
  REQUIRE(place.call({"report", "runs/one"}) == 0);
  place.write("one", lines(3));
  CHECK(place.call({"report", "runs/one"}) == 0);
  CHECK(place.call({"report", "runs/one", "--output", "report.html"}) == 2);
  fs::rename(place.at("report.html"), place.at("kept.html"));
  fs::create_symlink("kept.html", place.at("report.html"));
  const auto kept = read_text(place.at("kept.html"));
  place.write("one", lines(4));
  CHECK(place.call({"report", "runs/one"}) == 2);
  CHECK(says(place.err, "report.html: is a link"));
  CHECK(read_text(place.at("kept.html")) == kept);
}

TEST_CASE("runs: values far beyond all others are cut off and marked, and others are not") {
  Left place;
  const auto page_of = [&](const std::function<double(int)>& loss) {
    std::string history;
    for (int step = 1; step <= 400; ++step) {
      history += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss(step)) +
                 (step % 100 == 0 ? ",\"validation_loss\":1.5" : "") + "}\n";
    }
    place.write("one", history, R"({"this_process": {"times": {"forward": 3.0, "backward": 1.0, "update": 0.0}}})");
    CHECK(place.call({"report", "runs/one", "--force"}) == 0);
    return read_text(place.at("report.html"));
  };
  const auto smooth = [](int step) { return 1 + 1.0 / step; };
  const auto plain = page_of(smooth);
  CHECK_FALSE(says(plain, "cut off"));
  CHECK(says(plain, "<polyline class=\"dashed c0\""));
  CHECK_FALSE(says(plain, "<figcaption>validation_loss"));
  CHECK(says(plain, "forward, 75 %"));
  CHECK(says(plain, "updates, 0 %"));
  const auto cut = page_of([&](int step) { return step == 200 ? 500 : step == 300 ? -500 : smooth(step); });
  CHECK(says(cut, "one, step 200: 500, cut off"));
  CHECK(says(cut, "one, step 300: -500, cut off"));
  CHECK_FALSE(says(page_of([](int step) { return step % 8 == 0 ? 500.0 : 1.0; }), "cut off"));  // not rare
}

TEST_CASE("runs: wrong calls and damaged files end in one line") {
  Left place;
  place.write("damaged", lines(2) + "no json\n" + lines(1));
  place.write("summary", lines(2), "{\"ended_by\":");
  place.write("odd", lines(2), "{\"steps\": \"x\"}");
  struct Refused {
    std::vector<std::string> arguments;
    std::string says;
  };
  const std::vector<Refused> refusals = {{{"runs", "nowhere"}, "nowhere: there is no such folder"},
                                         {{"runs", "runs", "more"}, "more is a second"},
                                         {{"runs", "--jsno"}, "see vernier runs --help"},
                                         {{"report", "runs/odd"}, "summary.json: it is damaged"},
                                         {{"report", "runs/summary"}, "summary.json: it is damaged"},
                                         {{"report", "runs"}, "runs: this is not a folder of a run"},
                                         {{"report"}, "name one run or more"},
                                         {{"report", "runs/damaged"}, "losses.jsonl:3"}};
  for (const auto& refused : refusals) {
    CAPTURE(refused.says);
    CHECK(place.call(refused.arguments) == 2);
    CHECK(is_one_line(place.err));
    CHECK(says(place.err, refused.says));
  }
  fs::remove_all(place.at("runs/summary"));
  fs::remove_all(place.at("runs/odd"));
  place.write("fine", lines(2));
  CHECK(place.call({"report", "runs/fine", "--output", "no/where.html"}) == 2);
  CHECK(is_one_line(place.err));
  CHECK(place.call({"runs"}) == 0);  // a damaged run hides no other
  CHECK(says(place.err, "losses.jsonl:3"));
  CHECK(says(place.out, "fine"));
}

}  // namespace runs_test
