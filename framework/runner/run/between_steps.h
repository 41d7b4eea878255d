// Handles the requests of plugins between two steps: swaps, failures, looks.
#pragma once

#include <vernier/between_steps.h>

#include <functional>
#include <optional>
#include <string>

#include "ending.h"
#include "saving.h"

namespace vernier {

// Main thread only.
class RequestHandler {
 public:
  RequestHandler(Roles& roles, Validation& validation, Saving& saving, Requests& requests, const Ending& ending)
      : roles_(roles), validation_(validation), saving_(saving), requests_(requests), ending_(ending) {}

  // See wiring/swap.h. requester: the plugin that wants it, for the text of an error; "": the program.
  void swap(TrainerRun& run, const Table& roles, const std::string& requester = "");
  void agree(const Run& run) {  // throws Error on all ranks if their requests differ
    if (const auto asked = requests_.take_noted(); !asked.empty()) roles_.ranks.agree(run, asked);
  }
  void swap_if_asked(TrainerRun& run);
  void fail_if_asked();            // throws in the requester's name
  void let_look(TrainerRun& run);  // Control::between_steps: each requester in turn, until none asks to be called again
  // The plugin that ended the run before its last planned step, and why; "" if none did.
  const std::string& finished() const { return requests_.finished(); }

 private:
  class Look;

  Roles& roles_;
  Validation& validation_;
  Saving& saving_;
  Requests& requests_;
  const Ending& ending_;
};

}  // namespace vernier
