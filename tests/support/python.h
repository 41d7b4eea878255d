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

// Runs it in the folder; out: what it wrote, of both kinds. Returns the status.
inline int python(const std::string& arguments, const std::filesystem::path& folder, std::string& out) {
  const auto file = folder / "python.out";
  const int status =
      std::system(("cd '" + folder.string() + "' && python3 " + arguments + " >python.out 2>&1").c_str());
  out = read_text(file);
  return status;
}
