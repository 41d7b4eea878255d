#include "wiring.h"

#include <vernier/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace vernier {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(text, Error::Kind::configuration);
}

// What fills a role whose table is not given. Nothing here for task and optimizer: those are the user's choice.
const std::vector<std::pair<std::string, std::string>>& roles_and_defaults() {
  static const std::vector<std::pair<std::string, std::string>> roles = {
      {Task::role, ""},      {Precision::role, "fp32"},     {Scaler::role, "none"},     {Accumulation::role, "fixed"},
      {Optimizer::role, ""}, {Checkpoint::role, "rolling"}, {Distributed::role, "none"}};
  return roles;
}

void refuse_unknown_tables(const Table& config) {
  std::vector<std::string> known = {"run", Callback::role, Monitor::role};
  for (const auto& [role, name] : roles_and_defaults()) known.push_back(role);
  for (const auto& [key, value] : config) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto near = nearest(key, known);
    refuse(value.where + ": `" + key + "` is no table of a run" +
           (near.empty() ? "" : "; did you mean [" + near + "]?"));
  }
}

// Makes one plugin from its table: `use` names it, the rest are its options.
template <class Role>
std::unique_ptr<Role> make(const Host& host, const Value& value, Wiring& wiring) {
  const std::string role = Role::role;
  const auto* table = std::get_if<Table>(&value.data);
  const std::string brackets =
      std::is_same_v<Role, Callback> || std::is_same_v<Role, Monitor> ? "[[" + role + "]]" : "[" + role + "]";
  if (table == nullptr) refuse(value.where + ": write " + brackets + " and below it use = \"…\"");
  const auto use = table->find("use");
  if (use == table->end())
    refuse(value.where + ": " + brackets + " needs use = \"…\"; `vernier plugins` lists what there is");
  const auto* name = std::get_if<std::string>(&use->second.data);
  if (name == nullptr) refuse(use->second.where + ": `use` must be a string, the name of a " + role);
  Table rest = *table;
  rest.erase("use");
  wiring.places.push_back(value.where);
  Options& options = wiring.options.emplace_back(role + "/" + *name, std::move(rest), value.where);
  try {
    return host.make<Role>(*name, options);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::plugin || use->second.where.empty()) throw;
    std::throw_with_nested(Error(use->second.where + ": " + error.what(), error.kind()));
  }
}

template <class Role>
std::unique_ptr<Role> make_one(const Table& config, const Host& host, Wiring& wiring) {
  const std::string role = Role::role;
  const auto found = config.find(role);
  Value value = found != config.end() ? found->second : Value{Table{}, ""};
  for (const auto& [known, fallback] : roles_and_defaults()) {
    if (known != role || fallback.empty()) continue;
    // The default serves too where its options are given and its name is not.
    if (auto* table = std::get_if<Table>(&value.data)) table->try_emplace("use", Value{fallback, ""});
    return make<Role>(host, value, wiring);
  }
  if (found != config.end()) return make<Role>(host, value, wiring);
  refuse("the configuration has no [" + role + "]; add one with use = \"…\"; `vernier plugins` lists what there is");
}

template <class Role>
std::vector<std::unique_ptr<Role>> make_many(const Table& config, const Host& host, Wiring& wiring) {
  std::vector<std::unique_ptr<Role>> made;
  const std::string role = Role::role;
  const auto found = config.find(role);
  if (found == config.end()) return made;
  const auto* entries = std::get_if<Array>(&found->second.data);
  if (entries == nullptr)
    refuse(found->second.where + ": there may be several of these: write [[" + role + "]], not [" + role + "]");
  for (const auto& entry : *entries) made.push_back(make<Role>(host, entry, wiring));
  return made;
}

// Two of a kind are told apart by a number: "callback/schedule", "callback/schedule#2".
void number_the_namesakes(const std::vector<Plugin*>& plugins) {
  std::map<std::string, int> seen;
  for (auto* plugin : plugins) {
    if (const int n = ++seen[plugin->id()]; n > 1) plugin->set_id(plugin->id() + "#" + std::to_string(n));
  }
}

void refuse_contradictions(const Wiring& wiring) {
  if (wiring.precision->needs_scaler() && !wiring.scaler->scales()) {
    const auto& precision = wiring.options[1];  // second in the order of plugins()
    precision.refuse("use", "needs a loss scaler, or small gradients vanish, and the scaler is " + wiring.scaler->id() +
                                "; add [scaler] use = \"dynamic\"");
  }
}

bool is_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return true;
}

}  // namespace

RunOptions::RunOptions(Options& options, const std::string& default_name)
    : name(options.get("name", default_name, "name of the run")),
      output(options.get("output", "runs/{name}", "folder for what the run writes; {name} is the run's")),
      device(options.get("device", "auto", "auto (cuda where there is one), cpu, cuda, cuda:1")),
      resume(options.choose("resume", "never", {"never", "auto"},
                            "auto: go on with the run in `output` where there is one, else start")),
      init_from(options.get("init_from", "", "safetensors file or checkpoint that a new run takes its weights from")),
      init_rename(options.get("init_rename", std::vector<std::string>{},
                              "\"old -> new\" names of init_from, * for any text; no new name: left out")),
      init_strict(options.get("init_strict", true, "refuse init_from where names are missing or not in the model")),
      requeue(options.get("requeue", false, "Slurm: put the job back into the queue when a signal stops the run")),
      steps(options.get("steps", 0, "updates to train; 0: as many as `epochs` are", at_least(0))),
      epochs(options.get("epochs", 0, "passes over the data; 0: as many as `steps` are", at_least(0))),
      threads(options.get("threads", 0, "threads of the CPU kernels; 0: all cores", between(0, 1024))),
      validate_every(
          options.get("validate_every", 0, "steps between validations; 0: only after the last", at_least(0))),
      seed(static_cast<std::uint64_t>(options.get("seed", 1, "of weights, data order and dropout", at_least(0)))) {
  options.refuse_unread();
  if (steps == 0 && epochs == 0) options.refuse("steps", "or `epochs` must say how long to train");
  if (steps != 0 && epochs != 0) options.refuse("epochs", "and `steps` both say how long to train; give one");
  if (requeue && resume != "auto") options.refuse("requeue", "needs resume = \"auto\", or the job would start anew");
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    options.refuse("name", "must be a file name, and is \"" + name + "\"");
  }
  if (!is_utf8(name))
    options.refuse("name", "must be UTF-8, for it stands in checkpoints; give one, or rename the file");
}

std::unique_ptr<Wiring> wire(const Table& config, const Host& host) {
  refuse_unknown_tables(config);
  auto wiring = std::make_unique<Wiring>();
  wiring->options.reserve(64);
  wiring->task = make_one<Task>(config, host, *wiring);
  wiring->precision = make_one<Precision>(config, host, *wiring);
  wiring->scaler = make_one<Scaler>(config, host, *wiring);
  wiring->accumulation = make_one<Accumulation>(config, host, *wiring);
  wiring->optimizer = make_one<Optimizer>(config, host, *wiring);
  wiring->checkpoint = make_one<Checkpoint>(config, host, *wiring);
  wiring->distributed = make_one<Distributed>(config, host, *wiring);
  wiring->callbacks = make_many<Callback>(config, host, *wiring);
  wiring->monitors = make_many<Monitor>(config, host, *wiring);
  refuse_contradictions(*wiring);
  const auto plugins = wiring->plugins();
  number_the_namesakes(plugins);
  const auto monitors_from = plugins.size() - wiring->monitors.size();
  for (std::size_t i = 0; i < plugins.size(); ++i) wiring->bus.attach(*plugins[i], i >= monitors_from);
  return wiring;
}

std::vector<Plugin*> Wiring::plugins() const {
  std::vector<Plugin*> all = {task.get(),      precision.get(),  scaler.get(),     accumulation.get(),
                              optimizer.get(), checkpoint.get(), distributed.get()};
  for (const auto& callback : callbacks) all.push_back(callback.get());
  for (const auto& monitor : monitors) all.push_back(monitor.get());
  return all;
}

std::string Wiring::place_of(const Plugin& plugin) const {
  const auto all = plugins();
  const auto index = static_cast<std::size_t>(std::find(all.begin(), all.end(), &plugin) - all.begin());
  return index < places.size() ? places[index] : "";
}

std::string Wiring::table() const {
  std::ostringstream text;
  const auto all = plugins();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto slash = all[i]->id().find('/');
    std::string role = all[i]->id().substr(0, slash);
    std::string name = all[i]->id().substr(slash + 1);
    role.resize(std::max<std::size_t>(role.size(), 14), ' ');
    name.resize(std::max<std::size_t>(name.size(), 12), ' ');
    text << "  " << role << name;
    for (const auto& option : options[i].declared()) {
      if (option.value != option.fallback) text << ' ' << option.key << '=' << option.value;
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace vernier
