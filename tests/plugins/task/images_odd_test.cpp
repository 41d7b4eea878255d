// Folders of images as people have them: what is printed, or refused, for each.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>

#include <filesystem>
#include <functional>

#include "loaded_task.h"
#include "log_lines.h"
#include "picture_folder.h"

namespace images_odd_test {

using vernier::Table;

namespace {

const std::string oracles = VERNIER_SOURCE_DIR "/tests/oracles/data/";

std::string picture(std::uint32_t number, std::uint32_t height = 8, std::uint32_t width = 8) {
  return png(height, width, 3, striped(number, height, width));
}

// Two classes with four images each.
void plain(const TemporaryFolder& folder, const std::string& root = "d") {
  for (std::uint32_t i = 0; i < 8; ++i) {
    folder.write(root + (i % 2 == 0 ? "/ant/" : "/bee/") + std::to_string(i) + ".png", picture(i));
  }
}

// A picture of 8 x 8 pixels whose data unpack to 80 MB.
std::string bomb() {
  auto bytes = png(2'666'666, 10, 3, std::string(80'000'000, '\0'));
  bytes.replace(16, 8, std::string("\0\0\0\10\0\0\0\10", 8));
  auto sum = crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + 12, 17);
  for (std::size_t i = 33; i-- > 29; sum >>= 8) bytes[i] = static_cast<char>(sum & 255);
  return bytes;
}

void list(const TemporaryFolder& folder, const std::string& text) {
  plain(folder);
  folder.write("list.csv", text);
}

// Two classes, and another file.
auto beside(const std::string& name, const std::string& bytes) {
  return [name, bytes](const TemporaryFolder& folder) {
    plain(folder);
    folder.write(name, bytes);
  };
}

constexpr const char* whole_list =
    "file,label\nd/ant/0.png,a\nd/ant/2.png,a\nd/bee/1.png,b\nd/bee/3.png,b\nd/bee/5.png,b\n";

struct Case {
  const char* name;
  std::function<void(const TemporaryFolder&)> fill;
  const char* expected;  // the log, or the error
  const char* images = "d";
  Table more = {};
};

const char* const plain_log =
    "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out";

std::vector<Case> cases_of_files() {
  using F = const TemporaryFolder&;
  return {
      {"plain", [](F f) { plain(f); }, plain_log},
      {"no such folder", [](F) {}, "'/nope' does not exist; paths are relative to the working folder", "nope"},
      {"a text file", [](F f) { f.write("d", "cat\n"); },
       "'/d' is neither a folder of images nor a CSV file of their names; if it is an IDX file, name that of the "
       "labels by `labels`"},
      {"an empty folder", [](F f) { std::filesystem::create_directory(f / "d"); },
       "'/d' has no folders; each class needs one, with its images in it, or a CSV file has the columns file and "
       "label"},
      {"images without folders", [](F f) { f.write("d/1.png", picture(1)); },
       "'/d' has no folders; each class needs one, with its images in it, or a CSV file has the columns file and "
       "label"},
      {"other formats",
       [](F f) {
         plain(f);
         f.write("d/ant/1.gif", "GIF89a......");
         f.write("d/ant/1.bmp", std::string("BM\x1e\x10\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\0", 19));
         f.write("d/bee/1.tiff", std::string("II*\0\x08\0\0\0", 8));
         f.write("d/bee/1.heic", std::string("\0\0\0\x18"
                                             "ftypheic\0\0\0\0",
                                             16));
       },
       "4 files that are neither PNG, JPEG nor WebP are left out, such as '/d/ant/1.bmp' (BMP)|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"one text file", beside("d/ant/notes.txt", "blurred"),
       "1 file that is neither PNG, JPEG nor WebP is left out: '/d/ant/notes.txt' (not an image)|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"a web page for an image", beside("d/ant/9.jpg", "<!DOCTYPE html><html>404"),
       "1 file that is neither PNG, JPEG nor WebP is left out: '/d/ant/9.jpg' (a web page)|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"an empty file", beside("d/ant/9.png", ""),
       "1 file that is neither PNG, JPEG nor WebP is left out: '/d/ant/9.png' (empty)|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
  };
}

std::vector<Case> cases_of_names() {
  using F = const TemporaryFolder&;
  return {
      {"endings that are wrong, absent and in capitals",
       [](F f) {
         for (const char* name : {"1.jpg", "2", "3.PNG", "4.bmp"}) f.write("d/ant/" + std::string(name), picture(0));
         for (const char* name : {"1.JPEG", "2.dat", "3", "4.txt"}) f.write("d/bee/" + std::string(name), picture(1));
       },
       plain_log},
      {"hidden files",
       [](F f) {
         plain(f);
         f.write("d/.DS_Store", "x");
         f.write("d/ant/.DS_Store", "x");
         f.write("d/ant/._0.png", "Mac OS X");
       },
       plain_log},
      {"a hidden image", beside("d/ant/.9.png", picture(0)),
       "1 file that is hidden is left out: '/d/ant/.9.png'|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"a hidden folder", beside("d/.ipynb_checkpoints/0.png", picture(0)), plain_log},
      {"files beside the classes",
       [](F f) {
         plain(f);
         f.write("d/labels.csv", "x");
         f.write("d/9.png", picture(0));
       },
       "2 files that are in no folder of a class are left out, such as '/d/9.png'|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"a pipe",
       [](F f) {
         plain(f);
         CHECK(::mkfifo((f / "d/ant/pipe.png").c_str(), 0600) == 0);
       },
       "1 file that is neither PNG, JPEG nor WebP is left out: '/d/ant/pipe.png' (not a regular file)|"
       "cnn for images of 8 x 8 with 3 channels in 2 classes: ant 4, bee 4|7 samples, 1 held out"},
      {"names that are not UTF-8",
       [](F f) {
         plain(f, "d");
         f.write("d/ant/\xfc.gif", "GIF89a");
         f.write("d/\xe9tau/1.png", picture(0));
       },
       "1 file that is neither PNG, JPEG nor WebP is left out: '/d/ant/\\xfc.gif' (GIF)|"
       "cnn for images of 8 x 8 with 3 channels in 3 classes: ant 4, bee 4, \\xe9tau 1|"
       "classes with a single image: \\xe9tau|8 samples, 1 held out"},
      {"a link to nothing",
       [](F f) {
         plain(f);
         std::filesystem::create_symlink("gone.png", f / "d/ant/9.png");
       },
       "'/d/ant/9.png' cannot be read: No such file or directory; it is a link to 'gone.png', which is not there"},
  };
}

std::vector<Case> cases_of_folders() {
  using F = const TemporaryFolder&;
  return {
      {"an empty class",
       [](F f) {
         plain(f);
         std::filesystem::create_directory(f / "d/cat");
       },
       "the class '/d/cat' has no PNG, JPEG or WebP image; put some there, or move the folder elsewhere"},
      {"a class of other formats",
       [](F f) {
         plain(f);
         f.write("d/cat/1.gif", "GIF89a");
         f.write("d/cat/2.gif", "GIF89a");
       },
       "the class '/d/cat' has no PNG, JPEG or WebP image: 2 files that are neither PNG, JPEG nor WebP are left out, "
       "such as '/d/cat/1.gif' (GIF); put some there, or move the folder elsewhere"},
      {"a single class", [](F f) { f.write("d/ant/1.png", picture(0)); },
       "'/d' has a single class; there is nothing to tell apart"},
      {"train and val", [](F f) { plain(f, "d/train"), plain(f, "d/val"); },
       "'/d' has the folders 'train' and 'val', which are not classes; name them by images = \"/d/train\" and "
       "validation_images = \"/d/val\""},
      {"Training, Test and Validation",
       [](F f) { plain(f, "d/Training"), plain(f, "d/Test"), plain(f, "d/Validation"); },
       "'/d' has the folders 'Training' and 'Validation', which are not classes; name them by images = "
       "\"/d/Training\" and validation_images = \"/d/Validation\""},
      {"a folder around the classes", [](F f) { plain(f, "d/images"); },
       "'/d' has a single folder, and the classes are in it; name it by images = \"/d/images\""},
      {"a folder in a class", beside("d/ant/old/1.png", picture(0)),
       "'/d/ant/old' is a folder within a class; move its images to the class, or the folder elsewhere; if it is a "
       "clip, set `frames` of task/images"},
      {"classes of one image",
       [](F f) {
         plain(f);
         f.write("d/cat/1.png", picture(0));
         f.write("d/dog/1.png", picture(0));
       },
       "cnn for images of 8 x 8 with 3 channels in 4 classes: ant 4, bee 4, cat 1, dog 1|"
       "classes with a single image: cat,dog|9 samples, 1 held out"},
  };
}

std::vector<Case> cases_of_images() {
  using F = const TemporaryFolder&;
  return {
      {"an image of another size", beside("d/bee/9.png", picture(1, 9, 8)),
       "'/d/bee/9.png': the image has the shape [3, 9, 8], and the first one [3, 8, 8]; set `size`"},
      {"images that are too small for the network",
       [](F f) { f.write("d/ant/1.png", picture(0, 3, 3)), f.write("d/bee/1.png", picture(1, 3, 3)); },
       "'/d' has images of 3 x 3; two poolings need 4 x 4 at least"},
      {"a picture that unpacks to more than its pixels", beside("d/bee/9.png", bomb()),
       "'/d/bee/9.png' is a damaged PNG: it has far more data than pixels"},
      {"a damaged image", beside("d/bee/9.png", picture(1).substr(0, 60)),
       "'/d/bee/9.png' is a damaged PNG: it is cut short"},
      {"three damaged images",
       [](F f) {
         plain(f);
         for (const char* name : {"d/ant/8.png", "d/ant/9.png", "d/bee/9.png"}) {
           f.write(name, picture(1).substr(0, 60));
         }
       },
       "'/d/ant/8.png' is a damaged PNG: it is cut short; 2 others are refused too",
       "d",
       {{"validation_share", value(0.0)}}},
      {"a damaged image among those held out",
       [](F f) {
         plain(f), plain(f, "v");
         f.write("v/bee/9.png", picture(1).substr(0, 60));
       },
       "'/v/bee/9.png' is a damaged PNG: it is cut short",
       "d",
       {{"validation_images", value("v")}}},
      {"a held-out class that is unknown",
       [](F f) {
         plain(f), plain(f, "v");
         f.write("v/cat/9.png", picture(1));
       },
       "'/v' has the folder 'cat', which is none of the classes ant,bee",
       "d",
       {{"validation_images", value("v")}}},
      {"a wish for more classes",
       [](F f) { plain(f); },
       "'/d' has 2 classes, and classes = 5",
       "d",
       {{"classes", value(5)}}},
  };
}

std::vector<Case> cases_of_formats() {
  using F = const TemporaryFolder&;
  return {
      {"CMYK",
       beside("d/bee/9.jpg", read_text(oracles + "cmyk.jpg")),
       "'/d/bee/9.jpg' is a JPEG in CMYK; convert it to RGB",
       "d",
       {{"size", value(8)}}},
      {"an animation",
       beside("d/bee/9.webp", read_text(oracles + "animated.webp")),
       "'/d/bee/9.webp' is an animated WebP; save one of its pictures",
       "d",
       {{"size", value(8)}}},
      {"all formats together",
       [](F f) {
         for (const char* name : {"rgb.webp", "rgb.png", "smooth.jpg", "palette.png"}) {
           f.write("d/ant/" + std::string(name), read_text(oracles + name));
           f.write("d/bee/" + std::string(name), read_text(oracles + name));
         }
       },
       plain_log,
       "d",
       {{"size", value(8)}}},
  };
}

std::vector<Case> cases_of_lists() {
  using F = const TemporaryFolder&;
  const auto with = [](const std::string& line) { return [line](F f) { list(f, whole_list + line); }; };
  return {
      {"a list", [](F f) { list(f, whole_list); },
       "cnn for images of 8 x 8 with 3 channels in 2 classes: a 2, b 3|4 samples, 1 held out", "list.csv"},
      {"a list with a file that is not there", with("d/bee/99.png,b\n"),
       "'/list.csv' line 7: '/d/bee/99.png' does not exist; file names are relative to the folder of the list",
       "list.csv"},
      {"a list with a folder", with("d/bee,b\n"),
       "'/list.csv' line 7: '/d/bee' is not a file; file names are relative to the folder of the list", "list.csv"},
      {"a list with a file twice", with("d/ant/0.png,b\n"),
       "'/list.csv' line 7 has 'd/ant/0.png' again, which '/list.csv' line 2 has; name each file once", "list.csv"},
      {"a list with a file that is not an image",
       [](F f) {
         list(f, std::string(whole_list) + "x.gif,b\n");
         f.write("x.gif", "GIF89a");
       },
       "'/list.csv' line 7: '/x.gif' is neither PNG, JPEG nor WebP (GIF); convert it", "list.csv"},
      {"a list of one label", [](F f) { list(f, "file,label\nd/ant/0.png,a\nd/ant/2.png,a\n"); },
       "'/list.csv' has a single class; there is nothing to tell apart", "list.csv"},
      {"a list with the label that losses leave out",
       [](F f) { list(f, "file,label\nd/ant/0.png,0\nd/bee/1.png,7\nd/ant/2.png,-100\n"); },
       "'/list.csv' has the label -100, which PyTorch's losses leave out; delete the samples that have it, or give the "
       "class a name",
       "list.csv"},
      {"a list with labels that are numbers", [](F f) { list(f, "file,label\nd/ant/0.png,0\nd/bee/1.png,7\n"); },
       "cnn for images of 8 x 8 with 3 channels in 2 classes: 0 1, 7 1|classes with a single image: 0,7|2 samples",
       "list.csv"},
      {"a held-out list with another label",
       [](F f) {
         list(f, whole_list);
         f.write("v.csv", "file,label\nd/ant/0.png,a\nd/bee/1.png,c\n");
       },
       "'/v.csv' has the label 'c', which is none of the classes a,b",
       "list.csv",
       {{"validation_images", value("v.csv")}}},
      {"a list and labels",
       [](F f) { list(f, whole_list); },
       "`labels` is for an IDX file, and '/list.csv' has the labels in its column label",
       "list.csv",
       {{"labels", value("x")}}},
  };
}

// Without the folder's path, and without "task/images: ".
std::string plain_text(std::string text, const TemporaryFolder& folder) {
  for (const auto& part : {folder.path().string(), std::string("task/images: "), std::string("test.toml:2: ")}) {
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part)) text.erase(at, part.size());
  }
  return text;
}

std::string outcome(const Case& each) {
  const TemporaryFolder folder;
  each.fill(folder);
  Table table = {{"images", value(folder / each.images)}, {"channels", value(2)}};
  for (const auto& [key, entry] : each.more) table[key] = entry;
  if (table.contains("validation_images")) {
    table["validation_images"] = value(folder / std::get<std::string>(table["validation_images"].data));
  }
  const LogLines log;
  const auto error = refusal([&] {
    const LoadedTask task("images", table);
    task->check(task.run);
  });
  if (!error.empty()) return plain_text(error, folder);
  std::string text;
  for (const auto& line : LogLines::lines()) text += (text.empty() ? "" : "|") + line;
  return plain_text(text, folder);
}

}  // namespace

TEST_CASE("images: odd folders and lists, and what is said of each") {
  std::size_t count = 0;
  for (const auto& cases : {cases_of_files(), cases_of_names(), cases_of_folders(), cases_of_images(),
                            cases_of_formats(), cases_of_lists()}) {
    for (const auto& each : cases) {
      CAPTURE(each.name);
      CHECK(outcome(each) == std::string(each.expected));
      ++count;
    }
  }
  CHECK(count >= 40);
}

TEST_CASE("images: predict says what it leaves out, and refuses damaged images") {
  const TemporaryFolder folder;
  plain(folder);
  const LoadedTask task("images", {{"images", value(folder / "d")}, {"channels", value(2)}});
  auto& predictor = dynamic_cast<vernier::Predictor&>(*task.task);
  const auto said = [&](const std::string& path) {
    const LogLines log;
    const auto error = refusal([&] { predictor.read_inputs(folder / path); });
    return plain_text(error.empty() && !LogLines::lines().empty() ? LogLines::lines()[0] : error, folder);
  };
  CHECK(said("d/ant") == "");
  CHECK(said("d") == "'/d' has no PNG, JPEG or WebP image: 2 files that are folders are left out, such as '/d/ant'");
  CHECK(said("nope") == "'/nope' does not exist; paths are relative to the working folder");
  folder.write("n/1.png", picture(1));
  folder.write("n/2.bmp", std::string("BM\x1e\x10\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\0", 19));
  folder.write("n/3.gif", "GIF89a");
  CHECK(said("n") == "2 files that are neither PNG, JPEG nor WebP are left out, such as '/n/2.bmp' (BMP)");
  CHECK(said("n/3.gif") == "'/n/3.gif' is neither PNG, JPEG nor WebP (GIF); convert it");
  folder.write("n/4.png", picture(1).substr(0, 60));
  folder.write("n/5.png", picture(1).substr(0, 60));
  CHECK(said("n") == "'/n/4.png' is a damaged PNG: it is cut short; 1 other is refused too");
}

}  // namespace images_odd_test
