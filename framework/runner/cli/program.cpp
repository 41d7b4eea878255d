#include "program.h"

#include <fcntl.h>
#include <vernier/error.h>

#include <csignal>
#include <iostream>

#include "base/process_end.h"
#include "command.h"
#include "common/config/shorthands.h"
#include "common/log.h"
#include "run/process/crash.h"
#include "run/process/device.h"

namespace vernier {

namespace po = boost::program_options;

namespace {

// Opens standard input, output and error if they are closed: a file of the run would get the descriptor, and log lines.
void open_standard_files() {
  for (int file = 0; file <= 2; ++file) {
    // open() returns the lowest free descriptor, which is this one.
    if (::fcntl(file, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
}

// Writes what another library said in several lines, of which `message` has left some out, into the run's log alone.
void log_whole_cause(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
    if (nested != nullptr && nested->nested_ptr()) return log_whole_cause(nested->nested_ptr());
    const std::string text = error.what();
    if (dynamic_cast<const Error*>(&error) != nullptr || text.find('\n') == std::string::npos) return;
    write_log_file(static_cast<int>(Level::info), "vernier", "the whole error: " + printable(text, "\n\t"));
  } catch (...) {  // there is no text
  }
}

}  // namespace

int run_program(const std::function<int()>& body) {
  leave_libraries_at_exit();
  open_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write fails, as on a full disk
  set_log_sink([](Level level, const std::string& who, const std::string& text) {
    write_log(static_cast<int>(level), who, printable(text, "\n\t"));
  });
  name_crashes();
  const ExitRefused no_exit;
  try {
    refuse_another_libtorch();
    return after_output(body());
  } catch (const po::error& error) {
    std::cerr << "vernier: " << message(error) << '\n';
    return 2;
  } catch (...) {
    const auto [text, kind] = caught();
    write_log(static_cast<int>(Level::error), "vernier", text);  // into the run's log too, if there is one
    log_whole_cause(std::current_exception());
    return static_cast<int>(kind);
  }
}

int run_verb_with_hints(Verb verb, int argc, char** argv) {
  verb.hint = [&](const std::string& flag) { return hint_for_flag(flag, verb.options); };
  verb.run = [run = verb.run](const po::variables_map& given) {
    set_log_level(static_cast<int>(cli::log_level(given)));
    return run(given);
  };
  return run_verb(verb, argc, argv);
}

int call_run_verb(Verb verb, int argc, char** argv) {
  if (verb.choices.empty()) verb.choices = words_of_shorthands();
  return run_program([&] {
    if (argc > 1 && argv[1] == std::string("complete")) return print_completions(verb, argc - 1, argv + 1);
    return run_verb_with_hints(verb, argc, argv);
  });
}

po::options_description configuration_options() {
  auto options = run_options();
  auto add = options.add_options();
  add("resume", po::value<std::string>());
  for (const char* name : {"resume-newest", "allow-inexact", "low-memory", "quiet", "debug"}) add(name, "");
  return options;
}

po::options_description run_options() {
  po::options_description options;
  for (const char* name : {"set", "plugin-path"}) options.add_options()(name, po::value<std::vector<std::string>>());
  options.add_options()("trust", "");
  add_shorthands(options);
  return options;
}

}  // namespace vernier
