#include "kinds.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace vernier {

ImageKind image_kind(std::string_view first) {
  if (first.starts_with("\x89PNG")) return ImageKind::png;
  if (first.starts_with("\xff\xd8")) return ImageKind::jpeg;
  if (first.starts_with("RIFF") && first.size() >= 12 && first.substr(8, 4) == "WEBP") return ImageKind::webp;
  return ImageKind::other;
}

std::string other_kind(std::string_view first) {
  using namespace std::string_view_literals;
  if (first.empty()) return "empty";
  const std::pair<std::string_view, const char*> starts[] = {
      {"\x89PNG", "PNG"},
      {"\xff\xd8", "JPEG"},
      {"\x93NUMPY", "a NumPy array"},
      {"\x1a\x45\xdf\xa3", "a video"},
      {"GIF8", "GIF"},
      {"II*\0"sv, "TIFF"},
      {"MM\0*"sv, "TIFF"},
      {"8BPS", "Photoshop"},
      {"\0\0\1\0"sv, "icon"},
      {"\xff\x0a", "JPEG XL"},
      {"\0\0\0\x0cJXL "sv, "JPEG XL"},
      {"\0\0\0\x0cjP  "sv, "JPEG 2000"},
      {"%PDF", "PDF"},
      {"PK\3\4", "ZIP"},
      {"<svg", "SVG"},
      {"<!DOCTYPE html", "a web page"},
      {"<!doctype html", "a web page"},
      {"<html", "a web page"},
  };
  for (const auto& [start, name] : starts) {
    if (first.starts_with(start)) return name;
  }
  if (first.starts_with("BM") && first.size() >= 18 && first.substr(15, 3) == "\0\0\0"sv) return "BMP";
  if (first.size() >= 12 && first.starts_with("RIFF")) {
    return first.substr(8, 4) == "AVI " ? "a video" : first.substr(8, 4) == "WEBP" ? "WebP" : "not an image";
  }
  if (first.size() >= 12 && first.substr(4, 4) == "ftyp") {
    const auto brand = first.substr(8, 3);
    const bool is_heif = brand.starts_with("he") || brand == "mif" || brand == "msf";
    return brand == "avi" ? "AVIF" : is_heif ? "HEIF" : "a video";
  }
  return "not an image";
}

void LeftOut::add(const std::string& why, const std::string& path, const std::string& kind) {
  auto group = std::ranges::find(groups_, why, &Group::why);
  if (group == groups_.end()) {
    const auto example = "'" + printable(path) + "'" + (kind.empty() ? "" : " (" + kind + ")");
    group = groups_.insert(groups_.end(), Group{why, example});
  }
  ++group->count;
}

void LeftOut::note_short(const std::string& path, std::int64_t frames, std::int64_t taken) {
  if (frames >= taken) return;
  if (++short_.count > 1) return;
  short_.why = c10::str("fewer than ", taken, " frames, so some are repeated");
  short_.example = c10::str("'", printable(path), "' (", frames, ")");
}

std::string LeftOut::text() const {
  std::string text;
  if (short_.count > 0) {
    const bool is_one = short_.count == 1;
    text = c10::str(short_.count, is_one ? " clip has " : " clips have ", short_.why, is_one ? ": " : ", such as ",
                    short_.example);
  }
  for (const auto& group : groups_) {
    const bool is_one = group.count == 1;
    text += c10::str(text.empty() ? "" : "; ", group.count, is_one ? " file that is " : " files that are ",
                     is_one && group.why == "folders" ? "a folder" : group.why,
                     is_one ? " is left out: " : " are left out, such as ", group.example);
  }
  return text;
}

bool is_taken(const std::string& path, bool is_hidden, LeftOut& left_out, Wanted wanted) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe does not wait for its writer
  if (file < 0) {
    if (is_hidden) return false;
    refuse("'" + path + "' cannot be read: " + std::generic_category().message(errno));
  }
  struct stat status = {};
  const bool is_regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  char bytes[bytes_of_kind];
  const auto count = is_regular ? ::pread(file, bytes, sizeof bytes, 0) : 0;
  const int trouble = errno;
  ::close(file);
  if (count < 0) refuse("'" + path + "' cannot be read: " + std::generic_category().message(trouble));
  const std::string_view first(bytes, static_cast<std::size_t>(count));
  const bool is_clip = wanted == Wanted::clips;
  const bool is_wanted = is_clip ? first.starts_with("\x93NUMPY") : image_kind(first) != ImageKind::other;
  if (is_wanted && !is_hidden) return true;
  if (is_wanted) {
    left_out.add("hidden", path);
  } else if (!is_hidden) {
    left_out.add(is_clip ? "neither a folder of frames nor a .npy file" : "neither PNG, JPEG nor WebP", path,
                 is_regular ? other_kind(first) : "not a regular file");
  }
  return false;
}

}  // namespace vernier
