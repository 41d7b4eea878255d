#include "browser.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "common/child.h"
#include "common/run_files.h"
#include "common/scratch_folder.h"
#include "common/text/numbers.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr int width = 1200, most_height = 16384;  // pixels; browsers draw no higher picture

// The last line that the browser wrote; it reports much that is of no matter.
std::string last_words(const Ended& ended) {
  const auto last = last_line(ended.err);
  return last.empty() ? "it says nothing" : last;
}

// RFC 3986: all but unreserved characters and the slash are escaped.
std::string url_of(const fs::path& path) {
  std::string url = "file://";
  for (const unsigned char c : path.string()) {
    const bool is_plain = std::isalnum(c) != 0 || std::strchr("/-._~", c) != nullptr;
    url += printed(is_plain ? "%c" : "%%%02X", c);
  }
  return url;
}

Ended call(const std::string& browser, const fs::path& folder, int height, const std::string& order) {
  std::vector<std::string> arguments = {"--headless",
                                        "--disable-gpu",
                                        "--hide-scrollbars",
                                        "--no-first-run",
                                        "--user-data-dir=" + folder.string() + "/profile",
                                        "--window-size=" + std::to_string(width) + "," + std::to_string(height)};
  if (::geteuid() == 0) arguments.push_back("--no-sandbox");  // root cannot start it in another way
  arguments.push_back(order);
  arguments.push_back(url_of(folder / "page.html"));
  Children children(browser);
  auto ended = children.run(arguments);
  if (ended.status != 0) {
    throw Refused(browser + " failed with exit status " + std::to_string(ended.status) + ": " + last_words(ended));
  }
  return ended;
}

// The browser writes the page as its script leaves it.
int height_of_page(const std::string& browser, const fs::path& folder) {
  const auto ended = call(browser, folder, 800, "--dump-dom");
  const std::string name = " data-height=\"";
  const auto at = ended.out.find(name);
  const int height = at == ended.out.npos ? 0 : std::atoi(ended.out.c_str() + at + name.size());
  if (height <= 0) throw Refused(browser + " does not say how high the page is: " + last_words(ended));
  return std::min(height, most_height);
}

}  // namespace

std::string find_browser() {
  const char* folders = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}) {
    std::istringstream all(folders == nullptr ? "" : folders);
    for (std::string folder; std::getline(all, folder, ':');) {
      const auto path = fs::path(folder.empty() ? "." : folder) / name;
      if (fs::is_regular_file(path) && ::access(path.c_str(), X_OK) == 0) return path.string();
    }
  }
  throw Refused(
      "--png: no browser draws the page: neither chromium, chromium-browser nor google-chrome is on PATH; install "
      "chromium, or write the page with --output and open it yourself");
}

std::string picture_of(const std::string& page, const std::string& browser, const fs::path& beside) {
  // For the page, the picture and the browser's profile. Not in /tmp, which a browser in a sandbox may not see.
  const ScratchFolder own(beside);
  const fs::path folder = own.path();
  const std::string measure =
      "<script>document.documentElement.dataset.height = document.documentElement.scrollHeight</script>\n";
  std::ofstream(folder / "page.html") << page << measure;
  const auto picture = folder / "page.png";
  const auto ended = call(browser, folder, height_of_page(browser, folder), "--screenshot=" + picture.string());
  std::ifstream file(picture, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!bytes.starts_with("\x89PNG\r\n\x1a\n")) throw Refused(browser + " drew no picture: " + last_words(ended));
  return bytes;
}

}  // namespace vernier
