// Callbacks that add parameters to the model of any task, such as LoRA.
#pragma once

#include <vernier/abi.h>
#include <vernier/run.h>

#include <string>

namespace vernier {

class PublishedModel;

// A callback derives from it beside Callback. Main thread only.
class VERNIER_API ModelAdapter {
 public:
  virtual ~ModelAdapter();
  // Called once, after Task::prepare and [run] init_from, before the model is moved to its device and its parameters
  // become run.parameters. Registers modules in run.model, and freezes parameters by requires_grad_(false). Throws
  // Error if the model does not fit.
  virtual void adapt(Run& run) = 0;
  // For `vernier export`, after the weights of a checkpoint were loaded: adds the effect of the adapter to the model's
  // own weights, and removes what adapt() registered. The run cannot go on after that.
  virtual void merge() = 0;
  // Writes what adapt() added and training changed as a folder of its own, in the format of PEFT. published: the task,
  // if it knows the names of a published model; or null.
  virtual void write_adapter(const std::string& folder, const PublishedModel* published) const = 0;
};

}  // namespace vernier
