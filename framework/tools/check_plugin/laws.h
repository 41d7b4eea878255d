// The laws that every plugin keeps, and those of its role. `vernier check plugin.so` tries them on one plugin, and the
// contract tests on all plugins of the build.
#pragma once

#include <vernier/error.h>
#include <vernier/host.h>

#include <string>
#include <vector>

#include "forked_call.h"
#include "subject.h"

namespace vernier {

struct Law {
  const char* name;
  const char* role;               // null: every role; else the roles that it names
  void (*check)(const Subject&);  // throws an exception that says what is wrong, or LawSkipped
  const char* by_hand;            // TOML and commands that show the same in a run of the plugin; "": nothing does
};

// In the order in which they are tried.
const std::vector<Law>& laws();
bool applies(const Law& law, const Subject& subject);

// Calls body, which trains a run that the plugin may refuse by a configuration error: the law is declined then.
template <class Body>
auto unless_declined(const Subject& subject, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::configuration || error.who() != subject.id()) throw;
    throw LawDeclined(error.what());
  }
}

// option_laws.cpp
// What the plugin declares when it is made from a table, as `vernier plugins role/name` does: options that must be
// given need not be.
std::vector<OptionInfo> describe(const Subject& subject, Table table = {});
void check_loads(const Subject& subject);
void check_documents_options(const Subject& subject);
void check_refuses_unknown_keys(const Subject& subject);
void check_refuses_other_types(const Subject& subject);
// run_laws.cpp
void check_repeats(const Subject& subject);
void check_resumes(const Subject& subject);
void check_acts(const Subject& subject);
void check_undoes(const Subject& subject);
void check_bears_failures(const Subject& subject);
void check_leaves_the_thread(const Subject& subject);
void check_leaves_the_process(const Subject& subject);
// step_laws.cpp
void check_trains(const Subject& subject);
void check_other_scale(const Subject& subject);
void check_updates_alone(const Subject& subject);
void check_leaves_numbers(const Subject& subject);
void check_evaluation(const Subject& subject);
// cost_laws.cpp
void check_growth(const Subject& subject);
void check_host_syncs(const Subject& subject);
void check_save_time(const Subject& subject);
// condition_laws.cpp
void check_conditions(const Subject& subject);
void check_two_ranks(const Subject& subject);
// role_laws.cpp
void check_task_loader(const Subject& subject);
void check_task_parts(const Subject& subject);
void check_scaler(const Subject& subject);
void check_accumulation_mean(const Subject& subject);
void check_accumulation(const Subject& subject);
void check_optimizer(const Subject& subject);
void check_rate(const Subject& subject);
void check_monitor(const Subject& subject);
// checkpoint_laws.cpp
void check_crash_while_writing(const Subject& subject);
void check_reads_what_is_asked(const Subject& subject);

// cost_laws.cpp: how long the plugin's listeners take, by event: "StepBegin 1.2 us, StepEnd 30 us; 2.5 % of a step".
std::string times_of(const Subject& subject);
// How often 20 steps read a tensor's number on the host, on a device, by operators that would wait for a GPU.
std::int64_t host_reads(const Host& host, Table config, const std::string& device);

}  // namespace vernier
