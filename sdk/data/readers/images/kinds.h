// The kinds of image files, by their first bytes, and the files that are left out because of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

constexpr std::size_t bytes_of_kind = 32;  // the kind of a file is in its first bytes, at most so many

enum class Wanted { images, clips };  // clips: .npy files, and folders, which are not asked for here

enum class ImageKind { png, jpeg, webp, other };
ImageKind image_kind(std::string_view first_bytes);
// Returns a word for a file that is not read: "BMP", "empty", "not an image".
std::string other_kind(std::string_view first_bytes);

// Files that are left out of a folder, and clips that are short: how many, why, and an example of each reason.
class LeftOut {
 public:
  // why: "neither PNG, JPEG nor WebP"; kind: a word for this file, such as "BMP", or "".
  void add(const std::string& why, const std::string& path, const std::string& kind = "");
  // Notes a clip if it has fewer frames than are taken from it.
  void note_short(const std::string& path, std::int64_t frames, std::int64_t taken);
  // Returns "90 files that are neither PNG, JPEG nor WebP are left out, such as 'd/a/0.bmp' (BMP)"; "": none are.
  std::string text() const;

 private:
  struct Group {
    std::string why, example;
    std::int64_t count = 0;
  };
  std::vector<Group> groups_;
  Group short_;
};

// Returns true if the file is read. Else it is noted in `left_out`, unless it is hidden and of another kind. Only the
// first bytes are read.
bool is_taken(const std::string& path, bool is_hidden, LeftOut& left_out, Wanted wanted = Wanted::images);

}  // namespace vernier
