// The audit log of a server: a line of JSON for each thing that somebody did, chained by hashes, so that a change, a
// removal or an insertion is found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace serve {

// {"seq":3,"time":…,"who":…,"action":…,…,"prev":"<hash of the line before>","hash":"<SHA-256 of all before it>"}
class AuditLog {
 public:
  // Goes on behind the last line; one without its end, as a kill leaves it, is cut off, which is a line too. Throws
  // std::runtime_error where the file cannot be written, or its last line is not one of a chain.
  explicit AuditLog(std::filesystem::path file);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;
  ~AuditLog();

  // Any thread. The line is on the disk when it returns. Throws std::runtime_error: what it was for must not be done.
  void add(const std::string& who, const std::string& action, const nlohmann::ordered_json& details);

  bool is_empty() const { return next_ == 1; }  // called only before other threads add lines

 private:
  std::mutex mutex_;
  std::filesystem::path file_;
  int descriptor_ = -1;
  std::int64_t next_ = 1;
  std::string last_hash_;
};

struct AuditResult {
  std::int64_t lines = 0;  // number of good lines
  std::string head;        // hash of the last of them
  std::string trouble;     // the first thing that is wrong, with its line; "" if nothing is
};
// A missing end, or a log that was written anew as a whole, cannot be seen from the file alone: compare `head`.
AuditResult verify_audit(const std::filesystem::path& file);
int call_audit(int argc, char** argv);  // vernier-serve is the program of this verb

}  // namespace serve
