// `vernier generate --listen`: a small server that speaks OpenAI's requests for completions.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "generator.h"

namespace vernier {

struct CompletionServer {
  std::string listen;      // an address of this machine, and a port
  std::string tokens;      // file with the tokens; made if there is none
  std::string model;       // its name
  std::size_t queue = 16;  // requests that may wait
  const std::atomic<int>* stop_signal = nullptr;
};

// Answers requests one after another until a signal comes. settings: what a request leaves out. Throws Error where the
// server cannot begin.
void serve_completions(const Generator& generator, const GenerationSettings& settings, const CompletionServer& server);

}  // namespace vernier
