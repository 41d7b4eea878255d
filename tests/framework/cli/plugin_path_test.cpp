// Folders in which the program looks for plugins, their order, and its messages about them.
#include <doctest/doctest.h>
#include <torch/headeronly/version.h>
#include <vernier/abi.h>

#include <cstdlib>

#include "run_folder.h"
#include "thrown.h"

namespace plugin_path_test {

namespace fs = std::filesystem;

namespace {

const std::string base = base_run(2) + "[[callback]]\nuse = \"fits\"\n";

// Its folder is the home of the user. Who runs the tests may have set variables that name other folders of plugins.
struct Place : RunFolder {
  Place() : RunFolder(base) {
    ::setenv("HOME", folder.path().c_str(), 1);
    ::unsetenv("XDG_DATA_HOME");
    ::unsetenv("VERNIER_PLUGIN_PATH");
  }
  // As callback/fits in a folder of plugins: a library that fits, or one whose refusal shows that it was found.
  void put(const std::string& library, const std::string& plugins) const {
    const auto file = at(plugins) / "callback" / "fits.so";
    fs::create_directories(file.parent_path());
    fs::copy_file(fs::path(VERNIER_BINARY_DIR) / "fixtures/plugins/callback" / (library + ".so"), file,
                  fs::copy_options::overwrite_existing);
  }
};

}  // namespace

TEST_CASE("plugin path: the folder beside the TOML file and the user's are searched, the message lists all of them") {
  Place place;
  CHECK(place.call({"check", "run.toml"}) == 3);
  CAPTURE(place.err);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, "; searched: plugins, " + place.at(".local/share/vernier/plugins").string() +
                            ", " VERNIER_BINARY_DIR "/plugins, "));
  for (const std::string plugins : {"plugins", ".local/share/vernier/plugins"}) {
    CAPTURE(plugins);
    Place there;
    there.put("fits", plugins);
    CHECK(there.call({"check", "run.toml"}) == 0);
    const TemporaryFolder elsewhere;
    Program program({"check", there.at("run.toml").string()}, elsewhere.path());
    CHECK(program.wait() == 0);
  }
}

TEST_CASE("plugin path: the first folder that has the plugin decides") {
  // Each of these comes before the next.
  const std::vector<std::string> folders = {"given", "variable", "plugins", "data/vernier/plugins"};
  for (std::size_t i = 0; i + 1 < folders.size(); ++i) {
    for (const bool is_first_good : {true, false}) {
      CAPTURE(folders[i]);
      CAPTURE(is_first_good);
      Place place;
      for (const auto& folder : folders) fs::create_directories(place.at(folder));
      place.put(is_first_good ? "fits" : "wrong_abi", folders[i]);
      place.put(is_first_good ? "wrong_abi" : "fits", folders[i + 1]);
      ::setenv("VERNIER_PLUGIN_PATH", place.at("variable").c_str(), 1);
      ::setenv("XDG_DATA_HOME", place.at("data").c_str(), 1);
      const int status = place.call({"check", "run.toml", "--plugin-path", "given"});
      CAPTURE(place.err);
      CHECK(status == (is_first_good ? 0 : 3));
      if (!is_first_good) CHECK(says(place.err, folders[i] + "/callback/fits.so: built for plugin ABI "));
    }
  }
}

TEST_CASE(
    "plugin path: a plugin is refused, with one line, if others may write to it or its digest is not the pinned") {
  Place place;
  place.put("fits", "plugins");
  const auto pin = [&](const std::string& digest) {
    place.call({"check", "run.toml", "--set=callback.fits.sha256=\"" + digest + "\""});
    CHECK(is_one_line(place.err));
    return place.err;
  };
  const auto wrong = pin(std::string(64, '0'));
  CHECK(says(wrong, "vernier: --set callback.fits.sha256: plugins/callback/fits.so: its SHA-256 is "));
  CHECK(says(wrong, ", and `sha256` pins " + std::string(64, '0') + "; if you trust this file, pin its digest\n"));
  CHECK(says(pin("abc"), "--set callback.fits.sha256: `sha256` must be the 64 digits that `sha256sum FILE` prints"));
  const auto digest = wrong.substr(wrong.find("SHA-256 is ") + 11, 64);
  CHECK(place.call({"check", "run.toml", "--set=callback.fits.sha256=\"" + digest + "\""}) == 0);
  fs::permissions(place.at("plugins/callback"), fs::perms::others_write, fs::perm_options::add);
  CHECK(place.call({"check", "run.toml"}) == 3);
  CHECK(is_one_line(place.err));
  CHECK(says(place.err, "/plugins/callback: can be written to by others; chmod go-w it"));
  CHECK(place.call({"plugins", "--plugin-path", "plugins"}) == 0);
  CHECK(says(place.out, "\ncallback\n"));
  CHECK(says(place.out, "  fits   refused: "));
}

TEST_CASE("version: one line, all of it, and JSON") {
  RunFolder place("");
  CHECK(place.call({"--version"}) == 0);
  const auto line = place.out;
  CHECK(line == "vernier " VERNIER_VERSION ", plugin ABI " VERNIER_TEXT(VERNIER_ABI) ", " VERNIER_BUILD "\n");
  CHECK(place.call({"version"}) == 0);
  CHECK(place.out.starts_with(line + "compiled by "));
  CHECK(place.call({"version", "--json"}) == 0);
  const auto version = nlohmann::json::parse(place.out);
  CHECK(version["name"] == "vernier");
  CHECK(version["version"] == VERNIER_VERSION);
  CHECK(version["plugin_abi"] == VERNIER_ABI);
  CHECK(version["libtorch"] == TORCH_VERSION);
  CHECK(version["cuda"].is_boolean());
  CHECK(version["cxx11_abi"].is_boolean());
  CHECK(version["compiler"].is_string());
  for (const char* key : {"cuda", "bf16", "fp16", "fp8"}) CHECK(version["hardware"][key].is_boolean());
  CHECK(place.call({"plugins", "--json"}) == 2);
  CHECK(says(place.err, "unrecognised option '--json'"));
}

}  // namespace plugin_path_test
