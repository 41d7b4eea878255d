// Completions of bash and zsh for the word at the cursor.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/options/completion.h"
#include "cli/program.h"
#include "common/config/shorthands.h"
#include "small_run.h"

namespace completion_test {

namespace {

using Words = std::vector<std::string>;

struct Case {
  Words typed;    // behind "vernier"; the last word is at the cursor
  Words offered;  // among others
  Words not_offered;
};

const std::vector<Case> cases = {
    {{"train", "--re"}, {"--resume"}, {"--set"}},
    {{"train", "runs/"}, {}, {"train", "--set"}},
    {{"train", "--set", ""}, {"run.", "callback.", "optimizer."}, {"run.steps="}},
    {{"train", "--set", "run.st"}, {"run.steps="}, {"run.seed="}},
    {{"train", "--set", "optimizer."}, {"optimizer.use=", "optimizer.learning_rate=", "optimizer.momentum="}, {"run."}},
    {{"train", "--set", "callback."}, {"callback.ema.", "callback.clip_norm."}, {"callback.ema.decay="}},
    {{"train", "--set", "callback.ema."}, {"callback.ema.decay="}, {"callback.clip_norm.max_norm="}},
    {{"train", "--set", "optimizer.use=ad"}, {"optimizer.use=adamw", "optimizer.use=adam"}, {"optimizer.use=sgd"}},
    {{"train", "--set", "run.matmul="}, {"run.matmul=auto", "run.matmul=plain"}, {"run.matmul="}},
    {{"train", "--set", "run.fused=f"}, {"run.fused=false"}, {"run.fused=true"}},
    {{"train", "--set=run.ste"}, {"--set=run.steps="}, {"run.steps="}},
    {{"compare", "--sweep", "optimizer.lear"}, {"optimizer.learning_rate="}, {"train"}},
    // As bash cuts them.
    {{"train", "--set", "run.matmul", "=", "p"}, {"plain"}, {"auto"}},
    {{"train", "--set", "optimizer.use", "="}, {"adamw"}, {"optimizer.use=adamw"}},
    {{"train", "--set", "=", "run.ste"}, {"run.steps="}, {"--set=run.steps="}},
    {{"train", "--mixed-precision", ""}, {"bf16", "fp8"}, {"--set"}},
    {{"plugins", "scaler/"}, {"scaler/dynamic", "scaler/none"}, {"optimizer/sgd"}},
    {{"evaluate", ""}, {}, {"train"}},
    {{"train", "--set", "no.such.key="}, {}, {"true"}},
};

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

TEST_CASE("completion: flags, plugins, keys and their words are offered where they belong") {
  const auto host = built_plugins();
  for (const auto& each : cases) {
    std::ostringstream typed;
    for (const auto& word : each.typed) typed << word << ' ';
    CAPTURE(typed.str());
    const vernier::Verb verb = {
        each.typed[0], "", vernier::configuration_options(), {}, vernier::words_of_shorthands()};
    std::size_t cut = 0;
    const auto words = vernier::joined_pieces({each.typed.begin() + 1, each.typed.end()}, cut);
    auto found = vernier::completions(verb, words, host);
    for (auto& word : found) word = word.substr(cut);
    if (each.offered.empty()) CHECK(found.empty());
    for (const auto& word : each.offered) CHECK_MESSAGE(has(found, word), word);
    for (const auto& word : each.not_offered) CHECK_MESSAGE(!has(found, word), word);
  }
}

TEST_CASE("completion: bash offers what the program says, and no blank behind a key that is not whole") {
  const TemporaryFolder folder;
  const auto script = folder.write("type.sh", R"(PATH=$1:$PATH
compopt() { echo compopt "$@"; }
. "$2"
COMP_WORDS=(vernier train --set run.step)
COMP_CWORD=3
_vernier
echo "${COMPREPLY[@]}"
COMP_WORDS=(vernier compare --sweep optimizer.lear)
COMP_CWORD=3
_vernier
echo "${COMPREPLY[@]}"
COMP_WORDS=(vernier comp)
COMP_CWORD=1
_vernier
echo "${COMPREPLY[@]}"
COMP_WORDS=(vernier checkpoint v)
COMP_CWORD=2
_vernier
echo "${COMPREPLY[@]}"
COMP_WORDS=(vernier new plugin o)
COMP_CWORD=3
_vernier
echo "${COMPREPLY[@]}"
COMP_WORDS=(vernier quickstart --mode me)
COMP_CWORD=3
_vernier
echo "${COMPREPLY[@]}"
)");
  const auto output = folder.path() / "output";
  const std::string command = "bash " + script +
                              " " VERNIER_BINARY_DIR " " VERNIER_SOURCE_DIR "/framework/driver/shell/vernier.bash >" +
                              output.string();
  REQUIRE(std::system(command.c_str()) == 0);
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  CHECK(text.str() ==
        "compopt -o nospace\nrun.steps=\ncompopt -o "
        "nospace\noptimizer.learning_rate=\ncompare\nverify\noptimizer\nmemory\n");
}

TEST_CASE("completion: zsh offers something at the first Tab, when it has only found the file") {
  if (std::system("command -v zsh >/dev/null") != 0) {
    MESSAGE("skipped: zsh is not installed");
    return;
  }
  const TemporaryFolder folder;
  const auto script = folder.write("type.zsh", R"(PATH=$1:$PATH
fpath=($2)
compadd() { print -- "$@"; }
autoload -Uz _vernier
words=(vernier train --set run.step)
CURRENT=4
_vernier
)");
  const auto output = folder.path() / "output";
  REQUIRE(std::system(("zsh -f " + script + " " VERNIER_BINARY_DIR " " VERNIER_SOURCE_DIR "/framework/driver/shell >" +
                       output.string())
                          .c_str()) == 0);
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  CHECK(text.str().find("run.steps=") != std::string::npos);
}

}  // namespace completion_test
