// One request to a server, for programs that ask one now and then.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "http_message.h"

namespace vernier {

// The address of a server: "http://127.0.0.1:8080", "https://machine.example:8080".
struct HttpPlace {
  std::string host, port;
  bool is_encrypted = false;
  std::filesystem::path certificate = {};  // PEM file of who is trusted to sign the server's; "": those of the system
};
HttpPlace place_of(const std::string& url);  // throws HttpError where the text is none of these

// Sends the request and waits for its whole answer. Of the request it takes method, target, fields and body; Host,
// Content-Length and Connection are added. Throws HttpError if there is no connection, no certificate that is
// trusted, or no whole answer within the time.
HttpResponse ask_server(const HttpPlace& place, const HttpRequest& request, std::chrono::milliseconds time);

}  // namespace vernier
