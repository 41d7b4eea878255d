#include "run_file.h"

#include <algorithm>

namespace vernier {

std::string run_file(const Findings& found) {
  const bool is_large = found.samples >= 50'000;
  const std::int64_t batch = found.batch > 0 ? found.batch : is_large ? 256 : 32;
  const auto per_epoch = std::max<std::int64_t>(1, (found.samples * 9 / 10 + batch - 1) / batch);
  constexpr std::int64_t fewest = 5;
  const auto validations =
      found.validations * (found.samples < 5'000 ? 10 : 3) / 10;  // few samples are overfitted soon
  const auto epochs =
      found.epochs > 0 ? found.epochs : std::clamp(found.updates / per_epoch, fewest, found.most_epochs);
  const auto every = std::max<std::int64_t>(1, epochs * per_epoch / validations);
  std::string text = "[run]\nepochs = " + std::to_string(epochs) + "\n";
  if (found.epochs == 0) text += "validate_every = " + std::to_string(every) + "\n";
  text += "\n[task]\n";
  for (const auto& [key, value] : found.task) {
    text += key + " = " + value;
    const auto comment = std::ranges::find(found.comments, key, &std::pair<std::string, std::string>::first);
    text += (comment == found.comments.end() ? "" : "  # " + comment->second) + "\n";
  }
  // A task warns of a batch that is more than all samples if the file sets it, and not of its own default.
  const bool is_small = found.batch == 0 && found.samples * 3 / 4 < batch;
  if (found.option("batch_size") == nullptr && !is_small) text += "batch_size = " + std::to_string(batch) + "\n";
  text += std::string("\n[optimizer]\nuse = \"adamw\"\nlearning_rate = ") + found.learning_rate + "\n\n";
  text +=
      "[[callback]]\nuse = \"schedule\"        # cosine decay of the learning rate\n\n"
      "[[callback]]\nuse = \"early_stopping\"  # ends with the weights of the best validation\n";
  if (found.patience > 0) text += "patience = " + std::to_string(found.patience) + "\n";
  text += "\n[[monitor]]\nuse = \"progress\"\nevery = " +
          std::to_string(std::max<std::int64_t>(1, epochs * per_epoch / 5)) +
          "\n\n[[monitor]]\nuse = \"jsonl\"           # curves, for vernier watch and vernier report\n";
  return text;
}

}  // namespace vernier
