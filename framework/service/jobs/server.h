// The job server, as its client sees it.
#pragma once

#include <vernier/json_text.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "service/http/http_client.h"

namespace jobs {

using Json = nlohmann::ordered_json;

class Server {
 public:
  // --folder, --server, --token-file and --certificate, or what the environment says instead. Throws Refused where the
  // token's file cannot be read, or others may read it.
  explicit Server(const boost::program_options::variables_map& given);
  static void add_options(boost::program_options::options_description& known);

  // Throw Refused with what the server says where it refuses, and where it does not answer.
  // get_again() asks for a minute if there is no answer: the server may start anew.
  Json get_again(const std::string& target) const;
  Json get(const std::string& target) const { return ask("GET", target, ""); }
  Json post(const std::string& target) const { return ask("POST", target, ""); }
  Json post(const std::string& target, const Json& body) const { return ask("POST", target, vernier::json_text(body)); }
  Json remove(const std::string& target) const { return ask("DELETE", target, ""); }

 private:
  Json ask(const std::string& method, const std::string& target, const std::string& body) const;
  void find_place(std::chrono::seconds patience);
  std::string url_, certificate_;
  std::filesystem::path folder_;  // folder of a server on this machine; "": none
  vernier::HttpPlace place_;
  std::string token_;
};
int call_jobs(int argc, char** argv);  // vernier-serve is the program of this verb

}  // namespace jobs
