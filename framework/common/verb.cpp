#include "verb.h"

#include <fcntl.h>
#include <unistd.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "base/process_end.h"
#include "common/run_files.h"
#include "common/text/quoting.h"
#include "common/text/terminal.h"
#include "core/reworded_error.h"

namespace vernier {

namespace po = boost::program_options;

std::string with_hyphens(std::string word) {
  const auto end = std::find(word.begin(), word.end(), '=');
  if (word.starts_with("--")) std::replace(word.begin(), end, '_', '-');
  return word;
}

namespace {

po::variables_map parse(const Verb& verb, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::ranges::transform(words, words.begin(), with_hyphens);
  // Program_options would take the word behind a bare --resume, a TOML file, for its path.
  if (verb.options.find_nothrow("resume-newest", false) != nullptr) {
    std::replace(words.begin(), words.end(), std::string("--resume"), std::string("--resume-newest"));
  }
  po::options_description known = verb.options;
  known.add_options()("help,h", "")("word", po::value<std::vector<std::string>>());
  po::positional_options_description places;
  places.add("word", -1);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {  // --set run.epochs = 3
    const bool is_here = words[i].starts_with("--set="), is_next = words[i] == "--set" && i + 2 < words.size();
    if (!is_here && !is_next) continue;
    const auto set = is_here ? words[i].substr(6) : words[i + 1], next = words[is_here ? i + 1 : i + 2];
    if (set.empty() ||
        (!next.starts_with('=') && (!set.ends_with('=') || next.starts_with('-') || std::filesystem::exists(next))))
      continue;
    const auto last = is_here ? i + 2 : i + 3;
    const auto sign = next == "=" && last < words.size() ? "=" + words[last] : next;
    throw po::error("--set " + set + " " + next + ": write it without spaces, --set " + shell_quoted(set + sign));
  }
  po::variables_map given;
  try {
    po::store(po::command_line_parser(words).options(known).positional(places).run(), given);
  } catch (const po::unknown_option& unknown) {
    throw po::error(unknown.what() + (verb.hint ? verb.hint(unknown.get_option_name()) : ""));
  }
  po::notify(given);
  given.insert({"verb", po::variable_value(verb.name, false)});  // errors quote a command
  return given;
}

}  // namespace

int run_verb(const Verb& verb, int argc, char** argv) {
  po::variables_map given;
  try {
    given = parse(verb, argc, argv);
  } catch (const po::error& error) {
    throw po::error(std::string(error.what()) + "; see vernier " + verb.name + " --help");
  }
  if (given.count("help") != 0) {
    std::cout << help_page(verb.usage);
    return 0;
  }
  return verb.run(given);
}

int call_verb(const Verb& verb, int argc, char** argv) {
  leave_libraries_at_exit();
  std::signal(SIGPIPE, SIG_DFL);  // `vernier runs | head` ends here
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write fails, as on a full disk
  try {
    if (argc > 1 && argv[1] == std::string("complete")) return print_completions(verb, argc - 1, argv + 1);
    return after_output(run_verb(verb, argc, argv));
  } catch (const Refused& refused) {
    std::cerr << "vernier: " << refused.what() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "vernier: " << reworded_error(error.what()) << '\n';
  }
  return 2;
}

void print_result(const std::function<std::string()>& text) {
  const auto lead_to = [](int file) {
    std::cout.flush();
    (void)std::fflush(stdout);
    (void)::dup2(file, STDOUT_FILENO);
  };
  const int out = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  lead_to(STDERR_FILENO);
  const auto result = text();
  lead_to(out);
  std::cout << result;
  lead_to(STDERR_FILENO);
  ::close(out);
}

int after_output(int status) {
  constexpr int not_written = 6;
  errno = 0;
  std::cout.flush();
  const bool is_written =
      std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && !std::cout.bad();  // --quiet sets failbit
  if (is_written || status != 0) return status;
  std::cerr << "vernier: standard output cannot be written: " << std::strerror(errno != 0 ? errno : ENOSPC) << '\n';
  return not_written;
}

std::vector<std::string> joined_pieces(const std::vector<std::string>& pieces, std::size_t& cut) {
  std::vector<std::string> words;
  bool goes_on = false;
  for (const auto& piece : pieces) {
    const bool is_sign = piece == "=";
    if (!words.empty() && (is_sign || goes_on)) {
      words.back() += piece;
      if (is_sign) cut = words.back().size();
    } else {
      words.push_back(piece);
      cut = 0;
    }
    goes_on = is_sign;
  }
  if (words.empty()) words.emplace_back();
  return words;
}

std::vector<std::string> completions_of(const Verb& verb, const std::vector<std::string>& words) {
  const auto& now = words.back();
  const auto& before = words.size() > 1 ? words[words.size() - 2] : verb.name;
  std::vector<std::string> offered;
  if (const auto found = verb.choices.find(before); found != verb.choices.end()) {
    offered = found->second;
  } else if (now.starts_with("-")) {
    for (const auto& option : verb.options.options()) {
      if (option->long_name() != "resume-newest") offered.push_back("--" + option->long_name());
    }
  }
  std::erase_if(offered, [&](const auto& word) { return !word.starts_with(now); });
  std::ranges::sort(offered);
  return offered;
}

int print_completions(const Verb& verb, int argc, char** argv) {
  std::size_t cut = 0;
  for (const auto& word : completions_of(verb, joined_pieces({argv + 1, argv + argc}, cut))) {
    std::cout << word.substr(cut) << '\n';
  }
  return 0;
}

std::vector<std::string> words_of(const po::variables_map& given) {
  return words_in(given, "word");
}

std::vector<std::string> words_in(const po::variables_map& given, const char* option) {
  return given.count(option) != 0 ? given[option].as<std::vector<std::string>>() : std::vector<std::string>{};
}

std::string word_or(const po::variables_map& given, const char* option, const std::string& fallback) {
  return given.count(option) != 0 ? given[option].as<std::string>() : fallback;
}

void refuse_unread(const po::variables_map& given, const std::string& call, const std::vector<std::string>& options) {
  for (const auto& option : options) {
    if (given.count(option) == 0) continue;
    throw po::error("`vernier " + call + "` does not read --" + option + "; leave it out");
  }
}

bool write_or_complain(const std::filesystem::path& path, const std::string& text) {
  try {
    write_whole(path, text);
    return true;
  } catch (const std::system_error& error) {
    std::cerr << "vernier: " << path.string() << " cannot be written: " << error.code().message() << '\n';
    return false;
  }
}

}  // namespace vernier
