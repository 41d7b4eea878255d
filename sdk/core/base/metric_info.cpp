#include <vernier/metric_info.h>

#include <unordered_map>

namespace vernier {

namespace {

constexpr const char* by_trainer = "trainer";
constexpr const char* by_task = "task";
constexpr const char* by_monitors = "monitors, from what the trainer counts";

constexpr const char* by_format = "precision/format";
constexpr const char* by_hardware = "callback/hardware";
constexpr const char* by_layers = "callback/layers";
constexpr const char* by_memory = "callback/memory";
constexpr const char* by_mfu = "callback/mfu";

// A metric of validations.
constexpr MetricInfo judged(const char* name, const char* unit, const char* meaning, const char* source, Better better,
                            double least, double most) {
  return {name, unit, meaning, source, false, false, better, least, most};
}
constexpr auto lower = Better::lower, higher = Better::higher;

constexpr MetricInfo table[] = {
    judged("loss", "", "mean of the training loss over the update's batch", by_trainer, lower, -HUGE_VAL, HUGE_VAL),
    judged("validation_loss", "", "mean of the loss over the data that is held out", by_trainer, lower, -HUGE_VAL,
           HUGE_VAL),
    {"learning_rate", "", "learning rate of the first parameter group, schedules included", "optimizer"},
    {"grad_norm", "", "2-norm of all gradients before clipping", "callback/clip_norm, callback/recovery"},
    {"scale", "", "factor by which the loss is multiplied before backward", "scaler"},
    {"underflow", "ratio", "share of the gradients that become 0 in 16 bits", "scaler"},
    {"gradient_noise", "", "standard deviation of the noise in the gradients", "callback/gradient_noise"},
    {"update_ratio", "ratio", "2-norm of the update over that of the weights", by_layers},
    {"layer_grad_norm", "", "2-norm of the layer's gradients; layer_grad_norm/h.0.mlp", by_layers},
    {"layer_grad_max", "", "largest magnitude of the layer's gradients", by_layers},
    {"layer_update_ratio", "ratio", "2-norm of the layer's update over that of its weights", by_layers},
    {"layer_precision", "", "significant bits of the layer's results: 24 float32, 11 float16, 8 bfloat16", by_layers},
    {"format_sqnr", "dB", "squares of the numbers over those of their rounding errors; format_sqnr/h.0.mlp/x",
     by_format},
    {"format_saturated", "ratio", "share of the numbers beyond the largest of their format and scale", by_format},
    {"format_flushed", "ratio", "share of the numbers that become 0 and were not", by_format},
    {"format_used_codes", "ratio", "share of the codes of a format of up to 16 bits that occur", by_format},
    {"format_amax", "", "largest magnitude of the numbers", by_format},
    {"format_direction", "", "cosine of the layer's gradient and that without rounding; format_direction/h.0.mlp",
     by_format},
    {"perturbed_loss", "", "training loss at the weights a little uphill", "callback/sam"},
    judged("trained_validation_loss", "", "validation loss of the weights that are not averaged", "callback/ema", lower,
           -HUGE_VAL, HUGE_VAL),
    judged("accuracy", "ratio", "share of the samples whose class is right", by_task, higher, 0, 1),
    judged("top_k", "ratio", "share of the samples whose class is among the k likeliest; top_5", by_task, higher, 0, 1),
    judged("f1", "ratio", "mean of the f1 of the classes that occur, as target or prediction", by_task, higher, 0, 1),
    judged("auc", "ratio", "area under the receiver operating characteristic of two classes", by_task, higher, 0, 1),
    judged("perplexity", "", "exponential of the mean cross-entropy", by_task, lower, 1, HUGE_VAL),
    judged("mae", "", "mean absolute error, in the unit of the target", by_task, lower, 0, HUGE_VAL),
    judged("rmse", "", "root of the mean squared error, in the unit of the target", by_task, lower, 0, HUGE_VAL),
    judged("r2", "", "share of the target's variance that is explained; 0 for its mean", by_task, higher, -HUGE_VAL, 1),
    judged("ndcg_k", "ratio", "gain of the k first items of a group over that of the best order; ndcg_10", by_task,
           higher, 0, 1),
    judged("mrr", "ratio", "mean over the groups of 1 / place of the first relevant item", by_task, higher, 0, 1),
    judged("bits_per_byte", "", "validation loss in bits for each byte of text", "task/gpt", lower, 0, HUGE_VAL),
    {"micro_batches", "", "micro-batches in the update, where there are several", by_trainer},
    {"batch", "", "samples in the update, where it has several micro-batches", by_trainer},
    {"epoch", "", "passes over the task's data that are complete", by_monitors, true},
    {"samples", "", "samples trained on since the start of the run", by_monitors, true},
    {"tokens", "", "tokens trained on since the start of the run, where the task counts them", by_monitors, true},
    {"updates", "", "updates that were applied since the start of the run", by_monitors, true},
    {"skipped_updates", "", "updates that were skipped since the start of the run", by_monitors, true},
    {"overflows", "", "steps whose gradients were not finite, where there is a scaler", by_monitors, true},
    {"overflow_rate", "ratio", "overflows as a share of the steps in mixed precision", by_monitors},
    {"samples_per_second", "1/s", "samples a second since the last record", by_monitors, false, true},
    {"tokens_per_second", "1/s", "tokens a second since the last record", by_monitors, false, true},
    {"model_flops", "", "floating-point operations of the model's products in the step", by_mfu},
    {"model_flops_per_second", "1/s", "floating-point operations of the model's products a second", by_mfu, false,
     true},
    {"mfu", "ratio", "these as a share of the peak of this process's device", by_mfu, false, true},
    {"data_wait", "s", "time in which the step waited for its batch", by_trainer, false, true},
    {"forward_time", "s", "time of the forward passes, the loss included", by_trainer, false, true},
    {"backward_time", "s", "time of backward and unscaling", by_trainer, false, true},
    {"communication_time", "s", "time in which this rank waits for others, and sums with them", by_trainer, false,
     true},
    {"update_time", "s", "time of the optimizer, the copies of weights and the scaler", by_trainer, false, true},
    {"plugins_time", "s", "time of the listeners of all plugins", by_trainer, false, true},
    {"trainer_time", "s", "time of the trainer itself: copies to undo a step, splitting", by_trainer, false, true},
    {"step_time", "s", "time of the whole step: the sum of the times above", by_trainer, false, true},
    {"validation_time", "s", "time of the validation", by_trainer, false, true},
    {"checkpoint_time", "s", "time that a checkpoint before this step held up the run", by_trainer, false, true},
    {"cpu_load", "ratio", "share of the machine's processors that were busy", by_hardware, false, true},
    {"memory_resident", "bytes", "memory that the process holds", by_hardware, false, true},
    {"memory_allocated", "bytes", "memory of tensors on the run's device, where it is counted", by_hardware, false,
     true},
    {"memory_peak", "bytes", "most bytes of tensors at one moment of the step", by_memory, false, true},
    {"memory_weights", "bytes", "bytes of the model's parameters", by_memory, false, true},
    {"memory_buffers", "bytes", "bytes of the model's buffers", by_memory, false, true},
    {"memory_masters", "bytes", "bytes of the weights that the optimizer changes, where these are others", by_memory,
     false, true},
    {"memory_gradients", "bytes", "bytes of the gradients", by_memory, false, true},
    {"memory_optimizer", "bytes", "bytes of the optimizer's state", by_memory, false, true},
    {"memory_weight_copies", "bytes", "bytes of the casts of weights that are kept until backward", by_memory, false,
     true},
    {"memory_activations", "bytes", "bytes that are kept from forward for backward", by_memory, false, true},
    {"memory_batch", "bytes", "bytes of the micro-batch", by_memory, false, true},
    {"memory_other", "bytes", "bytes of what else is left when the step ends", by_memory, false, true},
    {"cpu_temperature", "degrees Celsius", "temperature of the hottest sensor of a processor", by_hardware, false,
     true},
    {"cpu_energy", "J", "energy of the processors since the process began", by_hardware, true, true},
    {"gpu_temperature", "degrees Celsius", "temperature of the run's GPU", by_hardware, false, true},
    {"gpu_power", "W", "power that the run's GPU draws", by_hardware, false, true},
    {"gpu_clock", "Hz", "clock of the processors of the run's GPU", by_hardware, false, true},
    {"gpu_load", "ratio", "share of the time in which the run's GPU was busy", by_hardware, false, true},
};

}  // namespace

std::span<const MetricInfo> metric_infos() {
  return table;
}

const MetricInfo* metric_info(std::string_view name) {
  auto kind = name.substr(0, name.find('/'));            // of "layer_grad_norm/h.0.mlp"
  const auto end = kind.find_last_not_of("0123456789");  // of "top_5"
  if (end != kind.npos && end + 1 < kind.size()) {
    if (kind.substr(0, end + 1) == "top_") kind = "top_k";
    if (kind.substr(0, end + 1) == "ndcg_") kind = "ndcg_k";
  }
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const MetricInfo*> all;
    for (const auto& info : table) all.emplace(info.name, &info);
    return all;
  }();
  const auto found = by_name.find(kind);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace vernier
