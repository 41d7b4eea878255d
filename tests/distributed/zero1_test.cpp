// distributed/zero1 has the bits of distributed/ddp. Each rank keeps a part of the optimizer's state.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "long_form.h"
#include "several_ranks.h"

namespace zero1_test {

using namespace several_ranks;

TEST_CASE("zero1: has the bits of ddp, and its checkpoint") {
  struct Case {
    std::string name;
    Words settings;
    int ranks = 2;
  };
  const std::vector<Case> cases = {
      {"AdamW on three ranks, with clipping, an average of the weights and a group that is frozen",
       {R"(callback=[{use="clip_norm",max_norm=0.1},{use="ema"},{use="recovery",non_finite=["rewind"],)"
        R"(snapshot_every=2,rewind_back=2}])",
        R"(optimizer.group=[{match=["*.bias"],weight_decay=0.0},{match=["layers.0.*"],frozen=true}])",
        "task.hidden=[24,16]"},
       3},
      {"states that are rounded at random by the parameter's number", {"optimizer.state=bf16"}},
      {"states in 8 bits", {"optimizer.state=8bit"}},
      {"Muon, whose groups are told apart by their parameters",
       {"optimizer.use=muon", R"(optimizer.group=[{match=["*.bias"],learning_rate=0.02}])"}},
      {"no state at all", {"optimizer={use=\"sgd\",learning_rate=0.1}"}},
      {"more ranks than parameters", {"optimizer.use=lamb", "task.hidden=[]"}, 3},
      {"float32 masters, and a scale that overflows",
       {R"(precision={use="fp16",level="O2"})", R"(scaler={use="dynamic",init_scale=1e9,growth_interval=3})",
        R"(callback=[{use="clip_norm",max_norm=0.1},{use="recovery"}])"}},
      {"no masters", {R"(precision={use="bf16",level="O3",rounding="nearest"})", "optimizer.use=sgd"}},
      {"weights that are rounded at random", {R"(precision={use="bf16",level="O3",rounding="stochastic"})"}},
      {"Kahan's compensation", {R"(precision={use="bf16",level="O3",rounding="kahan"})"}},
      {"masters for some steps",
       {R"(precision={use="bf16",level="O2"})", R"(callback=[{use="switch",at_step=5,to={precision={use="fp32"}}},)"
                                                R"({use="switch",at_step=8,to={precision={use="bf16",level="O2"},)"
                                                R"(optimizer={use="lion",learning_rate=0.001}}}])"}},
      {"gradients and weights in pieces of a few bytes", {"distributed.bucket=100B"}, 3},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    RunFolder ddp(mlp), zero1(mlp);
    const auto sets = sets_of(each.settings);
    train(ddp, each.ranks, sets);
    train(zero1, each.ranks, with(sets, {"--set=distributed.use=zero1"}));
    CHECK(digest_of(zero1) == digest_of(ddp));
    CHECK(read_text(zero1.at("out/losses.jsonl")) == read_text(ddp.at("out/losses.jsonl")));
    CHECK(different(state_of(zero1), state_of(ddp)).empty());
  }
}

TEST_CASE("zero1: a run is resumed, on the same ranks bit for bit, on others and by ddp with the same batches") {
  const auto sets = sets_of({R"(precision={use="bf16",level="O2"})", "distributed.use=zero1",
                             R"(callback=[{use="recovery",non_finite=["rewind"],snapshot_every=2,rewind_back=2}])"});
  RunFolder whole(mlp), parts(mlp), others(mlp);
  train(whole, 3, sets);
  train(parts, 3, with(sets, {"--set=run.steps=5"}));
  train(parts, 3, with(sets, {"--resume"}));
  CHECK(digest_of(parts) == digest_of(whole));
  CHECK(different(state_of(parts), state_of(whole)).empty());
  train(others, 3, with(sets, {"--set=run.steps=4"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=6"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=8", "--set=distributed.use=ddp"}));
  train(others, 2, with(sets, {"--resume", "--set=run.steps=10"}));
  train(others, 1, with(sets, {"--resume", "--set=distributed.use=none"}));
  CHECK(distance(weights_of(others, 12), weights_of(whole, 12)) <= 2e-2);  // in bfloat16
  CHECK(others.summary()["samples"] == whole.summary()["samples"]);
}

TEST_CASE("zero1: each rank writes its part of a checkpoint") {
  for (const std::string async : {"true", "false"}) {
    CAPTURE(async);
    RunFolder place(mlp);
    train(place, 3, sets_of({"distributed.use=zero1", "checkpoint.async=" + async}));
    for (const int step : {4, 8, 12}) {
      const auto manifest =
          vernier::verify_checkpoint((place.at("out/checkpoints") / vernier::checkpoint_name(step)).string());
      REQUIRE(manifest.files.size() == 4);
      std::size_t parts = 0;
      for (const auto& [file, content] : manifest.files) {
        for (const auto& [name, tensor] : content.tensors) parts += name.ends_with("exp_avg/layers.0.weight") ? 1 : 0;
        if (file.starts_with("state-rank-")) {
          CHECK(!content.tensors.empty());
          for (const auto& [name, tensor] : content.tensors) CHECK(name.starts_with("plugin/optimizer/adamw/"));
        }
      }
      CHECK(parts <= 1);
    }
    for (const auto& entry : std::filesystem::directory_iterator(place.at("out/checkpoints"))) {
      CHECK_FALSE(entry.path().filename().string().starts_with(".tmp-"));
    }
  }
}

TEST_CASE("zero1: the ranks save together, whatever decides when") {
  const std::vector<Words> cases = {
      {"checkpoint.every=1", "checkpoint.in_flight=skip"},
      {"checkpoint.every=0", "checkpoint.every_minutes=0.00001"},
      {"checkpoint.every=0", "checkpoint.at_epoch_end=true"},
      // The best one so far cannot be saved: rank 0 alone knows that it is gone.
      {"checkpoint.every=2", "checkpoint.keep_best=1", "run.validate_every=1", "optimizer.learning_rate=0.5",
       "checkpoint.on_failure=continue", "checkpoint.keep_last=1", "run.steps=60"},
  };
  for (const auto& settings : cases) {
    for (const std::string use : {"ddp", "zero1"}) {
      CAPTURE(settings);
      CAPTURE(use);
      RunFolder place(mlp);
      ::setenv("LD_PRELOAD", VERNIER_BINARY_DIR "/libdisk_faults.so", 1);
      Ranks ranks(place, 2, sets_of(with(settings, {"distributed.use=" + use, "distributed.timeout=30"})), {},
                  {{"VERNIER_DISK", settings.size() > 2 ? "enospc 20 */model.safetensors" : "none 1 /nowhere"}});
      ::unsetenv("LD_PRELOAD");
      REQUIRE_MESSAGE(ranks.wait() == all_of(2, 0), ranks.errors());
      CHECK(vernier::verify_checkpoint(place.at("out/checkpoints/latest").string()).step >= 12);
    }
  }
}

TEST_CASE("zero1: where a rank cannot write its part all ranks know it, and stop or go on") {
  struct Case {
    std::string on_failure;
    int victim;
    std::string path;  // its disk is full here, once
    int status;
    bool has_first, has_second;  // checkpoint
  };
  for (const auto& each :
       {Case{"stop", 1, "/state-rank-1.safetensors", 4, false, false},
        Case{"continue", 1, "/state-rank-1.safetensors", 0, false, true},
        Case{"stop", 0, "/checkpoints", 4, false, false}, Case{"continue", 0, "/checkpoints", 0, false, true},
        Case{"stop", 0, "/manifest.json", 4, false, false}, Case{"continue", 0, "/manifest.json", 0, false, true}}) {
    CAPTURE(each.on_failure);
    CAPTURE(each.path);
    RunFolder place(mlp);
    const auto full_disk_of_victim = [&](int rank) {
      const bool is_full = rank == each.victim;
      is_full ? ::setenv("LD_PRELOAD", VERNIER_BINARY_DIR "/libdisk_faults.so", 1) : ::unsetenv("LD_PRELOAD");
      return Words{};
    };
    const auto order = "enospc 1 *" + each.path;
    Ranks ranks(place, 3, sets_of({"distributed.use=zero1", "checkpoint.on_failure=" + each.on_failure}),
                full_disk_of_victim, {{"VERNIER_DISK", order}});
    ::unsetenv("LD_PRELOAD");
    REQUIRE_MESSAGE(ranks.wait() == all_of(3, each.status), ranks.errors());
    for (int rank = 0; rank < (each.status == 0 ? 1 : 3); ++rank) {  // the others print errors only
      const auto text = ranks[rank].err();
      CHECK_MESSAGE(says(text, each.path + ": "), text);
      CHECK_MESSAGE(says(text, "No space left on device"), text);
    }
    const auto has = [&](int step) {
      return std::filesystem::exists(place.at("out/checkpoints") / vernier::checkpoint_name(step) / "manifest.json");
    };
    CHECK(has(4) == each.has_first);
    CHECK(has(8) == each.has_second);
  }
}

TEST_CASE("zero1: a rank that is killed at any moment is named at once, and the run is resumed bit for bit") {
  const auto sets = sets_of({"run.steps=150", "run.validate_every=0", "run.resume=auto", "checkpoint.every=10",
                             "task.inputs=64", "task.hidden=[64,64]"});
  // From three ranks on, shared memory and connections differ in the last bits.
  RunFolder wholes[2] = {RunFolder(mlp), RunFolder(mlp)};
  train(wholes[0], 3, with(sets, {"--set=distributed.shared_memory=false"}));
  train(wholes[1], 3, sets);
  std::mt19937 random(22);
  const int trials = is_long() ? 50 : 2;
  double longest = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const int victim = static_cast<int>(random() % 3), milliseconds = static_cast<int>(random() % 400);
    const std::string use = trial % 2 == 0 ? "zero3" : trial % 4 == 1 ? "zero1" : "ddp";
    CAPTURE(trial);
    CAPTURE(victim);
    CAPTURE(use);
    RunFolder place(mlp);
    const bool shares = trial % 3 != 1;
    CAPTURE(shares);
    const auto& whole = wholes[shares ? 1 : 0];
    const auto all = with(sets, {"--set=distributed.use=" + use,
                                 std::string("--set=distributed.shared_memory=") + (shares ? "true" : "false")});
    {
      Ranks ranks(place, 3, all);
      REQUIRE(ranks[0].wait_for(place.at("out/checkpoints") / vernier::checkpoint_name(10)));
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      const auto begin = Clock::now();
      ranks[victim].send(SIGKILL);
      const auto status = ranks.wait();
      const bool was_done = status[static_cast<std::size_t>(victim)] == 0;
      std::string texts;
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim || was_done) continue;
        const bool ended_before = status[static_cast<std::size_t>(rank)] == 0;  // the run was at its end
        const auto text = ranks[rank].err();
        CHECK_MESSAGE((ended_before || says(text, "rank " + std::to_string(victim) + " is lost, as rank ")), text);
        texts += text;
      }
      longest = std::max(longest, seconds_since(begin));
      CHECK_MESSAGE(longest < 10, texts);  // 2 on a machine that does nothing else
    }
    train(place, 3, all);
    CHECK(digest_of(place) == digest_of(whole));
    CHECK(different(state_of(place, 150), state_of(whole, 150)).empty());
  }
  if (is_long()) MESSAGE("the others had ended within ", longest, " s");
}

TEST_CASE("zero1: a rewind goes back to the own part of the state on each rank") {
  const auto sets =
      sets_of({"run.steps=20", R"(callback=[{use="inject",what="nan",layer="layers.1",at_batch=9},)"
                               R"({use="recovery",non_finite=["rewind"],snapshot_every=4,rewind_back=2}])"});
  RunFolder ddp(mlp), zero1(mlp);
  train(ddp, 2, sets);
  train(zero1, 2, with(sets, {"--set=distributed.use=zero1"}));
  CHECK(says(read_text(ddp.at("out/losses.jsonl")), "rewound"));
  CHECK(digest_of(zero1) == digest_of(ddp));
}

TEST_CASE("zero1: `vernier check` shows that each rank keeps its part of masters and state") {
  RunFolder place(mlp);
  const auto bytes_of = [&](const std::string& out) {  // each rank's bytes, as in "masters 12 kB, optimizer 24 kB"
    std::vector<std::pair<double, double>> all;
    const std::regex line(R"(memory of rank \d: masters ([\d.]+) kB, optimizer ([\d.]+) kB)");
    for (std::sregex_iterator found(out.begin(), out.end(), line), end; found != end; ++found) {
      all.emplace_back(std::stod((*found)[1]), std::stod((*found)[2]));
    }
    return all;
  };
  const auto sets = sets_of({R"(precision={use="bf16",level="O2"})", "task.hidden=[64,64,64]", "task.inputs=64"});
  std::map<std::string, std::vector<std::pair<double, double>>> bytes;
  for (const std::string use : {"ddp", "zero1", "zero3"}) {
    Ranks ranks(place, 3, with(sets, {"--set=distributed.use=" + use}), {}, {}, "check");
    REQUIRE_MESSAGE(ranks.wait() == all_of(3, 0), ranks.errors());
    CHECK(says(ranks[0].out(), "ready: nothing was trained or written"));
    CHECK(ranks[1].out().empty());
    if (use == "zero3") continue;
    bytes[use] = bytes_of(ranks[0].out());
    REQUIRE(bytes[use].size() == 3);
  }
  double masters = 0, optimizer = 0;
  for (const auto& [masters_of_rank, optimizer_of_rank] : bytes["zero1"]) {
    masters += masters_of_rank;
    optimizer += optimizer_of_rank;
    CHECK(masters_of_rank < 0.4 * bytes["ddp"][0].first);
    CHECK(optimizer_of_rank < 0.4 * bytes["ddp"][0].second);
  }
  CHECK(masters == doctest::Approx(bytes["ddp"][0].first).epsilon(0.02));
  CHECK(optimizer == doctest::Approx(bytes["ddp"][0].second).epsilon(0.02));
}

TEST_CASE("zero1: what cannot be sharded is refused, with what to do instead") {
  struct Case {
    Words settings;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"optimizer={use=\"lbfgs\"}"}, "optimizer/lbfgs needs those of all parameters at once; use distributed/ddp"},
      {{"optimizer.in_backward=true"}, "optimizer/adamw steps in it; leave in_backward out"},
      {{R"(callback=[{use="switch",at_step=2,to={optimizer={use="lbfgs"}}}])"},
       "optimizer/lbfgs needs those of all parameters at once"},
      {{R"(precision={use="bf16",level="O2"})", R"(callback=[{use="ema"}])"},
       "callback/ema needs float32 weights, and another rank has the master of "},
      {{R"(precision={use="bf16",level="O2"})", R"(callback=[{use="swa",from=3}])"}, "callback/swa needs float32"},
      {{R"(precision={use="bf16",level="O2"})", R"(callback=[{use="early_stopping"}])"},
       "callback/early_stopping needs float32"},
      {{R"(precision={use="bf16",level="O2"})", R"(callback=[{use="sam"}])"}, "callback/sam needs float32"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.message);
    RunFolder place(mlp);
    Ranks ranks(place, 2, sets_of(with(each.settings, {"distributed.use=zero1"})));
    const auto status = ranks.wait();
    for (const int one : status) CHECK((one == 2 || one == 4));
    for (int rank = 0; rank < 2; ++rank) CHECK_MESSAGE(says(ranks[rank].err(), each.message), ranks[rank].err());
  }
}

}  // namespace zero1_test
