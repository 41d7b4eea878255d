#include "synonyms.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace vernier {

namespace {

using Words = std::vector<std::string>;

// Each line has words of one meaning. A word may stand in several lines.
const std::vector<Words>& meanings() {
  static const std::vector<Words> all = {
      // precisions, their dtypes, and what is off
      {"fp32", "float32", "float", "single", "32", "32_true", "f32", "no", "none", "off"},
      {"fp16", "float16", "half", "16", "16_mixed", "16_true", "fp16_mixed", "f16"},
      {"bf16", "bfloat16", "bfloat", "bf16_mixed", "bf16_true"},
      {"fp8", "float8", "8", "fp8_mixed", "transformer_engine"},
      {"8bit", "int8", "adam8bit", "adamw8bit"},
      {"none", "no", "off", "false", "disabled"},
      // tables
      {"run", "train", "training", "trainer"},
      {"task", "model", "data", "dataset"},
      {"precision", "mixed_precision", "amp", "autocast", "dtype"},
      {"scaler", "grad_scaler", "loss_scaler"},
      {"accumulation", "gradient_accumulation", "grad_accumulation"},
      {"optimizer", "optimiser", "optim"},
      {"checkpoint", "checkpoints", "checkpointing", "saving"},
      {"distributed", "ddp", "dist"},
      {"callback", "callbacks"},
      {"monitor", "monitors", "logger", "loggers", "logging"},
      // plugins
      {"adamw", "adam", "adamw_torch", "adamw_fused", "fused_adam"},
      {"dynamic", "grad_scaler", "amp"},
      {"clip_norm", "clip_grad_norm", "grad_clip", "gradient_clipping", "max_grad_norm"},
      {"clip_value", "clip_grad_value"},
      {"schedule", "scheduler", "lr_scheduler", "cosine", "linear"},
      {"zero1", "zero", "zero_optimization", "deepspeed"},
      {"progress", "progress_bar", "tqdm"},
      {"gpt", "gpt2", "nanogpt", "transformer"},
      {"images", "image", "mnist", "cnn"},
      // metrics
      {"accuracy", "acc", "top_1", "top1", "val_acc", "val_accuracy", "validation_accuracy", "categorical_accuracy",
       "sparse_categorical_accuracy", "binary_accuracy", "accuracy_score", "pixel_accuracy", "token_accuracy"},
      {"top_5", "top5", "top_k", "topk", "top_5_accuracy", "top5_accuracy", "top_k_accuracy", "acc5"},
      {"f1", "f1_score", "f1_macro", "macro_f1", "fscore", "f_score", "precision", "recall"},
      {"dice", "dice_score", "dice_coefficient", "mean_dice", "dsc"},
      {"iou", "mean_iou", "miou", "jaccard", "jaccard_score", "jaccard_index", "iou_score"},
      {"auc", "roc_auc", "auroc", "rocauc", "roc_auc_score"},
      {"perplexity", "ppl"},
      {"mae", "mean_absolute_error", "l1", "l1_loss"},
      {"rmse", "mse", "mean_squared_error", "root_mean_squared_error", "l2_loss"},
      {"r2", "r2_score", "r_squared", "rsquared", "r^2"},
      {"bits_per_byte", "bpb", "bits_per_char", "bpc"},
      {"validation_loss", "val_loss", "eval_loss", "valid_loss", "test_loss", "dev_loss", "loss"},
      // options and flags
      {"metric", "monitor", "metric_for_best_model", "monitored", "quantity"},
      {"steps", "max_steps", "num_steps", "total_steps", "train_steps", "iterations", "iters", "max_iters"},
      {"epochs", "num_epochs", "max_epochs", "num_train_epochs"},
      {"validate_every", "eval_every", "eval_steps", "eval_interval", "val_check_interval"},
      {"every", "interval", "save_every", "save_steps", "log_every", "log_interval", "logging_steps", "log_frequency",
       "log_every_n_steps"},
      {"seed", "random_seed", "manual_seed"},
      {"threads", "num_threads", "n_threads"},
      {"output", "output_dir", "out_dir", "save_dir", "log_dir"},
      {"device", "accelerator"},
      {"init_from", "pretrained", "weights", "load_from", "init_checkpoint"},
      {"resume", "resume_from", "resume_from_checkpoint", "continue"},
      {"data", "dataset", "data_dir", "data_path", "files"},
      {"batch_size", "bs", "batch", "train_batch_size", "per_device_train_batch_size"},
      {"gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches", "accumulation_steps",
       "grad_accum"},
      {"micro_batch_size", "microbatch_size", "mbs"},
      {"recompute", "grad_ckpt", "gradient_checkpointing", "activation_checkpointing", "grad_checkpointing"},
      {"learning_rate", "lr", "base_lr", "max_lr", "step_size"},
      {"weight_decay", "wd", "l2"},
      {"eps", "epsilon", "adam_epsilon"},
      {"beta1", "betas", "beta_1", "adam_beta1"},
      {"beta2", "beta_2", "adam_beta2"},
      {"max_norm", "max_grad_norm", "clip_grad_norm", "gradient_clip_val", "grad_clip", "clip"},
      {"warmup_steps", "warmup", "num_warmup_steps", "warmup_iters"},
      {"final_factor", "min_lr", "min_lr_ratio"},
      {"decay", "ema_decay"},
      {"keep_last", "keep", "save_total_limit", "max_to_keep"},
      {"keep_best", "save_top_k"},
      {"init_scale", "initial_scale", "grad_scaler_init", "loss_scale"},
      {"min_scale", "min_loss_scale"},
      {"max_scale", "max_loss_scale"},
      {"fallback", "fallback_dtype"},
      {"growth_interval", "grad_scaler_growth_interval", "scale_window", "loss_scale_window"},
      {"backoff_factor", "grad_scaler_backoff"},
      {"autocast_mode", "validate_in", "eval_precision", "validation_precision"},
      {"deterministic", "use_deterministic_algorithms"},
      {"level", "amp_opt_level", "opt_level", "fp16_opt_level"},
      {"context", "block_size", "context_length", "seq_len", "sequence_length", "max_length"},
      {"layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers"},
      {"heads", "n_head", "n_heads", "num_heads", "num_attention_heads"},
      {"width", "n_embd", "d_model", "hidden_size", "embed_dim"},
      {"plugin_path", "plugin_dir"},
      {"debug", "verbose"},
      {"quiet", "silent"}};
  return all;
}

std::string plain(std::string word) {
  for (char& c : word) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

bool has(const Words& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

// Returns the plain word, then what is left of it without the prefixes that other trainers put before a key.
Words readings(const std::string& word) {
  constexpr int most_prefixes = 3;
  Words all = {plain(word)};
  for (int i = 0; i < most_prefixes; ++i) {
    for (const std::string prefix : {"amp_", "mixed_precision_", "enable_", "use_", "grad_scaler_"}) {
      if (all.back().starts_with(prefix)) all.push_back(all.back().substr(prefix.size()));
    }
  }
  return all;
}

// Returns what turns mixed precision on or off. For a dtype in another trainer's words, "torch.float16": its lines.
std::string precision_for(const std::string& value) {
  auto word = value.substr(0, value.find_last_not_of('"') + 1);
  word.erase(0, word.find_first_not_of('"'));
  const auto use = synonym(word.starts_with("torch.") ? word.substr(6) : word, {"fp16", "bf16", "fp8", "fp32", "auto"});
  const auto line = "`[precision] use = \"" + (use.empty() ? "fp32" : use) + "\"`";
  if (use.empty()) return line + " turns mixed precision off, and \"bf16\" or \"auto\" on";
  return use == "fp16" ? line + " and `[scaler] use = \"dynamic\"` do it" : line + " does it";
}

// Returns the line with the number that the user has given in the place of its last one.
std::string with_number(const std::string& line, const std::string& value) {
  double number = 0;
  const auto is_number = [&](const char* begin, const char* end) {
    return std::from_chars(begin, end, number) == std::from_chars_result{end, std::errc()};
  };
  const auto last = line.rfind(' ') + 1;
  const bool both =
      is_number(line.data() + last, line.data() + line.size()) && is_number(value.data(), value.data() + value.size());
  return both && number > 0 ? line.substr(0, last) + value : line;
}

}  // namespace

std::string synonym(const std::string& word, const std::vector<std::string>& words) {
  for (const auto& wanted : readings(word)) {
    for (const auto& other : words) {
      if (plain(other) == wanted) return other;
    }
    for (const auto& meaning : meanings()) {
      if (!has(meaning, wanted)) continue;
      for (const auto& other : words) {
        if (has(meaning, plain(other))) return other;
      }
    }
  }
  return "";
}

std::string done_by(const std::string& word, const std::string& value) {
  static const Words mixed_precision = {"enabled",   "amp",   "autocast",    "mixed_precision", "autocast_enabled",
                                        "precision", "dtype", "torch_dtype", "autocast_dtype",  "autocast_fast_dtype"};
  static const std::vector<std::pair<Words, std::string>> all = {
      {{"log_frequency", "log_every", "log_every_n_steps", "logging_steps", "log_interval", "print_freq"},
       "`[[monitor]] use = \"progress\", every = 50` says how often it logs"},
      {{"log_memory_usage", "log_memory", "track_memory", "track_memory_usage", "memory_tracking"},
       "`[[callback]] use = \"memory\"` measures it"},
      {{"log_precision", "log_amp"}, "the [AMP] lines and `[[callback]] use = \"layers\"` show it"},
      {{"log_amp_stats", "log_stats", "log_scaling", "monitoring"},
       "`[[monitor]] use = \"progress\", amp_every = 500` logs it"},
      {{"validate_amp", "amp_validate", "check_compatibility", "amp_check"}, "`vernier check FILE` does it"},
      {{"debug", "verbose"}, "`vernier train FILE --debug` logs more"},
      {{"save_scaler_state", "save_optimizer_state", "save_scheduler_state"},
       "each checkpoint has it: `[checkpoint] use = \"rolling\"`"},
      {{"memory_efficient", "low_memory", "save_memory"}, "`--low-memory` or configs/presets/memory.toml does it"},
      {{"clear_cache", "empty_cache", "clear_cache_every"}, "`[[callback]] use = \"empty_cache\"` does it"},
      {{"cache_enabled", "autocast_cache", "autocast_cache_enabled"},
       "`[precision] weight_casts = \"none\"` turns the cache of autocast off"},
      {{"scaler", "scaler_enabled", "grad_scaler", "grad_scaler_enabled", "loss_scaler"},
       "`[scaler] use = \"none\"` turns the scaler off, and \"dynamic\" on"},
      {{"preset", "window", "refill", "overflows_in_a_row", "warn_below", "warn_above", "measure_every"},
       "it is an option of `[scaler] use = \"dynamic\"`"},
      {{"handle_overflow", "skip_overflow"},
       "a scaler skips such updates; `[[callback]] use = \"recovery\"` does more"},
      {{"micro_batches"},
       "`[accumulation] use = \"fixed\", micro_batches = 2` splits each batch; leave it out to take several"},
      {{"ema_decay"}, "`[[callback]] use = \"ema\", decay = 0.999` does it"},
      {{"scale_factor"}, "multiply `[optimizer] learning_rate = 0.001` by it"},
      {{"auto_scale_batch_size", "auto_find_batch_size", "dynamic_batch_size"},
       "`[accumulation] use = \"fit\"` does it"},
      {{"gpu_memory_gb", "memory_limit_gb"}, "`vernier advise FILE --memory 8GB` says what fits"},
      {{"pin_memory"}, "leave it out: batches are pinned without it, where the device is a GPU"},
      {{"data_parallel", "dataparallel", "multi_gpu", "num_gpus", "gpus", "devices"},
       "`vernier launch -n 2 FILE` starts a process for each GPU, which `[distributed] use = \"ddp\"` joins"}};
  // The lines that do what a key asks for. Each has all that it needs, so it does not lead to another refusal.
  static const std::vector<std::pair<Words, std::string>> lines = {
      {{"init_scale"}, "[scaler] use = \"dynamic\", init_scale = 65536"},
      {{"growth_factor"}, "[scaler] use = \"dynamic\", growth_factor = 2"},
      {{"backoff_factor"}, "[scaler] use = \"dynamic\", backoff_factor = 0.5"},
      {{"growth_interval"}, "[scaler] use = \"dynamic\", growth_interval = 2000"},
      {{"min_scale"}, "[scaler] use = \"dynamic\", min_scale = 1"},
      {{"max_scale"}, "[scaler] use = \"dynamic\", max_scale = 16777216"},
      {{"hysteresis"}, "[scaler] use = \"dynamic\", hysteresis = 2"},
      {{"level", "cast_model", "half_weights", "keep_batchnorm_fp32"}, "[precision] use = \"bf16\", level = \"O2\""},
      {{"cast_inputs"}, "[precision] use = \"bf16\", cast_inputs = true"},
      {{"cast_outputs", "cast_model_outputs"}, "[precision] use = \"bf16\", cast_outputs = true"},
      {{"autocast_mode"}, "[precision] use = \"bf16\", autocast_mode = \"training\""},
      {{"fallback", "autocast_fallback_dtype"}, "[precision] use = \"bf16\", fallback = \"float32\""},
      {{"gradient_accumulation_steps", "gradient_accumulation"},
       "[accumulation] use = \"target\", gradient_accumulation_steps = 2"},
      {{"target_effective_batch_size", "effective_batch_size"},
       "[accumulation] use = \"target\", target_effective_batch_size = 64"},
      {{"recompute"}, "[task] recompute = \"full\""},
      {{"epochs"}, "[run] steps = 0, epochs = 3"},
      {{"schedule"}, "[[callback]] use = \"schedule\", warmup_steps = 100"},
      {{"zero1"}, "[distributed] use = \"zero1\""},
      {{"max_norm"}, "[[callback]] use = \"clip_norm\", max_norm = 1"},
      {{"warmup_steps"}, "[[callback]] use = \"schedule\", warmup_steps = 100"}};
  for (const auto& wanted : readings(word)) {
    if (has(mixed_precision, wanted)) return precision_for(value);
    if (const auto dtype = synonym(wanted, {"fp16", "bf16", "fp8"}); !dtype.empty()) {
      return precision_for(value == "false" ? "fp32" : dtype);
    }
    const auto found = std::ranges::find_if(all, [&](const auto& each) { return has(each.first, wanted); });
    if (found != all.end()) return found->second;
    const auto line =
        std::ranges::find_if(lines, [&](const auto& each) { return !synonym(wanted, each.first).empty(); });
    if (line != lines.end()) return "`" + with_number(line->second, value) + "` does it";
  }
  return "";
}

std::string common_key(const std::string& word) {
  static const std::vector<std::pair<std::string, Words>> tables = {
      {"run", {"steps", "epochs", "seed", "device", "output", "name", "threads", "validate_every", "init_from"}},
      {"run", {"deterministic", "resume", "memory_limit", "matmul", "matmul_precision", "engine", "init_rename"}},
      {"run", {"fused", "init_strict", "requeue", "undo_failed_steps", "measure_savings", "time_limit"}},
      {"task", {"data", "batch_size"}},
      {"optimizer", {"momentum", "learning_rate", "eps", "weight_decay"}},
      {"checkpoint", {"every", "keep_last"}},
      {"accumulation", {"micro_batches"}},
      {"callback.schedule", {"warmup_steps"}},
      {"callback.ema", {"decay"}},
      {"callback.clip_norm", {"max_norm"}}};
  for (const auto& [table, keys] : tables) {
    if (const auto key = synonym(word, keys); !key.empty()) return table + "." + key;
  }
  return "";
}

std::string nearest(const std::string& word, const std::vector<std::string>& words) {
  constexpr std::size_t longest = 100;  // the comparison takes the product of the lengths
  if (word.size() > longest) return "";
  if (auto same = synonym(word, words); !same.empty()) return same;
  std::string best;
  std::size_t best_distance = word.size() / 3 + 1;
  for (const auto& other : words) {
    // Optimal string alignment: insertions, deletions, substitutions, swaps of neighbours.
    std::vector<std::vector<std::size_t>> d(word.size() + 1, std::vector<std::size_t>(other.size() + 1));
    for (std::size_t i = 0; i <= word.size(); ++i) d[i][0] = i;
    for (std::size_t j = 0; j <= other.size(); ++j) d[0][j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      for (std::size_t j = 1; j <= other.size(); ++j) {
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (word[i - 1] != other[j - 1])});
        const bool swapped = i > 1 && j > 1 && word[i - 1] == other[j - 2] && word[i - 2] == other[j - 1];
        if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
    const auto distance = d[word.size()][other.size()];
    if (distance > best_distance || (!best.empty() && distance == best_distance)) continue;
    best = other;
    best_distance = distance;
  }
  return best;
}

}  // namespace vernier
