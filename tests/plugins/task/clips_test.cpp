// task/images on clips: folders of frames, and .npy files.
#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/graph/graph_export.h>
#include <vernier/safetensors.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "fused_choice.h"
#include "loaded_data_task.h"
#include "log_lines.h"
#include "picture_folder.h"
#include "python.h"
#include "task/graph/graph_network.h"
#include "tools/export/torchscript.h"

namespace clips_test {

using vernier::SupervisedTask;
using vernier::Table;

namespace {

// A .npy file. shape: "(2, 8, 8)".
std::string npy(const std::string& shape, const std::string& bytes, const std::string& type = "|u1") {
  auto header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\1\0\x76\0", 10) + header + "\n" + bytes;
}

// A frame of one colour, in grey.
std::string plain(int colour, std::uint32_t height = 8, std::uint32_t width = 8) {
  return png(height, width, 1, std::string(height * width, static_cast<char>(colour)));
}

// A clip whose frame i has the colour first + i, as a folder or, of width 8, as a .npy file.
void write_clip(const TemporaryFolder& folder, const std::string& name, int frames, int first, bool is_array = false) {
  std::string bytes;
  for (int i = 0; i < frames; ++i) {
    bytes += std::string(64, static_cast<char>(first + i));
    if (!is_array) folder.write(name + "/f" + std::to_string(i) + ".png", plain(first + i));
  }
  if (is_array) folder.write(name + ".npy", npy("(" + std::to_string(frames) + ", 8, 8)", bytes));
}

// Two classes of four clips of 12 frames, half of them arrays.
void write_classes(const TemporaryFolder& folder) {
  for (int i = 0; i < 8; ++i) {
    write_clip(folder, (i % 2 == 0 ? "d/ant/" : "d/bee/") + std::to_string(i), 12, 20 * i, i % 4 > 1);
  }
}

// A bright column that moves by a pixel each frame, to the left or to the right, from anywhere.
void write_motions(const TemporaryFolder& folder, int count) {
  for (int n = 0; n < 2 * count; ++n) {
    const bool is_left = n % 2 == 0;
    std::string bytes;
    for (int i = 0; i < 6 * 64; ++i) {
      const int shift = i / 64, column = i % 8, start = n / 2 % 8;
      const int place = (start + (is_left ? 8 - shift : shift)) % 8;
      bytes += static_cast<char>(column == place ? 200 : 20 + (i * 7 + n * 13) % 40);
    }
    folder.write((is_left ? "d/left/" : "d/right/") + std::to_string(n) + ".npy", npy("(6, 8, 8, 1)", bytes));
  }
}

Table table_of(const TemporaryFolder& folder, Table more = {}) {
  Table table = {{"images", value(folder / "d")}, {"frames", value(4)},           {"grey", value(true)},
                 {"channels", value(2)},          {"order", value("sequential")}, {"validation_share", value(0.0)}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

// The colour of each frame of a clip [frames, channels, height, width] of plain frames.
std::vector<int> colours(const torch::Tensor& clip) {
  std::vector<int> all;
  for (std::int64_t i = 0; i < clip.size(0); ++i) {
    CHECK(clip[i].eq(clip[i][0][0][0]).all().item<bool>());
    all.push_back(clip[i][0][0][0].item<int>());
  }
  return all;
}

// The first sample of a folder that has one clip beside those of write_classes(), whose class comes first.
std::vector<int> first_of(const TemporaryFolder& folder, const Table& more = {}) {
  return colours(LoadedTask("images", table_of(folder, more))->next().tensors[0][0]);
}

}  // namespace

TEST_CASE("clips: the frames of a folder are evenly spread, in the order of their numbers, and those of an array too") {
  const TemporaryFolder folder;
  write_classes(folder);
  const LoadedTask task("images", table_of(folder));
  const auto batch = task->next();
  REQUIRE(has_shape(batch.tensors[0], {8, 4, 1, 8, 8}));
  CHECK((batch.tensors[0].scalar_type() == torch::kUInt8));
  CHECK(batch.tensors[1].equal(torch::tensor({0, 0, 0, 0, 1, 1, 1, 1})));
  for (std::int64_t i = 0; i < 8; ++i) {
    const int first = 20 * static_cast<int>(2 * (i % 4) + i / 4);
    CHECK((colours(batch.tensors[0][i]) == std::vector{first + 1, first + 4, first + 7, first + 10}));
  }
  CHECK(first_of(folder, {{"frames", value(1)}}) == std::vector{6});
  CHECK(first_of(folder, {{"frames", value(12)}, {"batch_size", value(1)}, {"drop_last", value(true)}}).back() == 11);
  const LoadedTask in_colour("images", table_of(folder, {{"grey", value(false)}, {"size", value(4)}}));
  CHECK(has_shape(in_colour->next().tensors[0], {8, 4, 3, 4, 4}));
}

TEST_CASE("clips: a list names folders and arrays") {
  const TemporaryFolder folder;
  write_classes(folder);
  folder.write("list.csv", "file,label\nd/ant/0,a\nd/ant/2.npy,a\nd/bee/1,b\nd/bee/3.npy,b\n");
  const LoadedTask task("images", table_of(folder, {{"images", value(folder / "list.csv")}}));
  CHECK(has_shape(task->next().tensors[0], {4, 4, 1, 8, 8}));
}

TEST_CASE("clips: all frames of a clip get the same random change") {
  const TemporaryFolder folder;
  write_motions(folder, 20);
  const auto drawn = [&](const char* augment, int frames) {
    const LoadedTask task("images", table_of(folder, {{"augment", value(augment)}, {"frames", value(frames)}}));
    return task->next().tensors[0];
  };
  const auto all = drawn("none", 6), flipped = drawn("flip", 6), moved = drawn("crop_flip", 6);
  const auto first = drawn("crop_flip", 1);  // draws the same numbers for each clip
  int mirrored = 0;
  for (std::int64_t i = 0; i < 40; ++i) {
    const bool is_mirrored = flipped[i].equal(all[i].flip({-1}));
    CHECK((is_mirrored || flipped[i].equal(all[i])));
    mirrored += is_mirrored ? 1 : 0;
    CHECK(first[i][0].equal(moved[i][3]));
  }
  CHECK(mirrored > 8);
  CHECK(mirrored < 32);
  CHECK_FALSE(moved.equal(flipped));
}

TEST_CASE("clips: mean and deviation are those of all frames") {
  const TemporaryFolder folder;
  write_classes(folder);
  const LoadedTask task("images", table_of(folder));
  const auto pixels = task->next().tensors[0].to(torch::kFloat64) / 255;
  const auto described = nlohmann::json::parse(predictor(task).description());
  CHECK(described["input"]["mean"][0].get<double>() == doctest::Approx(pixels.mean().item<double>()));
  CHECK(described["input"]["std"][0].get<double>() == doctest::Approx(pixels.std(false).item<double>()));
  CHECK(described["input"]["shape"].dump() == R"(["samples",4,1,8,8])");
}

// A single frame has no direction.
TEST_CASE("clips: the network learns the direction of a motion, and by single frames it cannot") {
  const TemporaryFolder folder;
  write_motions(folder, 32);
  const auto accuracy = [&](int frames) {
    LoadedTask task("images", table_of(folder, {{"frames", value(frames)},
                                                {"channels", value(4)},
                                                {"order", value("shuffled")},
                                                {"validation_share", value(0.25)},
                                                {"batch_size", value(12)}}));
    for (int step = 0; step < 120; ++step) task.descend(task->next(), 0.1);
    task.validate();
    return *task.run.metrics.value("accuracy");
  };
  CHECK(accuracy(6) > 0.9);
  CHECK(accuracy(1) < 0.8);
}

TEST_CASE("clips: the network has three dimensions, and pools time as long as there is some") {
  const TemporaryFolder folder;
  write_classes(folder);
  for (const auto& [frames, features] : {std::pair{1, 16}, {2, 16}, {3, 16}, {4, 16}, {8, 32}, {12, 48}}) {
    const LoadedTask task("images", table_of(folder, {{"frames", value(frames)}}));
    CHECK(has_shape(task.parameter("conv_2.weight"), {4, 2, 3, 3, 3}));
    CHECK(has_shape(task.parameter("classify.weight"), {2, features}));
    task->loss(task->next()).backward();
    for (const auto& parameter : task.run.parameters) CHECK(parameter.model.grad().isfinite().all().item<bool>());
  }
}

// oneDNN reads beyond few padded frames, so the kernels of a run compute them in float32.
TEST_CASE("clips: gradients in bfloat16 are near those in float32 for any number of frames") {
  const TemporaryFolder folder;
  write_motions(folder, 8);
  const fused_test::Fused fused;
  for (const int frames : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(frames);
    std::vector<torch::Tensor> gradients;
    for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
      const LoadedTask task("images", table_of(folder, {{"frames", value(frames)}, {"channels", value(16)}}));
      task.run.model->to(dtype);
      task->loss(task->next()).backward();
      gradients.push_back(task.parameter("conv_2.weight").grad().to(torch::kFloat32));
    }
    CHECK((gradients[1] - gradients[0]).norm().item<double>() < 0.2 * gradients[0].norm().item<double>());
  }
}

TEST_CASE("clips: with recompute gradients and running statistics have the same bits") {
  const TemporaryFolder folder;
  write_motions(folder, 8);
  std::vector<vernier::Tensors> states;
  for (const char* recompute : {"none", "full", "selective"}) {
    const LoadedTask task("images", table_of(folder, {{"recompute", value(recompute)}}));
    vernier::Tensors state;
    for (int i = 0; i < 2; ++i) task->loss(task->next()).backward();
    for (const auto& parameter : task.run.parameters) state[parameter.name] = parameter.model.grad();
    for (const auto& buffer : task.run.model->named_buffers()) state[buffer.key()] = buffer.value().clone();
    states.push_back(state);
  }
  for (const auto& state : states) {
    for (const auto& [name, tensor] : state) CHECK_MESSAGE(tensor.equal(states[0].at(name)), name);
  }
}

TEST_CASE("clips: Python, TorchScript, ONNX and .pt2 compute what the network does") {
  const TemporaryFolder folder, onnx;
  write_motions(folder, 8);
  for (const int frames : {2, 6}) {
    const LoadedTask task("images", table_of(folder, {{"frames", value(frames)}}));
    for (int step = 0; step < 3; ++step) task->loss(task->next());  // moves the statistics
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto forward = [&](const auto& inputs) {
      auto batch = supervised(task).example(1);
      batch.tensors[0] = inputs[0];
      return supervised(task).forward(batch);
    };
    const auto clips = supervised(task).example(3).tensors[0];
    const auto logits = forward(std::vector{clips});
    vernier::save_torchscript(folder / "model.pt", *task.run.model, supervised(task), torch::kCPU);  // compares
    vernier::export_pt2(vernier::ExportedModel{*task.run.model, forward, {clips}}, folder / "model.pt2");
    graph::GraphNetwork network(exported::bytes_of(folder / "model.pt2"), "model.pt2", "");
    network.eval();
    CHECK(network.forward({clips}).equal(logits));
    vernier::export_onnx(dynamic_cast<vernier::OnnxExportable&>(*task.task).onnx_model(), onnx / "model.onnx");
    const auto colours_last = clips.permute({0, 1, 3, 4, 2}).contiguous();
    vernier::save_safetensors(onnx / "model.safetensors", {{"input/3", colours_last}, {"output/3", logits}}, {});
    std::string out;
    if (has_python("onnxruntime")) {
      CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", onnx.path(), out) == 0, out);
    }
    if (!has_python("torch, safetensors")) continue;
    folder.write("model.py", predictor(task).python_model());
    vernier::save_safetensors(folder / "model.safetensors", vernier::state_dict(*task.run.model).tensors);
    vernier::save_safetensors(folder / "batch.safetensors", {{"clips", clips}, {"logits", logits}});
    folder.write("check.py",
                 "from safetensors.torch import load_file\nfrom model import load\nimport torch\n"
                 "batch = load_file('batch.safetensors')\nlogits = load('model.safetensors')(batch['clips'])\n"
                 "torch.testing.assert_close(logits, batch['logits'], rtol=1e-3, atol=1e-4)\n");
    CHECK_MESSAGE(python("check.py", folder.path(), out) == 0, out);
  }
}

TEST_CASE("clips: predict takes a clip, an array, and a folder of both, and a trained task keeps `frames`") {
  const TemporaryFolder folder;
  write_classes(folder);
  const LoadedTask trained("images", table_of(folder));
  const auto load = [&](int frames) {
    auto task = make_plugin<vernier::Task>("task/images", table_of(folder, {{"frames", value(frames)}}));
    auto& base = static_cast<SupervisedTask&>(*task);
    base.use_learned(supervised(trained).learned(), /*reads_data=*/false);
    vernier::TrainerRun run;
    task->prepare(run);
    return task;
  };
  CHECK(refusal([&] { load(5); }) == "frames = 5, and the model was trained with frames = 4");
  const auto task = load(4);
  const auto names = [&](const std::string& path) {
    auto& reader = dynamic_cast<vernier::Predictor&>(*task);
    auto loader = static_cast<SupervisedTask&>(*task).loader_of(reader.read_inputs(folder / path));
    const auto rows = reader.predict(loader.next());
    CHECK(rows[0].name == "clip");
    return rows[0].labels;
  };
  CHECK(names("d/ant/0") == std::vector<std::string>{"0"});
  CHECK(names("d/ant/0/") == std::vector<std::string>{"0"});
  CHECK(names("d/ant/2.npy") == std::vector<std::string>{"2.npy"});
  CHECK((names("d/ant") == std::vector<std::string>{"0", "2.npy", "4", "6.npy"}));
  folder.write("x.mp4", std::string("\0\0\0\x18"
                                    "ftypisom",
                                    12));
  CHECK(contains(refusal([&] { names("x.mp4"); }), "/x.mp4' is neither a folder of frames nor a .npy file; write"));
}

namespace {

struct Case {
  const char* name;
  std::function<void(const TemporaryFolder&)> fill;  // beside two classes
  const char* expected;                              // the log, or the error
  Table more = {};
};

constexpr const char* good_log =
    "cnn for clips of 4 frames of 8 x 8 with 1 channel in 2 classes: ant 4, bee 4|8 samples";
constexpr const char* more_log =
    "cnn for clips of 4 frames of 8 x 8 with 1 channel in 2 classes: ant 5, bee 4|9 samples";

auto array(const std::string& shape, std::size_t bytes, const std::string& type = "|u1") {
  return [=](const TemporaryFolder& f) { f.write("d/ant/x.npy", npy(shape, std::string(bytes, '\x10'), type)); };
}

std::vector<Case> cases_of_clips() {
  using F = const TemporaryFolder&;
  return {
      {"plain", [](F) {}, good_log},
      {"hidden files",
       [](F f) {
         f.write("d/ant/.DS_Store", "x");
         f.write("d/ant/.x/1.png", plain(0));
         f.write("d/ant/0/._f1.png", "x");
       },
       good_log},
      {"other files",
       [](F f) {
         f.write("d/ant/x.mp4", std::string("\0\0\0\x18"
                                            "ftypmp42",
                                            12));
         f.write("d/ant/0/notes.txt", "x");
       },
       "1 file that is neither a folder of frames nor a .npy file is left out: '/d/ant/x.mp4' (a video); 1 file that "
       "is neither PNG, JPEG nor WebP is left out: '/d/ant/0/notes.txt' (not an image)|"
       "cnn for clips of 4 frames of 8 x 8 with 1 channel in 2 classes: ant 4, bee 4|8 samples"},
      {"short clips",
       [](F f) {
         write_clip(f, "d/ant/8", 3, 0);
         write_clip(f, "d/bee/8", 1, 0, true);
       },
       "2 clips have fewer than 4 frames, so some are repeated, such as '/d/ant/8' (3)|"
       "cnn for clips of 4 frames of 8 x 8 with 1 channel in 2 classes: ant 5, bee 5|10 samples"},
      {"an array with channels", array("(9, 8, 8, 3)", 9 * 8 * 8 * 3), more_log},
      {"a class of videos",
       [](F f) {
         f.write("d/cow/1.avi", "RIFF1234AVI LIST");
         f.write("d/cow/2.mkv", "\x1a\x45\xdf\xa3 matroska");
       },
       "the class '/d/cow' has no clip: 2 files that are neither a folder of frames nor a .npy file are left out, "
       "such as '/d/cow/1.avi' (a video); put some there, as `ffmpeg -i clip.mp4 clip/%06d.png` does, or move the "
       "folder elsewhere"},
      {"a class of images", [](F f) { f.write("d/cow/1.png", plain(0)); },
       "the class '/d/cow' has no clip: 1 file that is neither a folder of frames nor a .npy file is left out: "
       "'/d/cow/1.png' (PNG); put some there, as `ffmpeg -i clip.mp4 clip/%06d.png` does, or move the folder "
       "elsewhere"},
      {"an empty clip", [](F f) { std::filesystem::create_directory(f / "d/ant/x"); },
       "the clip '/d/ant/x' has no PNG, JPEG or WebP image; put some there, or move the folder elsewhere"},
      {"a folder in a clip", [](F f) { f.write("d/ant/0/old/1.png", plain(0)); },
       "'/d/ant/0/old' is a folder within a clip; move its images to the clip, or the folder elsewhere"},
      {"train and validation", [](F f) { write_clip(f, "d/train/a/0", 4, 0), write_clip(f, "d/val/a/0", 4, 0, true); },
       "'/d' has the folders 'train' and 'val', which are not classes; name them by images = \"/d/train\" and "
       "validation_images = \"/d/val\""},
      {"no `frames`",
       [](F) {},
       "'/d/ant/0' is a folder within a class; move its images to the class, or the folder elsewhere; if it is a clip, "
       "set `frames` of task/images",
       {{"frames", value(0)}}},
  };
}

std::vector<Case> cases_of_forms() {
  using F = const TemporaryFolder&;
  return {
      {"frames of two sizes",
       [](F f) {
         write_clip(f, "d/ant/8", 4, 0);
         f.write("d/ant/8/f2.png", plain(0, 8, 9));
       },
       "'/d/ant/8': '/d/ant/8/f2.png' has 9 x 8 pixels, and '/d/ant/8/f0.png' of the same clip 8 x 8; resize the "
       "frames of a clip to one size"},
      {"a damaged frame",
       [](F f) {
         write_clip(f, "d/ant/8", 4, 0);
         f.write("d/ant/8/f2.png", plain(0).substr(0, 50));
       },
       "'/d/ant/8': '/d/ant/8/f2.png' is a damaged PNG: it is cut short"},
      {"a clip of another size", array("(4, 9, 8)", 4 * 72),
       "'/d/ant/x.npy': the clip has the shape [4, 1, 9, 8], and the first one [4, 1, 8, 8]; set `size`"},
      {"an array of floats", array("(4, 8, 8)", 4 * 64 * 4, "<f4"),
       "'/d/ant/x.npy' has elements of type Float; a clip is uint8, from 0 to 255"},
      {"an array of an image", array("(8, 8)", 64),
       "'/d/ant/x.npy' has the shape [8, 8]; a clip is [frames, height, width] or [frames, height, width, 1 or 3 "
       "channels]"},
      {"channels before the pixels", array("(4, 3, 8, 8)", 4 * 3 * 64),
       "'/d/ant/x.npy' has the shape [4, 3, 8, 8]; a clip is [frames, height, width] or [frames, height, width, 1 or 3 "
       "channels]"},
      {"an array of all clips", array("(2, 4, 8, 8, 3)", 2 * 4 * 64 * 3),
       "'/d/ant/x.npy' has the shape [2, 4, 8, 8, 3]; a clip is [frames, height, width] or [frames, height, width, 1 "
       "or 3 channels]"},
      {"an array without frames", array("(0, 8, 8)", 0), "'/d/ant/x.npy' has the shape [0, 8, 8], so it has no pixels"},
      {"an array that is cut short", array("(4, 8, 8)", 255),
       "'/d/ant/x.npy' is cut short: the array of shape [4, 8, 8] needs 256 bytes, there are 255"},
      {"a ResNet",
       [](F) {},
       "`model` = \"resnet\" is for images, and there are `frames`; set model = \"cnn\", or frames = 0 for a folder of "
       "images",
       {{"model", value("resnet")}}},
      {"an IDX file",
       [](F) {},
       "`frames` is for folders of clips, and an IDX file has images; leave it out",
       {{"labels", value("x")}}},
      {"frames that are too small",
       [](F) {},
       "'/d' has clips of 3 x 3; two poolings need 4 x 4 at least",
       {{"size", value(3)}}},
  };
}

// Without the folder's path, and without "task/images: ".
std::string outcome(const Case& each) {
  const TemporaryFolder folder;
  write_classes(folder);
  each.fill(folder);
  const LogLines log;
  auto text = refusal([&] {
    const LoadedTask task("images", table_of(folder, each.more));
    task->check(task.run);
  });
  if (text.empty()) {
    for (const auto& line : LogLines::lines()) text += (text.empty() ? "" : "|") + line;
  }
  for (const auto& part : {folder.path().string(), std::string("task/images: "), std::string("test.toml:2: ")}) {
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part)) text.erase(at, part.size());
  }
  return text;
}

}  // namespace

TEST_CASE("clips: odd clips, and what is said of each") {
  for (const auto& cases : {cases_of_clips(), cases_of_forms()}) {
    for (const auto& each : cases) {
      CAPTURE(each.name);
      CHECK(outcome(each) == std::string(each.expected));
    }
  }
}

TEST_CASE("clips: a frame that changes while a run trains is refused") {
  const TemporaryFolder folder;
  write_classes(folder);
  const LoadedTask task("images", table_of(folder, {{"workers", value(0)}}));
  folder.write("d/ant/0/f1.png", plain(99, 8, 9));
  CHECK(contains(refusal([&] { task->next(); }), "/d/ant/0' has changed since its folder was listed"));
}

}  // namespace clips_test
