// The samples that make a step bad, as callback/recovery and callback/flight_recorder find them.
#include <doctest/doctest.h>
#include <vernier/culprit.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>

#include "flight.h"
#include "long_form.h"

namespace culprit_test {

using vernier::Event;
using vernier::Run;

namespace {

using Samples = std::set<std::int64_t>;

// A fault that some samples bring into their micro-batch.
struct Poison {
  std::string kind;  // inf, nan, 1e30: an element of the input; loss: its loss is nan; backward: its gradients are
  Samples samples;
  std::int64_t step = 0;  // counted from 1; 0: in each
};

// Puts the poison into the micro-batches of a run, as data would have it.
void poison(
    SmallRun& run, const Poison& with, const std::function<bool()>& is_on = [] { return true; }) {
  const auto has_step = [with, is_on](const Run& now) {
    return (with.step == 0 || now.step + 1 == with.step) && is_on();
  };
  const auto rows_in = [with](const Run& now) {
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < now.micro_batch.indices.size(); ++i) {
      if (with.samples.contains(now.micro_batch.indices[i])) rows.push_back(static_cast<std::int64_t>(i));
    }
    return rows;
  };
  run.on(Event::BatchReady, [=](Run& now) {
    if (!has_step(now) || !now.micro_batch.tensors[0].is_floating_point()) return;
    const double value = with.kind == "inf" ? HUGE_VAL : with.kind == "nan" ? std::nan("") : 1e30;
    if (with.kind == "loss" || with.kind == "backward" || with.kind == "label") return;
    for (const auto row : rows_in(now)) {
      now.micro_batch.tensors[0] = now.micro_batch.tensors[0].clone();
      now.micro_batch.tensors[0].select(0, row).flatten()[0].fill_(value);
    }
  });
  run.on(Event::BatchReady, [=](Run& now) {
    if (!has_step(now) || with.kind != "label") return;
    for (const auto row : rows_in(now)) {
      now.micro_batch.tensors[1] = now.micro_batch.tensors[1].clone();
      auto label = now.micro_batch.tensors[1][row];
      label.copy_((label + 1).remainder(2));
    }
  });
  run.on(Event::LossReady, [=](Run& now) {
    const auto is_of_loss = with.kind == "loss" || (with.kind != "label" && with.kind != "backward" &&
                                                    !now.micro_batch.tensors[0].is_floating_point());
    if (!has_step(now) || rows_in(now).empty()) return;
    if (is_of_loss) now.micro_batch_loss = now.micro_batch_loss * std::nan("");
    // sqrt at 0: finite forward, infinite backward.
    if (with.kind == "backward") {
      now.micro_batch_loss = now.micro_batch_loss + (now.micro_batch_loss - now.micro_batch_loss).sqrt();
    }
  });
}

struct Told {
  std::string samples, text;
  std::int64_t reruns = 0, applied = -1;
};

std::string numbers(const Samples& samples, const std::vector<std::int64_t>& order) {
  std::string all;
  for (const auto index : order) {
    if (samples.contains(index)) all += (all.empty() ? "" : " ") + std::to_string(index);
  }
  return all;
}

constexpr const char* drops = "[[callback]]\nuse = 'recovery'\nnon_finite = ['drop_samples 1000']\n";
constexpr const char* spikes =
    "[[callback]]\nuse = 'recovery'\nnon_finite = ['drop_samples 1000']\nspike = ['drop_samples 1000']\n"
    "window = 20\n";

void listen(SmallRun& run, std::vector<Told>& told) {
  run.on(Event::StepEnd, [&told](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name != "recovered") continue;
      Told one{flight::told(notice, "samples"), notice.sentence};
      for (const auto& [key, value] : notice.details) {
        if (key == "reruns") one.reruns = std::get<std::int64_t>(value);
        if (key == "applied") one.applied = std::get<std::int64_t>(value);
      }
      told.push_back(one);
    }
  });
}

// Samples of the batch of a step, drawn by their place in it.
std::vector<std::int64_t> batch_of(const std::vector<std::string>& config, std::int64_t step) {
  SmallRun run(from_toml(config));
  std::vector<std::int64_t> indices;
  run.on(Event::StepEnd, [&](Run& now) {
    if (now.step == step) indices = now.batch.indices;
  });
  run.train();
  return indices;
}

std::string mlp(int steps, int batch, const std::string& more = "") {
  return "[run]\nsteps = " + std::to_string(steps) +
         "\n[task]\nuse = 'mlp'\nsamples = 512\nbatch_size = " + std::to_string(batch) + "\n" + more +
         "[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
}

std::string tabular(const TemporaryFolder& folder, int steps) {
  std::string table = "a,b,word,y\n";
  for (int i = 0; i < 400; ++i) {
    table += std::to_string(std::sin(i)) + "," + std::to_string(std::cos(3 * i)) + "," + (i % 3 == 0 ? "u" : "v") +
             "," + std::to_string(std::sin(2 * i)) + "\n";
  }
  return "[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'tabular'\ndata = '" +
         folder.write("t.csv", table) +
         "'\ntarget = 'y'\nhidden = [16]\nbatch_size = 32\nvalidation_share = 0\n[optimizer]\nuse = 'sgd'\n"
         "learning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
}

std::string micro(int count) {
  return "[accumulation]\nuse = 'fixed'\nmicro_batches = " + std::to_string(count) + "\n";
}

}  // namespace

TEST_CASE("culprit: the places of the guilty in a batch are all found, within the bound") {
  struct Case {
    int batch;
    std::vector<std::size_t> rows;
  };
  const std::vector<Case> cases = {{32, {0}},  {32, {31}}, {33, {32}}, {33, {16}}, {32, {3, 4}},  {32, {2, 29}},
                                   {64, {40}}, {7, {6}},   {2, {1}},   {1, {0}},   {8, {1, 5, 7}}};
  for (const auto& [batch, rows] : cases) {
    const auto config = mlp(2, batch);
    const auto indices = batch_of({config}, 2);
    REQUIRE(std::ssize(indices) == batch);
    Samples guilty;
    for (const auto row : rows) guilty.insert(indices[row]);
    CAPTURE(batch);
    CAPTURE(numbers(guilty, indices));
    for (const auto* kind : {"nan", "backward"}) {
      SmallRun run(from_toml({config, drops}));
      std::vector<Told> told;
      poison(run, {kind, guilty, 2});
      listen(run, told);
      run.train();
      REQUIRE(told.size() == 1);
      CAPTURE(told[0].text);
      CHECK(told[0].samples == numbers(guilty, indices));
      CHECK(told[0].applied == (std::ssize(rows) < batch ? 1 : 0));
      const auto log = std::bit_width(static_cast<unsigned>(batch - 1));
      if (rows.size() == 1) CHECK(told[0].reruns <= 2 * log + 4);
      CHECK(run.run.updates == (std::ssize(rows) < batch ? 2 : 1));
      if (rows.size() == 1 && batch > 1) {
        CHECK(told[0].text.find("alone makes") != std::string::npos);
        CHECK(told[0].text.find("(point " + std::to_string(*guilty.begin()) + ")") != std::string::npos);
      }
    }
  }
}

TEST_CASE("culprit: the update without the guilty has the bits of a batch without them") {
  const auto config = mlp(3, 16);
  const auto indices = batch_of({config}, 3);
  const Samples guilty = {indices[5], indices[11]};
  SmallRun dropped(from_toml({config, drops}));
  poison(dropped, {"inf", guilty, 3});
  dropped.train();
  SmallRun without(from_toml({config}));
  without.on(Event::LossReady, [&](Run& now) {  // the same loss by hand
    if (now.step != 2) return;
    std::vector<std::int64_t> rest;
    for (std::int64_t i = 0; i < 16; ++i) {
      if (i != 5 && i != 11) rest.push_back(i);
    }
    auto batch = now.micro_batch;
    for (auto& tensor : batch.tensors) tensor = tensor.index_select(0, torch::tensor(rest));
    batch.samples = 14;
    now.micro_batch_loss = without.wiring->task->loss(batch);
  });
  without.train();
  CHECK(dropped.digest() == without.digest());
  CHECK(dropped.run.updates == 3);
}

TEST_CASE("culprit: a run in which nothing is dropped has the bits of one without the search") {
  for (const auto& config : {mlp(20, 16), mlp(20, 16) + micro(4)}) {
    SmallRun with(from_toml({config, spikes, flight::recorder})), without(from_toml({config}));
    with.train();
    without.train();
    CHECK(with.digest() == without.digest());
  }
}

TEST_CASE("culprit: a fault that does not come again names no sample, and the update is made from the repeat") {
  const auto config = mlp(4, 16);
  SmallRun faulty(from_toml({config, drops})), clean(from_toml({config}));
  int passes = 0;
  faulty.on(Event::LossReady, [&](Run& now) {
    if (now.step == 2 && passes++ == 0) now.micro_batch_loss = now.micro_batch_loss * std::nan("");
  });
  std::vector<Told> told;
  listen(faulty, told);
  faulty.train();
  clean.train();
  REQUIRE(told.size() == 1);
  CHECK(told[0].samples.empty());
  CHECK(told[0].reruns == 1);
  CHECK(told[0].text.find("no sample is to blame: the same batch once more is finite") != std::string::npos);
  CHECK(faulty.digest() == clean.digest());
}

TEST_CASE("culprit: samples that are bad only together, and a batch that is bad throughout") {
  const auto config = mlp(2, 16);
  const auto indices = batch_of({config}, 2);
  for (const bool everywhere : {false, true}) {
    SmallRun run(from_toml({config, drops}));
    run.on(Event::LossReady, [&](Run& now) {
      if (now.step != 1) return;
      const auto has = [&](std::size_t row) {
        return std::ranges::find(now.micro_batch.indices, indices[row]) != now.micro_batch.indices.end();
      };
      if (everywhere || (has(2) && has(13))) now.micro_batch_loss = now.micro_batch_loss * std::nan("");
    });
    std::vector<Told> told;
    listen(run, told);
    run.train();
    REQUIRE(told.size() == 1);
    CAPTURE(told[0].text);
    CHECK(told[0].samples.empty());
    CHECK(told[0].applied == 0);
    const auto* text = everywhere ? "every part of the batch makes the loss nan" : "make the loss nan only together";
    CHECK(told[0].text.find(text) != std::string::npos);
    CHECK(run.run.updates == 1);
  }
}

TEST_CASE("culprit: 100 poisoned batches, by task, precision, micro-batches and kind" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::mt19937 random(1);
  const auto draw = [&](std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random); };
  const std::vector<std::pair<std::string, std::string>> tasks = {{"mlp", mlp(30, 32)},
                                                                  {"images", flight::images(folder, 30)},
                                                                  {"texts", flight::gpt(folder, 30)},
                                                                  {"tabular", tabular(folder, 30)}};
  const std::vector<std::string> kinds = {"inf", "nan", "1e30", "loss", "backward"};
  const int trials = is_long() ? 300 : 30;
  int found = 0;
  std::int64_t most = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto& [name, task] = tasks[static_cast<std::size_t>(trial) % tasks.size()];
    const auto& precision = flight::precisions[draw(flight::precisions.size())];
    const auto split = micro(draw(2) == 0 || name == "images" ? 1 : 4);  // it has statistics of a batch
    const auto kind = kinds[draw(kinds.size())];
    const std::int64_t step = 28;
    const auto indices = batch_of({task, precision, split}, step);
    Samples guilty;
    const auto count = 1 + draw(3);
    while (guilty.size() < count) guilty.insert(indices[draw(indices.size())]);
    // A large number may make a sample's loss 0: it then does no harm, and is not to be found.
    std::erase_if(guilty, [&](auto sample) {
      if (kind != "1e30") return false;
      SmallRun alone(from_toml({task, precision, split, spikes}));
      std::vector<Told> harm;
      poison(alone, {kind, {sample}, step});
      listen(alone, harm);
      alone.train();
      return harm.empty();
    });
    SmallRun run(from_toml({task, precision, split, spikes}));
    std::vector<Told> told;
    poison(run, {kind, guilty, step});
    listen(run, told);
    bool is_scaled_overflow = false;
    run.on(Event::GradientsReady, [&](Run& now) {
      if (now.step + 1 == step) {
        is_scaled_overflow = now.found_inf.defined() && now.found_inf.item<float>() != 0 && told.empty() &&
                             std::isfinite(now.loss.item<double>());
      }
    });
    run.train();
    CAPTURE(name);
    CAPTURE(kind);
    CAPTURE(precision);
    CAPTURE(split);
    CAPTURE(numbers(guilty, indices));
    if ((is_scaled_overflow || guilty.empty()) && told.empty()) {
      ++found;  // the scaler handles it, or no sample does harm
      continue;
    }
    REQUIRE_FALSE(told.empty());
    CAPTURE(told[0].text);
    CHECK(told[0].samples == numbers(guilty, indices));
    found += told[0].samples == numbers(guilty, indices) ? 1 : 0;
    most = std::max(most, told[0].reruns);
  }
  MESSAGE(found << " of " << trials << " named, at most " << most << " reruns");
  CHECK(found == trials);
}

TEST_CASE("culprit: wrong labels that make the loss of a trained model spike") {
  std::mt19937 random(2);
  const int trials = is_long() ? 100 : 3;
  const std::int64_t step = 395;
  const std::string task =
      "[run]\nsteps = 396\n[task]\nuse = 'mlp'\nsamples = 256\nbatch_size = 32\n"
      "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
  const auto indices = batch_of({task}, step);
  for (int trial = 0; trial < trials; ++trial) {
    Samples guilty;
    while (std::ssize(guilty) < 1 + trial % 3) guilty.insert(indices[random() % indices.size()]);
    SmallRun run(from_toml({task, micro(trial % 2 == 0 ? 1 : 4), spikes}));
    std::vector<Told> told;
    poison(run, {"label", guilty, step});
    listen(run, told);
    run.train();
    CAPTURE(numbers(guilty, indices));
    REQUIRE_FALSE(told.empty());
    CAPTURE(told.back().text);
    CHECK(told.back().samples == numbers(guilty, indices));
  }
}

TEST_CASE("culprit: a run resumed before the poisoned step drops the same samples") {
  const TemporaryFolder output;
  const std::string text =
      "[run]\nsteps = 12\n[task]\nuse = 'mlp'\nsamples = 512\nbatch_size = 16\n"
      "[optimizer]\nuse = 'adamw'\n[checkpoint]\nuse = 'rolling'\nevery = 4\n";
  const auto indices = batch_of({text}, 7);
  const Poison with{"nan", {indices[3]}, 7};
  SmallRun whole(from_toml({text, drops}), output.path().string());
  poison(whole, with);
  whole.train();
  const TemporaryFolder other;
  {
    SmallRun first(from_toml({text, drops}), other.path().string());
    poison(first, with);
    first.stop_after(5);
    first.train();
  }
  SmallRun second(from_toml({text, drops}), other.path().string());
  std::vector<Told> told;
  poison(second, with);
  listen(second, told);
  REQUIRE(second.resume());
  second.train();
  REQUIRE(told.size() == 1);
  CHECK(told[0].samples == std::to_string(indices[3]));
  CHECK(second.digest() == whole.digest());
}

TEST_CASE("culprit: the flight recorder writes the samples into notice and capsule") {
  const TemporaryFolder folder;
  const auto config = mlp(3, 16);
  const auto indices = batch_of({config}, 3);
  flight::Flight flight({config, flight::recorder}, std::nullopt);
  poison(flight.run, {"nan", {indices[9]}, 3});
  flight.run.train();
  REQUIRE(flight.notices.size() == 1);
  const auto expected = "sample " + std::to_string(indices[9]);
  CHECK(flight::told(flight.notices[0], "samples").starts_with(expected));
  const auto capsule = vernier::read_capsule(flight.output.path() / flight::told(flight.notices[0], "capsule"));
  CHECK(capsule.samples.starts_with(expected));
  CHECK(capsule.samples.find("the other 15 are finite") != std::string::npos);
  CHECK(capsule.batch.indices == indices);
}

TEST_CASE("culprit: statistics of a batch and random numbers are caveats" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const auto gpt = flight::gpt(folder, 3, "dropout = 0.1\n");
  const auto indices = batch_of({gpt}, 2);
  SmallRun run(from_toml({gpt, drops}));
  std::vector<Told> told;
  poison(run, {"loss", {indices[4]}, 2});
  listen(run, told);
  run.train();
  REQUIRE(told.size() == 1);
  CHECK(told[0].samples == std::to_string(indices[4]));
  CHECK(told[0].text.find("drew other random numbers") != std::string::npos);
}

}  // namespace culprit_test
