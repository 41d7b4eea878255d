// The routes of the control service.
#pragma once

#include <vector>

#include "commands.h"
#include "service/http/http_service.h"
#include "view.h"

namespace control {

struct ApiContext {
  View& view;
  Board& board;
  std::string configuration;  // TOML
  torch::Device device;
  std::string no_commands;  // why there are none; "" if there are
};

// Called on the server's thread.
std::vector<vernier::HttpRoute> routes(const ApiContext& api);
std::vector<vernier::HttpRoute> page_routes();  // the files of page/, which CMake puts into page.cpp.in

}  // namespace control
