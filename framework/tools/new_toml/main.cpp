// `vernier new toml`: looks at data, and writes a run that trains on them.
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <filesystem>
#include <iostream>
#include <system_error>

#include "run_file.h"
#include "tools/common/text/quoting.h"
#include "tools/common/verb.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;

constexpr const char* usage = R"(usage: vernier new toml DATA [--target NAME] [--output FILE]

Looks at a CSV file, a .npy file or a folder of images, prints what it found, and writes a TOML file that trains on it
at once: NAME.toml for DATA NAME.csv. A folder of images has a folder for each class, or the folders train and val.

  --target NAME   the column that is predicted; by default the one named target, label, class, species or y, or else the
                  last. For x.npy the file of the targets, y.npy
  --output FILE   the file to write
)";

std::string name_of(const std::string& data) {
  auto path = fs::path(data);
  if (!path.has_filename()) path = path.parent_path();  // images/ is images
  auto name = path.filename();
  if (name.extension() == ".gz") name = name.stem();
  name = name.stem();
  return name.empty() || name == "." || name == ".." ? "run" : name.string();
}

int run(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() < 2) refuse("name the data, as in `vernier new toml iris.csv`");
  if (words.size() > 2) refuse("new toml takes one file or folder, and " + words[2] + " is a second");
  const auto output = word_or(given, "output", name_of(words[1]) + ".toml");
  std::error_code none;
  if (fs::exists(output, none)) refuse(output + " is there already; name another file by --output");
  const auto found = look_at(words[1], word_or(given, "target", ""));
  for (const auto& line : found.lines) std::cout << line << '\n';
  try {
    write_whole(output, run_file(found));
  } catch (const std::system_error& error) {
    std::cerr << "vernier: " << output << " cannot be written: " << error.code().message() << '\n';
    return 4;
  }
  const auto file = shell_quoted(output);
  std::cout << "wrote " << output << "\n\nnext\n  vernier check " << file << "\n  vernier train " << file << '\n';
  return 0;
}

}  // namespace

// Exit status: 0 done, 2 wrong usage or data, 4 the file cannot be written.
int main(int argc, char** argv) {
  po::options_description options;
  options.add_options()("target", po::value<std::string>())("output", po::value<std::string>());
  return call_verb({"new", usage, options, run}, argc, argv);
}
