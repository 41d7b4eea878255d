#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/StringUtil.h>
#include <sys/stat.h>
#include <vernier/checksum.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/folders.h>
#include <vernier/missing_file.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "decoders.h"
#include "kinds.h"
#include "listed.h"

namespace vernier {

namespace {

constexpr std::uint64_t longest_image = std::uint64_t{1} << 30;  // bytes of a file

// Also the channels, since each reader comes here first.
void check_image_options(const ImageOptions& options) {
  if (options.channels != 0 && options.channels != 1 && options.channels != 3) {
    refuse(c10::str("images are read with 0, 1 or 3 channels, not ", options.channels));
  }
}

// The names in a folder, in the order of bytes.
std::vector<std::string> sorted_names(const std::string& folder) {
  std::error_code trouble;
  auto names = names_in(folder, trouble);
  if (trouble) {
    std::error_code none;
    refuse("'" + folder + "' cannot be read as a folder: " + trouble.message() +
           (std::filesystem::exists(folder, none) ? "" : missing_file_hint(folder)));
  }
  std::ranges::sort(names);
  return names;
}

bool is_hidden(const std::string& name) {
  return name.starts_with('.');
}

struct stat status_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) return status;
  const auto trouble = errno;
  refuse("'" + path + "' cannot be read: " + std::generic_category().message(trouble) +
         (trouble == ENOENT ? missing_file_hint(path) : ""));
}

FileState state_of(const ListedImage& image) {
  FileState all;
  const auto add = [&](const std::string& path) {
    const auto status = status_of(path);
    all.size += status.st_size;
    all.seconds += status.st_mtim.tv_sec;
    all.nanoseconds += status.st_mtim.tv_nsec;
  };
  if (image.frames.empty()) add(image.path);
  for (const auto& frame : image.frames) add(frame);
  return all;
}

// Images or clips, and their labels.
class ImagesDataset final : public Dataset {
 public:
  ImagesDataset(ImageOptions options, std::vector<ListedImage> images)
      : options_(std::move(options)), images_(std::move(images)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(images_.size()); }
  Sample get(std::int64_t index, Random&) const override {
    const auto& image = images_[static_cast<std::size_t>(index)];
    if (state_of(image) != image.state) {
      refuse("'" + image.path + "' has changed since its folder was listed; start again when nothing writes to it");
    }
    return {options_.frames > 0 ? read_clip(image, options_) : read_image(image.path, options_),
            at::scalar_tensor(image.label, torch::kInt64)};
  }
  std::string where(std::int64_t index) const override {
    return "'" + images_[static_cast<std::size_t>(index)].path + "'";
  }
  std::string fingerprint() const override {
    return c10::str(size(), options_.frames > 0 ? " clips" : " images", ", XXH3 of names ", checksum(false));
  }
  std::string checksum(bool has_sizes) const {
    Checksum sum;
    for (const auto& image : images_) {
      auto line = c10::str(image.name, " ", image.label);
      for (const auto& frame : image.frames) line += frame.substr(image.path.size());
      if (has_sizes) line += c10::str(" ", image.state.size);
      line += "\n";
      sum.add(line.data(), line.size());
    }
    return sum.digits();
  }

 private:
  ImageOptions options_;
  std::vector<ListedImage> images_;
};

// Returns the folders of a folder, without hidden ones.
std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> folders;
  for (const auto& name : sorted_names(folder)) {
    if (!is_hidden(name) && S_ISDIR(status_of(folder + "/" + name).st_mode)) folders.push_back(name);
  }
  return folders;
}

void list_class(const std::string& folder, std::int64_t label, const ImageOptions& options,
                std::vector<ListedImage>& images, LeftOut& left_out) {
  const auto wanted = options.frames > 0 ? Wanted::clips : Wanted::images;
  for (const auto& name : names_to_read(folder, wanted, "class", left_out)) {
    images.push_back(listed_image(folder + "/" + name, name, label, options, left_out));
  }
}

// Returns the names of the images in a folder that is not a class. Folders in it are left out.
std::vector<std::string> images_in(const std::string& path, LeftOut& left_out) {
  std::vector<std::string> names;
  for (const auto& name : sorted_names(path)) {
    const auto file = (std::filesystem::path(path) / name).string();
    if (!is_hidden(name) && S_ISDIR(status_of(file).st_mode)) {
      left_out.add("folders", file);
    } else if (is_taken(file, is_hidden(name), left_out)) {
      names.push_back(name);
    }
  }
  if (!names.empty()) return names;
  const auto others = left_out.text();
  refuse("'" + path + "' has no PNG, JPEG or WebP image" + (others.empty() ? "" : ": " + others));
}

std::string lower_case(std::string text) {
  for (auto& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Returns true if a folder looks like one of clips, and not like a clip.
bool has_clips(const std::string& folder) {
  return !folders_in(folder).empty() ||
         std::ranges::any_of(sorted_names(folder), [](const auto& name) { return name.ends_with(".npy"); });
}

// Returns true if a folder looks like one of classes, and not like a class.
bool has_classes(const std::string& folder, Wanted wanted) {
  return std::ranges::any_of(
      folders_in(folder), [&](const auto& name) { return wanted == Wanted::images || has_clips(folder + "/" + name); });
}

// A folder whose folders are "train" and "val", or that has a single folder with all classes in it.
void refuse_folders_of_classes(const std::string& root, const std::vector<std::string>& folders, Wanted wanted) {
  std::string training, held_out;
  for (const auto& name : folders) {
    const auto word = lower_case(name);
    if (word.starts_with("train")) training = name;
    if (word.starts_with("val") || word == "dev") held_out = name;
    if (held_out.empty() && word.starts_with("test")) held_out = name;
  }
  if (!training.empty() && !held_out.empty() && has_classes(root + "/" + training, wanted)) {
    refuse("'" + root + "' has the folders '" + training + "' and '" + held_out +
           "', which are not classes; name them by images = \"" + root + "/" + training +
           "\" and validation_images = \"" + root + "/" + held_out + "\"");
  }
  if (folders.size() == 1 && has_classes(root + "/" + folders[0], wanted)) {
    refuse("'" + root + "' has a single folder, and the classes are in it; name it by images = \"" + root + "/" +
           folders[0] + "\"");
  }
}

// The folders in the root; they must be the classes, if those are given.
void find_classes(const std::string& root, std::vector<std::string>& classes, Wanted wanted, LeftOut& left_out) {
  std::error_code none;
  if (!std::filesystem::exists(root, none)) {
    refuse("'" + root + "' does not exist; paths are relative to the working folder");
  }
  const auto folders = folders_in(root);
  if (folders.empty()) {
    refuse("'" + root +
           "' has no folders; each class needs one, with its images in it, or a CSV file has the columns file and "
           "label");
  }
  refuse_folders_of_classes(root, folders, wanted);
  if (classes.empty()) classes = folders;
  for (const auto& name : classes) {
    if (std::ranges::count(classes, name) > 1) refuse("the classes have '" + shortened(name) + "' twice");
    if (!std::ranges::count(folders, name))
      refuse("'" + root + "' has no folder for the class '" + shortened(name) + "'");
  }
  for (const auto& name : folders) {
    if (std::ranges::count(classes, name)) continue;
    refuse("'" + root + "' has the folder '" + shortened(name) + "', which is none of the classes " +
           shortened(some_of(classes)));
  }
  for (const auto& name : sorted_names(root)) {
    const auto path = root + "/" + name;
    if (!is_hidden(name) && !S_ISDIR(status_of(path).st_mode)) left_out.add("in no folder of a class", path);
  }
}

}  // namespace

torch::Tensor pixels_of(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse) {
  if (height > max_pixels / width) {
    refuse(c10::str("has ", width, " x ", height, " pixels, and max_pixels is ", max_pixels));
  }
  return at::empty({height, width, std::max<std::int64_t>(channels, 1)}, torch::kUInt8);
}

torch::Tensor grey_of(const torch::Tensor& pixels) {
  const auto parts = pixels.to(torch::kInt32).unbind(-1);
  const auto sum = parts[0] * 299 + parts[1] * 587 + parts[2] * 114;
  return (sum + 500).div(1000, "floor").to(torch::kUInt8).unsqueeze(-1);
}

torch::Tensor decode_image(const std::string& bytes, const std::string& name, const ImageOptions& options) {
  check_image_options(options);
  const RefuseImage refuse_image = [&](const std::string& reason) { refuse("'" + name + "' " + reason); };
  if (bytes.empty()) refuse_image("is empty");
  const auto kind = image_kind(bytes);
  if (kind == ImageKind::other) {
    const auto word = other_kind(std::string_view(bytes).substr(0, bytes_of_kind));
    refuse_image("is neither PNG, JPEG nor WebP" + (word == "not an image" ? "" : " (" + word + "); convert it"));
  }
  if (options.channels == 0 && kind != ImageKind::png) refuse_image("is not a PNG, and a mask is one");
  const auto decode = kind == ImageKind::png ? decode_png : kind == ImageKind::jpeg ? decode_jpeg : decode_webp;
  return upright(decode(bytes, options.channels, options.max_pixels, refuse_image)).permute({2, 0, 1}).contiguous();
}

torch::Tensor read_image(const std::string& path, const ImageOptions& options) {
  return decode_image(read_data_file(path, longest_image), path, options);
}

std::vector<std::string> names_to_read(const std::string& folder, Wanted wanted, const std::string& what,
                                       LeftOut& left_out) {
  std::vector<std::string> names;
  LeftOut here;
  for (const auto& name : sorted_names(folder)) {
    const auto path = folder + "/" + name;
    if (is_hidden(name)) {
      is_taken(path, true, left_out, wanted);
      continue;
    }
    const bool is_folder = S_ISDIR(status_of(path).st_mode);
    if (is_folder && wanted == Wanted::images) {
      refuse("'" + path + "' is a folder within a " + what + "; move its images to the " + what +
             ", or the folder elsewhere" + (what == "class" ? "; if it is a clip, set `frames` of task/images" : ""));
    }
    if (is_folder || is_taken(path, false, here, wanted)) {
      names.push_back(name);
    } else {
      is_taken(path, false, left_out, wanted);
    }
  }
  if (!names.empty()) return names;
  const bool is_clip = wanted == Wanted::clips;
  const auto others = here.text();
  refuse("the " + what + " '" + folder + "' has no " + (is_clip ? "clip" : "PNG, JPEG or WebP image") +
         (others.empty() ? "" : ": " + others) + "; put some there" + (is_clip ? frames_of_video : "") +
         ", or move the folder elsewhere");
}

ListedImage listed_image(const std::string& path, const std::string& name, std::int64_t label,
                         const ImageOptions& options, LeftOut& left_out) {
  ListedImage image{path, name, label};
  if (options.frames > 0 && S_ISDIR(status_of(path).st_mode)) {
    image.frames = frames_of(path, options, left_out);
  } else if (options.frames > 0) {
    check_clip(path, options, left_out);
  }
  image.state = state_of(image);
  return image;
}

ImageFolder folder_of_images(const ImageOptions& options, std::vector<ListedImage> images, const LeftOut& left_out) {
  std::vector<std::int64_t> labels;
  for (auto& image : images) {
    labels.push_back(image.label);
    image.name.insert(0, options.classes[static_cast<std::size_t>(image.label)] + "/");
  }
  const auto dataset = std::make_shared<ImagesDataset>(options, std::move(images));
  return {dataset, options.classes, at::tensor(labels, torch::kInt64), left_out.text(), dataset->checksum(true)};
}

ImageFiles image_files(const std::string& path, const ImageOptions& options) {
  namespace fs = std::filesystem;
  std::error_code trouble;
  if (!fs::exists(path, trouble)) refuse("'" + path + "' does not exist; paths are relative to the working folder");
  const bool is_clip = options.frames > 0;
  const bool is_one = !fs::is_directory(path, trouble) || (is_clip && !has_clips(path));
  LeftOut left_out;
  std::vector<std::string> names;
  std::vector<ListedImage> images;
  if (is_image_list(path) && is_one) {
    images = images_in_list(path, options, left_out);
    for (const auto& image : images) names.push_back(image.name);
    return {std::make_shared<ImagesDataset>(options, std::move(images)), std::move(names), left_out.text()};
  }
  if (is_one) {
    names = {(fs::path(path) / "").parent_path().filename().string()};
  } else {
    names = is_clip ? names_to_read(path, Wanted::clips, "folder", left_out) : images_in(path, left_out);
  }
  for (const auto& name : names) {
    const auto file = is_one ? path : (fs::path(path) / name).string();
    images.push_back(listed_image(file, name, std::ssize(images), options, left_out));
  }
  return {std::make_shared<ImagesDataset>(options, std::move(images)), std::move(names), left_out.text()};
}

ImageFolder image_folder(const std::string& root, const ImageOptions& options) {
  check_image_options(options);
  auto all = options;
  LeftOut left_out;
  find_classes(root, all.classes, options.frames > 0 ? Wanted::clips : Wanted::images, left_out);
  std::vector<ListedImage> images;
  for (std::size_t i = 0; i < all.classes.size(); ++i) {
    list_class(root + "/" + all.classes[i], static_cast<std::int64_t>(i), all, images, left_out);
  }
  return folder_of_images(all, std::move(images), left_out);
}

}  // namespace vernier
