#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include <sys/stat.h>
#include <vernier/checksum.h>
#include <vernier/data_file.h>
#include <vernier/data_source.h>
#include <vernier/error.h>
#include <vernier/folders.h>
#include <vernier/images.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "decoders.h"

namespace vernier {

namespace {

constexpr std::uint64_t longest_image = std::uint64_t{1} << 30;  // bytes of a file

// Also the channels, since each reader comes here first.
void check_image_options(const ImageOptions& options) {
  if (options.channels != 1 && options.channels != 3) {
    refuse(c10::str("images are read with 1 or 3 channels, not ", options.channels));
  }
}

bool is_image_name(const std::string& name) {
  const auto dot = name.rfind('.');
  auto suffix = dot == std::string::npos ? "" : name.substr(dot + 1);
  for (auto& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return suffix == "png" || suffix == "jpg" || suffix == "jpeg";
}

// The names in a folder that do not begin with a dot, in the order of bytes.
std::vector<std::string> visible_names(const std::string& folder) {
  std::error_code trouble;
  auto names = names_in(folder, trouble);
  if (trouble) refuse("'" + folder + "' cannot be read as a folder: " + trouble.message());
  std::erase_if(names, [](const auto& name) { return name.starts_with('.'); });
  std::ranges::sort(names);
  return names;
}

struct stat status_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) return status;
  refuse("'" + path + "' cannot be read: " + std::generic_category().message(errno));
}

class FilesDataset final : public Dataset {
 public:
  FilesDataset(std::vector<std::string> paths, std::int64_t channels) : paths_(std::move(paths)) {
    options_.channels = channels;
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(paths_.size()); }
  Sample get(std::int64_t index, Random&) const override {
    return {read_image(paths_[static_cast<std::size_t>(index)], options_), at::scalar_tensor(index, torch::kInt64)};
  }
  std::string where(std::int64_t index) const override { return "'" + paths_[static_cast<std::size_t>(index)] + "'"; }

 private:
  std::vector<std::string> paths_;
  ImageOptions options_;
};

struct ListedImage {
  std::string name;
  std::int64_t label;
  std::int64_t size, seconds, nanoseconds;  // when the folder was listed
};

class ImageFolderDataset final : public Dataset {
 public:
  ImageFolderDataset(std::string root, ImageOptions options, std::vector<ListedImage> images)
      : root_(std::move(root)), options_(std::move(options)), images_(std::move(images)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(images_.size()); }
  Sample get(std::int64_t index, Random&) const override {
    const auto& image = images_[static_cast<std::size_t>(index)];
    const auto path = path_of(image);
    const auto status = status_of(path);
    if (status.st_size != image.size || status.st_mtim.tv_sec != image.seconds ||
        status.st_mtim.tv_nsec != image.nanoseconds) {
      refuse("'" + path + "' has changed since its folder was listed; start again when nothing writes to it");
    }
    return {read_image(path, options_), at::scalar_tensor(image.label, torch::kInt64)};
  }
  std::string where(std::int64_t index) const override {
    return "'" + path_of(images_[static_cast<std::size_t>(index)]) + "'";
  }
  std::string fingerprint() const override {
    Checksum sum;
    for (const auto& image : images_) {
      const auto line = c10::str(options_.classes[static_cast<std::size_t>(image.label)], "/", image.name, " ",
                                 image.label, " ", image.size, "\n");
      sum.add(line.data(), line.size());
    }
    return c10::str(size(), " images, XXH3 of names and sizes ", sum.digits());
  }

 private:
  std::string path_of(const ListedImage& image) const {
    return root_ + "/" + options_.classes[static_cast<std::size_t>(image.label)] + "/" + image.name;
  }

  std::string root_;
  ImageOptions options_;
  std::vector<ListedImage> images_;
};

void list_class(const std::string& folder, std::int64_t label, std::vector<ListedImage>& images) {
  const auto before = images.size();
  for (const auto& name : visible_names(folder)) {
    const auto path = folder + "/" + name;
    const auto status = status_of(path);
    if (S_ISDIR(status.st_mode)) refuse("'" + path + "' is a folder within a class; move its images to the class");
    if (!is_image_name(name)) continue;
    images.push_back({name, label, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec});
  }
  if (images.size() == before) refuse("'" + folder + "' has no PNG or JPEG file (.png, .jpg, .jpeg)");
}

// The folders in the root; they must be the classes, if those are given.
void find_classes(const std::string& root, std::vector<std::string>& classes) {
  std::vector<std::string> folders;
  for (const auto& name : visible_names(root)) {
    if (S_ISDIR(status_of(root + "/" + name).st_mode)) folders.push_back(name);
  }
  if (folders.empty()) refuse("'" + root + "' has no folders; each class needs one, with its images in it");
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
}

}  // namespace

torch::Tensor pixels_of(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse) {
  if (height > max_pixels / width) {
    refuse(c10::str("has ", width, " x ", height, " pixels, and max_pixels is ", max_pixels));
  }
  return at::empty({height, width, channels}, torch::kUInt8);
}

torch::Tensor decode_image(const std::string& bytes, const std::string& name, const ImageOptions& options) {
  check_image_options(options);
  const RefuseImage refuse_image = [&](const std::string& reason) { refuse("'" + name + "' " + reason); };
  if (bytes.empty()) refuse_image("is empty");
  const bool is_png = bytes.starts_with("\x89PNG"), is_jpeg = bytes.starts_with("\xff\xd8");
  if (!is_png && !is_jpeg) refuse_image("is neither a PNG nor a JPEG");
  const auto decode = is_png ? decode_png : decode_jpeg;
  return decode(bytes, options.channels, options.max_pixels, refuse_image).permute({2, 0, 1}).contiguous();
}

torch::Tensor read_image(const std::string& path, const ImageOptions& options) {
  return decode_image(read_data_file(path, longest_image), path, options);
}

ImageFiles image_files(const std::string& path, std::int64_t channels) {
  namespace fs = std::filesystem;
  std::error_code trouble;
  if (!fs::is_directory(path, trouble)) {
    return {std::make_shared<FilesDataset>(std::vector{path}, channels), {fs::path(path).filename()}};
  }
  auto names = visible_names(path);
  std::erase_if(names, [](const auto& name) { return !is_image_name(name); });
  if (names.empty()) refuse("'" + path + "' has no PNG or JPEG file (.png, .jpg, .jpeg)");
  std::vector<std::string> paths;
  for (const auto& name : names) paths.push_back(fs::path(path) / name);
  return {std::make_shared<FilesDataset>(std::move(paths), channels), std::move(names)};
}

ImageFolder image_folder(const std::string& root, const ImageOptions& options) {
  check_image_options(options);
  auto all = options;
  find_classes(root, all.classes);
  std::vector<ListedImage> images;
  for (std::size_t i = 0; i < all.classes.size(); ++i) {
    list_class(root + "/" + all.classes[i], static_cast<std::int64_t>(i), images);
  }
  return {std::make_shared<ImageFolderDataset>(root, all, std::move(images)), all.classes};
}

}  // namespace vernier
