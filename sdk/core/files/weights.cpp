#include "weights.h"

#include <torch/nn/module.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/plugin.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <boost/algorithm/string/trim.hpp>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "files/checkpoint_manifest.h"
#include "files/json.h"

namespace vernier {

namespace {

std::pair<std::string, std::string> parts_of(const std::string& rule) {
  const auto arrow = rule.find("->");
  const auto right = arrow == std::string::npos ? "" : boost::trim_copy(rule.substr(arrow + 2));
  const auto left = boost::trim_copy(rule.substr(0, arrow));
  const auto stars = [](const std::string& text) { return std::count(text.begin(), text.end(), '*'); };
  const bool fits = stars(left) <= 1 && (right.empty() || stars(left) == stars(right));
  if (arrow == std::string::npos || left.empty() || !fits) {
    refuse("init_rename = \"" + shortened(rule) + "\": write \"old -> new\", with one * on each side or none");
  }
  return {left, right};
}

// Returns the text for which the * of a pattern stands in a name; nothing if the name does not fit.
std::optional<std::string> star_of(const std::string& pattern, const std::string& name) {
  const auto star = pattern.find('*');
  if (star == std::string::npos) return name == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (name.size() < before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) {
    return std::nullopt;
  }
  return name.substr(before.size(), name.size() - before.size() - after.size());
}

Json record_in(const State& own) {
  const auto text = own.has("model") ? own.text("model") : "";
  auto record = json_in<Json>(text);
  return record.is_object() ? record : Json::object();
}

std::string text_in(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// The way to a model without what only the run's own plugins can put into it.
std::string by_export(const std::string& run) {
  return "write the model of this run first, `vernier export " + run +
         " --format safetensors --output model.safetensors`, and set init_from = \"model.safetensors\"";
}

// path: the file or checkpoint that is read, with what was taken of it in words.
Tensors read(const InitOptions& options, std::string& path) {
  try {
    const auto checkpoints = checkpoints_at(options.from);
    std::error_code none;
    if (checkpoints.empty() && std::filesystem::is_directory(options.from, none)) {
      refuse(options.from + ": is neither a checkpoint nor the folder of a run with one");
    }
    const auto folder = std::filesystem::path(options.from).parent_path().string();
    const auto name = std::filesystem::path(options.from).filename().string();
    const bool may_be_part =
        name.starts_with("model-") || name.ends_with(".index.json") || !std::filesystem::exists(options.from, none);
    if (checkpoints.empty() && may_be_part && is_checkpoint(folder) &&
        !read_manifest(folder).files.contains(checkpoint_model_file)) {
      refuse(options.from + ": is not a file with the whole model; set init_from = \"" + folder + "\"");
    }
    path = checkpoints.empty() ? options.from : checkpoints.front();
    const auto [all, average, adapter] =
        checkpoints.empty() ? ModelOfRun{load_safetensors(path), "", ""} : model_of_run(path);
    if (!adapter.empty() && options.rename.empty()) {
      refuse(path + ": the fine-tuning is in the adapter of " + adapter + "; " + by_export(options.from));
    }
    if (!average.empty()) path += ", the average of " + average;
    Tensors tensors;
    for (const auto& [name, tensor] : all) {
      const auto to = renamed(name, options.rename);
      if (to.empty()) continue;
      if (!tensors.emplace(to, tensor).second) refuse("two tensors are to be '" + to + "'; '" + name + "' is one");
    }
    return tensors;
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::configuration) throw;
    refuse(error.what());
  }
}

bool has_state(const StoredCheckpoint& stored, const std::string& entry) {
  const auto state = stored.manifest.files.find("state.safetensors");
  return state != stored.manifest.files.end() && state->second.tensors.contains(entry);
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 8;
  if (names.size() <= shown) return c10::Join(", ", names);
  return c10::str(c10::Join(", ", std::span(names).first(shown)), " and ", names.size() - shown, " more");
}

// A tied weight, which has several names, needs to be there under one of them.
std::vector<std::string> missing_in(const Tensors& tensors, const Tensors& live) {
  std::set<const c10::TensorImpl*> given;
  for (const auto& [name, tensor] : live) {
    if (tensors.count(name) != 0) given.insert(tensor.unsafeGetTensorImpl());
  }
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : live) {
    if (given.count(tensor.unsafeGetTensorImpl()) == 0) missing.push_back(name);
  }
  return missing;
}

}  // namespace

Tensors model_tensors(const torch::nn::Module& model) {
  Tensors tensors;
  for (const auto& entry : model.named_parameters()) tensors[entry.key()] = entry.value();
  for (const auto& entry : model.named_buffers()) tensors[entry.key()] = entry.value();
  return tensors;
}

std::string recorded(const State& own, const std::string& key) {
  return text_in(record_in(own), key);
}

ModelOfRun model_of_run(const std::string& checkpoint) {
  auto stored = read_checkpoint_model(checkpoint);
  const bool has_record = has_state(stored, "trainer/model");
  return model_of_run(checkpoint, has_record ? read_checkpoint(checkpoint) : std::move(stored));
}

ModelOfRun model_of_run(const std::string& checkpoint, StoredCheckpoint stored) {
  if (has_state(stored, "run/model_parts")) {
    refuse(checkpoint + ": has a part of the model for each of several ranks; put them together in Python, as " +
           "docs/guides/distributed.md shows");
  }
  const auto record = record_in(stored.state.part("trainer"));
  ModelOfRun model{std::move(stored.model.tensors), text_in(record, "average"), text_in(record, "adapter")};
  if (model.average.empty()) return model;
  const auto weights = record.find("weights");
  if (weights == record.end() || !weights->is_object()) {
    refuse(checkpoint + ": " + model.average + " keeps the average of the weights in a form of its own; " +
           by_export(checkpoint));
  }
  for (auto& [name, tensor] : model.tensors) {
    if (const auto entry = text_in(*weights, name); !entry.empty()) tensor = stored.state.tensor(entry);
  }
  return model;
}

std::vector<std::string> checkpoints_at(const std::string& path) {
  if (is_checkpoint(path)) return {path};
  const auto inside = std::filesystem::path(path) / "checkpoints";
  std::error_code none;
  return checkpoints_in(std::filesystem::is_directory(inside, none) ? inside.string() : path);
}

std::string renamed(const std::string& name, const std::vector<std::string>& rules) {
  for (const auto& rule : rules) {
    const auto [from, to] = parts_of(rule);
    const auto star = star_of(from, name);
    if (!star) continue;
    const auto place = to.find('*');
    return place == std::string::npos ? to : to.substr(0, place) + *star + to.substr(place + 1);
  }
  return name;
}

void init_weights(torch::nn::Module& model, const InitOptions& options) {
  if (options.from.empty()) {
    if (!options.rename.empty()) refuse("init_rename needs a file to rename the tensors of");
    return;
  }
  std::string path;
  const Tensors tensors = read(options, path);
  Tensors live = model_tensors(model);
  std::vector<std::string> unexpected;
  std::int64_t converted = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto found = live.find(name);
    if (found == live.end()) {
      unexpected.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      refuse(c10::str(path, ": '", name, "' is ", tensor.sizes(), ", and ", found->second.sizes(), " in the model"));
    } else if (found->second.scalar_type() != tensor.scalar_type()) {
      converted += 1;
    }
  }
  const auto missing = missing_in(tensors, live);
  const auto taken = tensors.size() - unexpected.size();
  std::string report = c10::str(path, ": ", taken, " of ", live.size(), " tensors of the model");
  if (converted > 0) report += c10::str("; of another dtype: ", converted);
  if (!missing.empty()) report += "; missing: " + list_of(missing);
  if (!unexpected.empty()) report += "; not in the model: " + list_of(unexpected);
  const bool is_all = missing.empty() && unexpected.empty();
  if (taken == 0 || (!is_all && options.strict)) {
    refuse(report + "; rename with init_rename" + (taken > 0 ? ", or take what fits with init_strict = false" : ""));
  }
  log(is_all ? Level::info : Level::warning, "init_from", report);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    if (const auto found = live.find(name); found != live.end()) found->second.copy_(tensor);
  }
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const auto bytes = [](const torch::Tensor& x) { return x.detach().contiguous().reshape({-1}).view(torch::kUInt8); };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && (a.numel() == 0 || bytes(a).equal(bytes(b)));
}

}  // namespace vernier
