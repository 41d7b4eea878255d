#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/data/predictor.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "loaded_data_task.h"
#include "temporary_folder.h"

// Labels by pixel and by token, of the models that tests/plugins/task/graphs/places.py writes.
namespace graph_places_test {

using vernier::Table;

namespace {

const std::string graphs = VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/";

// The numbers of places.py.
torch::Tensor numbers(std::vector<std::int64_t> shape, std::int64_t salt) {
  const auto places = torch::arange(c10::multiply_integers(shape));
  return (((places * 7919 + salt * 104729).remainder(2003) - 1001).to(torch::kFloat64) / 1024)
      .to(torch::kFloat32)
      .reshape(shape);
}
torch::Tensor codes(std::vector<std::int64_t> shape, std::int64_t below, std::int64_t salt) {
  const auto places = torch::arange(c10::multiply_integers(shape));
  return (places * places * 31 + salt * 17).remainder(1009).remainder(below).reshape(shape);
}
torch::Tensor with_left_out(const torch::Tensor& labels, std::int64_t left_out) {
  return labels.masked_fill(codes(labels.sizes().vec(), 5, 9) == 0, left_out);
}

// How many of the first two channels are above 0.
torch::Tensor of_signs(std::int64_t samples, std::int64_t salt) {
  return (numbers({samples, 3, 6, 6}, salt).narrow(1, 0, 2) > 0).sum(1);
}

struct Model {
  const char *name, *loss;
  torch::Tensor (*inputs)(std::int64_t samples, std::int64_t salt);
  torch::Tensor (*labels)(std::int64_t samples, std::int64_t salt);
  Table more;
};

const std::vector<Model> models = {
    {"pixels",
     "cross_entropy",
     [](auto n, auto s) {
       return numbers({n, 3, 6, 6}, s);
     },
     [](auto n, auto s) { return with_left_out(of_signs(n, s), 255).to(torch::kUInt8); },
     {{"ignore_index", value(255)}, {"class_weights", list<double>({0.25, 1, 2})}}},
    {"tokens",
     "cross_entropy",
     [](auto n, auto s) {
       return codes({n, 6}, 11, s);
     },
     [](auto n, auto s) {
       return with_left_out(codes({n, 6}, 11, s) % 4, -100);
     },
     {}},
    {"mask",
     "bce",
     [](auto n, auto s) {
       return numbers({n, 3, 6, 6}, s);
     },
     [](auto n, auto s) {
       return (numbers({n, 3, 6, 6}, s).select(1, 0) > 0.2).to(torch::kUInt8);
     },
     {{"class_weights", list<double>({3})}}},
};

// Data for each model, as the options of a task that trains on two batches in order.
Table table_of(const TemporaryFolder& folder, const Model& model, const Table& more = {}) {
  const auto file = folder / (std::string(model.name) + ".safetensors");
  vernier::save_safetensors(file, {{"x", model.inputs(8, 1)},
                                   {"y", model.labels(8, 1)},
                                   {"held_x", model.inputs(7, 2)},
                                   {"held_y", model.labels(7, 2)}});
  Table table = {{"model", value(graphs + model.name + ".pt2")},
                 {"inputs", list<std::string>({file + ":x"})},
                 {"target", value(file + ":y")},
                 {"validation_inputs", list<std::string>({file + ":held_x"})},
                 {"validation_target", value(file + ":held_y")},
                 {"loss", value(model.loss)},
                 {"metrics", list<std::string>({"accuracy", "iou", "dice"})},
                 {"order", value("sequential")},
                 {"batch_size", value(4)}};
  for (const auto* part : {&model.more, &more}) {
    for (const auto& [key, entry] : *part) table[key] = entry;
  }
  return table;
}

}  // namespace

TEST_CASE("graph: labels by pixel and by token have PyTorch's losses, and metrics over all that count") {
  const TemporaryFolder folder;
  const auto recorded = nlohmann::json::parse(read_text(graphs + "places.json"));
  for (const auto& model : models) {
    CAPTURE(model.name);
    LoadedTask task("graph", table_of(folder, model));
    const auto& wanted = recorded.at(model.name);
    for (const auto& loss : wanted.at("losses")) {
      const auto batch = task->next();
      CHECK(task->loss(batch).item<double>() == doctest::Approx(loss.get<double>()).epsilon(1e-5));
      // Micro-batches of any size are one mean over all labels that count.
      double sum = 0, whole = 0;
      for (std::int64_t i = 0; i < 4; ++i) {
        const auto part = batch.narrow(i, 1);
        const auto weight = task->weight_of(part).value_or(1);
        sum += task->loss(part).item<double>() * weight, whole += weight;
      }
      CHECK(sum / whole == doctest::Approx(loss.get<double>()).epsilon(1e-5));
      task.descend(batch, 0.5);
    }
    CHECK(task.validate() == doctest::Approx(wanted.at("validation_loss").get<double>()).epsilon(1e-5));
    for (const char* metric : {"accuracy", "iou", "dice"}) {
      CHECK(*task.run.metrics.value(metric) == doctest::Approx(wanted.at(metric).get<double>()).epsilon(1e-6));
    }
    for (const auto& baseline : vernier::baselines_of(supervised(task).learned().part("targets"))) {
      CHECK(std::isfinite(supervised(task).validate_with(task.run, baseline.forward).item<double>()));
    }
  }
}

TEST_CASE("graph: labels of other shapes and forms mean the same, or are refused before the first step") {
  const TemporaryFolder folder;
  const auto labels = codes({8, 6, 6}, 3, 1), half = codes({8, 6, 6}, 2, 1);
  const struct {
    const Model& model;
    torch::Tensor labels;
    Table more;
    std::string says;  // "": it has the loss of the labels [samples, height, width]
  } cases[] = {
      {models[0], labels.unsqueeze(1), {}, ""},
      {models[0], labels.unsqueeze(-1).to(torch::kFloat32), {}, ""},
      {models[0],
       labels.masked_fill(labels == 0, -1),
       {},
       "has the label -1 in row 0; the model has the classes 0 to 2"},
      {models[0], labels + 1, {}, "has the label 3 in row 0; the model has the classes 0 to 2, and ignore_index names"},
      {models[0], labels * 0.5, {}, "has the label 0.5 in row 0; labels are whole numbers"},
      {models[0],
       labels.narrow(1, 0, 5),
       {},
       "the model returns [2, 3, 6, 6] for two samples, and '" + folder.path().string() +
           "/other.safetensors:y' has the shape [8, 5, 6]; logits [samples, classes, …] take labels [samples, …]"},
      {models[0],
       labels,
       {{"class_weights", list<double>({1, 2})}},
       "`class_weights` has 2 numbers, and there are 3 classes"},
      {models[0],
       labels,
       {{"loss", value("mse")}},
       "`ignore_index` is for loss = \"cross_entropy\", \"nll\" and \"bce\""},
      {models[2], half.unsqueeze(1).to(torch::kFloat32), {}, ""},
      {models[2], (half * 255).to(torch::kUInt8), {}, ""},
      {models[2], half * 2, {}, "has numbers below 0 or above 1"},
      {models[2], half.narrow(1, 0, 3), {}, "logits of labels have the shape of the labels"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.says);
    const auto plain = (&each.model == &models[0] ? labels : half).to(torch::kUInt8);
    const auto loss_of = [&](const torch::Tensor& of) {
      vernier::save_safetensors(folder / "other.safetensors", {{"x", each.model.inputs(8, 1)}, {"y", of.contiguous()}});
      auto table = table_of(folder, each.model, each.more);
      for (const char* key : {"validation_inputs", "validation_target", "metrics"}) table.erase(key);
      table["inputs"] = list<std::string>({folder / "other.safetensors:x"});
      table["target"] = value(folder / "other.safetensors:y");
      LoadedTask task("graph", table);
      return task->loss(task->next()).item<double>();
    };
    double loss = 0;
    const auto text = refusal([&] { loss = loss_of(each.labels); });
    CHECK_MESSAGE(contains(text, each.says), text);
    CHECK(text.empty() == each.says.empty());
    if (text.empty()) CHECK(loss == loss_of(plain));
  }
}

TEST_CASE("graph: predicted numbers of several dimensions keep their form where a batch has one sample") {
  const TemporaryFolder folder;
  const auto file = folder / "numbers.safetensors";
  vernier::save_safetensors(file, {{"x", numbers({8, 3, 6, 6}, 1)}, {"y", numbers({8, 3, 6, 6}, 2)}});
  const LoadedTask task("graph", {{"model", value(graphs + "pixels.pt2")},
                                  {"inputs", list<std::string>({file + ":x"})},
                                  {"target", value(file + ":y")},
                                  {"loss", value("mse")}});
  for (const std::int64_t samples : {4, 1}) {
    const auto columns = predictor(task).predict(supervised(task).example(samples));
    CHECK(columns.at(0).numbers.sizes() == c10::IntArrayRef({samples, 3, 6, 6}));
  }
}

}  // namespace graph_places_test
