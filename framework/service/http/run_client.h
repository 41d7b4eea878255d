// Asks the callback/control of a run.
#pragma once

#include <chrono>
#include <string>

#include "http_message.h"

namespace vernier {

struct AskedRun {
  std::string url, tokens;  // the texts of control.url and control.tokens in the run's folder; "" if there is none
  std::string who;          // the person or program that asks, for the run's record
  std::chrono::milliseconds time;
};

// Sends a request to the run and waits for its answer, which is JSON. Throws HttpError if the run has no
// callback/control, has not begun, is over, or does not answer in time.
HttpResponse ask_run(const AskedRun& run, const std::string& method, const std::string& target,
                     const std::string& body);

}  // namespace vernier
