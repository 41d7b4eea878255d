#include <doctest/doctest.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <vernier/data/images.h>
#include <vernier/data/numpy.h>

#include <filesystem>
#include <thread>

#include "temporary_folder.h"
#include "thrown.h"

namespace images_test {

using vernier::image_folder;
using vernier::ImageOptions;
using vernier::read_image;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

ImageOptions grey() {
  ImageOptions options;
  options.channels = 1;
  return options;
}

// The largest difference from what Pillow decoded to `kind` ("rgb" or "grey").
int distance_to_pillow(const std::string& name, const std::string& kind) {
  const auto image = read_image(oracles + name, kind == "grey" ? grey() : ImageOptions());
  auto expected = vernier::read_npy(oracles + name + "." + kind + ".npy");
  expected = kind == "grey" ? expected.unsqueeze(0) : expected.permute({2, 0, 1});
  REQUIRE((image.scalar_type() == torch::kUInt8));
  REQUIRE(image.is_contiguous());
  REQUIRE(image.sizes() == expected.sizes());
  return (image.to(torch::kInt32) - expected.to(torch::kInt32)).abs().max().item<int>();
}

std::string copied(const TemporaryFolder& folder, const std::string& to, const std::string& from) {
  return folder.write(to, read_text(oracles + from));
}

// Two classes with three images.
void fill(const TemporaryFolder& folder) {
  copied(folder, "dog/2.PNG", "grey.png");
  copied(folder, "cat/b.jpg", "smooth.jpg");
  copied(folder, "cat/a.png", "rgb.png");
  folder.write("cat/notes.txt", "not an image");
  folder.write("cat/.hidden.png", "");
  folder.write("notes.txt", "no class");
}

}  // namespace

// libpng and libjpeg-turbo are those of the machine. PNG is exact, except that libpng and Pillow round grey
// differently.
TEST_CASE("images: decodes what Pillow decodes") {
  for (const char* name :
       {"rgb.png", "grey.png", "palette.png", "rgba.png", "grey_alpha.png", "bits.png", "interlaced.png"}) {
    CAPTURE(name);
    CHECK(distance_to_pillow(name, "rgb") == 0);
    CHECK(distance_to_pillow(name, "grey") <= 1);
  }
  for (const char* name : {"smooth.jpg", "grey.jpg", "progressive.jpg"}) {
    CAPTURE(name);
    CHECK(distance_to_pillow(name, "rgb") <= 2);
    CHECK(distance_to_pillow(name, "grey") <= 2);
  }
  CHECK(distance_to_pillow("sixteen.png", "grey") == 0);  // the upper 8 bits
  const TemporaryFolder folder;
  auto with_gamma = read_text(oracles + "rgb.png");
  constexpr std::size_t behind_header = 33;
  with_gamma.insert(behind_header, std::string("\0\0\0\4gAMA\0\0\xb1\x8f\x0b\xfc"
                                               "a\5",
                                               16));
  CHECK(read_image(folder.write("gamma.png", with_gamma), grey()).equal(read_image(oracles + "rgb.png", grey())));
  CHECK(read_image(oracles + "sixteen.png").size(0) == 3);
}

// The colours of four classes are those that PASCAL VOC's masks have.
TEST_CASE("images: the numbers of a mask are written and read as they are, with the colours of PASCAL VOC") {
  const TemporaryFolder folder;
  const ImageOptions mask = {.channels = 0};
  const auto numbers = torch::arange(256).to(torch::kUInt8).view({8, 32});
  vernier::write_mask(folder / "mask.png", numbers);
  CHECK(read_image(folder / "mask.png", mask).equal(numbers.unsqueeze(0)));
  const auto colours = read_image(folder / "mask.png").flatten(1).t();
  const std::pair<int, std::vector<int>> known[] = {
      {0, {0, 0, 0}}, {1, {128, 0, 0}}, {15, {192, 128, 128}}, {20, {0, 64, 128}}, {255, {224, 224, 192}}};
  for (const auto& [number, colour] : known) {
    CHECK(colours[number].equal(torch::tensor(colour, torch::kInt32).to(torch::kUInt8)));
  }
  CHECK(read_image(oracles + "grey.png", mask).equal(read_image(oracles + "grey.png", grey())));
  for (const std::string name : {"rgb.png", "rgba.png", "sixteen.png"}) {
    CHECK(says(thrown_by([&] { read_image(oracles + name, mask); }).text,
               name + "' has colours or 16 bits; a mask is in grey or has a palette, and 8 bits"));
  }
  CHECK(says(thrown_by([&] { read_image(oracles + "grey.jpg", mask); }).text, "is not a PNG, and a mask is one"));
  CHECK(says(thrown_by([&] { vernier::write_mask(folder / "a.png", numbers.to(torch::kInt64)); }).text,
             "a mask is uint8 [height, width], not Long [8, 32]"));
  CHECK(says(thrown_by([&] { vernier::write_mask(folder / "no/a.png", numbers); }).text, "a.png: cannot be written: "));
}

TEST_CASE("images: WebP without loss has the pixels of the PNG") {
  CHECK(torch::equal(read_image(oracles + "rgb.webp"), read_image(oracles + "rgb.png")));
  const auto difference = read_image(oracles + "rgb.webp", grey()).to(torch::kInt32) -
                          read_image(oracles + "rgb.png", grey()).to(torch::kInt32);
  CHECK(difference.abs().max().item<int>() <= 1);
}

TEST_CASE("images: are turned as their EXIF orientation says") {
  const auto jpeg = read_text(oracles + "smooth.jpg"), png = read_text(oracles + "rgb.png");
  const auto webp = read_text(oracles + "rgb.webp");
  const auto tiff = [](int orientation, bool is_big_endian) {
    auto header = is_big_endian ? std::string("MM\0*\0\0\0\10\0\1\1\22\0\3\0\0\0\1\0", 19)
                                : std::string("II*\0\10\0\0\0\1\0\22\1\3\0\1\0\0\0", 18);
    header.push_back(static_cast<char>(orientation));
    header.append(is_big_endian ? 6 : 7, '\0');
    return header;
  };
  const auto in_jpeg = [&](const std::string& exif) {
    const auto length = exif.size() + 8;
    return jpeg.substr(0, 2) + "\xff\xe1" + static_cast<char>(length >> 8) + static_cast<char>(length & 255) +
           std::string("Exif\0\0", 6) + exif + jpeg.substr(2);
  };
  const auto in_webp = [&](const std::string& exif) {
    auto whole = webp.substr(0, 12) + std::string("VP8X\12\0\0\0\10\0\0\0\20\0\0\12\0\0", 18) + webp.substr(12);
    whole += "EXIF" + std::string(1, static_cast<char>(exif.size())) + std::string(3, '\0') + exif;
    const auto size = whole.size() - 8;
    whole[4] = static_cast<char>(size & 255), whole[5] = static_cast<char>(size >> 8);
    return whole;
  };
  const auto turned = [](const torch::Tensor& x, int orientation) {
    switch (orientation) {
      case 2:
        return x.flip({2});
      case 3:
        return x.rot90(2, {1, 2});
      case 4:
        return x.flip({1});
      case 5:
        return x.transpose(1, 2);
      case 6:
        return x.rot90(-1, {1, 2});  // clockwise
      case 7:
        return x.rot90(2, {1, 2}).transpose(1, 2);
      case 8:
        return x.rot90(1, {1, 2});
      default:
        return x;
    }
  };
  const auto of_jpeg = vernier::decode_image(jpeg, "a"), of_webp = vernier::decode_image(webp, "a");
  for (int orientation = 0; orientation <= 9; ++orientation) {
    CAPTURE(orientation);
    for (const bool is_big_endian : {false, true}) {
      const auto exif = tiff(orientation, is_big_endian);
      CHECK(torch::equal(vernier::decode_image(in_jpeg(exif), "a"), turned(of_jpeg, orientation)));
      CHECK(torch::equal(vernier::decode_image(in_webp(exif), "a"), turned(of_webp, orientation)));
      for (std::size_t length = 0; length < exif.size(); ++length) {
        CHECK(vernier::decode_image(in_jpeg(exif.substr(0, length)), "a").size(0) == 3);  // cut anywhere
      }
    }
  }
}

TEST_CASE("images: several threads decode at the same time, good and bad files") {
  const TemporaryFolder folder;
  const auto bytes = read_text(oracles + "smooth.jpg"), png = read_text(oracles + "rgb.png");
  const auto expected = read_image(oracles + "smooth.jpg");
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        right += torch::equal(vernier::decode_image(bytes, "a"), expected) ? 1 : 0;
        right += thrown_by([&] { vernier::decode_image(bytes.substr(0, 400), "a"); }).kind == 2 ? 1 : 0;
        right += thrown_by([&] { vernier::decode_image(png.substr(0, 400), "a"); }).kind == 2 ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(right == 1200);
}

TEST_CASE("images: what cannot be decoded is refused with the path and the reason") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes, const ImageOptions& options = {}) {
    const auto path = folder.write("a.png", bytes);
    const auto thrown = thrown_by([&] { read_image(path, options); });
    CHECK(thrown.kind == 2);
    CHECK(thrown.text.starts_with("'" + path + "' "));
    return thrown.text.substr(std::min(thrown.text.size(), path.size() + 3));
  };
  const auto png = read_text(oracles + "rgb.png"), jpeg = read_text(oracles + "smooth.jpg");
  CHECK(refusal("") == "is empty");
  CHECK(refusal("GIF89a") == "is neither PNG, JPEG nor WebP (GIF); convert it");
  CHECK(refusal("hello") == "is neither PNG, JPEG nor WebP");
  const auto webp = read_text(oracles + "rgb.webp");
  for (const std::size_t length : {12, 20, 30, 300, 775}) {
    CHECK(refusal(webp.substr(0, length)).starts_with("is a damaged WebP"));
  }
  CHECK(refusal(read_text(oracles + "animated.webp")) == "is an animated WebP; save one of its pictures");
  CHECK(refusal(png.substr(0, 300)) == "is a damaged PNG: it is cut short");
  CHECK(refusal(jpeg.substr(0, jpeg.size() - 20)).starts_with("is a damaged JPEG: "));
  auto flipped = png;
  flipped[300] = static_cast<char>(flipped[300] ^ 1);
  CHECK(refusal(flipped).starts_with("is a damaged PNG: "));
  CHECK(refusal(read_text(oracles + "cmyk.jpg")) == "is a JPEG in CMYK; convert it to RGB");
  ImageOptions small;
  small.max_pixels = 11 * 17 - 1;
  CHECK(refusal(png, small) == "has 17 x 11 pixels, and max_pixels is 186");
  CHECK(refusal(jpeg, small) == "has 17 x 11 pixels, and max_pixels is 186");
  small.max_pixels = 11 * 17;
  CHECK(read_image(folder.write("b.png", png), small).size(2) == 17);
  auto two = ImageOptions();
  two.channels = 2;
  CHECK(thrown_by([&] { read_image(oracles + "rgb.png", two); }).text ==
        "images are read with 0, 1 or 3 channels, not 2");
  CHECK(says(thrown_by([&] { read_image(folder / "none.png"); }).text, "cannot be opened"));
}

TEST_CASE("images: a folder of classes, in the order of bytes") {
  const TemporaryFolder folder;
  fill(folder);
  const auto all = image_folder(folder.path().string());
  const auto& dataset = all.dataset;
  CHECK(all.left_out == "1 file that is in no folder of a class is left out: '" + (folder / "notes.txt") +
                            "'; 1 file that is neither PNG, JPEG nor WebP is left out: '" + (folder / "cat/notes.txt") +
                            "' (not an image)");
  CHECK(all.classes == std::vector<std::string>{"cat", "dog"});
  REQUIRE(dataset->size() == 3);
  const char* files[] = {"cat/a.png", "cat/b.jpg", "dog/2.PNG"};
  vernier::Random random(1, 0, 0);
  for (int i = 0; i < 3; ++i) {
    const auto sample = dataset->get(i, random);
    CHECK(torch::equal(sample[0], read_image(folder / files[i])));
    CHECK((sample[1].scalar_type() == torch::kInt64));
    CHECK(sample[1].item<std::int64_t>() == i / 2);
    CHECK(dataset->where(i) == "'" + (folder / files[i]) + "'");
  }
  ImageOptions options = grey();
  options.classes = {"dog", "cat"};
  const auto other = image_folder(folder.path().string(), options);
  CHECK(other.dataset->get(0, random)[1].item<std::int64_t>() == 0);
  CHECK(other.dataset->where(0) == dataset->where(2));
  CHECK(other.dataset->get(0, random)[0].size(0) == 1);
  CHECK(other.dataset->fingerprint() != dataset->fingerprint());
  CHECK(image_folder(folder.path().string()).dataset->fingerprint() == dataset->fingerprint());
}

TEST_CASE("images: folders that are no classes with images are refused") {
  const TemporaryFolder folder;
  const auto root = folder.path().string();
  const auto refusal = [&](const ImageOptions& options = {}) {
    return thrown_by([&] { image_folder(root, options); }).text;
  };
  CHECK(refusal() == "'" + root +
                         "' has no folders; each class needs one, with its images in it, or a CSV file has the columns "
                         "file and label");
  fill(folder);
  ImageOptions options;
  options.classes = {"cat", "dog", "emu"};
  CHECK(refusal(options) == "'" + root + "' has no folder for the class 'emu'");
  options.classes = {"cat"};
  CHECK(refusal(options) == "'" + root + "' has the folder 'dog', which is none of the classes cat");
  options.classes = {"cat", "dog", "cat"};
  CHECK(refusal(options) == "the classes have 'cat' twice");
  copied(folder, "cat/old/c.png", "rgb.png");
  CHECK(refusal() == "'" + root +
                         "/cat/old' is a folder within a class; move its images to the class, or the "
                         "folder elsewhere; if it is a clip, set `frames` of task/images");
  std::filesystem::remove_all(folder / "cat/old");
  std::filesystem::remove(folder / "dog/2.PNG");
  CHECK(refusal() == "the class '" + root +
                         "/dog' has no PNG, JPEG or WebP image; put some there, or move the folder "
                         "elsewhere");
  CHECK(says(thrown_by([&] { image_folder(folder / "none"); }).text, "does not exist"));
}

TEST_CASE("images: an image that changes after its folder was listed is refused") {
  const TemporaryFolder folder;
  fill(folder);
  const auto dataset = image_folder(folder.path().string()).dataset;
  copied(folder, "cat/a.png", "grey.png");
  vernier::Random random(1, 0, 0);
  CHECK(says(thrown_by([&] { dataset->get(0, random); }).text,
             "'" + (folder / "cat/a.png") + "' has changed since its folder was listed"));
  std::filesystem::remove(folder / "cat/b.jpg");
  CHECK(says(thrown_by([&] { dataset->get(1, random); }).text, "b.jpg' cannot be read: No such file"));
}

}  // namespace images_test
