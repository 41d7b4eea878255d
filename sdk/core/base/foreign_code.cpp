#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace vernier {

namespace {

std::vector<std::string>& foreign_runs() {
  static std::vector<std::string> runs;
  return runs;
}

}  // namespace

void refuse_foreign_code(const std::string& what) {
  if (foreign_runs().empty()) return;
  refuse(foreign_runs().back() + ": was not made here by you, and " + what +
         " is code, which would run with all your rights; if you trust who made it, give --trust once");
}

ForeignRun::ForeignRun(std::string run) : run_(std::move(run)) {
  if (!run_.empty()) foreign_runs().push_back(run_);
}
ForeignRun::~ForeignRun() {
  const auto found = std::ranges::find(foreign_runs(), run_);
  if (found != foreign_runs().end()) foreign_runs().erase(found);
}

}  // namespace vernier
