// Whatever the bytes of a request to a service are, it is answered with what its table of routes allows, and never with
// an error of the server. A configuration that is taken is TOML.
#include <sys/stat.h>
#include <toml++/toml.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "fuzzer.h"
#include "service/api/finetuning_jobs.h"
#include "service/api/job_check.h"
#include "service/http/http_session.h"
#include "service/http/schema.h"

namespace {

namespace fs = std::filesystem;
namespace http = boost::beast::http;
using namespace vernier::schema;
using vernier::HttpRequest;
using vernier::HttpService;

const std::vector<fs::path> data = {"/srv/data"};

// The file of the seeds' token.
class TokenFile {
 public:
  TokenFile() {
    if (::mkdtemp(folder_) == nullptr) std::abort();
    std::ofstream(path()) << "admin " << std::string(40, 't') << "\n";
    ::chmod(path().c_str(), 0600);
  }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  ~TokenFile() {
    std::error_code none;
    fs::remove_all(folder_, none);
  }
  fs::path path() const { return fs::path(folder_) / "tokens"; }

 private:
  char folder_[32] = "/tmp/vernier-fuzz-XXXXXX";
};

HttpResponse taken(const Json& config) {
  const auto text = serve::checked_configuration(config, data);
  must(!toml::parse(text).empty());
  return json_response({{"config", text}});
}

// A route that answers a body, without a queue and without a run.
HttpRoute post(const char* path, HttpResponse (*answer)(const Json& body)) {
  return {.method = "POST",
          .path = path,
          .scope = Scope::control,
          .id = path,
          .summary = "",
          .body = {{"type", "object"}},
          .answer = [answer](const HttpCall& call) {
            try {
              return answer(call.body);
            } catch (const serve::NotAllowed& refused) {
              throw HttpRefused{422, refused.what()};
            }
          }};
}

// A folder with the model "gpt2".
const fs::path& models() {
  static const TokenFile file;
  static const fs::path folder = [] {
    auto models = file.path().parent_path();
    fs::create_directory(models / "gpt2");
    std::ofstream(models / "gpt2/config.json") << R"({"model_type": "gpt2"})";
    return models;
  }();
  return folder;
}

template <serve::FinetuningKind kind>
HttpResponse first(const Json& body) {
  const auto made = serve::finetuning_job_of(kind, body, serve::ModelFolders({models()}));
  const auto text = serve::checked_configuration(made.config, {models()});
  serve::settings_of(text);
  return json_response({{"config", text}});
}

HttpService& service() {
  using serve::FinetuningKind;
  static const TokenFile file;
  static HttpService made(
      "fuzz", "1", vernier::Tokens(file.path(), Scope::admin, [](const std::string&) {}), {"x"},
      {{.method = "GET",
        .path = "/v1/jobs/{id}/history",
        .id = "get_history",
        .summary = "",
        .parameters = {parameter("metric", "query", "", text, true), parameter("points", "query", "", integer)},
        .answer =
            [](const HttpCall& call) {
              return json_response(
                  {{"id", call.integer("id", 0, 1, most)}, {"points", call.integer("points", 2, 2, 99)}});
            }},
       post("/v1/jobs", [](const Json& body) { return taken(body.contains("config") ? body["config"] : Json()); }),
       post("/v1/commands",
            [](const Json& body) {
              serve::check_command(body, data);
              return json_response({{"command", control::command_of(body).name}});
            }),
       post("/finetuning/mixed-precision", first<FinetuningKind::finetune>),
       post("/finetuning/optimized", first<FinetuningKind::optimized>),
       post("/finetuning/setup-mixed-precision",
            [](const Json& body) { return taken(serve::precision_tables(body)); })});
  return made;
}

void check(const HttpResponse& answer) {
  must(answer.status >= 200 && answer.status < 500);
  const bool is_json = answer.content_type.find("json") != std::string::npos;
  must(!is_json || Json::accept(answer.body));
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size, std::size_t most_bytes,
                                               unsigned) {
  return LLVMFuzzerMutate(bytes, size, most_bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  http::request_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(vernier::http_server::header_limit);
  parser.body_limit(64 * 1024);
  boost::system::error_code trouble;
  boost::asio::const_buffer rest(bytes, size);
  while (!trouble && !parser.is_done() && rest.size() > 0) rest += parser.put(rest, trouble);
  if (!parser.is_header_done()) return 0;
  auto request = vernier::http_server::header_of(parser.get());
  request.port = 8080;
  if (const auto refused = vernier::trouble_with_header(request)) {
    check(*refused);
    return 0;
  }
  if (const auto refused = service().refuse(request)) {
    check(*refused);
    return 0;
  }
  // If bytes are missing, the request is read as if its Content-Length were right.
  const std::string_view all(reinterpret_cast<const char*>(bytes), size);
  const auto end = all.find("\r\n\r\n");
  request.body = parser.is_done() || end == all.npos ? parser.get().body() : std::string(all.substr(end + 4));
  check(service().answer(request));
  return 0;
}
