#include "common/config/references.h"

#include <doctest/doctest.h>

#include <random>

#include "common/config/config.h"
#include "table_text.h"
#include "temporary_folder.h"
#include "thrown.h"
#include "wiring/wiring.h"

namespace references_test {

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets environment variables for the time of a test.
struct Environment {
  explicit Environment(const Variables& values) {
    for (const auto& [name, value] : values) {
      ::setenv(name.c_str(), value.c_str(), 1);
      names.push_back(name);
    }
  }
  ~Environment() {
    for (const auto& name : names) ::unsetenv(name.c_str());
  }
  std::vector<std::string> names;
};

vernier::Table loaded(const std::string& text, const std::vector<std::string>& sets = {}) {
  const TemporaryFolder folder;
  return vernier::load_config({folder.write("small.toml", text)}, sets);
}

// The value of [x] y, where [x] has some others too.
std::string expanded(const std::string& y, const std::vector<std::string>& sets = {}) {
  const auto config = loaded("[x]\ni = 3\nr = 0.5\nb = true\nt = 'text'\nl = [1, 2]\ne = ''\ny = '" + y +
                                 "'\n[[callback]]\nuse = 'ema'\ndecay = 0.9\n",
                             sets);
  return show(std::get<vernier::Table>(config.at("x").data).at("y"));
}

// With the folder of the file left out.
Thrown refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  auto thrown = thrown_by([&] { loaded(text, sets); });
  if (const auto place = thrown.text.find("small.toml:"); place != std::string::npos) thrown.text.erase(0, place);
  return thrown;
}

}  // namespace

TEST_CASE("references: environment variables are text, values have their types") {
  const Environment environment(
      Variables{{"VERNIER_TEST_A", "a${x.i}"}, {"VERNIER_TEST_N", "8"}, {"VERNIER_TEST_E", ""}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"${VERNIER_TEST_N}", R"("8")"},
      {"${VERNIER_TEST_A}", R"("a${x.i}")"},  // is not looked into
      {"</${VERNIER_TEST_A}/${x.t}>", R"("</a${x.i}/text>")"},
      {"${x.i}", "3"},
      {"${x.r}", "0.500000"},
      {"${x.b}", "true"},
      {"${x.t}", R"("text")"},
      {"${x.l}", "[1 2]"},
      {"${callback.ema.decay}", "0.900000"},
      {"${x.i} ${x.r} ${x.b} ${x.t}${x.e}", R"("3 0.5 true text")"},
      {"${VERNIER_TEST_NONE:-d}", R"("d")"},
      {"${VERNIER_TEST_NONE:-8}", R"("8")"},
      {"${VERNIER_TEST_E:-d}", R"("d")"},
      {"${VERNIER_TEST_E}", R"("")"},
      {"${VERNIER_TEST_N:-d}", R"("8")"},
      {"${VERNIER_TEST_NONE:-}", R"("")"},
      {"${VERNIER_TEST_NONE:-${VERNIER_TEST_E:-${x.t}}!}", R"("text!")"},
      {"${VERNIER_TEST_N:-runs/{name}}/a", R"("8/a")"},
      {"${VERNIER_TEST_NONE:-runs/{name}}/a", R"("runs/{name}/a")"},
      {"${x.none:-1e-8}/", R"("1e-08/")"},
      {"${x.none:-7}", "7"},
      {"${x.none:-[1]}", "[1]"},
      {"${x.e:-full}", R"("full")"},
      {"$${x.i}", R"("${x.i}")"},
      {"$$${x.i}", R"("$${x.i}")"},
      {"$ {x} $x $$ }{ $", R"("$ {x} $x $$ }{ $")"}};
  for (const auto& [text, value] : cases) {
    CAPTURE(text);
    CHECK(expanded(text) == value);
  }
}

TEST_CASE("references: [run] has its defaults, and {name} stays what it was") {
  CHECK(expanded("${run.name}-${run.seed}") == R"("small-1")");
  CHECK(expanded("${run.seed}", {"run.seed=5"}) == "5");
  CHECK(show(loaded("[run]\noutput = 'runs/{name}/${run.seed}'\n", {"run.seed=2"})) ==
        R"({run={output="runs/{name}/2" seed=2}})");
}

TEST_CASE("references: what --set and later files say is referred to, and --set refers too") {
  CHECK(expanded("${x.i}", {"x.i=9"}) == "9");
  CHECK(expanded("", {"x.y=${x.i}"}) == "3");
  CHECK(expanded("${x.t}", {"x.t=${x.i}/${x.r}"}) == R"("3/0.5")");
  CHECK(expanded("", {"x.y=['${x.i}', '${x.t}']"}) == R"([3 "text"])");
  // A table that is loaded already has no references any more.
  const auto literal = loaded("[x]\na = '$${HOME}'\n");
  CHECK(show(vernier::with_sets(literal, {"x.b=${x.a}"})) == R"({x={a="${HOME}" b="${HOME}"}})");
}

TEST_CASE("references: an unknown name is refused with its place and the nearest one") {
  const Environment environment(Variables{{"VERNIER_TEST_FOLDER", "x"}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[x]\ny = '${VERNIER_TEST_FODLER}'\n",
       "small.toml:2: ${VERNIER_TEST_FODLER}: there is no environment variable VERNIER_TEST_FODLER; did you mean "
       "${VERNIER_TEST_FOLDER}?"},
      {"[x]\nlong = 1\ny = 'a ${x.lnog}'\n",
       "small.toml:3: ${x.lnog}: the configuration has no value x.lnog; did you mean ${x.long}?"},
      {"[[callback]]\nuse = 'ema'\ndecay = 1\n[x]\ny = '${callback.ema.dcay}'\n",
       "small.toml:5: ${callback.ema.dcay}: the configuration has no value callback.ema.dcay; did you mean "
       "${callback.ema.decay}?"},
      {"[x]\ny = '${run.sede}'\n",
       "small.toml:2: ${run.sede}: the configuration has no value run.sede; did you mean ${run.seed}?"},
      {"[x]\ny = '${entirely.other}'\n",
       "small.toml:2: ${entirely.other}: the configuration has no value entirely.other; set it, or write "
       "${entirely.other:-default}"}};
  for (const auto& [text, message] : cases) CHECK(refusal(text) == configuration(message));
  CHECK(refusal("", {"x.y=${run.sede}"}).text.starts_with("--set x.y: ${run.sede}: "));
}

TEST_CASE("references: what is not a reference, or leads nowhere, is refused with its place") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"y = '${x.y'", "the text \"${x.y\" has a ${ without its }; write $${ for the characters ${"},
      {"y = '${a:-${b}'", "the text \"${a:-${b}\" has a ${ without its }; write $${ for the characters ${"},
      {"y = '${}'",
       "${} names nothing; write ${NAME} for an environment variable, ${run.name} for a value, $${ for "
       "the characters ${"},
      {"y = '${x.y}'", "${x.y} refers to itself: x.y -> x.y"},
      {"y = '${x.z}'\nz = 'a${x.w}'\nw = '${x.y}'", ""},
      {"y = '${x.z}'\nz = {a = 1}", "${x.z} is a table; refer to a value in it"},
      {"y = '${x.z}'\nz = [[1]]", "${x.z} is a list of lists or tables; write it out"},
      {"y = 'a ${x.z}'\nz = [1]", "${x.z} is a list, which cannot be a part of a text"}};
  for (const auto& [lines, message] : cases) {
    CAPTURE(lines);
    const auto thrown = refusal("[x]\n" + lines + "\n");
    CHECK(thrown.kind == 2);
    if (!message.empty()) CHECK(thrown.text == "small.toml:2: " + message);
    CHECK_FALSE(says(thrown.text, "\n"));
  }
  CHECK(refusal("[x]\na = '${x.b}'\nb = '${x.c}'\nc = '${x.a}'\n") ==
        configuration("small.toml:2: ${x.b} refers to itself: x.b -> x.c -> x.a -> x.b"));
}

TEST_CASE("references: growth and depth have an end") {
  std::string doubling = "[x]\na0 = 'xxxxxxxx'\n", chain = "[x]\na0 = '1'\n", nothing = "[x]\na0 = ''\n";
  for (int i = 1; i < 60; ++i) {
    const auto before = "${x.a" + std::to_string(i - 1) + "}", name = "a" + std::to_string(i);
    doubling += name + " = '" + before + before + "'\n";
    nothing += name + " = '" + before + before + "'\n";
    chain += name + " = '" + before + "'\n";
  }
  const std::string growth = ": the values that references stand for have more than 1048576 bytes by here";
  for (const auto& text : {doubling, nothing}) {
    const auto thrown = refusal(text);
    CHECK(thrown.kind == 2);
    CHECK(thrown.text.ends_with(growth));
  }
  CHECK(thrown_by([&] { loaded(chain); }).kind == 0);
  for (int i = 60; i < 200; ++i) {
    chain += "a" + std::to_string(i) + " = '${x.a" + std::to_string(i - 1) + "}'\n";
  }
  const auto thrown = refusal(chain);
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "lead through more than 64 values; name the last one directly"));
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += "${VERNIER_TEST_NONE:-";
  CHECK(says(refusal("[x]\ny = '" + nested + std::string(10'000, '}') + "'\n").text, "lead through more than 64"));
}

TEST_CASE("references: any escaped text expands to itself") {
  std::mt19937 random(7);
  constexpr std::string_view letters = "$${}:-.ab";
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    const vernier::Table table = {{"x", {text, "here"}}, {"l", {vernier::Array{{text, "here"}}, "here"}}};
    const auto escaped = vernier::escaped(table);
    CAPTURE(text);
    CHECK(show(vernier::expanded(escaped)) == show(table));
    CHECK(show(vernier::unescaped(escaped)) == show(table));
    // And any other text is refused or expanded; it ends in both cases.
    const auto thrown = thrown_by([&] { vernier::expanded(table); });
    CHECK((thrown.kind == 0 || thrown.kind == 2));
  }
}

}  // namespace references_test
