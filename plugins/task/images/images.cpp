// images: trains a classifier of images, which is a small convolutional network or a ResNet (He et al., "Deep Residual
// Learning for Image Recognition", 2016, https://arxiv.org/abs/1512.03385).
//
// images                required: a folder that has a folder of PNG and JPEG files for each class, or an IDX file
// labels = ""           IDX file of the labels, if `images` is an IDX file
// validation_images = "", validation_labels = ""  the held-out ones, in the same form
// validation_share = 0.0  share of the images held out, drawn from [run] seed; without validation_images
// classes = 0           labels are 0 … classes - 1; 0: one for each folder, or up to the largest label of an IDX file
// grey = false          reads the images of a folder in grey, with one channel; an IDX file has one
// size = 0              pixels of a side: the shorter side is resized to it, and the middle is taken; 0: as they are
// augment = "none"      "flip": left to right with probability 0.5; "crop_flip": also moved by up to an eighth
// mean = [], std = []   of the pixels from 0 to 1, for each channel; none: of the first, every n-th, … of 1024 images
// model = "cnn"         two convolutions; or "resnet18", "resnet34", or "resnet": with `blocks` and `channels`
// channels = 16         of the first convolution of "cnn", whose second has twice as many, and of "resnet"
// blocks = [1, 1, 1]    of each stage of "resnet"; each has twice the channels of the one before at half the size
// stem = "auto"         of a ResNet: "7x7" with pooling, as for ImageNet, or "3x3"; auto: 3x3 below 64 pixels
// batch_size = 64
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2  see vernier/supervised_task.h
// recompute = "none"    nothing else is possible here: batch normalization would count each batch twice
// max_bytes = 4000000000  the most bytes of an IDX file, unpacked; a file with more is refused before it is read
//
// Names and shapes of a ResNet's tensors are those of torchvision, so [run] init_from takes its weights. Pixels are
// bytes until they are on the device.
//
// Batch normalization (Ioffe and Szegedy 2015) takes its statistics over a micro-batch. So accumulation, which is exact
// elsewhere, gives slightly different numbers here.
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/types.h>
#include <vernier/data_source.h>
#include <vernier/images.h>
#include <vernier/predictor.h>
#include <vernier/readers.h>
#include <vernier/sdk.h>
#include <vernier/supervised_task.h>
#include <vernier/task_options.h>
#include <vernier/transforms.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "networks.h"

namespace {

using vernier::Batch;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::refuse;
using vernier::Run;

struct Pictures {
  DatasetPtr dataset;              // sample: {uint8 [channels, height, width] or [height, width], int64 label}
  std::vector<std::string> names;  // of the classes of a folder
  std::int64_t classes = 0;
};

class Images final : public vernier::SupervisedTask, public vernier::Predictor {
 public:
  explicit Images(Options& options)
      : SupervisedTask(options, 64),
        images_(options.require<std::string>("images", "folder with a folder of each class, or IDX file")),
        labels_(options.get("labels", "", "IDX file of the labels, if `images` is an IDX file")),
        held_out_images_(options.get("validation_images", "", "images held out, in the same form")),
        held_out_labels_(options.get("validation_labels", "", "IDX file of their labels")),
        share_(options.get("validation_share", 0.0, "share of the images held out, without validation_images",
                           between(0, 0.9))),
        classes_(options.get("classes", 0, "labels are 0 to classes - 1; 0: as many as there are", between(0, 65536))),
        grey_(options.get("grey", false, "read the images of a folder in grey")),
        size_(options.get("size", 0, "pixels of a side after resizing; 0: as they are", between(0, 65536))),
        augment_(options.choose("augment", "none", {"none", "flip", "crop_flip"},
                                "random changes of the training images: mirrored, and moved by up to an eighth")),
        mean_(options.get("mean", std::vector<double>{}, "of each channel, of pixels from 0 to 1; none: computed")),
        std_(options.get("std", std::vector<double>{}, "of each channel, of pixels from 0 to 1; none: computed",
                         between(1e-6, 1e6))),
        max_bytes_(options.get("max_bytes", 4'000'000'000, "the most bytes of an IDX file, unpacked; more are refused",
                               vernier::at_least(1))) {
    plan_.model = options.choose("model", "cnn", {"cnn", "resnet18", "resnet34", "resnet"}, "the network");
    plan_.channels = options.get("channels", 16, "of the first convolution of cnn and resnet", between(1, 65536));
    plan_.blocks =
        options.get("blocks", std::vector<std::int64_t>{1, 1, 1}, "of each stage of resnet", between(1, 1000));
    plan_.stem = options.choose("stem", "auto", {"auto", "7x7", "3x3"},
                                "first convolution of a ResNet; auto: 3x3 for images below 64 pixels");
    check(options);
  }

  void build(Run& run) override {
    const auto all = read(images_, labels_, {}, classes_);
    names_ = all.names;
    DatasetPtr training = all.dataset, held_out;
    if (!held_out_images_.empty()) {
      held_out = read(held_out_images_, held_out_labels_, names_, all.classes).dataset;
    } else if (share_ > 0) {
      std::tie(training, held_out) = vernier::split(all.dataset, share_, run.seed);
    }
    training = fitted(training);
    vernier::Random none(run.seed, 0, 0);
    const auto image = training->get(0, none).at(0);
    plan_.height = image.size(-2), plan_.width = image.size(-1);
    plan_.colours = image.dim() == 3 ? image.size(0) : 1;
    plan_.classes = all.classes;
    if (plan_.model == "cnn" && (plan_.height < 4 || plan_.width < 4)) {
      refuse(c10::str("'", images_, "' has images of ", plan_.height, " x ", plan_.width,
                      "; two poolings need 4 x 4 at least"));
    }
    set_norm(*training);
    shape_ = image.sizes().vec();
    if (held_out) held_out = fitted(held_out);
    if (held_out) require_shape(held_out_images_.empty() ? images_ : held_out_images_, *held_out);

    set_model(make_network(plan_, run.seed));
    set_training(augmented(training));
    if (held_out) add_validation(held_out);
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    add_metric(vernier::accuracy());
    if (plan_.classes > 5) add_metric(vernier::top_k(5));
    info(plan_.model, " for images of ", plan_.height, " x ", plan_.width, " in ", plan_.classes, " classes");
  }

  // An image, a folder of images, or an IDX file.
  DatasetPtr read_inputs(const std::string& path) override {
    if (labels_.empty()) {
      auto files = vernier::image_files(path, grey_ ? 1 : 3);
      files_ = files.names;
      const auto images = fitted(files.dataset);
      require_shape(path, *images);
      return images;
    }
    const auto pixels = vernier::read_idx(path, 3, max_bytes_);
    const auto images = fitted(vernier::dataset_of({pixels}, path, vernier::fingerprint_of({pixels})));
    if (images->size() > 0) require_shape(path, *images);
    return images;
  }

  std::vector<Column> predict(const Batch& batch) override {
    const auto chances = forward(batch).to(torch::kFloat32).softmax(1);
    std::vector<Column> columns = {{"class", chances.argmax(1), names_}, {"probability", chances, {}, names_}};
    if (!files_.empty()) columns.insert(columns.begin(), {"image", batch.tensors.at(1), files_});
    return columns;
  }

  std::string python_model() const override { return python_source(plan_); }

 private:
  bool is_folder() const { return std::filesystem::is_directory(images_); }

  void check(const Options& options) const {
    if (mean_.size() != std_.size()) options.refuse("mean", "and `std` have a number for each channel, or none");
    if (images_.empty()) return;  // the options are only described
    vernier::refuse_recompute(options);
    if (is_folder() && !labels_.empty()) options.refuse("labels", "is for an IDX file, and `images` is a folder");
    if (!is_folder() && labels_.empty()) {
      options.refuse("labels", "is needed, since '" + images_ + "' is not a folder of images");
    }
    if (!is_folder() && held_out_images_.empty() != held_out_labels_.empty()) {
      options.refuse("validation_images", "and `validation_labels` are given both or not at all");
    }
    if (is_folder() && !held_out_labels_.empty()) {
      options.refuse("validation_labels", "is for an IDX file, and `images` is a folder");
    }
    if (!held_out_images_.empty() && share_ > 0) {
      options.refuse("validation_share", "is without meaning where validation_images is given");
    }
  }

  // classes: of all labels; 0: as many as there are.
  Pictures read(const std::string& images, const std::string& labels, const std::vector<std::string>& names,
                std::int64_t classes) const {
    Pictures all;
    if (labels.empty()) {
      auto folder = vernier::image_folder(images, {.channels = grey_ ? 1 : 3, .classes = names});
      all = {folder.dataset, folder.classes, std::ssize(folder.classes)};
      if (classes > 0 && classes != all.classes) {
        refuse(c10::str("'", images, "' has ", all.classes, " folders, and classes = ", classes));
      }
    } else {
      const auto pixels = vernier::read_idx(images, 3, max_bytes_);
      const vernier::Source source{labels, vernier::read_idx(labels, 1, max_bytes_), {}, {}};
      if (pixels.size(0) != source.tensor.size(0)) {
        refuse(c10::str("'", images, "' has ", pixels.size(0), " images, '", labels, "' ", source.tensor.size(0),
                        " labels"));
      }
      if (pixels.size(0) == 0) refuse("'" + labels + "' has no labels");
      const auto numbers = vernier::labels_of(source, classes);
      all.dataset = vernier::dataset_of({pixels, numbers}, images, vernier::fingerprint_of({pixels, numbers}));
      all.classes = classes > 0 ? classes : vernier::classes_of(source, numbers);
    }
    if (all.classes < 2) refuse("'" + images + "' has a single class; there is nothing to tell apart");
    return all;
  }

  DatasetPtr fitted(const DatasetPtr& images) const {
    return !labels_.empty() && size_ == 0 ? images : vernier::of_one_size(images, size_);
  }

  DatasetPtr augmented(const DatasetPtr& images) const {
    if (augment_ == "none") return images;
    std::vector<vernier::Transform> transforms;
    if (augment_ == "crop_flip") {
      transforms.push_back(vernier::random_crop(plan_.height, plan_.width, std::min(plan_.height, plan_.width) / 8));
    }
    transforms.push_back(vernier::random_flip());
    return vernier::transform(images, std::move(transforms));
  }

  void require_shape(const std::string& name, const vernier::Dataset& images) const {
    vernier::Random none(0, 0, 0);
    const auto image = pixels_of(images, 0, none);
    if (image.sizes() == shape_) return;
    refuse(c10::str("'", name, "' has images of ", image.sizes(), ", those to train on are ",
                    torch::IntArrayRef(shape_), "; set `size`"));
  }

  void set_norm(const vernier::Dataset& images) {
    plan_.mean = mean_, plan_.std = std_;
    if (mean_.empty()) measure(images);
    if (std::ssize(plan_.mean) != plan_.colours) {
      refuse(c10::str("mean and std have ", plan_.mean.size(), " numbers, and the images have ", plan_.colours,
                      " channels"));
    }
  }

  static torch::Tensor pixels_of(const vernier::Dataset& images, std::int64_t index, vernier::Random& random) {
    try {
      return images.get(index, random).at(0);
    } catch (const vernier::Error& error) {
      const std::string reason = error.what(), place = images.where(index);
      refuse(reason.find(place) == std::string::npos ? place + ": " + reason : reason);
    }
  }

  // Sums of whole numbers are exact, whatever their order.
  void measure(const vernier::Dataset& images) {
    constexpr std::int64_t most = 1024;
    const auto every = (images.size() + most - 1) / most;
    auto sums = torch::zeros({2, plan_.colours}, torch::kInt64);
    std::int64_t pixels = 0;
    for (std::int64_t i = 0; i < images.size(); i += every) {
      vernier::Random none(0, 0, i);
      const auto image = pixels_of(images, i, none).to(torch::kInt64).reshape({plan_.colours, -1});
      sums[0] += image.sum(1);
      sums[1] += image.square().sum(1);
      pixels += image.size(1);
    }
    const auto moments = sums.to(torch::kFloat64).div_(static_cast<double>(pixels));
    for (std::int64_t c = 0; c < plan_.colours; ++c) {
      const double mean = moments[0][c].item<double>();
      const double variance = moments[1][c].item<double>() - mean * mean;
      plan_.mean.push_back(mean / 255);
      plan_.std.push_back(variance > 0 ? std::sqrt(variance) / 255 : 1);
    }
  }

  std::string images_, labels_, held_out_images_, held_out_labels_;
  double share_;
  std::int64_t classes_;
  bool grey_;
  std::int64_t size_;
  std::string augment_;
  std::vector<double> mean_, std_;
  std::int64_t max_bytes_;

  Plan plan_;
  std::vector<std::int64_t> shape_;  // of an image
  std::vector<std::string> names_;   // of the classes
  std::vector<std::string> files_;   // of read_inputs()
};

}  // namespace

VERNIER_PLUGIN(Images, "images", "2.0.0")
