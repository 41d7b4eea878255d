#include "preparation.h"

namespace vernier {

namespace {

MetricInfo number(const char* name, const char* meaning, const char* unit = "") {
  return {.name = name, .unit = unit, .meaning = meaning};
}
MetricInfo count(const char* name, const char* meaning) {
  return {.name = name, .meaning = meaning, .is_count = true};
}
MetricInfo measured(const char* name, const char* unit, const char* meaning) {
  return {.name = name, .unit = unit, .meaning = meaning, .varies = true};
}

}  // namespace

std::vector<MetricInfo> trainer_metrics() {
  return {{"loss", Better::lower, "", "mean of the training loss over the update's batch"},
          {"validation_loss", Better::lower, "", "mean of the loss over the data that is held out"},
          number("micro_batches", "micro-batches in the update, where there are several"),
          number("batch", "samples in the update, where it has several micro-batches"),
          count("epoch", "passes over the task's data that are complete"),
          count("samples", "samples trained on since the start of the run"),
          count("tokens", "tokens trained on since the start of the run, where the task counts them, without filling"),
          count("updates", "updates that were applied since the start of the run"),
          count("skipped_updates", "updates that were skipped since the start of the run"),
          count("overflows", "steps whose gradients were not finite, where there is a scaler"),
          number("overflow_rate", "overflows as a share of the steps in mixed precision", "ratio"),
          measured("samples_per_second", "1/s", "samples a second since the last record"),
          measured("tokens_per_second", "1/s", "tokens a second since the last record, without filling"),
          measured("data_wait", "s", "time in which the step waited for its batch"),
          measured("forward_time", "s", "time of the forward passes, the loss included"),
          measured("backward_time", "s", "time of backward and unscaling"),
          measured("communication_time", "s", "time in which this rank waits for others, and sums with them"),
          measured("update_time", "s", "time of the optimizer, the copies of weights and the scaler"),
          measured("plugins_time", "s", "time of the listeners of all plugins"),
          measured("trainer_time", "s", "time of the trainer itself: copies to undo a step, splitting"),
          measured("step_time", "s", "time of the whole step: the sum of the times above"),
          measured("validation_time", "s", "time of the validation"),
          measured("checkpoint_time", "s", "time that a checkpoint before this step held up the run")};
}

}  // namespace vernier
