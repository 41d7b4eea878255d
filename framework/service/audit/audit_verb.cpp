// `vernier audit verify FILE`: whether an audit log of `vernier serve` is whole.
#include <iostream>

#include "audit.h"
#include "common/run_files.h"
#include "common/verb.h"

namespace {

constexpr const char* usage = R"(usage: vernier audit verify FILE

Checks the audit log of `vernier serve`: each line has the hash of the line before it. Prints how many lines are good,
and the hash of the last one. A log that was cut at its end is good in itself; so compare that hash, or the number, with
one that you wrote down elsewhere. The exit code is 1 where a line was changed, removed or added.
)";

int verify(const boost::program_options::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.size() != 2 || words[0] != "verify") throw vernier::Refused("say `vernier audit verify FILE`");
  const auto result = serve::verify_audit(words[1]);
  if (!result.trouble.empty()) {
    std::cerr << "vernier: " << words[1] << ": " << result.trouble << '\n';
    return 1;
  }
  std::cout << result.lines << (result.lines == 1 ? " line is" : " lines are") << " good; the last hash is "
            << result.head << '\n';
  return 0;
}

}  // namespace

int serve::call_audit(int argc, char** argv) {
  return vernier::call_verb({"audit", usage, {}, verify}, argc, argv);
}
