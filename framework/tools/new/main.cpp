// `vernier new`: writes a folder to start from, of a plugin, a task or a program of one's own. Without LibTorch.
#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>

#include "names.h"
#include "project.h"
#include "tools/common/text/quoting.h"
#include "tools/common/verb.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier new plugin ROLE NAME [--output FOLDER]
       vernier new task NAME [--output FOLDER]
       vernier new app NAME [--output FOLDER]

Writes the folder NAME, or FOLDER, which builds, tests itself and runs at once: source, CMakeLists.txt, test, README.md.

  plugin   a strategy; ROLE is accumulation, callback, checkpoint, monitor, optimizer, precision, scaler or task
  task     model, data and loss, from a CSV file; the same as plugin task
  app      a training loop of your own, with Vernier's toolkit
)";

[[noreturn]] void refuse(const std::string& text) {
  throw std::runtime_error(text);
}

std::string joined(const Words& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// The text, and the nearest of the words where one is near.
std::string with_nearest(const std::string& text, const std::string& word, const Words& words) {
  const auto near = vernier::nearest(word, words);
  return text + (near.empty() ? "" : "; did you mean " + near + "?");
}

struct Wanted {
  std::string role;  // empty: a program
  std::string name;
};

Wanted read(const Words& words) {
  const Words kinds = {"plugin", "task", "app"};
  if (words.empty())
    refuse("say what to write, as in `vernier new plugin callback grad_watch`; see vernier new --help");
  const auto& kind = words[0];
  if (std::ranges::find(kinds, kind) == kinds.end()) {
    if (std::ranges::find(vernier::roles(), kind) != vernier::roles().end()) {
      refuse("write `vernier new plugin " + kind + " NAME`");
    }
    refuse(with_nearest("`new` writes a plugin, a task or an app", kind, kinds));
  }
  const bool is_plugin = kind == "plugin";
  if (is_plugin && words.size() > 1) {
    const auto& all = vernier::roles();
    const bool is_known = std::ranges::find(all, words[1]) != all.end();
    if (!is_known) refuse(with_nearest("the roles of a plugin are " + joined(all), words[1], all));
  }
  if (words.size() != (is_plugin ? 3 : 2)) {
    const auto role = !is_plugin ? "" : words.size() > 1 ? " " + words[1] : " ROLE";
    refuse("write `vernier new " + kind + role + " NAME`; see vernier new --help");
  }
  const auto& name = words.back();
  if (const auto why = vernier::why_no_name(name); !why.empty()) refuse(why);
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
  const auto prefix = vernier::find_prefix();
  const auto here = prefix / "vernier";  // in the build tree
  const auto program = vernier::shell_quoted((fs::exists(here) ? here : prefix / "bin" / "vernier").string());
  const auto place = vernier::shell_quoted(prefix.string());
  const auto files = vernier::write_project(prefix / "share" / "vernier" / "templates",
                                            is_app ? Words{"common", "app"} : Words{"common", "plugin", wanted.role},
                                            {{"my_name", wanted.name},
                                             {"MyName", vernier::camel_case(wanted.name)},
                                             {"my_role", wanted.role},
                                             {"VERNIER_PREFIX", place},
                                             {"VERNIER_PROGRAM", program}},
                                            folder);
  std::cout << "wrote " << folder.string() << ": " << joined(files) << "\n\nnext\n  cd "
            << vernier::shell_quoted(folder.string()) << "\n  cmake -B build -DCMAKE_PREFIX_PATH=" << place
            << "\n  cmake --build build\n  ctest --test-dir build\n  "
            << (is_app ? "./build/" + wanted.name : program + " train run.toml --plugin-path build/plugins") << '\n';
}

int run(const po::variables_map& given) {
  const auto wanted = read(vernier::words_of(given));
  try {
    make(wanted, folder_of(given, wanted.name));
  } catch (const vernier::CannotWrite& error) {
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
  return vernier::call_verb(
      {"new", usage, options, run, {{"new", {"plugin", "task", "app"}}, {"plugin", vernier::roles()}}}, argc, argv);
}
