// `vernier quickstart`: calls other verbs on a small run, and prints each call, to be typed again.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <regex>
#include <system_error>

#include "common/child.h"
#include "common/run_files.h"
#include "common/text/quoting.h"
#include "common/verb.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;

constexpr const char* usage = R"(usage: vernier quickstart [FILE] [--mode MODE] [--epochs NUMBER] [--batch-size NUMBER]

Shows what Vernier does on FILE, configs/quickstart_small.toml if none is given: calls other verbs, and prints each
call. At the end it writes report.html, a page with curves of all that it trained.

  --mode MODE          basic       trains in the precision that suits this machine, and prints device, memory, loss and
                                   loss scale
                       benchmark   compares speed, memory and loss of six ways to train, in short runs
                       advanced    fp16 with loss scaling, four micro-batches, and an average of the weights
                       memory      what the memory of a step holds, and a run in bf16 that saves memory
                       checkpoint  trains, verifies the checkpoints, resumes from the first, and compares the weights
                       errors      puts a NaN, an overflow and an exception into runs, which recover from them
                       all         one after the other; basic, if --mode is not given
  --epochs NUMBER      instead of FILE's steps or epochs, also of the benchmark, which has 100 steps
  --batch-size NUMBER  instead of FILE's
  --output FOLDER      runs/quickstart-modes, if not given; it must not exist
)";

using Words = std::vector<std::string>;
const Words modes = {"basic", "benchmark", "advanced", "memory", "checkpoint", "errors"};

// Calls verbs, and shows what they print.
class Quickstart {
 public:
  Quickstart(std::string file, std::string output, Words more)
      : file_(std::move(file)), output_(std::move(output)), more_(std::move(more)), children_(program_beside_this()) {}

  // A page of all that is in the output. It comes last.
  int report() {
    Words words = {"report"};
    for (const auto& entry : fs::directory_iterator(output_)) words.push_back(entry.path().string());
    std::sort(words.begin() + 1, words.end());
    words.insert(words.end(), {"--output", output_ + "/report.html"});
    return show(words);
  }

  // Returns the exit status of the first call that fails.
  int run(const std::string& mode) {
    const auto start = std::chrono::steady_clock::now();
    std::cout << "== " << mode << '\n';
    if (const int status = call_all(mode); status != 0) return status;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("== %s took %.1f s\n\n", mode.c_str(), seconds.count());
    return 0;
  }

 private:
  int call_all(const std::string& mode) {
    // A machine whose fast dtype is float16 needs the scaler.
    if (mode == "basic") return train("basic", {"precision.use=auto", "scaler.use=dynamic"});
    if (mode == "benchmark") return benchmark();
    if (mode == "advanced") {
      return train("advanced", {"precision.use=fp16", "scaler.use=dynamic", "accumulation.use=fixed",
                                "accumulation.micro_batches=4", "callback.ema.decay=0.99"});
    }
    if (mode == "memory") {
      const int status = call("check", {"precision.use=bf16"}, {"--low-memory"});
      return status != 0 ? status
                         : train("memory", {"precision.use=bf16", "run.measure_savings=true"}, {"--low-memory"});
    }
    return mode == "checkpoint" ? checkpoint() : errors();
  }

  int benchmark() {
    const bool has_length = std::ranges::count(more_, "--epochs") > 0;
    Words words = {"--precision", "--output", output_ + "/benchmark"};
    if (!has_length) words.insert(words.end(), {"--steps", "100"});
    return call("compare", {}, words);
  }

  // FILE may save rarely or never, so this mode says when. It asks `vernier check` for the number of updates, which a
  // run in epochs gets from its data.
  int checkpoint() {
    const auto checked = children_.run(of_file("check"));
    if (const int status = status_after(checked.status); status != 0) {
      std::cerr << checked.err;
      return status;
    }
    std::smatch steps;
    std::regex_search(checked.out, steps, std::regex(": ([0-9]+) steps? on "));
    const auto every = std::max(std::int64_t{1}, std::stol(steps.str(1)) / 2);
    const auto run = output_ + "/checkpoint";
    const Words saves = {"checkpoint.use=rolling", "checkpoint.every=" + std::to_string(every),
                         "checkpoint.keep_last=3"};
    if (const int status = train("checkpoint", saves); status != 0) return status;
    if (const int status = show({"checkpoint", "verify", run}); status != 0) return status;
    Words saved;
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
      if (entry.path().filename().string().starts_with("step-")) saved.push_back(entry.path().string());
    }
    if (saved.size() < 2) {
      throw Refused(file_ + " trains a single step, so nothing can be resumed before its end; add --epochs 2");
    }
    const auto weights = read_run(run).summary.at("digest");
    const auto from = "--resume=" + *std::ranges::min_element(saved);
    if (const int status = train("checkpoint", saves, {from}); status != 0) return status;
    const bool is_same = read_run(run).summary.at("digest") == weights;
    std::cout << (is_same ? "the weights are those of the run that was not stopped, to the bit\n"
                          : "the weights differ from those of the run that was not stopped\n");
    return is_same ? 0 : 1;
  }

  int errors() {
    int status = train("errors-nan", {"callback.inject.what=\"nan\"", "callback.inject.where=loss",
                                      "callback.inject.at_batch=3", "callback.recovery.non_finite=[\"rewind\"]",
                                      "callback.recovery.rewind_back=1", "callback.recovery.snapshot_every=1"});
    if (status != 0) return status;
    status = train("errors-overflow",
                   {"precision.use=fp16", "scaler.use=dynamic", "callback.inject.what=spike",
                    "callback.inject.where=loss", "callback.inject.factor=1e30", "callback.inject.at_step=3"});
    if (status != 0) return status;
    const Words fails = {"callback.inject.what=exception", "callback.inject.at_step=3",
                         "callback.inject.transient=true", "checkpoint.use=rolling"};
    if (status = train("errors-exception", fails); status != 4) return status;
    std::cout << "the exception ended that run with status 4 and a checkpoint, from which the next call goes on\n";
    return train("errors-exception", fails, {"--resume"});
  }

  // Trains into a folder of its own. values: "KEY=VALUE".
  int train(const std::string& name, Words values, const Words& words = {}) {
    values.insert(values.end(), {"run.output=" + output_ + "/" + name, "run.name=" + name});
    return call("train", values, words);
  }

  int call(const std::string& verb, const Words& values, const Words& words) {
    return show(of_file(verb, values, words));
  }

  // Returns the call of a verb for the file, with the options for all modes.
  Words of_file(const std::string& verb, const Words& values = {}, const Words& words = {}) const {
    Words all = {verb, file_};
    for (const auto& value : values) all.insert(all.end(), {"--set", value});
    all.insert(all.end(), words.begin(), words.end());
    for (std::size_t i = 0; i < more_.size(); i += 2) {
      if (verb != "compare") {
        all.insert(all.end(), {more_[i], more_[i + 1]});
      } else if (more_[i] == "--epochs") {
        all.insert(all.end(), {"--set", "run.steps=0", "--set", "run.epochs=" + more_[i + 1]});
      } else {
        all.insert(all.end(), {"--set", "task.batch_size=" + more_[i + 1]});
      }
    }
    return all;
  }

  int show(const Words& words) {
    std::cout << "$ " << called_as();
    for (const auto& word : words) std::cout << ' ' << shell_quoted(word);
    std::cout << '\n' << std::flush;
    return status_after(children_.show(words));
  }

  int status_after(int status) {
    return children_.stopped_by() != 0 && status == 0 ? 128 + children_.stopped_by() : status;
  }

  std::string file_, output_;
  Words more_;
  Children children_;
};

int quickstart(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() > 1) throw Refused("quickstart takes one file, and " + words[1] + " is a second");
  const auto file = words.size() == 1 ? words[0] : std::string("configs/quickstart_small.toml");
  const auto output = word_or(given, "output", "runs/quickstart-modes"), mode = word_or(given, "mode", "basic");
  if (mode != "all" && std::ranges::count(modes, mode) == 0) {
    throw Refused("--mode is " + shell_quoted(mode) +
                  ", and must be basic, benchmark, advanced, memory, checkpoint, errors or all");
  }
  std::error_code none;
  if (!fs::exists(file, none)) {
    throw Refused(
        file + " is not here; " +
        (words.size() == 1 ? "name a TOML file that trains" : "call it in Vernier's folder, or name a TOML file"));
  }
  if (fs::exists(output, none))
    throw Refused(output + " is there already; remove it, or name another folder by --output");
  Words more;
  for (const char* option : {"epochs", "batch-size"}) {
    if (given.count(option) == 0) continue;
    constexpr std::int64_t most = 1'000'000'000;
    more.insert(more.end(),
                {std::string("--") + option, std::to_string(number_in<std::int64_t>(given, option, 1, most))});
  }
  Quickstart all(file, output, more);
  for (const auto& each : mode == "all" ? modes : Words{mode}) {
    if (const int status = all.run(each); status != 0) return status;
  }
  return all.report();
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description options;
  options.add_options()("mode", po::value<std::string>())("epochs", po::value<std::int64_t>())(
      "batch-size", po::value<std::int64_t>())("output", po::value<std::string>());
  Words offered = modes;
  offered.emplace_back("all");
  return call_verb({"quickstart", usage, options, quickstart, {{"--mode", offered}}}, argc, argv);
}
