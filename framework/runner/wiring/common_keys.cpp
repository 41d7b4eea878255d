#include "common_keys.h"

#include <vector>

#include "core/synonyms.h"

namespace vernier {

std::string common_key(const std::string& word) {
  static const std::vector<std::string> keys = {"run.steps",          "run.epochs",
                                                "run.seed",           "run.device",
                                                "run.output",         "run.name",
                                                "run.threads",        "run.validate_every",
                                                "run.init_from",      "task.data",
                                                "task.batch_size",    "task.recompute",
                                                "optimizer.momentum", "optimizer.learning_rate",
                                                "optimizer.eps",      "optimizer.weight_decay",
                                                "checkpoint.every",   "accumulation.micro_batches",
                                                "scaler.init_scale",  "callback.schedule.warmup_steps",
                                                "callback.ema.decay", "callback.clip_norm.max_norm",
                                                "precision.level",    "checkpoint.keep_last"};
  for (const auto& key : keys) {
    if (!synonym(word, {key.substr(key.rfind('.') + 1)}).empty()) return key;
  }
  return "";
}

}  // namespace vernier
