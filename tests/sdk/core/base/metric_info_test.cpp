// The registry of metrics, and the page that is made from it.
#include <doctest/doctest.h>
#include <vernier/metric_info.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <tuple>

#include "temporary_folder.h"

namespace metric_info_test {

namespace {

constexpr const char* page = VERNIER_SOURCE_DIR "/docs/reference/metrics.md";
constexpr const char* begin = "<!-- metrics -->\n";
constexpr const char* end = "<!-- /metrics -->\n";

// "; higher is better, 0 to 1": which values are better, and their range.
std::string judged(const vernier::MetricInfo& info) {
  const auto number = [](double value) { return std::to_string(static_cast<int>(value)); };
  const bool has_least = std::isfinite(info.least), has_most = std::isfinite(info.most);
  if (info.better == vernier::Better::unknown) return "";
  std::string text = info.better == vernier::Better::higher ? "; higher is better" : "; lower is better";
  if (has_least && has_most) text += ", " + number(info.least) + " to " + number(info.most);
  if (has_least && !has_most) text += ", from " + number(info.least);
  if (!has_least && has_most) text += ", to " + number(info.most);
  return text;
}

std::string table() {
  std::string text = "| metric | unit | meaning | source |\n| --- | --- | --- | --- |\n";
  for (const auto& info : vernier::metric_infos()) {
    text += std::string("| `") + info.name + "` | " + info.unit + (*info.unit == '\0' ? "" : " ") + "| " +
            info.meaning + judged(info) + (info.is_count ? "; a count" : "") +
            (info.varies ? "; differs between equal runs" : "") + " | " + info.source + " |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("metric info: docs/reference/metrics.md has the table of the registry") {
  const auto text = read_text(page);
  const auto from = text.find(begin), to = text.find(end);
  REQUIRE(from != text.npos);
  REQUIRE(to != text.npos);
  const auto made = text.substr(0, from) + begin + '\n' + table() + '\n' + text.substr(to);
  if (std::getenv("VERNIER_WRITE_DOCS") != nullptr) std::ofstream(page) << made;
  CHECK_MESSAGE(read_text(page) == made,
                "docs/reference/metrics.md and sdk/core/base/metric_info.cpp disagree: "
                "VERNIER_WRITE_DOCS=1 test_sdk --source-file='*metric_info_test.cpp'");
}

TEST_CASE("metric info: each metric has a name of its own, a unit that is known, a meaning and a source") {
  const std::set<std::string> units = {"", "s", "bytes", "1/s", "ratio", "degrees Celsius", "W", "J", "Hz", "dB"};
  std::set<std::string> names;
  for (const auto& info : vernier::metric_infos()) {
    CAPTURE(info.name);
    CHECK(names.insert(info.name).second);
    CHECK(units.count(info.unit) == 1);
    CHECK(std::string(info.meaning).size() > 10);
    CHECK_FALSE(std::string(info.meaning).ends_with('.'));
    CHECK(std::string(info.source).size() > 3);
    CHECK(vernier::metric_info(info.name) == &info);
  }
  using vernier::Better;
  const std::tuple<const char*, Better, double, double> judgements[] = {{"accuracy", Better::higher, 0, 1},
                                                                        {"top_1", Better::higher, 0, 1},
                                                                        {"top_50", Better::higher, 0, 1},
                                                                        {"f1", Better::higher, 0, 1},
                                                                        {"auc", Better::higher, 0, 1},
                                                                        {"r2", Better::higher, -HUGE_VAL, 1},
                                                                        {"perplexity", Better::lower, 1, HUGE_VAL},
                                                                        {"mae", Better::lower, 0, HUGE_VAL},
                                                                        {"rmse", Better::lower, 0, HUGE_VAL},
                                                                        {"bits_per_byte", Better::lower, 0, HUGE_VAL},
                                                                        {"loss", Better::lower, -HUGE_VAL, HUGE_VAL}};
  for (const auto& [name, better, least, most] : judgements) {
    CAPTURE(name);
    const auto* info = vernier::metric_info(name);
    REQUIRE(info != nullptr);
    CHECK(info->better == better);
    CHECK(info->least == least);
    CHECK(info->most == most);
  }
  for (const char* name : {"top_", "top_x", "top_5_accuracy"}) CHECK(vernier::metric_info(name) == nullptr);
  CHECK(vernier::metric_info("los") == nullptr);
  CHECK(vernier::metric_info("") == nullptr);
}

}  // namespace metric_info_test
