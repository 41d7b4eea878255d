// Laws of a run under other conditions than the small one's: in micro-batches, with weights of 16 bits, on two ranks.
#include <vernier/error.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/free_ports.h"
#include "common/left_out.h"
#include "laws.h"
#include "trial.h"

namespace vernier {

namespace {

constexpr std::int64_t steps = 10, stop = 4;

// Returns why the plugin refuses this run by its configuration, which it may: "" if it does not.
std::string refusal(const Host& host, const Table& config) {
  try {
    Trial(host, config);
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::configuration && error.kind() != Error::Kind::plugin) throw;
    return error.what();
  }
  return "";
}

void expect_resumed_under(const Subject& subject, const Table& config, const std::string& condition) {
  const auto& host = subject.host;
  const auto whole = unless_declined(subject, [&] { return train_twice(subject, config); });
  const auto resumed = train_in_two_parts(
      host, config, stop, 1, std::make_shared<const ScratchFolder>(), [] {}, subject.id());
  if (!resumed) throw LawSkipped("it keeps nothing to go on from: its read() returns nothing");
  const auto what = difference(whole, *resumed);
  if (!what.empty()) throw Error(c10::str(condition, ", stopped after step ", stop, " and resumed: ", what));
}

}  // namespace

// At O3 with Kahan sums, masters have no memory between two steps: see Parameter::has_memory.
void check_conditions(const Subject& subject) {
  struct Condition {
    const char *role, *name;  // plugin that makes the condition
    std::vector<std::string> sets;
  };
  const std::array conditions = {
      Condition{Accumulation::role, "in micro-batches", {"accumulation.use=fixed", "accumulation.micro_batches=3"}},
      Condition{Precision::role, "at O2", {"precision.use=bf16", "precision.level=O2"}},
      Condition{Precision::role, "at O3", {"precision.use=bf16", "precision.level=O3", "precision.rounding=kahan"}}};
  bool is_tried = false;
  std::string why, declined;
  for (const auto& [role, name, sets] : conditions) {
    if (subject.role_in_run() == role) continue;
    auto config = with_sets(subject.config(), sets);
    config = with_sets(std::move(config), {"run.steps=" + std::to_string(steps)});
    if (auto refused = refusal(subject.host, config); !refused.empty()) {
      why = std::move(refused);
      continue;
    }
    try {
      expect_resumed_under(subject, config, name);
      is_tried = true;
    } catch (const LawDeclined& refused) {
      declined += (declined.empty() ? "" : "; ") + std::string(name) + ": " + refused.what();
    }
  }
  if (!declined.empty()) throw LawDeclined(declined);
  if (!is_tried) throw LawSkipped(why);
}

namespace {

void meet_at(int port) {
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

// Returns once both ranks have called it. Each leaves a mark in the folder.
void wait_for_both(const std::string& folder, int rank) {
  const auto mark = [&](int of) { return folder + "/rank-" + std::to_string(of) + "-ended"; };
  std::ofstream(mark(rank)).flush();
  for (int tries = 0; !std::filesystem::exists(mark(1 - rank)); ++tries) {
    if (tries == 15'000) throw Error("the other rank has not ended its part of the run after 30 seconds");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Trains in one run and in two, and with shards of the optimizer. Returns what is wrong, or "".
std::string train_on_ranks(const Host& host, const Table& config, bool shards, int rank, const std::vector<int>& ports,
                           const std::array<Trial::Folder, 3>& folders) {
  const auto whole_in = [&](std::size_t place, const Table& whole_config) {
    meet_at(ports[place]);
    Trial whole(host, whole_config, 1, folders[place]);
    whole.resume();
    whole.keep_losses();
    whole.train();
    const auto& wiring = whole.wiring();
    return std::pair(whole.trained(), wiring.optimizer->updates_each_alone() && wiring.checkpoint->writes_shards());
  };
  const auto [whole, can_shard] = whole_in(0, config);
  meet_at(ports[1]);
  const auto between = [&] { wait_for_both(folders[0]->path(), rank); };
  const auto parts = train_in_two_parts(host, config, stop, 1, folders[1], between);
  if (!parts) throw LawSkipped("it keeps nothing to go on from: its read() returns nothing");
  if (const auto what = difference(whole, *parts); !what.empty()) return "stopped and resumed: " + what;
  if (!shards || !can_shard) return "";
  const auto [sharded, unused] = whole_in(2, with_sets(config, {"distributed.use=zero1", "distributed.timeout=60"}));
  const auto what = difference(whole, sharded);
  return what.empty() ? "" : "under distributed/zero1, whose optimizers update each parameter alone: " + what;
}

std::string train_as(int rank, const std::function<std::string(int rank)>& body) {
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  return body(rank);
}

}  // namespace

// Each rank is a process of its own. The trainer compares the weights of the ranks at each checkpoint.
void check_two_ranks(const Subject& subject) {
  auto config = with_sets(subject.config(), {"run.steps=" + std::to_string(steps)});
  if (subject.role != Distributed::role) {
    if (const auto reason = left_out("distributed/ddp"); !reason.empty()) throw LawSkipped(reason);
    config = with_sets(std::move(config), {"distributed.use=ddp", "distributed.timeout=60"});
  }
  const auto ports = free_ports(3);
  if (ports.size() < 3) throw LawSkipped("this process may not listen on a port of this machine");
  std::array<Trial::Folder, 3> folders;
  for (auto& folder : folders) folder = std::make_shared<const ScratchFolder>();
  const bool shards = subject.role == Optimizer::role;
  const auto body = [&](int rank) {
    return unless_declined(subject, [&] { return train_on_ranks(subject.host, config, shards, rank, ports, folders); });
  };
  ForkedCall first([&] { return train_as(0, body); }), second([&] { return train_as(1, body); });
  std::string wrong;
  for (const auto& [rank, result] : {std::pair(0, first.wait()), std::pair(1, second.wait())}) {
    if (result.kind == Result::Kind::declined) throw LawDeclined(result.text);
    if (result.kind == Result::Kind::skipped) throw LawSkipped(result.text);
    if (!result.text.empty()) wrong += c10::str(wrong.empty() ? "" : "; ", "rank ", rank, ": ", result.text);
  }
  if (!wrong.empty()) throw Error(wrong);
}

}  // namespace vernier
