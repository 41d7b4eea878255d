// `vernier compare`: which candidates it trains, what it says of their runs, and that it claims no more than they show.
#include <doctest/doctest.h>
#include <signal.h>
#include <vernier/compare.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "common/statistics.h"
#include "common/toml_text.h"
#include "common/trials.h"
#include "run_folder.h"
#include "thrown.h"

namespace compare_test {

namespace fs = std::filesystem;
using vernier::Verdict;
using Words = std::vector<std::string>;

namespace {

constexpr const char* small = R"([run]
steps = 12
device = "cpu"
threads = 1
[task]
use = "mlp"
samples = 64
[optimizer]
use = "sgd"
[checkpoint]
use = "none"
[[monitor]]
use = "jsonl"
)";

// run.toml and other.toml, with the comparison in the folder "c". A test may leave runs there as if they were trained,
// and the configurations of the candidates, by which compare knows the runs for its own.
struct Compared : RunFolder {
  Compared() : RunFolder(small) { folder.write("other.toml", small); }
  int compare(const Words& more) {
    Words all = {"compare", "run.toml", "--output", "c"};
    all.insert(all.end(), more.begin(), more.end());
    return call(all);
  }
  void leave(const std::string& candidate, int seed, double speed, double memory, double loss,
             const std::string& end = "done") const {
    nlohmann::json summary = {{"ended_by", end},
                              {"seed", seed},
                              {"updates_skipped", seed - 1},
                              {"amp", {{"overflow_count", 2}}},
                              {"loss", {{"final", loss}}},
                              {"validation_loss", {{"final", loss + 1}}},
                              {"this_process", {{"samples_per_second", speed}, {"peak_memory_bytes", memory}}},
                              {"configuration", {{"task", {{"use", "mlp"}}}}}};
    if (end == "diverged") summary["error"] = "the last loss is nan";
    folder.write("c/" + candidate + "/seed-" + std::to_string(seed) + "/summary.json", summary.dump());
  }
  void leave_configurations(const vernier::Wanted& wanted = {.files = {"run.toml", "other.toml"}}) {
    for (const auto& candidate : vernier::candidates_of(wanted)) {
      REQUIRE(call(vernier::command_of("config", {}, candidate)) == 0);
      folder.write("c/" + candidate.name + "/candidate.toml", vernier::toml_text(toml::parse(out)));
    }
  }
  // Adds metrics of the validations to a summary that is there.
  void measure(const std::string& candidate, int seed, double accuracy, double own) const {
    const auto path = "c/" + candidate + "/seed-" + std::to_string(seed) + "/summary.json";
    auto summary = nlohmann::json::parse(read_text(at(path)));
    summary["validation"] = {{"accuracy", {{"final", accuracy}, {"best", accuracy}, {"better", "higher"}}},
                             {"own", {{"final", own}, {"best", nullptr}}}};
    folder.write(path, summary.dump());
  }
  nlohmann::json json() const { return nlohmann::json::parse(read_text(at("c/compare.json"))); }
  nlohmann::json verdict(int candidate, const std::string& measure) const {
    return json()["candidates"][candidate]["against_baseline"][measure]["verdict"];
  }
};

bool matches(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0, columns = 0;
  for (const char c : text) {
    columns = c == '\n' ? 0 : columns + ((c & 0xC0) != 0x80 ? 1 : 0);
    longest = std::max(longest, columns);
  }
  return longest;
}

// The logarithms of speeds of `seeds` runs, where the second configuration is faster by a factor.
std::pair<std::vector<double>, std::vector<double>> speeds(int seeds, double noise, double factor,
                                                           std::mt19937_64& random) {
  std::normal_distribution<double> one(0, noise);
  std::pair<std::vector<double>, std::vector<double>> both;
  for (int seed = 0; seed < seeds; ++seed) {
    both.first.push_back(one(random));
    both.second.push_back(one(random) + std::log(factor));
  }
  return both;
}

int claims_in(int tries, int seeds, double noise, double factor) {
  std::mt19937_64 random(1);
  int claims = 0;
  for (int i = 0; i < tries; ++i) {
    const auto [baseline, candidate] = speeds(seeds, noise, factor, random);
    const auto verdict = vernier::judge(baseline, candidate, {.is_timed = true, .least = std::log(1.03)}).verdict;
    if (factor > 1) CHECK(verdict != Verdict::lower);
    claims += verdict == Verdict::higher || verdict == Verdict::lower ? 1 : 0;
  }
  return claims;
}

}  // namespace

TEST_CASE("compare: equal configurations differ in none of the tries, and what differs is seen") {
  struct Case {
    int tries, seeds;
    double noise, factor;
    int least, most;  // claims
  };
  const Case cases[] = {{20, 3, 0.01, 1.0, 0, 0},    {20, 5, 0.01, 1.0, 0, 0},    {20, 5, 0.10, 1.0, 0, 0},
                        {20, 5, 0.01, 1.1, 20, 20},  {20, 5, 0.01, 1.01, 0, 0},   {20, 3, 0.01, 1.5, 19, 20},
                        {5000, 3, 0.1, 1.0, 0, 10},  {5000, 10, 0.3, 1.0, 0, 15}, {5000, 3, 0.01, 1.0, 0, 0},
                        {5000, 10, 0.1, 1.0, 0, 15}, {20, 2, 0.0001, 1.5, 0, 0}};
  for (const auto& each : cases) {
    CAPTURE(each.seeds);
    CAPTURE(each.noise);
    CAPTURE(each.factor);
    const int claims = claims_in(each.tries, each.seeds, each.noise, each.factor);
    CHECK(claims >= each.least);
    CHECK(claims <= each.most);
  }
}

TEST_CASE("compare: a verdict follows from the values of the seeds") {
  const vernier::Rule timed = {true, 0.03}, loss = {false, 0.001};
  struct Case {
    std::vector<double> baseline, candidate;
    vernier::Rule rule;
    Verdict verdict;
  };
  const Case cases[] = {
      {{1, 2, 3}, {1, 2, 3}, loss, Verdict::equal},
      {{1}, {1}, loss, Verdict::equal},
      {{1, 2}, {2, 3.1}, loss, Verdict::too_few_seeds},
      {{1, 2, 3}, {1.1, 2.101, 3.102}, loss, Verdict::higher},      // pairs agree, however far the seeds are apart
      {{1, 2, 3}, {1.1, 2.101, 3.102}, timed, Verdict::not_shown},  // the agreement of pairs does not count for times
      {{1, 1.01, 0.99}, {0.5, 0.51, 0.5}, timed, Verdict::lower},
      {{1, 1, 1}, {1.0001, 1.0002, 1.0001}, loss, Verdict::not_shown},  // below `least`
      {{1, 1, 1}, {1.5, 1.5, 0.5}, loss, Verdict::not_shown}};
  for (const auto& each : cases) {
    CAPTURE(&each - cases);
    CHECK(vernier::judge(each.baseline, each.candidate, each.rule).verdict == each.verdict);
  }
  // Student's t for 99.5 % and 2 degrees of freedom is 14.0890.
  const auto interval = vernier::judge({0, 0, 0}, {1, 2, 3}, loss).interval;
  REQUIRE(interval);
  CHECK(interval->first == doctest::Approx(2 - 14.0890 / std::sqrt(3)).epsilon(1e-5));
  CHECK(interval->second == doctest::Approx(2 + 14.0890 / std::sqrt(3)).epsilon(1e-5));
}

TEST_CASE("compare: the candidates are the product of files, precisions and sweeps") {
  struct Case {
    vernier::Wanted wanted;
    Words names;
    Words sets;  // the last candidate's settings
  };
  const std::vector<Case> cases = {
      {{.files = {"a/x.toml", "b/x.toml", "y.v2.toml"}}, {"x", "x-2", "y.v2"}, {}},
      {{.files = {"x.toml"}, .sweeps = {"precision=fp32,bf16"}}, {"fp32", "bf16"}, {"precision.use=bf16"}},
      {{.files = {"x.toml"}, .sweeps = {"precision=fp32,bf16", "optimizer.learning_rate=1e-3,3e-3"}},
       {"fp32,learning_rate=1e-3", "fp32,learning_rate=3e-3", "bf16,learning_rate=1e-3", "bf16,learning_rate=3e-3"},
       {"precision.use=bf16", "optimizer.learning_rate=3e-3"}},
      {{.files = {"x.toml", "y.toml"}, .sweeps = {"task.hidden=[1, 2],[3]"}},
       {"x,hidden=1,2", "x,hidden=3", "y,hidden=1,2", "y,hidden=3"},
       {"task.hidden=[3]"}},
      {{.files = {"x.toml"}, .sweeps = {"task.data=\"a,b\",'c'"}}, {"data=a,b", "data=c"}, {"task.data='c'"}},
      {{.files = {"x.toml"}, .precisions = true},
       {"fp32", "fp16-unscaled", "fp16-mixed", "bf16", "fp16-accumulated", "fp8"},
       {"precision.use=fp8", "scaler.use=none"}}};
  for (const auto& each : cases) {
    const auto found = vernier::candidates_of(each.wanted);
    Words names;
    for (const auto& candidate : found) names.push_back(candidate.name);
    CHECK(names == each.names);
    CHECK(found.back().sets == each.sets);
  }
  CHECK(vernier::candidates_of({.files = {"x.toml"}, .bases = {"b.toml"}})[0].files == Words{"b.toml", "x.toml"});
}

TEST_CASE("compare: of runs that are there it says what they show") {
  Compared place;
  for (int seed = 1; seed <= 3; ++seed) {
    const double wobble = 1 + 0.002 * seed;
    place.leave("run", seed, 100 * wobble, 2e8, 2.0 + seed);
    place.leave("other", seed, 150 / wobble, 1e8 * wobble, 2.0 + seed + 0.01 * wobble);
  }
  place.leave_configurations();
  REQUIRE(place.compare({"other.toml", "--quiet"}) == 0);
  CHECK(place.err.empty());
  CHECK(matches(place.out, "\nother +149.4 ±0.2% +1.49x ±0.01 +100.4 MB ±0.2% +49.8% ±0.1 +2 +1 ±1\n"));
  CHECK(matches(place.out, "\nother +4.01 ±1 +\\+0.01 ±2e-05 +5.01 ±1 +\\+0.01"));
  CHECK(says(place.out, "faster, 1.4"));
  CHECK(says(place.out, "less memory, 0.4"));
  CHECK(says(place.out, "higher loss, by 0.0"));
  for (const auto& [measure, verdict] :
       {std::pair("samples_per_second", "higher"), std::pair("peak_memory_bytes", "lower"), std::pair("loss", "higher"),
        std::pair("validation_loss", "higher")}) {
    CHECK(place.verdict(1, measure) == verdict);
  }
  const auto table = read_text(place.at("c/compare.csv"));
  CHECK(matches(table, "^candidate,state,seeds,samples_per_second,samples_per_second_low"));
  CHECK(matches(table, "\n\"other\",\"done\",3,149.4"));
  CHECK(says(read_text(place.at("c/compare.html")), "<h2>Verdicts</h2>"));
  const auto printed = place.out.substr(0, place.out.find("\nwrote"));
  CHECK(place.call({"compare", "c"}) == 0);
  CHECK(place.out == printed);
  CHECK(place.call({"report", "c", "--output", "again.html"}) == 0);
  CHECK(read_text(place.at("again.html")) == read_text(place.at("c/compare.html")));
  CHECK(place.call({"compare", "c/run/seed-1", "c/other/seed-1"}) == 0);
  CHECK(says(place.out, "c/other/seed-1: not enough seeds for a verdict, which needs 3"));
  for (const auto& [tolerance, verdict] : {std::pair("0.001", "higher"), std::pair("0.02", "no difference shown")}) {
    REQUIRE(place.compare({"other.toml", "--quiet", "--tolerance", tolerance}) == 0);
    CHECK(place.verdict(1, "loss") == verdict);
    CHECK(place.verdict(1, "peak_memory_bytes") == "lower");
  }
}

TEST_CASE("compare: metrics of the validations are shown and judged, and one of them says which is best") {
  Compared place;
  for (int seed = 1; seed <= 3; ++seed) {
    const double wobble = 0.0002 * seed;
    place.leave("run", seed, 100, 2e8, 2.0);
    place.measure("run", seed, 0.90 + wobble, 3);
    place.leave("other", seed, 100, 2e8, 2.0);
    place.measure("other", seed, 0.95 - wobble, 4 + wobble);
  }
  place.leave_configurations();
  REQUIRE(place.compare({"other.toml", "--quiet", "--metric", "accuracy"}) == 0);
  CHECK(matches(place.out, "\ncandidate +accuracy +gap +own +gap\nrun +0.9004 "));
  CHECK(says(place.out, "\nby accuracy, where higher is better: other 0.9496, run 0.9004\n"));
  CHECK(says(place.out, "better (higher) accuracy, by 0.04"));
  CHECK(says(place.out, "higher own, by 0.999"));
  CHECK(place.verdict(1, "accuracy") == "higher");
  CHECK(place.json()["judged_by"]["order"] == nlohmann::json{"other", "run"});
  CHECK(says(read_text(place.at("c/compare.csv")), ",accuracy_difference_verdict,own,"));
  CHECK(says(read_text(place.at("c/compare.html")), "by accuracy, where higher is better"));
  CHECK(place.call({"compare", "c", "--metric", "validation_loss"}) == 0);
  CHECK(says(place.out, "by validation_loss, where lower is better: run 3, other 3"));
  CHECK(place.call({"compare", "c", "--metric", "acc"}) == 2);
  CHECK(says(place.err, "--metric acc: these runs measure loss, validation_loss, accuracy, own"));
  CHECK(place.call({"compare", "c", "--metric", "own"}) == 2);
  CHECK(says(place.err, "--metric own: nothing says which of its values are better"));
  CHECK(place.call({"runs", "c"}) == 0);
  CHECK(matches(place.out, "validation +accuracy +own +precision +time\n"));
  CHECK(matches(place.out, " 0.9002 +3 "));
  CHECK(place.call({"report", "c/run/seed-1", "--output", "one.html"}) == 0);
  const auto page = read_text(place.at("one.html"));
  CHECK(says(page, "<th>accuracy, best</th><td class=number>0.9002</td>"));
  CHECK(says(page, "<th>own, last</th><td class=number>3</td>"));
  CHECK_FALSE(says(page, "own, best"));
  CHECK_FALSE(says(page, "tokens per second"));
}

TEST_CASE("compare: a metric of a stranger's plugin has the unit and direction that it declares") {
  Compared place;
  place.folder.write("own.toml", "[run]\noutput = 'own'\n[[callback]]\nuse = 'strangers_metric'\nlatency = 4.5\n");
  REQUIRE(place.train({"own.toml", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"}) == 0);
  const auto summary = place.summary("own");
  const nlohmann::json declared = {{"unit", "ms"},
                                   {"meaning", "time of a request to the model"},
                                   {"source", "callback/strangers_metric"},
                                   {"better", "lower"},
                                   {"least", 0}};
  CHECK(summary["metrics"]["latency"] == declared);
  CHECK_FALSE(summary["metrics"].contains("validation_loss"));  // the trainer's own
  CHECK(summary["validation"]["latency"] == nlohmann::json{{"final", 4.5}, {"best", 4.5}, {"better", "lower"}});
  REQUIRE(place.call({"report", "own"}) == 0);
  const auto page = read_text(place.at("report.html"));
  CHECK(says(page, "<th>latency (ms), best</th><td class=number>4.5</td>"));
  CHECK(says(page, "<figcaption>latency (ms)</figcaption>"));
  for (int seed = 1; seed <= 3; ++seed) {
    for (const std::string candidate : {"run", "other"}) {
      place.leave(candidate, seed, 1000, 1e8, 2);
      const auto path = "c/" + candidate + "/seed-" + std::to_string(seed) + "/summary.json";
      auto left = nlohmann::json::parse(read_text(place.at(path)));
      left["metrics"] = summary["metrics"];
      left["validation"] = summary["validation"];
      left["validation"]["latency"]["final"] = (candidate == "run" ? 5 : 4) + 0.001 * seed;
      place.folder.write(path, left.dump());
    }
  }
  place.leave_configurations();
  REQUIRE(place.compare({"other.toml", "--quiet"}) == 0);
  CHECK(matches(place.out, "better \\(lower\\) latency, by [0-9.]+ to [0-9.]+ ms"));
  CHECK(place.json()["units"] == nlohmann::json{{"latency", "ms"}});
}

TEST_CASE("compare: one seed that diverged is reported, and the others are compared") {
  Compared place;
  for (int seed = 1; seed <= 3; ++seed) {
    place.leave("run", seed, 100, 2e8, 2.0);
    place.leave("other", seed, 100 + seed, 2e8, seed == 2 ? NAN : 2.0, seed == 2 ? "diverged" : "done");
  }
  place.leave_configurations();
  REQUIRE(place.compare({"other.toml", "--json"}) == 0);
  CHECK(nlohmann::json::parse(place.out) == place.json());
  const auto other = place.json()["candidates"][1];
  CHECK(other["state"] == "2 of 3 done");
  CHECK(other["against_baseline"]["loss"]["seeds"] == 2);
  CHECK(other["against_baseline"]["loss"]["verdict"] == "equal");
  CHECK(place.verdict(1, "samples_per_second") == "not enough seeds");
  CHECK(place.call({"compare", "c"}) == 0);
  CHECK(says(place.out, "other: seed 2 diverged: the last loss is nan"));
}

TEST_CASE("compare: the table fits into 100 columns, whatever its names and numbers") {
  Compared place;
  const std::string name = "learning_rate=1.23456789e-100";
  for (int seed = 1; seed <= 3; ++seed) {
    place.leave("learning_rate=1e-3", seed, 1234567.0 + seed, 8e10, 1.23456e-7 * seed);
    place.leave(name, seed, 12345678.0 * seed, 7.5e10 / seed, -123.456 * seed);
  }
  const std::string sweep = "optimizer.learning_rate=1e-3,1.23456789e-100";
  place.leave_configurations({.files = {"run.toml"}, .sweeps = {sweep}});
  REQUIRE(place.compare({"--sweep", sweep}) == 0);
  CHECK(says(place.out, "\nlearning_ra…56789e-100  "));
  CHECK(longest_line(place.out) <= 100);
}

TEST_CASE("compare: what it did not write stays, and is refused") {
  Compared place;
  const auto stays = [&](const Words& more, const std::string& file, const std::string& reason) {
    const auto before = read_text(place.at(file));
    CHECK(place.compare(more) == 2);
    CHECK_MESSAGE(says(place.err, reason), place.err);
    CHECK(read_text(place.at(file)) == before);
  };
  const std::string reason = ": is there already, and no comparison wrote it; name another folder with --output";
  const std::string of_run = "c/run/seed-1/summary.json", of_other = "c/other/seed-1/summary.json";
  place.leave("run", 1, 100, 2e8, 2);
  stays({"--seeds", "1"}, of_run, "c/run" + reason);  // a run of another configuration would be taken for its own
  place.leave_configurations({.files = {"run.toml"}});
  REQUIRE(place.compare({"--seeds", "1"}) == 0);
  place.leave("other", 1, 100, 2e8, 2, "signal 2");
  stays({"other.toml", "--seeds", "1"}, of_other, "c/other" + reason);  // among the folders of its own
  for (const char* text : {"{}", R"({"name": "x"})", R"({"candidates": []})", R"({"candidates": [{"name": "run"}]})",
                           R"({"baseline": "run", "candidates": [{"state": "done", "runs": []}]})"}) {
    place.folder.write("c/compare.json", text);
    stays({"--seeds", "1"}, "c/compare.json", "c/compare.json: is of no comparison, or damaged");
  }
  const auto comparison = [&](const std::string& runs) {
    place.folder.write("d/compare.json",
                       R"({"baseline": "a", "candidates": [{"name": "a", "state": "done", "runs": [)" + runs +
                           R"(], "measures": {"loss": {"low": 1}}}]})");
  };
  comparison(R"({"state": "done"})");
  CHECK(place.call({"report", "d"}) == 2);
  CHECK_MESSAGE(says(place.err, "d/compare.json: it is damaged"), place.err);
  comparison("");
  CHECK(place.call({"compare", "d", "--metric", "loss"}) == 2);
  CHECK_MESSAGE(says(place.err, "compare.json is damaged"), place.err);
}

TEST_CASE("compare: a run that was killed has no result beside others") {
  Compared place;
  place.folder.write("killed/losses.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  place.leave("run", 1, 100, 2e8, 2);
  CHECK_MESSAGE(place.call({"compare", "c/run/seed-1", "killed"}) == 0, place.err);
  CHECK(matches(place.out, "\nkilled +killed\n"));
}

TEST_CASE("compare: equal configurations train to the same bits, and a later call trains only what is missing") {
  Compared place;
  REQUIRE(place.compare({"other.toml", "--seeds", "2"}) == 0);
  CHECK(says(place.out, "equal to the last bit: loss, validation loss"));
  CHECK(place.verdict(1, "samples_per_second") == "not enough seeds");
  std::istringstream lines(place.err);
  Words order;
  for (std::string line; std::getline(lines, line);) order.push_back(line.substr(0, line.find(" of")));
  CHECK(order == Words{"run, seed 1", "other, seed 1", "other, seed 2", "run, seed 2"});
  const auto history = place.at("c/run/seed-1/losses.jsonl");
  CHECK(place.summary("c/run/seed-1")["digest"] == place.summary("c/other/seed-1")["digest"]);
  CHECK(place.summary("c/run/seed-1")["digest"] != place.summary("c/run/seed-2")["digest"]);
  const auto before = fs::last_write_time(history);
  fs::remove(place.at("c/other/seed-2/summary.json"));  // a killed run has none
  CHECK(place.compare({"other.toml", "--seeds", "3"}) == 0);
  CHECK(fs::last_write_time(history) == before);
  CHECK(says(place.err, "run, seed 1 of 3: is there (it has no checkpoint, so its data cannot be compared), done"));
  CHECK(says(place.err, "other, seed 2 of 3: done"));
  for (const char* measure : {"samples_per_second", "loss"}) CHECK(place.verdict(1, measure) != "not enough seeds");
  CHECK(place.verdict(1, "loss") == "equal");
  const auto results = read_text(place.at("c/compare.json"));
  CHECK(place.compare({"--seeds", "1"}) == 2);  // without other.toml
  CHECK(says(place.err, "c: another comparison is there, with the candidate other; name another folder"));
  CHECK(read_text(place.at("c/compare.json")) == results);
}

TEST_CASE("compare: what is refused, fails or diverges has its row, and the others go on") {
  Compared place;
  place.folder.write("refused.toml", "[precision]\nuse = 'fp16'\n");
  place.folder.write("diverged.toml", "[optimizer]\nlearning_rate = 1e30\n");
  place.folder.write("fine.toml", "[optimizer]\nlearning_rate = 0.02\n");
  REQUIRE(place.call({"compare", "--base", "run.toml", "refused.toml", "diverged.toml", "fine.toml", "--seeds", "1",
                      "--output", "c"}) == 0);
  CHECK(matches(place.out, "\nrefused +refused\ndiverged +diverged\nfine +[0-9]"));
  CHECK(says(place.out, "refused: refused: refused.toml:1"));
  CHECK(says(place.out, "diverged: diverged: "));
  CHECK(says(place.out, "refused: it has no result, so nothing can be compared with it"));
  CHECK(place.call({"compare", "refused.toml", "--base", "run.toml", "--output", "d"}) == 4);
  CHECK(place.err.find("seed 2") == std::string::npos);  // a refusal for one seed holds for every seed
}

TEST_CASE("compare: Ctrl-C ends the run in work, prints what is done, and the same command goes on") {
  Compared place;
  const Words command = {"compare", "run.toml", "other.toml", "--seeds", "1", "--steps", "6000", "--output", "c"};
  Program program(command, place.folder.path());
  REQUIRE(program.wait_for(place.at("c/run/seed-1/summary.json")));
  REQUIRE(program.wait_for(place.at("c/other/seed-1/losses.jsonl")));
  program.send(SIGINT);
  CHECK(program.wait() == 128 + SIGINT);
  CHECK(matches(program.out(), "\nrun +[0-9]"));
  CHECK(matches(program.out(), "\nother +signal 2"));
  CHECK(says(program.err(), "the same command goes on"));
  const auto before = fs::last_write_time(place.at("c/run/seed-1/summary.json"));
  CHECK(place.call(command) == 0);
  CHECK(fs::last_write_time(place.at("c/run/seed-1/summary.json")) == before);
  CHECK(place.json()["candidates"][1]["state"] == "done");
}

TEST_CASE("compare: wrong calls end in one line, and before anything is trained" * doctest::test_suite("text")) {
  Compared place;
  place.folder.write("gpt.toml", "[run]\nsteps = 1\n[task]\nuse = 'gpt'\n");
  place.folder.write("folder/readme", "no run");
  place.folder.write("bad/compare.json", "{\"candidates\": [1]}");
  REQUIRE(place.compare({"--seeds", "1"}) == 0);
  struct Refused {
    Words arguments;
    std::string says;
  };
  const std::vector<Refused> refusals = {
      {{}, "name TOML files"},
      {{"nosuch.toml"}, "nosuch.toml: there is no such file"},
      {{"folder"}, "folder: this is not a folder of a run"},
      {{"bad"}, "compare.json is damaged"},
      {{"folder", "run.toml"}, "folder is a folder, and others are files"},
      {{"c/run/seed-1", "--seeds", "2"}, "--seeds is for TOML files"},
      {{"run.toml", "gpt.toml"}, "gpt trains task/gpt, and run task/mlp"},
      {{"run.toml", "--sweep", "precision"}, "--sweep precision: write KEY=VALUE,VALUE"},
      {{"run.toml", "--sweep", "precision=fp32,"}, "a value is empty"},
      {{"run.toml", "--sweep", "run.seed=1,2"}, "run.seed is set by compare itself"},
      {{"run.toml", "--set", "run.output=x"}, "run.output is set by compare itself"},
      {{"run.toml", "--set", "precision={use = 'bf16'}", "--sweep", "precision=fp32,bf16"},
       "--set precision holds for every candidate"},
      {{"run.toml", "--sweep", "a.b=1,2,3,4,5,6", "--sweep", "a.c=1,2,3,4,5,6"}, "more than 32 candidates"},
      {{"run.toml", "--seeds", "0"}, "--seeds is 0, and must be from 1 to 100"},
      {{"run.toml", "--seeds", "x"}, "see vernier compare --help"},
      {{"run.toml", "--tolerance", "-1"}, "--tolerance -1"},
      {{"run.toml", "--tolerance", "small"}, "--tolerance small"},
      {{"c", "--tolerance", "0.1"}, "--tolerance: c has its verdicts"},
      {{"run.toml", "--stes", "x"}, "see vernier compare --help"},
      {{"run.toml", "--steps", "5", "--output", "c"}, "c/run/candidate.toml: the folder has runs of another"},
      {{"run.toml", "--output", "run.toml"}, "choose another --output"}};
  for (const auto& refused : refusals) {
    CAPTURE(refused.says);
    Words words = {"compare"};
    words.insert(words.end(), refused.arguments.begin(), refused.arguments.end());
    CHECK(place.call(words) == 2);
    CHECK(is_one_line(place.err));
    CHECK_MESSAGE(says(place.err, refused.says), place.err);
  }
}

TEST_CASE("compare: a program gets what the verb prints") {
  Compared it;
  REQUIRE(it.compare({"--sweep", "optimizer.learning_rate=0.01,0.1", "--seeds", "3", "--quiet"}) == 0);
  const auto verb = it.json();
  const auto options = [&](const char* rate) {
    return vernier::TrainerOptions{.files = {it.at("run.toml").string()},
                                   .sets = {std::string("optimizer.learning_rate=") + rate}};
  };
  int prepared = 0;
  const auto ours = vernier::compare(
      {.candidates = {{"slow", options("0.01")},
                      {"wide", {.files = {it.at("run.toml").string()}, .sets = {"task.hidden=[512,512]"}}},
                      {"fast", options("0.1")},
                      {"refused", options("\"none\"")}},
       .output = it.at("ours").string(),
       .prepare = [&](vernier::Trainer&) { prepared += 1; }});
  CHECK(prepared == 10);
  REQUIRE(ours.candidates.size() == 4);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& theirs = verb["candidates"][i];
    const auto& candidate = ours.of(i == 0 ? "slow" : "fast");
    CHECK(candidate.state == "done");
    for (const char* measure : {"loss", "overflows", "updates_skipped"}) {
      const auto& range = candidate.measures.at(measure);
      CHECK(range.median == theirs["measures"][measure]["median"]);
      CHECK(range.low == theirs["measures"][measure]["low"]);
      CHECK(range.high == theirs["measures"][measure]["high"]);
    }
    CHECK(candidate.measures.at("samples_per_second").median > 0);
  }
  // The memory is that of the run alone: a larger run before it leaves no trace.
  const auto memory_of = [&](const char* name) { return ours.of(name).measures.at("peak_memory_bytes").median; };
  CHECK(memory_of("slow") < 512 * 512 * 4);
  CHECK(memory_of("wide") > 2 * 512 * 512 * 4);  // weights and gradients
  CHECK(std::abs(*ours.of("fast").memory_savings()) < 2);
  CHECK(*ours.of("wide").memory_savings() == doctest::Approx(100 * (1 - memory_of("wide") / memory_of("slow"))));
  CHECK(ours.of("wide").against_baseline.at("peak_memory_bytes").verdict == "higher");
  CHECK(*ours.of("fast").speedup() == ours.of("fast").against_baseline.at("samples_per_second").value.median);
  CHECK_FALSE(ours.of("slow").speedup());
  CHECK_FALSE(ours.of("refused").memory_savings());
  const auto& difference = ours.of("fast").against_baseline.at("loss");
  // Among four candidates a claim needs more than between two (Bonferroni).
  CHECK(verb["candidates"][1]["against_baseline"]["loss"]["verdict"] == "lower");
  CHECK(difference.verdict == "no difference shown");
  CHECK(difference.value.median == verb["candidates"][1]["against_baseline"]["loss"]["median"]);
  CHECK(ours.of("slow").against_baseline.empty());
  CHECK(ours.of("refused").state == "refused");
  CHECK(ours.of("refused").error.find("learning_rate") != std::string::npos);
  CHECK(read_text(it.at("ours/compare.json")) == ours.json);
  const auto refusal = [](vernier::CompareOptions wrong) { return thrown_by([&] { vernier::compare(wrong); }); };
  CHECK(refusal({}) == Thrown{2, "compare: there are no candidates"});
  CHECK(refusal({.candidates = {{"a/b", {}}}}) ==
        Thrown{2, "compare: the name \"a/b\" of a candidate cannot be a folder's"});
  CHECK(refusal({.candidates = {{"a", {}}, {"a", {}}}}) == Thrown{2, "compare: two candidates are called \"a\""});
  CHECK(refusal({.candidates = {{"a", {}}}, .seeds = 0}) == Thrown{2, "compare: seeds is 0, and must be 1 to 100"});
  CHECK(refusal({.candidates = {{"a", {}}}, .output = it.at("ours").string()}) ==
        Thrown{2, "compare: " + it.at("ours").string() + " is not empty; name another folder, or remove it"});
}

TEST_CASE("compare: of a format that costs loss the layers are found that do not bear it" *
          doctest::test_suite("lab")) {
  Compared run;
  const auto leave_all = [&](const std::string& candidate, double loss) {
    for (int seed = 1; seed <= 3; ++seed) run.leave(candidate, seed, 100, 1e6, loss + 0.01 * seed);
  };
  leave_all("fp32", 1);
  leave_all("mxfp8", 1);
  leave_all("nvfp4", 1.2);
  for (int seed = 1; seed <= 3; ++seed) run.leave("e4m3", seed, 100, 1e6, 1.1 * seed);
  for (const char* format : {"mxfp8", "nvfp4", "e4m3"}) {
    run.folder.write(std::string("c/") + format + "/seed-1/formats.toml", "layers = [\"a\", \"b\", \"c\", \"d\"]\n");
  }
  for (const auto& [layer, loss] :
       {std::pair("a", 1.0), std::pair("b", 1.15), std::pair("c", 1.05), std::pair("d", 1.0)}) {
    run.leave(std::string("nvfp4-only-") + layer, 1, 100, 1e6, loss);
  }
  leave_all("nvfp4-without-2", 1);
  leave_all("nvfp4-without-1", 1.1);
  run.leave_configurations({.files = {"run.toml"}, .formats = "mxfp8,nvfp4,e4m3"});
  run.folder.write("c/nvfp4.toml", "# mine\n");
  REQUIRE_MESSAGE(run.compare({"--formats", "mxfp8,nvfp4,e4m3", "--seeds", "3"}) == 0, run.err);
  CHECK_MESSAGE(says(run.out, "mxfp8 survives: the seeds show no loss that is worse"), run.out);
  CHECK(says(run.out, "e4m3 is undecided: the median loss is worse by 1.1"));
  CHECK(says(run.out, "nvfp4 survives where these layers stay in float32"));
  CHECK(read_text(run.folder / "c/nvfp4.toml") == "# mine\n");
  const auto overlay = read_text(run.folder / "c/nvfp4/overlay.toml");
  CHECK(overlay ==
        "[precision]\nuse = \"format\"\nforward = \"nvfp4\"\n\n[[precision.rule]]\nmatch = \"b\"\nuse = \"fp32\"\n\n"
        "[[precision.rule]]\nmatch = \"c\"\nuse = \"fp32\"\n\n[scaler]\nuse = \"none\"\n");
  CHECK(says(run.out, "where lower is better: "));
  CHECK(run.compare({"other.toml", "--formats", "mxfp8"}) == 2);
  CHECK(says(run.err, "--formats is for one file"));
}

TEST_CASE("compare: formats are trained, and the run says which layers it rounds" * doctest::test_suite("lab")) {
  Compared run;
  const std::string recipe = VERNIER_SOURCE_DIR "/configs/precision/formats/tetrajet.toml";
  REQUIRE_MESSAGE(run.compare({"--formats", "e4m3,bf16,e3m9x," + recipe, "--seeds", "1"}) == 0, run.err);
  CHECK(says(run.out, "which formats survive is said with --seeds 3"));
  CHECK_MESSAGE(says(run.out, "did you mean \"e3m4\"?"), run.out);
  CHECK(says(read_text(run.folder / "c/e4m3/seed-1/formats.toml"), "layers = [\"layers.0\""));
  CHECK(says(read_text(run.folder / "c/tetrajet/candidate.toml"), "scale_rule = \"rceil\""));
  const auto order = nlohmann::json::parse(read_text(run.folder / "c/compare.json"))["judged_by"]["order"];
  CHECK(order.size() == 4);  // e3m9x is refused
  Compared refused;          // float32 has no such option
  CHECK(refused.compare({"--formats", "e4m3", "--set", "precision.measure_every=5"}) == 0);
  CHECK_MESSAGE(says(refused.out, "float32 has no result, so which formats survive cannot be said"), refused.out);
}

}  // namespace compare_test
