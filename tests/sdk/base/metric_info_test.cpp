// The registry of metrics, and the page that is made from it.
#include <doctest/doctest.h>
#include <vernier/metric_info.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "temporary_folder.h"

namespace metric_info_test {

namespace {

constexpr const char* page = VERNIER_SOURCE_DIR "/docs/metrics.md";
constexpr const char* begin = "<!-- metrics -->\n";
constexpr const char* end = "<!-- /metrics -->\n";

std::string table() {
  std::string text = "| metric | unit | meaning | source |\n| --- | --- | --- | --- |\n";
  for (const auto& info : vernier::metric_infos()) {
    text += std::string("| `") + info.name + "` | " + info.unit + (*info.unit == '\0' ? "" : " ") + "| " +
            info.meaning + (info.is_count ? "; a count" : "") + (info.varies ? "; differs between equal runs" : "") +
            " | " + info.source + " |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("metric info: docs/metrics.md has the table of the registry") {
  const auto text = read_text(page);
  const auto from = text.find(begin), to = text.find(end);
  REQUIRE(from != text.npos);
  REQUIRE(to != text.npos);
  const auto made = text.substr(0, from) + begin + '\n' + table() + '\n' + text.substr(to);
  if (std::getenv("VERNIER_WRITE_DOCS") != nullptr) std::ofstream(page) << made;
  CHECK_MESSAGE(read_text(page) == made,
                "docs/metrics.md and sdk/toolkit/base/metric_info.cpp disagree: "
                "VERNIER_WRITE_DOCS=1 test_sdk --source-file='*metric_info_test.cpp'");
}

TEST_CASE("metric info: each metric has a name of its own, a unit that is known, a meaning and a source") {
  const std::set<std::string> units = {"", "s", "bytes", "1/s", "ratio", "degrees Celsius", "W", "J", "Hz"};
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
  CHECK(vernier::metric_info("los") == nullptr);
  CHECK(vernier::metric_info("") == nullptr);
}

}  // namespace metric_info_test
