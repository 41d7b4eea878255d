// The pages of `vernier serve` and of one of its runs, in a browser.
#include "browser.h"
#include "common/run_files.h"
#include "job_server.h"
#include "tools/report/browser.h"

namespace page_test {

using namespace job_server;

namespace {

constexpr const char* config = R"([run]
steps = 10000000
device = "cpu"
threads = 1
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
)";

// "" where there is none.
std::string browser_here() {
  try {
    return vernier::find_browser();
  } catch (const vernier::Refused&) {
    return "";
  }
}

// A line that has parts, has been laid out, and can be seen.
std::string is_drawn(const std::string& selector) {
  return "[...document.querySelectorAll('" + selector + "')].some((line) => /L/.test(line.getAttribute('d')) && " +
         "line.getBoundingClientRect().width > 100 && line.checkVisibility() && " +
         "getComputedStyle(line).stroke !== 'none')";
}

}  // namespace

TEST_CASE("serve: a browser shows jobs, and draws the curves of a run") {
  const auto program = browser_here();
  if (program.empty()) {
    MESSAGE("skipped: no browser of the Chromium family is on PATH");
    return;
  }
  JobServer server({"--cores", "1"}, /*with_script=*/false);
  REQUIRE(server.submit(config, {{"name", "curves"}}) == 1);
  const auto origin = "http://127.0.0.1:" + std::to_string(server.port) + "/";
  Browser browser(program);
  browser.open(origin);
  CHECK(browser.waits_for("document.activeElement.id === 'token' && document.getElementById('main').hidden"));
  browser.open(origin + "#token=" + server.tokens.at("control"));
  CHECK(browser.waits_for("document.querySelector('#jobs tr[data-id=\"1\"]')"));
  CHECK(browser.waits_for("/1curvescontrolrunning/.test(document.querySelector('#jobs tr').textContent)"));
  CHECK(browser.value_of("location.hash") == "");  // the token is in no history
  browser.value_of("document.querySelector('#jobs button').click()");
  CHECK(browser.waits_for(is_drawn("#line")));
  CHECK(browser.waits_for("/^steps 1 to \\d+$/.test(document.getElementById('steps').textContent)"));
  CHECK(browser.waits_for("/run job-1: 10000000 steps/.test(document.getElementById('log').textContent)"));
  const auto drawn = browser.value_of("document.getElementById('line').getAttribute('d')");
  CHECK(browser.waits_for("document.getElementById('line').getAttribute('d') !== " + drawn.dump()));  // it goes on

  const auto run = server.path() / "jobs/1/run";
  auto url = read_text(run / "control.url");
  url.erase(url.find_last_not_of('\n') + 1);
  const auto tokens = read_text(run / "control.tokens");
  const auto token = tokens.substr(tokens.find("control ") + 8, 64);
  browser.open(url + "#token=" + token);
  CHECK(browser.waits_for(is_drawn("#charts path")));
  CHECK(browser.waits_for("document.getElementById('state').textContent === 'running'"));
  CHECK(browser.waits_for("/^use = .mlp/m.test(document.getElementById('toml').textContent)"));
  browser.value_of("document.querySelector('[data-command=pause]').click()");
  CHECK(browser.waits_for("document.getElementById('state').textContent === 'paused'"));

  CHECK(browser.errors == std::vector<std::string>());
  CHECK(browser.requests.size() > 10);
  for (const auto& request : browser.requests) {
    CAPTURE(request);
    CHECK((request.starts_with(origin) || request.starts_with(url) || request.starts_with("data:") ||
           request == "about:blank"));
  }
}

}  // namespace page_test
