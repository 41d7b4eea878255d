// Other plugins in the middle of a run.
#include "wiring/swap.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "small_run.h"
#include "thrown.h"
#include "trained.h"

namespace swap_test {

using vernier::Error;
using vernier::Event;
using vernier::Run;
using vernier::State;
using vernier::Table;

namespace {

// Losses, weights and counters of a run; the scaler's scale is too high at first, so that updates are skipped.
constexpr const char* base = R"(
[run]
steps = 20
validate_every = 5
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
every = 0
[[monitor]]
use = "jsonl"
)";

constexpr const char* fp32 = "[precision]\nuse = 'fp32'\n";
constexpr const char* bf16 = "[precision]\nuse = 'bf16'\n";
constexpr const char* fp16 =
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 1e6\ngrowth_interval = 3\n";
constexpr const char* masters = "[precision]\nuse = 'low_weights'\n";
constexpr const char* plain = "[precision]\nuse = 'low_weights'\nmasters = false\n";

std::string after(std::int64_t step, const std::string& to) {
  return "[[callback]]\nuse = 'switch'\nat_step = " + std::to_string(step) + "\n[callback.to]\n" + to + "\n";
}
constexpr const char* to_bf16 = "precision = {use = 'bf16'}";
constexpr const char* to_fp16 = "precision = {use = 'fp16'}\nscaler = {use = 'dynamic', init_scale = 1e6}";
constexpr const char* to_fp32 = "precision = {use = 'fp32'}\nscaler = {use = 'none'}";
constexpr const char* to_masters = "precision = {use = 'low_weights'}";
constexpr const char* to_plain = "precision = {use = 'low_weights', masters = false}";

// Without the notices and what is not of the numbers.
std::string losses_of(const std::string& lines) {
  std::istringstream in(lines);
  std::string losses;
  for (std::string line; std::getline(in, line);)
    losses += line.substr(0, std::min(line.find(",\"notices\""), line.size() - 1)) + '\n';
  return losses;
}

struct Small : SmallRun {
  Small(const std::string& text, const std::string& output)
      : SmallRun(from_toml({base + text}), output, plugins_and_fixtures()) {}
};

Trained train(const std::string& text) {
  const TemporaryFolder output;
  Small run(text, output.path().string());
  run.train();
  CHECK(run.run.step == 20);
  return result_of(run);
}

Trained without_notices(Trained result) {
  return {result.digest, losses_of(result.losses), result.updates};
}

State copy_of(const State& state) {
  State copy;
  for (const auto& [name, tensor] : state.tensors) copy.tensors[name] = tensor.clone();
  return copy;
}

bool equal(const State& a, const State& b) {
  return std::ranges::equal(a.tensors, b.tensors, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() && x.second.equal(y.second);
  });
}

// The content of a snapshot of the run.
State everything(const SmallRun& run) {
  return copy_of(vernier::take_snapshot(run.run, run.wiring->plugins()));
}

}  // namespace

TEST_CASE("swap: from float32 to bfloat16 is a run in bfloat16 from the weights and moments of the first") {
  const auto switched = train(fp32 + after(7, to_bf16));

  const TemporaryFolder first_output, second_output;
  Small first(fp32 + after(1000, to_bf16), first_output.path().string());
  first.stop_after(7);
  first.train();
  auto snapshot = copy_of(*first.wiring->checkpoint->read(first.run, ""));
  auto ids = snapshot.text("run/plugins");
  ids.replace(ids.find("precision/fp32"), 14, "precision/bf16");
  snapshot.put("run/plugins", ids);
  Small second(bf16 + after(1000, to_bf16), second_output.path().string());
  second.trainer->resume(second.run, snapshot);
  CHECK(second.run.step == 7);
  second.train();

  CHECK(second.digest() == switched.digest);
  const auto before = losses_of(read_text(first.run.output + "/losses.jsonl"));
  const auto later = losses_of(read_text(second.run.output + "/losses.jsonl"));
  CHECK(losses_of(switched.losses) == before + later);
  CHECK(switched.digest != train(fp32).digest);
  CHECK(switched.digest != train(bf16).digest);
}

TEST_CASE("swap: for the same plugin nothing changes, in no bit") {
  const std::pair<const char*, const char*> cases[] = {
      {fp32, "precision = {use = 'fp32'}"},
      {fp32, "optimizer = {use = 'adamw'}"},
      {fp32, "accumulation = {use = 'fixed'}\ncheckpoint = {use = 'rolling', every = 0}"},
      {bf16, to_bf16},
      {fp16, "scaler = {use = 'dynamic', init_scale = 1e6, growth_interval = 3}"},
      {fp16, "precision = {use = 'fp16'}"},
      {masters, to_masters},
      {masters, "precision = {use = 'low_weights'}\noptimizer = {use = 'adamw'}"},
      {plain, to_plain},
      {"[precision]\nuse = 'bf16'\nlevel = 'O2'\n", "precision = {use = 'bf16', level = 'O2'}"},
      {"[precision]\nuse = 'bf16'\nlevel = 'O3'\n", "precision = {use = 'bf16', level = 'O3'}"},
      {"[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
       "precision = {use = 'bf16', level = 'O3', rounding = 'stochastic'}"},
      {"[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
       "precision = {use = 'bf16', level = 'O3', rounding = 'kahan'}"},
  };
  for (const auto& [start, to] : cases) {
    CAPTURE(start);
    CAPTURE(to);
    const auto whole = without_notices(train(start));
    for (const std::int64_t step : {1, 4, 5}) CHECK(without_notices(train(start + after(step, to))) == whole);
  }
}

TEST_CASE("swap: a run that was stopped and resumed around one is the run that was not, bit for bit") {
  const std::string cases[] = {
      fp32 + after(4, to_bf16),
      fp32 + after(4, to_fp16) + after(9, to_fp32) + after(12, to_bf16),
      fp32 + after(4, to_masters) + after(9, to_fp32),
      fp32 + after(4, "precision = {use = 'bf16', level = 'O2'}") +
          after(9, "precision = {use = 'bf16', level = 'O3', rounding = 'kahan'}") + after(12, to_fp32),
      bf16 + after(4, "precision = {use = 'bf16', level = 'O3', rounding = 'stochastic'}") +
          after(9, "precision = {use = 'bf16', level = 'O3'}"),
      masters + after(4, to_plain) + after(9, to_masters),
      fp32 + after(4,
                   "optimizer = {use = 'adamw', learning_rate = 0.1}\n"
                   "accumulation = {use = 'fixed', micro_batches = 3}"),
      fp32 + after(4, "optimizer = {use = 'sgd', momentum = 0.5}\ncheckpoint = {use = 'rolling', keep_last = 1}"),
  };
  for (const auto& text : cases) {
    CAPTURE(text);
    const auto whole = train(text);
    CHECK(says(whole.losses, "policy_changed"));
    for (const std::int64_t stop : {3, 4, 5, 9, 10, 15}) {
      CAPTURE(stop);
      const TemporaryFolder output;
      {
        Small first(text, output.path().string());
        first.stop_after(stop);
        first.train();
      }
      Small second(text, output.path().string());
      REQUIRE(second.resume());
      CHECK(second.run.step == stop);
      second.train();
      CHECK(result_of(second) == whole);
    }
  }
}

TEST_CASE("swap: mixed precision goes on, off and over to another dtype, reported each time") {
  const TemporaryFolder output;
  Small run(fp32 + after(4, to_fp16) + after(9, to_fp32) + after(12, to_bf16), output.path().string());
  run.train();
  const auto lines = read_text(run.run.output + "/losses.jsonl");
  const auto line = [&](int step) {
    const auto start = lines.find("{\"step\":" + std::to_string(step) + ",\"loss\"");
    return lines.substr(start, lines.find('\n', start) - start);
  };
  const auto told = [](const char* role, const std::string& from, const std::string& to) {
    return std::string("{\"name\":\"policy_changed\",\"role\":\"") + role + "\",\"from\":\"" + role + "/" + from +
           "\",\"to\":\"" + role + "/" + to + "\"}";
  };
  CHECK(says(line(5), told("precision", "fp32", "fp16") + "," + told("scaler", "none", "dynamic")));
  CHECK(says(line(10), told("precision", "fp16", "fp32") + "," + told("scaler", "dynamic", "none")));
  CHECK(says(line(13), told("precision", "fp32", "bf16")));
  for (int step = 1; step <= 20; ++step) {
    CAPTURE(step);
    CHECK(says(line(step), "\"scale\":") == (step >= 5 && step <= 9));
    CHECK(says(line(step), "policy_changed") == (step == 5 || step == 10 || step == 13));
  }
  CHECK(run.wiring->precision->id() == "precision/bf16");
  REQUIRE(run.wiring->swaps.size() == 5);
  CHECK(run.wiring->swaps[4].step == 12);
  CHECK(run.wiring->swaps[4].from == "precision/fp32");
}

namespace {

// Stopped after five steps of the base, with the door in hand.
struct Stopped : TemporaryFolder, Small {
  explicit Stopped(const std::string& text) : Small(text, path().string()) {
    stop_after(5);
    train();
    go_on();
  }
  void swap(const std::string& to) { trainer->requests().swap(run, from_toml({to})); }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : run.parameters) all.push_back(parameter.master.detach().clone());
    return all;
  }
  bool is_in(torch::ScalarType model, torch::ScalarType master) const {
    return std::ranges::all_of(run.parameters, [&](const auto& parameter) {
      return parameter.model.scalar_type() == model && parameter.master.scalar_type() == master;
    });
  }
  bool has_masters() const {
    return std::ranges::none_of(run.parameters, [](const auto& each) { return each.master.is_same(each.model); });
  }
};

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.scalar_type() == y.scalar_type() && x.equal(y); });
}

}  // namespace

TEST_CASE("swap: the model is as the task built it, with the masters' values, and the moments stay") {
  constexpr auto f32 = torch::kFloat32, b16 = torch::kBFloat16;
  Stopped run{std::string(fp32)};
  const auto handles = run.run.model->parameters();
  const auto start = run.weights();
  const State moments = copy_of(run.wiring->optimizer->save());
  REQUIRE(moments.tensors.size() > start.size());

  run.swap(to_masters);
  CHECK(run.is_in(b16, f32));
  CHECK(run.has_masters());
  CHECK(equal(run.weights(), start));
  CHECK(equal(run.wiring->optimizer->save(), moments));

  run.train();
  const auto trained = run.weights();
  const State later = copy_of(run.wiring->optimizer->save());
  CHECK_FALSE(equal(trained, start));
  run.swap(to_fp32);
  CHECK(run.is_in(f32, f32));
  CHECK_FALSE(run.has_masters());
  CHECK(equal(run.weights(), trained));
  CHECK(equal(run.wiring->optimizer->save(), later));
  for (std::size_t i = 0; i < handles.size(); ++i) CHECK(handles[i].is_same(run.run.model->parameters()[i]));

  run.swap(to_plain);
  CHECK(run.is_in(b16, b16));
  CHECK_FALSE(run.has_masters());
  for (const auto& [name, tensor] : run.wiring->optimizer->save().tensors) {
    if (name.ends_with("/exp_avg")) CHECK(tensor.equal(later.tensor(name).to(b16)));
    if (name.ends_with("/step")) CHECK(tensor.equal(later.tensor(name)));
  }
}

TEST_CASE("swap: buffers have their dtype again") {
  const TemporaryFolder output;
  Small run(std::string(fp32), output.path().string());
  auto statistics = run.run.model->register_buffer("statistics", torch::full({3}, 1.5));
  run.wiring->built = vernier::built_model(*run.run.model);
  vernier::swap(*run.wiring, run.run, from_toml({to_masters}));
  CHECK((statistics.scalar_type() == torch::kBFloat16));
  vernier::swap(*run.wiring, run.run, from_toml({to_fp32}));
  CHECK((statistics.scalar_type() == torch::kFloat32));
  CHECK(statistics.equal(torch::full({3}, 1.5)));
}

TEST_CASE("swap: a plugin takes over what it knows by name, shape and dtype") {
  Stopped run{std::string(fp16)};
  const double scale = run.wiring->scaler->save().real("scale");
  const auto tracker = run.wiring->scaler->save().integer("_growth_tracker");
  REQUIRE(scale != 1e6);
  run.swap("scaler = {use = 'dynamic', init_scale = 4.0, max_scale = 8e5}");
  CHECK(run.wiring->scaler->save().real("scale") == std::min(scale, 8e5));  // the range is the new one's
  CHECK(run.wiring->scaler->save().integer("_growth_tracker") == tracker);
  run.swap("scaler = {use = 'static', scale = 8.0}");
  run.swap("scaler = {use = 'dynamic', init_scale = 4.0}");
  CHECK(run.wiring->scaler->save().real("scale") == 4);
}

TEST_CASE("swap: the listeners of the plugin before are called no more, those of the new one in its place") {
  const TemporaryFolder output;
  Small run(std::string(masters) + after(5, to_fp32) + after(9, to_masters) + after(12, to_masters),
            output.path().string());
  std::vector<std::int64_t> told;
  run.on(Event::StepEnd, [&](Run& now) {
    if (now.metrics.value("low_weights")) told.push_back(now.step);
  });
  run.train();
  CHECK(told == std::vector<std::int64_t>{1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20});
}

TEST_CASE("swap: steps are copied for a plugin that wants reruns only as long as the run has it") {
  Stopped run{"[accumulation]\nuse = 'fit'\n"};
  const auto& transaction = run.trainer->step().transaction();
  CHECK(transaction.is_rerun_wanted());
  run.swap("accumulation = {use = 'fixed', micro_batches = 1}");
  CHECK_FALSE(transaction.is_rerun_wanted());
  run.swap("accumulation = {use = 'fit'}");
  CHECK(transaction.is_rerun_wanted());
}

TEST_CASE("swap: what is refused leaves the run as it was, and says where the table stands") {
  struct Bad {
    const char* to;
    int kind;
    std::vector<std::string> says;
  };
  const std::string end = "; nothing was swapped after step 5";
  const Bad all[] = {
      {"\nprecision = {use = 'fp61'}", 3, {"0.toml:2: no precision is called \"fp61\"; did you mean \"fp16\"?"}},
      {"\n\nscaler = {use = 'dynamic', growth = 2}", 2, {"0.toml:3: scaler/dynamic: `growth` is not an option here"}},
      {"precision = {use = 'fp16'}", 2, {"0.toml:1: precision/fp16: `use` needs a loss scaler"}},
      {"precision = {level = 'O1'}", 2, {"0.toml:1: [precision] needs use = \"…\""}},
      {"task = {use = 'mlp'}", 2, {"0.toml:1: `task` cannot be swapped while a run runs; precision, scaler"}},
      {"precison = {use = 'bf16'}", 2, {"0.toml:1: `precison` cannot be swapped", "did you mean `precision`?"}},
      {"\nprecision = {use = 'low_weights', throws = 'constructor'}",
       3,
       {"0.toml:2: precision/low_weights failed in its constructor: boom"}},
      {"scaler = {use = 'dynamic'}\nprecision = {use = 'low_weights', throws = 'prepare'}",
       4,
       {"0.toml:2: precision/low_weights as it took over from precision/", ": boom"}},
      {"\noptimizer = {use = 'adamw', group = [{match = 'none'}]}",
       2,
       {"0.toml:2: optimizer/adamw: [[optimizer.group]] 1: `match` has \"none\", which is the name of no parameter"}},
      {"\noptimizer = {use = 'adamw', amsgrad = true}",
       4,
       {"0.toml:2: optimizer/adamw as it took over", "max_exp_avg_sq"}},
      {"precision = {use = 'fp32'}\noptimizer = {use = 'adamw', amsgrad = true}", 4, {"0.toml:2: optimizer/adamw"}},
  };
  constexpr const char* kahan = "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n";
  for (const char* start : {fp32, masters, plain, kahan}) {
    CAPTURE(start);
    const auto whole = train(start);
    for (const auto& bad : all) {
      CAPTURE(bad.to);
      Stopped run{std::string(start)};
      const State before = everything(run);
      const auto plugins = run.wiring->plugins();
      const auto thrown = thrown_by([&] { run.swap(bad.to); });
      CHECK(thrown.kind == bad.kind);
      for (const auto& part : bad.says) CHECK_MESSAGE(says(thrown.text, part), thrown.text);
      CHECK(thrown.text.ends_with(end));
      CHECK(run.wiring->plugins() == plugins);
      CHECK(run.wiring->swaps.empty());
      CHECK(equal(everything(run), before));
      run.train();
      CHECK(result_of(run) == whole);
    }
  }
}

TEST_CASE("swap: what is asked for in one step is swapped together, and a refusal ends the run with a checkpoint") {
  CHECK(
      train(fp32 + after(5, "precision = {use = 'fp16'}") + after(5, "scaler = {use = 'dynamic', init_scale = 1e6}")) ==
      train(fp32 + after(5, to_fp16) + after(1000, to_bf16)));
  const TemporaryFolder output;
  Small run(fp32, output.path().string());
  run.on(Event::StepEnd, [](Run& now) {
    if (now.step == 5) now.control->swap(from_toml({"precision = {use = 'fp16'}"}));
  });
  const auto thrown = thrown_by([&] { run.train(); });
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "precision/fp16: `use` needs a loss scaler"));
  CHECK(run.run.step == 5);
  CHECK(std::filesystem::exists(output.path() / "checkpoints" / "step-00000005"));  // nothing is lost with it
}

TEST_CASE("swap: a table that is wrong is refused before the run begins") {
  const auto refusal = [](const std::string& to) {
    const TemporaryFolder output;
    auto thrown = thrown_by([&] { Small run(fp32 + after(5, to), output.path().string()); });
    return thrown;
  };
  CHECK(says(refusal("precision = {use = 'bf61'}").text, "0.toml:21: no precision is called \"bf61\""));
  CHECK(says(refusal("precision = {use = 'bf16', levle = 1}").text, "0.toml:21: precision/bf16: `levle`"));
  CHECK(says(refusal("task = {use = 'mlp'}").text, "0.toml:21: `task` cannot be swapped"));
  CHECK(refusal("precision = {use = 'fp16'}") == Thrown{});  // it may come with a scaler
}

namespace {

// A run that a callback asks to swap after two steps, and that is stopped after four.
struct Asked : TemporaryFolder {
  Asked(const std::vector<std::string>& start, const std::string& to) {
    std::vector<std::string> texts = {base};
    texts.insert(texts.end(), start.begin(), start.end());
    texts.push_back(after(2, to));
    run = std::make_unique<SmallRun>(from_toml(texts), path().string(), plugins_and_fixtures());
    run->stop_after(4);
    thrown = thrown_by([this] { run->train(); });
  }
  // The run ended with this, as it was after two steps, in a checkpoint.
  void check_refused(const std::string& with) {
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, with), thrown.text);
    CHECK_MESSAGE(says(thrown.text, "; nothing was swapped after step 2"), thrown.text);
    CHECK(run->wiring->swaps.empty());
    CHECK(run->run.step == 2);
    const auto saved = run->wiring->checkpoint->read(run->run, "");
    REQUIRE(saved);
    CHECK(saved->integer("run/step") == 2);
  }
  std::unique_ptr<SmallRun> run;
  Thrown thrown;
};

}  // namespace

TEST_CASE("swap: any precision with any scaler is carried out, or ends the run with a checkpoint") {
  const std::vector<std::string> precisions = {"",
                                               "{use = 'fp32'}",
                                               "{use = 'bf16'}",
                                               "{use = 'fp16'}",
                                               "{use = 'fp16', level = 'O2'}",
                                               "{use = 'bf16', level = 'O3'}"};
  const std::vector<std::string> scalers = {"", "none", "dynamic", "static", "per_layer", "statistical"};
  int refused = 0, carried_out = 0;
  for (const std::string start : {fp32, bf16, fp16, "[precision]\nuse = 'bf16'\nlevel = 'O2'\n"}) {
    for (const auto& precision : precisions) {
      for (const auto& scaler : scalers) {
        if (precision.empty() && scaler.empty()) continue;
        std::string to = precision.empty() ? "" : "precision = " + precision + "\n";
        if (!scaler.empty()) to += "scaler = {use = '" + scaler + "'}\n";
        CAPTURE(start);
        CAPTURE(to);
        const bool is_fp16 = says(precision.empty() ? start : precision, "fp16");
        const bool is_scaled = scaler.empty() ? start == fp16 : scaler != "none";
        const bool is_16_bits = says(precision.empty() ? start : precision, "level");
        Asked asked({start}, to);
        if (is_fp16 && !is_scaled) {
          asked.check_refused("precision/fp16: `use` needs a loss scaler");
          refused += 1;
          continue;
        }
        if (scaler == "per_layer" && is_16_bits) {
          asked.check_refused("use precision level O1");
          continue;
        }
        CHECK(asked.thrown == Thrown{});
        CHECK(asked.run->run.step == 4);
        if (!scaler.empty()) CHECK(asked.run->wiring->scaler->id() == "scaler/" + scaler);
        carried_out += 1;
      }
    }
  }
  CHECK(refused > 10);
  CHECK(carried_out > 80);
}

TEST_CASE("swap: what fits only after another swap is carried out") {
  CHECK(without_notices(train(fp32 + after(4, "scaler = {use = 'dynamic', init_scale = 1e6}") +
                              after(9, "precision = {use = 'fp16'}"))) ==
        without_notices(train(fp32 + after(4, "scaler = {use = 'dynamic', init_scale = 1e6}") +
                              after(9, "precision = {use = 'fp16'}\nscaler = {use = 'dynamic', init_scale = 1e6}"))));
}

TEST_CASE("swap: what contradicts an optimizer that steps in backward ends the run with a checkpoint") {
  const std::string in_backward = "[optimizer]\nin_backward = true\n";
  Asked({in_backward}, to_fp16).check_refused("`in_backward` updates weights before scaler/dynamic");
  Asked({in_backward}, "accumulation = {use = 'fit'}").check_refused("`in_backward` frees each gradient as it is used");
  CHECK(Asked({in_backward}, to_bf16).thrown == Thrown{});
}

TEST_CASE("swap: what is only tried leaves no trace, right or wrong") {
  for (const char* to : {to_fp16, "precision = {use = 'fp16'}", to_masters,
                         "accumulation = {use = 'fixed', micro_batches = 3}", "precision = {use = 'fp61'}"}) {
    CAPTURE(to);
    Stopped run{std::string(fp32)};
    const auto before = everything(run);
    const auto plugins = run.wiring->plugins();
    const auto thrown = thrown_by([&] { run.run.control->try_swap(from_toml({to})); });
    CHECK(thrown.text.empty() == (std::string(to) != "precision = {use = 'fp61'}"));
    CHECK(run.wiring->plugins() == plugins);
    CHECK(equal(everything(run), before));
    run.train();
    CHECK(result_of(run) == train(fp32));
  }
}

TEST_CASE("swap: the step after it knows which roles have other plugins") {
  const TemporaryFolder output;
  Small run(fp32 + after(4, to_fp16) + after(9, "optimizer = {use = 'sgd'}"), output.path().string());
  std::map<std::int64_t, std::vector<std::string>> swapped;
  run.on(Event::StepBegin, [&](Run& now) {
    if (!now.swapped.empty()) swapped[now.step] = now.swapped;
  });
  run.train();
  CHECK(swapped.size() == 2);
  CHECK(swapped[4] == std::vector<std::string>{"precision", "scaler"});
  CHECK(swapped[9] == std::vector<std::string>{"optimizer"});
}

TEST_CASE("swap: a scaler that cannot go with another precision's weights is asked, the others keep their scale") {
  constexpr const char* per_layer = "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'per_layer'\n";
  const auto whole = train(per_layer);
  Stopped run{std::string(per_layer)};
  const State before = everything(run);
  const auto thrown = thrown_by([&] { run.swap("precision = {use = 'fp16', level = 'O2'}"); });
  CHECK(thrown.kind == 2);
  CHECK_MESSAGE(says(thrown.text, "scaler/per_layer: "), thrown.text);
  CHECK(says(thrown.text, "use precision level O1; nothing was swapped after step 5"));
  CHECK(equal(everything(run), before));
  CHECK(run.is_in(torch::kFloat32, torch::kFloat32));
  run.train();
  CHECK(result_of(run) == whole);

  Stopped dynamic{std::string(fp16)};
  const State scale = copy_of(dynamic.wiring->scaler->save());
  dynamic.swap("precision = {use = 'fp16', level = 'O2'}");
  CHECK(equal(dynamic.wiring->scaler->save(), scale));
  CHECK(dynamic.wiring->swaps.size() == 1);
}

TEST_CASE("swap: asked for at RunBegin it holds from the first step on") {
  const TemporaryFolder output;
  Small run(std::string(fp32), output.path().string());
  run.on(Event::RunBegin, [](Run& now) { now.control->swap(from_toml({to_bf16})); });
  run.train();
  CHECK(without_notices(result_of(run)) == without_notices(train(bf16)));
}

TEST_CASE("swap: the checkpoint plugin stays, so that --resume finds what was written, and nothing of it is removed") {
  const std::pair<std::string, std::string> cases[] = {{"careless", "rolling"},
                                                       {"rolling", "careless"},
                                                       {"rolling", "none"},
                                                       {"none", "rolling"},
                                                       {"one_file", "rolling"}};
  for (const auto& [from, to] : cases) {
    CAPTURE(from);
    CAPTURE(to);
    const TemporaryFolder output;
    auto config = from_toml({base});
    config["checkpoint"] = from_toml({"checkpoint = {use = '" + from + "'}"})["checkpoint"];
    SmallRun run(config, output.path().string(), plugins_and_fixtures());
    const auto wanted = from_toml({"checkpoint = {use = '" + to + "'}"});
    const auto text = "checkpoint/" + from + " cannot become checkpoint/" + to + " while the run runs";
    CHECK(says(thrown_by([&] { run.run.control->try_swap(wanted); }).text, text));
    run.on(Event::StepEnd, [&](Run& now) {
      if (now.step == 2) now.control->swap(wanted);
    });
    CHECK(says(thrown_by([&] { run.train(); }).text, text));
    CHECK(run.wiring->checkpoint->id() == "checkpoint/" + from);
    run.wiring->bus = {};
  }
}

}  // namespace swap_test
