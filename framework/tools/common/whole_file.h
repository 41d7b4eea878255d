// Files that are written completely or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace vernier {

// Calls `write` with the path of a new file or folder beside `path`, which then replaces `path`. If `write` throws, or
// the rename fails, what was written is removed.
void write_whole(const std::filesystem::path& path, const std::function<void(const std::string& part)>& write);
// Writes a text. Returns false if that fails, and prints the reason to standard error.
bool write_whole_text(const std::filesystem::path& path, const std::string& text);

}  // namespace vernier
