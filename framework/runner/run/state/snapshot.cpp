#include "snapshot.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <vernier/checksum.h>
#include <vernier/copy.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/fused_kernels.h>
#include <vernier/json_in.h>
#include <vernier/matmul.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

#include "core/process_state.h"
#include "files/json.h"
#include "files/safetensors_file.h"
#include "files/shards.h"
#include "gpu/gpu_choice.h"
#include "wiring/host.h"

namespace vernier {

namespace {

// A run may be resumed with other monitors and checkpoints, and by other ranks, which sum in another order.
bool is_part_of_the_numbers(const std::string& id) {
  return !id.starts_with("monitor/") && !id.starts_with("checkpoint/") && !id.starts_with("distributed/");
}

std::string lines_of(const std::vector<Plugin*>& plugins) {
  std::string lines;
  for (const auto* plugin : plugins)
    lines += plugin->id() + ' ' + (plugin->version().empty() ? "?" : plugin->version()) + '\n';
  return lines;
}

// "callback/ema 1f0c…" for each plugin from a library.
std::string builds_of(const std::vector<Plugin*>& plugins) {
  std::string lines;
  for (const auto* plugin : plugins) {
    const auto build = is_part_of_the_numbers(plugin->id()) ? build_of(plugin->id()) : "";
    if (!build.empty()) lines += plugin->id() + ' ' + build + '\n';
  }
  return lines;
}

// Warns of plugins that were built anew: they may compute other numbers under the same version.
void warn_of_rebuilt(const State& snapshot, const std::vector<Plugin*>& plugins) {
  if (!snapshot.has("run/builds")) return;
  const auto before = "\n" + snapshot.text("run/builds");
  std::vector<std::string> rebuilt;
  for (const auto* plugin : plugins) {
    const auto build = build_of(plugin->id());
    const bool was_there = before.find('\n' + plugin->id() + ' ') != std::string::npos;
    const bool is_same = before.find('\n' + plugin->id() + ' ' + build + '\n') != std::string::npos;
    if (was_there && !build.empty() && !is_same) rebuilt.push_back(plugin->id());
  }
  if (rebuilt.empty()) return;
  log(Level::warning, "resume",
      "built anew since the checkpoint, under the same version: " + some_of(rebuilt) +
          "; the run is the one it was only if they compute the same numbers");
}

std::string ids_of(const std::vector<Plugin*>& plugins) {
  std::string ids;
  for (const auto* plugin : plugins) ids += (ids.empty() ? "" : " ") + plugin->id();
  return ids;
}

// The counters of a run and their entries. `last_update` and `amp` are written apart.
constexpr std::pair<const char*, std::int64_t Counters::*> counters[] = {
    {"run/step", &Counters::step},     {"run/updates", &Counters::updates},
    {"run/epoch", &Counters::epoch},   {"run/samples", &Counters::samples},
    {"run/tokens", &Counters::tokens}, {"run/batches_drawn", &Counters::batches_drawn}};

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
    if (found == saved.end() && draft::is_elsewhere(tensor)) continue;  // its rank has read it
    if (found == saved.end()) refuse("the checkpoint has no tensor '" + name + "'" + of_another);
    if (found->second.sizes() != tensor.sizes()) {
      refuse("'" + name + "' is " + shape_of(found->second) + " in the checkpoint and " + shape_of(tensor) +
             " in this model" + of_another);
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (live.count(name) == 0) refuse("the checkpoint's '" + name + "' is not in this model" + of_another);
  }
}

// The differences that make resuming inexact, each as "threads was 1 and is 2".
struct Differences : std::vector<std::string> {
  void compare(const std::string& what, const std::string& before, const std::string& now) {
    if (before != now) push_back(what + " was " + before + " and is " + now);
  }
};

void compare_dtypes(const Tensors& saved, const Tensors& live, Differences& differences) {
  std::string first;
  std::int64_t more = -1;
  for (const auto& [name, tensor] : live) {
    const auto found = saved.find(name);
    if (found == saved.end() || found->second.scalar_type() == tensor.scalar_type()) continue;
    const auto before = found->second.scalar_type();
    if (++more == 0) first = c10::str("'", name, "' was ", before, " and is ", tensor.scalar_type());
  }
  if (more >= 0) differences.push_back(first + (more > 0 ? c10::str(" (and ", more, " more)") : ""));
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

void compare_plugins(const std::vector<std::string>& before, const std::vector<std::string>& now,
                     Differences& differences) {
  std::vector<std::string> saved, live;
  std::ranges::copy_if(before, std::back_inserter(saved), is_part_of_the_numbers);
  std::ranges::copy_if(now, std::back_inserter(live), is_part_of_the_numbers);
  const auto add_missing = [&](const auto& from, const auto& in, const char* what) {
    for (const auto& id : from) {
      if (std::ranges::find(in, id) == in.end()) differences.push_back(id + what);
    }
  };
  add_missing(saved, live, " is not in this run");
  add_missing(live, saved, " is new in this run");
  const bool has_same = std::ranges::is_permutation(saved, live);
  if (has_same && saved != live) differences.emplace_back("the callbacks are in another order");
}

void compare_versions(const std::string& before, const std::string& now, Differences& differences) {
  std::map<std::string, std::string> versions;
  const auto saved = words_of(before), live = words_of(now);
  for (std::size_t i = 0; i + 1 < saved.size(); i += 2) versions[saved[i]] = saved[i + 1];
  for (std::size_t i = 0; i + 1 < live.size(); i += 2) {
    const auto found = versions.find(live[i]);
    if (found == versions.end() || !is_part_of_the_numbers(live[i])) continue;
    differences.compare("the version of " + live[i], found->second, live[i + 1]);
  }
}

void compare_options(const std::string& table, const Json& before, const Json& now, Differences& differences) {
  const bool is_other = before.value("use", Json()) != now.value("use", Json());
  if (is_other && table != Distributed::role) return;  // already reported
  for (const auto& [key, value] : now.items()) {
    if (key == "use" || (is_other && !before.contains(key))) continue;
    differences.compare(table + "." + key, before.contains(key) ? json_text(before[key]) : "not there",
                        json_text(value));
  }
}

// The length of a run, its folder and who looks at it may change. So may the ranks, but not what they send.
void compare_configurations(const Json& before, const Json& now, Differences& differences) {
  const auto seed_of = [](const Json& all) {
    return json_text(all.value("run", Json::object()).value("seed", Json()));
  };
  differences.compare("run.seed", seed_of(before), seed_of(now));
  for (const auto& [role, table] : now.items()) {
    const bool is_compared = is_part_of_the_numbers(role + "/") || role == Distributed::role;
    if (role == "run" || !is_compared || !before.contains(role)) continue;
    const auto& other = before[role];
    if (table.is_object() && other.is_object()) compare_options(role, other, table, differences);
    for (std::size_t i = 0; table.is_array() && other.is_array() && i < std::min(table.size(), other.size()); ++i) {
      compare_options(role + "." + table[i].value("use", ""), other[i], table[i], differences);
    }
  }
}

std::string device_of(const Run& run) {
  return c10::DeviceTypeName(run.device.type(), true);
}

// The options of [run] about LibTorch's kernels, as they were carried out.
std::string kernels(const Run& run) {
  const auto precision = at::globalContext().float32MatmulPrecision();
  const char* name = precision == at::Float32MatmulPrecision::HIGHEST ? "highest"
                     : precision == at::Float32MatmulPrecision::HIGH  ? "high"
                                                                      : "medium";
  return c10::str("matmul = ", matmul_path(), ", matmul_precision = ", name,
                  ", fused = ", fused_kernels() ? "true" : "false",
                  multiplies_in_float32(torch::kFloat16) ? ", products of float16 in float32" : "",
                  multiplies_in_float32(torch::kBFloat16) ? ", products of bfloat16 in float32" : "",
                  run.device.is_cpu()            ? ""
                  : uses_gpu_library(run.device) ? ", updates by Vernier's CUDA kernels"
                                                 : ", updates by LibTorch's operators");
}

Differences differences(const State& snapshot, const Run& run, const std::vector<Plugin*>& plugins,
                        const std::string& configuration) {
  Differences found;
  compare_plugins(words_of(snapshot.text("run/plugins")), words_of(ids_of(plugins)), found);
  compare_versions(snapshot.text("run/versions"), lines_of(plugins), found);
  if (snapshot.has("run/configuration") && !configuration.empty()) {
    const auto saved = json_in<Json>(snapshot.text("run/configuration"));
    if (saved.is_object() && !saved.empty()) compare_configurations(saved, Json::parse(configuration), found);
  }
  found.compare("device", snapshot.text("run/device"), device_of(run));
  found.compare("threads", std::to_string(snapshot.integer("run/threads")), std::to_string(at::get_num_threads()));
  found.compare("LibTorch", snapshot.text("run/libtorch"), TORCH_VERSION);
  found.compare("processor", snapshot.text("run/processor"), at::get_cpu_capability());
  found.compare("[run]", snapshot.text("run/kernels"), kernels(run));
  return found;
}

// Takes the model's tensors out of a snapshot. Throws Error if they are not of this model.
Tensors take_model(State& snapshot, const Tensors& live) {
  const std::string prefix = "model/";
  Tensors taken;
  std::erase_if(snapshot.tensors, [&](auto& entry) {
    auto& [name, tensor] = entry;
    if (!name.starts_with(prefix)) return false;
    taken[name.substr(prefix.size())] = std::move(tensor);
    return true;
  });
  refuse_another_model(taken, live);
  return taken;
}

// Calls a plugin. Returns false if it failed, and was reported and left out, as a monitor always may be.
template <class Body>
bool named(const Plugin& plugin, const std::string& doing, const Body& body, bool may_be_left_out = false) {
  const bool is_monitor = plugin.id().starts_with("monitor/");
  try {
    const PluginCall call(plugin.id(), doing);
    body();
    return true;
  } catch (...) {
    if (!may_be_left_out && !is_monitor) rethrow_naming(plugin.id(), " " + doing, Error::Kind::training);
    log(Level::warning, plugin.id() + " " + doing,
        caught().message + (is_monitor ? " (the run goes on)" : " (the checkpoint is without its state)"));
    return false;
  }
}

const Plugin& task_in(const std::vector<Plugin*>& plugins) {
  const auto is_task = [](const Plugin* plugin) { return plugin->id().starts_with(std::string(Task::role) + "/"); };
  return **std::ranges::find_if(plugins, is_task);
}

// Warns of a task that saved nothing. One whose batches follow from run.step needs no state.
void warn_of_a_task_without_state(const State& snapshot, const Plugin& task) {
  if (!snapshot.part("plugin/" + task.id()).tensors.empty()) return;
  log(Level::warning, task.id(),
      "it has saved no state: unless its batches follow from run.step, its data begin anew, and the resumed run "
      "differs from one that was never stopped; save() must return all that next() depends on");
}

// Puts a part into a snapshot. Throws Error if a checkpoint cannot keep it.
void put(State& snapshot, const std::string& prefix, const State& part) {
  for (const auto& [name, tensor] : part.tensors) {
    const auto why = printable(name) == name ? why_not_saved(tensor) : "its name is not printable UTF-8";
    if (!why.empty()) throw Error("'" + shortened(name) + "': " + why);
  }
  snapshot.put(prefix, part);
}

}  // namespace

State take_snapshot(const TrainerRun& run, std::vector<Plugin*> plugins, const std::string& configuration,
                    Unsavable unsavable) {
  State state;
  if (!configuration.empty()) state.put("run/configuration", configuration);
  auto model = model_tensors(*run.model);
  std::erase_if(model, [](const auto& entry) { return draft::is_elsewhere(entry.second); });  // in that rank's snapshot
  for (auto& [name, tensor] : model) tensor = tensor.defined() ? tensor.detach() : tensor;
  named(task_in(plugins), "while its model was saved", [&] { put(state, "model", model); });
  std::erase_if(plugins, [&](const auto* plugin) {
    const auto save = [&] { put(state, "plugin/" + plugin->id(), plugin->save()); };
    return !named(*plugin, "while it was saved", save, unsavable == Unsavable::left_out);
  });
  state.put("run/plugins", ids_of(plugins));
  state.put("run/versions", lines_of(plugins));
  if (const auto builds = builds_of(plugins); !builds.empty()) state.put("run/builds", builds);
  state.put("run/libtorch", std::string(TORCH_VERSION));
  state.put("run/processor", at::get_cpu_capability());
  state.put("run/kernels", kernels(run));
  for (const auto& [name, counter] : counters) state.put(name, run.*counter);
  state.put("run/last_update", static_cast<std::int64_t>(run.last_update));
  state.put("run/device", device_of(run));
  state.put("run/threads", static_cast<std::int64_t>(at::get_num_threads()));
  state.put("random/cpu", generator(torch::kCPU).get_state().clone());
  if (!run.device.is_cpu()) state.put("random/device", generator(run.device).get_state().clone());
  return state;
}

std::string inexact_by(const State& snapshot, const Run& run, const std::vector<Plugin*>& plugins,
                       const std::string& configuration) {
  auto found = differences(snapshot, run, plugins, configuration);
  const auto saved = snapshot.part("model").tensors;
  const auto live = model_tensors(*run.model);
  refuse_another_model(saved, live);
  compare_dtypes(saved, live, found);
  return c10::Join("; ", found);
}

void restore_snapshot(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins,
                      const std::string& configuration, bool allow_inexact) {
  const auto& task = task_in(plugins);
  const auto inexact = [&] {
    try {
      return inexact_by(snapshot, run, plugins, configuration);
    } catch (const Error&) {  // changed data may be why the model is another: the task says so first
      for (auto* plugin : plugins) {
        if (plugin == &task)
          named(task, "while it was resumed", [&] { plugin->load(snapshot.part("plugin/" + task.id())); });
      }
      throw;
    }
  };
  if (const auto found = inexact(); !found.empty()) {
    const std::string text = "the run cannot be resumed bit for bit: " + found;
    if (!allow_inexact) refuse(text + "; make them the same, or give --allow-inexact to resume all the same");
    log(Level::warning, "resume", text + "; it is resumed all the same");
  }
  warn_of_rebuilt(snapshot, plugins);
  warn_of_a_task_without_state(snapshot, task);
  // The task alone knows whether its data are the same.
  if (allow_inexact) snapshot.put("plugin/" + task.id() + "/allow_inexact", std::int64_t{1});
  restore_snapshot_quietly(std::move(snapshot), run, plugins);
}

void restore_snapshot_quietly(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins) {
  auto live = model_tensors(*run.model);
  std::erase_if(live, [&](const auto& entry) {
    const bool is_of_another_rank = draft::is_elsewhere(entry.second);
    if (is_of_another_rank) snapshot.tensors.erase("model/" + entry.first);
    return is_of_another_rank;
  });
  auto saved = take_model(snapshot, live);
  Counters counted;
  for (const auto& [name, counter] : counters) counted.*counter = snapshot.integer(name);
  counted.last_update = static_cast<UpdateResult>(snapshot.integer("run/last_update"));
  const auto random = snapshot.tensor("random/cpu");
  const auto ids = words_of(snapshot.text("run/plugins"));

  const torch::NoGradGuard no_grad;
  move_into(live, std::move(saved));
  for (auto* plugin : plugins) {
    const auto saved_by_it = snapshot.part("plugin/" + plugin->id());
    const bool is_known = std::ranges::find(ids, plugin->id()) != ids.end();
    if (is_known || !saved_by_it.tensors.empty()) {
      named(*plugin, "while it was resumed", [&] { plugin->load(saved_by_it); });
    }
  }
  counted.amp = run.amp;  // AmpStats has entries of its own
  static_cast<Counters&>(run) = counted;
  generator(torch::kCPU).set_state(random);
  if (!run.device.is_cpu() && snapshot.has("random/device")) {
    generator(run.device).set_state(snapshot.tensor("random/device"));
  }
}

void restore_weights(State snapshot, TrainerRun& run, const std::vector<Plugin*>& plugins) {
  const auto live = model_tensors(*run.model);
  auto saved = take_model(snapshot, live);
  const torch::NoGradGuard no_grad;
  move_into(live, std::move(saved));
  const auto average = recorded(snapshot.part("trainer"), "average");
  for (auto* plugin : plugins) {
    const auto& id = plugin->id();
    const bool is_kept = id == average || std::ranges::any_of(std::array{Precision::role, Callback::role},
                                                              [&](const auto* role) { return id.starts_with(role); });
    if (!is_kept) continue;
    const auto own = snapshot.part("plugin/" + id);
    if (!own.tensors.empty()) named(*plugin, "while it was loaded", [&] { plugin->load(own); });
  }
  run.step = snapshot.integer("run/step");
  run.updates = snapshot.integer("run/updates");
}

std::string digest(const Tensors& tensors) {
  Checksum checksum;
  for (const auto& [name, tensor] : tensors) {
    const std::string head = name + '\0' + shape_of(tensor) + '\0';
    checksum.add(head.data(), head.size());
    const auto bytes = here(tensor).detach().to(torch::kCPU).contiguous();
    checksum.add(bytes.const_data_ptr(), bytes.nbytes());
  }
  return checksum.digits();
}

std::string digest(const torch::nn::Module& model) {
  return digest(model_tensors(model));
}

std::string digest(const Batch& batch) {
  Tensors tensors;
  for (const auto& tensor : batch.tensors) tensors[std::to_string(tensors.size())] = tensor;
  return digest(tensors);
}

}  // namespace vernier
