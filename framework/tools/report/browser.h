// Draws a page of HTML as a picture, by a browser of the Chromium family without a window.
#pragma once

#include <filesystem>
#include <string>

namespace vernier {

// Returns the first of chromium, chromium-browser, google-chrome and google-chrome-stable on PATH. Throws Refused where
// there is none.
std::string find_browser();

// Returns the whole page as PNG, 1200 pixels wide. beside: its folder gets a folder of this call's, which is removed
// again. Throws Refused where the folder cannot be made, or the browser draws nothing: with what it says.
std::string picture_of(const std::string& page, const std::string& browser, const std::filesystem::path& beside);

}  // namespace vernier
