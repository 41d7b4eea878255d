// [[optimizer.group]]: which options hold for a parameter, and what frozen means in a run.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/plugin.h>
#include <vernier/roles.h>

#include <algorithm>
#include <map>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace groups_test {

using vernier::Optimizer;
using vernier::Run;

namespace {

const std::vector<std::string> all_plugins = {"adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw",
                                              "asgd",     "lamb",      "lbfgs",   "lion", "muon",   "nadam",
                                              "radam",    "rmsprop",   "rprop",   "sgd"};

std::unique_ptr<Optimizer> plugin_of(const std::string& toml) {
  auto table = std::get<vernier::Table>(from_toml({"[optimizer]\n" + toml}).at("optimizer").data);
  const auto use = std::get<std::string>(table.at("use").data);
  table.erase("use");
  return make_plugin<Optimizer>("optimizer/" + use, std::move(table));
}

std::unique_ptr<vernier::TrainerRun> run_of_four() {
  auto run = std::make_unique<vernier::TrainerRun>();
  for (const char* name : {"h.0.attn.weight", "h.0.attn.bias", "h.0.ln_1.weight", "head.weight"}) {
    const auto tensor = torch::ones({2, 3}).requires_grad_();
    run->parameters.push_back({name, tensor, tensor});
  }
  return run;
}

// The learning rates: the change of the weights by one step of plain SGD with gradients of 1.
std::vector<double> rates(const std::string& groups, double factor) {
  const auto made_run = run_of_four();
  auto& run = *made_run;
  const auto plugin = plugin_of("use = 'sgd'\nlearning_rate = 0.5\n" + groups);
  plugin->prepare(run);
  run.learning_rate_factor = factor;
  for (auto& parameter : run.parameters) {
    if (parameter.model.requires_grad()) parameter.master.mutable_grad() = torch::ones({2, 3});
  }
  plugin->step(run);
  CHECK(run.metrics.value("learning_rate").value() == 0.5 * factor);
  std::vector<double> all;
  for (const auto& parameter : run.parameters) all.push_back(1 - parameter.model[0][0].item<double>());
  return all;
}

std::string refusal(const std::string& toml) {
  const auto made_run = run_of_four();
  auto& run = *made_run;
  try {
    plugin_of(toml)->prepare(run);
  } catch (const vernier::Error& error) {
    CHECK(error.kind() == vernier::Error::Kind::configuration);
    return error.what();
  }
  return "";
}

constexpr const char* base = R"(
[run]
steps = 6
[task]
use = "mlp"
samples = 50
batch_size = 16
)";

// The tail of a run's log.
std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  return lines;
}

bool is_logged(const std::string& text) {
  return std::ranges::any_of(log_lines(), [&](const auto& line) { return line.find(text) != std::string::npos; });
}

std::map<std::string, torch::Tensor> weights_of(const Run& run) {
  std::map<std::string, torch::Tensor> all;
  for (const auto& parameter : run.parameters) all[parameter.name] = parameter.model.detach().clone();
  return all;
}

}  // namespace

TEST_CASE("optimizer: a parameter has the options of the last group that matches it, and no others") {
  struct Case {
    std::string groups;
    double factor;
    std::vector<double> rates;
  };
  const std::string group = "[[optimizer.group]]\nmatch = ";
  const auto decayed = group + "'h.0.*'\nlearning_rate = 0.25\n" + group + "'*.bias'\nweight_decay = 0.25\n";
  for (const auto& each :
       std::vector<Case>{{"", 1, {0.5, 0.5, 0.5, 0.5}},
                         {group + "'*.bias'\nlearning_rate = 0.25\n", 1, {0.5, 0.25, 0.5, 0.5}},
                         {group + "['*.bias', 'head.*']\nlearning_rate = 0.25\n", 1, {0.5, 0.25, 0.5, 0.25}},
                         {decayed, 1, {0.25, 0.625, 0.25, 0.5}},  // the bias: 0.5 * (1 + 0.25 * 1)
                         {decayed, 0.5, {0.125, 0.3125, 0.125, 0.25}},
                         {group + "'*'\nfrozen = true\n" + group + "'head.*'\n", 1, {0, 0, 0, 0.5}},
                         {group + "'h.?.attn.*'\nfrozen = true\n", 1, {0, 0, 0.5, 0.5}}}) {
    CAPTURE(each.groups);
    CHECK(rates(each.groups, each.factor) == each.rates);
  }
}

TEST_CASE("optimizer: groups that make no sense are refused") {
  for (const auto& use : all_plugins) {
    CAPTURE(use);
    const auto own = "use = '" + use + "'\n", id = "optimizer/" + use;
    CHECK(refusal(own + "[[optimizer.group]]\nmatch = ['*.bias', '*.biases']\n") ==
          id + ": [[optimizer.group]] 1: `match` has \"*.biases\", which is the name of no parameter, such as "
               "h.0.attn.weight");
    CHECK(refusal(own + "[[optimizer.group]]\nmatch = '*'\nfrozen = true\n") ==
          id + ": all parameters are frozen: leave one out of the groups with frozen = true");
    CHECK(refusal(own + "[[optimizer.group]]\nfrozen = true\n").find("`match` is needed") != std::string::npos);
    CHECK(refusal(own + "[[optimizer.group]]\nmatch = '*'\nfreeze = true\n").find("did you mean `frozen`?") !=
          std::string::npos);
  }
  CHECK(refusal("use = 'adam'\n[[optimizer.group]]\nmatch = '*'\nlearning_rate = -1\n")
            .find("`learning_rate` must be at least 0") != std::string::npos);
  CHECK(refusal("use = 'sgd'\nmomentum = 0.9\nnesterov = true\n[[optimizer.group]]\nmatch = '*'\nmomentum = 0\n") !=
        "");
  CHECK(refusal("use = 'lbfgs'\n[[optimizer.group]]\nmatch = '*'\nlearning_rate = 1\n")
            .find("`learning_rate` is not an option here") != std::string::npos);
}

TEST_CASE("optimizer: a frozen parameter keeps its weights and gets no gradient, with every optimizer and precision") {
  vernier::set_log_sink([](vernier::Level, const std::string& who, const std::string& text) {
    log_lines().push_back(who + ": " + text);
  });
  const std::string group = "[[optimizer.group]]\nmatch = 'layers.0.*'\nfrozen = true\n";
  std::vector<std::pair<std::string, std::string>> cases;
  for (const auto& use : all_plugins) cases.emplace_back(use, "");
  cases.emplace_back("adamw", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  cases.emplace_back("adamw", "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n");
  cases.emplace_back("adamw", "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n");
  cases.emplace_back("lbfgs", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  cases.emplace_back("sgd", "[scaler]\nuse = 'dynamic'\n[[callback]]\nuse = 'clip_norm'\n");
  cases.emplace_back("sgd", "[scaler]\nuse = 'per_layer'\n");
  cases.emplace_back("sgd",
                     "[[callback]]\nuse = 'switch'\nat_step = 2\nto = {precision = {use = 'bf16', level = "
                     "'O2'}}\n");
  for (const auto& [use, others] : cases) {
    CAPTURE(use);
    CAPTURE(others);
    log_lines().clear();
    SmallRun run(from_toml({base, "[optimizer]\nuse = '" + use + "'\n" + group, others}));
    CHECK(is_logged("optimizer/" + use + ": 2 of 4 parameters are frozen: layers.0.weight, layers.0.bias"));
    const auto before = weights_of(run.run);
    run.on(vernier::Event::GradientsReady, [](Run& now) { CHECK(now.gradients().size() == 2); });
    CHECK(run.train().steps == 6);
    for (const auto& [name, weight] : weights_of(run.run)) {
      const bool is_frozen = name.starts_with("layers.0.");
      CHECK(torch::equal(weight, before.at(name).to(weight.scalar_type())) == is_frozen);
    }
  }
  vernier::set_log_sink(nullptr);
}

TEST_CASE("optimizer: callback/inject refuses the gradient of a frozen parameter") {
  SmallRun run(from_toml({base, "[optimizer]\nuse = 'sgd'\n[[optimizer.group]]\nmatch = 'layers.0.*'\nfrozen = true\n",
                          "[[callback]]\nuse = 'inject'\nwhere = 'gradient'\nlayer = 'layers.0'\nat_step = 2\n"}));
  CHECK_THROWS_WITH_AS(run.train(), doctest::Contains("layers.0.weight is frozen, so it has no gradient to change"),
                       vernier::Error);
}

TEST_CASE("optimizer: another optimizer gives frozen parameters their gradients again") {
  SmallRun run(from_toml({base, "[optimizer]\nuse = 'sgd'\n[[optimizer.group]]\nmatch = '*.bias'\nfrozen = true\n",
                          "[[callback]]\nuse = 'switch'\nat_step = 3\nto = {optimizer = {use = 'lion'}}\n"}));
  std::vector<std::size_t> counts;
  run.on(vernier::Event::GradientsReady, [&](Run& now) { counts.push_back(now.gradients().size()); });
  run.train();
  const std::vector<std::size_t> expected = {2, 2, 2, 4, 4, 4};
  CHECK(counts == expected);
}

TEST_CASE("optimizer: averages that other options no longer keep are dropped") {
  const struct {
    const char *before, *after;
    std::int64_t entries;  // a parameter's entries after loading
  } cases[] = {{"use = 'sgd'\nmomentum = 0.9\n", "use = 'sgd'\n", 0},
               {"use = 'sgd'\n", "use = 'sgd'\nmomentum = 0.9\n", 0},
               {"use = 'adamw'\namsgrad = true\n", "use = 'adamw'\n", 3}};
  for (const auto& [before, after, entries] : cases) {
    CAPTURE(before);
    CAPTURE(after);
    const auto made_run = run_of_four();
    auto& run = *made_run;
    const auto first = plugin_of(before), second = plugin_of(after);
    first->prepare(run);
    for (auto& parameter : run.parameters) parameter.master.mutable_grad() = torch::ones({2, 3});
    first->step(run);
    const auto made_other_run = run_of_four();
    auto& other_run = *made_other_run;
    second->prepare(other_run);
    second->load(first->save());
    CHECK(std::ranges::count_if(second->save().tensors,
                                [](const auto& each) { return each.first.starts_with("head.weight/"); }) == entries);
  }
}

TEST_CASE("optimizer: beside a group with `use`, layer_decay goes by the whole list of layers") {
  const std::string task = "[task]\nuse = 'mlp'\nhidden = [8, 8]\n",
                    own = "use = 'sgd'\nlearning_rate = 0.5\nlayer_decay = 0.5\n";
  std::string whole;
  const std::string two = "[[optimizer.group]]\nmatch = ['layers.1.*', 'layers.2.bias']\n";
  const auto covered = "[[optimizer.group]]\nmatch = 'layers.1.*'\nlearning_rate = 0.25\n" + two;
  for (const auto& group : {std::string(), two, covered}) {
    CAPTURE(group);
    SmallRun run(from_toml({base, task, "[optimizer]\n" + own + (group.empty() ? "" : group + own)}));
    run.train();
    if (group.empty()) whole = run.digest();
    CHECK(run.digest() == whole);
  }
  const auto said = thrown_by([&] {
    SmallRun run(
        from_toml({base, task, "[optimizer]\n" + own + "[[optimizer.group]]\nmatch = 'layer.*'\n" + two + own}));
  });
  CHECK_MESSAGE(says(said.text, "[[optimizer.group]]: `match` has \"layer.*\", which is the name of no parameter"),
                said.text);
}

TEST_CASE("optimizer: if all is frozen that groups with `use` leave to [optimizer], the remedy trains") {
  const std::string rest =
      "[[optimizer.group]]\nmatch = '*'\nfrozen = true\n[[optimizer.group]]\nmatch = 'layers.1.*'\n";
  const auto said = thrown_by([&] {
    SmallRun run(from_toml({base, "[optimizer]\nuse = 'sgd'\n" + rest + "use = 'lion'\n"}));
  });
  CHECK(said.kind == 2);
  CHECK_MESSAGE(
      says(said.text, "optimizer/sgd: all parameters that the groups with `use` leave to it are frozen: write"),
      said.text);
  SmallRun mended(from_toml({base, "[optimizer]\nuse = 'lion'\n" + rest}));
  CHECK(mended.train().steps == 6);
}

TEST_CASE("optimizer: muon's groups say the learning rate of what AdamW updates") {
  const auto moved = [](const std::string& group) {
    const auto made_run = run_of_four();
    auto& run = *made_run;
    const auto plugin = plugin_of("use = 'muon'\nadamw = true\n" + group);
    plugin->prepare(run);
    for (auto& parameter : run.parameters) parameter.master.mutable_grad() = torch::ones({2, 3});
    const auto before = run.parameters[3].master.detach().clone();
    plugin->step(run);
    return (run.parameters[3].master.detach() - before).abs().max().item<double>();
  };
  const std::string group = "[[optimizer.group]]\nmatch = 'head.weight'\nweight_decay = 0\n";
  CHECK(moved(group) == doctest::Approx(3e-4).epsilon(0.01));
  CHECK(moved(group + "learning_rate = 0.1\n") == doctest::Approx(0.1).epsilon(0.01));
  CHECK(moved(group + "learning_rate = 0.1\nadamw_learning_rate = 0.2\n") == doctest::Approx(0.2).epsilon(0.01));
}

TEST_CASE("optimizer: what AdamW updates in a group of muon has the same learning rate beside layer_decay") {
  for (const std::string decay : {"", "layer_decay = 0.9\n"}) {
    CAPTURE(decay);
    vernier::TrainerRun run;
    for (const char* name : {"h.0.weight", "h.1.weight", "ln_f.weight"}) {
      const auto tensor = (name[0] == 'h' ? torch::ones({2, 3}) : torch::ones({3})).requires_grad_();
      run.parameters.push_back({name, tensor, tensor});
    }
    const auto plugin = plugin_of("use = 'muon'\nweight_decay = 0\n" + decay +
                                  "[[optimizer.group]]\nmatch = ['h.*', 'ln_f.*']\nlearning_rate = 0.02\n");
    plugin->prepare(run);
    for (auto& parameter : run.parameters) parameter.master.mutable_grad() = torch::ones_like(parameter.master);
    plugin->step(run);
    CHECK(1 - run.parameters[2].master[0].item<double>() == doctest::Approx(3e-4).epsilon(0.01));
  }
}

TEST_CASE("optimizer: state belongs to names, whatever the groups, and is dropped for what is frozen") {
  for (const auto& use : all_plugins) {
    if (use == "lbfgs") continue;  // one memory for all weights
    CAPTURE(use);
    const auto own = "use = '" + use + "'\n" + (use == "sgd" ? "momentum = 0.9\n" : "");
    const auto prepared = [&](const std::string& groups, Run& run) {
      auto plugin = plugin_of(own + groups);
      plugin->prepare(run);
      return plugin;
    };
    const auto made_run = run_of_four();
    auto& run = *made_run;
    const char* decay = use == "rprop" ? "" : "weight_decay = 0.5\n";  // it has none
    const auto plugin = prepared(std::string("[[optimizer.group]]\nmatch = '*.bias'\n") + decay, run);
    for (auto& parameter : run.parameters) parameter.master.mutable_grad() = torch::ones({2, 3});
    plugin->step(run);
    const auto state = plugin->save();
    const auto entries_of = [](const vernier::State& some, const std::string& name) {
      return std::ranges::count_if(some.tensors, [&](const auto& each) { return each.first.starts_with(name + "/"); });
    };
    CHECK(entries_of(state, "head.weight") >= 1);

    const auto made_other_run = run_of_four();
    auto& other_run = *made_other_run;
    const auto other = prepared("", other_run);
    other->load(state);
    const auto loaded = other->save();
    for (const auto& [name, tensor] : state.tensors) CHECK(torch::equal(tensor, loaded.tensor(name)));

    const auto made_frozen_run = run_of_four();
    auto& frozen_run = *made_frozen_run;
    const auto frozen = prepared("[[optimizer.group]]\nmatch = 'head.*'\nfrozen = true\n", frozen_run);
    frozen->load(state);
    CHECK(entries_of(frozen->save(), "head.weight") == 0);
    CHECK(entries_of(frozen->save(), "h.0.attn.bias") == entries_of(state, "h.0.attn.bias"));
    other->load(frozen->save());  // frozen parameters start without state
    CHECK(entries_of(other->save(), "head.weight") == 0);

    const auto made_renamed_run = run_of_four();
    auto& renamed_run = *made_renamed_run;
    renamed_run.parameters[3].name = "tail.weight";
    const auto renamed = prepared("", renamed_run);
    CHECK_THROWS_WITH_AS(renamed->load(state), doctest::Contains("the model has no parameter head.weight"),
                         vernier::Error);
  }
}

}  // namespace groups_test
