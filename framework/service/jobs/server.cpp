#include "server.h"

#include <vernier/json_in.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/run_files.h"

namespace jobs {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using vernier::Refused;

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto patience = std::chrono::seconds(60);

struct NoAnswer : Refused {
  using Refused::Refused;
};

std::string first_of(const po::variables_map& given, const char* option, const char* variable) {
  if (given.count(option) != 0) return given[option].as<std::string>();
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

fs::path default_token() {
  const char* home = std::getenv("HOME");
  const char* config = std::getenv("XDG_CONFIG_HOME");
  return (config != nullptr ? fs::path(config) : fs::path(home != nullptr ? home : "/") / ".config") / "vernier/token";
}

// The text of a file that nobody else may read, or write.
std::string secret_in(const fs::path& file) {
  const int in = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (in < 0) {
    throw Refused(file.string() + ": the token cannot be read: " + std::strerror(errno) +
                  "; put it there, or name its file in --token-file");
  }
  struct stat status {};
  ::fstat(in, &status);
  char text[65536];
  const auto bytes = S_ISREG(status.st_mode) ? ::read(in, text, sizeof text) : -1;
  ::close(in);
  if ((status.st_mode & 077) != 0) {
    throw Refused(file.string() + ": others may read the token; call chmod 600 on the file");
  }
  if (bytes < 0) throw Refused(file.string() + ": the token cannot be read");
  return {text, static_cast<std::size_t>(bytes)};
}

// A file with a token alone, or one that the server has made: of that, the token with the largest scope but admin.
std::string token_in(const fs::path& file) {
  std::istringstream lines(secret_in(file));
  std::string token;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (first.empty() || first.starts_with('#')) continue;
    if (token.empty() || first == "control") token = second.empty() ? first : second;
  }
  if (token.empty()) throw Refused(file.string() + ": has no token");
  return token;
}

}  // namespace

void Server::add_options(po::options_description& known) {
  known.add_options()("folder", po::value<std::string>())("server", po::value<std::string>())(
      "token-file", po::value<std::string>())("certificate", po::value<std::string>());
}

Server::Server(const po::variables_map& given) {
  auto url = first_of(given, "server", "VERNIER_SERVER");
  fs::path token = first_of(given, "token-file", "VERNIER_TOKEN_FILE");
  if (given.count("folder") != 0) {
    const fs::path folder = given["folder"].as<std::string>();
    if (url.empty() || given.count("server") == 0) folder_ = folder;
    if (given.count("token-file") == 0) token = folder / "tokens";
  }
  url_ = url.empty() ? "http://127.0.0.1:8080" : url;
  certificate_ = first_of(given, "certificate", "VERNIER_CERTIFICATE");
  find_place(std::chrono::seconds(5));
  token_ = token_in(token.empty() ? default_token() : token);
}

// A server that has just been started writes its address a moment later.
void Server::find_place(std::chrono::seconds patience) {
  const auto end = Clock::now() + patience;
  auto url = folder_.empty() ? url_ : "";
  while (!folder_.empty() && !std::getline(std::ifstream(folder_ / "server.url"), url)) {
    if (Clock::now() > end) throw Refused(folder_.string() + ": no server runs in this folder; start `vernier serve`");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  try {
    place_ = vernier::place_of(url);
  } catch (const vernier::HttpError& error) {
    throw Refused(error.what());
  }
  place_.certificate = certificate_;
}

Json Server::get_again(const std::string& target) const {
  auto server = *this;  // a copy, because the server may get another address
  for (const auto end = Clock::now() + patience;;) {
    try {
      return server.get(target);
    } catch (const NoAnswer&) {
      if (Clock::now() > end) throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    server.find_place(patience);
  }
}

Json Server::ask(const std::string& method, const std::string& target, const std::string& body) const {
  vernier::HttpRequest request{.method = method, .target = target};
  request.fields = {{"Authorization", "Bearer " + token_}};
  if (!body.empty()) request.fields.emplace_back("Content-Type", "application/json");
  request.body = body;
  vernier::HttpResponse answer;
  const auto end = Clock::now() + patience;
  do {
    if (answer.status == 429) std::this_thread::sleep_for(std::chrono::seconds(1));  // Retry-After's one second
    try {
      answer = vernier::ask_server(place_, request, patience);
    } catch (const vernier::HttpError& error) {
      throw NoAnswer(error.what());
    }
  } while (answer.status == 429 && Clock::now() < end);
  const auto text = vernier::json_in<Json>(answer.body);
  if (answer.status < 300 && !text.is_discarded()) return text;
  const auto why = text.is_object() ? text.value("detail", "") : "";
  throw Refused(why.empty() ? "the server answers with status " + std::to_string(answer.status) : why);
}

}  // namespace jobs
