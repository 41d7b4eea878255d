// `vernier new`: writes a folder to start from, of a plugin, a task or a program of one's own. Without LibTorch.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <regex>

#include "common/child.h"
#include "common/text/quoting.h"
#include "common/text/text_table.h"
#include "common/verb.h"
#include "core/synonyms.h"
#include "project.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier new plugin ROLE NAME [--output FOLDER]
       vernier new task NAME [--output FOLDER]
       vernier new app NAME [--output FOLDER]
       vernier new toml DATA [--target NAME] [--output FILE] [--set task.KEY=VALUE]…

Writes the folder NAME, or FOLDER, which builds, tests itself and runs at once: source, CMakeLists.txt, test, README.md.

  plugin   a strategy; ROLE is accumulation, callback, checkpoint, distributed, monitor, optimizer, precision,
           quantizer, scaler or task
  task     model, data and loss, from a CSV file; the same as plugin task
  app      a training loop of your own, with Vernier's toolkit

`vernier new toml` writes a run for your data instead: see vernier new toml --help.
)";

[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error(text);
}

// Words of C++, and targets that CMake makes itself; each between spaces.
constexpr const char* reserved =
    " alignas alignof all and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t"
    " class clean co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue"
    " decltype default delete do double dynamic_cast edit_cache else enum explicit export extern false float for"
    " friend goto help if inline install int long mutable namespace new noexcept not not_eq nullptr operator or"
    " or_eq package package_source private protected public rebuild_cache register reinterpret_cast requires return"
    " short signed sizeof static static_assert static_cast struct switch template test this thread_local throw true"
    " try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq"
    " ";

constexpr std::size_t longest_name = 47;  // vernier::Descriptor has no room for more

// The first word; `vernier` runs another program for toml.
const Words kinds = {"plugin", "task", "app", "toml"};

// The roles that have a template.
const Words roles = {"accumulation", "callback",  "checkpoint", "distributed", "monitor",
                     "optimizer",    "precision", "quantizer",  "scaler",      "task"};

// Says why this cannot be the name of a plugin or program; empty where it can.
std::string why_no_name(const std::string& name) {
  if (name.size() > longest_name) return "a name has at most " + std::to_string(longest_name) + " characters";
  if (!std::regex_match(name, std::regex("[a-z][a-z0-9_]*"))) {
    return "a name has small letters, digits and underscores, and begins with a letter, as in grad_watch";
  }
  if (std::string(reserved).find(" " + name + " ") != std::string::npos)
    return name + " is a reserved word of C++ or CMake; choose another name";
  return "";
}

// "grad_watch" becomes "GradWatch".
std::string camel_case(const std::string& name) {
  std::string text;
  bool starts = true;
  for (const char c : name) {
    if (c != '_') text += starts ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    starts = c == '_';
  }
  return text;
}

// The text, and the nearest of the words where one is near.
std::string with_nearest(const std::string& text, const std::string& word, const Words& words) {
  const auto near = nearest(word, words);
  return text + (near.empty() ? "" : "; did you mean " + near + "?");
}

struct Wanted {
  std::string role;  // empty: a program
  std::string name;
};

Wanted read(const Words& words) {
  if (words.empty())
    refuse("say what to write, as in `vernier new plugin callback grad_watch`; see vernier new --help");
  const auto& kind = words[0];
  if (std::ranges::find(kinds, kind) == kinds.end()) {
    if (std::ranges::find(roles, kind) != roles.end()) {
      refuse("write `vernier new plugin " + kind + " NAME`");
    }
    refuse(with_nearest("`new` writes a plugin, a task, an app or a toml", kind, kinds));
  }
  const bool is_plugin = kind == "plugin";
  if (is_plugin && words.size() > 1) {
    const bool is_known = std::ranges::find(roles, words[1]) != roles.end();
    if (!is_known) refuse(with_nearest("the roles of a plugin are " + joined(roles), words[1], roles));
  }
  if (words.size() != (is_plugin ? 3 : 2)) {
    const auto role = !is_plugin ? "" : words.size() > 1 ? " " + words[1] : " ROLE";
    refuse("write `vernier new " + kind + role + " NAME`; see vernier new --help");
  }
  const auto& name = words.back();
  if (const auto why = why_no_name(name); !why.empty()) refuse(why);
  return {is_plugin ? words[1] : kind == "task" ? kind : "", name};
}

fs::path folder_of(const po::variables_map& given, const std::string& name) {
  if (given.count("output") == 0) return name;
  fs::path folder = given["output"].as<std::string>();
  if (!folder.has_filename()) folder = folder.parent_path();  // mine/ is mine
  if (!folder.has_filename()) refuse("--output names no folder to write");
  return folder;
}

void make(const Wanted& wanted, const fs::path& folder) {
  const bool is_app = wanted.role.empty();
  const auto prefix = find_prefix();
  const auto here = prefix / "vernier";  // in the build tree
  const auto typed = called_as();        // a relative path is wrong in the new folder
  const bool is_typed =
      std::getenv("VERNIER_CALLED_AS") != nullptr && (typed.starts_with('/') || typed.find('/') == typed.npos);
  const auto program = is_typed ? typed : shell_quoted((fs::exists(here) ? here : prefix / "bin" / "vernier").string());
  const auto place = shell_quoted(prefix.string());
  const auto files = write_project(prefix / "share" / "vernier" / "templates",
                                   is_app ? Words{"common", "app"} : Words{"common", "plugin", wanted.role},
                                   {{"my_name", wanted.name},
                                    {"MyName", camel_case(wanted.name)},
                                    {"my_role", wanted.role},
                                    {"VERNIER_PREFIX", place},
                                    {"VERNIER_PROGRAM", program}},
                                   folder);
  std::cout << "wrote " << folder.string() << ": " << joined(files) << "\n\nnext\n  cd "
            << shell_quoted(folder.string()) << "\n  cmake -B build -DCMAKE_PREFIX_PATH=" << place
            << "\n  cmake --build build\n  ctest --test-dir build\n  "
            << (is_app ? "./build/" + wanted.name : program + " train run.toml --plugin-path build/plugins") << '\n';
}

int run(const po::variables_map& given) {
  const auto wanted = read(words_of(given));
  try {
    make(wanted, folder_of(given, wanted.name));
  } catch (const CannotWrite& error) {
    std::cerr << "vernier: " << error.what() << '\n';
    return 4;
  }
  return 0;
}

}  // namespace

// Exit status: 0 done, 2 wrong usage, 4 the folder cannot be written, as that of `vernier`.
int main(int argc, char** argv) {
  po::options_description options;
  options.add_options()("output", po::value<std::string>());
  return call_verb({"new", usage, options, run, {{"new", kinds}, {"plugin", roles}}}, argc, argv);
}
