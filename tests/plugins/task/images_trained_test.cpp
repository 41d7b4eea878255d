// A trained task/images, with and without its data.
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/host.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "loaded_data_task.h"
#include "picture_folder.h"

namespace images_trained_test {

using vernier::SupervisedTask;
using vernier::Table;

namespace {

SupervisedTask& supervised(const vernier::Task& task) {
  return const_cast<SupervisedTask&>(static_cast<const SupervisedTask&>(task));
}

// The same model in another place, as a verb loads it.
struct Loaded {
  Loaded(const LoadedTask& trained, Table table, bool reads_data)
      : task(make_plugin<vernier::Task>("task/images", table)) {
    supervised(*task).use_learned(supervised(*trained.task).learned(), reads_data);
    run.seed = trained.run.seed;
    task->prepare(run);
    load_state_dict(*run.model, vernier::state_dict(*trained.run.model));
    run.model->eval();
  }
  std::unique_ptr<vernier::Task> task;
  vernier::TrainerRun run;
};

}  // namespace

TEST_CASE("images: a trained model predicts and describes itself without its folder") {
  const TemporaryFolder folder;
  write_stripes(folder, "other", 3);
  for (const char* model : {"cnn", "resnet"}) {
    const Table table = {
        {"images", value(write_stripes(folder, "train", 10))}, {"model", value(model)}, {"channels", value(4)}};
    const LoadedTask trained("images", table);
    trained.run.model->eval();
    std::filesystem::rename(folder / "train", folder / "gone");
    const Loaded moved(trained, table, false);
    const auto predicted = [&](vernier::Task& task) {
      auto& predictor = dynamic_cast<vernier::Predictor&>(task);
      auto loader = supervised(task).loader_of(predictor.read_inputs(folder / "other/left"));
      return predictor.predict(loader.next());
    };
    const torch::NoGradGuard no_grad;
    const auto before = predicted(*trained.task), after = predicted(*moved.task);
    REQUIRE(after.size() == 5);
    CHECK(after[1].labels == std::vector<std::string>{"left", "right"});
    CHECK(torch::equal(before[3].numbers, after[3].numbers));
    CHECK(has_shape(supervised(*moved.task).example(2).tensors[0], {2, 3, 8, 10}));
    const auto& described = dynamic_cast<vernier::Predictor&>(*moved.task);
    const auto json = nlohmann::json::parse(described.description());
    CHECK(json["input"]["shape"].dump() == R"(["samples",3,8,10])");
    CHECK(json["input"]["mean"].size() == 3);
    CHECK(json["output"]["classes"].dump() == R"(["left","right"])");
    CHECK(contains(described.python_model(), "NAMES = [\"left\",\"right\"]"));
    CHECK(contains(described.python_model(), "def load_model(path=None)"));
    std::filesystem::remove_all(folder / "gone");
  }
}

TEST_CASE("images: a trained model is evaluated on all of another folder, and on what was held out of its own") {
  const TemporaryFolder folder;
  Table table = {{"images", value(write_stripes(folder, "train", 10))}, {"channels", value(4)}};
  const LoadedTask trained("images", table);
  const auto held_out = [&](const Table& other) {
    const Loaded loaded(trained, other, true);
    const auto text = loaded.task->save().text("held_out");
    return text.substr(0, text.find(','));
  };
  const auto own = held_out(table);
  CHECK(own == "2 samples");
  std::filesystem::rename(folder / "train", folder / "moved");
  table["images"] = value(folder / "moved");
  CHECK(held_out(table) == own);
  table["images"] = value(write_stripes(folder, "other", 3));
  CHECK(held_out(table) != own);
  table["images"] = value(write_stripes(folder, "small", 3, 6, 6));
  CHECK(contains(refusal([&] { held_out(table); }), "those to train on are [3, 8, 10]; set `size`"));
}

TEST_CASE("images: a trained model is evaluated on a named validation, whatever became of the other images") {
  const TemporaryFolder folder;
  const Table table = {{"images", value(write_stripes(folder, "train", 10))},
                       {"validation_images", value(write_stripes(folder, "held", 4))},
                       {"channels", value(4)}};
  const LoadedTask trained("images", table);
  const auto held_out = [&](const char* key, const std::string& other) {
    auto given = table;
    if (!other.empty()) given[key] = value(folder / other);
    const auto text = Loaded(trained, given, true).task->save().text("held_out");
    return text.substr(0, text.find(','));
  };
  write_stripes(folder, "other", 3);
  for (const bool is_changed : {false, true}) {
    if (is_changed) write_stripes(folder, "train", 11);
    CHECK(held_out("", "") == "8 images");
    CHECK(held_out("validation_images", "other") == "6 images");
    CHECK(held_out("images", "other") == "6 images");
  }
}

TEST_CASE("images: each class is held out in proportion, and no class's only image") {
  const TemporaryFolder folder;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const char* name = i < 40 ? "many" : i < 59 ? "some" : "one";
    folder.write("train/" + std::string(name) + "/" + std::to_string(i) + ".png", png(8, 8, 3, striped(i, 8, 8)));
  }
  const LoadedTask task("images", {{"images", value(folder / "train")}, {"batch_size", value(60)}});
  const auto counts = task->next().tensors[1].bincount({}, 3);
  CHECK(counts[0].item<int>() == 36);
  CHECK(counts[1].item<int>() == 1);
  CHECK(counts[2].item<int>() == 17);
}

TEST_CASE("images: class_weights makes the loss of each class count the same, in any micro-batches") {
  const TemporaryFolder folder;
  for (std::uint32_t i = 0; i < 10; ++i) {
    folder.write(std::string("train/") + (i < 8 ? "many/" : "few/") + std::to_string(i) + ".png",
                 png(8, 8, 3, striped(i, 8, 8)));
  }
  const Table table = {{"images", value(folder / "train")},
                       {"validation_share", value(0.0)},
                       {"class_weights", value("balanced")},
                       {"order", value("sequential")}};
  const LoadedTask task("images", table);
  task.run.model->eval();
  const torch::NoGradGuard no_grad;
  const auto batch = task->next();
  const auto losses = [&] {
    const auto logits = supervised(*task.task).forward(batch).log_softmax(1);
    return -logits.gather(1, batch.tensors[1].unsqueeze(1)).squeeze(1);
  }();
  const auto few = losses.narrow(0, 0, 2).mean(), many = losses.narrow(0, 2, 8).mean();  // by class, then by name
  CHECK(task->loss(batch).item<double>() == doctest::Approx(((few + many) / 2).item<double>()));
}

TEST_CASE("images: a last batch of one image is refused where batch normalization cannot train on it") {
  const TemporaryFolder folder;
  const auto said = [&](Table more) {
    Table table = {{"images", value(write_stripes(folder, "train", 8, 8, 8))},
                   {"model", value("resnet")},
                   {"channels", value(2)},
                   {"blocks", list<int>({1, 1, 1, 1})},
                   {"validation_share", value(0.0)},
                   {"batch_size", value(5)}};
    for (auto& [key, entry] : more) table[key] = entry;
    return refusal([&] {
      const LoadedTask task("images", table);
      task->check(task.run);
    });
  };
  CHECK(contains(said({}), "the last batch of an epoch has one sample, of 16 in batches of 5"));
  CHECK(said({{"drop_last", value(true)}}) == "");
  CHECK(said({{"batch_size", value(7)}}) == "");
  CHECK(said({{"model", value("cnn")}}) == "");
  CHECK(said({{"blocks", list<int>({1, 1, 1})}}) == "");
}

}  // namespace images_trained_test
