#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>

#include <set>

#include "loaded_data_task.h"
#include "picture_folder.h"

namespace images_folder_test {

using vernier::Batch;
using vernier::Table;

namespace {

Table stripes(const TemporaryFolder& folder, Table more = {}) {
  Table table = {
      {"images", value(write_stripes(folder, "train", 10))}, {"batch_size", value(7)}, {"channels", value(4)}};
  if (!more.contains("validation_images")) table["validation_share"] = value(0.0);
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

// All batches of an epoch as one.
Batch epoch(const LoadedTask& task) {
  std::vector<Batch> batches;
  for (auto left = task->batches_per_epoch(); left > 0; --left) batches.push_back(task->next());
  return Batch::concatenated(batches);
}

torch::Tensor pixels(std::uint32_t number, std::int64_t height = 8, std::int64_t width = 10) {
  const auto bytes = striped(number, static_cast<std::uint32_t>(height), static_cast<std::uint32_t>(width));
  std::vector<std::int64_t> numbers;
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return torch::tensor(numbers).to(torch::kUInt8).reshape({height, width, 3}).permute({2, 0, 1});
}

}  // namespace

TEST_CASE("images: the folders of a folder are the classes, and their images stay bytes") {
  const TemporaryFolder folder;
  const LoadedTask task("images", stripes(folder, {{"order", value("sequential")}}));
  const auto all = epoch(task);
  REQUIRE(has_shape(all.tensors[0], {20, 3, 8, 10}));
  CHECK((all.tensors[0].scalar_type() == torch::kUInt8));
  for (std::int64_t i = 0; i < 20; ++i) {  // by class, then by name
    const auto number = static_cast<std::uint32_t>(i < 10 ? 2 * i : 2 * (i - 10) + 1);
    CHECK(torch::equal(all.tensors[0][i], pixels(number)));
    CHECK(all.tensors[1][i].item<int>() == static_cast<int>(number % 2));
  }
  const LoadedTask grey("images", stripes(folder, {{"grey", value(true)}}));
  CHECK(has_shape(grey->next().tensors[0], {7, 1, 8, 10}));
  CHECK(has_shape(grey.parameter("conv_1.weight"), {4, 1, 3, 3}));
}

TEST_CASE("images: a share is held out and the others learn") {
  const TemporaryFolder folder;
  for (const char* model : {"cnn", "resnet"}) {
    LoadedTask task("images", stripes(folder, {{"validation_share", value(0.25)},
                                               {"model", value(model)},
                                               {"blocks", list<int>({1, 1})},
                                               {"batch_size", value(15)}}));
    CHECK(epoch(task).samples == 15);
    const double before = task.validate();
    for (int step = 0; step < 40; ++step) task.descend(task->next(), 0.05);
    CHECK(task.validate() < before / 2);
    CHECK(*task.run.metrics.value("accuracy") == 1.0);
    CHECK(!task.run.metrics.value("top_5"));  // two classes have no top 5
  }
}

TEST_CASE("images: size takes the middle of the resized image") {
  const TemporaryFolder folder;
  const LoadedTask task("images", stripes(folder, {{"size", value(4)}, {"order", value("sequential")}}));
  const auto batch = task->next();
  REQUIRE(has_shape(batch.tensors[0], {7, 3, 4, 4}));
  CHECK(batch.tensors[0][0][0][0][0].item<int>() < 30);   // the left is dark in class 0,
  CHECK(batch.tensors[0][0][0][0][3].item<int>() > 180);  // the right is not
}

TEST_CASE("images: augmentation mirrors and moves, the same for a seed") {
  const TemporaryFolder folder;
  const auto drawn = [&](const char* augment, std::uint64_t seed, int workers) {
    return epoch(LoadedTask("images",
                            stripes(folder, {{"augment", value(augment)},
                                             {"workers", value(workers)},
                                             {"order", value("sequential")}}),
                            seed))
        .tensors[0];
  };
  const auto plain = drawn("none", 1, 1), flipped = drawn("flip", 1, 1), moved = drawn("crop_flip", 1, 1);
  int mirrored = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    const bool is_mirrored = torch::equal(flipped[i], plain[i].flip({-1}));
    CHECK((is_mirrored || torch::equal(flipped[i], plain[i])));
    mirrored += is_mirrored ? 1 : 0;
  }
  CHECK(mirrored > 2);
  CHECK(mirrored < 18);
  CHECK(has_shape(moved, {20, 3, 8, 10}));
  CHECK_FALSE(torch::equal(moved, flipped));
  CHECK(torch::equal(moved, drawn("crop_flip", 1, 0)));
  CHECK_FALSE(torch::equal(moved, drawn("crop_flip", 2, 1)));
}

TEST_CASE("images: mean and deviation are those of the training images unless they are given") {
  const TemporaryFolder folder;
  const auto table = stripes(folder);  // written once: a file that is written again has changed
  const auto with = [&](Table more) {
    more.insert(table.begin(), table.end());
    return more;
  };
  const LoadedTask computed("images", table);
  const auto all = epoch(computed).tensors[0].to(torch::kFloat64).div(255).transpose(0, 1).flatten(1);
  const auto numbers = [](const torch::Tensor& tensor) {
    return std::vector<double>(tensor.data_ptr<double>(), tensor.data_ptr<double>() + 3);
  };
  const auto mean = numbers(all.mean(1)), deviation = numbers(all.std(1, /*unbiased=*/false));
  const LoadedTask given("images", with({{"mean", list(mean)}, {"std", list(deviation)}}));
  const LoadedTask other("images",
                         with({{"mean", list<double>({0.5, 0.5, 0.5})}, {"std", list<double>({0.5, 0.5, 0.5})}}));
  for (const auto* task : {&computed, &given, &other}) task->run.model->eval();  // its own statistics would undo it
  const auto batch = computed->next();
  const auto expected = supervised(computed).forward(batch);
  CHECK(supervised(given).forward(batch).allclose(expected, 1e-4, 1e-5));
  CHECK_FALSE(supervised(other).forward(batch).allclose(expected, 1e-2, 1e-2));
}

TEST_CASE("images: predicts a class by name for each file, with the chances of all") {
  const TemporaryFolder folder;
  const LoadedTask task("images", stripes(folder));
  task.run.model->eval();
  const auto predicted = [&](const std::string& path) {
    auto loader = supervised(task).loader_of(predictor(task).read_inputs(path));
    return predictor(task).predict(loader.next());
  };
  const auto rows = predicted(folder / "train/left");
  REQUIRE(rows.size() == 5);
  CHECK(rows[0].name == "image");
  CHECK(rows[0].labels.at(0) == "100.png");
  CHECK(has_shape(rows[0].numbers, {7}));
  CHECK(rows[1].name == "class");
  CHECK(rows[1].labels == std::vector<std::string>{"left", "right"});
  CHECK(rows[2].name == "probability");
  CHECK(rows[3].name == "probability_left");
  CHECK(rows[4].name == "probability_right");
  CHECK((rows[3].on_request && rows[4].on_request));
  CHECK((rows[3].numbers + rows[4].numbers).allclose(torch::ones({7})));
  CHECK(rows[2].numbers.equal(torch::maximum(rows[3].numbers, rows[4].numbers)));
  CHECK(predicted(folder / "train/right/101.png")[0].labels == std::vector<std::string>{"101.png"});

  folder.write("new/.hidden.png", "not an image");
  folder.write("new/1.png", png(8, 10, 3, striped(1, 8, 10)));
  CHECK(predicted(folder / "new")[0].labels == std::vector<std::string>{"1.png"});
  const auto other = write_stripes(folder, "other", 2, 6, 6) + "/left";
  CHECK(contains(refusal([&] { predicted(other); }),
                 "'" + other + "' has images of [3, 6, 6], those to train on are [3, 8, 10]; set `size`"));
}

TEST_CASE("images: refuses folders and options that do not fit, in one line") {
  const TemporaryFolder folder;
  const auto other = write_stripes(folder, "other", 2, 6, 6);
  const auto odd = write_stripes(folder, "odd", 2);
  folder.write("odd/left/999.png", png(9, 9, 3, striped(1, 9, 9)));
  folder.write("one/only/1.png", png(8, 10, 3, striped(1, 8, 10)));
  folder.write("empty/left/readme.txt", "");
  folder.write("three/left/1.png", png(8, 10, 3, striped(1, 8, 10)));
  folder.write("three/middle/1.png", png(8, 10, 3, striped(1, 8, 10)));
  folder.write("three/right/1.png", png(8, 10, 3, striped(1, 8, 10)));
  const struct {
    Table table;
    std::string says;
  } cases[] = {
      {{}, ""},
      {{{"images", value(folder / "one")}}, "/one' has a single class"},
      {{{"images", value(folder / "empty")}}, "/empty/left' has no PNG, JPEG or WebP image: 1 file"},
      {{{"images", value(folder / "missing")}}, "/missing' does not exist"},
      {{{"validation_images", value(folder / "three")}}, "has the folder 'middle', which is none of the classes"},
      {{{"validation_images", value(folder / "one")}}, "has no folder for the class 'left'"},
      {{{"validation_images", value(other)}}, "those to train on are [3, 8, 10]; set `size`"},
      {{{"images", value(odd)}},
       "/odd/left/999.png': the image has the shape [3, 9, 9], and the first one [3, 8, 10]; set `size`"},
      {{{"classes", value(5)}}, "has 2 classes, and classes = 5"},
      {{{"mean", list<double>({0.5})}}, "`mean` and `std` have a number for each channel, or none"},
      {{{"mean", list<double>({0.5})}, {"std", list<double>({1})}},
       "mean and std have 1 numbers, and the images have 3"},
      {{{"labels", value("x")}}, "`labels` is for an IDX file"},
      {{{"validation_images", value(odd)}, {"validation_share", value(0.5)}}, "`validation_share` is without meaning"},
      {{{"model", value("resnet50")}}, "`model` is \"resnet50\""},
  };
  for (const auto& each : cases) {
    const auto reason = refusal([&] {
      const LoadedTask task("images", stripes(folder, each.table));
      epoch(task);
    });
    CAPTURE(reason);
    CHECK(reason.empty() == each.says.empty());
    CHECK(contains(reason, each.says));
    CHECK_FALSE(contains(reason, "\n"));
  }
}

// Backward computes convolutions and norms again, and the running statistics count each batch once.
TEST_CASE("images: with recompute gradients and running statistics have the same bits") {
  const TemporaryFolder folder;
  for (const char* model : {"cnn", "resnet"}) {
    CAPTURE(model);
    std::vector<vernier::Tensors> states;
    for (const char* recompute : {"none", "full", "selective"}) {
      const LoadedTask task("images", stripes(folder, {{"model", value(model)}, {"recompute", value(recompute)}}));
      vernier::Tensors state;
      for (int i = 0; i < 2; ++i) task->loss(task->next()).backward();
      for (const auto& parameter : task.run.parameters) state[parameter.name] = parameter.model.grad();
      for (const auto& buffer : task.run.model->named_buffers()) state[buffer.key()] = buffer.value().clone();
      states.push_back(state);
    }
    CHECK(states[0].size() > 10);
    for (const auto& state : states) {
      for (const auto& [name, tensor] : state) {
        CAPTURE(name);
        CHECK(torch::equal(tensor, states[0].at(name)));
      }
    }
  }
}

}  // namespace images_folder_test
