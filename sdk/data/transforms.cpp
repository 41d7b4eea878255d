#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/transforms.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace vernier {

namespace {

constexpr std::int64_t max_pixels = 89'478'485;  // size of a resized image; ImageOptions::max_pixels has the same

void check_image(const torch::Tensor& image) {
  if (image.dim() < 2 || image.dim() > 4) {
    refuse(c10::str("an image has the shape [channels, height, width] or [height, width], not ", image.sizes()));
  }
}

void check_size(const char* what, std::int64_t height, std::int64_t width) {
  if (height < 1 || width < 1) refuse(c10::str(what, " needs at least 1 x 1 pixels, not ", height, " x ", width));
}

// The size of an image, and parts of it.
std::int64_t height_of(const torch::Tensor& image) {
  check_image(image);
  return image.size(-2);
}
std::int64_t width_of(const torch::Tensor& image) {
  check_image(image);
  return image.size(-1);
}
torch::Tensor part_of(const torch::Tensor& image, std::int64_t top, std::int64_t left, std::int64_t height,
                      std::int64_t width) {
  return image.narrow(-2, top, height).narrow(-1, left, width);
}

void require_room(const torch::Tensor& image, std::int64_t height, std::int64_t width) {
  if (height_of(image) >= height && width_of(image) >= width) return;
  refuse(c10::str("an image of ", height_of(image), " x ", width_of(image), " is too small to crop ", height, " x ",
                  width, " from it; resize it first, or pad it"));
}

torch::Tensor resized(const torch::Tensor& image, std::int64_t height, std::int64_t width,
                      Pixels pixels = Pixels::colours) {
  check_image(image);
  if (image.numel() == 0) refuse("an image without pixels cannot be resized");
  if (height_of(image) == height && width_of(image) == width) return image;
  auto sizes = image.sizes().vec();
  sizes[sizes.size() - 2] = height, sizes.back() = width;
  auto batch = image;
  while (batch.dim() < 4) batch = batch.unsqueeze(0);
  if (pixels == Pixels::labels) return at::upsample_nearest2d(batch.contiguous(), {height, width}).view(sizes);
  return at::_upsample_bilinear2d_aa(batch.contiguous(), {height, width}, /*align_corners=*/false).view(sizes);
}

// Returns a random part like torchvision's RandomResizedCrop.get_params.
torch::Tensor random_part(const torch::Tensor& image, Random& random, std::pair<double, double> share,
                          std::pair<double, double> ratio) {
  const auto height = height_of(image), width = width_of(image);
  const auto rows = static_cast<double>(height), columns = static_cast<double>(width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = rows * columns * random.uniform(share.first, share.second);
    const double drawn = std::exp(random.uniform(std::log(ratio.first), std::log(ratio.second)));
    const auto w = std::llround(std::sqrt(area * drawn)), h = std::llround(std::sqrt(area / drawn));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = random.below(height - h + 1);
    return part_of(image, top, random.below(width - w + 1), h, w);
  }
  auto w = width, h = height;
  if (columns / rows < ratio.first) h = std::clamp<std::int64_t>(std::llround(columns / ratio.first), 1, height);
  if (columns / rows > ratio.second) w = std::clamp<std::int64_t>(std::llround(rows * ratio.second), 1, width);
  return part_of(image, (height - h) / 2, (width - w) / 2, h, w);
}

}  // namespace

Transform compose(std::vector<Transform> transforms) {
  return [transforms = std::move(transforms)](torch::Tensor image, Random& random) {
    for (const auto& transform : transforms) image = transform(image, random);
    return image;
  };
}

DatasetPtr transform(DatasetPtr dataset, std::vector<Transform> transforms) {
  return map(std::move(dataset), [change = compose(std::move(transforms))](Sample sample, Random& random) {
    if (sample.empty()) refuse("a sample without tensors has no image to transform");
    sample[0] = change(sample[0], random);
    return sample;
  });
}

Transform center_crop(std::int64_t height, std::int64_t width) {
  check_size("center_crop", height, width);
  return [=](const torch::Tensor& image, Random&) {
    require_room(image, height, width);
    const auto middle = [](std::int64_t all, std::int64_t part) {  // torchvision rounds halves to even
      return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(all - part) / 2));
    };
    return part_of(image, middle(height_of(image), height), middle(width_of(image), width), height, width);
  };
}

Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding) {
  check_size("random_crop", height, width);
  if (padding < 0) refuse(c10::str("random_crop cannot pad by ", padding));
  return [=](const torch::Tensor& image, Random& random) {
    check_image(image);
    const auto padded = padding == 0 ? image : at::constant_pad_nd(image, {padding, padding, padding, padding}, 0);
    require_room(padded, height, width);
    const auto top = random.below(height_of(padded) - height + 1);
    return part_of(padded, top, random.below(width_of(padded) - width + 1), height, width);
  };
}

Transform random_resized_crop(std::int64_t height, std::int64_t width, double min_share, double max_share,
                              double min_ratio, double max_ratio) {
  check_size("random_resized_crop", height, width);
  if (!(0 < min_share && min_share <= max_share && max_share <= 1)) {
    refuse(c10::str("random_resized_crop has shares of the area from ", min_share, " to ", max_share,
                    "; they must be above 0, at most 1 and in this order"));
  }
  if (!(0 < min_ratio && min_ratio <= max_ratio && std::isfinite(max_ratio))) {
    refuse(c10::str("random_resized_crop has ratios from ", min_ratio, " to ", max_ratio,
                    "; they must be above 0 and in this order"));
  }
  return [=](const torch::Tensor& image, Random& random) {
    require_room(image, 1, 1);
    return resized(random_part(image, random, {min_share, max_share}, {min_ratio, max_ratio}), height, width);
  };
}

Transform random_flip(double probability) {
  if (!(probability >= 0 && probability <= 1)) refuse(c10::str("random_flip has a probability of ", probability));
  return [=](const torch::Tensor& image, Random& random) {
    check_image(image);
    return random.uniform() < probability ? image.flip({-1}) : image;
  };
}

Transform resize(std::int64_t height, std::int64_t width) {
  check_size("resize", height, width);
  return [=](const torch::Tensor& image, Random&) { return resized(image, height, width); };
}

Transform resize_shorter(std::int64_t size, Pixels pixels) {
  check_size("resize_shorter", size, size);
  return [=](const torch::Tensor& image, Random&) {
    require_room(image, 1, 1);
    const auto height = height_of(image), width = width_of(image);
    const auto new_height = height < width ? size : size * height / width;
    const auto new_width = height < width ? size * width / height : size;
    if (new_height > max_pixels / new_width) {
      refuse(c10::str("an image of ", height, " x ", width, " would become ", new_height, " x ", new_width,
                      ", and the most are ", max_pixels, " pixels; crop it, or leave it out"));
    }
    return resized(image, new_height, new_width, pixels);
  };
}

Transform to_float() {
  return [](const torch::Tensor& image, Random&) {
    return image.scalar_type() == torch::kUInt8 ? image.to(torch::kFloat32).div_(255) : image.to(torch::kFloat32);
  };
}

Transform normalize(std::vector<double> mean, std::vector<double> std) {
  if (mean.empty() || mean.size() != std.size()) {
    refuse(c10::str("normalize has ", mean.size(), " means and ", std.size(), " standard deviations"));
  }
  for (const auto value : std) {
    if (!(value > 0)) refuse(c10::str("normalize has a standard deviation of ", value, "; it must be above 0"));
  }
  const auto as_tensor = [](const std::vector<double>& values) {
    return at::tensor(values, torch::kFloat32).view({-1, 1, 1});
  };
  return [mean = as_tensor(mean), std = as_tensor(std)](const torch::Tensor& image, Random&) {
    check_image(image);
    if (!image.is_floating_point()) refuse("normalize needs a floating-point image; put to_float() before it");
    const auto channels = image.dim() == 2 ? 1 : image.size(-3);
    if (mean.size(0) != 1 && mean.size(0) != channels) {
      refuse(c10::str("normalize has ", mean.size(0), " means, and the image has ", channels, " channels"));
    }
    const auto result = (image - mean.to(image.scalar_type())).div_(std.to(image.scalar_type()));
    return image.dim() == 2 ? result.squeeze(0) : result;
  };
}

}  // namespace vernier
