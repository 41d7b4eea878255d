// Shared by several verbs: the words of a command.
#pragma once

#include <vernier/error.h>

#include <atomic>
#include <boost/program_options.hpp>
#include <memory>
#include <string>
#include <vector>

#include "run/prepared.h"
#include "wiring/config.h"

namespace vernier::cli {

namespace po = boost::program_options;

// 0, or the first signal that asked the run to end. Set once listen_for_signals() was called.
std::atomic<int>& stop_signal();
void listen_for_signals();

std::vector<std::string> strings_of(const po::variables_map& given, const char* option);
std::string word_or(const po::variables_map& given, const char* option, const std::string& fallback);
std::vector<std::string> files_of(const po::variables_map& given);  // the TOML files of the command
bool wants_to_resume(const po::variables_map& given);
Level log_level(const po::variables_map& given);

Host make_host(const po::variables_map& given);
Table merged_config(const po::variables_map& given);  // what the files, --set and the shorthands say together
// The run of the command, ready to train. change: made to its configuration first.
std::unique_ptr<Prepared> prepare(const po::variables_map& given, void (*change)(Table&) = nullptr);

void print_text(const std::string& text, std::size_t indent = 2);  // breaks lines that are longer than the terminal's
void print_table(const Wiring& wiring);
void print_wiring(const Prepared& prepared);

int train(const po::variables_map& given);  // train.cpp
int check(const po::variables_map& given);  // check.cpp

}  // namespace vernier::cli
