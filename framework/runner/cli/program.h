// The main of `vernier-train`, and of the tools that use the runner.
#pragma once

#include <functional>

#include "common/verb.h"

namespace vernier {

// Runs `body` with the log on standard error, crashes that name the plugin, and another LibTorch refused. Returns the
// exit status: 0 done, 2 wrong configuration or usage, 3 plugin refused, 4 failed, or what `body` returns.
int run_program(const std::function<int()>& body);

// run_verb() with --quiet and --debug for the log, and a hint where an unknown option is one of another trainer.
int run_verb_with_hints(Verb verb, int argc, char** argv);

// call_verb() for a program that uses the runner: errors end it as run_program() says.
int call_run_verb(Verb verb, int argc, char** argv);

// The options of every verb that reads TOML files: --set, --plugin-path and so on, and the shorthands.
boost::program_options::options_description configuration_options();
// The options of every verb that reads a run: --set, --plugin-path and the shorthands.
boost::program_options::options_description run_options();

}  // namespace vernier
