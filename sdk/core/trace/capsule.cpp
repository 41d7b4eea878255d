#include <vernier/capsule.h>
#include <vernier/checkpoint_split.h>

#include <fcntl.h>
#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "files/file.h"
#include "files/json.h"

namespace vernier {

namespace {

constexpr const char* report_file = "report.json";

Json json_of(const TensorRange& range) {
  return {{"elements", range.elements},
          {"amax", json_number(range.amax)},
          {"rms", json_number(range.rms)},
          {"zeros", range.zeros},
          {"infs", range.infs},
          {"nans", range.nans},
          {"negative_infs", range.negative_infs},
          {"dtype", c10::toString(range.dtype)}};
}

Json json_of(const std::vector<std::pair<std::string, TensorRange>>& ranges) {
  Json all = Json::array();
  for (const auto& [name, range] : ranges) {
    Json one = json_of(range);
    one["name"] = name;
    all.push_back(std::move(one));
  }
  return all;
}

TensorRange range_from(const Json& json) {
  const auto real = [](const Json& value) { return value.is_number() ? value.get<double>() : HUGE_VAL; };
  TensorRange range;
  range.elements = json.at("elements").get<std::int64_t>();
  range.amax = real(json.at("amax"));
  range.rms = real(json.at("rms"));
  range.zeros = json.at("zeros").get<std::int64_t>();
  range.infs = json.at("infs").get<std::int64_t>();
  range.nans = json.at("nans").get<std::int64_t>();
  range.negative_infs = json.at("negative_infs").get<std::int64_t>();
  const auto dtype = json.at("dtype").get<std::string>();
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    if (dtype == c10::toString(static_cast<c10::ScalarType>(i))) range.dtype = static_cast<c10::ScalarType>(i);
  }
  return range;
}

std::vector<std::pair<std::string, TensorRange>> ranges_from(const Json& json) {
  std::vector<std::pair<std::string, TensorRange>> all;
  for (const auto& one : json) all.emplace_back(one.at("name").get<std::string>(), range_from(one));
  return all;
}

Json json_of(const NonFiniteOrigin& origin) {
  return {{"phase", origin.phase},
          {"layer", origin.layer},
          {"after_layer", origin.is_after},
          {"operation", origin.operation},
          {"tensor", origin.tensor},
          {"micro_batch", origin.micro_batch},
          {"step", origin.step},
          {"inputs", json_of(origin.inputs)},
          {"outputs", json_of(origin.outputs)},
          {"text", origin.text()}};
}

NonFiniteOrigin origin_from(const Json& json) {
  NonFiniteOrigin origin;
  origin.phase = json.at("phase").get<std::string>();
  origin.layer = json.at("layer").get<std::string>();
  origin.is_after = json.at("after_layer").get<bool>();
  origin.operation = json.at("operation").get<std::string>();
  origin.tensor = json.at("tensor").get<std::string>();
  origin.micro_batch = json.at("micro_batch").get<int>();
  origin.step = json.at("step").get<std::int64_t>();
  origin.inputs = ranges_from(json.at("inputs"));
  origin.outputs = ranges_from(json.at("outputs"));
  return origin;
}

Json json_of(const std::deque<StepSample>& ring) {
  Json all = Json::array();
  for (const auto& sample : ring) {
    Json layers = Json::array();
    for (const auto& [layer, kind, range] : sample.layers) {
      Json one = json_of(range);
      one["layer"] = layer;
      one["of"] = kind;
      layers.push_back(std::move(one));
    }
    all.push_back({{"step", sample.step}, {"layers", std::move(layers)}});
  }
  return all;
}

Json json_of(const Fingerprint& fingerprint) {
  Json json = {{"loss", fingerprint.loss}, {"gradients", fingerprint.gradients}};
  if (!fingerprint.weights.empty()) json["weights"] = fingerprint.weights;
  return json;
}

Fingerprint fingerprint_from(const Json& json) {
  using Digests = std::map<std::string, std::string>;
  return {json.at("loss").get<std::string>(), json.at("gradients").get<Digests>(), json.value("weights", Digests())};
}

// "h.0.ln_1.weight and 3 more": whose digests are not the same, or are there only once.
std::string differing(const std::map<std::string, std::string>& first,
                      const std::map<std::string, std::string>& second) {
  std::vector<std::string> names;
  for (const auto& [name, digest] : first) {
    const auto found = second.find(name);
    if (found == second.end() || found->second != digest) names.push_back(name);
  }
  for (const auto& [name, digest] : second) {
    if (first.count(name) == 0) names.push_back(name);
  }
  if (names.empty()) return "";
  return names.front() + (names.size() > 1 ? c10::str(" and ", names.size() - 1, " more") : "");
}

std::string digest_of(const torch::Tensor& tensor) {
  const auto dense = tensor.is_sparse() ? tensor.detach().to_dense() : tensor.detach();
  const auto bytes = dense.to(torch::kCPU).contiguous();
  Checksum checksum;
  const std::string head = c10::str(bytes.scalar_type(), bytes.sizes());
  checksum.add(head.data(), head.size());
  checksum.add(bytes.const_data_ptr(), bytes.nbytes());
  return checksum.digits();
}

}  // namespace

Fingerprint fingerprint(const Run& run) {
  Fingerprint all;
  if (run.loss.defined()) {
    const auto value = run.loss.item<float>();
    char text[48];
    const auto number = std::isnan(value) ? std::abs(value) : value;  // its sign is among the bits
    std::snprintf(text, sizeof text, "%.9g (0x%08x)", static_cast<double>(number), std::bit_cast<std::uint32_t>(value));
    all.loss = text;
  }
  for (const auto& parameter : run.parameters) {
    if (const auto& gradient = parameter.master.grad(); gradient.defined()) {
      all.gradients[parameter.name] = digest_of(gradient);
    }
  }
  return all;
}

std::vector<std::pair<std::string, torch::Tensor>> weights_of(const Run& run) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& parameter : run.parameters) {
    all.emplace_back(parameter.name, parameter.best());
    if (!parameter.best().is_same(parameter.model)) all.emplace_back(parameter.name, parameter.model);
  }
  return all;
}

std::map<std::string, std::string> digests_of_weights(const Run& run) {
  std::map<std::string, std::string> all;
  for (const auto& [name, tensor] : weights_of(run)) {
    auto& digests = all[name];
    digests += (digests.empty() ? "" : " ") + digest_of(tensor);
  }
  return all;
}

std::string Fingerprint::difference(const Fingerprint& other) const {
  std::string text = loss == other.loss ? "" : "the loss (" + loss + " and " + other.loss + ")";
  const auto add = [&text](const char* what, const std::string& names) {
    if (!names.empty()) text += (text.empty() ? "" : ", ") + (what + names);
  };
  add("the gradients of ", differing(gradients, other.gradients));
  add("the weights of ", differing(weights, other.weights));
  return text;
}

std::string Capsule::report() const {
  Json json = {{"step", step},
               {"what", what},
               {"cause", cause},
               {"transient", is_transient},
               {"samples", samples},
               {"seen", json_of(seen)},
               {"repeated", json_of(repeated)},
               {"origin", origin ? json_of(*origin) : Json(nullptr)},
               {"batch",
                {{"samples", batch.samples},
                 {"tokens", batch.tokens},
                 {"tensors", batch.tensors.size()},
                 {"indices", batch.indices}}},
               {"ring", json_of(ring)}};
  for (const char* key : {"run/libtorch", "run/processor", "run/device", "run/versions"}) {
    if (state.has(key)) json["machine"][key + 4] = state.text(key);
  }
  if (state.has("run/threads")) json["machine"]["threads"] = state.integer("run/threads");
  return json_text(json, 1) + "\n";
}

void write_capsule(const std::string& path, const Capsule& capsule, const std::string& run) {
  auto split = split_snapshot(capsule.state);
  split.manifest.step = std::max<std::int64_t>(capsule.step - 1, 0);  // finished updates
  split.manifest.run = run;
  State extra;
  const auto report = capsule.report();
  extra.put("capsule/samples", capsule.batch.samples);
  extra.put("capsule/tokens", capsule.batch.tokens);
  extra.put("capsule/indices", torch::tensor(capsule.batch.indices, torch::kInt64));
  for (std::size_t i = 0; i < capsule.batch.tensors.size(); ++i) {
    extra.put(c10::str("capsule/batch/", i), capsule.batch.tensors[i]);
  }
  extra.put(capsule_report_key, report);
  split.state.tensors.merge(extra.tensors);
  const auto folder = std::filesystem::path(path).parent_path().string();
  refuse_a_shared_folder(folder);  // before anything in it is touched
  remove_unfinished_checkpoints(folder);
  write_checkpoint(path, split.manifest, split.model, split.state);
  try {
    File file(path + "/" + report_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    file.write(report.data(), report.size());
    file.finish();
    sync_folder(path);
  } catch (...) {
    std::error_code ignored;  // the first error is reported
    remove_all(path, ignored);
    throw;
  }
}

Capsule read_capsule(const std::string& path) {
  if (!is_checkpoint(path)) {
    refuse(path + ": is not a capsule: it has no manifest.json; name a folder below a run's capsules/");
  }
  auto state = join_snapshot(read_checkpoint(path));
  if (!state.has(capsule_report_key)) {
    refuse(path + ": is a checkpoint, not a capsule: there is no batch in it; resume from it with --resume=" + path);
  }
  Capsule capsule;
  try {
    const auto parsed = parse_json(path, capsule_report_key, state.text(capsule_report_key), 16);
    const Json& report = parsed.value;
    capsule.step = report.at("step").get<std::int64_t>();
    capsule.what = report.at("what").get<std::string>();
    capsule.cause = report.at("cause").get<std::string>();
    capsule.is_transient = report.at("transient").get<bool>();
    capsule.samples = report.value("samples", "");
    capsule.seen = fingerprint_from(report.at("seen"));
    capsule.repeated = fingerprint_from(report.at("repeated"));
    if (const auto& origin = report.at("origin"); !origin.is_null()) capsule.origin = origin_from(origin);
  } catch (const Json::exception& error) {
    throw Error(path + ": its report cannot be read: " + message(error));
  }
  capsule.batch.samples = state.integer("capsule/samples");
  capsule.batch.tokens = state.integer("capsule/tokens");
  if (state.has("capsule/indices")) {
    const auto indices = state.tensor("capsule/indices");
    const auto* first = indices.const_data_ptr<std::int64_t>();
    capsule.batch.indices.assign(first, first + indices.numel());
  }
  for (std::size_t i = 0; state.has(c10::str("capsule/batch/", i)); ++i) {
    capsule.batch.tensors.push_back(state.tensor(c10::str("capsule/batch/", i)));
  }
  std::erase_if(state.tensors, [](const auto& entry) { return entry.first.starts_with("capsule/"); });
  capsule.state = std::move(state);
  return capsule;
}

std::string text_of(const std::deque<StepSample>& ring) {
  return json_text(json_of(ring));
}

std::deque<StepSample> ring_from(const std::string& text) {
  std::deque<StepSample> ring;
  for (const auto& sample : Json::parse(text)) {
    StepSample one{sample.at("step").get<std::int64_t>(), {}};
    for (const auto& layer : sample.at("layers")) {
      one.layers.push_back(
          {layer.at("layer").get<std::string>(), layer.at("of").get<std::string>(), range_from(layer)});
    }
    ring.push_back(std::move(one));
  }
  return ring;
}

std::string text_of(const NonFiniteOrigin& origin) {
  return json_text(json_of(origin));
}

NonFiniteOrigin origin_from(const std::string& text) {
  return origin_from(Json::parse(text));
}

}  // namespace vernier
