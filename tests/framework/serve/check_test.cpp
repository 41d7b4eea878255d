// Rules for a job's configuration.
#include <doctest/doctest.h>

#include <toml++/toml.h>

#include <fstream>
#include <regex>

#include "service/api/job_check.h"
#include "temporary_folder.h"

namespace check_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// Returns the reason of the refusal; "" if it is not refused.
std::string refusal_of(const Json& config, const std::vector<fs::path>& data) {
  try {
    serve::checked_configuration(config, data);
    return "";
  } catch (const serve::NotAllowed& refused) {
    return refused.what();
  }
}

}  // namespace

TEST_CASE("serve: a configuration names plugins, and paths below the data folders only") {
  const TemporaryFolder folder;
  const auto data = fs::canonical(folder.path()) / "data";
  fs::create_directories(data / "texts");
  fs::create_directories(fs::canonical(folder.path()) / "data-of-others");
  fs::create_symlink("/etc", data / "link");
  fs::create_symlink(data / "texts", data / "inner");
  fs::create_symlink("/etc/passwd", data / "x-0.csv");
  for (const char* name : {"x-1.csv", "y-0.csv", "y,1.csv"}) std::ofstream(data / name) << "";
  const auto text = data.string();
  const struct {
    std::string value, refused;  // a part of the message; "": it is allowed
  } cases[] = {
      {text, ""},
      {text + "/texts/a.txt", ""},
      {text + "/inner/a.txt", ""},
      {text + "/texts/*.txt", ""},
      {text + "/t*", ""},
      {text + "/y-*.csv:a,b", ""},
      {text + "/x-[1].csv:a", ""},
      {text + "/y-{rank}.csv", ""},
      {"a.txt", ""},
      {"folder/a.txt", ""},
      {"blocks.*.attn -> layers.*", ""},
      {"kernels/one -> kernels/two", ""},
      {"1h30m", ""},
      {"a..b", ""},
      {"/etc/passwd", "not below a data folder"},
      {"/", "not below a data folder"},
      {text + "/../x", "not below a data folder"},
      {text + "-of-others/x", "not below a data folder"},
      {text + "/link/passwd", "not below a data folder"},
      {text + "/l?nk", "not below a data folder"},
      {text + "/li*/passwd", "not below a data folder"},
      {text + "/x-0.csv:a", "not below a data folder"},
      {text + "/x-*.csv", "not below a data folder"},
      {text + "/x-*.csv:a", "not below a data folder"},
      {text + "/?-0.csv:a,b", "not below a data folder"},
      {text + "/x-[01].csv:a", "not below a data folder"},
      {text + "/*.csv:a*:b", "not below a data folder"},
      {text + "/x-*, *.csv", "not below a data folder"},
      {text + "/x" + std::string(5000, '*') + ".csv:a", "not below a data folder"},
      {text + "/x-{rank}.csv", "not below a data folder"},
      {text + "/x-{rank}.csv:a", "not below a data folder"},
      {text + "/*-{rank}.csv:a", "not below a data folder"},
      {"..", "must not have .."},
      {"../x", "must not have .."},
      {"a/../../x", "must not have .."},
      {"~/x", "could be a path"},
      {"~root/x", "could be a path"},
      {"file:///etc/passwd", "could be a path"},
      {"http://example.com/x", "could be a path"},
      {"train=/etc/passwd", "could be a path"},
      {"a,/etc/passwd", "could be a path"},
      {"a -> /etc/passwd", "could be a path"},
      {"${HOME}", "no references"},
      {"x$${y}", "no references"},
      {std::string("a\0b", 3), "NUL"},
  };
  const std::regex allowed(serve::text_schema({data}).at("pattern").get<std::string>());
  for (const auto& [value, refused] : cases) {
    CAPTURE(value);
    // A schema cannot know links, and allows plain names alone.
    const bool leaves_by_link = value.starts_with(text + "/link");
    const bool is_pattern = value.starts_with(text) && value.find_first_of("*?:{") != value.npos;
    CHECK(std::regex_search(value, allowed) == (!is_pattern && (refused.empty() || leaves_by_link)));
    for (const Json& config : {Json{{"task", {{"data", value}}}}, Json{{"task", {{"data", {"a", value}}}}},
                               Json{{"callback", {{{"use", "x"}, {"rule", {{{"file", value}}}}}}}},
                               Json{{"task", {{"shares", {{value, 1}}}}}}}) {
      const auto found = refusal_of(config, {data});
      CHECK(found.empty() == refused.empty());
      CHECK(found.find(refused) != found.npos);
    }
  }
  CHECK(refusal_of({{"task", {{"data", text}}}}, {}).find("not below") != std::string::npos);
}

TEST_CASE("serve: texts and numbers of a JSON object are the same as TOML") {
  std::string all;
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  const Json values = {"\nfirst line",
                       "it's",
                       "a\\b",
                       "\"\"\"",
                       "'''",
                       "a\r\nb",
                       "\u0085\u2028",
                       all.substr(0, 46),
                       all.substr(47, 78),
                       0.1,
                       1e-300,
                       2e-5,
                       1e300,
                       3.0,
                       -0.0,
                       9223372036854775807,
                       -5};
  for (const auto& value : values) {
    CAPTURE(value.dump());
    const auto table = toml::parse(serve::checked_configuration(Json{{"task", {{"a", value}}}}, {}));
    const auto written = table["task"]["a"];
    if (value.is_string()) CHECK(written.value<std::string>() == value.get<std::string>());
    if (value.is_number_float()) CHECK(written.value<double>() == value.get<double>());
    if (value.is_number_integer()) CHECK(written.value<std::int64_t>() == value.get<std::int64_t>());
  }
}

TEST_CASE("serve: other configurations that are refused, as TOML and as JSON") {
  const struct {
    Json config;
    std::string refused;
  } cases[] = {
      {"[task]\nuse = \"mlp\"\n", ""},
      {Json{{"task", {{"use", "mlp"}, {"samples", 64}, {"rate", 0.5}, {"on", true}}}}, ""},
      {"", "is empty"},
      {Json::object(), "is empty"},
      {3, "TOML text, or a JSON object"},
      {nullptr, "TOML text, or a JSON object"},
      {Json::array(), "TOML text, or a JSON object"},
      {"[task\n", "line 1"},
      {"a = 1\na = 2\n", "line 2"},
      {"include = \"other.toml\"", "includes no files"},
      {Json{{"include", {"a.toml"}}}, "includes no files"},
      {"[task]\nuse = \"./evil.so\"", "names plugins, and not files"},
      {"[[monitor]]\nlisten = \"127.0.0.1:9464\"", ""},
      {"[[monitor]]\nlisten = \"\"", ""},
      {"[[monitor]]\nlisten = \"0.0.0.0:9464\"", "listens at 127.0.0.1 only"},
      {"[task]\nuse = \"a/b\"", "names plugins, and not files"},
      {"[task]\nuse = \"\"", "names plugins, and not files"},
      {"[[callback]]\nuse = \"Evil\"", "names plugins, and not files"},
      {Json{{"task", {{"use", nullptr}}}}, "is null"},
      {Json{{"task", {{"samples", 18446744073709551615U}}}}, ""},  // a float for TOML
      {Json{{"task", {{"use", 3}}}}, "task.use must be a text"},
      {"[[monitor]]\nlisten = 9464", "listen must be a text"},
      {Json{{"task", {{"it's", 1}}}}, "a quote or a control character"},
      {Json{{"task", {{"a\nuse", 1}}}}, "a quote or a control character"},
      {"a." +
           [] {
             std::string deep;
             for (int i = 0; i < 20000; ++i) deep += "a.";
             return deep;
           }() +
           "a = 1",
       "too deeply"},
  };
  for (const auto& [config, refused] : cases) {
    CAPTURE(config.dump().substr(0, 100));
    const auto found = refusal_of(config, {});
    CAPTURE(found);
    CHECK(found.empty() == refused.empty());
    CHECK(found.find(refused) != found.npos);
  }
}

TEST_CASE("serve: JSON becomes the TOML of the same values") {
  const Json config = {{"run", {{"steps", 5}, {"name", "a \"b\"\n"}}},
                       {"task", {{"use", "mlp"}, {"rates", {0.5, 1e-8}}, {"on", false}}},
                       {"callback", {{{"use", "a"}}, {{"use", "b"}}}}};
  const auto text = serve::checked_configuration(config, {});
  const auto again = serve::checked_configuration(text, {});  // it is TOML
  CHECK(again == text);
  for (const char* part : {"steps = 5", "[[callback]]", "1e-08", "on = false"}) CHECK(text.find(part) != text.npos);
}

}  // namespace check_test
