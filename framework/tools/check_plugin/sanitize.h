// A plugin that was built with -fsanitize=address needs the sanitizer's runtime in the process before all else.
#pragma once

#include <filesystem>
#include <string>

namespace vernier {

// Starts this program again with that runtime, which the plugin's file names; returns where it runs already. Throws
// Error if the file was built without the sanitizer, or the runtime cannot be loaded.
void start_sanitized(const std::filesystem::path& file, char** argv);

// The sanitizer's finding in what a process wrote: "AddressSanitizer: heap-buffer-overflow mine.cpp:12 in …", or "".
std::string finding_in(const std::string& text);

}  // namespace vernier
