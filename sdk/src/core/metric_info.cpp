#include <vernier/metric_info.h>

#include <algorithm>
#include <array>

namespace vernier {

namespace {

constexpr const char* by_trainer = "trainer";
constexpr const char* by_monitors = "monitors, from what the trainer counts";

constexpr const char* by_hardware = "callback/hardware";

constexpr std::array table = {
    MetricInfo{"loss", "", "mean of the training loss over the update's batch", by_trainer},
    MetricInfo{"validation_loss", "", "mean of the loss over the data that is held out", by_trainer},
    MetricInfo{"learning_rate", "", "learning rate of the first parameter group, schedules included", "optimizer"},
    MetricInfo{"grad_norm", "", "2-norm of all gradients before clipping", "callback/clip_norm, callback/recovery"},
    MetricInfo{"scale", "", "factor by which the loss is multiplied before backward", "scaler"},
    MetricInfo{"underflow", "ratio", "share of the gradients that become 0 in 16 bits", "scaler"},
    MetricInfo{"gradient_noise", "", "standard deviation of the noise in the gradients", "callback/gradient_noise"},
    MetricInfo{"perturbed_loss", "", "training loss at the weights a little uphill", "callback/sam"},
    MetricInfo{"trained_validation_loss", "", "validation loss of the weights that are not averaged", "callback/ema"},
    MetricInfo{"accuracy", "ratio", "share of the samples whose class is right", "task"},
    MetricInfo{"bits_per_byte", "", "validation loss in bits for each byte of text", "task/gpt"},
    MetricInfo{"micro_batches", "", "micro-batches in the update, where there are several", by_trainer},
    MetricInfo{"batch", "", "samples in the update, where it has several micro-batches", by_trainer},
    MetricInfo{"epoch", "", "passes over the task's data that are complete", by_monitors, true},
    MetricInfo{"samples", "", "samples trained on since the start of the run", by_monitors, true},
    MetricInfo{"tokens", "", "tokens trained on since the start of the run, where the task counts them", by_monitors,
               true},
    MetricInfo{"updates", "", "updates that were applied since the start of the run", by_monitors, true},
    MetricInfo{"skipped_updates", "", "updates that were skipped since the start of the run", by_monitors, true},
    MetricInfo{"overflows", "", "steps whose gradients were not finite, where there is a scaler", by_monitors, true},
    MetricInfo{"overflow_rate", "ratio", "overflows as a share of the steps in mixed precision", by_monitors},
    MetricInfo{"samples_per_second", "1/s", "samples a second since the last record", by_monitors, false, true},
    MetricInfo{"tokens_per_second", "1/s", "tokens a second since the last record", by_monitors, false, true},
    MetricInfo{"data_wait", "s", "time in which the step waited for its batch", by_trainer, false, true},
    MetricInfo{"forward_time", "s", "time of the forward passes, the loss included", by_trainer, false, true},
    MetricInfo{"backward_time", "s", "time of backward and unscaling", by_trainer, false, true},
    MetricInfo{"communication_time", "s", "time in which this rank waits for others, and sums with them", by_trainer,
               false, true},
    MetricInfo{"update_time", "s", "time of the optimizer, the copies of weights and the scaler", by_trainer, false,
               true},
    MetricInfo{"plugins_time", "s", "time of the listeners of all plugins", by_trainer, false, true},
    MetricInfo{"trainer_time", "s", "time of the trainer itself: copies to undo a step, splitting", by_trainer, false,
               true},
    MetricInfo{"step_time", "s", "time of the whole step: the sum of the times above", by_trainer, false, true},
    MetricInfo{"validation_time", "s", "time of the validation", by_trainer, false, true},
    MetricInfo{"checkpoint_time", "s", "time that a checkpoint before this step held up the run", by_trainer, false,
               true},
    MetricInfo{"cpu_load", "ratio", "share of the machine's processors that were busy", by_hardware, false, true},
    MetricInfo{"memory_resident", "bytes", "memory that the process holds", by_hardware, false, true},
    MetricInfo{"memory_allocated", "bytes", "memory of tensors on the run's device, where it is counted", by_hardware,
               false, true},
    MetricInfo{"cpu_temperature", "degrees Celsius", "temperature of the hottest sensor of a processor", by_hardware,
               false, true},
    MetricInfo{"cpu_energy", "J", "energy of the processors since the process began", by_hardware, true, true},
    MetricInfo{"gpu_temperature", "degrees Celsius", "temperature of the run's GPU", by_hardware, false, true},
    MetricInfo{"gpu_power", "W", "power that the run's GPU draws", by_hardware, false, true},
    MetricInfo{"gpu_clock", "Hz", "clock of the processors of the run's GPU", by_hardware, false, true},
    MetricInfo{"gpu_load", "ratio", "share of the time in which the run's GPU was busy", by_hardware, false, true},
};

}  // namespace

std::span<const MetricInfo> metric_infos() {
  return table;
}

const MetricInfo* metric_info(std::string_view name) {
  const auto found = std::ranges::find(table, name, &MetricInfo::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace vernier
