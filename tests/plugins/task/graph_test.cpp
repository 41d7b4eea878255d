#include "task/graph/graph_network.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/erfinv.h>
#include <doctest/doctest.h>
#include <torch/utils.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>
#include <vernier/graph/graph_export.h>
#include <vernier/half_weights.h>
#include <vernier/matmul.h>
#include <vernier/memory.h>
#include <vernier/safetensors.h>

#include <caffe2/serialize/inline_container.h>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fused_choice.h"
#include "loaded_data_task.h"
#include "python.h"
#include "small_run.h"
#include "task/graph/collectives.h"
#include "task/graph/guards.h"
#include "temporary_folder.h"
#include "thrown.h"

// The graphs of tests/plugins/task/graphs, which record.py writes: they train in C++ as their models did in Python.
namespace graph_test {

using graph::GraphNetwork;

namespace {

const std::string folder = VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/";

// The numbers of record.py.
torch::Tensor numbers(std::vector<std::int64_t> shape, std::int64_t salt) {
  const auto places = torch::arange(c10::multiply_integers(shape));
  return (((places * 7919 + salt * 104729).remainder(2003) - 1001).to(torch::kFloat64) / 1024)
      .to(torch::kFloat32)
      .reshape(shape);
}

torch::Tensor codes(std::vector<std::int64_t> shape, std::int64_t below, std::int64_t salt) {
  return (torch::arange(c10::multiply_integers(shape)) * 31 + salt * 17).remainder(below).reshape(shape);
}

struct Model {
  const char* name;
  std::vector<torch::Tensor> (*inputs)(std::int64_t samples, std::int64_t salt);
  const char* output = "";
};

const std::vector<Model> models = {
    {"mlp",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4}, s)};
     }},
    {"plane",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2}, s)};
     }},
    {"cnn",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2, 6, 6}, s)};
     }},
    {"gru",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4, 3}, s)};
     }},
    {"lstm",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4, 3}, s)};
     }},
    {"gpt",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {codes({n, 6}, 11, s)};
     }},
    {"llama",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {codes({n, 6}, 11, s)};
     }},
    {"two",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2}, s), codes({n, 3}, 7, s)};
     },
     "logits"},
    {"unet",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2, 6, 6}, s)};
     }},
    {"encoder",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 5, 8}, s)};
     }},
    {"window",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4, 8}, s)};
     }},
    {"branch",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4}, s)};
     }},
    {"functional",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 4}, s)};
     }},
    {"checked",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2, 6, 6}, s)};
     }},
    {"loops",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 5, 4}, s)};
     }},
    {"frozen",
     [](auto n, auto s) -> std::vector<torch::Tensor> {
       return {numbers({n, 2, 6, 6}, s)};
     }},
};

std::shared_ptr<GraphNetwork> network_of(const std::string& file, const std::string& output = "") {
  return std::make_shared<GraphNetwork>(exported::bytes_of(file), file, output);
}

class Autocast {
 public:
  explicit Autocast(bool on) { at::autocast::set_autocast_enabled(at::kCPU, on), at::autocast::increment_nesting(); }
  ~Autocast() {
    at::autocast::decrement_nesting(), at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

// Trains as record.py does.
std::vector<double> losses_of(GraphNetwork& network, const Model& model, bool is_bfloat16) {
  std::vector<double> losses;
  torch::manual_seed(7);
  network.train(true);
  for (std::int64_t step = 0; step < 20; ++step) {
    const auto samples = 3 + step % 7;
    torch::Tensor loss;
    {
      const Autocast autocast(is_bfloat16);
      loss = at::cross_entropy_loss(network.forward(model.inputs(samples, step)), codes({samples}, 3, step));
    }
    losses.push_back(loss.item<double>());
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : network.parameters()) {
      if (!parameter.grad().defined()) continue;
      parameter.add_(parameter.grad(), -0.05);
      parameter.mutable_grad() = torch::Tensor();
    }
  }
  network.eval();
  const torch::NoGradGuard no_grad;
  losses.push_back(network.forward(model.inputs(4, 99)).to(torch::kFloat64).sum().item<double>());
  return losses;
}

}  // namespace

// Trains the graphs of a folder, and compares their losses with those in it. Another processor rounds otherwise.
void check_losses(const std::string& place, bool is_exact) {
  const fused_test::Fused plain(false);
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto recorded = nlohmann::json::parse(read_text(place + "losses.json"));
  for (const auto& model : models) {
    for (const bool is_bfloat16 : {false, true}) {
      const std::string name = model.name;
      CAPTURE(name);
      CAPTURE(is_bfloat16);
      const auto losses = losses_of(*network_of(place + name + ".pt2", model.output), model, is_bfloat16);
      const auto& expected = recorded.at(name).at(is_bfloat16 ? "bfloat16" : "float32");
      REQUIRE(losses.size() == expected.size());
      for (std::size_t i = 0; i < losses.size(); ++i) {
        const auto wanted = std::strtod(expected[i].get<std::string>().c_str(), nullptr);
        const double tolerance = is_exact ? 0 : is_bfloat16 ? 0.03 : 1e-4;
        CHECK(std::abs(losses[i] - wanted) <= tolerance * (1 + std::abs(wanted)));
      }
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("graph: models of torch.export train as in Python") {
  check_losses(folder, /*is_exact=*/false);
}

TEST_CASE("graph: models of torch.export train as in Python on this processor" * doctest::skip(!has_python("torch"))) {
  const TemporaryFolder scratch;
  std::string out;
  REQUIRE_MESSAGE(python(folder + "record.py .", scratch.path(), out) == 0, out);
  // Python multiplies by MKL's own choice; this process may have another one.
  check_losses(scratch.path().string() + "/", /*is_exact=*/std::string(vernier::matmul_path()) == "plain");
}

TEST_CASE("graph: models of torch.export train with weights of 16 bits, and with float32 in batch normalisation") {
  const fused_test::Fused plain(false);
  for (const auto& model : models) {
    CAPTURE(model.name);
    const auto expected = losses_of(*network_of(folder + model.name + ".pt2", model.output), model, false);
    const auto network = network_of(folder + model.name + ".pt2", model.output);
    std::vector<vernier::Parameter> parameters;
    for (const auto& entry : network->named_parameters()) {
      if (entry.value().requires_grad()) parameters.push_back({entry.key(), entry.value(), entry.value()});
    }
    vernier::HalfWeights weights(torch::kBFloat16, vernier::HalfWeights::Update::masters);
    weights.prepare(*network, parameters, 1);
    torch::manual_seed(7);
    network->train(true);
    for (std::int64_t step = 0; step < 6; ++step) {
      const auto samples = 3 + step % 7;
      auto inputs = model.inputs(samples, step);
      for (auto& input : inputs) input = input.is_floating_point() ? input.to(torch::kBFloat16) : input;
      torch::Tensor loss;
      {
        const Autocast autocast(true);
        loss = at::cross_entropy_loss(network->forward(inputs), codes({samples}, 3, step));
      }
      CHECK(std::abs(loss.item<double>() - expected[static_cast<std::size_t>(step)]) <= 0.05);
      loss.backward();
      weights.collect();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : parameters) {
        if (!parameter.master.grad().defined()) continue;
        parameter.master.add_(parameter.master.grad(), -0.05);
        parameter.master.mutable_grad() = torch::Tensor();
      }
      weights.commit({});
    }
  }
}

TEST_CASE("graph: what is exported again has the trained weights, and trains on") {
  const TemporaryFolder scratch;
  for (const auto& model : models) {
    CAPTURE(model.name);
    const auto network = network_of(folder + model.name + ".pt2", model.output);
    losses_of(*network, model, false);
    exported::write_bytes(scratch / "again.pt2", network->bytes());
    const auto again = network_of(scratch / "again.pt2", model.output);
    const auto before = network->named_parameters(), after = again->named_parameters();
    CHECK(before.keys() == after.keys());
    for (const auto& name : before.keys()) CHECK(before[name].equal(after[name]));
    CHECK(losses_of(*network, model, false) == losses_of(*again, model, false));
  }
}

namespace {

vernier::ExportedModel exported_model(GraphNetwork& network, const Model& model) {
  network.eval();
  return {network, [&network](const auto& inputs) { return network.forward(inputs); }, model.inputs(4, 1)};
}

bool has_state(const Model& model) {
  return std::ranges::count(std::vector<std::string>{"two", "branch", "functional"}, model.name) > 0;
}

}  // namespace

TEST_CASE("graph: models are written as ONNX and .pt2 by what they call, for any number of samples") {
  const TemporaryFolder scratch;
  for (const auto& model : models) {
    if (has_state(model)) continue;
    const std::string name = model.name;
    CAPTURE(name);
    const auto network = network_of(folder + name + ".pt2", model.output);
    losses_of(*network, model, false);
    export_onnx(exported_model(*network, model), scratch / (name + ".onnx"));
    export_pt2(exported_model(*network, model), scratch / (name + ".pt2"));
    const auto again = network_of(scratch / (name + ".pt2"));
    CHECK(again->named_parameters().keys() == network->named_parameters().keys());
    again->eval();
    vernier::Tensors numbers;
    for (const std::int64_t samples : {1, 7}) {
      const torch::NoGradGuard no_grad;
      const auto inputs = model.inputs(samples, 5);
      const auto output = network->forward(inputs);
      CHECK(again->forward(inputs).equal(output));
      numbers[c10::str("input/", samples)] = inputs.at(0);
      numbers[c10::str("output/", samples)] = output.contiguous();
    }
    vernier::save_safetensors(scratch / (name + ".safetensors"), numbers, {});
  }
  if (!has_python("onnxruntime")) return;
  std::string out;
  CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", scratch.path(), out) == 0, out);
}

TEST_CASE("graph: a model that returns its own loss is written with all its inputs, without a target too") {
  const TemporaryFolder scratch;
  const auto data = scratch / "x.safetensors";
  vernier::save_safetensors(data, {{"x", numbers({8, 4}, 1)}}, {});
  LoadedTask loaded("graph", {{"model", value(folder + "own_loss.pt2")},
                              {"inputs", list<std::string>({data + ":x"})},
                              {"loss", value("output")}});
  loaded.run.model->eval();
  auto& task = supervised(loaded);
  const auto forward = [&](const auto& inputs) { return task.forward({.tensors = inputs}); };
  const vernier::ExportedModel model{*loaded.run.model, forward, task.example(2).tensors};
  export_onnx(model, scratch / "loss.onnx");
  export_pt2(model, scratch / "loss.pt2");
  const auto again = network_of(scratch / "loss.pt2");
  again->eval();
  CHECK(again->forward({numbers({3, 4}, 2)}).equal(forward(std::vector{numbers({3, 4}, 2)})));
}

TEST_CASE("graph: what ONNX and .pt2 cannot hold is refused, with the layer") {
  const TemporaryFolder scratch;
  const auto refusal = [&](const vernier::ExportedModel& model) {
    return thrown_by([&] { export_onnx(model, scratch / "a.onnx"); }).text;
  };
  for (const auto& model : models) {
    if (!has_state(model)) continue;
    const auto network = network_of(folder + model.name + ".pt2", model.output);
    static const std::map<std::string, std::string> reasons = {
        {"two", "it changes 'calls' in evaluation"},
        {"branch", "it decides by the values of its input (item)"},
        {"functional", "its graph gives other numbers for a batch of"}};
    CHECK(refusal(exported_model(*network, model)).starts_with(reasons.at(model.name)));
  }
  const auto network = network_of(folder + "mlp.pt2");
  auto model = exported_model(*network, models[0]);
  const auto forward = model.forward;
  model.forward = [&](const auto& inputs) { return at::erfinv(forward(inputs)); };
  CHECK(refusal(model) == "there is no rule that writes by ONNX: erfinv (in or after the layer 'layers.3')");
  model.forward = [&](const auto& inputs) {
    auto output = forward(inputs);
    for (std::int64_t i = 0; i < inputs[0].size(0); ++i) output = output + 1;
    return output;
  };
  CHECK(refusal(model) == "its forward() calls other operators for a batch of 3 samples than for one of 2");
  model.forward = [&](const auto& inputs) { return forward(inputs) * static_cast<double>(inputs[0].size(0) + 1); };
  CHECK(refusal(model).find("depends on the batch, in or after the layer 'layers.3'") != std::string::npos);
  model.forward = [&](const auto& inputs) {
    network->named_parameters()["layers.0.weight"].select(0, 0).add_(1);
    return forward(inputs);
  };
  CHECK(refusal(model).starts_with("it changes 'layers.0.weight' in evaluation"));
  network->train();
  CHECK(refusal(model) == "the model is in training mode; call eval() first");
}

TEST_CASE("graph: a constant that is written after its use has both numbers in the file") {
  const TemporaryFolder scratch;
  const auto network = network_of(folder + "mlp.pt2");
  network->eval();
  auto model = exported_model(*network, models[0]);
  model.forward = [forward = model.forward](const auto& inputs) {
    const auto output = forward(inputs), mask = at::zeros({1, output.size(1)});
    const auto sum = output + mask;
    mask.select(1, 0).fill_(2);
    return sum * mask + mask;
  };
  export_pt2(model, scratch / "written.pt2");
  const auto again = network_of(scratch / "written.pt2");
  again->eval();
  const torch::NoGradGuard no_grad;
  const auto inputs = models[0].inputs(3, 5);
  CHECK(again->forward(inputs).equal(model.forward(inputs)));
}

TEST_CASE("graph: names, tied tensors and buffers are those of the Python module") {
  const auto gpt = network_of(folder + "gpt.pt2");
  CHECK(gpt->named_parameters().size() == 8);  // head.weight is words.weight
  CHECK(gpt->named_parameters().contains("qkv.weight"));
  const auto llama = network_of(folder + "llama.pt2");
  CHECK(llama->named_buffers().contains("cos"));
  CHECK(gpt->state_dict().contains("words.weight"));
  CHECK(gpt->state_dict().contains("head.weight"));
  CHECK_FALSE(llama->state_dict().contains("cos"));  // load_state_dict() knows no buffers that are not persistent
  const auto two = network_of(folder + "two.pt2", "logits");
  two->eval();
  for (int i = 0; i < 3; ++i) two->forward({numbers({2, 2}, 1), codes({2, 3}, 7, 1)});
  CHECK(two->named_buffers()["calls"].item<double>() == 3);  // the model's own counter counts in evaluation too
}

namespace {

using Records = std::map<std::string, std::string>;

// Writes a graph again with other records.
std::string edited(const TemporaryFolder& scratch, const std::string& name, const std::function<void(Records&)>& edit) {
  caffe2::serialize::PyTorchStreamReader reader(folder + name + ".pt2");
  Records records;
  for (const auto& record : reader.getAllRecords()) {
    const auto [data, size] = reader.getRecord(record);
    records[record] = {static_cast<const char*>(data.get()), size};
  }
  edit(records);
  for (const char* own : {"version", ".data/version", ".data/serialization_id"}) records.erase(own);
  const auto file = scratch / "edited.pt2";
  std::ofstream out(file, std::ios::binary);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    return size;
  });
  for (const auto& [record, bytes] : records) writer.writeRecord(record, bytes.data(), bytes.size());
  writer.writeEndOfFile();
  return file;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const auto place = text.find(from);
  REQUIRE(place != std::string::npos);
  text.replace(place, from.size(), to);
}

constexpr const char* program = "models/model.json";

// A value in a value of its kind, and so on.
std::string deep(const std::string& kind, int depth) {
  std::string text, end;
  for (int i = 0; i < depth; ++i) text += "{\"" + kind + "\": ", end += "}";
  return text + "1" + end;
}

}  // namespace

TEST_CASE("graph: a file that cannot be trained is refused in one line that says why") {
  struct Case {
    const char* graph;
    std::function<void(Records&)> edit;
    const char* text;
  };
  const auto in_program = [](std::string from, std::string to) {
    return [=](Records& records) { replace(records[program], from, to); };
  };
  const std::vector<Case> cases = {
      {"mlp", in_program("TRAINING", "ATEN"), "it is not a training program"},
      {"mlp", in_program("\"major\": 8", "\"major\": 9"), "it has version 9 of the format"},
      {"mlp", in_program("torch.ops.aten.gelu.default", "torch.ops.aten.gelu.fancy"),
       "aten.gelu.fancy: this LibTorch has no such operators"},
      {"mlp", in_program("torch.ops.aten.gelu.default", "torch.ops.mine.gelu.default"),
       "mine.gelu.default: no named library has registered them; name the one that does"},
      {"mlp", in_program("{\"as_float\": 0.25}", deep("as_sym_float", 200'000)),
       "nests values more than 128 deep at byte"},
      {"mlp", in_program("{\"as_float\": 0.25}", deep("as_optional_tensor", 200'000)),
       "nests values more than 128 deep"},
      {"mlp", in_program("{\"as_float\": 0.25}", deep("as_sym_float", 20)),
       "the argument 'p' of aten.dropout.default of 'layers.2' is nested too deeply"},
      {"mlp", in_program("\"as_float\": 0.25", "\"as_string\": \"a\""), "is String, and the operator takes float"},
      {"gpt", in_program("\"as_ints\": [8]", "\"as_sym_ints\": [{\"as_ints\": [8]}]"),
       "the argument 'normalized_shape' of aten.layer_norm.default of 'norm' is a list of SymInt has"},
      {"gpt", in_program("\"as_ints\": [8]", "\"as_ints\": [[8]]"),
       "the argument 'normalized_shape' of aten.layer_norm.default of 'norm' has something else than numbers"},
      {"branch", in_program("{\"as_bool\": false}", "{\"as_int\": 0}"),
       "wrap_with_set_grad_enabled has another argument than bool"},
      {"branch", in_program("{\"as_bool\": false}", "{\"as_tensors\": [{\"name\": \"x\"}]}"),
       "wrap_with_set_grad_enabled has another argument than bool"},
      {"mlp", in_program("torch.ops.aten.gelu.default", "torch.ops.higher_order.while_loop"),
       "higher_order.while_loop of 'layers.1' is incomplete"},
      {"mlp", in_program("torch.ops.aten.gelu.default", "torch.ops.higher_order.flex_attention"),
       "higher_order.flex_attention: calls of graphs, which are not run here; write torch.cond, while_loop, scan or "
       "map"},
      {"mlp", in_program("\"as_float\": 0.25", "\"as_custom_obj\": 0.25"), "an argument of the kind as_custom_obj"},
      {"mlp", [](Records& records) { records[program].resize(records[program].size() / 2); }, "is damaged"},
      {"mlp", [](Records& records) { records.erase(program); }, "it has 0 programs"},
      {"mlp", [](Records& records) { records["models/other.json"] = records[program]; }, "it has 2 programs"},
      {"mlp", [](Records& records) { records.erase("data/weights/weight_0"); },
       "record data/weights/weight_0 is missing"},
      {"mlp", [](Records& records) { records["data/weights/weight_0"].resize(8); }, "do not fit its sizes"},
      {"mlp",
       [](Records& records) {
         auto& config = records["data/weights/model_weights_config.json"];
         replace(config, "\"use_pickle\": false", "\"use_pickle\": true");
       },
       "is pickled"},
      {"two", [](Records&) {}, "forward() returns features, logits; name one of them, as in output = \"features\""},
      {"two", in_program(R"([\\\"features\\\", \\\"logits\\\"])", R"([[\\\"a\\\", \\\"b\\\"], [\\\"none\\\"]])"),
       "forward() returns a, b; name one of them, as in output = \"a\""},
      {"two",
       in_program(R"(\"[\\\"features\\\", \\\"logits\\\"]\", \"children_spec\": [)",
                  R"(\"[\\\"states\\\"]\", \"children_spec\": [{\"type\": \"builtins.list\", \"context\": \"null\",)"
                  R"( \"children_spec\": [{\"type\": null}, {\"type\": null}]}], \"more\": [)"),
       "forward() returns states.0, states.1; name one of them, as in output = \"states.0\""},
      {"two",
       [](Records& records) {
         replace(records[program], R"(\"[\\\"features\\\", \\\"logits\\\"]\")", R"(\"\\\"mine.Pair\\\"\")");
         replace(records[program], R"("treespec_namedtuple_fields": {)",
                 R"("treespec_namedtuple_fields": {"mine.Pair": {"field_names": ["one", "other"]})");
       },
       "forward() returns one, other; name one of them"},
      {"mlp", in_program("torch.ops.aten.gelu.default", "torch.ops.transformers.grouped_mm_fallback.default"),
       "experts_implementation=\"batched_mm\""},
  };
  const TemporaryFolder scratch;
  for (const auto& each : cases) {
    CAPTURE(each.text);
    const auto file = edited(scratch, each.graph, each.edit);
    const auto text = thrown_by([&] { network_of(file); }).text;
    CHECK(text.find(each.text) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find(file) != std::string::npos);
  }
}

TEST_CASE("graph: an operator that trusts its arguments is refused, though LibTorch has it") {
  const TemporaryFolder scratch;
  for (const std::string target :
       {"from_file.default", "max_pool2d_with_indices_backward.default", "adaptive_max_pool2d_backward.default",
        "segment_reduce.default", "_ctc_loss.default", "set_.source_Tensor", "resize_.default", "as_strided_.default",
        "_sparse_coo_tensor_unsafe.default", "sparse_coo_tensor.indices", "empty_strided.default",
        "_unsafe_index.Tensor", "embedding_dense_backward.default", "quantize_per_tensor.default", "add.out"}) {
    CAPTURE(target);
    const auto name = "aten." + target;
    REQUIRE(graph::operator_of(name));
    CHECK(graph::rule_of(name) == nullptr);
    const auto file = edited(scratch, "mlp", [&](Records& records) {
      replace(records[program], "torch.ops.aten.gelu.default", "torch.ops." + name);
    });
    const auto text = thrown_by([&] { network_of(file); }).text;
    CHECK(text.find(name + ": LibTorch has them, but a graph is data") != std::string::npos);
  }
}

TEST_CASE("graph: fresh memory is zero") {
  const TemporaryFolder scratch;
  for (const std::string name : {"new_empty", "empty_like"}) {
    const auto file = edited(scratch, "mlp", [&](Records& records) {
      replace(records[program], "torch.ops.aten.gelu.default", "torch.ops.aten." + name + ".default");
      if (name == "new_empty")
        replace(records[program], R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}])",
                R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1},
                   {"name": "size", "arg": {"as_ints": [8, 8]}, "kind": 1}])");
    });
    const auto network = network_of(file);
    network->train();
    const auto output = network->forward({numbers({4, 4}, 1)});
    CHECK(output[0].equal(network->named_parameters()["layers.3.bias"]));
  }
}

TEST_CASE("graph: memory that a file asks for is refused by the node") {
  const TemporaryFolder scratch;
  const auto file = edited(scratch, "gpt", [](Records& records) {
    replace(records[program], "{\"as_int\": 6}, {\"as_int\": 3}, {\"as_int\": 2}, {\"as_int\": 4}",
            "{\"as_int\": 1099511627776}");
    replace(records[program], "torch.ops.aten.reshape.default", "torch.ops.aten.new_zeros.default");
    replace(records[program], "\"name\": \"shape\"", "\"name\": \"size\"");
  });
  const auto network = network_of(file);
  vernier::limit_memory(torch::kCPU, 0);
  const auto thrown = thrown_by([&] { network->forward({codes({4, 6}, 11, 1)}); });
  CHECK_MESSAGE(thrown.text.find("aten.new_zeros.default") != std::string::npos, thrown.text);
}

TEST_CASE("graph: cut and overwritten files end in one line") {
  const auto bytes = exported::bytes_of(folder + "mlp.pt2");
  for (std::int64_t i = 0; i < 200; ++i) {
    auto changed = bytes.clone();
    if (i % 2 == 0) {
      changed = changed.narrow(0, 0, bytes.numel() * i / 200);
    } else {
      changed.narrow(0, (i * 7919) % (bytes.numel() - 8), 8).fill_(static_cast<int>(i));
    }
    try {
      const GraphNetwork network(changed.contiguous(), "hostile.pt2", "");
    } catch (const vernier::Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

namespace {

using nlohmann::json;

// Appends the places of all values of a tree.
void list_values(const json& tree, const json::json_pointer& place, std::vector<json::json_pointer>& places) {
  places.push_back(place);
  if (tree.is_object()) {
    for (const auto& [key, value] : tree.items()) list_values(value, place / key, places);
  } else if (tree.is_array()) {
    for (std::size_t i = 0; i < tree.size(); ++i) list_values(tree[i], place / i, places);
  }
}

json nested(int depth) {
  json tree = 1;
  for (int i = 0; i < depth; ++i) tree = json::array({tree});
  return tree;
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace

TEST_CASE("graph: a file with other values in its JSON is read, or ends in one line, and takes no memory") {
  const TemporaryFolder scratch;
  const std::vector<json> hostile = {
      -1,   std::int64_t{1} << 62, 1e300,          "",          "../x/y", "a.b", "\n\x1b", nullptr,
      true, json::array(),         json::object(), nested(2000)};
  constexpr const char* files[] = {program, "data/weights/model_weights_config.json",
                                   "data/constants/model_constants_config.json"};
  constexpr const char* graphs[] = {"mlp", "two", "window", "branch"};
  [[maybe_unused]] const auto before = peak_memory();
  std::uint64_t random = 1;
  const auto next = [&](std::size_t below) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(random >> 33) % below;
  };
  for (int i = 0; i < 96; ++i) {
    const auto file = edited(scratch, graphs[i % 4], [&](Records& records) {
      auto& record = records[files[i % 8 == 0 ? 2 : i % 8 < 3 ? 1 : 0]];
      auto tree = json::parse(record);
      std::vector<json::json_pointer> places;
      list_values(tree, json::json_pointer(), places);
      tree[places[next(places.size())]] = hostile[next(hostile.size())];
      record = tree.dump();
    });
    CAPTURE(i);
    try {
      network_of(file, i % 4 == 1 ? "logits" : "");
    } catch (const vernier::Error& error) {
      CHECK(std::string(error.what()).find_first_of("\n\x1b") == std::string::npos);
    }
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a sanitizer adds memory of its own
  CHECK(peak_memory() - before < std::int64_t{64} << 20);
#endif
}

TEST_CASE("graph: inputs that the model was not exported for are named") {
  const auto mlp = network_of(folder + "mlp.pt2");
  CHECK(thrown_by([&] {
          mlp->forward({numbers({2, 5}, 1)});
        }).text == "the model's input 'x' is float32 [any, 4], and float32 [2, 5] is given");
  CHECK(thrown_by([&] {
          mlp->forward({codes({2, 4}, 3, 1)});
        }).text.find("int64 [2, 4] is given") != std::string::npos);
  CHECK(thrown_by([&] { mlp->forward({}); }).text.find("takes 1 tensors, and 0 are given") != std::string::npos);
  CHECK(mlp->forward({numbers({1, 4}, 1)}).size(0) == 1);
}

TEST_CASE("graph: guards have the values that Python gives them") {
  struct Case {
    const char* guard;
    std::vector<std::int64_t> holds;  // the sizes from 1 to 12 for which it holds
  };
  const std::vector<std::int64_t> all = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<Case> cases = {
      {"x.size()[0] <= 4", {1, 2, 3, 4}},
      {"x.size()[0] != 7", {1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12}},
      {"((4*x.size()[0]) % 8) == 0", {2, 4, 6, 8, 10, 12}},
      {"(4*x.size()[0]) == (8*(x.size()[0] // 2))", {2, 4, 6, 8, 10, 12}},
      {"((-1) + x.size()[0] + ((1 + x.size()[0]) // 2)) // ((1 + x.size()[0]) // 2) == 2",
       {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
      {"(-3)*((1 + x.size()[0]) // 2) + 3*x.size()[0] >= 2", {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
      {"(x.size()[0] / 2) ** 2.0 < 5.5", {1, 2, 3, 4}},
      {"-x.size()[0]**2 > -10", {1, 2, 3}},
      {"2 ** x.size()[0] == 32", {5}},
      {"max(3, x.size()[0]) < 6", {1, 2, 3, 4, 5}},
      {"min(3, x.size()[0], 2) == 1", {1}},
      {"math.trunc(1.5*torch.sym_float(x.size()[0])) >= 6", {4, 5, 6, 7, 8, 9, 10, 11, 12}},
      {"math.ceil(x.size()[0] / 3) == 2", {4, 5, 6}},
      {"x.size()[0] < 3 or x.size()[0] > 4 and x.size()[0] % 5 == 0", {1, 2, 5, 10}},
      {"not (x.size()[0] < 11)", {11, 12}},
      {"x.size()[0] <= 1e1", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
      {"x.size()[0] <= math.inf", all},
      // A guard that is not read holds for no size.
      {"x.size()[0] <=", {}},
      {"x.size()[0] <= 4)", {}},
      {"x.size()[0] // 0 == 1", {}},
      {"y.size()[0] > 0", {}},
      {"__import__('os').getpid() > 0", {}},
      {"", {}},
  };
  const auto holds = [](const std::string& guard, std::int64_t size) {
    try {
      const auto number_of = [&](const std::string& name, std::int64_t) -> c10::IValue {
        return name == "x.size" ? size : throw vernier::Error("no " + name);
      };
      return graph::value_of(guard, number_of).toBool();
    } catch (const vernier::Error&) {
      return false;
    }
  };
  for (const auto& each : cases) {
    CAPTURE(each.guard);
    for (const auto size : all) {
      CAPTURE(size);
      CHECK(holds(each.guard, size) == (std::ranges::count(each.holds, size) > 0));
    }
  }
  CHECK_FALSE(holds(std::string(100'000, '('), 1));
  CHECK_FALSE(holds(std::string(100'000, '-') + "1 == 1", 1));
}

namespace {

// A graph for inputs [samples, 4] with a guard, or a range of samples.
std::string guarded(const TemporaryFolder& scratch, const std::string& guard, const std::string& range = "") {
  return edited(scratch, "mlp", [&](Records& records) {
    auto tree = json::parse(records[program]);
    if (!guard.empty()) tree["guards_code"] = json::array({guard});
    for (auto& entry : tree["range_constraints"]) {
      if (!range.empty()) entry = json::parse(range);
    }
    records[program] = tree.dump();
  });
}

}  // namespace

TEST_CASE("graph: what a program assumes of its batch is checked before it is run") {
  struct Case {
    const char *guard, *range;
    std::int64_t fits, other;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"L['x'].size()[0] <= 4", "", 4, 6, "x.size()[0] <= 4"},
      {"L['X'].size()[0] <= 4", "", 4, 6, "X.size()[0] <= 4"},
      {"(L['x'].size()[0] % 3) == 0", "", 6, 4, "(x.size()[0] % 3) == 0"},
      {"L['x'].size()[0] != 1", "", 2, 1, "x.size()[0] != 1"},
      {"", R"({"min_val": 0, "max_val": 5})", 5, 6, "x.size()[0] <= 5"},
      {"", R"({"min_val": 6, "max_val": null})", 6, 5, "x.size()[0] >= 6"},
      {"L['y'].size()[0] <= 4 and ???", "", 0, 2, "y.size()[0] <= 4 and ???"},
  };
  const TemporaryFolder scratch;
  for (const auto& each : cases) {
    CAPTURE(each.text);
    const auto network = network_of(guarded(scratch, each.guard, each.range));
    const auto forward = [&](std::int64_t samples) { return network->forward({numbers({samples, 4}, 1)}); };
    if (each.fits > 0) CHECK(forward(each.fits).size(0) == each.fits);
    for (int i = 0; i < 2; ++i) {
      const auto text = thrown_by([&] { forward(each.other); }).text;
      CHECK(text.find(std::string("exported for inputs of which ") + each.text + ", and float32 [") !=
            std::string::npos);
    }
    if (each.fits > 0) CHECK(network->try_two({numbers({12, 4}, 1)}).size(0) >= 1);
  }
}

TEST_CASE("graph: batches that a program was not exported for are refused before the first step, with a remedy") {
  const TemporaryFolder scratch;
  const auto data = scratch / "data.safetensors";
  vernier::save_safetensors(data, {{"x", numbers({13, 4}, 1)}, {"y", codes({13}, 3, 1)}, {"z", numbers({13, 4}, 2)}},
                            {});
  struct Case {
    const char* guard;
    std::int64_t batch_size;
    bool drop_last, holds_out;
    const char* text;  // "": it trains
  };
  const std::vector<Case> cases = {
      {"L['x'].size()[0] <= 4", 6, false, false,
       "x.size()[0] <= 4, and a batch has 6 samples; set [task] batch_size = 4"},
      {"L['x'].size()[0] <= 4", 4, false, false, ""},
      {"L['x'].size()[0] != 1", 4, false, false,
       "x.size()[0] != 1, and a batch has 1 sample; set [task] batch_size = 5"},
      {"L['x'].size()[0] != 1", 4, true, false, ""},
      {"L['x'].size()[0] != 1", 4, true, true, "and a batch has 1 sample; set [task] batch_size = 5"},
      {"L['x'].size()[0] > 4", 8, false, false, ""},
      {"L['x'].size()[0] % 2 == 0", 6, false, false,
       "and a batch has 1 sample; export it with examples of such batches"},
      {"L['x'].size()[0] % 2 == 0", 6, true, false, ""},
  };
  for (const auto& each : cases) {
    CAPTURE(each.guard);
    CAPTURE(each.batch_size);
    vernier::Table table = {{"model", value(guarded(scratch, each.guard))},
                            {"inputs", list<std::string>({data + ":x"})},
                            {"target", value(data + ":y")},
                            {"validation_share", value(0)},
                            {"batch_size", value(each.batch_size)},
                            {"drop_last", value(each.drop_last)}};
    if (each.holds_out) {
      table["validation_inputs"] = list<std::string>({data + ":z"});
      table["validation_target"] = value(data + ":y");
    }
    const LoadedTask loaded("graph", table);
    const auto text = refusal([&] { loaded.task->check(loaded.run); });
    CHECK(text.find(each.text) != std::string::npos);
    CHECK(text.empty() == std::string(each.text).empty());
  }
}

TEST_CASE("graph: a program that assumes a size of its batch is written as .pt2 alone") {
  const TemporaryFolder scratch;
  const auto data = scratch / "data.safetensors";
  vernier::save_safetensors(data, {{"x", numbers({4, 4}, 1)}, {"y", codes({4}, 3, 1)}}, {});
  const std::pair<const char*, bool> cases[] = {{"", true},
                                                {"L['x'].size()[0] != 1", true},
                                                {"L['x'].size()[0] <= 4", false},
                                                {"L['x'].size()[0] >= 4", false},
                                                {"L['x'].size()[0] % 2 == 0", false}};
  for (const auto& [guard, takes_all] : cases) {
    CAPTURE(std::string(guard));
    const LoadedTask loaded("graph", {{"model", value(guarded(scratch, guard))},
                                      {"inputs", list<std::string>({data + ":x"})},
                                      {"target", value(data + ":y")},
                                      {"validation_share", value(0)}});
    loaded.run.model->eval();
    const auto refused = [&](const std::function<void()>& write) {
      const auto text = thrown_by(write).text;
      CHECK(text.empty() == takes_all);
      return text.empty() || text.find("write --format pt2, which checks it") != std::string::npos;
    };
    CHECK(refused([&] { dynamic_cast<vernier::Exportable&>(*loaded.task).exported_model(); }));
    CHECK(refused([&] { dynamic_cast<vernier::Predictor&>(*loaded.task).save_torchscript(scratch / "a.pt"); }));
    CHECK(dynamic_cast<vernier::Predictor&>(*loaded.task).save_pt2(scratch / "a.pt2"));
  }
}

TEST_CASE("graph: evaluation is that of Python if the file says it, and else what torch.nn does, with a warning") {
  const auto functional = network_of(folder + "functional.pt2"), frozen = network_of(folder + "frozen.pt2");
  const auto inputs = std::vector{numbers({8, 4}, 1)};
  functional->eval();
  CHECK_FALSE(functional->forward(inputs).equal(functional->forward(inputs)));
  CHECK(functional->guessed().empty());
  CHECK_FALSE(frozen->trains_as_evaluated());
  frozen->train();
  const auto before = frozen->named_buffers()["frozen.running_mean"].clone();
  const auto moved = frozen->named_buffers()["norm.running_mean"].clone();
  frozen->forward({numbers({3, 2, 6, 6}, 1)});
  CHECK(frozen->named_buffers()["frozen.running_mean"].equal(before));
  CHECK_FALSE(frozen->named_buffers()["norm.running_mean"].equal(moved));
  const TemporaryFolder scratch;
  const auto alone = [&](const char* name) {
    return network_of(edited(scratch, name, [](Records& records) { records.erase("extra/evaluation.json"); }));
  };
  const auto guessed = alone("functional"), known = alone("frozen"), modes = alone("modes");
  guessed->eval(), known->eval();
  CHECK(guessed->guessed().starts_with("aten.batch_norm"));
  CHECK(guessed->forward(inputs).equal(guessed->forward(inputs)));
  CHECK(known->guessed().empty());
  const auto whole = network_of(folder + "frozen.pt2");
  whole->eval();
  const std::vector images = {numbers({3, 2, 6, 6}, 1)};
  CHECK(known->forward(images).equal(whole->forward(images)));
  const auto modes_whole = network_of(folder + "modes.pt2");
  modes->eval(), modes_whole->eval();
  const std::vector rows = {numbers({6, 4, 5}, 1)};
  CHECK(modes->forward(rows).equal(modes_whole->forward(rows)));
  const auto forward = [&](const auto& given) { return known->forward(given); };
  export_onnx(vernier::ExportedModel{*known, forward, images}, scratch / "known.onnx");
  vernier::save_safetensors(scratch / "known.safetensors",
                            {{"input/3", images[0]}, {"output/3", whole->forward(images).detach().contiguous()}}, {});
  if (!has_python("onnxruntime")) return;
  std::string out;
  CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", scratch.path(), out) == 0, out);
}

TEST_CASE("graph: each allowed operator that has a mode is known to have one") {
  const std::set<std::string> known = {"alpha_dropout",
                                       "alpha_dropout_",
                                       "batch_norm",
                                       "dropout",
                                       "dropout_",
                                       "feature_dropout",
                                       "feature_dropout_",
                                       "feature_alpha_dropout",
                                       "feature_alpha_dropout_",
                                       "gru",
                                       "instance_norm",
                                       "lstm",
                                       "native_dropout",
                                       "rnn_relu",
                                       "rnn_tanh",
                                       "rrelu",
                                       "rrelu_",
                                       "scaled_dot_product_attention"};
  std::set<std::string> found;
  for (const auto& target : graph::all_targets()) {
    const auto& schema = graph::operator_of(target)->schema();
    for (const auto& argument : schema.arguments()) {
      const auto& name = argument.name();
      const bool is_mode = name.find("train") != std::string::npos || name.find("drop") != std::string::npos ||
                           name.find("input_stats") != std::string::npos;
      if (is_mode) found.insert(schema.name().substr(6));
    }
  }
  CHECK(found == known);
}

TEST_CASE("graph: batch normalisation of one value is refused, as in Python") {
  const auto network = network_of(folder + "functional.pt2");
  const auto text = thrown_by([&] { network->forward({numbers({1, 4}, 1)}); }).text;
  CHECK(text.find("needs more than 1 value per channel in training, for float32 [1, 4]") != std::string::npos);
  CHECK(network->named_buffers()["variance"].isfinite().all().item<bool>());
}

TEST_CASE("graph: the label that PyTorch's losses leave out is refused") {
  const TemporaryFolder scratch;
  const auto data = scratch / "data.safetensors";
  const auto labels = codes({40}, 3, 1);
  vernier::save_safetensors(data,
                            {{"x", numbers({40, 4}, 1)}, {"y", torch::where(torch::arange(40) < 6, -100, labels)}}, {});
  for (const std::string loss : {"cross_entropy", "nll"}) {
    const auto text = refusal([&] {
      LoadedTask("graph", {{"model", value(folder + "mlp.pt2")},
                           {"inputs", list<std::string>({data + ":x"})},
                           {"target", value(data + ":y")},
                           {"loss", value(loss)}});
    });
    CHECK(text.find(":y' has the label -100 in row 0, which PyTorch's losses leave out") != std::string::npos);
  }
}

TEST_CASE("graph: save() of export.py refuses what a file cannot hold" * doctest::skip(!has_python("torch"))) {
  const TemporaryFolder scratch;
  std::string out;
  CHECK_MESSAGE(python(folder + "faithful.py", scratch.path(), out) == 0, out);
}

TEST_CASE("graph: a collective must be of the run's ranks, and have a gradient") {
  struct Case {
    const char* name;
    c10::IValue value;
    std::string trouble;
  };
  const std::vector<Case> cases = {
      {"reduce_op", "sum", ""},
      {"reduce_op", "avg", "takes the \"avg\" of the ranks, which has no gradient here"},
      {"group_name", "0", ""},
      {"group_name", "3", "is of the group \"3\", and a run has the group \"0\""},
      {"group_size", std::int64_t{2}, ""},
      {"group_size", std::int64_t{4}, "is of 4 ranks, and the run has 2"},
  };
  CHECK(graph::trouble_with_collective({}).starts_with("is of several ranks"));
  const vernier::draft::ModelParts parts(0, 2, [](const torch::Tensor&) {});
  for (const auto& each : cases) {
    const auto trouble = graph::trouble_with_collective({{each.name, each.value}});
    CHECK_MESSAGE((each.trouble.empty() ? trouble.empty() : trouble.starts_with(each.trouble)), trouble);
  }
}

}  // namespace graph_test
