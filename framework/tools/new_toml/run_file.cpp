#include "run_file.h"

#include <algorithm>

namespace vernier {

std::string run_file(const Findings& found) {
  const bool is_large = found.samples >= 50'000;
  const std::int64_t batch = is_large ? 256 : 32;
  const auto per_epoch = std::max<std::int64_t>(1, (found.samples * 9 / 10 + batch - 1) / batch);
  constexpr std::int64_t fewest = 5, most = 300, validations = 12;
  const auto epochs = std::clamp(found.updates / per_epoch, fewest, most);
  const auto every = std::max<std::int64_t>(1, epochs * per_epoch / validations);
  std::string text =
      "[run]\nepochs = " + std::to_string(epochs) + "\nvalidate_every = " + std::to_string(every) + "\n\n[task]\n";
  for (const auto& [key, value] : found.task) {
    text += key + " = " + value;
    const auto comment = std::ranges::find(found.comments, key, &std::pair<std::string, std::string>::first);
    text += (comment == found.comments.end() ? "" : "  # " + comment->second) + "\n";
  }
  text += "batch_size = " + std::to_string(batch) + "\n\n";
  text +=
      "[optimizer]\nuse = \"adamw\"\nlearning_rate = 3e-3\n\n"
      "[[callback]]\nuse = \"schedule\"        # cosine decay of the learning rate\n\n"
      "[[callback]]\nuse = \"early_stopping\"  # ends with the weights of the best validation\n\n"
      "[[monitor]]\nuse = \"progress\"\nevery = " +
      std::to_string(std::max<std::int64_t>(1, epochs * per_epoch / 5)) + "\n";
  return text;
}

}  // namespace vernier
