// Python, where the machine has it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "temporary_folder.h"

// modules: "torch, safetensors".
inline bool has_python(const std::string& modules) {
  return std::system(("python3 -c 'import " + modules + "' >/dev/null 2>&1").c_str()) == 0;
}

// Runs it in the folder, in an environment with more variables, "A=b "; out: what it wrote, of both kinds. Returns the
// status.
inline int python_in(const std::string& environment, const std::string& arguments, const std::filesystem::path& folder,
                     std::string& out) {
  const auto file = folder / "python.out";
  const auto command = environment + "python3 " + arguments;
  const int status = std::system(("cd '" + folder.string() + "' && " + command + " >python.out 2>&1").c_str());
  out = read_text(file);
  return status;
}

inline int python(const std::string& arguments, const std::filesystem::path& folder, std::string& out) {
  return python_in("", arguments, folder, out);
}
