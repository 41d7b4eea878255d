// `vernier predict` for rows in the command, in a pipe and in requests: the same numbers as for a file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <torch/types.h>

#include <chrono>
#include <fstream>
#include <regex>

#include "picture_folder.h"
#include "raw_http.h"
#include "run_folder.h"
#include "thrown.h"
#include "tools/predict/predictions.h"

namespace predict_rows_test {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

constexpr const char* frame =
    "[run]\nsteps = 8\noutput = 'out'\ndevice = 'cpu'\nthreads = 1\n[optimizer]\nuse = 'adamw'\n[task]\n";

std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

std::string npy(const std::vector<double>& numbers, const std::string& shape) {
  std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  header += '\n';
  std::string bytes = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  for (const double number : numbers) bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  return bytes;
}

// A run of a task, a file to predict for, and its rows as JSON.
struct Kind {
  std::string name, task;
  void (*write)(RunFolder&);  // data, and the file `new…`
  std::string input;
  Json (*rows)();
};

std::string table_text(bool with_class, const char* separator = ",", bool has_comma = false) {
  std::string text = with_class ? std::string("x") + separator + "word" + separator + "class\n"
                                : std::string("x") + separator + "word\n";
  for (int i = 0; i < (with_class ? 60 : 5); ++i) {
    auto number = std::to_string(0.25 * i);
    if (has_comma) number.replace(number.find('.'), 1, ",");
    text += number + separator + (i % 3 == 0 ? "\"a, b\"" : "c");
    text += with_class ? std::string(separator) + (i % 2 == 0 ? "up\n" : "down\n") : "\n";
  }
  return text;
}

Json table_rows() {
  Json rows = Json::array();
  for (int i = 0; i < 5; ++i) rows.push_back({{"x", 0.25 * i}, {"word", i % 3 == 0 ? "a, b" : "c"}});
  return rows;
}

const Kind kinds[] = {
    {"table", "use = 'tabular'\ndata = 'd.csv'\ntarget = 'class'\n",
     [](RunFolder& run) {
       run.folder.write("d.csv", table_text(true));
       run.folder.write("new.csv", table_text(false));
     },
     "new.csv", table_rows},
    {"table with other signs",
     "use = 'tabular'\ndata = 'd.csv'\ntarget = 'class'\nseparator = ';'\ndecimal = ','\nskip_lines = 1\n",
     [](RunFolder& run) {
       run.folder.write("d.csv", "a title\n" + table_text(true, ";", true));
       run.folder.write("new.csv", "a title\n" + table_text(false, ";", true));
     },
     "new.csv", table_rows},
    {"texts", "use = 'text'\ndata = 'd.jsonl'\ntext = ['review']\nlayers = 1\nwidth = 16\n",
     [](RunFolder& run) {
       std::string text;
       for (int i = 0; i < 40; ++i) {
         text += Json{{"review", i % 2 == 0 ? "a fine\nday" : "a \"bad\" one"}, {"label", i % 2 == 0 ? "good" : "bad"}}
                     .dump() +
                 "\n";
       }
       run.folder.write("d.jsonl", text);
       run.folder.write("new.jsonl", "{\"review\": \"a fine\\nday\"}\n{\"review\": \"a bad one\"}\n");
     },
     "new.jsonl",
     [] {
       return Json{{{"review", "a fine\nday"}}, {{"review", "a bad one"}}};
     }},
    {"sequences", "use = 'sequence'\ndata = 'x.npy'\ntargets = 'y.npy'\nkind = 'classification'\n",
     [](RunFolder& run) {
       std::vector<double> x, y;
       for (int i = 0; i < 160; ++i) x.push_back(0.1 * (i % 7));
       for (int i = 0; i < 40; ++i) y.push_back(i % 2);
       run.folder.write("x.npy", npy(x, "40, 4"));
       run.folder.write("y.npy", npy(y, "40,"));
       run.folder.write("new.npy", npy({0.5, 1, 1.5, 2, 3, 4, 5, 6}, "2, 4"));
     },
     "new.npy",
     [] {
       return Json{{0.5, 1, 1.5, 2}, {3, 4, 5, 6}};
     }},
    {"images", "use = 'images'\nimages = 'd'\nvalidation_share = 0.0\nbatch_size = 8\n",
     [](RunFolder& run) {
       write_stripes(run.folder, "d", 10);
       for (std::uint32_t i = 0; i < 3; ++i)
         run.folder.write("new/" + std::to_string(i), png(8, 10, 3, striped(i, 8, 10)));
     },
     "new",
     [] {
       Json rows = Json::array();
       for (std::uint32_t i = 0; i < 3; ++i) rows.push_back(base64(png(8, 10, 3, striped(i, 8, 10))));
       return rows;
     }},
};

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::string stdin_file;  // the standard input of the next call
int call_with_stdin(RunFolder& run, const Words& words, const std::string& text) {
  stdin_file = run.folder.write("stdin", text);
  return run.call(words, [] { ::dup2(::open(stdin_file.c_str(), O_RDONLY), 0); });
}

struct Server {
  explicit Server(RunFolder& run, const Words& more = {}) : program(words(more), run.folder.path()) {
    REQUIRE_MESSAGE(program.wait_until([&] { return says(program.err(), "/v1/predict"); }), program.err());
    std::smatch found;
    const auto text = program.err();
    REQUIRE(std::regex_search(text, found, std::regex("http://127.0.0.1:(\\d+)/v1")));
    port = std::stoi(found[1]);
    const auto tokens = read_text(run.at("predict.tokens"));
    token = tokens.substr(tokens.find("read ") + 5, 64);
  }
  static Words words(const Words& more) {
    Words all = {"predict", "out", "--listen", "127.0.0.1:0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string request(const std::string& method, const std::string& path, const std::string& body) const {
    return method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\nAuthorization: Bearer " +
           token + "\r\nConnection: close\r\n" +
           (body.empty()
                ? ""
                : "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n") +
           "\r\n" + body;
  }
  std::pair<int, std::string> asked(const std::string& path, const std::string& body) const {
    const auto answer = ask(port, request(body.empty() ? "GET" : "POST", path, body));
    REQUIRE(answer.size() > 12);
    return {std::stoi(answer.substr(9, 3)), answer.substr(answer.find("\r\n\r\n") + 4)};
  }
  Json predicted(const Json& rows, const std::string& path = "/v1/predict") const {
    const auto [status, text] = asked(path, Json{{"instances", rows}}.dump());
    CHECK_MESSAGE(status == 200, text);
    return status == 200 ? Json::parse(text).at("predictions") : Json();
  }

  Program program;
  int port = 0;
  std::string token;
};

// A row with so many columns.
std::string keys_of(int count) {
  std::string text = R"({"instances": [{"x": 1)";
  for (int i = 0; i < count; ++i) text += ", \"k" + std::to_string(i) + "\": 1";
  return text + "}]}";
}

}  // namespace

TEST_CASE("predict: a file, a pipe, the command and a request have the same numbers") {
  for (const auto& kind : kinds) {
    CAPTURE(kind.name);
    RunFolder run(std::string(frame) + kind.task);
    kind.write(run);
    REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
    REQUIRE_MESSAGE(run.call({"predict", "out", "--input", kind.input, "--output", "p.jsonl"}) == 0, run.err);
    const auto expected = lines_of(read_text(run.at("p.jsonl")));
    const auto rows = kind.rows();
    REQUIRE(expected.size() == rows.size());
    std::string lines;
    for (const auto& row : rows) lines += row.dump() + "\n";
    const bool is_of_lists = !rows[0].is_object();
    CHECK_MESSAGE(call_with_stdin(run, {"predict", "out", "--input", "-"}, is_of_lists ? rows.dump() : lines) == 0,
                  run.err);
    CHECK(lines_of(run.out) == expected);
    if (rows[0].is_object()) {
      CHECK_MESSAGE(run.call({"predict", "out", "--row", rows.dump()}) == 0, run.err);
      CHECK(lines_of(run.out) == expected);
    }
    if (kind.name == "images") {  // a list of the same files, and the bytes of the first
      run.folder.write("list.csv", "label,file\nleft,new/0\nleft,new/1\nright,new/2\n");
      CHECK_MESSAGE(run.call({"predict", "out", "--input", "list.csv", "--output", "l.jsonl"}) == 0, run.err);
      auto listed = expected;
      for (auto& row : listed) row["image"] = "new/" + row["image"].get<std::string>();
      CHECK(lines_of(read_text(run.at("l.jsonl"))) == listed);
      CHECK(call_with_stdin(run, {"predict", "out", "--input", "-"}, read_text(run.at("new/0"))) == 0);
      CHECK_MESSAGE(says(run.out, "image,class,probability\n0,"), run.out);
      CHECK(call_with_stdin(run, {"predict", "out", "--input", "-"}, "GIF89a") == 2);
      CHECK_MESSAGE(says(run.err, "row 1: is a GIF or a BMP; convert it to PNG"), run.err);
    }
    if (kind.input == "new.csv") {
      REQUIRE(run.call({"predict", "out", "--input", "new.csv", "--output", "p.csv"}) == 0);
      CHECK(call_with_stdin(run, {"predict", "out", "--input", "-", "--output", "-"}, read_text(run.at("new.csv"))) ==
            0);
      CHECK(run.out == read_text(run.at("p.csv")));
      Words words = {"predict", "out", "--row"};
      for (const auto& row : rows)
        words.insert(words.end(), {"x=" + row["x"].dump(), "word=" + row["word"].get<std::string>()});
      CHECK_MESSAGE(run.call(words) == 0, run.err);
      CHECK(run.out == read_text(run.at("p.csv")));
    }
    const Server server(run);
    for (const char* path : {"/v1/predict", "/invocations", "/v1/models/out:predict"}) {
      CHECK(server.predicted(rows, path) == Json(expected));
    }
    if (!rows[0].is_array()) CHECK(server.predicted(rows[0]).size() == 1);
    server.program.send(SIGINT);
  }
}

TEST_CASE("predict: the server names the row and the column, takes no more than it can, and a signal ends it") {
  RunFolder run(std::string(frame) + kinds[0].task);
  kinds[0].write(run);
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  Server server(run, {"--queue", "2"});
  CHECK(server.asked("/health", "").second == "{\"status\":\"ok\"}\n");
  const Json split = {{"columns", {"word", "x"}}, {"data", Json::array({Json::array({"c", 0.25})})}};
  CHECK(Json::parse(server.asked("/invocations", Json{{"dataframe_split", split}}.dump()).second)["predictions"] ==
        server.predicted({{{"x", 0.25}, {"word", "c"}}}));
  struct Wrong {
    std::string body, says;
    Json row = nullptr, column = nullptr;
  };
  const std::string good = R"({"x": 1, "word": "c"})";
  const Wrong wrong[] = {
      {"{", ""},
      {"[]", ""},
      {"{}", "write {\"instances\": [{\"COLUMN\": VALUE, …}, …]}"},
      {R"({"instances": []})", "there is no row"},
      {R"({"instances": 5})", "instances[0]: must be an object with a value for each column", 0},
      {R"({"instances": ["a text"]})", "instances[0]: is a text", 0},
      {R"({"instances": [)" + good + R"(, {"x": "large", "word": "c"}]})", "instances[1], column 'x' is 'large'", 1,
       "x"},
      {R"({"instances": [)" + good + R"(, {"x": 1}]})", "instances[1]: has no column 'word'", 1, "word"},
      {R"({"instances": [)" + good + R"(, {"x": 1, "word": [2]}]})", "instances[1]: column 'word' is a list", 1,
       "word"},
      {R"({"instances": [)" + good + ", 7]}", "instances[1]: is not of the kind of the first", 1},
      {R"({"instances": [{"y": 1}]})", "has no column"},
      {R"({"instances": [{"x": 1, "word": "\u0000"}]})", "NUL"},
      {R"({"instances": [[[[[[[[[[[1]]]]]]]]]]]})", ""},
      {R"({"instances": [[1, 2], [3]]})", ""},
      {R"({"dataframe_split": {"columns": ["x"], "data": [[1, 2]]}})", "instances[0]", 0},
      {R"({"dataframe_split": {"columns": [1], "data": [[1]]}})", "list of names"},
      {R"({"instances": [)" + good + R"(, {"x": 1, ")" + std::string(1'000'000, 'y') + R"(": 2}]})", "instances[1]", 1},
      {Json{{"dataframe_split", {{"columns", std::vector<std::string>(20'000, "c")}, {"data", {{1}}}}}}.dump(),
       "too many columns"},
      {keys_of(60'000), "has objects with too many keys"},
  };
  for (const auto& each : wrong) {
    CAPTURE(each.body);
    const auto [status, text] = server.asked("/v1/predict", each.body);
    CHECK_MESSAGE((status == 400 || status == 422), text);
    const auto answer = Json::parse(text);
    CHECK_MESSAGE(says(answer.at("error").get<std::string>(), each.says), text);
    if (!each.row.is_null()) CHECK(answer.value("row", Json()) == each.row);
    if (!each.column.is_null()) CHECK(answer.value("column", Json()) == each.column);
    CHECK(!says(text, "/tmp"));
  }
  auto large = server.request("POST", "/v1/predict", "{}");
  large.replace(large.find("Length: 2"), 9, "Length: 5000000");
  CHECK(ask(server.port, large).find("HTTP/1.1 413") == 0);
  const auto token = std::exchange(server.token, std::string(64, '0'));
  CHECK(server.asked("/v1/predict", R"({"instances": []})").first == 401);
  CHECK(server.asked("/health", "").first == 200);
  server.token = token;
  for (int i = 0; i < 3; ++i) {  // clients that leave
    const Connection gone(server.port);
    gone.send(server.request("POST", "/v1/predict", R"({"instances": [)" + good + "]}"));
  }
  CHECK(server.predicted(Json::array({Json::parse(good)})).size() == 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a sanitizer adds memory of its own
  // The memory of many requests is that of a few.
  const auto resident = [&] {
    std::ifstream file("/proc/" + std::to_string(server.program.pid()) + "/statm");
    std::int64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * 4096;
  };
  const auto rows = Json::array({Json::parse(good)});
  for (int i = 0; i < 100; ++i) server.predicted(rows);
  const auto before = resident();
  for (int i = 0; i < 300; ++i) server.predicted(rows);
  CHECK(resident() - before < 8 << 20);
#endif
  server.program.send(SIGINT);
  CHECK(server.program.wait() == 0);
}

TEST_CASE("predict: what a row lacks is one line, and standard output has rows alone") {
  RunFolder run(std::string(frame) + kinds[0].task);
  kinds[0].write(run);
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  const std::pair<Words, std::string> cases[] = {
      {{"predict", "out", "--row", "x=1"}, "'word'"},
      {{"predict", "out", "--row", "x=large", "word=c"}, "row 1, column 'x' is 'large'"},
      {{"predict", "out", "--row", "x=1", "word=c", "x=2"}, "row 2: has no column 'word'"},
      {{"predict", "out", "--row", "word"}, "--row word: write NAME=VALUE for each column"},
      {{"predict", "out", "--row", "{\"x\": }"}, "is not JSON"},
      {{"predict", "out", "--row", "x=1", "--input", "new.csv"}, "give --input FILE, --row NAME=VALUE"},
      {{"predict", "out"}, "give --input FILE, --row NAME=VALUE"},
      {{"predict", "out", "--input", "-"}, "standard input is empty"},
      {{"predict", "out", "--listen", "0.0.0.0:0"}, "is reached by other machines"},
      {{"predict", "out", "--listen", "127.0.0.1:0", "--output", "p.csv"}, "--output is not for --listen"},
  };
  for (const auto& [words, text] : cases) {
    CAPTURE(words.back());
    CHECK(run.call(words) == 2);
    CHECK_MESSAGE(says(run.err, text), run.err);
    CHECK(is_one_line(run.err));
    CHECK(run.out.empty());
  }
  const std::pair<std::string, std::string> pipes[] = {
      {"x,word\n1,c\nlarge,c\n", "standard input line 3, column 'x' is 'large'"},
      {"x,word\n", "standard input "},
      {"[]", "there is no row in standard input; write [{\"carat\": 0.3}]"},
      {"[1, 2]", "row 1: must be an object with a value for each column"},
      {"{x: 1}", "standard input line 1 is not JSON, in which names and words have double quotes"},
      {std::string("PAR1\x15\0", 6), "standard input is a Parquet file; write it to a file, and name that by --input"},
      {png(4, 4, 3, striped(1, 4, 4)), "standard input is a PNG image, not a CSV file"},
  };
  for (const auto& [text, part] : pipes) {
    CAPTURE(part);
    CHECK(call_with_stdin(run, {"predict", "out", "--input", "-"}, text) == 2);
    CHECK_MESSAGE(says(run.err, part), run.err);
    CHECK(!says(run.err, "rows.csv"));
  }
  CHECK(run.call({"predict", "out", "--row", "x=1", "word=new"}) >= 0);
  CHECK((run.out.empty() || run.out.starts_with("class,")));
}

TEST_CASE("predict: a row of a table of arrays is a list") {
  RunFolder run(std::string(frame) + "use = 'tabular'\ndata = 'd.npz:x'\ntargets = 'd.npz:y'\nhidden = [4]\n");
  const auto x = torch::arange(40, torch::kFloat64).sin().view({20, 2});
  const auto arrays = vernier::write_predictions(run.at("d.npz"), "d.npz");
  arrays->add({{"x", x}, {"y", x.select(1, 0).clone()}}, 20);
  arrays->finish();
  run.folder.write("new.npy", npy({0.5, 1}, "1, 2"));
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  REQUIRE_MESSAGE(run.call({"predict", "out", "--input", "new.npy", "--output", "p.jsonl"}) == 0, run.err);
  CHECK_MESSAGE(run.call({"predict", "out", "--row", "[0.5, 1]"}) == 0, run.err);
  CHECK(run.out == read_text(run.at("p.jsonl")));
}

TEST_CASE("predict: the steps of a series are rows, alone and in a list") {
  RunFolder run(std::string(frame) + "use = 'sequence'\ndata = 's.npy'\nkind = 'forecast'\ncontext = 4\nwidth = 4\n");
  std::vector<double> steps;
  for (int i = 0; i < 60; ++i) steps.push_back(i % 6);
  run.folder.write("s.npy", npy(steps, "60,"));
  REQUIRE_MESSAGE(run.train({"--quiet"}) == 0, run.err);
  REQUIRE_MESSAGE(run.call({"predict", "out", "--row", "[0, 1, 2, 3]"}) == 0, run.err);
  const auto forecast = run.out;
  for (const char* rows : {"[[0], [1], [2], [3]]", "[[0, 1, 2, 3]]"}) {
    CHECK_MESSAGE(run.call({"predict", "out", "--row", rows}) == 0, run.err);
    CHECK(run.out == forecast);
  }
  CHECK(call_with_stdin(run, {"predict", "out", "--input", "-"}, "[0, 1, 2, 3]") == 0);
  CHECK(run.out == forecast);
  CHECK(run.call({"predict", "out", "--row", "[[0, 1], [1, 2], [2, 3], [3, 4]]"}) == 2);
  CHECK_MESSAGE(says(run.err, "2 numbers in a step; the series to train on has 1"), run.err);
}

}  // namespace predict_rows_test
