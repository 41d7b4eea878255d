// Carries out between two steps what plugins asked for: swaps, failures, looks.
#pragma once

#include "saving.h"
#include "step.h"
#include "validation.h"

namespace vernier {

// Main thread only.
class RequestHandler {
 public:
  RequestHandler(Parts& parts, Step& step, Validation& validation, Saving& saving)
      : parts_(parts), step_(step), validation_(validation), saving_(saving) {}

  // See wiring/swap.h. asker: the plugin that wants it, for the text of an error; "": the program.
  void swap(TrainerRun& run, const Table& roles, const std::string& asker = "");
  void agree(const Run& run);  // throws Error on all ranks if they have asked for different things
  void swap_if_asked(TrainerRun& run);
  void cancel_failure_if_swapped();
  void fail_if_asked();            // throws in the asker's name
  void let_look(TrainerRun& run);  // Control::between_steps: each asker in turn, until none asks to be called again

 private:
  Parts& parts_;
  Step& step_;
  Validation& validation_;
  Saving& saving_;
};

}  // namespace vernier
