#include "wiring.h"

#include <vernier/inner_plugin.h>

#include <algorithm>
#include <sstream>

#include "common/config/config.h"
#include "common/config/duration.h"
#include "common/config/references.h"
#include "core/process_state.h"
#include "core/synonyms.h"
#include "files/json.h"

namespace vernier {

namespace {

// The roles, each with the plugin that fills it by default. Task and optimizer have none: they are the user's choice.
const std::vector<std::pair<std::string, std::string>>& roles_and_defaults() {
  static const std::vector<std::pair<std::string, std::string>> roles = {{Task::role, ""},
                                                                         {Precision::role, Precision::standard},
                                                                         {Scaler::role, Scaler::standard},
                                                                         {Accumulation::role, Accumulation::standard},
                                                                         {Optimizer::role, ""},
                                                                         {Checkpoint::role, Checkpoint::standard},
                                                                         {Distributed::role, Distributed::standard}};
  return roles;
}

void refuse_unknown_tables(const Table& config) {
  std::vector<std::string> known = {"run", Callback::role, Monitor::role};
  for (const auto& [role, name] : roles_and_defaults()) known.push_back(role);
  for (const auto& [key, value] : config) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto* table = std::get_if<Table>(&value.data);
    const auto option = table != nullptr ? "" : common_key(key);  // `lr = 0.1` above all tables, or --set lr=0.1
    const auto given = table == nullptr             ? value_text(value)
                       : table->contains("enabled") ? value_text(table->at("enabled"))
                                                    : "true";
    const bool is_known = table != nullptr && !synonym(key, known).empty();
    const auto near = nearest(key, known), other = is_known ? "" : done_by(key, given);
    refuse(value.where + ": `" + shortened(key) + "` is not a table of a run" +
           (!other.empty()    ? "; " + other
            : !option.empty() ? "; did you mean `" + option + "`?"
            : near.empty()    ? ""
                              : "; did you mean [" + near + "]?"));
  }
}

// The tables of a role that may have several plugins.
Array tables_of(const Table& config, const std::string& role) {
  const auto found = config.find(role);
  if (found == config.end()) return {};
  const auto* entries = std::get_if<Array>(&found->second.data);
  if (entries == nullptr)
    refuse(found->second.where + ": there may be several of these: write [[" + role + "]], not [" + role + "]");
  return *entries;
}

template <class Role>
std::unique_ptr<Role> put_into(Wiring& wiring, Made made) {
  std::unique_ptr<Role> plugin(static_cast<Role*>(made.plugin.release()));
  wiring.origins.insert_or_assign(plugin.get(), Origin{std::move(made.options), std::move(made.table)});
  return plugin;
}

template <class Role>
std::unique_ptr<Role> make_one(Wiring& wiring, const Table& config, std::vector<Given>& given) {
  const auto is_of_role = [](const Given& each) { return each.role == Role::role; };
  const auto object = std::ranges::find_if(given, is_of_role);
  if (object == given.end()) {
    return put_into<Role>(wiring, make(wiring.host, Role::role, table_of(config, Role::role)));
  }
  const std::string role = Role::role;
  if (const auto table = config.find(role); table != config.end()) {
    refuse(table->second.where + ": [" + role + "] is given, and the program uses " + object->made.plugin->id() +
           ", an object of its own; leave one of them out");
  }
  if (std::ranges::count_if(given, is_of_role) > 1) {
    refuse("the program uses two objects as " + role + ", and there is one " + role + "; leave one of them out");
  }
  return put_into<Role>(wiring, std::move(object->made));
}

// Returns true if neither a table nor an object of the program names the role's plugin, so another plugin may fill it.
bool is_left_out(const std::string& role, const Table& config, const std::vector<Given>& given) {
  return !config.contains(role) && std::ranges::none_of(given, [&](const Given& each) { return each.role == role; });
}

// Asks each plugin whether it fills this role too (Plugin::fill). Its part is treated like an object of the program.
void ask_for_parts(const std::string& role, Wiring& wiring, std::vector<Given>& given) {
  for (auto* whole : wiring.plugins()) {
    if (whole == nullptr) continue;
    auto part = whole->fill(role);
    if (part == nullptr) continue;
    wiring.parts[part.get()] = whole;
    const auto name = whole->id().substr(whole->id().find('/') + 1);
    HostApi::set_id(*part, role + "/" + name);
    HostApi::set_version(*part, whole->version());
    given.push_back({role, {{std::move(part), Options(role + "/" + name, {}, "")}, Value{Table{}, ""}}});
  }
}

template <class Role>
std::vector<std::unique_ptr<Role>> make_many(Wiring& wiring, const Table& config, std::vector<Given>& given) {
  std::vector<std::unique_ptr<Role>> made;
  for (const auto& table : tables_of(config, Role::role)) {
    made.push_back(put_into<Role>(wiring, make(wiring.host, Role::role, table)));
  }
  for (auto& each : given) {
    if (each.role == Role::role) made.push_back(put_into<Role>(wiring, std::move(each.made)));
  }
  return made;
}

// Two of a kind are told apart by a number: "callback/schedule", "callback/schedule#2".
void number_the_namesakes(const std::vector<Plugin*>& plugins) {
  std::map<std::string, int> seen;
  for (auto* plugin : plugins) {
    if (const int n = ++seen[plugin->id()]; n > 1) HostApi::set_id(*plugin, plugin->id() + "#" + std::to_string(n));
  }
}

OrderedJson options_read(const Options& options, Keys keys) {
  OrderedJson read = OrderedJson::object();
  for (const auto& option : HostApi::declared(options)) {
    if (keys == Keys::compared && option.is_resumable) continue;
    const auto text = value_text(option.value);
    const auto parsed = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
    read[option.key] = parsed.is_discarded() ? OrderedJson(text) : parsed;
  }
  return read;
}

std::chrono::seconds time_in(Options& options, const char* key, const char* meaning) {
  const auto text = options.get(key, "", meaning);
  if (text.empty()) return {};
  const auto time = duration_in(text);
  if (!time) options.refuse(key, "is \"" + shortened(text) + "\", and must be a time such as \"2h30m\" or \"90m\"");
  return *time;
}

// Returns steps, or one of the words.
std::int64_t validate_every_in(Options& options) {
  constexpr const char *key = "validate_every", *word = "epoch";
  constexpr const char* meaning =
      "\"epoch\", or steps between validations; 0, as where the task holds nothing out: only after the last";
  auto tried = options;
  try {
    tried.get(key, word, meaning);
  } catch (const Error&) {  // it is not a word
    return options.get(key, 0, meaning, at_least(0));
  }
  options.choose(key, word, {word}, meaning);
  return each_epoch;
}

// Takes `sha256` out of a plugin's table: the digest that its file must have, or "".
std::string taken_pin(Table& table) {
  auto entry = table.extract("sha256");
  if (entry.empty()) return "";
  const auto* text = std::get_if<std::string>(&entry.mapped().data);
  std::string pin = text != nullptr ? *text : "";
  const bool is_digest = pin.size() == 64 && pin.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!is_digest) refuse(entry.mapped().where + ": `sha256` must be the 64 digits that `sha256sum FILE` prints");
  std::ranges::transform(pin, pin.begin(), [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
  return pin;
}

// `use` names the plugin, `sha256` may pin its file, the rest are its options.
Made make_single(const Host& host, const std::string& role, const Value& value) {
  const auto* table = std::get_if<Table>(&value.data);
  const std::string brackets = role == Callback::role || role == Monitor::role ? "[[" + role + "]]" : "[" + role + "]";
  if (table == nullptr) refuse(value.where + ": write " + brackets + " and below it use = \"…\"");
  const auto use = table->find("use");
  if (use == table->end())
    refuse(value.where + ": " + brackets + " needs use = \"…\"; `vernier plugins` lists what there is");
  const auto* name = std::get_if<std::string>(&use->second.data);
  if (name == nullptr) refuse(use->second.where + ": `use` must be a string, the name of a " + role);
  Table rest = *table;
  rest.erase("use");
  const auto pin = taken_pin(rest);
  Made made{{nullptr, Options(role + "/" + *name, std::move(rest), value.where)}, value};
  set_plugin_maker([host](const std::string& of, const Value& inner) { return make(host, of, inner).plugin; });
  try {
    made.plugin = host.make(role, *name, made.options, pin);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::plugin || use->second.where.empty()) throw;
    std::throw_with_nested(Error(use->second.where + ": " + error.what(), error.kind()));
  }
  return made;
}

}  // namespace

Value table_of(const Table& config, const std::string& role) {
  const auto found = config.find(role);
  Value value = found != config.end() ? found->second : Value{Table{}, ""};
  for (const auto& [known, fallback] : roles_and_defaults()) {
    if (known != role || fallback.empty()) continue;
    // A table with options but no name is the default plugin's.
    if (auto* table = std::get_if<Table>(&value.data)) table->try_emplace("use", Value{fallback, ""});
    return value;
  }
  if (found != config.end()) return value;
  refuse("the configuration has no [" + role + "]; add one with use = \"…\"; `vernier plugins` lists what there is");
}

RunOptions::RunOptions(Options& options, const std::string& default_name)
    : name(options.get("name", default_name, "name of the run")),
      output(options.get("output", "runs/{name}", "folder for what the run writes; {name} is the run's")),
      device(options.get("device", "auto", "auto (cuda where there is one), cpu, cuda, cuda:1")),
      resume(options.choose("resume", "never", {"never", "auto"},
                            "auto: resume the run in `output` if there is one, else start")),
      init_from(
          options.get("init_from", "", "safetensors file, checkpoint or run that a new run takes its weights from")),
      memory_limit(options.get("memory_limit", "",
                               "most that tensors may take: \"6GB\", \"80%\" of the device; \"\": no limit")),
      matmul(
          options.choose("matmul", "auto", {"auto", "plain", "intel"},
                         "MKL's path for products on a CPU; auto: intel on AMD with AVX-512; plain: MKL's own choice")),
      matmul_precision(options.choose("matmul_precision", "highest", {"highest", "high", "medium"},
                                      "of float32 products, as PyTorch's set_float32_matmul_precision")),
      engine(options.choose("engine", "operators", {"operators", "compiled", "graph"},
                            "of forward and backward; compiled: a C++ program of a small network, if it is faster; "
                            "graph: a CUDA graph")),
      init_rename(options.get("init_rename", std::vector<std::string>{},
                              "\"old -> new\" names of init_from, * for any text; no new name: left out")),
      fused(
          options.get("fused", true, "Vernier's faster kernels for some operators on a CPU, and for updates on a GPU")),
      deterministic(options.get("deterministic", false,
                                "as PyTorch's use_deterministic_algorithms: an operator that may differ is an error")),
      init_strict(options.get("init_strict", true, "refuse init_from where names are missing or not in the model")),
      requeue(options.get("requeue", false, "Slurm: put the job back into the queue when a signal stops the run")),
      undo_failed_steps(
          options.get("undo_failed_steps", true,
                      "a step that fails before its update is undone, and the run is saved; costs microseconds")),
      measure_savings(options.get("measure_savings", false,
                                  "before the first step, measure how much less memory one takes than in float32")),
      steps(options.get("steps", 0, "updates to train; 0: as many as `epochs` are", at_least(0))),
      epochs(options.get("epochs", 0, "passes over the data; 0: as many as `steps` are", at_least(0))),
      threads(options.get("threads", 0, "threads of the CPU kernels; 0: all cores", between(0, 1024))),
      validate_every(validate_every_in(options)),
      seed(static_cast<std::uint64_t>(options.get("seed", 1, "of weights, data order and dropout", at_least(0)))),
      time_limit(time_in(options, "time_limit",
                         "ends this process after the step in work then, with a checkpoint: \"2h30m\"; \"\": never")) {
  HostApi::refuse_unread(options);
  if (steps == 0 && epochs == 0) options.refuse("steps", "or `epochs` must say how long to train");
  if (steps != 0 && epochs != 0)
    options.refuse("epochs", "and `steps` both say how long to train; set one of them to 0");
  if (requeue && resume != "auto") options.refuse("requeue", "needs resume = \"auto\", or the job would start anew");
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    options.refuse("name", "must be a file name, and is \"" + shortened(name) + "\"");
  }
  if (output.empty()) options.refuse("output", "must name a folder, and is \"\"; leave it out for runs/" + name);
  if (printable(name) != name) {
    options.refuse("name", "must be UTF-8 without control characters, because it stands in checkpoints, and is \"" +
                               shortened(name) + "\"; give one, or rename the file");
  }
}

Options described_run(const std::string& default_name) {
  Options options("run", {}, "");
  try {
    RunOptions(options, default_name);
  } catch (const Error&) {  // no length of training is given here
  }
  return options;
}

Made make(const Host& host, const std::string& role, const Value& value) {
  if (role != Optimizer::role) return make_single(host, role, value);
  return {make_optimizer(value, [&](const Value& one) { return MadePlugin(make_single(host, role, one)); }), value};
}

Given given(const std::string& role, std::unique_ptr<Plugin> plugin, const Options& options) {
  if (plugin == nullptr) refuse("the program uses an object as " + role + " that is null; make it first");
  auto id = plugin->id();
  if (id.empty()) id = options.owner().empty() ? "object" : options.owner();
  if (!id.starts_with(role + "/")) id = role + "/" + id;
  if (printable(id) != id || id.find(' ') != std::string::npos) {
    refuse("the " + role + " that the program uses is called \"" + shortened(id) +
           "\"; an id is UTF-8 without spaces, as \"" + role + "/rings\"");
  }
  HostApi::refuse_unread(options);
  HostApi::set_id(*plugin, id);
  return {role, {{std::move(plugin), options.owner().empty() ? Options(id, {}, "") : options}, Value{Table{}, ""}}};
}

std::unique_ptr<Wiring> wire(const Table& config, const Host& host, std::vector<Given> given) {
  refuse_unknown_tables(config);
  auto wiring = std::make_unique<Wiring>();
  wiring->host = host;
  // Plugins that are named are made first, because they may fill other roles.
  for (const bool asks : {false, true}) {
    const auto fill = [&]<class Role>(std::unique_ptr<Role>& place) {
      if (place != nullptr || (!asks && is_left_out(Role::role, config, given))) return;
      if (asks) ask_for_parts(Role::role, *wiring, given);
      place = make_one<Role>(*wiring, config, given);
    };
    fill(wiring->task);
    fill(wiring->precision);
    fill(wiring->scaler);
    fill(wiring->accumulation);
    fill(wiring->optimizer);
    fill(wiring->checkpoint);
    fill(wiring->distributed);
  }
  ask_for_parts(Callback::role, *wiring, given);
  wiring->callbacks = make_many<Callback>(*wiring, config, given);
  if (wiring->distributed->rank() == 0) wiring->monitors = make_many<Monitor>(*wiring, config, given);
  const auto plugins = wiring->plugins();
  number_the_namesakes(plugins);
  const auto monitors_from = plugins.size() - wiring->monitors.size();
  for (std::size_t i = 0; i < plugins.size(); ++i) HostApi::attach(wiring->bus, *plugins[i], i >= monitors_from);
  wiring->refuse_contradictions();
  return wiring;
}

const std::vector<std::string>& swappable_roles() {
  static const std::vector<std::string> roles = {Precision::role, Scaler::role, Accumulation::role, Optimizer::role,
                                                 Checkpoint::role};
  return roles;
}

Wiring::~Wiring() {
  bus = {};
  const auto destroy = [](auto& plugin) {
    if (plugin == nullptr) return;
    const PluginCall call(plugin->id(), "in its destructor");
    plugin.reset();
  };
  for (auto& monitor : monitors) destroy(monitor);
  for (auto& callback : callbacks) destroy(callback);
  const auto destroy_all = [&](auto&... of_roles) { (destroy(of_roles), ...); };
  destroy_all(distributed, checkpoint, optimizer, accumulation, scaler, precision, task);
}

void Wiring::swap_in(const std::string& role, Made& made) {
  const auto swap = [&]<class Role>(std::unique_ptr<Role>& place) {
    if (role != Role::role) return;
    auto next = put_into<Role>(*this, std::move(made));  // the plugin of that role, by name
    place.swap(next);
    Origin before = origin_of(*next);
    origins.erase(next.get());
    made = {{std::move(next), std::move(before.options)}, std::move(before.table)};
  };
  swap(precision);
  swap(scaler);
  swap(accumulation);
  swap(optimizer);
  swap(checkpoint);
}

void Wiring::refuse_contradictions() const {
  const auto all = plugins();
  for (const auto* plugin : all) {
    const PluginCall call(plugin->id(), "in contradicts");
    const auto of_other = [&](const Plugin& other) {
      try {
        return plugin->contradicts(other, bus);
      } catch (...) {
        rethrow_naming(plugin->id(), " in contradicts", Error::Kind::plugin);
      }
    };
    for (const auto* other : all) {
      if (other == plugin) continue;
      const auto [option, reason] = of_other(*other);
      if (!option.empty()) origin_of(*plugin).options.refuse(option.c_str(), reason);
    }
  }
}

std::vector<Plugin*> Wiring::plugins() const {
  std::vector<Plugin*> all = {task.get(),      precision.get(),  scaler.get(),     accumulation.get(),
                              optimizer.get(), checkpoint.get(), distributed.get()};
  for (const auto& callback : callbacks) all.push_back(callback.get());
  for (const auto& monitor : monitors) all.push_back(monitor.get());
  return all;
}

const Origin& Wiring::origin_of(const Plugin& plugin) const {
  static const Origin none{{"", {}, ""}, {Table{}, ""}};
  const auto found = origins.find(&plugin);
  return found != origins.end() ? found->second : none;
}

std::string Wiring::table() const {
  constexpr std::size_t most = 400;  // bytes of an option
  std::ostringstream text;
  for (const auto* plugin : plugins()) {
    const auto slash = plugin->id().find('/');
    std::string role = plugin->id().substr(0, slash);
    std::string name = plugin->id().substr(slash + 1);
    role.resize(std::max<std::size_t>(role.size(), 14), ' ');
    name.resize(std::max<std::size_t>(name.size(), 12), ' ');
    text << "  " << role << name;
    for (const auto& option : HostApi::declared(origin_of(*plugin).options)) {
      const auto value = value_text(option.value);
      if (value != option.fallback_text()) text << ' ' << option.key << '=' << shortened(value, most);
    }
    text << '\n';
  }
  for (const auto& [step, role, from, to] : swaps) {
    text << "  " << from << " became " << to << " after step " << step << '\n';
  }
  return text.str();
}

std::string resolved_configuration(const Options& run_table, const Wiring& wiring, Keys keys) {
  OrderedJson all = {{"run", options_read(run_table, keys)}};
  for (const auto* plugin : wiring.plugins()) {
    const auto& id = plugin->id();
    const auto role = id.substr(0, id.find('/'));
    const auto& options = wiring.origin_of(*plugin).options;
    const auto& owner = options.owner();  // the owner's name in the TOML, or its path
    OrderedJson table = {{"use", owner.substr(owner.find('/') + 1)}};
    table.update(options_read(options, keys));
    if (role == Callback::role || role == Monitor::role) {
      all[role].push_back(std::move(table));
    } else {
      all[role] = std::move(table);
    }
  }
  return json_text(all);
}

namespace {

// Defaults of [run], which references may name too.
Table defaults_of_run(const std::string& name) {
  const auto options = described_run(name);
  Table run;
  for (const auto& option : HostApi::declared(options)) {
    run[option.key] = {option.fallback.data, "the default of run." + option.key};
  }
  return escaped({{"run", {std::move(run), ""}}});
}

}  // namespace

Table load_config(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                  const std::string& text) {
  const auto name = files.empty() ? "run" : std::filesystem::path(files.front()).stem().string();
  return expanded(merge_config(files, sets, text), defaults_of_run(name));
}

Table with_sets(Table config, const std::vector<std::string>& sets) {
  return expanded(merge_sets(escaped(std::move(config)), sets), defaults_of_run("run"));
}

}  // namespace vernier
