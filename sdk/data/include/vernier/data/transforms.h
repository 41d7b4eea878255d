// Changes of images, for a dataset whose samples begin with an image:
//
//   auto training = vernier::transform(images, {vernier::random_resized_crop(224, 224), vernier::random_flip(),
//                                               vernier::to_float(), vernier::normalize({0.485, 0.456, 0.406},
//                                                                                       {0.229, 0.224, 0.225})});
//
// An image is [channels, height, width] or [height, width] on the CPU, uint8 or floating-point. All frames of a clip,
// [frames, channels, height, width], change in the same way. Names and results are
// those of torchvision.transforms.v2 where it has the same; its random numbers are others.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/dataset.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace vernier {

// Worker threads call it, several at the same time. It must not write to the image: it may be the dataset's own memory.
// Random numbers come from `random` only. All of these throw Error for an image that they cannot change, when called,
// and for wrong arguments, when made.
using Transform = std::function<torch::Tensor(const torch::Tensor& image, Random& random)>;

// The dataset with the first tensor of each sample changed by all transforms in order.
VERNIER_API DatasetPtr transform(DatasetPtr dataset, std::vector<Transform> transforms);

// Several transforms as one.
VERNIER_API Transform compose(std::vector<Transform> transforms);

// The middle of the image. Throws Error for an image that is smaller.
VERNIER_API Transform center_crop(std::int64_t height, std::int64_t width);
// Any part of the image, all equally likely, after `padding` zeros were added on each side.
VERNIER_API Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0);
// A part with a random share of the area and a random ratio of width to height, resized (Szegedy et al. 2015). If ten
// draws do not fit, it is the middle.
VERNIER_API Transform random_resized_crop(std::int64_t height, std::int64_t width, double min_share = 0.08,
                                          double max_share = 1, double min_ratio = 3.0 / 4, double max_ratio = 4.0 / 3);
// Mirrored, left to right, with this probability.
VERNIER_API Transform random_flip(double probability = 0.5);
// Bilinear, with antialiasing where it becomes smaller.
VERNIER_API Transform resize(std::int64_t height, std::int64_t width);
// The same, so that the shorter side has `size` pixels and the ratio stays; the longer side is rounded down.
// labels: each pixel is that of the image that is nearest, as torchvision resizes a mask.
enum class Pixels : std::uint8_t { colours, labels };
VERNIER_API Transform resize_shorter(std::int64_t size, Pixels pixels = Pixels::colours);
// float32; uint8 is divided by 255.
VERNIER_API Transform to_float();
// (image - mean) / std for each channel of a floating-point image. One mean and std are for all channels.
VERNIER_API Transform normalize(std::vector<double> mean, std::vector<double> std);

}  // namespace vernier
