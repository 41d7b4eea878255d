#include "wiring/host.h"
#include <vernier/host.h>

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "core/process_state.h"
#include "log_lines.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace host_test {

using vernier::Callback;
using vernier::Host;
using vernier::Monitor;
using vernier::Options;
using vernier::Table;
namespace fs = std::filesystem;

namespace {

const fs::path product = fs::path(VERNIER_BINARY_DIR) / "plugins";
const fs::path fixtures = fs::path(VERNIER_BINARY_DIR) / "fixtures" / "plugins";

std::string fixture(const std::string& name) {
  return (fixtures / "callback" / (name + ".so")).string();
}

bool was_opened(const std::string& name) {
  return std::getenv(("VERNIER_TEST_MARK_" + name).c_str()) != nullptr;
}

template <class Role = Callback>
Thrown refusal(const std::string& name, Table table = {}) {
  return thrown_by([&] {
    Options options(std::string(Role::role) + "/" + name, std::move(table), "run.toml:3");
    (void)Host({fixtures, product}).make(Role::role, name, options);
  });
}

Table with(const char* key, const char* value) {
  return {{key, {std::string(value), "run.toml:4"}}};
}

template <class T>
T read_at(const std::string& bytes, std::uint64_t offset) {
  REQUIRE(offset + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The names of the symbols that a library exports, read from its table of dynamic symbols.
std::set<std::string> exports_of(const fs::path& library) {
  const std::string bytes = read_text(library);
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  std::set<std::string> names;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_DYNSYM) continue;
    const auto strings = read_at<Elf64_Shdr>(bytes, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
    for (std::uint64_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(bytes, section.sh_offset + offset);
      const bool is_global = ELF64_ST_BIND(symbol.st_info) != STB_LOCAL;
      if (is_global && symbol.st_shndx != SHN_UNDEF) names.insert(bytes.c_str() + strings.sh_offset + symbol.st_name);
    }
  }
  return names;
}

}  // namespace

TEST_CASE("host: a plugin that fits is opened, made and named") {
  const Host host({fixtures});
  Options options("callback/fits", {}, "run.toml:3");
  const auto plugin = host.make(Callback::role, "fits", options);
  CHECK(plugin->id() == "callback/fits");
  CHECK(was_opened("fits"));
  CHECK(vernier::HostApi::declared(options).size() == 1);
  Options by_path("callback/fits", {}, "run.toml:3");
  CHECK(host.make(Callback::role, fixture("fits"), by_path)->id() == "callback/fits");
}

TEST_CASE("host: a plugin that hides one of ours by its name is used, and this is said once") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "optimizer");
  const fs::path own = folder.path() / "optimizer" / "adamw.so";
  fs::copy_file(product / "optimizer/adamw.so", own);
  const LogLines log;
  const auto make = [&](std::vector<fs::path> folders) {
    Options options("optimizer/adamw", {}, "run.toml:3");
    Host(std::move(folders)).make(vernier::Optimizer::role, "adamw", options);
  };
  make({product, folder.path() / "none"});
  make({product, product});
  CHECK(LogLines::lines().empty());
  for (int i = 0; i < 2; ++i) make({folder.path(), product});
  CHECK(LogLines::lines() == std::vector<std::string>{"optimizer/adamw: " + own.string() + " is used, and hides " +
                                                      (product / "optimizer/adamw.so").string() +
                                                      ", which has the same name; rename your plugin"});
}

TEST_CASE("host: one that does not fit is refused with the remedy, and never runs") {
  CHECK(refusal("wrong_abi") ==
        refused(fixture("wrong_abi") + ": built for plugin ABI " + vernier::abi_text(VERNIER_ABI + 1) +
                ", this Vernier has " + vernier::abi_text(VERNIER_ABI) + "; rebuild the plugin"));
  std::string other = VERNIER_BUILD;
  other[6] = '9';
  CHECK(refusal("wrong_torch") == refused(fixture("wrong_torch") + ": built with " + other + ", this Vernier with " +
                                          VERNIER_BUILD + "; rebuild the plugin"));
  CHECK(refusal("no_symbol") ==
        refused(fixture("no_symbol") + ": not a Vernier plugin (it does not export "
                                       "`vernier_plugin`); does its source have VERNIER_PLUGIN(…)?"));
  CHECK(refusal("wrong_role") == refused(fixture("wrong_role") + ": is a monitor (\"wrong_role\"), not a callback"));
  for (const char* name : {"wrong_abi", "wrong_torch", "no_symbol", "wrong_role"}) CHECK_FALSE(was_opened(name));
}

TEST_CASE("host: one that was built with libc++ is refused, and never runs") {
  TemporaryFolder folder;
  auto bytes = read_text(product / "scaler/dynamic.so");
  const auto at = bytes.find("cxx11abi=1");
  REQUIRE(at != std::string::npos);
  bytes.replace(at, 11, "cxx11abi=_G");
  const auto path = folder.path() / "dynamic.so";
  std::ofstream(path) << bytes;
  const auto refused_one = thrown_by([&] {
    Options options("scaler/dynamic", {}, "run.toml:3");
    Host({fixtures, product}).make(vernier::Scaler::role, path.string(), options);
  });
  CHECK(refused_one == refused(path.string() + ": built with libc++, and LibTorch with libstdc++; compile it with "
                                               "-stdlib=libstdc++"));
}

TEST_CASE("host: one that was built with another core is refused, and never runs") {
  TemporaryFolder folder;
  auto bytes = read_text(product / "scaler/dynamic.so");
  const std::string stem = "libvernier_core.so.";
  const auto at = bytes.find(stem);
  REQUIRE(at != std::string::npos);
  const auto ours = bytes.substr(at, stem.size() + 8), other = stem + "00000000";
  bytes.replace(at, other.size(), other);
  const auto path = folder.path() / "dynamic.so";
  std::ofstream(path) << bytes;
  const auto refused_one = thrown_by([&] {
    Options options("scaler/dynamic", {}, "run.toml:3");
    Host({fixtures, product}).make(vernier::Scaler::role, path.string(), options);
  });
  CHECK(refused_one ==
        refused(path.string() + ": built with " + other + ", this Vernier has " + ours + "; rebuild the plugin"));
}

// The number behind libvernier_core.so is a hash of the contract's and core's headers, so a changed header of a pack
// leaves plugins that need core alone as they were.
TEST_CASE("host: a header of a pack does not change what a plugin of core needs") {
  const std::string adamw = (product / "optimizer/adamw.so").string();
  const auto needs_that_hash = "cd " VERNIER_SOURCE_DIR
                               " && hash=$(sh sdk/cmake/code_hash.sh sdk/plugin/include/vernier/*.h "
                               "$(find sdk/core -path '*/include/vernier/*.h')) && readelf -d " +
                               adamw + " | grep -q \"libvernier_core.so.$hash\"";
  CHECK_MESSAGE(std::system(needs_that_hash.c_str()) == 0, needs_that_hash);
}

// The loader initialises the libraries of a program from the last to the first.
TEST_CASE("host: the malloc of programs that train is initialised before LibTorch") {
  for (const std::string program : {"vernier-train", "vernier-check", "vernier-replay"}) {
    const auto follows =
        "! readelf -d " VERNIER_BINARY_DIR "/" + program + " | grep -B99 libtorch_cpu | grep -q tcmalloc";
    CHECK_MESSAGE(std::system(follows.c_str()) == 0, program);
  }
}

// A plugin that reads no data loads no library for images, and the program loads none either.
TEST_CASE("host: a library is needed only by what uses it") {
  const auto needs = [](const fs::path& file, const char* library) {
    return read_text(file).find(std::string(library) + ".so") != std::string::npos;
  };
  const std::vector<std::string> packs = {"libvernier_data", "libvernier_text", "libvernier_graph", "libvernier_lab"};
  for (const std::string plugin : {"optimizer/adamw", "scaler/dynamic", "callback/ema", "task/mlp"}) {
    CHECK_MESSAGE(needs(product / (plugin + ".so"), "libvernier_core"), plugin);
    for (const auto& pack : packs) CHECK_FALSE_MESSAGE(needs(product / (plugin + ".so"), pack.c_str()), plugin, pack);
  }
  CHECK_FALSE(needs(product / "scaler/none.so", "libvernier_core"));
  for (const auto& pack : packs) {
    CHECK(std::system(("! readelf -d " VERNIER_BINARY_DIR "/vernier-train | grep -q " + pack).c_str()) == 0);
  }
}

TEST_CASE("host: what goes wrong while it is made names the plugin and keeps the kind") {
  const std::string id = "callback/throws_in_constructor";
  const auto refusal_with = [](const char* what) { return refusal("throws_in_constructor", with("what", what)); };
  CHECK(refusal_with("std") == refused(id + " failed in its constructor: boom"));
  CHECK(refusal_with("c10") == refused(id + " failed in its constructor: boom of LibTorch"));
  CHECK(refusal_with("int") == refused(id + " failed in its constructor: it threw no std::exception"));
  CHECK(refusal_with("unnamed") == configuration(id + " failed in its constructor: boom"));
  CHECK(refusal_with("refused") == configuration("run.toml:4: " + id + ": `what` fits nothing"));
  CHECK(refusal("makes_nothing") == refused(fixture("makes_nothing") + ": its create function made nothing"));
  CHECK(refusal("fits", with("strenght", "1")) ==
        configuration("run.toml:4: callback/fits: `strenght` is not an option here; did you mean `strength`?"));
  const auto undefined = refusal("undefined_symbol");
  CHECK(undefined.kind == 3);
  CHECK(says(undefined.text, fixture("undefined_symbol") + ": cannot be opened: "));
  CHECK(says(undefined.text, "function_of_a_library_that_is_not_linked"));
}

TEST_CASE("host: a name that is not a plugin is refused with the nearest") {
  const auto unknown = refusal("throws_ta");
  CHECK(unknown.kind == 3);
  CHECK(says(unknown.text, "no callback is called \"throws_ta\"; did you mean \"throws_at\"? (there are: "));
  CHECK(says(unknown.text, "clip_norm"));
  CHECK(unknown.text.ends_with("; searched: " + fixtures.string() + ", " + product.string() + ")"));
  CHECK(says(refusal<vernier::Precision>("float16").text, "; did you mean \"fp16\"? "));
  CHECK(says(refusal<vernier::Precision>("bfloat16").text, "; did you mean \"bf16\"? "));
  CHECK(says(refusal("clip-norm").text, "; did you mean \"clip_norm\"? "));
  const TemporaryFolder empty;
  Options options("callback/x", {}, "");
  CHECK(thrown_by([&] { Host({empty.path()}).make(Callback::role, "x", options); }) ==
        refused("no callback is called \"x\" (none of this role in " + empty.path().string() + ")"));
  CHECK(refusal("./none.so") == refused("./none.so: there is no such file; without a slash, `use` is the name of a "
                                        "callback in the plugin path"));
  CHECK(says(refusal(empty.path().string()).text, empty.path().string() + ": there is no such file"));
  CHECK(says(refusal(std::string(5000, 'x')).text, "no callback is called"));
  CHECK_FALSE(says(refusal(std::string(5000, 'x')).text, std::string(200, 'x')));
  CHECK(says(refusal("").text, "no callback is called \"\""));
}

TEST_CASE("host: folders are searched in order") {
  const TemporaryFolder first;
  fs::create_directories(first.path() / "callback");
  fs::copy_file(fixture("wrong_torch"), first.path() / "callback" / "fits.so");
  Options options("callback/fits", {}, "");
  CHECK(says(thrown_by([&] {
               Host({first.path(), fixtures}).make(Callback::role, "fits", options);
             }).text,
             "built with"));
  CHECK(Host({fixtures, first.path()}).make(Callback::role, "fits", options) != nullptr);
}

namespace {

// A folder of plugins with callback/fits.so, which is nobody else's.
struct Door {
  Door() {
    fs::create_directories(at("callback"));
    fs::copy_file(fixture("fits"), at("callback/fits.so"));
    for (const char* name : {"", "callback", "callback/fits.so"}) set_mode(name, 0755);
  }
  fs::path at(const std::string& name) const { return name.empty() ? folder.path() : folder.path() / name; }
  void set_mode(const std::string& name, mode_t mode) const { REQUIRE(::chmod(at(name).c_str(), mode) == 0); }
  Thrown refusal(const std::string& use = "fits") const {
    return thrown_by([&] { make(use); });
  }
  std::unique_ptr<Callback> make(const std::string& use = "fits", const std::string& sha256 = "") const {
    Options options("callback/" + use, {}, "run.toml:3");
    auto plugin = Host({folder.path()}).make("callback", use, options, sha256);
    return std::unique_ptr<Callback>(static_cast<Callback*>(plugin.release()));
  }
  TemporaryFolder folder;
};

// The path of the library that an object's class is in.
std::string library_of(const Callback& plugin) {
  Dl_info info = {};
  const void* table = nullptr;  // the table of its virtual functions
  std::memcpy(&table, static_cast<const void*>(&plugin), sizeof table);
  REQUIRE(::dladdr(table, &info) != 0);
  return info.dli_fname;
}

}  // namespace

TEST_CASE("host: a plugin that others may write to is refused: its file, its folder, the folder of plugins") {
  for (const char* name : {"callback/fits.so", "callback", ""}) {
    CAPTURE(name);
    const Door door;
    const std::string path = door.at(name).string();
    const auto by_others =
        refused(path + ": can be written to by others; chmod go-w it, or move the plugin to a folder of your own");
    for (const mode_t mode : {0757, 0777, 01777}) {  // the last as /tmp has it
      door.set_mode(name, mode);
      CHECK(door.refusal() == by_others);
    }
    for (const auto& plugin : Host({door.folder.path()}).list()) CHECK(plugin.trouble == by_others.text);
    if (::geteuid() != 0) continue;  // files of other users and groups are made by root
    door.set_mode(name, 0775);
    CHECK(door.refusal() == Thrown{});  // the group is root's own
    REQUIRE(::chown(path.c_str(), 0, 1) == 0);
    CHECK(door.refusal() == by_others);
    door.set_mode(name, 0755);
    CHECK(door.refusal() == Thrown{});
    REQUIRE(::chown(path.c_str(), 1, 0) == 0);
    CHECK(door.refusal() == refused(path + ": belongs to another user (id 1), who can write to it; chown it, or copy "
                                           "the plugin to a folder of your own"));
  }
}

TEST_CASE("host: a link that leads out of the folder of plugins is refused; one that the user names is followed") {
  const Door door;
  fs::create_symlink("fits.so", door.at("callback/inside.so"));
  CHECK(door.refusal("inside") == Thrown{});
  const auto out = door.at("callback/out.so");
  fs::create_symlink(fixture("fits"), out);
  const std::string leads = ": leads through a link to " + fs::canonical(fixture("fits")).string() +
                            ", outside of its folder of plugins; copy that file here, or give its path to `use`";
  CHECK(door.refusal("out") == refused(out.string() + leads));
  CHECK(door.refusal(out.string()) == Thrown{});
  const Door linked;
  fs::remove_all(linked.at("callback"));
  fs::create_directory_symlink(fs::path(fixture("fits")).parent_path(), linked.at("callback"));
  CHECK(linked.refusal() == refused(linked.at("callback/fits.so").string() + leads));
  fs::create_directory_symlink(door.folder.path(), linked.at("plugins"));  // the folder of plugins itself may be one
  Options options("callback/fits", {}, "run.toml:3");
  CHECK(Host({linked.at("plugins")}).make(Callback::role, "fits", options) != nullptr);
}

TEST_CASE("host: libraries of one name in several folders are opened each, and known by their real paths") {
  const Door first, second;
  const auto one = first.make(), two = second.make(), again = first.make();
  CHECK(library_of(*one) == fs::canonical(first.at("callback/fits.so")));
  CHECK(library_of(*two) == fs::canonical(second.at("callback/fits.so")));
  CHECK(library_of(*again) == library_of(*one));
}

TEST_CASE("host: a file whose digest is not the pinned one is refused with both") {
  const Door door;
  const auto file = door.folder.write("callback/pinned.so", "abc");  // FIPS 180-2, appendix B.1
  const std::string digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const std::string other(64, '0');
  CHECK(thrown_by([&] { door.make("pinned", other); }) ==
        refused(file + ": its SHA-256 is " + digest + ", and `sha256` pins " + other +
                "; if you trust this file, pin its digest"));
  CHECK(says(thrown_by([&] { door.make("pinned", digest); }).text, "not a Vernier plugin"));
}

TEST_CASE("host: the list says what is there and what cannot be used, and opens nothing") {
  const bool before = was_opened("fits");
  std::map<std::string, Host::Listed> listed;
  for (const auto& plugin : Host({fixtures, fs::path("/no/such/folder")}).list()) {
    listed[plugin.role + "/" + plugin.name] = plugin;
  }
  REQUIRE(listed.count("monitor/throws_at") == 1);
  CHECK(listed["callback/fits"].version == "1.0.0");
  CHECK(listed["callback/fits"].trouble.empty());
  CHECK(says(listed["callback/wrong_abi"].trouble, "rebuild the plugin"));
  CHECK(says(listed["callback/no_symbol"].trouble, "not a Vernier plugin"));
  CHECK(was_opened("fits") == before);
  for (const char* name : {"wrong_abi", "wrong_torch", "no_symbol", "wrong_role"}) CHECK_FALSE(was_opened(name));
}

TEST_CASE("host: files that are no library are refused") {
  const TemporaryFolder folder;
  for (const std::string& bytes : {std::string(), std::string("print('hello')\n"), std::string("\177ELF"),
                                   std::string(4096, '\0'), "\177ELF" + std::string(4096, '\xff')}) {
    CHECK(thrown_by([&] { vernier::PluginFile(folder.write("plugin.so", bytes), "").descriptor(); }) ==
          refused((folder / "plugin.so") +
                  ": not a Vernier plugin (it does not export `vernier_plugin`); does its source "
                  "have VERNIER_PLUGIN(…)?"));
  }
  CHECK(says(thrown_by([&] { vernier::PluginFile(folder.path(), "").descriptor(); }).text, "there is no such file"));
}

TEST_CASE("host: a damaged library is refused or read, whatever the damage") {
  const TemporaryFolder folder;
  const std::string whole = read_text(product / "scaler" / "none.so");
  const auto header = read_at<Elf64_Ehdr>(whole, 0);
  int refusals = 0;
  const auto try_to_read = [&](const std::string& bytes) {
    const auto result = thrown_by([&] {
      const auto found = vernier::PluginFile(folder.write("plugin.so", bytes), "").descriptor();
      CHECK(std::strlen(found.role) < sizeof found.role);
      CHECK(std::strcmp(found.build, VERNIER_BUILD) == 0);
    });
    CHECK((result.kind == 0 || result.kind == 3));
    refusals += result.kind == 3 ? 1 : 0;
  };
  SUBCASE("cut short") {
    std::size_t loaded = 0, tries = 0;  // the part behind the loaded one, such as debugging symbols, is not needed
    for (unsigned i = 0; i < header.e_phnum; ++i) {
      const auto segment = read_at<Elf64_Phdr>(whole, header.e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == PT_LOAD) loaded = std::max(loaded, segment.p_offset + segment.p_filesz);
    }
    for (std::size_t length = 0; length < loaded; length += 1 + loaded / 400, ++tries) {
      try_to_read(whole.substr(0, length));
    }
    try_to_read(whole.substr(0, loaded - 1));
    CHECK(refusals == static_cast<int>(tries) + 1);
  }
  SUBCASE("each bit of the header") {
    for (std::size_t bit = 0; bit < 8 * sizeof header; ++bit) {
      std::string bytes = whole;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      try_to_read(bytes);
    }
    CHECK(refusals > 50);
  }
  SUBCASE("random bytes of the tables") {
    std::mt19937 random(1);
    const auto table_begin = static_cast<std::size_t>(header.e_shoff);
    const std::size_t dynamic_symbols = 4096;
    for (int trial = 0; trial < 600; ++trial) {
      std::string bytes = whole;
      for (int i = 0; i < 1 + trial % 16; ++i) {
        const bool in_table = random() % 2 == 0;
        const std::size_t from = in_table ? table_begin : 0, to = in_table ? bytes.size() : dynamic_symbols;
        bytes[from + random() % (to - from)] = static_cast<char>(random());
      }
      try_to_read(bytes);
    }
    CHECK(refusals > 50);
  }
}

TEST_CASE("host: every plugin of the product exports its descriptor and nothing else") {
  int libraries = 0;
  for (const auto& entry : fs::recursive_directory_iterator(product)) {
    if (entry.path().extension() != ".so") continue;
    CAPTURE(entry.path().string());
    CHECK(exports_of(entry.path()) == std::set<std::string>{"vernier_plugin"});
    const auto descriptor = vernier::PluginFile(entry.path(), "").descriptor();
    CHECK(entry.path().parent_path().filename() == descriptor.role);
    CHECK(entry.path().stem() == descriptor.name);
    ++libraries;
  }
  CHECK(libraries > 10);
}

TEST_CASE("host: what a library or a constructor changes of the process is put back, with a warning in its name") {
  struct Change {
    const char *library, *how, *changed;
  };
  const Change changes[] = {{"fast_math", "nothing",
                             "as its library was opened it changed the floating-point mode (numbers near 0 became 0)"},
                            {"lawless", "rounding", "in its constructor it changed the floating-point mode"},
                            {"lawless", "mask", "in its constructor it changed the mask of signals"},
                            {"lawless", "handler", "in its constructor it changed the handler of SIGINT"},
                            {"lawless", "umask", "in its constructor it changed the umask"},
                            {"lawless", "threads", "in its constructor it changed the number of threads"},
                            {"lawless", "locale", "in its constructor it changed the locale"},
                            {"lawless", "folder", "in its constructor it changed the working directory"},
                            {"lawless", "grad_mode_at_once", "in its constructor it changed the gradient mode"}};
  const auto before = vernier::ProcessState::now();
  for (const auto& [library, how, changed] : changes) {
    CAPTURE(std::string(how));
    const LogLines log;
    Options options("callback/lawless", with("how", how), "run.toml:3");
    (void)Host({fixtures}).make("callback", library, options);
    CHECK(before.changed_in(vernier::ProcessState::now()).empty());
    CHECK(LogLines::count(std::string("callback/lawless: ") + changed +
                          " of the whole process, which was put back; ") == 1);
  }
}

}  // namespace host_test
