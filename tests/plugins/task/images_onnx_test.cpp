// The ONNX file of images takes them as other programs decode them, of any size, and has the pixels of transforms.h.
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <vernier/data/transforms.h>
#include <vernier/graph/graph_export.h>
#include <vernier/safetensors.h>

#include <nlohmann/json.hpp>

#include "loaded_data_task.h"
#include "picture_folder.h"
#include "python.h"

namespace images_onnx_test {

namespace {

torch::Tensor noise(std::vector<std::int64_t> shape) {
  const auto places = torch::arange(c10::multiply_integers(shape));
  return ((places * 7919 + places / 13 * 104729) % 2003 % 256).to(torch::kUInt8).reshape(shape);
}

// [.., colours, height, width] to [.., height, width, colours]
torch::Tensor colours_last(const torch::Tensor& images) {
  return images.movedim(-3, -1).contiguous();
}

torch::Tensor fitted(const torch::Tensor& images, std::int64_t size) {
  vernier::Random random(0, 0, 0);
  const auto frames = vernier::resize_shorter(size)(images.flatten(0, -4), random);
  auto shape = images.sizes().vec();
  shape.end()[-2] = shape.end()[-1] = size;
  return vernier::center_crop(size, size)(frames, random).reshape(shape);
}

void check_in_python(const TemporaryFolder& folder) {
  if (!has_python("onnxruntime")) return;
  std::string out;
  CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", folder.path(), out) == 0, out);
}

}  // namespace

TEST_CASE("images: the ONNX file resizes images and clips to the pixels that the reader makes") {
  const TemporaryFolder folder;
  torch::nn::Linear module(1, 1);
  module->eval();
  const auto pixels = [](const auto& inputs) { return inputs[0].flatten(1).to(torch::kFloat32); };
  constexpr std::int64_t size = 16;
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{37, 53}, {16, 16},   {17, 16}, {200, 31},
                                                                    {9, 40},  {301, 999}, {5, 5},   {48, 49}};
  for (const std::vector<std::int64_t>& lead : {std::vector<std::int64_t>{2, 3}, {1, 1}, {2, 3, 1}}) {
    const auto name = "images_" + std::to_string(lead.size()) + "_" + std::to_string(lead[0]);
    const auto shaped = [&](std::int64_t height, std::int64_t width) {
      auto shape = lead;
      shape.insert(shape.end(), {height, width});
      return shape;
    };
    vernier::export_onnx({.module = *module,
                          .forward = pixels,
                          .examples = {noise(shaped(size, size))},
                          .images = vernier::ImageInput{size}},
                         folder / (name + ".onnx"));
    vernier::Tensors numbers;
    for (const auto& [height, width] : sizes) {
      const auto images = noise(shaped(height, width));
      const auto of = std::to_string(height) + "x" + std::to_string(width);
      numbers["input/" + of] = colours_last(images);
      numbers["output/" + of] = pixels(std::vector{fitted(images, size)}).contiguous();
    }
    vernier::save_safetensors(folder / (name + ".safetensors"), numbers, {});
  }
  check_in_python(folder);
}

TEST_CASE("images: the ONNX file of a task gives the network's logits, and the description says what it takes") {
  const TemporaryFolder folder;
  for (const int size : {0, 6}) {
    const LoadedTask task("images", {{"images", value(write_stripes(folder, "train" + std::to_string(size), 4))},
                                     {"channels", value(4)},
                                     {"size", value(size)}});
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto model = dynamic_cast<vernier::OnnxExportable&>(*task.task).onnx_model();
    CHECK((model.classes == std::vector<std::string>{"left", "right"}));
    const auto shape = nlohmann::json::parse(model.description)["input"]["shape"].dump();
    CHECK(shape == (size == 0 ? R"(["samples",8,10,3])" : R"(["samples","height","width",3])"));
    const auto name = "task_" + std::to_string(size);
    export_onnx(model, folder / (name + ".onnx"));
    vernier::Tensors numbers;
    for (const std::int64_t samples : {1, 7}) {
      const auto images = noise({samples, 3, 8, 10});
      const auto label = std::to_string(samples);
      numbers["input/" + label] = colours_last(images);
      numbers["output/" + label] = supervised(task).forward({.tensors = {size == 0 ? images : fitted(images, size)}});
    }
    vernier::save_safetensors(folder / (name + ".safetensors"), numbers, {});
  }
  check_in_python(folder);
}

}  // namespace images_onnx_test
