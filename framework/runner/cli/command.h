// Shared by several verbs: the words of a command.
#pragma once

#include <boost/program_options.hpp>

#include "common/config/config.h"
#include "common/verb.h"
#include "run/prepared.h"

namespace vernier::cli {

namespace po = boost::program_options;

// 0, or the first signal that asked the run to end. Set once listen_for_signals() was called.
std::atomic<int>& stop_signal();
void listen_for_signals();

bool wants_to_resume(const po::variables_map& given);
Level log_level(const po::variables_map& given);

// The plugins of --plugin-path and of the folders beside these TOML files.
Host make_host(const po::variables_map& given, const std::vector<std::string>& files = {});
Table merged_config(const po::variables_map& given);  // the files, --set and the shorthands merged
// --low-memory: sets the options that save memory, of plugins that have them, where the table does not set them. Logs
// each one with its cost.
Table with_low_memory(Table config, const Host& host);
// The run of the command, ready to train. change: made to its configuration first.
std::unique_ptr<Prepared> prepare(const po::variables_map& given, const std::function<void(Table&)>& change = {});

std::string steps_text(std::int64_t steps);                        // "1 step", "20 steps"
void print_text(const std::string& text, std::size_t indent = 2);  // breaks lines that are longer than the terminal's
void print_table(const Wiring& wiring);
// compare: a call of `vernier compare` with this configuration, which measures what is not known; "": there is none.
void print_wiring(const Prepared& prepared, const std::string& compare);

// Runs `vernier train`. Returns the exit status.
int train(const po::variables_map& given);

}  // namespace vernier::cli
