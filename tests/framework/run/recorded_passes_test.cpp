// Forward and backward as graphs of the device: what they compute is what the operators compute, and what cannot be
// recorded is named. A GPU has its own part of the pack; here HostGraph stands for it.
#include <doctest/doctest.h>
#include <torch/csrc/autograd/variable.h>
#include <vernier/draft/capture.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host_graph.h"
#include "log_lines.h"
#include "picture_folder.h"
#include "small_run.h"
#include "toy_run.h"
#include "trained.h"

namespace recorded_passes_test {

namespace {

constexpr const char* in_use = "run: engine: a recording computes forward and backward of";
const std::string not_recorded = "run: engine: the operators compute forward and backward, without a recording: ";

const std::string common = R"(
[run]
steps = 12
validate_every = 5
[optimizer]
use = "adamw"
learning_rate = 0.01
[[monitor]]
use = "jsonl"
)";

std::string table_of_numbers() {
  std::string text = "a,b,c,kind\n";
  for (int i = 0; i < 96; ++i) {
    text += std::to_string(i % 7) + "," + std::to_string(i * i % 11) + "," + std::to_string(0.5 * (i % 5)) +
            (i % 3 == 0 ? ",red\n" : ",blue\n");
  }
  return text;
}

std::string series() {
  std::string text = "a,b\n";
  for (int i = 0; i < 200; ++i)
    text += std::to_string(i % 12) + "." + std::to_string(i % 7) + "," + std::to_string(i % 5) + "\n";
  return text;
}

std::string texts() {
  std::string text = "words,kind\n";
  for (int i = 0; i < 64; ++i) {
    text += std::string(i % 2 == 0 ? "the cat sat on a mat " : "dogs run over hills ") + std::to_string(i % 9) +
            (i % 2 == 0 ? ",cat\n" : ",dog\n");
  }
  return text;
}

Trained trained(const std::vector<std::string>& tables, const vernier::MakeDeviceGraph& make) {
  const TemporaryFolder folder;
  SmallRun run(from_toml(tables), folder.path().string(), built_plugins(), 1, make);
  run.train();
  return result_of(run);
}

}  // namespace

TEST_CASE("recorded passes: a run has the bits of one that calls the operators") {
  const TemporaryFolder data;
  const auto table = data.write("table.csv", table_of_numbers()), rows = data.write("series.csv", series());
  const auto words = data.write("texts.csv", texts()), pictures = write_stripes(data, "pictures", 24);
  const std::string mlp = "[task]\nuse = \"mlp\"\nbatch_size = 12\n", micro = "[accumulation]\nmicro_batches = 3\n";
  const std::string gpt = "[task]\nuse = \"gpt\"\ndata = ['" + words +
                          "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\nbatch_size = 4\nvalidation = 0\n";
  struct Case {
    std::string name;
    std::vector<std::string> tables;
    int graphs;  // two for each shape, and two where gradients are added to
  };
  const std::vector<Case> cases = {
      {"mlp", {mlp}, 2},
      {"micro-batches", {mlp, micro}, 4},
      {"uneven ones", {mlp, "[accumulation]\nmicro_batches = 5\n"}, 6},
      {"bf16", {mlp, micro, "[precision]\nuse = \"bf16\"\n"}, 4},
      {"bf16 weights", {mlp, micro, "[precision]\nuse = \"bf16\"\nlevel = \"O2\"\n"}, 4},
      {"a scale that changes",
       {mlp, micro,
        "[precision]\nuse = \"fp16\"\n[scaler]\nuse = \"dynamic\"\ninit_scale = 1e9\ngrowth_interval = 2\n"},
       4},
      {"clipping", {mlp, micro, "[[callback]]\nuse = \"clip_norm\"\nmax_norm = 0.1\n"}, 4},
      {"a gradient used twice", {mlp, "[[callback]]\nuse = \"sam\"\n"}, 2},
      {"another precision at step 6",
       {mlp,
        "[[callback]]\nuse = \"switch\"\nat_step = 6\nto = { precision = { use = \"bf16\", "
        "level = \"O2\" } }\n"},
       4},
      {"layers that are trained later",
       {mlp, "[[callback]]\nuse = \"unfreeze\"\ngroup = [{ from = 6, match = [\"layers.0.*\"] }]\n"},
       4},
      {"gpt", {gpt + "dropout = 0.2\n"}, 2},
      {"gpt with LoRA",
       {gpt + "dropout = 0.2\n", "[[callback]]\nuse = \"lora\"\nrank = 2\nfan_in_fan_out = true\n"},
       2},
      {"table", {"[task]\nuse = \"tabular\"\ndata = '" + table + "'\ntarget = \"kind\"\nbatch_size = 16\n"}, 2},
      {"forecast",
       {"[task]\nuse = \"sequence\"\nkind = \"forecast\"\ndata = '" + rows +
        "'\ncontext = 8\nhorizon = 2\nmodel = \"gru\"\nwidth = 8\nbatch_size = 16\n"},
       2},
      {"texts",
       {"[task]\nuse = \"text\"\ndata = '" + words +
        "'\ntext = [\"words\"]\ntarget = \"kind\"\nlayers = 1\nwidth = 16\nheads = 2\nbatch_size = 8\n"},
       2},
      {"images with batch normalisation",
       {"[task]\nuse = \"images\"\nimages = '" + pictures + "'\nmodel = \"resnet\"\nblocks = [1]\nbatch_size = 8\n"},
       2},
  };
  for (const auto& [name, tables, graphs] : cases) {
    CAPTURE(name);
    std::vector<std::string> all = {common};
    all.insert(all.end(), tables.begin(), tables.end());
    const auto expected = trained(all, nullptr);
    const LogLines log;
    const auto result = trained(all, HostGraph::maker());
    CHECK(result == expected);
    CHECK(HostGraph::made == graphs);
    CHECK(HostGraph::replays > HostGraph::made);
    std::string lines;
    for (const auto& line : LogLines::lines()) lines += line + "\n";
    CHECK_MESSAGE(LogLines::count(in_use) >= 1, lines);
    CHECK_MESSAGE(LogLines::count(not_recorded) == 0, lines);
  }
}

namespace {

// A task whose loss does what the function says, to its number `x`.
class Special final : public toy::Task, public vernier::draft::Capturable {
 public:
  using Loss = std::function<torch::Tensor(const torch::Tensor& loss, const toy::Model& model)>;
  Special(bool is_allowed, Loss loss) : is_allowed_(is_allowed), loss_(std::move(loss)) {}
  bool allows_capture() const override { return is_allowed_; }
  torch::Tensor loss(const vernier::Batch& batch) override { return loss_(toy::Task::loss(batch), *model); }

 private:
  bool is_allowed_;
  Loss loss_;
};

}  // namespace

TEST_CASE("recorded passes: what cannot be recorded is named, and trains by the operators") {
  struct Case {
    std::string reason;
    bool is_allowed;
    Special::Loss loss;
  };
  int calls = 0;
  const std::vector<Case> cases = {
      {"these plugins do not allow it: task/toy", false, [](const auto& loss, const auto&) { return loss; }},
      {"aten::_local_scalar_dense makes the host wait for the device", true,
       [](const auto& loss, const auto&) { return loss.template item<float>() > 1e6 ? loss * 2 : loss; }},
      {"aten::masked_select makes the host wait for the device", true,
       [](const auto& loss, const auto& model) { return loss + model.second.masked_select(model.second > 0).mean(); }},
      {"the recording's losses differ from the operators'", true,
       [](const auto& loss, const auto&) {
         auto twice = loss * 1;  // below LibTorch's dispatcher
         *twice.template mutable_data_ptr<float>() *= 2;
         return twice;
       }},
      {"two calls of the operators have different losses", true,
       [&calls](const auto& loss, const auto&) { return loss * (1 + 0.125 * ++calls); }},
      {"the recording's gradients differ from the operators'", true,
       [&calls](const auto& loss, const auto&) {
         const double slope = 1 + ++calls % 2;
         return loss * slope - (loss * (slope - 1)).detach();
       }},
      {"the weight first has a hook", true,
       [](const auto& loss, const auto& model) {
         if (torch::autograd::impl::hooks(model.first).empty()) {
           model.first.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
         }
         return loss;
       }},
      {"no room", true,
       [&calls](const auto& loss, const auto&) {
         if (++calls == 3) throw std::runtime_error("no room");  // not again, when the operators are called
         return loss;
       }},
  };
  for (const auto& [reason, is_allowed, loss] : cases) {
    CAPTURE(reason);
    std::vector<torch::Tensor> weights[2];
    for (const bool by_graphs : {false, true}) {
      const LogLines log;
      toy::Toy toy;
      toy.wiring.task = std::make_unique<Special>(is_allowed, loss);
      toy.run.steps = 4;
      calls = by_graphs ? 0 : 100;
      if (by_graphs) toy.make_graph = HostGraph::maker();
      toy.prepare().train(toy.run);
      weights[by_graphs ? 1 : 0] = toy.weights();
      if (by_graphs) CHECK(LogLines::count(not_recorded + reason) == 1);
      if (by_graphs) CHECK(LogLines::count(in_use) == 0);
    }
    if (calls != 0) continue;  // the calls are counted, and a recording needs more
    for (std::size_t i = 0; i < weights[0].size(); ++i) CHECK(weights[0][i].equal(weights[1][i]));
  }
}

TEST_CASE("recorded passes: plugins that act in forward or backward are named") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[optimizer]\nin_backward = true\n", "optimizer/adamw updates in backward"},
      {"[precision]\nuse = \"fp8\"\n", "these plugins do not allow it: precision/fp8"},
      {"[precision]\nuse = \"bf16\"\nweight_casts = \"update\"\n", "these plugins do not allow it: precision/bf16"},
      {"[[callback]]\nuse = \"inject\"\nat_step = 3\nwhere = \"loss\"\n[[callback]]\nuse = \"layers\"\n",
       "these plugins do not allow it: callback/inject, callback/layers"},
  };
  for (const auto& [table, reason] : cases) {
    CAPTURE(table);
    const LogLines log;
    trained({common, "[task]\nuse = \"mlp\"\n", table}, HostGraph::maker());
    std::string lines;
    for (const auto& line : LogLines::lines()) lines += line + "\n";
    CHECK_MESSAGE(LogLines::count(not_recorded + reason) == 1, lines);
    CHECK(HostGraph::made == 0);
  }
}

TEST_CASE("recorded passes: a gradient that a plugin keeps stays what it was") {
  toy::Toy toy;
  toy.wiring.task = std::make_unique<Special>(true, [](const auto& loss, const auto&) { return loss; });
  toy.run.steps = 12;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept;  // and copies
  toy.on(vernier::Event::GradientsReady, [&](vernier::Run& run) {
    if (run.step % 3 != 1) return;
    for (const auto& parameter : run.parameters) {
      kept.emplace_back(parameter.model.grad(), parameter.model.grad().clone());
    }
  });
  toy.make_graph = HostGraph::maker();
  toy.prepare().train(toy.run);
  CHECK(kept.size() == 8);
  for (const auto& [live, copy] : kept) CHECK(live.equal(copy));
  CHECK(HostGraph::replays > HostGraph::made);
}

TEST_CASE("recorded passes: a run that was stopped goes on with the same bits") {
  const TemporaryFolder folder, pictures;
  const auto images = write_stripes(pictures, "pictures", 24);
  const auto config = from_toml({common, "[task]\nuse = \"images\"\nimages = '" + images + "'\nbatch_size = 8\n"});
  SmallRun whole(config, folder / "whole");
  std::filesystem::create_directories(folder / "whole");
  whole.train();
  std::filesystem::create_directories(folder / "halves");
  {
    SmallRun first(config, folder / "halves", built_plugins(), 1, HostGraph::maker());
    first.stop_after(7);
    first.train();
  }
  SmallRun second(config, folder / "halves", built_plugins(), 1, HostGraph::maker());
  REQUIRE(second.resume());
  second.train();
  CHECK(HostGraph::replays > HostGraph::made);
  CHECK(second.digest() == whole.digest());
}

}  // namespace recorded_passes_test
