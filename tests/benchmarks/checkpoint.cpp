// Checkpoints of 257 MB in 356 tensors, in the shapes of a GPT: save, restore, stall of a save in the background, and
// the time of steps during a save. Python does the same in turn, if python3 has torch 2.11 and safetensors
// (checkpoint_rivals.py). Prints whether each bar is met.
//
//   checkpoint [--check] [save] [restore] [stall] [steps]     --check: exits with 1 if a bar is missed
//
// A restore ends when tensors hold the values, in their own memory or in an existing model. Vernier has then compared
// the checksum of every byte. Python compares nothing: its load_file maps the file, and the copy reads it. The stall is
// the delay of the next backward pass by a save in the background. If a core is free, Vernier copies the optimizer's
// memory during the forward pass. All files are in the system's cache. Steps need a second free core.
#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <dlfcn.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/copy.h>
#include <vernier/host.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>
#include <xxhash.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>

#include "compare.h"
#include "plugin_library.h"
#include "python_rival.h"

namespace fs = std::filesystem;
using vernier::Tensors;

namespace {

bool syncs = true, sums = true;  // fsync and checksums, which can be left out to see what they cost

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

Tensors gpt_tensors() {
  constexpr std::int64_t layers = 29, width = 424, vocabulary = 3200, context = 256;
  Tensors all;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) { all[name] = torch::randn(shape); };
  add("wte.weight", {vocabulary, width});
  add("wpe.weight", {context, width});
  add("ln_f.weight", {width});
  add("ln_f.bias", {width});
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string block = "h." + std::to_string(i) + ".";
    for (const char* norm : {"ln_1", "ln_2"}) {
      add(block + norm + ".weight", {width});
      add(block + norm + ".bias", {width});
    }
    const auto linear = [&](const char* name, std::int64_t inputs, std::int64_t outputs) {
      add(block + name + ".weight", {inputs, outputs});
      add(block + name + ".bias", {outputs});
    };
    linear("attn.c_attn", width, 3 * width);
    linear("attn.c_proj", width, width);
    linear("mlp.c_fc", width, 4 * width);
    linear("mlp.c_proj", 4 * width, width);
  }
  for (int i = 0; i < 4; ++i) add("step." + std::to_string(i), {});
  return all;
}

struct Measured {
  std::string name;
  std::function<void()> body = {};
  std::function<void()> after = [] {};   // not measured: waits, takes away
  std::function<void()> before = [] {};  // nor this
  std::function<double()> itself = {};   // instead of body: measures itself, in milliseconds
  std::vector<double> milliseconds = {};

  double least() const { return *std::min_element(milliseconds.begin(), milliseconds.end()); }
  double median() const { return median_of(milliseconds); }
  // To another of the same rounds.
  double ratio(const Measured& other) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < milliseconds.size(); ++i) ratios.push_back(milliseconds[i] / other.milliseconds[i]);
    return median_of(ratios);
  }
  static double median_of(std::vector<double> numbers) {
    std::sort(numbers.begin(), numbers.end());
    return numbers[numbers.size() / 2];
  }
};

class Bars {
 public:
  // one: what is measured; other: what it is measured by, which may be missing.
  void add(const std::string& name, const std::vector<Measured>& all, const std::string& one, const std::string& other,
           double most) {
    const auto find = [&](const std::string& wanted) {
      return std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == wanted; });
    };
    const auto a = find(one), b = find(other);
    const double ratio = a != all.end() && b != all.end() ? a->ratio(*b) : std::nan("");
    text_ += c10::str("  ",
                      std::isnan(ratio) ? "not measured"
                      : ratio <= most   ? "met   "
                                        : "MISSED",
                      "  ", name, ": ", std::round(ratio * 1000) / 1000, ", at most ", most, "\n");
    missed_ |= ratio > most;
  }
  void print() const { std::printf("bars (median of the ratios within a round)\n%s", text_.c_str()); }
  bool missed() const { return missed_; }

 private:
  std::string text_;
  bool missed_ = false;
};

double time_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// In turn, so that a noisy machine disturbs all alike; the first is what the others are measured by.
std::vector<Measured> measure(const char* title, std::vector<Measured> all, int rounds) {
  for (int round = -1; round < rounds; ++round) {
    for (auto& one : all) {
      one.before();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // OpenMP's threads wait for more work at first
      const double time = one.itself ? one.itself() : time_of(one.body);
      one.after();
      if (round >= 0) one.milliseconds.push_back(time);
    }
  }
  std::printf("%s (milliseconds: median, least of %d; to the first: median, least)\n", title, rounds);
  const double median = all[0].median(), least = all[0].least();
  for (auto& one : all) {
    std::printf("  %-52s %8.1f %8.1f   x%.2f x%.2f\n", one.name.c_str(), one.median(), one.least(),
                one.median() / median, one.least() / least);
  }
  std::fflush(stdout);
  return all;
}

// A save in the background, as the runner has it.
class Background {
 public:
  explicit Background(const fs::path& output) : plugin_(make_plugin<vernier::Checkpoint>("checkpoint/rolling")) {
    fs::create_directories(output);
    fs::permissions(output, fs::perms::owner_all);
    run_.output = output.string();
    run_.name = "benchmark";
    vernier::HostApi::attach(bus_, *plugin_, false);
  }
  void start(const vernier::State& state) {
    run_.step += 1;
    plugin_->write(state, run_);
  }
  // How much later the backward pass begins than without a save, in milliseconds, on one thread.
  double stall(const vernier::State& state, const std::function<void()>& forward) {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const double alone = time_of(forward);
    const double both = time_of([&] {
      start(state);
      forward();
      vernier::HostApi::emit(bus_, vernier::Event::LossReady, run_);
    });
    at::set_num_threads(threads);
    return both - alone;
  }
  // How long training that takes all cores is held up. What its forward pass takes longer beside the writer is not in
  // it, nor in what is measured of DCP.
  double stall_on_all_cores(const vernier::State& state, const std::function<void()>& forward) {
    const double before = time_of([&] { start(state); });
    forward();
    return before + time_of([&] { vernier::HostApi::emit(bus_, vernier::Event::LossReady, run_); });
  }
  void wait() {
    vernier::HostApi::emit(bus_, vernier::Event::RunEnd, run_);
    run_.notices.clear();
  }

 private:
  std::unique_ptr<vernier::Checkpoint> plugin_;
  vernier::Bus bus_;
  vernier::TrainerRun run_;
};

}  // namespace

#define BENCHMARK_API extern "C" __attribute__((visibility("default")))
BENCHMARK_API int fsync(int file) {
  static auto* const next = real<decltype(fsync)>("fsync");
  return syncs ? next(file) : 0;
}
BENCHMARK_API XXH_errorcode XXH3_128bits_update(XXH3_state_t* state, const void* bytes, size_t count) {
  static auto* const next = real<decltype(XXH3_128bits_update)>("XXH3_128bits_update");
  return sums ? next(state, bytes, count) : XXH_OK;
}
BENCHMARK_API XXH_errorcode XXH3_128bits_update_dispatch(XXH3_state_t* state, const void* bytes, size_t count) {
  static auto* const next = real<decltype(XXH3_128bits_update)>("XXH3_128bits_update_dispatch");
  return sums ? next(state, bytes, count) : XXH_OK;
}

namespace {

class Benchmark {
 public:
  explicit Benchmark(const fs::path& folder)
      : folder_(folder),
        live_(gpt_tensors()),
        python_("checkpoint_rivals.py", {folder.string(), std::to_string(at::get_num_threads())}),
        background_(folder / "run") {
    make_copies();
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : live_) bytes += tensor.nbytes();
    std::printf("%zu tensors, %.0f MB, %d threads, in %s\n", live_.size(), static_cast<double>(bytes) / 1e6,
                at::get_num_threads(), folder.c_str());
    std::size_t number = 0;
    for (const auto& [name, tensor] : live_) {
      state_.put((number++ % 3 == 0 ? "model/" : "plugin/optimizer/adamw/") + name, tensor);
    }
  }

  void measure_save() {
    const auto place = (folder_ / "saved").string();
    const auto remove = [&] {
      syncs = sums = true;
      fs::remove_all(place);
    };
    const auto save = [&](bool with_sync, bool with_sums) {
      return [&, with_sync, with_sums] {
        syncs = with_sync;
        sums = with_sums;
        vernier::write_checkpoint(place, {}, live_, {});
      };
    };
    const auto all = measure("save",
                             with_python({{"Vernier, without fsync", save(false, true), remove},
                                          {"Vernier, without fsync, without checksums", save(false, false), remove},
                                          {"Vernier", save(true, true), remove},
                                          {"Vernier, without checksums", save(true, false), remove}},
                                         {"safetensors save_file", "torch.save", "DCP save"}),
                             15);
    bars.add("save without fsync, to safetensors", all, "Vernier, without fsync", "Python: safetensors save_file", 1);
    bars.add("checksums of a save", all, "Vernier", "Vernier, without checksums", 1.1);
  }

  void measure_restore() {
    const auto saved = (folder_ / "restored").string();
    vernier::write_checkpoint(saved, {}, live_, {});
    const auto own =
        measure("restore, into memory of their own",
                with_python({{"Vernier, every byte checked", [&] { vernier::read_checkpoint(saved); }},
                             {"Vernier, load_safetensors, which has no checksums",
                              [&] { vernier::load_safetensors(saved + "/model.safetensors"); }}},
                            {"safetensors load_file, cloned", "safetensors load_file, which maps and reads nothing"}),
                15);
    bars.add("restore, to safetensors", own, "Vernier, every byte checked", "Python: safetensors load_file, cloned", 1);
    const auto copy = [this] { make_copies(); };
    const auto into = measure(
        "restore, into existing tensors",
        with_python(
            {{"Vernier, every byte checked, and handed over",
              [&] { vernier::move_into(copies_, vernier::read_checkpoint(saved).model.tensors); }, copy},
             {"Vernier, load_safetensors, and handed over",
              [&] { vernier::move_into(copies_, vernier::load_safetensors(saved + "/model.safetensors")); }, copy}},
            {"safetensors load_file, copied", "safetensors load_model", "torch.load", "DCP load"}),
        15);
    bars.add("restore into a model, to safetensors", into, "Vernier, every byte checked, and handed over",
             "Python: safetensors load_model", 1.25);
  }

  void measure_stall() {
    const auto wait = [&] { background_.wait(); };
    const auto all =
        measure("stall of a save in the background",
                with_python({{"a copy in memory", [&] { fill(live_); }},
                             {.name = "Vernier, a core is free",
                              .after = wait,
                              .itself = [&] { return background_.stall(state_, [&] { forward(10); }); }},
                             {.name = "Vernier, training on all cores",
                              .after = wait,
                              .itself = [&] { return background_.stall_on_all_cores(state_, [&] { forward(20); }); }}},
                            {"DCP async_save"}),
                15);
    for (const std::string how : {"Vernier, a core is free", "Vernier, training on all cores"}) {
      bars.add("stall, to a copy in memory: " + how, all, how, "a copy in memory", 1.2);
      bars.add("stall, to DCP's: " + how, all, how, "Python: DCP async_save", 0.2);
    }
  }

  void measure_steps() {
    at::set_num_threads(1);  // the other core is for the writer
    const auto steps = [&] { forward(40); };
    const auto all =
        measure("40 steps on one thread",
                {{"alone", steps},
                 {"while a save is written", steps, [&] { background_.wait(); }, [&] { background_.start(state_); }}},
                15);
    bars.add("steps while a save is written, on a free core", all, "while a save is written", "alone", 1.05);
  }

  Bars bars;

 private:
  void make_copies() {  // in memory that LibTorch gives, as a model's is
    for (const auto& [name, tensor] : live_) copies_[name] = tensor.clone();
  }
  void fill(const Tensors& loaded) {
    for (const auto& [name, tensor] : loaded) copies_[name].copy_(tensor);
  }
  // A forward pass of some milliseconds on one thread, which leaves a core free for copies beside it.
  void forward(int layers) const {
    for (int i = 0; i < layers; ++i) at::linear(x_, w_);
  }
  std::vector<Measured> with_python(std::vector<Measured> all, const std::vector<std::string>& names) {
    for (const auto& name : names) {
      if (!python_.has(name)) continue;
      all.push_back({"Python: " + name, [this, name] { python_.call(name); }, [this] { python_.call("after"); }});
    }
    return all;
  }

  fs::path folder_;
  Tensors live_, copies_;
  Python python_;
  Background background_;
  vernier::State state_;  // a run's state: Adam's memory is two thirds of it
  torch::Tensor x_ = torch::randn({256, 424}), w_ = torch::randn({1696, 424});
};

}  // namespace

int main(int count, char** words) {
  const std::set<std::string> asked(words + 1, words + count);
  const bool checks = asked.count("--check") != 0;
  const auto wants = [&](const char* part) { return asked.size() == (checks ? 1 : 0) || asked.count(part) != 0; };
  const auto folder = fs::temp_directory_path() / ("vernier-checkpoint-" + std::to_string(getpid()));
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::owner_all);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  bool missed = false;
  {
    Benchmark benchmark(folder);
    if (wants("save")) benchmark.measure_save();
    if (wants("restore")) benchmark.measure_restore();
    if (wants("stall")) benchmark.measure_stall();
    if (wants("steps")) benchmark.measure_steps();
    benchmark.bars.print();
    missed = benchmark.bars.missed();
  }
  fs::remove_all(folder);
  return checks && missed ? 1 : 0;
}
