// The audit log: every change is found.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <sstream>
#include <stdexcept>
#include <vector>

#include "program.h"
#include "service/audit/audit.h"

namespace audit_test {

namespace fs = std::filesystem;

namespace {

void write_lines(const std::string& file, int count) {
  serve::AuditLog log(file);
  for (int i = 0; i < count; ++i) log.add("alice", "submit", {{"job", i}, {"name", "a \"name\"\n\xff"}});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("audit: a log is good after each start, and only its owner may read it") {
  const TemporaryFolder folder;
  const auto file = folder / "audit.jsonl";
  for (int i = 0; i < 3; ++i) write_lines(file, 2);
  const auto result = serve::verify_audit(file);
  CHECK(result.trouble.empty());
  CHECK(result.lines == 6);
  CHECK(lines_of(read_text(file)).size() == 6);
  struct stat status {};
  ::stat(file.c_str(), &status);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("audit: each changed bit is found at its line") {
  const TemporaryFolder folder;
  const auto file = folder / "audit.jsonl";
  write_lines(file, 3);
  const auto good = read_text(file);
  int line = 1;
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    const auto result = serve::verify_audit(folder.write("bad", bad));
    CAPTURE(i);
    CHECK(result.trouble.starts_with("line " + std::to_string(line) + " "));
    line += good[i] == '\n' ? 1 : 0;
  }
}

TEST_CASE("audit: removed, added and exchanged lines are found") {
  const TemporaryFolder folder;
  const auto file = folder / "audit.jsonl";
  write_lines(file, 5);
  const auto good = lines_of(read_text(file));
  for (std::size_t i = 0; i + 1 < good.size(); ++i) {
    auto bad = good;
    bad.erase(bad.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(!serve::verify_audit(folder.write("bad", joined(bad))).trouble.empty());
    bad = good;
    bad.insert(bad.begin() + static_cast<std::ptrdiff_t>(i), good[i]);
    CHECK(!serve::verify_audit(folder.write("bad", joined(bad))).trouble.empty());
    bad = good;
    std::swap(bad[i], bad[i + 1]);
    CHECK(!serve::verify_audit(folder.write("bad", joined(bad))).trouble.empty());
  }
  // A missing end is seen by the number and the hash alone.
  const auto shorter = serve::verify_audit(folder.write("bad", joined({good.begin(), good.end() - 1})));
  CHECK(shorter.trouble.empty());
  CHECK(shorter.lines == 4);
  CHECK(shorter.head != serve::verify_audit(file).head);
}

TEST_CASE("audit: half a line of a killed server is cut off, and that is a line") {
  const TemporaryFolder folder;
  const auto file = folder / "audit.jsonl";
  write_lines(file, 3);
  const auto good = read_text(file);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{10}, std::size_t{200}}) {
    folder.write("audit.jsonl", good.substr(0, good.size() - cut));
    CHECK(serve::verify_audit(file).trouble.find("has no end") != std::string::npos);
    write_lines(file, 1);
    const auto result = serve::verify_audit(file);
    CHECK(result.trouble.empty());
    CHECK(result.lines == 4);
    CHECK(lines_of(read_text(file))[2].find("\"recovered\"") != std::string::npos);
  }
  folder.write("audit.jsonl", "something else\n");
  CHECK_THROWS_AS(serve::AuditLog{file}, std::runtime_error);
}

TEST_CASE("audit: vernier audit verify says what it found") {
  const TemporaryFolder folder;
  const auto file = folder / "audit.jsonl";
  write_lines(file, 2);
  folder.write("bad", read_text(file).substr(1));
  const struct {
    std::vector<std::string> words;
    int status;
    std::string text;
  } cases[] = {{{"audit", "verify", file}, 0, "2 lines are good; the last hash is "},
               {{"audit", "verify", folder / "bad"}, 1, "bad: line 1 "},
               {{"audit", "verify", folder / "none"}, 2, "cannot be read"},
               {{"audit", "check"}, 2, "vernier audit verify FILE"},
               {{"audit"}, 2, "vernier audit verify FILE"}};
  for (const auto& each : cases) {
    Program program(each.words, folder.path());
    CHECK(program.wait() == each.status);
    CHECK((program.out() + program.err()).find(each.text) != std::string::npos);
  }
}

}  // namespace audit_test
