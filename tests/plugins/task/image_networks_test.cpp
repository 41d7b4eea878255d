#include <doctest/doctest.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/safetensors.h>

#include "loaded_data_task.h"
#include "picture_folder.h"
#include "python.h"
#include "run/state/snapshot.h"
#include "tools/export/torchscript.h"

namespace image_networks_test {

using vernier::Table;

namespace {

Table table_of(const TemporaryFolder& folder, const char* model, const char* stem = "auto", Table more = {}) {
  Table table = {{"images", value(write_stripes(folder, "train", 4))},
                 {"model", value(model)},
                 {"stem", value(stem)},
                 {"batch_size", value(4)}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

std::int64_t numbers_in(const LoadedTask& task) {
  std::int64_t all = 0;
  for (const auto& parameter : task.run.parameters) all += parameter.model.numel();
  return all;
}

}  // namespace

// The numbers of parameters are torchvision's for 1000 classes, 11689512 and 21797672, with 513 for each class.
TEST_CASE("images: the ResNets have torchvision's tensors") {
  const TemporaryFolder folder;
  const LoadedTask small("images", table_of(folder, "resnet18", "7x7")),
      large("images", table_of(folder, "resnet34", "7x7"));
  CHECK(numbers_in(small) == 11689512 - 998 * 513);
  CHECK(numbers_in(large) == 21797672 - 998 * 513);
  CHECK(small.run.parameters.size() == 62);
  CHECK(large.run.parameters.size() == 110);
  const std::vector<std::pair<const char*, std::vector<std::int64_t>>> names = {
      {"conv1.weight", {64, 3, 7, 7}},
      {"bn1.bias", {64}},
      {"layer1.0.conv1.weight", {64, 64, 3, 3}},
      {"layer1.1.bn2.weight", {64}},
      {"layer2.0.downsample.0.weight", {128, 64, 1, 1}},
      {"layer2.0.downsample.1.bias", {128}},
      {"layer4.1.conv2.weight", {512, 512, 3, 3}},
      {"fc.weight", {2, 512}},
  };
  for (const auto& [name, shape] : names) {
    CAPTURE(name);
    CHECK(has_shape(small.parameter(name), shape));
  }
  CHECK(small.run.model->named_buffers().contains("layer3.1.bn1.num_batches_tracked"));
  CHECK_FALSE(small.run.model->named_parameters().contains("layer1.0.downsample.0.weight"));
  const LoadedTask automatic("images", table_of(folder, "resnet18"));  // the images are small
  CHECK(has_shape(automatic.parameter("conv1.weight"), {64, 3, 3, 3}));
}

TEST_CASE("images: a network starts from the seed alone") {
  const TemporaryFolder folder;
  for (const char* model : {"cnn", "resnet"}) {
    const LoadedTask one("images", table_of(folder, model), 3), same("images", table_of(folder, model), 3),
        other("images", table_of(folder, model), 4);
    CHECK(vernier::digest(*one.run.model) == vernier::digest(*same.run.model));
    CHECK(vernier::digest(*one.run.model) != vernier::digest(*other.run.model));
  }
}

TEST_CASE("images: TorchScript computes what the network does, for any number of images") {
  const TemporaryFolder folder;
  for (const char* model : {"cnn", "resnet"}) {
    const LoadedTask task("images", table_of(folder, model));
    task.run.model->eval();
    const auto file = folder / (std::string(model) + ".pt");
    const torch::NoGradGuard no_grad;
    vernier::save_torchscript(file, *task.run.model, supervised(task), torch::kCPU);  // compares
    CHECK(std::filesystem::file_size(file) > 1000);
  }
}

TEST_CASE("images: the Python source computes what the network does" *
          doctest::skip(!has_python("torch, safetensors"))) {
  const TemporaryFolder folder;
  for (const auto& [model, stem] :
       {std::pair("cnn", "auto"), {"resnet", "auto"}, {"resnet", "7x7"}, {"resnet18", "3x3"}}) {
    const LoadedTask task("images", table_of(folder, model, stem));
    for (int step = 0; step < 3; ++step) task.task->loss(task->next());  // moves the statistics
    task.run.model->eval();
    const torch::NoGradGuard no_grad;
    const auto batch = supervised(task).example(3);
    folder.write("model.py", predictor(task).python_model());
    vernier::save_safetensors(folder / "model.safetensors", vernier::state_dict(*task.run.model).tensors);
    vernier::save_safetensors(folder / "batch.safetensors",
                              {{"images", batch.tensors[0]}, {"logits", supervised(task).forward(batch)}});
    folder.write("check.py",
                 "from safetensors.torch import load_file\nfrom model import load\nimport torch\n"
                 "batch = load_file('batch.safetensors')\nlogits = load('model.safetensors')(batch['images'])\n"
                 "torch.testing.assert_close(logits, batch['logits'], rtol=1e-3, atol=1e-4)\n");
    std::string out;
    CHECK(python("check.py", folder.path(), out) == 0);
    CHECK(out == "");
  }
}

}  // namespace image_networks_test
