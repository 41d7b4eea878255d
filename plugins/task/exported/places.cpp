#include "places.h"

#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/images.h>
#include <vernier/data/transforms.h>
#include <vernier/error.h>

#include <filesystem>
#include <map>

namespace exported {

using vernier::refuse;

namespace {

std::vector<std::int64_t> without_ones(c10::IntArrayRef sizes) {
  std::vector<std::int64_t> all;
  for (const auto size : sizes) {
    if (size != 1) all.push_back(size);
  }
  return all;
}

// Returns black and white masks, whose pixels are 0 and 255 alone, as 0 and 1.
torch::Tensor without_white(const torch::Tensor& labels) {
  constexpr std::int64_t white = 255;
  const bool is_mask = labels.scalar_type() == torch::kUInt8 && ((labels == 0) | (labels == white)).all().item<bool>();
  return is_mask ? (labels == white).to(torch::kUInt8) : labels;
}

class Labelled final : public vernier::Dataset {
 public:
  Labelled(vernier::DatasetPtr pictures, torch::Tensor labels)
      : pictures_(std::move(pictures)), labels_(std::move(labels)) {}
  std::int64_t size() const override { return pictures_->size(); }
  vernier::Sample get(std::int64_t index, vernier::Random& random) const override {
    const auto labels = labels_[index];
    return {pictures_->get(index, random).at(0), labels.is_floating_point() ? labels : labels.to(torch::kInt64)};
  }
  std::string where(std::int64_t index) const override { return pictures_->where(index); }
  std::string fingerprint() const override {
    return pictures_->fingerprint() + ", masks " + vernier::fingerprint_of({labels_});
  }

 private:
  vernier::DatasetPtr pictures_;
  torch::Tensor labels_;
};

}  // namespace

Places::Places(vernier::Options& options)
    : left_out_(options.get("ignore_index", -100, "label that the loss and the metrics ignore")),
      is_given_(options.given("ignore_index")) {}

bool Places::take(const vernier::Source& labels, const torch::Tensor& output, bool of_classes) const {
  if (of_classes && is_given_) return true;
  if (!output.defined()) return !shape_.empty();
  return labels.tensor.dim() > 1 && output.dim() > 2 && output.numel() > output.size(0) * output.size(1);
}

void Places::learn(const vernier::Source& labels, c10::IntArrayRef output, c10::IntArrayRef input, bool of_classes,
                   std::int64_t& count) {
  const auto wanted = without_ones(labels.tensor.sizes().slice(1));
  const auto dims = output.size();
  if (of_classes && dims > 1) {
    const auto behind = output.slice(2), before = output.slice(1, dims - 2);
    const bool are_first = without_ones(behind) == wanted, are_last = without_ones(before) == wanted;
    shape_ = (are_first ? behind : before).vec();
    count = are_first ? output[1] : output.back();
    if (are_first && are_last && dims > 2) {
      doubt_ =
          c10::str("the model returns ", output, " for two samples of '", labels.name,
                   "', which is taken as [samples, classes, …]; transpose it in forward() if the classes are last");
    }
    if (count < 2) refuse(c10::str("the model returns ", output, ", one number for each label; set loss = \"bce\""));
    if (are_first || are_last) return;
  } else if (!of_classes && dims > 2 && without_ones(output.slice(1)) == wanted) {
    // A mask whose dimension of labels was dropped has the height and width of the pictures.
    shape_ = output.slice(1).vec();
    if (dims == 3 && input.size() == 3 && input.slice(1) == output.slice(1)) shape_.insert(shape_.begin(), 1);
    count = shape_[0];
    return;
  }
  refuse(c10::str("the model returns ", output, " for two samples, and '", labels.name, "' has the shape ",
                  labels.tensor.sizes(), "; ",
                  of_classes ? "logits [samples, classes, …] take labels [samples, …]"
                             : "logits of labels have the shape of the labels"));
}

torch::Tensor Places::read(const vernier::Source& labels, const torch::Tensor& output, c10::IntArrayRef input,
                           bool of_classes, std::int64_t& count) {
  if (!labels.words.empty()) refuse("'" + labels.name + "' has words; `ignore_index` is for labels that are numbers");
  if (count == 0) learn(labels, output.sizes(), input, of_classes, count);
  if (without_ones(labels.tensor.sizes().slice(1)) != without_ones(shape_)) {
    refuse(c10::str("'", labels.name, "' has labels of the shape ", labels.tensor.sizes().slice(1),
                    ", and the model learned from ", c10::IntArrayRef(shape_)));
  }
  auto sizes = shape_;
  sizes.insert(sizes.begin(), labels.tensor.size(0));
  auto numbers = labels;
  numbers.tensor = labels.tensor.reshape(sizes);
  constexpr std::int64_t white = 255;
  if (left_out_ != white) numbers.tensor = without_white(numbers.tensor);
  if (!of_classes) return numbers.tensor.to(torch::kFloat32);
  const auto codes = vernier::codes_of(numbers, count, left_out_);
  are_left_out_ = are_left_out_ || (codes < 0).any().item<bool>();
  return codes;
}

torch::Tensor Places::classes_first(const torch::Tensor& output) const {
  const c10::IntArrayRef places = shape_;
  if (places.empty() || output.dim() != std::ssize(places) + 2 || output.sizes().slice(2) == places) return output;
  return output.sizes().slice(1, places.size()) == places ? output.movedim(-1, 1) : output;
}

void Places::recall(const vernier::State& learned) {
  shape_ = sizes_in(learned.tensor("places"));
}

void Places::refuse_ignore_index(const char* reason) const {
  if (is_given_) refuse(std::string("`ignore_index` ") + reason);
}

std::vector<std::int64_t> sizes_in(const torch::Tensor& saved) {
  const auto sizes = saved.to(torch::kCPU).contiguous();
  return {sizes.const_data_ptr<std::int64_t>(), sizes.const_data_ptr<std::int64_t>() + sizes.numel()};
}

MaskedPictures masked_pictures(const std::string& pictures, const std::string& masks, std::int64_t size) {
  const auto stem_of = [](const std::string& name) { return std::filesystem::path(name).stem().string(); };
  const auto images = vernier::image_files(pictures, {});
  const auto files = vernier::image_files(masks, {.channels = 0});
  std::map<std::string, std::int64_t> places;
  for (std::size_t i = 0; i < files.names.size(); ++i) places[stem_of(files.names[i])] = static_cast<std::int64_t>(i);
  std::vector<std::int64_t> order;
  for (const auto& name : images.names) {
    const auto found = places.find(stem_of(name));
    if (found == places.end()) {
      refuse("'" + masks + "' has no mask of '" + name + "', such as " + stem_of(name) + ".png");
    }
    order.push_back(found->second);
  }
  const auto numbers = vernier::of_one_size(vernier::subset(files.dataset, torch::tensor(order, torch::kInt64)), size,
                                            vernier::Pixels::labels);
  vernier::Random none(0, 0, 0);
  std::vector<torch::Tensor> each;
  for (std::int64_t i = 0; i < numbers->size(); ++i) each.push_back(numbers->get(i, none).at(0).squeeze(0));
  return {vernier::transform(vernier::of_one_size(images.dataset, size), {vernier::to_float()}),
          {masks, at::stack(each), {}, {}},
          images.left_out.empty() ? files.left_out : images.left_out};
}

vernier::DatasetPtr with_labels(vernier::DatasetPtr pictures, torch::Tensor labels) {
  return std::make_shared<Labelled>(std::move(pictures), std::move(labels));
}

}  // namespace exported
