// `vernier generate --listen`, asked as clients of OpenAI's API ask. tests/oracles/openai_client.py asks it with
// OpenAI's own package.
#include <doctest/doctest.h>

#include <regex>

#include "learned_bytes.h"
#include "raw_http.h"

namespace completion_server_test {

using learned_bytes::Learned;
using Json = nlohmann::json;

namespace {

struct Server : Learned {
  // more: one further option at most.
  explicit Server(const std::string& more = "--temperature=0")
      : program({"generate", "out", "--listen", "127.0.0.1:0", "--queue", "2", more}, folder.path()) {
    REQUIRE_MESSAGE(program.wait_until([&] { return program.err().find("/v1") != std::string::npos; }), program.err());
    std::smatch found;
    const auto text = program.err();
    REQUIRE(std::regex_search(text, found, std::regex("http://127.0.0.1:(\\d+)/v1")));
    port = std::stoi(found[1]);
    const auto tokens = read_text(at("generate.tokens"));
    token = tokens.substr(tokens.find("read ") + 5, 64);
  }
  std::string request(const std::string& method, const std::string& path, const std::string& body = "") const {
    return method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\nAuthorization: Bearer " +
           token + "\r\nConnection: close\r\n" +
           (body.empty()
                ? ""
                : "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n") +
           "\r\n" + body;
  }
  // The status and the body.
  std::pair<int, std::string> asked(const std::string& method, const std::string& path,
                                    const std::string& body = "") const {
    const auto answer = ask(port, request(method, path, body));
    REQUIRE(answer.size() > 12);
    return {std::stoi(answer.substr(9, 3)), answer.substr(answer.find("\r\n\r\n") + 4)};
  }
  Json answered(const std::string& path, Json body) const {
    body["model"] = "out";
    const auto [status, text] = asked("POST", path, body.dump());
    CHECK_MESSAGE(status == 200, text);
    return Json::parse(text);
  }

  Program program;
  int port = 0;
  std::string token;
};

}  // namespace

TEST_CASE("completion server: a prompt longer than the server takes is refused with the option that takes it") {
  Server server("--longest-prompt=5");
  CHECK(server.answered("/v1/completions",
                        {{"prompt", "abcde"}, {"max_tokens", 1}, {"temperature", 0}})["choices"][0]["text"] == "f");
  const auto [status, answer] = server.asked("POST", "/v1/completions", R"({"model": "out", "prompt": "abcdef"})");
  CHECK(status == 400);
  CHECK(
      Json::parse(answer)["error"]["message"].get<std::string>().find(
          "the prompt has 6 tokens, and the server takes 5; shorten it, or start the server with --longest-prompt 6") !=
      std::string::npos);
}

TEST_CASE("completion server: answers, streams and refuses as OpenAI's API does, and a signal ends it") {
  Server server;
  CHECK(Json::parse(server.asked("GET", "/v1/models").second)["data"][0]["id"] == "out");
  CHECK(server.asked("GET", "/v1/models/other").first == 404);

  const auto whole = server.answered("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 5}, {"logprobs", 1}});
  CHECK(whole["object"] == "text_completion");
  CHECK(whole["choices"][0]["text"] == "defgh");
  CHECK(whole["choices"][0]["finish_reason"] == "length");
  CHECK(whole["choices"][0]["logprobs"]["tokens"][0] == "d");
  CHECK(whole["usage"] == Json{{"prompt_tokens", 3}, {"completion_tokens", 5}, {"total_tokens", 8}});
  const auto several = server.answered("/v1/completions", {{"prompt", {"abc", "b"}}, {"n", 2}, {"stop", "f"}});
  REQUIRE(several["choices"].size() == 4);
  CHECK(several["choices"][1]["text"] == "de");
  CHECK(several["choices"][3]["text"] == "cde");
  CHECK(several["choices"][3]["finish_reason"] == "stop");
  CHECK(server.answered("/v1/completions", {{"prompt", {97, 98}}, {"max_tokens", 2}})["choices"][0]["text"] == "cd");

  // A stream has the stop word's tokens, too, but of them only the log-probabilities.
  const auto stream = server
                          .asked("POST", "/v1/completions",
                                 R"({"model": "out", "prompt": "ab", "stop": "fg", "stream": true, "logprobs": 0})")
                          .second;
  std::string text, tokens;
  std::vector<int> offsets;
  std::istringstream lines(stream);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: {")) {
      const auto choice = Json::parse(line.substr(6))["choices"][0];
      text += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) continue;
      for (const auto& token : choice["logprobs"]["tokens"]) tokens += token.get<std::string>();
      for (const auto& offset : choice["logprobs"]["text_offset"]) offsets.push_back(offset);
    }
    if (!line.empty()) last = line;
  }
  CHECK(text == "cde");
  CHECK(tokens == "cdefg");
  CHECK(offsets == std::vector{0, 1, 2, 3, 4});
  CHECK(last == "data: [DONE]");

  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"model": "out"})", "'prompt' is missing"},
      {R"({"model": "out", "prompt": "a", "temperature": -1})", "'temperature' must be a number from 0 to 1000"},
      {R"({"model": "out", "prompt": "a", "n": 1.5})", "'n' must be"},
      {R"({"model": "out", "prompt": "a", "echo": true})", "'echo' is not supported"},
      {R"({"model": "out", "prompt": "a", "presence_penalty": 1})", "'presence_penalty' is not supported"},
      {R"({"model": "out", "prompt": "a", "frob": 1})", "'frob' is not supported"},
      {R"({"model": "out", "prompt": ""})", "the prompt is empty"},
      {R"({"model": "out", "prompt": {"x": 5}})", "'prompt' must be a text, or a list of texts or of tokens"},
      {R"({"model": "out", "prompt": [300]})", "has the token 300, and the model's vocabulary is 0 to 255"},
      {R"({"model": "out", "prompt": ")" + std::string(40, 'a') + "\"}", "the model has positions for 32"},
  };
  for (const auto& [body, reason] : wrong) {
    const auto [status, answer] = server.asked("POST", "/v1/completions", body);
    CHECK(status == 400);
    const auto message = Json::parse(answer)["error"]["message"].get<std::string>();
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  }
  const auto [status, answer] = server.asked("POST", "/v1/chat/completions", R"({"model": "out", "messages": []})");
  CHECK(status == 400);
  // A stream begins with its first text, so that what is wrong with its prompt is its status.
  CHECK(server.asked("POST", "/v1/completions", R"({"model": "out", "prompt": "", "stream": true})").first == 400);
  Json many = {{"model", "out"}, {"prompt", std::vector<std::string>(300'000, "a")}};
  CHECK(server.asked("POST", "/v1/completions", many.dump()).second.find("128 are the most") != std::string::npos);
  std::string objects = R"({"model": "out", "prompt": [{})";
  while (objects.size() < 4'000'000) objects += ",{}";
  CHECK(server.asked("POST", "/v1/completions", objects + "]}").first == 400);
  CHECK(server.asked("POST", "/v1/completions", R"({"model": "gpt-4", "prompt": "a"})").first == 404);
  CHECK(server.asked("POST", "/v1/completions", "{").first == 400);
  auto large = server.request("POST", "/v1/completions", "{}");
  large.replace(large.find("Length: 2"), 9, "Length: 5000000");
  CHECK(ask(server.port, large).find("HTTP/1.1 413") == 0);
  const auto token = std::exchange(server.token, std::string(64, '0'));
  const auto [refused, reason] = server.asked("GET", "/v1/models");
  CHECK(refused == 401);
  CHECK(Json::parse(reason)["error"]["code"] == "invalid_api_key");
  server.token = token;

  server.program.send(SIGINT);
  CHECK(server.program.wait() == 0);
}

TEST_CASE("completion server: clients that vanish or do not read keep nobody else waiting, and a full queue says so") {
  Server server("--slide");
  const std::string endless = R"({"model": "out", "prompt": "abc", "max_tokens": 1000000, "n": 64)";
  // With the bytes of a next request, too.
  for (const auto& [more, next] : {std::pair("}", ""), std::pair("}", "P"), std::pair(R"(, "stream": true})", "")}) {
    {
      const Connection gone(server.port);
      gone.send(server.request("POST", "/v1/completions", endless + more) + next);
      if (more[0] == ',') gone.read("data: ");
    }
    CHECK(server.answered("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 2}})["choices"].size() == 1);
  }
  const auto request = server.request("POST", "/v1/completions", endless + R"(, "stream": true})");
  const Connection busy(server.port);
  busy.send(request);
  busy.read("data: ");
  const Connection waiting(server.port), other(server.port);
  for (const auto* each : {&waiting, &other}) {
    each->send(request);
    CHECK(server.asked("GET", "/v1/models").first == 200);  // by then it has read the request, too
  }
  const auto [status, answer] = server.asked("POST", "/v1/completions", endless + "}");
  CHECK(status == 503);
  CHECK(Json::parse(answer)["error"]["message"] == "2 requests wait already; ask again later");
  server.program.send(SIGINT);
  CHECK(server.program.wait() == 0);
}

}  // namespace completion_server_test
