// `vernier predict --listen`: answers rows of JSON with what a model predicts for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace vernier {

struct PredictionServer {
  std::string listen;      // an address of this machine, and a port
  std::string tokens;      // file with the tokens; made if there is none
  std::string model;       // its name
  std::size_t queue = 16;  // requests that may wait
  const std::atomic<int>* stop_signal = nullptr;
};

// Makes the predictions for the rows of a request. An Error of Error::Kind::configuration is the client's.
using Predict =
    std::function<nlohmann::ordered_json(const nlohmann::ordered_json& rows, const std::function<bool()>& is_wanted)>;

// Answers requests one after another until a signal comes. Throws Error where the server cannot begin.
void serve_predictions(const PredictionServer& server, const Predict& predict);

}  // namespace vernier
