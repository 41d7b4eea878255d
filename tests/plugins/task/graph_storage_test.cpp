// Graphs of torch.export whose tensors are views of shared storages, in all dtypes: they are read, trained and written
// again as eager mode computes. The files are written here, as torch.export.save() writes them.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <caffe2/serialize/inline_container.h>
#include <doctest/doctest.h>
#include <torch/script.h>
#include <torch/utils.h>
#include <vernier/data/predictor.h>
#include <vernier/error.h>
#include <vernier/exported_model.h>
#include <vernier/graph/graph_export.h>
#include <vernier/graph/pt2_types.h>
#include <vernier/safetensors.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "loaded_data_task.h"
#include "python.h"
#include "small_run.h"
#include "task/graph/graph_network.h"
#include "thrown.h"

namespace graph_storage_test {

using graph::GraphNetwork;
using nlohmann::json;
using Sizes = std::vector<std::int64_t>;

namespace {

// A tensor of a model: a view of a storage.
struct Part {
  std::string name;
  std::string record;
  Sizes sizes, strides;
  std::int64_t offset = 0;
  bool trains = true;
  bool is_parameter = true;
  bool is_persistent = true;
};

// An operator of a model: of the value before it, and of parts.
struct Call {
  std::string target;
  std::vector<std::string> parts;
};

struct Model {
  std::map<std::string, torch::Tensor> records = {};  // flat storages
  std::vector<Part> parts = {};
  std::vector<Call> calls = {};
  torch::ScalarType dtype = torch::kFloat32;  // the input's dtype

  const Part& part(const std::string& name) const { return *std::ranges::find(parts, name, &Part::name); }
};

// The tensors as torch.nn has them: views of one storage share it, and tied ones are one.
std::map<std::string, torch::Tensor> tensors_of(const Model& model) {
  std::map<std::string, torch::Tensor> storages, tensors;
  for (const auto& [name, tensor] : model.records) storages[name] = tensor.clone();
  for (const auto& part : model.parts) {
    const auto is_tied = [&](const Part& other) {
      return tensors.contains(other.name) && other.record == part.record && other.sizes == part.sizes &&
             other.strides == part.strides && other.offset == part.offset && other.trains == part.trains;
    };
    if (const auto tied = std::ranges::find_if(model.parts, is_tied); tied != model.parts.end()) {
      tensors[part.name] = tensors.at(tied->name);
      continue;
    }
    const auto& storage = storages.at(part.record);
    tensors[part.name] = at::empty({0}, storage.scalar_type())
                             .set_(storage.storage(), part.offset, part.sizes, part.strides)
                             .set_requires_grad(part.trains);
  }
  return tensors;
}

torch::Tensor forward(const Model& model, const std::map<std::string, torch::Tensor>& tensors, torch::Tensor x) {
  for (const auto& [target, parts] : model.calls) {
    const auto part = [&](std::size_t place) { return tensors.at(parts.at(place)); };
    if (target == "linear.default") {
      x = at::linear(x, part(0), parts.size() > 1 ? std::optional(part(1)) : std::nullopt);
    } else if (target == "mul.Tensor") {
      x = x * part(0);
    } else if (target == "add.Tensor") {
      x = x + part(0);
    } else if (target == "tanh.default") {
      x = x.tanh();
    } else if (target == "gelu.default") {
      x = at::gelu(x);
    } else if (target == "add_.Tensor") {
      const torch::NoGradGuard no_grad;
      part(0).add_(1);
    }
  }
  return x;
}

json whole(const Sizes& numbers) {
  json all = json::array();
  for (const auto number : numbers) all.push_back({{"as_int", number}});
  return all;
}

json meta_of(torch::ScalarType dtype, const Sizes& sizes, const Sizes& strides, std::int64_t offset, bool wants_grad) {
  return {{"dtype", *vernier::pt2::number_of(dtype)},
          {"sizes", whole(sizes)},
          {"requires_grad", wants_grad},
          {"device", {{"type", "cpu"}, {"index", nullptr}}},
          {"strides", whole(strides)},
          {"storage_offset", {{"as_int", offset}}},
          {"layout", vernier::pt2::strided}};
}

json tensor_argument(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}

json program_of(const Model& model) {
  const std::map<std::string, std::vector<std::string>> arguments = {{"linear.default", {"input", "weight", "bias"}},
                                                                     {"mul.Tensor", {"self", "other"}},
                                                                     {"add.Tensor", {"self", "other"}},
                                                                     {"tanh.default", {"self"}},
                                                                     {"gelu.default", {"self"}}};
  json inputs = json::array(), specs = json::array(), nodes = json::array();
  for (const auto& part : model.parts) {
    inputs.push_back(tensor_argument("p_" + part.name));
    const json argument = {{"name", "p_" + part.name}};
    specs.push_back(
        part.is_parameter
            ? json{{"parameter", {{"arg", argument}, {"parameter_name", part.name}}}}
            : json{{"buffer", {{"arg", argument}, {"buffer_name", part.name}, {"persistent", part.is_persistent}}}});
  }
  inputs.push_back(tensor_argument("x"));
  specs.push_back({{"user_input", {{"arg", tensor_argument("x")}}}});
  std::string value = "x";
  for (const auto& [target, parts] : model.calls) {
    json node = {{"target", "torch.ops.aten." + target}, {"inputs", json::array()}, {"metadata", json::object()}};
    const auto output = "v" + std::to_string(nodes.size());
    if (target == "add_.Tensor") {
      node["inputs"].push_back({{"name", "self"}, {"arg", tensor_argument("p_" + parts[0])}, {"kind", 1}});
      node["inputs"].push_back({{"name", "other"}, {"arg", {{"as_int", 1}}}, {"kind", 1}});
    } else {
      const auto& names = arguments.at(target);
      node["inputs"].push_back({{"name", names[0]}, {"arg", tensor_argument(value)}, {"kind", 1}});
      for (std::size_t i = 0; i < parts.size(); ++i) {
        node["inputs"].push_back({{"name", names[i + 1]}, {"arg", tensor_argument("p_" + parts[i])}, {"kind", 1}});
      }
      value = output;
    }
    node["outputs"] = json::array({tensor_argument(output)});
    nodes.push_back(node);
  }
  auto sizes = meta_of(model.dtype, {2, 4}, {4, 1}, 0, false);
  sizes["sizes"][0] = {{"as_expr", {{"expr_str", "s0"}}}};
  const json graph = {{"inputs", inputs},
                      {"outputs", json::array({tensor_argument(value)})},
                      {"nodes", nodes},
                      {"tensor_values", {{"x", sizes}}}};
  const json outputs = json::array({{{"user_output", {{"arg", tensor_argument(value)}}}}});
  return {{"schema_version", {{"major", vernier::pt2::schema_version}, {"minor", 17}}},
          {"verifiers", {"TRAINING"}},
          {"graph_module",
           {{"graph", graph},
            {"signature", {{"input_specs", specs}, {"output_specs", outputs}}},
            {"module_call_graph", json::array()}}}};
}

void write_file(const Model& model, const std::string& file) {
  std::ofstream out(file, std::ios::binary);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    return size;
  });
  const auto text = [&](const std::string& record, const std::string& content) {
    writer.writeRecord(record, content.data(), content.size());
  };
  text("models/model.json", program_of(model).dump());
  for (const std::string kind : {"weights", "constants"}) {
    json config = json::object();
    std::set<std::string> records;
    for (const auto& part : model.parts) {
      if (part.is_persistent != (kind == "weights")) continue;
      const auto dtype = model.records.at(part.record).scalar_type();
      config[part.name] = {{"path_name", part.record},
                           {"is_param", part.is_parameter},
                           {"use_pickle", false},
                           {"tensor_meta", meta_of(dtype, part.sizes, part.strides, part.offset, part.trains)}};
      records.insert(part.record);
    }
    for (const auto& name : records) {
      const auto& tensor = model.records.at(name);
      writer.writeRecord("data/" + kind + "/" + name, tensor.const_data_ptr(), tensor.nbytes());
    }
    text("data/" + kind + "/model_" + kind + "_config.json", json{{"config", config}}.dump());
  }
  writer.writeEndOfFile();
}

std::shared_ptr<GraphNetwork> network_of(const std::string& file) {
  return std::make_shared<GraphNetwork>(exported::bytes_of(file), file, "");
}

// Numbers between -1 and 1.
torch::Tensor numbers(Sizes sizes, std::int64_t salt, torch::ScalarType dtype = torch::kFloat32) {
  const auto places = torch::arange(c10::multiply_integers(sizes));
  return ((places * 7919 + salt * 104729).remainder(2003) - 1001)
      .to(torch::kFloat64)
      .div(1024)
      .to(dtype)
      .reshape(sizes);
}

constexpr std::int64_t samples = 20, batch_size = 4, steps = samples / batch_size;

// A run of five steps of a model.
class Trained {
 public:
  Trained(const Model& model, const TemporaryFolder& folder, const std::string& precision = "", double rate = 0.1) {
    write_file(model, folder / "model.pt2");
    vernier::save_safetensors(folder / "data.safetensors", {{"x", x()}, {"y", y()}}, {});
    run_ = std::make_unique<SmallRun>(from_toml({c10::str(
        "[run]\nsteps = ", steps, "\nvalidate_every = 0\n[task]\nuse = \"graph\"\nmodel = \"", folder / "model.pt2",
        "\"\ninputs = [\"", folder / "data.safetensors", ":x\"]\ntarget = \"", folder / "data.safetensors",
        ":y\"\nvalidation_share = 0\norder = \"sequential\"\nbatch_size = ", batch_size,
        "\n[optimizer]\nuse = \"sgd\"\nlearning_rate = ", rate, "\nmomentum = 0.0\n[checkpoint]\nuse = \"none\"\n",
        precision)}));
    run_->train();
  }
  static torch::Tensor x() { return numbers({samples, 4}, 1); }
  static torch::Tensor y() { return torch::arange(samples).remainder(3); }

  template <class Interface>
  Interface& as() {
    return dynamic_cast<Interface&>(*run_->wiring->task);
  }
  // Returns the output of the run in evaluation.
  torch::Tensor output() {
    run_->run.model->eval();
    const torch::NoGradGuard no_grad;
    return run_->wiring->precision->forward(
        [&] { return as<vernier::SupervisedTask>().forward({.tensors = {x()}, .samples = samples}); });
  }
  void write(const std::string& file) { as<vernier::Predictor>().save_pt2(file); }
  SmallRun& run() { return *run_; }

 private:
  std::unique_ptr<SmallRun> run_;
};

// The tensors after the five steps in eager mode.
std::map<std::string, torch::Tensor> trained_in_eager_mode(const Model& model, double rate = 0.1) {
  auto tensors = tensors_of(model);
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto x = Trained::x().narrow(0, step * batch_size, batch_size).to(model.dtype);
    at::cross_entropy_loss(forward(model, tensors, x), Trained::y().narrow(0, step * batch_size, batch_size))
        .backward();
    const torch::NoGradGuard no_grad;
    std::set<const void*> done;
    for (auto& [name, tensor] : tensors) {
      if (!tensor.grad().defined() || !done.insert(tensor.unsafeGetTensorImpl()).second) continue;
      tensor.sub_(tensor.grad(), rate);
      tensor.mutable_grad().reset();
    }
  }
  return tensors;
}

double difference(const torch::Tensor& one, const torch::Tensor& other) {
  const auto a = one.to(torch::kFloat64), b = other.to(torch::kFloat64);
  if (a.sizes() != b.sizes()) return INFINITY;
  return a.numel() == 0 ? 0 : (a - b).abs().max().item<double>() / std::max(1.0, b.abs().max().item<double>());
}

}  // namespace

TEST_CASE("graph: each name of a storage has its own view, and those that overlap share memory") {
  struct Case {
    const char* name;
    std::vector<Part> parts;  // their storage has 64 elements
    bool is_shared = false, is_tied = false;
    const char* refusal = "";
  };
  const std::vector<Case> cases = {
      {"a matrix and its first row, buffers",
       {{"a", "s", {4, 16}, {16, 1}, 0, false, false}, {"b", "s", {16}, {1}, 0, false, false}},
       true},
      {"two halves", {{"a", "s", {2, 16}, {16, 1}}, {"b", "s", {2, 16}, {16, 1}, 32}}},
      {"two rows of other sizes", {{"a", "s", {3}, {1}, 5}, {"b", "s", {7}, {1}, 20}}},
      {"columns", {{"a", "s", {4, 2}, {16, 1}}, {"b", "s", {4, 3}, {16, 1}, 2}}},
      {"every second one", {{"a", "s", {8}, {2}}, {"b", "s", {8}, {2}, 1}}},
      {"a matrix and its transpose", {{"a", "s", {4, 16}, {16, 1}}, {"b", "s", {16, 4}, {1, 16}}}, true},
      {"halves that overlap", {{"a", "s", {40}, {1}}, {"b", "s", {40}, {1}, 24}}, true},
      {"frozen ones that overlap", {{"a", "s", {40}, {1}, 0, false}, {"b", "s", {8}, {3}, 4, false}}, true},
      {"tied", {{"a", "s", {4, 4}, {4, 1}, 8}, {"b", "s", {4, 4}, {4, 1}, 8}}, true, true},
      {"one trains, its twin is a buffer", {{"a", "s", {4}, {1}}, {"b", "s", {4}, {1}, 0, false, false}}, true},
      {"empty ones", {{"a", "s", {0, 4}, {4, 1}}, {"b", "s", {0}, {1}}}},
      {"a scalar and a vector", {{"a", "s", {}, {}, 63}, {"b", "s", {5}, {1}, 3}}},
      {"a trained view with gaps, shared",
       {{"a", "s", {64}, {1}}, {"b", "s", {4, 2}, {16, 1}}},
       true,
       false,
       "'b' is a view with gaps of memory that others share"},
      {"expanded", {{"a", "s", {5, 2}, {0, 1}}}, false, false, "'a' repeats its elements, as expand() does"},
      {"windows", {{"a", "s", {5, 2}, {1, 1}}}, false, false, "'a' repeats its elements"},
      {"expanded beyond the storage",
       {{"a", "s", {99, 2}, {0, 1}, 0, false, false}},
       false,
       false,
       "'a' repeats its elements"},
      {"beyond the storage", {{"a", "s", {8, 8}, {8, 1}, 1}}, false, false, "do not fit its sizes"},
  };
  const TemporaryFolder scratch;
  for (const auto& each : cases) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
      CAPTURE(each.name);
      CAPTURE(dtype);
      Model model{.records = {{"s", torch::arange(64).to(dtype)}}, .parts = each.parts};
      write_file(model, scratch / "a.pt2");
      if (*each.refusal != 0) {
        const auto text = thrown_by([&] { network_of(scratch / "a.pt2"); }).text;
        CHECK_MESSAGE(text.find(each.refusal) != std::string::npos, text);
        continue;
      }
      const auto network = network_of(scratch / "a.pt2");
      const auto state = network->state_dict(), wanted = tensors_of(model);
      for (const auto& [name, tensor] : wanted) {
        CHECK(state.at(name).equal(tensor));
        CHECK(state.at(name).requires_grad() == tensor.requires_grad());
      }
      const auto a = state.at("a"), b = state.at("b");
      CHECK(a.is_alias_of(b) == each.is_shared);
      CHECK(a.is_same(b) == each.is_tied);
      const torch::NoGradGuard no_grad;
      wanted.at("a").mul_(-2), a.mul_(-2);
      CHECK(b.equal(wanted.at("b")));
      std::ofstream(scratch / "b.pt2", std::ios::binary) << network->bytes();
      const auto again = network_of(scratch / "b.pt2")->state_dict();
      for (const auto& [name, tensor] : wanted) CHECK(again.at(name).equal(tensor));
    }
  }
}

TEST_CASE("graph: a trial run before the first step leaves a buffer that forward() changes as it was") {
  const TemporaryFolder scratch;
  for (const auto dtype : {torch::kInt64, torch::kFloat32, torch::kFloat64, torch::kInt32}) {
    for (const bool is_persistent : {true, false}) {
      for (const bool is_parameter : {false, true}) {
        if (is_parameter && (!is_persistent || dtype == torch::kInt64 || dtype == torch::kInt32)) continue;
        Model model{.records = {{"w", numbers({12}, 3)}, {"n", torch::zeros({1}, dtype)}},
                    .parts = {{"w", "w", {3, 4}, {4, 1}}, {"n", "n", {}, {}, 0, false, is_parameter, is_persistent}},
                    .calls = {{"add_.Tensor", {"n"}}, {"linear.default", {"w"}}}};
        Trained trained(model, scratch);
        trained.write(scratch / "out.pt2");
        const auto again = network_of(scratch / "out.pt2");
        const auto n = is_parameter ? again->named_parameters()["n"] : again->named_buffers()["n"];
        CHECK(n.item<double>() == steps);
      }
    }
  }
}

TEST_CASE("graph: parameters that no optimizer trains are refused by name before the first step") {
  const TemporaryFolder scratch;
  for (const auto dtype : {torch::kComplexFloat, torch::kComplexDouble, torch::kFloat8_e4m3fn}) {
    for (const bool is_alone : {false, true}) {
      Model model{.records = {{"c", torch::zeros({2}, dtype)}},
                  .parts = {{"c", "c", {2}, {1}}},
                  .calls = {{"tanh.default", {}}}};
      if (!is_alone) {
        model.records["w"] = numbers({12}, 3);
        model.parts.push_back({"w", "w", {3, 4}, {4, 1}});
        model.calls = {{"linear.default", {"w"}}};
      }
      const auto text = thrown_by([&] { Trained(model, scratch); }).text;
      CHECK_MESSAGE(text.find(c10::str("the parameter 'c' is ", dtype)) != std::string::npos, text);
      model.parts[0].trains = false;
      if (!is_alone && dtype != torch::kComplexDouble)  // safetensors has no complex numbers of 128 bits
        CHECK((Trained(model, scratch).as<vernier::PythonModule>().state_dict().at("c").scalar_type() == dtype));
    }
  }
}

TEST_CASE("graph: a tensor that is the negative of its memory is written as what it is") {
  const TemporaryFolder scratch;
  struct Negated : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return x * n * w; }
    torch::Tensor n = register_buffer("n", torch::imag(torch::complex(numbers({4}, 2), numbers({4}, 3)).conj()));
    torch::Tensor w = register_parameter("w", numbers({4}, 4));
  } model;
  REQUIRE(model.n.is_neg());
  model.eval();
  vernier::export_pt2(model, {numbers({2, 4}, 1)}, scratch / "a.pt2");
  CHECK(network_of(scratch / "a.pt2")->named_buffers()["n"].equal(model.n));
  vernier::export_onnx(model, {numbers({2, 4}, 1)}, scratch / "a.onnx");
  const auto bytes = model.n.resolve_neg().contiguous();
  const std::string_view wanted(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  CHECK(read_text(scratch / "a.onnx").find(wanted) != std::string::npos);
}

namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 2654435769U + 1) {}
  std::size_t below(std::size_t count) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state_ >> 33) % count;
  }

 private:
  std::uint64_t state_;
};

// Layers of four numbers, whose tensors are laid out in storages at random.
Model random_model(std::uint64_t seed) {
  Dice dice(seed);
  constexpr torch::ScalarType dtypes[] = {torch::kFloat32, torch::kFloat32,  torch::kFloat32,
                                          torch::kFloat64, torch::kBFloat16, torch::kFloat16};
  Model model;
  model.dtype = dtypes[dice.below(6)];
  const auto record = [&](std::int64_t count, torch::ScalarType dtype) {
    const auto name = "s" + std::to_string(model.records.size());
    model.records[name] = numbers({count}, static_cast<std::int64_t>(seed + model.records.size()), dtype);
    return name;
  };
  const auto add = [&](Part part) {
    part.name = std::string(1, static_cast<char>('a' + model.parts.size()));
    model.parts.push_back(part);
    return part.name;
  };
  const auto layers = 1 + dice.below(3);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const bool trains = layer == 0 || dice.below(4) > 0;
    const auto two = [&](std::int64_t count, const Part& one, const Part& other) {
      const auto name = record(count, model.dtype);
      for (auto part : {one, other}) {
        part.record = name, part.trains = trains;
        model.calls.push_back({"linear.default", {add(part)}});
      }
    };
    switch (dice.below(9)) {
      case 0: {  // a matrix and a vector in one flat tensor
        const auto name = record(23, model.dtype);
        const auto weight = add({"", name, {4, 4}, {4, 1}, 3, trains}), bias = add({"", name, {4}, {1}, 19, trains});
        model.calls.push_back({"linear.default", {weight, bias}});
        break;
      }
      case 1:  // halves
        two(32, {"", "", {4, 4}, {4, 1}, 0}, {"", "", {4, 4}, {4, 1}, 16});
        break;
      case 2:  // columns
        two(32, {"", "", {4, 4}, {8, 1}, 0}, {"", "", {4, 4}, {8, 1}, 4});
        break;
      case 3:  // tied
        two(20, {"", "", {4, 4}, {4, 1}, 2}, {"", "", {4, 4}, {4, 1}, 2});
        break;
      case 4:  // a matrix and its transpose
        two(16, {"", "", {4, 4}, {4, 1}, 0}, {"", "", {4, 4}, {1, 4}, 0});
        break;
      case 5: {  // buffers that overlap, of which forward() changes one
        const auto name = record(6, model.dtype);
        const bool is_persistent = dice.below(2) == 0;
        const auto one = add({"", name, {4}, {1}, 0, false, false, is_persistent});
        const auto other = add({"", name, {4}, {1}, 2, false, false, is_persistent});
        model.calls.push_back({"add_.Tensor", {one}});
        model.calls.push_back({"mul.Tensor", {other}});
        break;
      }
      case 6: {  // a counter
        const auto name = record(2, dice.below(2) == 0 ? torch::kInt64 : model.dtype);
        model.calls.push_back({"add_.Tensor", {add({"", name, {}, {}, 1, false, false})}});
        model.calls.push_back({"add.Tensor", {model.parts.back().name}});
        break;
      }
      case 7:  // a transposed matrix
        model.calls.push_back({"linear.default", {add({"", record(16, model.dtype), {4, 4}, {1, 4}, 0, trains})}});
        break;
      case 8: {  // buffers of other sizes with one begin
        const auto name = record(16, model.dtype);
        model.calls.push_back({"linear.default", {add({"", name, {4, 4}, {4, 1}, 0, false, false})}});
        model.calls.push_back({"mul.Tensor", {add({"", name, {4}, {3}, 1, false, false})}});
        break;
      }
    }
    model.calls.push_back({dice.below(2) == 0 ? "tanh.default" : "gelu.default", {}});
  }
  const auto weight = add({"", record(12, model.dtype), {3, 4}, {4, 1}}),
             bias = add({"", record(3, model.dtype), {3}, {1}});
  model.calls.push_back({"linear.default", {weight, bias}});
  return model;
}

// Parameters that are different views of one memory, which a step changes.
bool has_overlap(const Model& model, bool changes) {
  return std::ranges::any_of(model.parts, [&](const Part& one) {
    return std::ranges::any_of(model.parts, [&](const Part& other) {
      return one.is_parameter && (one.trains || changes) && one.record == other.record && one.offset == other.offset &&
             one.strides != other.strides;
    });
  });
}

}  // namespace

TEST_CASE("graph: 200 random graphs train as eager mode, and are written in every format and precision") {
  struct Precision {
    const char *use, *level;
  };
  const std::vector<Precision> precisions = {{"fp32", ""}, {"bf16", "O1"}, {"bf16", "O2"}, {"bf16", "O3"},
                                             {"fp32", ""}, {"fp16", "O1"}, {"fp16", "O2"}, {"fp16", "O3"}};
  const TemporaryFolder scratch, onnx;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto& [use, level] = precisions[seed % precisions.size()];
    const auto model = random_model(seed);
    CAPTURE(seed);
    CAPTURE(use);
    CAPTURE(level);
    CAPTURE(program_of(model).dump());
    const std::string precision = use == std::string("fp32")
                                      ? ""
                                      : c10::str("[precision]\nuse = \"", use, "\"\nlevel = \"", level, "\"\n",
                                                 use == std::string("fp16") ? "[scaler]\nuse = \"dynamic\"\n" : "");
    const bool is_exact = precision.empty() && (model.dtype == torch::kFloat32 || model.dtype == torch::kFloat64);
    const bool changes =
        std::ranges::any_of(model.calls, [](const Call& call) { return call.target == "add_.Tensor"; });
    if (has_overlap(model, changes) && level[0] == 'O' && level[1] > '1' && model.dtype != torch::kFloat64) {
      CHECK(thrown_by([&] { Trained(model, scratch, precision); }).text.find("are parts of one tensor") !=
            std::string::npos);
      ++refused;
      continue;
    }
    Trained trained(model, scratch, precision, 0.02);
    const auto state = trained.as<vernier::PythonModule>().state_dict();
    if (is_exact) {
      for (const auto& [name, tensor] : trained_in_eager_mode(model, 0.02)) {
        if (model.part(name).is_persistent) CHECK(difference(state.at(name), tensor) < 1e-6);
      }
    }
    trained.write(scratch / "out.pt2");
    const auto written = network_of(scratch / "out.pt2");
    for (const auto& [name, tensor] : written->state_dict()) {
      CHECK((tensor.scalar_type() == model.records.at(model.part(name).record).scalar_type()));
      CHECK(tensor.equal(state.at(name).to(tensor.scalar_type())));
    }
    written->eval();
    const torch::NoGradGuard no_grad;
    if (changes) {
      const auto text = thrown_by([&] {
                          export_onnx(trained.as<vernier::Exportable>().exported_model(), scratch / "out.onnx");
                        }).text;
      CHECK_MESSAGE(text.find("in evaluation, and what others run keeps nothing") != std::string::npos, text);
    } else {
      const auto file = onnx / std::to_string(seed);
      export_onnx(trained.as<vernier::Exportable>().exported_model(), file + ".onnx");
      const auto wide = model.dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
      std::map<std::string, torch::Tensor> tensors;
      for (const auto& [key, tensor] : written->state_dict()) tensors[key] = tensor.to(wide);
      const auto x = Trained::x().to(wide);
      vernier::save_safetensors(file + ".safetensors", {{"input/20", x}, {"output/20", forward(model, tensors, x)}},
                                {});
    }
    const auto output = written->forward(written->as_declared({Trained::x()}));
    const auto has = [&](torch::ScalarType dtype, const char* word) {
      return model.dtype == dtype || use == std::string(word);
    };
    const double tolerance = has(torch::kBFloat16, "bf16") ? 0.05 : has(torch::kFloat16, "fp16") ? 0.01 : 1e-6;
    CHECK(difference(output, trained.output()) < tolerance);
  }
  CHECK(refused > 0);
  if (!has_python("onnxruntime")) return;
  std::string out;
  CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", onnx.path(), out) == 0, out);
}

}  // namespace graph_storage_test
