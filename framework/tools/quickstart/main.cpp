// `vernier quickstart`: calls other verbs on a small run, and prints each call, to be typed again.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
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

Shows what Vernier does on FILE, configs/quickstart.toml if none is given: calls other verbs, and prints each call.

  --mode MODE          basic       trains in the precision that suits this machine, and prints device, memory, loss and
                                   loss scale
                       benchmark   compares speed, memory and loss of six ways to train, in short runs
                       advanced    fp16 with loss scaling, four micro-batches, and an average of the weights
                       memory      what the memory of a step holds, and a run that saves memory
                       checkpoint  trains, verifies the checkpoints, resumes from the first, and compares the weights
                       all         one after the other; basic, if --mode is not given
  --epochs NUMBER      instead of FILE's steps or epochs, also of the benchmark, which has 100 steps
  --batch-size NUMBER  instead of FILE's
  --output FOLDER      runs/quickstart-modes, if not given; it must not exist
)";

using Words = std::vector<std::string>;
const Words modes = {"basic", "benchmark", "advanced", "memory", "checkpoint"};

// Calls verbs, and shows what they print.
class Quickstart {
 public:
  Quickstart(std::string file, std::string output, Words more)
      : file_(std::move(file)), output_(std::move(output)), more_(std::move(more)), children_(program_beside_this()) {}

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
    if (mode == "basic") return train("basic", {"--set", "precision.use=auto"});
    if (mode == "benchmark") return benchmark();
    if (mode == "advanced") {
      return train("advanced", {"--mixed-precision", "fp16", "--set", "scaler.use=dynamic", "--grad-accum-steps", "4",
                                "--set", "callback.ema.decay=0.99"});
    }
    if (mode == "memory") {
      const int status = call("check", {});
      return status != 0 ? status : train("memory", {"--low-memory", "--set", "run.measure_savings=true"});
    }
    return checkpoint();
  }

  int benchmark() {
    const bool has_length = std::ranges::count(more_, "--epochs") > 0;
    Words words = {"--precision", "--output", output_ + "/benchmark"};
    if (!has_length) words.insert(words.end(), {"--steps", "100"});
    return call("compare", words);
  }

  int checkpoint() {
    const auto run = output_ + "/checkpoint";
    if (const int status = train("checkpoint", {}); status != 0) return status;
    if (const int status = show({"checkpoint", "verify", run}); status != 0) return status;
    Words saved;
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints")) {
      if (entry.path().filename().string().starts_with("step-")) saved.push_back(entry.path().string());
    }
    if (saved.size() < 2) {
      throw Refused(run + " has no checkpoint before its end, so nothing can be resumed; let [checkpoint] of " + file_ +
                    " save two by a smaller `every`, as in --mode checkpoint of configs/quickstart.toml");
    }
    const auto weights = digest_of(run);
    if (const int status = train("checkpoint", {"--resume=" + *std::ranges::min_element(saved)}); status != 0)
      return status;
    const bool is_same = digest_of(run) == weights;
    std::cout << (is_same ? "the weights are those of the run that was not stopped, to the bit\n"
                          : "the weights differ from those of the run that was not stopped\n");
    return is_same ? 0 : 1;
  }

  // Returns the checksum of a run's weights at its end.
  static std::string digest_of(const std::string& run) {
    std::ifstream file(run + "/summary.json");
    return nlohmann::json::parse(file).at("digest").dump();
  }

  int train(const std::string& name, const Words& words) {
    Words all = words;
    all.insert(all.end(), {"--set", "run.output=" + output_ + "/" + name, "--set", "run.name=" + name});
    return call("train", all);
  }

  // A verb of the file, with the options for all modes.
  int call(const std::string& verb, const Words& words) {
    Words all = {verb, file_};
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
    return show(all);
  }

  int show(const Words& words) {
    std::cout << "$ vernier";
    for (const auto& word : words) std::cout << ' ' << shell_quoted(word);
    std::cout << '\n' << std::flush;
    const auto status = children_.show(words);
    return children_.stopped_by() != 0 && status == 0 ? 128 + children_.stopped_by() : status;
  }

  std::string file_, output_;
  Words more_;
  Children children_;
};

int quickstart(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() > 1) throw Refused("quickstart takes one file, and " + words[1] + " is a second");
  const auto file = words.size() == 1 ? words[0] : std::string("configs/quickstart.toml");
  const auto output = word_or(given, "output", "runs/quickstart-modes"), mode = word_or(given, "mode", "basic");
  if (mode != "all" && std::ranges::count(modes, mode) == 0) {
    throw Refused("--mode is " + shell_quoted(mode) +
                  ", and must be basic, benchmark, advanced, memory, checkpoint or all");
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
  return 0;
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
