// A rival in Python: a process that says what it can do, then reads orders and answers, a line each.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

class Python {
 public:
  // script: its name in tests/benchmarks. It prints a name a line, then "ready"; where it cannot run, nothing.
  explicit Python(const std::string& script, std::vector<std::string> arguments) {
    int in[2], out[2];
    if (::pipe(in) != 0 || ::pipe(out) != 0) std::abort();
    if (::fork() == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      for (const int end : {in[0], in[1], out[0], out[1]}) ::close(end);
      arguments.insert(arguments.begin(), {"python3", VERNIER_SOURCE_DIR "/tests/benchmarks/" + script});
      std::vector<char*> words;
      for (auto& argument : arguments) words.push_back(argument.data());
      words.push_back(nullptr);
      ::execvp(words[0], words.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
    for (std::string line = read(); !line.empty() && line != "ready"; line = read()) has_.insert(line);
    if (has_.empty()) std::printf("python3 has not here what %s needs: its lines are left out\n", script.c_str());
  }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;
  ~Python() {
    std::fclose(to_);
    std::fclose(from_);
  }

  bool has(const std::string& name) const { return has_.count(name) != 0; }
  // line: a name, and what goes with it.
  void call(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
    if (read() != "done") {
      std::fprintf(stderr, "python3: %s failed\n", line.c_str());
      std::exit(1);
    }
  }

 private:
  std::string read() {
    char line[256] = "";
    if (std::fgets(line, sizeof line, from_) == nullptr) return "";
    return std::string(line).substr(0, std::string(line).find('\n'));
  }
  FILE *to_ = nullptr, *from_ = nullptr;
  std::set<std::string> has_;
};
