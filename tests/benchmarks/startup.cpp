// From the start of the process over the first step to its end, against a plain LibTorch program that does one step.
// Vernier's end includes what a run leaves: a folder, a log, summary.json. Bar: 50 ms more.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "compare.h"

int main() {
  const auto folder = std::filesystem::temp_directory_path() / ("vernier-startup-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto config = folder / "one.toml";
  std::ofstream(config) << "[run]\nsteps = 1\noutput = \"" << (folder / "run").string()
                        << "\"\n[task]\nuse = \"mlp\"\nvalidation = 0.0\n[optimizer]\nuse = \"adamw\"\n"
                           "[checkpoint]\nuse = \"none\"\n[[monitor]]\nuse = \"progress\"\n";
  const auto call = [](const std::string& command) {
    if (std::system((command + " >/dev/null 2>&1").c_str()) != 0) std::abort();
  };
  const std::string vernier = std::string(VERNIER_BINARY_DIR "/vernier train ") + config.string();
  compare("start, one step of the 32-32-10 network, end",
          {{"plain LibTorch program", [&] { call(VERNIER_BINARY_DIR "/plain_program"); }},
           {"vernier train", [&] { call(vernier); }}},
          /*rounds=*/20, /*steps_a_round=*/1);
  std::filesystem::remove_all(folder);
}
