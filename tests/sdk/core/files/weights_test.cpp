#include "files/weights.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <torch/nn/module.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/plugin.h>
#include <vernier/safetensors.h>
#include <vernier/unfinished_checkpoint.h>

#include "temporary_folder.h"
#include "thrown.h"

namespace weights_test {

using vernier::InitOptions;
using vernier::Tensors;

namespace {

class Model final : public torch::nn::Module {
 public:
  Model() {
    first = register_parameter("first", torch::full({4, 3}, 0.5));
    second = register_parameter("second", torch::full({2, 4}, 0.25));
    seen = register_buffer("seen", torch::zeros({1}));
  }
  torch::Tensor first, second, seen;
};

Tensors other_weights(const std::string& prefix = "") {
  return {{prefix + "first", torch::full({4, 3}, 7.0)},
          {prefix + "second", torch::full({2, 4}, 8.0, torch::kBFloat16)},
          {prefix + "seen", torch::full({1}, 9.0)}};
}

// A model, and a file to take its weights from.
struct Fixture {
  explicit Fixture(const Tensors& tensors) { vernier::save_safetensors(file, tensors); }
  Thrown init(std::vector<std::string> rename = {}, bool strict = true) {
    return thrown_by([&] { vernier::init_weights(model, {file, std::move(rename), strict}); });
  }
  bool is_untouched() {
    const Model fresh;
    return model.first.equal(fresh.first) && model.second.equal(fresh.second) && model.seen.equal(fresh.seen);
  }

  TemporaryFolder folder;
  std::string file = folder / "weights.safetensors";
  Model model;
};

Thrown refusal(const std::string& text) {
  return configuration(text);
}

}  // namespace

TEST_CASE("init_weights: parameters and buffers are taken by name, in the model's dtype") {
  Fixture fixture(other_weights());
  CHECK(fixture.init() == Thrown{});
  CHECK(fixture.model.first.eq(7).all().item<bool>());
  CHECK(fixture.model.second.eq(8).all().item<bool>());
  CHECK(fixture.model.second.dtype() == torch::kFloat32);
  CHECK(fixture.model.seen.item<double>() == 9);

  Model from_checkpoint;
  const auto path = fixture.folder / "step-00000001";
  vernier::write_checkpoint(path, {}, other_weights(), {});
  vernier::init_weights(from_checkpoint, {path, {}, true});
  CHECK(from_checkpoint.first.equal(fixture.model.first));
}

TEST_CASE("init_weights: a run stands for its newest checkpoint") {
  const TemporaryFolder folder;
  const auto run = folder / "run";
  std::filesystem::create_directories(run + "/checkpoints");
  const auto init = [&](const std::string& from) {
    Model model;
    const auto thrown = thrown_by([&] { vernier::init_weights(model, {from, {}, true}); });
    return std::pair(thrown, model.first[0][0].item<double>());
  };
  const auto refused = refusal(run + ": is neither a checkpoint nor the folder of a run with one");
  CHECK(init(run).first == refused);
  for (const int step : {9, 10}) {
    auto weights = other_weights();
    weights["first"].fill_(step);
    vernier::write_checkpoint(run + "/checkpoints/" + vernier::checkpoint_name(step), {.step = step}, weights, {});
  }
  CHECK(init(run) == std::pair(Thrown{}, 10.0));
  CHECK(init(run + "/checkpoints") == std::pair(Thrown{}, 10.0));
  CHECK(init(run + "/checkpoints/step-00000009") == std::pair(Thrown{}, 9.0));
  std::filesystem::remove(run + "/checkpoints/step-00000010/model.safetensors");
  CHECK(says(init(run).first.text, run + "/checkpoints/step-00000010/model.safetensors: cannot be opened"));
}

TEST_CASE("init_weights: a file with a part of a checkpoint's model is refused, and the checkpoint is named") {
  const TemporaryFolder folder;
  const auto path = folder / "step-00000001";
  const auto weights = other_weights();
  {
    vernier::UnfinishedCheckpoint unfinished(path);
    vernier::CheckpointManifest about;
    about.files = vernier::write_checkpoint_files(unfinished.folder(), {{{"first", weights.at("first")}}}, {});
    about.files.merge(vernier::write_checkpoint_shard(
        unfinished.folder(), 1, {{{"model/second", weights.at("second")}, {"model/seen", weights.at("seen")}}}));
    unfinished.complete(about);
  }
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}) {
    CAPTURE(name);
    Model model;
    const auto from = path + "/" + name;
    CHECK(thrown_by([&] {
            vernier::init_weights(model, {from, {}, true});
          }) == refusal(from + ": is not a file with the whole model; set init_from = \"" + path + "\""));
  }
  Model model;
  CHECK(thrown_by([&] { vernier::init_weights(model, {path, {}, true}); }) == Thrown{});
  CHECK(model.first.equal(weights.at("first")));
  CHECK(model.seen.equal(weights.at("seen")));
}

TEST_CASE("init_weights: names that are missing or not in the model are refused, or reported where that is allowed") {
  auto tensors = other_weights();
  tensors.erase("seen");
  tensors["head.weight"] = torch::zeros({1});
  Fixture fixture(tensors);
  const std::string report = fixture.file +
                             ": 2 of 3 tensors of the model; of another dtype: 1; missing: seen; not in the "
                             "model: head.weight";
  CHECK(fixture.init() == refusal(report + "; rename with init_rename, or take what fits with init_strict = false"));
  CHECK(fixture.is_untouched());
  static std::vector<std::string> warnings;
  warnings.clear();
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  CHECK(fixture.init({}, /*strict=*/false) == Thrown{});
  vernier::set_log_sink(nullptr);
  CHECK(warnings == std::vector<std::string>{report});
  CHECK(fixture.model.first.eq(7).all().item<bool>());
  CHECK(fixture.model.seen.item<double>() == 0);
}

TEST_CASE("init_weights: nothing that fits, another shape, and what is not a file are refused") {
  Fixture other({{"a", torch::zeros({1})}});
  CHECK(says(other.init({}, false).text, "0 of 3 tensors of the model"));
  auto tensors = other_weights();
  tensors["seen"] = torch::zeros({2});
  Fixture fixture(tensors);
  CHECK(fixture.init({}, false) == refusal(fixture.file + ": 'seen' is [2], and [1] in the model"));
  CHECK(fixture.is_untouched());
  fixture.file = fixture.folder / "none";
  CHECK(fixture.init() == refusal(fixture.file + ": cannot be opened: No such file or directory"));
  fixture.file = fixture.folder / "pipe";
  REQUIRE(::mkfifo(fixture.file.c_str(), 0600) == 0);
  CHECK(fixture.init() == refusal(fixture.file + ": is not a regular file"));  // and is not waited for
  fixture.file = "";
  CHECK(fixture.init({"a -> b"}) == refusal("init_rename needs a file to rename the tensors of"));
}

TEST_CASE("init_weights: names are changed by the first rule that fits") {
  const std::vector<std::string> rules = {"exact -> other", "model.* -> *", "*.gamma -> *.weight", "head.* ->",
                                          "a*c->x*z"};
  CHECK(vernier::renamed("exact", rules) == "other");
  CHECK(vernier::renamed("exact.more", rules) == "exact.more");
  CHECK(vernier::renamed("model.h.0.gamma", rules) == "h.0.gamma");
  CHECK(vernier::renamed("ln.gamma", rules) == "ln.weight");
  CHECK(vernier::renamed("head.weight", rules) == "");
  CHECK(vernier::renamed("abc", rules) == "xbz");
  CHECK(vernier::renamed("ac", rules) == "xz");
  for (const std::string rule : {"a", "-> b", "a* -> b", "a -> *", "a** -> b**"}) {
    CHECK(thrown_by([&] { vernier::renamed("a", {rule}); }) ==
          refusal("init_rename = \"" + rule + "\": write \"old -> new\", with one * on each side or none"));
  }
  Fixture fixture(other_weights("net."));
  CHECK(fixture.init({"net.* -> *"}) == Thrown{});
  CHECK(fixture.model.first.eq(7).all().item<bool>());
  Fixture twice(other_weights());
  CHECK(says(twice.init({"first -> seen"}).text, "two tensors are to be 'seen'"));
}

TEST_CASE("init_weights: a tied weight is there under one of its names") {
  class Tied final : public torch::nn::Module {
   public:
    Tied() {
      one = register_module("one", std::make_shared<Model>());
      two = register_module("two", one);
    }
    std::shared_ptr<Model> one, two;
  };
  Fixture fixture(other_weights("two."));
  Tied model;
  vernier::init_weights(model, {fixture.file, {}, true});
  CHECK(model.one->first.eq(7).all().item<bool>());
}

}  // namespace weights_test
