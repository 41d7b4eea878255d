// A browser of the Chromium family without a window, steered over pipes by its DevTools protocol.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "patience.h"
#include "temporary_folder.h"

class Browser {
 public:
  explicit Browser(const std::string& program) {
    int to[2], from[2];
    REQUIRE((::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0));
    std::vector<std::string> words = {program,
                                      "--headless",
                                      "--remote-debugging-pipe",
                                      "--disable-background-networking",
                                      "--disable-component-update",
                                      "--disable-dev-shm-usage",
                                      "--disable-gpu",
                                      "--no-first-run",
                                      "--user-data-dir=" + folder_ / "profile"};
    if (::geteuid() == 0) words.emplace_back("--no-sandbox");  // root cannot start it in any other way
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const auto log = folder_ / "log";
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      ::setpgid(0, 0);
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      const int in = ::fcntl(to[0], F_DUPFD, 10), answers = ::fcntl(from[1], F_DUPFD, 10);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::dup2(in, 3);  // the browser reads from 3, and answers through 4
      ::dup2(answers, 4);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;
  ~Browser() {
    ::kill(-process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::close(to_);
    ::close(from_);
  }

  // In a tab of its own, which the other members then are about.
  void open(const std::string& url) {
    session_.clear();
    const auto tab = call("Target.createTarget", {{"url", "about:blank"}}).at("targetId");
    session_ = call("Target.attachToTarget", {{"targetId", tab}, {"flatten", true}}).at("sessionId");
    for (const char* part : {"Runtime", "Log", "Network", "Page"}) call(part + std::string(".enable"));
    call("Page.navigate", {{"url", url}});
  }

  // The value of an expression of JavaScript; null where it throws.
  nlohmann::json value_of(const std::string& expression) {
    const auto answer = call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}});
    return answer.contains("exceptionDetails") ? nullptr : answer.at("result").value("value", nlohmann::json());
  }
  bool waits_for(const std::string& expression) {
    const auto holds = [&] { return value_of("Boolean(" + expression + ")") == true; };
    if (patience::wait_until(holds, std::chrono::milliseconds(25))) return true;
    MESSAGE("not so: ", expression, "; the page is: ", value_of("document.body.innerText").dump());
    return false;
  }

  std::vector<std::string> errors, requests;  // all tabs' errors on the console, and URLs

 private:
  nlohmann::json call(const std::string& method, const nlohmann::json& parameters = nlohmann::json::object()) {
    nlohmann::json message = {{"id", ++last_}, {"method", method}, {"params", parameters}};
    if (!session_.empty()) message["sessionId"] = session_;
    const auto text = message.dump() + '\0';
    REQUIRE(::write(to_, text.data(), text.size()) == std::ssize(text));
    for (;;) {
      const auto answer = next();
      if (answer.value("id", 0) != last_) {
        note(answer);
        continue;
      }
      CAPTURE(answer.dump());
      REQUIRE(answer.contains("result"));
      return answer.at("result");
    }
  }
  nlohmann::json next() {
    for (auto end = got_.find('\0'); end == got_.npos; end = got_.find('\0')) {
      pollfd waits{from_, POLLIN, 0};
      char bytes[65536];
      const auto count = ::poll(&waits, 1, 30'000) > 0 ? ::read(from_, bytes, sizeof bytes) : 0;
      INFO("the browser does not answer: ", read_text(folder_ / "log"));
      REQUIRE(count > 0);
      got_.append(bytes, static_cast<std::size_t>(count));
    }
    const auto end = got_.find('\0');
    auto message = nlohmann::json::parse(got_.substr(0, end));
    got_.erase(0, end + 1);
    return message;
  }
  void note(const nlohmann::json& event) {
    const auto method = event.value("method", "");
    const auto& what = event.at("params");
    if (method == "Network.requestWillBeSent") requests.push_back(what.at("request").at("url"));
    const bool is_error = method == "Runtime.exceptionThrown" ||
                          (method == "Runtime.consoleAPICalled" && what.at("type") == "error") ||
                          (method == "Log.entryAdded" && what.at("entry").at("level") == "error");
    if (is_error) errors.push_back(what.dump());
  }

  TemporaryFolder folder_;
  pid_t process_ = 0;
  int to_ = -1, from_ = -1, last_ = 0;
  std::string session_, got_;
};
