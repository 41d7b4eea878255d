// Puts LibTorch's warnings into the run's log.
#pragma once

#include <c10/util/Exception.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <functional>
#include <set>
#include <string>
#include <utility>

namespace vernier {

// Logs each message once, with where it came first. For the thread on which c10::WarningUtils installs it.
class Warnings final : public c10::WarningHandler {
 public:
  // said: the messages so far. where: called for a new one; "task/gpt in step 3".
  Warnings(std::set<std::string>& said, std::function<std::string()> where) : said_(said), where_(std::move(where)) {}
  void process(const c10::Warning& warning) override {
    if (!said_.insert(warning.msg()).second) return;
    const auto line = message(std::runtime_error(warning.msg()));
    log(Level::warning, where_(), "LibTorch warns: " + line + " (further warnings of this text are left out)");
  }

 private:
  std::set<std::string>& said_;
  std::function<std::string()> where_;
};

}  // namespace vernier
