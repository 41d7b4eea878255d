#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/numpy.h>
#include <vernier/data/transforms.h>

#include <map>

#include "thrown.h"

namespace transforms_test {

using vernier::Random;
using vernier::Transform;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

// Each pixel has a value of its own.
torch::Tensor numbered(std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  return torch::arange(count).to(torch::kUInt8).view(shape);
}

torch::Tensor changed(const Transform& transform, const torch::Tensor& image, std::int64_t index = 0) {
  Random random(1, 0, index);
  return transform(image, random);
}

std::string refusal(const std::function<void()>& body) {
  const auto thrown = thrown_by(body);
  CHECK((thrown.kind == 0 || thrown.kind == 2));
  return thrown.text;
}

}  // namespace

TEST_CASE("transforms: center_crop takes the middle, and an odd pixel as torchvision does") {
  const auto image = numbered({2, 6, 5});
  const auto crop = changed(vernier::center_crop(2, 3), image);
  CHECK(torch::equal(crop, image.narrow(1, 2, 2).narrow(2, 1, 3)));
  CHECK(torch::equal(changed(vernier::center_crop(3, 2), image[0]), image[0].narrow(0, 2, 3).narrow(1, 2, 2)));
  CHECK(torch::equal(changed(vernier::center_crop(6, 5), image), image));
}

TEST_CASE("transforms: random_crop takes every place, all about equally often") {
  const auto image = numbered({1, 4, 5}) + 1;
  std::map<int, int> seen;  // by the first pixel
  for (int i = 0; i < 6000; ++i) {
    const auto crop = changed(vernier::random_crop(3, 3), image, i);
    const int first = crop[0][0][0].item<int>();
    ++seen[first];
    CHECK(torch::equal(crop[0][2], crop[0][0] + 10));
  }
  REQUIRE(seen.size() == 6);
  for (const auto& [first, count] : seen) CHECK(std::abs(count - 1000) < 150);  // 5 standard deviations
  std::map<bool, int> padded;                                                   // the corner is one of the added zeros
  for (int i = 0; i < 100; ++i) {
    const auto crop = changed(vernier::random_crop(4, 5, 2), image, i);
    REQUIRE(crop.sizes() == image.sizes());
    ++padded[crop[0][0][0].item<int>() == 0];
  }
  CHECK(padded.size() == 2);
}

TEST_CASE("transforms: random_flip mirrors the share that was asked for, and the same for the same random numbers") {
  const auto image = numbered({3, 2, 4});
  int flipped = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto result = changed(vernier::random_flip(0.25), image, i);
    const bool is_flipped = !torch::equal(result, image);
    flipped += is_flipped ? 1 : 0;
    if (is_flipped) CHECK(torch::equal(result, image.flip({2})));
    CHECK(torch::equal(result, changed(vernier::random_flip(0.25), image, i)));
  }
  CHECK(std::abs(flipped - 500) < 100);
  CHECK(torch::equal(changed(vernier::random_flip(0), image), image));
  CHECK(torch::equal(changed(vernier::random_flip(1), image), image.flip({2})));
}

TEST_CASE("transforms: resize has Pillow's values") {
  const auto image = vernier::read_npy(oracles + "smooth.npy").permute({2, 0, 1});
  for (const auto& [height, width] : {std::pair{5, 8}, {22, 20}, {11, 6}}) {
    CAPTURE(height);
    const auto name = oracles + "resized_" + std::to_string(height) + "_" + std::to_string(width) + ".npy";
    const auto expected = vernier::read_npy(name).permute({2, 0, 1}).to(torch::kFloat32);
    const auto resize = vernier::resize(height, width);
    const auto bytes = changed(resize, image), floats = changed(resize, image.to(torch::kFloat32));
    CHECK((bytes.scalar_type() == torch::kUInt8));
    CHECK((bytes.to(torch::kFloat32) - expected).abs().max().item<float>() <= 1);
    CHECK((floats - expected).abs().max().item<float>() <= 1);  // Pillow rounds twice
    CHECK(torch::equal(changed(resize, image[1]), bytes[1]));
  }
  CHECK(changed(vernier::resize_shorter(4), image).sizes() == torch::IntArrayRef{3, 4, 6});
  CHECK(changed(vernier::resize_shorter(22), image.transpose(1, 2)).sizes() == torch::IntArrayRef{3, 34, 22});
  const auto labels = torch::arange(24).to(torch::kUInt8).view({1, 4, 6});
  CHECK(changed(vernier::resize_shorter(2, vernier::Pixels::labels), labels)
            .equal(torch::tensor({0, 2, 4, 12, 14, 16}).to(torch::kUInt8).view({1, 2, 3})));
}

TEST_CASE("transforms: random_resized_crop keeps to its shares and ratios") {
  const auto rows = torch::arange(64, torch::kFloat32).view({64, 1}).expand({64, 64});
  const auto image = torch::stack({rows, rows.t()});
  for (int i = 0; i < 200; ++i) {
    const auto part = changed(vernier::random_resized_crop(32, 32, 0.25, 0.5, 0.5, 2), image, i);
    REQUIRE(part.sizes() == torch::IntArrayRef{2, 32, 32});
    // The ramps show the size of the part: 31 steps of size / 32 pixels, away from the borders.
    const auto height = (part[0][24][16] - part[0][8][16]).item<double>() * 2;
    const auto width = (part[1][16][24] - part[1][16][8]).item<double>() * 2;
    CHECK(height * width / 4096 > 0.25 - 0.03);
    CHECK(height * width / 4096 < 0.5 + 0.03);
    CHECK(width / height > 0.5 - 0.03);
    CHECK(width / height < 2 + 0.06);
  }
  const auto whole = changed(vernier::random_resized_crop(4, 4, 1, 1, 1, 1), image.narrow(1, 0, 32));
  CHECK(whole[1][0][0].item<double>() > 15);  // no draw fits: the middle 32 x 32
  CHECK(whole[1][0][3].item<double>() < 48);
}

TEST_CASE("transforms: to_float and normalize") {
  const auto image = torch::tensor({0, 51, 102, 255}, torch::kUInt8).view({2, 1, 2});
  const auto floats = changed(vernier::to_float(), image);
  CHECK(torch::allclose(floats, torch::tensor({0.0F, 0.2F, 0.4F, 1.0F}).view({2, 1, 2})));
  CHECK(torch::equal(changed(vernier::to_float(), floats), floats));
  const auto normal = changed(vernier::normalize({0.2, 0.4}, {0.1, 0.2}), floats);
  CHECK(torch::allclose(normal, torch::tensor({-2.0F, 0.0F, 0.0F, 3.0F}).view({2, 1, 2}), 1e-5, 1e-6));
  CHECK(torch::allclose(changed(vernier::normalize({0.2}, {0.1}), floats[0]), torch::tensor({-2.0F, 0.0F}).view({1, 2}),
                        1e-5, 1e-6));
  CHECK(torch::allclose(floats, changed(vernier::to_float(), image)));  // not changed in place
}

TEST_CASE("transforms: a dataset changes the first tensor by all transforms in order") {
  const auto images = numbered({4, 3, 4, 4}), labels = torch::arange(4);
  const auto dataset =
      vernier::transform(vernier::tensor_dataset({images, labels}),
                         {vernier::center_crop(2, 2), vernier::to_float(), vernier::normalize({0.5}, {2})});
  Random random(1, 0, 0);
  REQUIRE(dataset->size() == 4);
  const auto sample = dataset->get(2, random);
  const auto expected = (images[2].narrow(1, 1, 2).narrow(2, 1, 2).to(torch::kFloat32) / 255 - 0.5) / 2;
  CHECK(torch::allclose(sample[0], expected));
  CHECK(sample[1].item<std::int64_t>() == 2);
}

TEST_CASE("transforms: wrong arguments and images are refused") {
  const auto image = numbered({3, 4, 5});
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[&] { changed(vernier::center_crop(5, 5), image); }, "an image of 4 x 5 is too small to crop 5 x 5 from it"},
      {[&] { changed(vernier::random_crop(7, 5, 1), image); }, "an image of 6 x 7 is too small to crop 7 x 5 from it"},
      {[&] {
         changed(vernier::resize_shorter(64), image.narrow(1, 0, 1).repeat({1, 1, 1000000}));
       },
       "an image of 1 x 5000000 would become 64 x 320000000, and the most are 89478485 pixels"},
      {[&] { changed(vernier::resize(2, 2), image.flatten()); }, "an image has the shape [channels, height, width]"},
      {[&] { changed(vernier::resize(2, 2), image.narrow(1, 0, 0)); }, "an image without pixels cannot be resized"},
      {[&] { changed(vernier::normalize({0.5}, {1}), image); }, "normalize needs a floating-point image"},
      {[&] {
         changed(vernier::normalize({0, 0}, {1, 1}), image.to(torch::kFloat32));
       },
       "normalize has 2 means, and"},
      {[] {
         vernier::normalize({0, 0}, {1});
       },
       "normalize has 2 means and 1 standard deviations"},
      {[] { vernier::normalize({0}, {0}); }, "normalize has a standard deviation of 0"},
      {[] { vernier::resize(0, 2); }, "resize needs at least 1 x 1 pixels, not 0 x 2"},
      {[] { vernier::random_crop(2, 2, -1); }, "random_crop cannot pad by -1"},
      {[] { vernier::random_flip(1.5); }, "random_flip has a probability of 1.5"},
      {[] { vernier::random_resized_crop(2, 2, 0); }, "random_resized_crop has shares of the area from 0 to 1"},
      {[] { vernier::random_resized_crop(2, 2, 0.5, 1, 2, 1); }, "random_resized_crop has ratios from 2 to 1"},
  };
  for (const auto& [body, reason] : cases) {
    CAPTURE(reason);
    CHECK(refusal(body).starts_with(reason));
  }
}

}  // namespace transforms_test
