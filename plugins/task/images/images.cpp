// images: trains a classifier of images, which is a small convolutional network or a ResNet (He et al., "Deep Residual
// Learning for Image Recognition", 2016, https://arxiv.org/abs/1512.03385). With `frames` it classifies clips by a
// network of convolutions over time and space (Tran et al., "Learning Spatiotemporal Features with 3D Convolutional
// Networks", 2015, https://arxiv.org/abs/1412.0767).
//
// images                required: a folder that has a folder of PNG, JPEG and WebP files for each class; a CSV file
//                       with the columns `file` and `label`, names relative to its folder; or an IDX file
// frames = 0            taken from each clip, evenly spread over it, where a class has clips and not images: folders of
//                       frames, or .npy files, uint8 [frames, height, width] or [frames, height, width, 1 or 3]
// labels = ""           IDX file of the labels, if `images` is an IDX file
// validation_images = "", validation_labels = ""  the held-out ones, in the same form
// validation_share = 0.1  share of each class held out, drawn from [run] seed, without validation_images; 0: none
// classes = 0           labels are 0 … classes - 1; 0: one for each folder, or up to the largest label of an IDX file
// grey = false          reads the images of a folder in grey, with one channel; an IDX file has one
// size = 0              pixels of a side: the shorter side is resized to it, and the middle is taken; 0: as they are
// augment = "none"      "flip": left to right with probability 0.5; "crop_flip": also moved by up to an eighth
// mean = [], std = []   of the pixels from 0 to 1, for each channel; none: of the first, every n-th, … of 1024 images
// model = "cnn"         two convolutions, of clips over time too; or "resnet18", "resnet34", or "resnet": with `blocks`
//                       and `channels`
// channels = 16         of the first convolution of "cnn", whose second has twice as many, and of "resnet"
// blocks = [1, 1, 1]    of each stage of "resnet"; each has twice the channels of the one before at half the size
// stem = "auto"         of a ResNet: "7x7" with pooling, as for ImageNet, or "3x3"; auto: 3x3 below 64 pixels
// class_weights = "none"  of the loss; "balanced": a class counts the more, the fewer images it has; their mean is 1
// batch_size = 64
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = "", recompute = "none"  see
// vernier/data/supervised_task.h;
//                       recompute computes each convolution or block again in backward
// max_bytes = 4000000000  the most bytes of an IDX file, unpacked; a file with more is refused before it is read
//
// Names and shapes of a ResNet's tensors are those of torchvision, so [run] init_from takes its weights. Pixels are
// bytes until they are on the device.
//
// Batch normalization (Ioffe and Szegedy 2015) takes its statistics over a micro-batch. So accumulation, which is exact
// elsewhere, gives slightly different numbers here.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/data/predictor.h>
#include <vernier/data/readers.h>
#include <vernier/data/supervised_task.h>
#include <vernier/data/transforms.h>
#include <vernier/draft/capture.h>
#include <vernier/exported_model.h>
#include <vernier/json_text.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "../predicted.h"
#include "networks.h"
#include "pictures.h"
#include "reading.h"

namespace {

using vernier::Batch;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::refuse;
using vernier::Run;
using vernier::State;

DatasetPtr augmented(const DatasetPtr& images, const std::string& how) {
  if (how == "none") return images;
  std::vector<vernier::Transform> transforms;
  if (how == "crop_flip") {
    const auto image = pixels_of(*images, 0);
    const auto height = image.size(-2), width = image.size(-1);
    transforms.push_back(vernier::random_crop(height, width, std::min(height, width) / 8));
  }
  transforms.push_back(vernier::random_flip());
  return vernier::transform(images, std::move(transforms));
}

class Images final : public vernier::SupervisedTask,
                     public vernier::Predictor,
                     public vernier::OnnxExportable,
                     public vernier::draft::Capturable {
 public:
  explicit Images(Options& options)
      : SupervisedTask(options, 64),
        files_{options.require<std::string>(
                   "images", "folder with a folder of each class, CSV file of file and label, or IDX file"),
               options.get("labels", "", "IDX file of the labels, if `images` is an IDX file")},
        held_out_files_{options.get("validation_images", "", "images held out, in the same form"),
                        options.get("validation_labels", "", "IDX file of their labels")},
        share_(options.get("validation_share", 0.1, "share of each class held out, without validation_images; 0: none",
                           between(0, 0.9))),
        classes_(options.get("classes", 0, "labels are 0 to classes - 1; 0: as many as there are", between(0, 65536))),
        grey_(options.get("grey", false, "read the images of a folder in grey")),
        size_(options.get("size", 0, "pixels of a side after resizing; 0: as they are", between(0, 65536))),
        augment_(options.choose("augment", "none", {"none", "flip", "crop_flip"},
                                "random changes of the training images: mirrored, and moved by up to an eighth")),
        given_{options.get("mean", std::vector<double>{}, "of each channel, of pixels from 0 to 1; none: computed"),
               options.get("std", std::vector<double>{}, "of each channel, of pixels from 0 to 1; none: computed",
                           between(1e-6, 1e6))},
        is_balanced_(options.choose("class_weights", "none", {"none", "balanced"},
                                    "of the loss; balanced: a class counts the more, the fewer images it has") ==
                     "balanced"),
        max_bytes_(options.get("max_bytes", 4'000'000'000, "the most bytes of an IDX file, unpacked; more are refused",
                               vernier::at_least(1))) {
    for (const char* key : {"images", "labels", "validation_images", "validation_labels"})
      options.resumable(key);  // content counts, not path
    plan_.model = options.choose("model", "cnn", {"cnn", "resnet18", "resnet34", "resnet"}, "the network");
    plan_.channels = options.get("channels", 16, "of the first convolution of cnn and resnet", between(1, 65536));
    plan_.blocks =
        options.get("blocks", std::vector<std::int64_t>{1, 1, 1}, "of each stage of resnet", between(1, 1000));
    plan_.frames = options.get("frames", 0, "frames taken from each clip, evenly spread over it; 0: images, not clips",
                               between(0, 65536));
    plan_.stem = options.choose("stem", "auto", {"auto", "7x7", "3x3"},
                                "first convolution of a ResNet; auto: 3x3 for images below 64 pixels");
    check_options(options);
    is_share_given_ = share_ > 0 && options.given("validation_share");
  }

  void build(Run& run) override {
    if (is_trained()) recall();
    if (reads_data()) is_trained() ? read_to_evaluate(run.seed) : read_to_train(run.seed);
    network_ =
        make_network(plan_, run.seed, [this](const Part& part, const torch::Tensor& x) { return recomputed(part, x); });
    set_model(network_);
    const auto unweighted = [](const torch::Tensor& output, const torch::Tensor& target) {
      return at::cross_entropy_loss(output, target);
    };
    set_loss(is_balanced_ ? Loss(vernier::balanced_cross_entropy(counts_)) : Loss(unweighted), 1, what_is_predicted());
    add_metric(vernier::accuracy());
    if (plan_.classes > 5) add_metric(vernier::top_k(5));
    if (!is_trained()) set_learned(facts());
  }

  // Reads images to train on for some seconds; SupervisedTask reads those held out.
  void check(const Run& run) override {
    SupervisedTask::check(run);
    if (is_trained() || files_.is_idx()) return;  // the latter is in memory
    constexpr double seconds = 10;
    const auto read = require_readable(*training_, seconds, &run);
    if (read < training_->size() && !run.is_stopping()) {
      info("read ", read, " of ", training_->size(), " training ", what(),
           "s; the others are read when they are drawn");
    }
  }

  // An image, a folder of images, a clip, a folder of clips, a list of them, or an IDX file.
  DatasetPtr read_inputs(const std::string& path) override {
    if (!files_.is_idx()) {
      auto files = vernier::image_files(path, {.channels = grey_ ? 1 : 3, .frames = plan_.frames});
      names_of_files_ = files.names;
      if (!files.left_out.empty()) warn(files.left_out);
      require_readable(*files.dataset, std::numeric_limits<double>::infinity(), nullptr);
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
    auto columns = columns_of(targets(), forward(batch), batch.samples);
    if (!names_of_files_.empty()) columns.insert(columns.begin(), {what(), batch.tensors.at(1), names_of_files_});
    return columns;
  }

  std::string description() const override { return description_of({plan_.colours, plan_.height, plan_.width}, ""); }

  vernier::ExportedModel onnx_model() override {
    auto images = example(2).tensors.at(0);
    if (images.dim() == 3) images = images.unsqueeze(1);  // images of an IDX file have no channels
    const auto pixels = at::arange(images.numel()).remainder(251).to(torch::kUInt8).reshape(images.sizes());
    nlohmann::ordered_json shape = {plan_.height, plan_.width, plan_.colours};
    if (size_ > 0) shape = {"height", "width", plan_.colours};
    return {.module = *network_,
            .forward = [this](const auto& inputs) { return network_->forward(inputs.at(0)); },
            .examples = {pixels},
            .description = description_of(shape, "by the model, "),
            .classes = vernier::names_of({plan_.classes, names_}),
            .images = vernier::ImageInput{size_}};
  }

  std::string python_model() const override { return python_source(plan_, vernier::names_of({plan_.classes, names_})); }

 private:
  // shape: of an image. by: who resizes it.
  std::string description_of(const nlohmann::ordered_json& shape, const char* by) const {
    nlohmann::ordered_json all = {{"task", "images"}};
    auto& input = all["input"];
    input = {{"dtype", "uint8"}, {"shape", {"samples"}}};
    if (plan_.frames > 0) {
      input["shape"].push_back(plan_.frames);
      input["frames"] = c10::str("the middle one of each of ", plan_.frames, " equal parts of the clip");
    }
    for (const auto& size : shape) input["shape"].push_back(size);
    input["channels"] = plan_.colours == 3 ? "red, green, blue" : "grey";
    if (size_ > 0) input["resized"] = c10::str(by, "the shorter side to ", size_, " pixels, then the middle square");
    input["normalized"] = "by the model, by mean and std of pixels from 0 to 1";
    input["mean"] = plan_.mean, input["std"] = plan_.std;
    all["output"] = {{"shape", {"samples", plan_.classes}},
                     {"is", "logits"},
                     {"classes", vernier::names_of({plan_.classes, names_})}};
    return vernier::json_text(all, 2);
  }

  void check_options(const Options& options) const {
    if (given_.mean.size() != given_.std.size()) {
      options.refuse("mean", "and `std` have a number for each channel, or none");
    }
    if (plan_.frames > 0 && plan_.model != "cnn") {
      options.refuse("model", c10::str("= \"", plan_.model,
                                       "\" is for images, and there are `frames`; set model = "
                                       "\"cnn\", or frames = 0 for a folder of images"));
    }
    if (plan_.frames > 0 && files_.is_idx()) {
      options.refuse("frames", "is for folders of clips, and an IDX file has images; leave it out");
    }
    if (files_.images.empty()) return;  // the options are only described
    if (held_out_files_.images.empty() && !held_out_files_.labels.empty()) {
      options.refuse("validation_images", "and `validation_labels` are given both or not at all");
    }
    if (!files_.is_idx() && !held_out_files_.labels.empty()) {
      options.refuse("validation_labels", "is for an IDX file, and there are no `labels`");
    }
    if (files_.is_idx() && held_out_files_.images.empty() != held_out_files_.labels.empty()) {
      options.refuse("validation_images", "and `validation_labels` are given both or not at all");
    }
  }

  Pictures read(const PictureFiles& files) {
    auto all =
        read_pictures(files, {plan_.classes > 0 ? plan_.classes : classes_, names_, grey_, max_bytes_, plan_.frames});
    if (!all.left_out.empty()) warn(all.left_out);
    return all;
  }

  void read_to_train(std::uint64_t seed) {
    if (is_share_given_ && !held_out_files_.images.empty())
      refuse("`validation_share` is without meaning where validation_images is given; leave one of them out");
    const auto all = read(files_);
    names_ = all.names, plan_.classes = all.classes;
    auto training = all;
    Pictures held_out;
    if (!held_out_files_.images.empty()) {
      held_out = read(held_out_files_);
    } else if (share_ > 0) {
      std::tie(training, held_out) = split_pictures(all, share_, seed);
    }
    data_facts_ = named().facts({all.contents}, held_out.dataset);
    training_ = fitted(training.dataset);
    take_shape(*training_);
    set_norm(*training_);
    if (held_out.dataset && held_out.dataset->size() > 0) {
      const auto images = fitted(held_out.dataset);
      require_shape(held_out_files_.images.empty() ? files_.images : held_out_files_.images, *images);
      add_validation(images);
    }
    const auto learning = augmented(training_, augment_);
    set_training(with_moments(learning, measured_));
    learn_targets(vernier::target_facts(training.labels, what_is_predicted()));
    counts_ = training.labels.bincount({}, plan_.classes);
    info(plan_.model, " for ", what(), "s of ", plan_.frames > 0 ? c10::str(plan_.frames, " frames of ") : "",
         plan_.height, " x ", plan_.width, " with ", plan_.colours, plan_.colours == 1 ? " channel" : " channels",
         " in ", vernier::counted({plan_.classes, names_}, all.labels));
    if (const auto alike = vernier::alike_words(names_); !alike.empty()) warn("the classes have ", alike);
    if (const auto odd = scarce_classes(all, training, what()); !odd.empty()) warn(odd);
  }

  vernier::NamedData named() const {
    return {{{files_.images}, files_.labels},
            {{held_out_files_.images}, held_out_files_.labels},
            "validation_images",
            "validation_labels"};
  }

  void read_to_evaluate(std::uint64_t seed) {
    Pictures all, held_out;
    std::string name;
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      all = held_out = read({name = files.names[0], files.targets});
      return std::vector{all.contents};
    };
    const auto hold_out = [&] { return (held_out = split_pictures(all, share_, seed).second).dataset; };
    named().read_again(learned(), read_all, hold_out);
    const bool is_any = held_out.dataset->size() > 0;
    const auto images = fitted(is_any ? held_out.dataset : all.dataset);
    require_shape(name, *images);
    set_training(images);
    if (is_any) add_validation(images);
  }

  void recall() {
    const auto& learned = this->learned();
    const auto list = [&](const char* name) {
      const auto numbers = learned.tensor(name);
      return std::vector<double>(numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel());
    };
    plan_.height = learned.integer("height"), plan_.width = learned.integer("width");
    plan_.colours = learned.integer("channels"), plan_.classes = learned.integer("classes");
    plan_.mean = list("mean"), plan_.std = list("std");
    names_ = vernier::words_of(learned, "names");
    counts_ = learned.tensor("counts");
    const auto frames = learned.has("frames") ? learned.integer("frames") : 0;
    if (frames != plan_.frames) {
      refuse(c10::str("frames = ", plan_.frames, ", and the model was trained with frames = ", frames));
    }
    shape_ = {plan_.colours, plan_.height, plan_.width};
    if (frames > 0) shape_.insert(shape_.begin(), frames);
    if (files_.is_idx()) shape_ = {plan_.height, plan_.width};
  }

  State facts() const {
    auto facts = data_facts_;
    facts.put("frames", plan_.frames);
    facts.put("height", plan_.height);
    facts.put("width", plan_.width);
    facts.put("channels", plan_.colours);
    facts.put("classes", plan_.classes);
    facts.put("mean", at::tensor(plan_.mean, torch::kFloat64));
    facts.put("std", at::tensor(plan_.std, torch::kFloat64));
    vernier::put_words(facts, "names", names_);
    facts.put("counts", counts_);
    return facts;
  }

  std::string what() const { return plan_.frames > 0 ? "clip" : "image"; }
  vernier::Targets what_is_predicted() const { return {vernier::Targets::Kind::classes, plan_.classes, names_}; }

  DatasetPtr fitted(const DatasetPtr& images) const {
    return files_.is_idx() && size_ == 0 ? images : vernier::of_one_size(images, size_);
  }

  void take_shape(const vernier::Dataset& images) {
    const auto image = pixels_of(images, 0);
    shape_ = image.sizes().vec();
    plan_.height = image.size(-2), plan_.width = image.size(-1);
    plan_.colours = image.dim() > 2 ? image.size(-3) : 1;
    if (plan_.model == "cnn" && (plan_.height < 4 || plan_.width < 4)) {
      refuse(c10::str("'", files_.images, "' has ", what(), "s of ", plan_.height, " x ", plan_.width,
                      "; two poolings need 4 x 4 at least"));
    }
  }

  void require_shape(const std::string& name, const vernier::Dataset& images) const {
    const auto image = pixels_of(images, 0);
    if (image.sizes() == shape_) return;
    refuse(c10::str("'", name, "' has ", what(), "s of ", image.sizes(), ", those to train on are ",
                    torch::IntArrayRef(shape_), "; set `size`"));
  }

  void set_norm(const vernier::Dataset& images) {
    measured_ = moments_of(images, plan_.colours);
    const auto& moments = given_.mean.empty() ? measured_ : given_;
    plan_.mean = moments.mean, plan_.std = moments.std;
    if (std::ssize(plan_.mean) != plan_.colours) {
      refuse(c10::str("mean and std have ", plan_.mean.size(), " numbers, and the ", what(), "s have ", plan_.colours,
                      " channels"));
    }
  }

  PictureFiles files_, held_out_files_;
  double share_;
  std::int64_t classes_;
  bool grey_;
  std::int64_t size_;
  std::string augment_;
  Moments given_, measured_;  // by the TOML; of the training images
  bool is_balanced_, is_share_given_;
  std::int64_t max_bytes_;

  Plan plan_;
  std::shared_ptr<ImageNetwork> network_;
  std::vector<std::int64_t> shape_;          // shape of an image
  std::vector<std::string> names_;           // names of the classes
  State data_facts_;                         // facts of NamedData
  torch::Tensor counts_;                     // training images of each class
  DatasetPtr training_;                      // without augmentation, for check()
  std::vector<std::string> names_of_files_;  // files of read_inputs()
};

}  // namespace

VERNIER_PLUGIN(Images, "images", "2.0.0")
