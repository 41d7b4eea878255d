#include "graph_network.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "guards.h"
#include "run.h"

namespace graph {

namespace {

std::string shown(const std::vector<std::optional<std::int64_t>>& sizes) {
  std::string text;
  for (const auto& size : sizes)
    text += (text.empty() ? "" : ", ") + (size ? std::to_string(*size) : std::string("any"));
  return "[" + text + "]";
}

// Guards have the names of forward(), and a program has them in small letters with underscores: L is l, and inputIds is
// input_ids.
bool spelt_alike(std::string a, std::string b) {
  for (auto* name : {&a, &b}) {
    std::erase(*name, '_');
    for (auto& letter : *name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return a == b;
}

}  // namespace

GraphNetwork::GraphNetwork(const torch::Tensor& bytes, const std::string& path, const std::string& output)
    : archive_(bytes, path) {
  const auto evaluation = archive_.extra("evaluation");
  auto program = program_of(archive_, archive_.program(), /*switches=*/evaluation.is_null());
  tensors_ = archive_.tensors(weights_folder);
  tensors_.merge(archive_.tensors(constants_folder));
  std::map<const void*, std::string> first;  // by storage
  for (const auto& [name, tensor] : tensors_) {
    const auto [of, is_new] = first.try_emplace(tensor.storage().unsafeGetStorageImpl(), name);
    if (!is_new && !tensor.is_same(tensors_.at(of->second))) shared_.emplace_back(of->second, name);
  }
  training_ = bind(std::move(program), output);
  read_parts();
  if (!evaluation.is_null()) evaluation_ = bind(program_of(archive_, evaluation, /*switches=*/false), output);
}

void GraphNetwork::read_parts() {
  const auto file = archive_.extra("parts");
  if (file.is_null()) return;
  try {
    parts_ = {file.at("rank").get<std::int64_t>(), file.at("ranks").get<std::int64_t>(),
              file.at("sharded").get<std::set<std::string>>()};
  } catch (const nlohmann::json::exception& error) {
    archive_.refuse("its record extra/parts.json is damaged (" + vernier::message(error) + ")");
  }
  for (const auto& name : parts_->sharded) {
    if (!tensors_.contains(name)) archive_.refuse("its parts.json names '" + name + "', and it has no such tensor");
  }
}

std::set<std::string> GraphNetwork::own_tensors() const {
  std::set<std::string> own;
  std::set<const c10::TensorImpl*> tensors;
  for (const auto& name : parts_->sharded) tensors.insert(tensors_.at(name).unsafeGetTensorImpl());
  for (const auto& [name, tensor] : tensors_) {
    if (tensors.contains(tensor.unsafeGetTensorImpl())) own.insert(name);
  }
  for (const auto* bound : {&training_, evaluation_ ? &*evaluation_ : nullptr}) {
    if (bound == nullptr) continue;
    for (const auto& input : bound->program.inputs) {
      const auto found = tensors_.find(input.name);
      const bool is_weight = found != tensors_.end() && found->second.requires_grad();
      if (input.kind == Input::Kind::constant && !is_weight) own.insert(input.name);
    }
  }
  return own;
}

GraphNetwork::BoundProgram GraphNetwork::bind(Program program, const std::string& output) {
  BoundProgram bound{std::move(program)};
  for (const auto& input : bound.program.inputs) {
    if (input.kind == Input::Kind::user) {
      ++bound.user_inputs;
      bound.given.emplace_back();
      continue;
    }
    const auto found = tensors_.find(input.name);
    if (found == tensors_.end()) archive_.refuse("it lacks the tensor '" + input.name + "'");
    const auto is_it = [&](const auto& known) { return known.is_same(found->second); };
    if (std::ranges::none_of(bound.given, is_it) && std::ranges::none_of(training_.given, is_it)) {
      register_tensor(input, found->second);
    }
    bound.given.push_back(found->second);
  }
  bound.output = place_of(output, bound.program.outputs);
  refuse_static_batch(bound.program);
  return bound;
}

// "layers.0.weight" becomes the tensor "weight" of the module "0" of the module "layers".
void GraphNetwork::register_tensor(const Input& input, const torch::Tensor& tensor) {
  const auto& name = input.name;
  torch::nn::Module* module = this;
  std::size_t begin = 0;
  for (auto end = name.find('.'); end != std::string::npos; begin = end + 1, end = name.find('.', begin)) {
    const auto part = name.substr(begin, end - begin);
    if (part.empty()) archive_.refuse("its tensor '" + name + "' has no name that a module can have");
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module =
        child != nullptr ? child->get() : module->register_module(part, std::make_shared<torch::nn::Module>()).get();
  }
  const auto last = name.substr(begin);
  if (last.empty()) archive_.refuse("its tensor '" + name + "' has no name that a module can have");
  if (input.kind == Input::Kind::parameter) {
    module->register_parameter(last, tensor, tensor.requires_grad());
  } else {
    module->register_buffer(last, tensor);
  }
}

std::size_t GraphNetwork::place_of(const std::string& name, const std::vector<std::string>& names) const {
  const auto list = [&] {
    std::string all;
    for (const auto& one : names) all += (all.empty() ? "" : ", ") + one;
    return all;
  };
  if (name.empty() && names.size() == 1) return 0;
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    archive_.refuse(names.empty()
                        ? "forward() returns nothing"
                        : "forward() returns " + list() + "; name one of them, as in output = \"" + names[0] + "\"");
  }
  return static_cast<std::size_t>(found - names.begin());
}

void GraphNetwork::refuse_static_batch(const Program& program) const {
  for (const auto& input : program.inputs) {
    if (input.kind != Input::Kind::user || input.sizes.empty() || !input.sizes[0]) continue;
    archive_.refuse(c10::str("its input '", input.name, "' takes batches of ", *input.sizes[0],
                             " samples alone; export it with dynamic_shapes, as in torch.export.export(model, (x,), "
                             "dynamic_shapes=({0: torch.export.Dim.AUTO},))"));
  }
}

void GraphNetwork::check_inputs(const BoundProgram& bound, const std::vector<torch::Tensor>& inputs) {
  if (inputs.size() != bound.user_inputs) {
    vernier::refuse(c10::str("the model takes ", bound.user_inputs, " tensors, and ", inputs.size(), " are given"));
  }
  std::size_t next = 0;
  for (const auto& input : bound.program.inputs) {
    if (input.kind != Input::Kind::user) continue;
    const auto& given = inputs[next++];
    bool fits = given.dim() == static_cast<std::int64_t>(input.sizes.size());
    for (std::size_t i = 0; fits && i < input.sizes.size(); ++i)
      fits = !input.sizes[i] || *input.sizes[i] == given.size(static_cast<std::int64_t>(i));
    // A precision policy may give floating-point numbers of another dtype.
    fits =
        fits && (given.scalar_type() == input.dtype || (given.is_floating_point() && at::isFloatingType(input.dtype)));
    if (fits) continue;
    vernier::refuse("the model's input '" + input.name + "' is " + exported::name_of(input.dtype) + " " +
                    shown(input.sizes) + ", and " + exported::shapes_of({given}) + " is given");
  }
}

std::string GraphNetwork::unmet(const std::vector<torch::Tensor>& inputs) const {
  const auto& program = (evaluation_ && !is_training() ? *evaluation_ : training_).program;
  const auto number_of = [&](const std::string& name, std::int64_t dimension) -> IValue {
    const torch::Tensor* alike = nullptr;
    std::size_t next = 0;
    for (const auto& input : program.inputs) {
      if (input.kind != Input::Kind::user) continue;
      const auto& given = inputs.at(next++);
      if (name == input.name + ".size") return given.size(dimension);
      if (spelt_alike(name, input.name + ".size")) alike = &given;
    }
    if (alike == nullptr) vernier::refuse("there is no input " + name);
    return alike->size(dimension);
  };
  for (const auto& guard : program.guards) {
    try {
      if (value_of(guard, number_of).toBool()) continue;
    } catch (const std::exception&) {  // such as a division by 0
    }
    return vernier::printable(guard);
  }
  return "";
}

torch::Tensor GraphNetwork::forward(const std::vector<torch::Tensor>& inputs) {
  auto& bound = evaluation_ && !is_training() ? *evaluation_ : training_;
  check_inputs(bound, inputs);
  std::vector<std::int64_t> sizes;
  for (const auto& input : inputs) sizes.insert(sizes.end(), input.sizes().begin(), input.sizes().end());
  if (sizes != bound.fitting) {
    if (const auto guard = unmet(inputs); !guard.empty()) {
      vernier::refuse("the model was exported for inputs of which " + guard + ", and " + exported::shapes_of(inputs) +
                      " is given; give it other batches, or export it with an example of this size");
    }
    bound.fitting = std::move(sizes);
  }
  const auto& program = bound.program;
  const auto& given = bound.given;
  std::vector<IValue> slots(static_cast<std::size_t>(program.graph.slots));
  std::size_t next = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    slots[static_cast<std::size_t>(program.inputs[i].slot)] = given[i].defined() ? given[i] : inputs[next++];
  }
  const Mode mode{is_training(), given.empty() || !inputs.empty() ? inputs.at(0).device() : given[0].device()};
  try {
    auto output = run(program.graph, std::move(slots), mode).at(bound.output);
    if (output.isTensor()) return output.toTensor();
    vernier::refuse("forward() of the model returns " + output.tagKind() + " as " + program.outputs[bound.output] +
                    "; it must return a tensor");
  } catch (const vernier::Error& error) {
    throw vernier::Error(std::string(error.what()) + ", for " + exported::shapes_of(inputs), error.kind());
  }
}

std::map<std::string, torch::Tensor> GraphNetwork::state_dict() const {
  std::map<std::string, torch::Tensor> state;
  for (const auto& input : training_.program.inputs) {
    const bool is_part = input.kind == Input::Kind::parameter || input.kind == Input::Kind::buffer;
    if (is_part && input.is_persistent) state.emplace(input.name, tensors_.at(input.name));
  }
  return state;
}

std::string GraphNetwork::bytes() const {
  auto bytes = archive_.with(tensors_);
  Archive written(at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte), archive_.path());
  auto read = written.tensors(weights_folder);
  read.merge(written.tensors(constants_folder));
  for (const auto& [name, tensor] : read) {
    const auto current = tensors_.at(name).detach().to(at::kCPU);
    const auto dtype = tensor.scalar_type();
    if (dtype != current.scalar_type() && !tensor.isfinite().equal(current.isfinite())) {
      vernier::refuse("'" + name + "' has numbers that are too large for " + exported::name_of(dtype) +
                      ", its dtype in the file; take --format safetensors");
    }
    if (!tensor.detach().allclose(current.to(dtype), 0, 0, /*equal_nan=*/true)) {
      throw vernier::Error("the file would have other numbers for '" + name + "' than the run");
    }
  }
  return bytes;
}

std::vector<torch::Tensor> GraphNetwork::as_declared(std::vector<torch::Tensor> inputs) const {
  std::size_t next = 0;
  for (const auto& input : training_.program.inputs) {
    if (input.kind != Input::Kind::user || next == inputs.size()) continue;
    auto& given = inputs[next++];
    if (given.is_floating_point() && at::isFloatingType(input.dtype)) given = given.to(input.dtype);
  }
  return inputs;
}

void GraphNetwork::refuse_taken_apart(const vernier::Run& run) const {
  const auto is_updated_elsewhere = [&](const torch::Tensor& tensor) {
    return std::ranges::any_of(run.parameters,
                               [&](const auto& each) { return each.model.is_same(tensor) && !each.owned; });
  };
  for (const auto& [one, other] : shared_) {
    const auto &first = tensors_.at(one), &second = tensors_.at(other);
    const bool has_writes = training_.program.has_writes || (evaluation_ && evaluation_->program.has_writes);
    if (!has_writes && !first.requires_grad() && !second.requires_grad()) continue;  // nothing changes them
    if (first.is_alias_of(second) && !is_updated_elsewhere(first) && !is_updated_elsewhere(second)) continue;
    vernier::refuse("'" + one + "' and '" + other +
                    "' are parts of one tensor, which 16-bit weights, a GPU and sharded updates take apart; train with "
                    "precision.level = \"O1\" in one process on the CPU, or compute one from the other in forward()");
  }
}

}  // namespace graph
