#include "snapshot.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <xxhash.h>

#include <sstream>

namespace vernier {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(text, Error::Kind::configuration);
}

Tensors model_tensors(const torch::nn::Module& model) {
  Tensors tensors;
  for (const auto& entry : model.named_parameters()) tensors[entry.key()] = entry.value();
  for (const auto& entry : model.named_buffers()) tensors[entry.key()] = entry.value();
  return tensors;
}

// Monitors only look, so a run may be resumed with others; everything else is part of the numbers.
std::string ids_of(const std::vector<Plugin*>& plugins) {
  std::string ids;
  for (const auto* plugin : plugins) {
    if (!plugin->id().starts_with("monitor/")) ids += (ids.empty() ? "" : " ") + plugin->id();
  }
  return ids;
}

at::Generator generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

std::string shape_of(const torch::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes());
}

void refuse_another_model(const Tensors& saved, const Tensors& live) {
  const std::string of_another = ": it is a checkpoint of another model; resume with the configuration that wrote it";
  for (const auto& [name, tensor] : live) {
    const auto found = saved.find(name);
    if (found == saved.end()) refuse("the checkpoint has no tensor '" + name + "'" + of_another);
    if (shape_of(found->second) != shape_of(tensor)) {
      refuse("'" + name + "' is " + shape_of(found->second) + " in the checkpoint and " + shape_of(tensor) +
             " in this model" + of_another);
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (live.count(name) == 0) refuse("the checkpoint's '" + name + "' is not in this model" + of_another);
  }
}

void refuse_other_plugins(const std::string& saved, const std::string& live) {
  if (saved == live) return;
  refuse("the checkpoint was written with " + saved + "; this run has " + live +
         "; resume with the same plugins, or start a new run");
}

// A monitor only looks, so one that cannot save or load is reported, and the run goes on.
template <class Body>
void named(const Plugin& plugin, const char* doing, const Body& body) {
  try {
    body();
  } catch (...) {
    if (!plugin.id().starts_with("monitor/")) rethrow_naming(plugin.id(), doing, Error::Kind::training);
    log(Level::warning, plugin.id() + doing, caught().message + " (the run goes on)");
  }
}

}  // namespace

State take_snapshot(const Run& run, const std::vector<Plugin*>& plugins) {
  State state;
  for (const auto& [name, tensor] : model_tensors(*run.model)) state.put("model/" + name, tensor.detach());
  for (const auto* plugin : plugins) {
    named(*plugin, " while it was saved", [&] { state.put("plugin/" + plugin->id(), plugin->save()); });
  }
  state.put("run/plugins", ids_of(plugins));
  state.put("run/step", run.step);
  state.put("run/updates", run.updates);
  state.put("run/epoch", run.epoch);
  state.put("run/samples", run.samples);
  state.put("run/tokens", run.tokens);
  state.put("run/device", std::string(c10::DeviceTypeName(run.device.type(), true)));
  state.put("run/threads", static_cast<std::int64_t>(at::get_num_threads()));
  state.put("random/cpu", generator(torch::kCPU).get_state().clone());
  if (!run.device.is_cpu()) state.put("random/device", generator(run.device).get_state().clone());
  return state;
}

void restore_snapshot(const State& snapshot, Run& run, const std::vector<Plugin*>& plugins) {
  const auto saved = snapshot.part("model").tensors;
  auto live = model_tensors(*run.model);
  refuse_another_model(saved, live);
  refuse_other_plugins(snapshot.text("run/plugins"), ids_of(plugins));
  const std::string device = c10::DeviceTypeName(run.device.type(), true);
  if (snapshot.text("run/device") != device || snapshot.integer("run/threads") != at::get_num_threads()) {
    log(Level::warning, "resume",
        c10::str("the checkpoint was written on ", snapshot.text("run/device"), " with ",
                 snapshot.integer("run/threads"), " threads, this is ", device, " with ", at::get_num_threads(),
                 ": sums are taken in another order, the run goes on but not bit for bit"));
  }
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : live) tensor.copy_(saved.at(name));
  for (auto* plugin : plugins) {
    const auto saved_by_it = snapshot.part("plugin/" + plugin->id());
    const bool is_new = saved_by_it.tensors.empty() && plugin->id().starts_with("monitor/");
    if (!is_new) named(*plugin, " while it was resumed", [&] { plugin->load(saved_by_it); });
  }
  run.step = snapshot.integer("run/step");
  run.updates = snapshot.integer("run/updates");
  run.epoch = snapshot.integer("run/epoch");
  run.samples = snapshot.integer("run/samples");
  run.tokens = snapshot.integer("run/tokens");
  generator(torch::kCPU).set_state(snapshot.tensor("random/cpu"));
  if (!run.device.is_cpu() && snapshot.has("random/device")) {
    generator(run.device).set_state(snapshot.tensor("random/device"));
  }
}

std::string digest(const torch::nn::Module& model) {
  XXH3_state_t* hash = XXH3_createState();
  XXH3_128bits_reset(hash);
  for (const auto& [name, tensor] : model_tensors(model)) {
    const std::string head = name + '\0' + shape_of(tensor) + '\0';
    XXH3_128bits_update(hash, head.data(), head.size());
    const auto bytes = tensor.detach().to(torch::kCPU).contiguous();
    XXH3_128bits_update(hash, bytes.const_data_ptr(), bytes.nbytes());
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
  XXH3_freeState(hash);
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    constexpr char digits[] = "0123456789abcdef";
    text += {digits[byte >> 4], digits[byte & 15]};
  }
  return text;
}

}  // namespace vernier
