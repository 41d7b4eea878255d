// A plugin's library as a file: its writers, digest and descriptor, all read before opening it runs its code.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vernier {

// Throws Error::Kind::plugin.
[[noreturn]] void refuse_library(const std::string& text);

// A plugin ABI as messages show it: "0x3d46a352".
std::string abi_text(std::uint32_t abi);

class PluginFile {
 public:
  // folder: of the plugin path, where the file was found; "" if the user named the file. Throws Error::Kind::plugin if
  // the file is missing, if it is a link that leads out of `folder`, or if anybody but the user and root may write to
  // the file, its folder, or a folder between it and `folder`. A file that the user named may be a link.
  PluginFile(std::filesystem::path file, const std::filesystem::path& folder);
  PluginFile(PluginFile&&) = delete;
  ~PluginFile();

  // Throws Error::Kind::plugin, naming the file, if it has none, or if it was built for another Vernier, toolkit or
  // LibTorch.
  Descriptor descriptor() const;
  // Returns 64 hexadecimal digits, like `sha256sum`.
  std::string sha256() const;
  std::string checksum() const;  // a fast one, to see whether it is the same file as before
  // Opens the library for the rest of the process, in the folder that was checked. Returns what it exports. Throws
  // Error::Kind::plugin with the loader's reason if it cannot be opened. id: the plugin's, "callback/mine".
  const Descriptor& open(const std::string& id);

 private:
  void read();
  void refuse_other_libraries() const;
  std::filesystem::path file_, real_;  // file_: as named; real_: without links
  int folder_ = -1;                    // the descriptor of the folder that has it
  std::vector<char> bytes_;
};

}  // namespace vernier
