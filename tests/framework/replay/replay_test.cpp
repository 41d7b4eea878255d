// `vernier replay`: the bits of the step again, and beside it another precision.
#include "tools/replay/replay.h"

#include <vernier/checkpoint_folder.h>
#include <vernier/fused_kernels.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "flight.h"
#include "log_lines.h"
#include "program.h"
#include "run/prepared.h"
#include "small_run.h"
#include "thrown.h"

namespace replay_test {

namespace fs = std::filesystem;
using vernier::Event;

namespace {

std::string gpt(const TemporaryFolder& folder, const std::string& more) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  return "[run]\nsteps = 4\nthreads = 1\nname = 'flown'\noutput = '" + (folder.path() / "run").string() +
         "'\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
         "']\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 16\nbatch_size = 6\nvalidation = 0.0\ndropout = 0.1\n"
         "[optimizer]\nuse = 'adamw'\n[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n"
         "[[callback]]\nuse = 'flight_recorder'\nevery = 1\n" +
         more;
}

// A run into which something comes; returns the capsule of step 3.
std::string capsule_of(const TemporaryFolder& folder, const std::string& config, Event event,
                       std::function<void(vernier::Run&)> change) {
  const auto output = folder.path() / "run";
  fs::create_directories(output);
  const auto table = from_toml({config});
  std::ofstream(output / "config.toml") << vernier::to_toml(table);
  const NoLog no_log;
  vernier::use_fused_kernels();  // prepare() does so too
  SmallRun run(table, output);
  run.on(event, std::move(change));
  run.train();
  return output / "capsules" / "step-00000003";
}

// Its weights are made too large after the update of step 2.
std::string capsule_of(const TemporaryFolder& folder, const std::string& config, double factor) {
  return capsule_of(folder, config, Event::StepEnd, [factor](vernier::Run& now) {
    if (now.step != 2) return;
    const torch::NoGradGuard no_grad;
    for (auto& parameter : now.parameters) {
      if (parameter.name == (factor == HUGE_VAL ? "h.1.ln_2.weight" : "h.1.mlp.c_fc.weight")) {
        const double half = std::sqrt(factor);  // the whole does not fit into float32
        parameter.model.mul_(half).mul_(half);
        if (!parameter.master.is_same(parameter.model)) parameter.master.mul_(half).mul_(half);
      }
    }
  });
}

// As `vernier replay` prepares it: its weights come from the capsule.
std::unique_ptr<vernier::Prepared> prepared_for(const vernier::Capsule& capsule, const std::string& path,
                                                const std::atomic<int>& stop) {
  const auto resumes = [](auto&&...) { return true; };
  return vernier::prepare(vernier::configuration_of(capsule, path), "replay", built_plugins(), stop, resumes, 1);
}

const std::vector<std::pair<std::string, double>>& policies() {
  static const std::vector<std::pair<std::string, double>> all = {
      {"[precision]\nuse = 'fp32'\n", 1e39},
      {"[precision]\nuse = 'bf16'\n", 1e39},
      {"[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\n", 3e6},
      {"[precision]\nuse = 'bf16'\nlevel = 'O2'\n", 1e39},
      {"[precision]\nuse = 'fp8'\n", HUGE_VAL}};
  return all;
}

}  // namespace

TEST_CASE("replay: the bits of the step, in every precision, with dropout and in micro-batches") {
  for (const auto& [precision, factor] : policies()) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const auto path = capsule_of(folder, gpt(folder, precision), factor);
    REQUIRE(fs::exists(path));
    const auto capsule = vernier::read_capsule(path);
    CHECK(capsule.seen.difference(capsule.repeated).empty());
    std::atomic<int> stop = 0;
    const auto prepared = prepared_for(capsule, path, stop);
    const auto replayed = vernier::replay(*prepared, capsule, false);
    CHECK(replayed.inexact.empty());
    CHECK(capsule.repeated.difference(replayed.bits) == "");
    REQUIRE(replayed.origin);
    // fp8 has no overflow: a weight is not finite there. Only float16 overflows in the layer itself.
    const bool is_weight = factor == HUGE_VAL;
    CHECK(replayed.origin->phase == (is_weight ? "update" : "forward"));
    if (is_weight) CHECK(replayed.origin->layer == "h.1.ln_2");
    if (precision.find("fp16") != std::string::npos) CHECK(replayed.origin->layer == "h.1.mlp.c_fc");
  }
}

TEST_CASE("replay: the bits of a step of a network with convolutions and running statistics") {
  for (const auto& [precision, factor] : policies()) {
    if (precision.find("fp8") != std::string::npos) continue;  // it has no layer for it
    CAPTURE(precision);
    const TemporaryFolder folder;
    const auto config = flight::images(folder, 4) + "[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n" +
                        flight::recorder + "[[callback]]\nuse = 'inject'\nlayer = 'conv_1'\nat_step = 3\n" + precision;
    const auto path = capsule_of(folder, config, Event::RunBegin, [](vernier::Run&) {});
    REQUIRE(fs::exists(path));
    const auto capsule = vernier::read_capsule(path);
    std::atomic<int> stop = 0;
    const auto prepared = prepared_for(capsule, path, stop);
    const auto replayed = vernier::replay(*prepared, capsule, false);
    CHECK(replayed.inexact.empty());
    const auto bad = prepared->run.non_finite_gradients();
    CHECK(bad == std::vector<std::string>{"conv_1.weight"});  // the bits of all others are those of numbers
    CHECK(replayed.bits.gradients.size() > bad.size());
    CHECK(capsule.repeated.difference(replayed.bits) == "");
  }
}

TEST_CASE("replay: the program says the bits and the origin, and shows another precision beside it") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[2].first), policies()[2].second);
  Program same({"replay", path}, folder.path());
  CHECK(same.wait() == 0);
  CHECK(same.out().find("same bits") != std::string::npos);
  CHECK(same.out().find("forward, h.1.mlp.c_fc: linear") != std::string::npos);
  Program beside({"replay", path, "--precision", "fp32"}, folder.path());
  CHECK(beside.wait() == 0);
  const auto text = beside.out();
  const auto mark = text.find("<- the first beyond reason");
  REQUIRE(mark != std::string::npos);
  const auto line = text.rfind('\n', mark) + 1;
  CHECK(text.compare(line, 12, "h.1.mlp.c_fc") == 0);
}

TEST_CASE("replay: the heads of the tables stand over their columns") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[1].first), policies()[1].second);
  Program program({"replay", path, "--set", "precision.level=O1"}, folder.path());
  CHECK(program.wait() == 0);
  std::istringstream lines(program.out());
  std::vector<std::size_t> columns;
  int heads = 0, rows = 0;
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    const bool is_head = line.starts_with("activation of ") || line.starts_with("gradient of ");
    if (is_head) {
      std::vector<std::size_t> of_head;
      for (const char* head : {"bf16 amax", "rms", "bf16 (changed) amax", "rms", "distance", "limit"}) {
        of_head.push_back(line.find(head, of_head.empty() ? 0 : of_head.back() + 1));
        REQUIRE(of_head.back() != std::string::npos);
      }
      CHECK((columns.empty() || columns == of_head));
      columns = of_head;
      ++heads;
    } else if (!columns.empty() && !line.starts_with("none differs")) {
      for (const auto column : columns) {
        REQUIRE(line.size() > column);
        CHECK(line[column] != ' ');
        CHECK(line.substr(column - 2, 2) == "  ");
      }
      ++rows;
    }
  }
  CHECK(heads == 2);
  CHECK(rows > 20);
}

TEST_CASE("replay: an update's operation and ranges are those that the run reported") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[0].first), Event::GradientsReady, [](vernier::Run& now) {
    if (now.step == 1) now.learning_rate_factor *= 1e60;
  });
  const auto capsule = vernier::read_capsule(path);
  REQUIRE(capsule.origin);
  CHECK(capsule.origin->operation == "optimizer/adamw");
  CHECK(capsule.origin->step == 2);
  const auto again = vernier::origin_from(vernier::text_of(*capsule.origin));
  CHECK(again.text() == capsule.origin->text());
  Program program({"replay", path}, folder.path());
  CHECK(program.wait() == 0);
  const auto text = program.out();
  CAPTURE(text);
  CHECK(text.find("same bits") != std::string::npos);
  CHECK(text.find("the update of step 2 made the weights so") != std::string::npos);
  CHECK(text.find("update of step 2, " + capsule.origin->tensor + ": optimizer/adamw; from gradient amax") !=
        std::string::npos);
  CHECK(text.find("learning_rate amax") != std::string::npos);
}

TEST_CASE("replay: what is not finite in both is not a difference, what is so in one alone is beyond any limit") {
  vernier::Replayed first, second;
  first.epsilon = second.epsilon = 1e-3;
  const auto nan = std::nan("");
  const auto add = [&](const char* name, std::initializer_list<double> a, std::initializer_list<double> b) {
    first.gradients.emplace_back(name, torch::tensor(std::vector<double>(a)));
    second.gradients.emplace_back(name, torch::tensor(std::vector<double>(b)));
  };
  first.outputs = second.outputs = {{"layer", "linear", 0, {}, torch::ones({2})}};
  add("same", {1, nan, HUGE_VAL}, {1, nan, HUGE_VAL});
  add("one", {1, nan}, {1, 2});
  add("sign", {1, HUGE_VAL}, {1, -HUGE_VAL});
  add("far", {1, nan}, {2, nan});
  std::map<std::string, vernier::Compared> rows;
  for (const auto& row : vernier::compare(first, second)) rows[row.what] = row;
  CHECK(rows.at("same").distance == 0);
  CHECK_FALSE(rows.at("same").is_beyond());
  CHECK(rows.at("one").is_beyond());
  CHECK(std::isinf(rows.at("sign").distance));
  CHECK(rows.at("far").distance == 0.5);
  CHECK(rows.at("far").is_beyond());
}

TEST_CASE("replay: float16 beside a run without a scaler gets one, unless one is named") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[0].first), policies()[0].second);
  const std::string added = "scaler/dynamic is added";
  for (const auto& words : {std::vector<std::string>{"--precision", "fp16"},
                            {"--set", "precision.use=fp16"},
                            {"--set", "scaler.init_scale=8", "--precision", "fp16"}}) {
    std::vector<std::string> all = {"replay", path};
    all.insert(all.end(), words.begin(), words.end());
    Program program(all, folder.path());
    CHECK(program.wait() == 0);
    CHECK(program.err() == "");
    CHECK(program.out().find(added) != std::string::npos);
    CHECK(program.out().find("side by side: fp32 loss") != std::string::npos);
  }
  Program named({"replay", path, "--precision", "fp16", "--set", "scaler.use=static"}, folder.path());
  CHECK(named.wait() == 0);
  CHECK(named.out().find(added) == std::string::npos);
  Program none({"replay", path, "--precision", "fp16", "--set", "scaler.use=none"}, folder.path());
  CHECK(none.wait() == 2);
  CHECK(none.err().find("needs a loss scaler") != std::string::npos);
  for (const char* set : {"precision.level=O1", "precision.level=O0"}) {  // the latter is float32 by another name
    const auto use = std::string(set).ends_with("O0") ? "precision.use=fp16" : "precision.use=bf16";
    Program other({"replay", path, "--set", use, "--set", set}, folder.path());
    CHECK(other.wait() == 0);
    CHECK(other.out().find(added) == std::string::npos);
  }
}

TEST_CASE("replay: other bits are reported, with what is not as it was") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[0].first), policies()[0].second);
  auto capsule = vernier::read_capsule(path);
  capsule.repeated.loss = "1 (0x3f800000)";
  capsule.state.put("run/processor", std::string("another"));
  vernier::write_capsule(folder.path() / "changed", capsule, "flown");
  Program program({"replay", folder.path() / "changed"}, folder.path());
  CHECK(program.wait() == 4);
  CHECK(program.out().find("other bits: the loss (1 (0x3f800000)") != std::string::npos);
  CHECK(program.out().find("processor was another and is") != std::string::npos);
}

TEST_CASE("replay: what is not a capsule is refused in one line") {
  const TemporaryFolder folder;
  const auto path = capsule_of(folder, gpt(folder, policies()[0].first), policies()[0].second);
  const auto refused = [&](const std::vector<std::string>& words, const std::string& part, int status = 2) {
    Program program(words, folder.path());
    CHECK(program.wait() == status);
    const auto text = program.err();
    CHECK(text.find(part) != std::string::npos);
    CHECK(std::ranges::count(text, '\n') == 1);
  };
  refused({"replay"}, "name a run or a capsule");
  refused({"replay", "nowhere"}, "nowhere: is not a capsule");
  refused({"replay", folder.path() / "run" / "checkpoints" / "step-00000004"}, "is a checkpoint, not a capsule");
  refused({"replay", path, "two"}, "takes one run or capsule");
  refused({"replay", path, "--precision", "fp33"}, "fp33", /*status=*/3);
  fs::remove(folder.path() / "text");
  refused({"replay", path}, "its files must be where they were");
  fs::resize_file(path + "/state.safetensors", 100);
  refused({"replay", path}, "state.safetensors");
}

}  // namespace replay_test
