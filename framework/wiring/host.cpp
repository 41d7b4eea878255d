#include "host.h"

#include <dlfcn.h>
#include <elf.h>
#include <vernier/error.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <fstream>
#include <iterator>

#include "core/printable.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_library(const std::string& text) {
  throw Error(text, Error::Kind::plugin);
}

// The bytes of a file; every read from it is checked, since the file may be anything.
class Bytes {
 public:
  explicit Bytes(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  bool has(std::uint64_t offset, std::uint64_t count) const {
    return offset <= bytes_.size() && count <= bytes_.size() - offset;
  }
  template <class T>
  bool read(std::uint64_t offset, T& to) const {
    if (!has(offset, sizeof(T))) return false;
    std::memcpy(&to, bytes_.data() + offset, sizeof(T));
    return true;
  }
  bool says(std::uint64_t offset, const char* text) const {
    const std::size_t length = std::strlen(text) + 1;
    return has(offset, length) && std::memcmp(bytes_.data() + offset, text, length) == 0;
  }

 private:
  std::vector<char> bytes_;
};

// The place in the file of the bytes that are loaded at an address.
bool file_offset(const Bytes& bytes, const Elf64_Ehdr& header, std::uint64_t address, std::uint64_t& offset) {
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!bytes.read(header.e_phoff + i * sizeof segment, segment)) return false;
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz) {
      offset = segment.p_offset + (address - segment.p_vaddr);
      return true;
    }
  }
  return false;
}

// Whether all that is loaded is in the file; the first touch of what is not would end the process.
bool is_whole(const Bytes& bytes) {
  Elf64_Ehdr header;
  if (!bytes.read(0, header)) return false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!bytes.read(header.e_phoff + i * sizeof segment, segment)) return false;
    if (segment.p_type == PT_LOAD && !bytes.has(segment.p_offset, segment.p_filesz)) return false;
  }
  return true;
}

// Finds the exported symbol `vernier_plugin` in the table of dynamic symbols.
bool find_descriptor(const Bytes& bytes, std::uint64_t& offset) {
  Elf64_Ehdr header;
  if (!bytes.read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN) return false;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr symbols, names;
    if (!bytes.read(header.e_shoff + i * sizeof symbols, symbols)) return false;
    if (symbols.sh_type != SHT_DYNSYM) continue;
    if (!bytes.read(header.e_shoff + symbols.sh_link * sizeof names, names)) return false;
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      if (!bytes.read(symbols.sh_offset + at, symbol)) return false;
      if (symbol.st_shndx != SHN_UNDEF && bytes.says(names.sh_offset + symbol.st_name, "vernier_plugin")) {
        return file_offset(bytes, header, symbol.st_value, offset);
      }
    }
  }
  return false;
}

bool is_text(const char* begin, std::size_t room) {
  return std::find(begin, begin + room, '\0') != begin + room;
}

}  // namespace

Descriptor read_descriptor(const fs::path& file) {
  const std::string name = file.string();
  std::error_code none;
  if (!fs::is_regular_file(file, none)) refuse_library(name + ": there is no such file");
  constexpr std::uintmax_t largest = 1 << 30;  // all of it is read
  if (fs::file_size(file, none) > largest) refuse_library(name + ": has more than 1 GiB, as no plugin has");
  const Bytes bytes(file);
  std::uint64_t offset = 0;
  Descriptor plugin;
  if (!find_descriptor(bytes, offset)) {
    refuse_library(
        name + ": not a Vernier plugin (it does not export `vernier_plugin`); does its source have VERNIER_PLUGIN(…)?");
  }
  // A descriptor of another ABI may be shorter than ours, but its first two fields stand where ours do.
  if (!bytes.read(offset, plugin.abi)) refuse_library(name + ": the file is cut short; build or copy it again");
  if (plugin.abi != VERNIER_ABI) {
    refuse_library(name + ": built for plugin ABI " + std::to_string(plugin.abi) + ", this Vernier has " +
                   std::to_string(VERNIER_ABI) + "; rebuild the plugin");
  }
  if (!bytes.read(offset, plugin) || !is_whole(bytes))
    refuse_library(name + ": the file is cut short; build or copy it again");
  if (!is_text(plugin.build, sizeof plugin.build) || !is_text(plugin.role, sizeof plugin.role) ||
      !is_text(plugin.name, sizeof plugin.name) || !is_text(plugin.version, sizeof plugin.version)) {
    refuse_library(name + ": its descriptor is damaged; rebuild the plugin");
  }
  if (std::strcmp(plugin.build, VERNIER_BUILD) != 0) {
    refuse_library(name + ": built with " + plugin.build + ", this Vernier with " + VERNIER_BUILD +
                   "; rebuild the plugin");
  }
  return plugin;
}

fs::path Host::find(const std::string& role, const std::string& name) const {
  std::error_code none;
  if (name.find('/') != std::string::npos) {
    if (fs::exists(name, none)) return name;
    refuse_library(name + ": there is no such file; without a slash, `use` is the name of a " + role +
                   " in the plugin path");
  }
  for (const auto& folder : folders_) {
    if (auto file = folder / role / (name + ".so"); fs::exists(file, none)) return file;
  }
  std::vector<std::string> names;
  std::string all;
  for (const auto& plugin : list()) {
    if (plugin.role != role) continue;
    names.push_back(plugin.name);
    all += (all.empty() ? "" : ", ") + plugin.name;
  }
  std::string searched;
  for (const auto& folder : folders_) searched += (searched.empty() ? "" : ", ") + folder.string();
  const std::string near = nearest(name, names);
  refuse_library("no " + role + " is called \"" + shortened(name) + "\"" +
                 (near.empty() ? "" : "; did you mean \"" + near + "\"?") +
                 (all.empty() ? " (none of this role in " : " (there are: " + all + "; searched: ") + searched + ")");
}

std::unique_ptr<Plugin> Host::make(const std::string& role, const std::string& name, Options& options) const {
  const fs::path file = find(role, name);
  const Descriptor found = read_descriptor(file);
  if (role != found.role) {
    refuse_library(file.string() + ": is a " + found.role + " (\"" + found.name + "\"), and stands in the place of a " +
                   role);
  }
  // Open for good: objects that a plugin made may live anywhere. Boost.DLL closes a library whose handle dies.
  static auto* libraries = new std::vector<boost::dll::shared_library>();
  auto* library = &libraries->emplace_back();
  boost::dll::fs::error_code trouble;
  library->load(boost::dll::fs::path(fs::absolute(file).string()), trouble,
                boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (trouble) {
    const char* reason = dlerror();  // says more: which symbol, which library
    refuse_library(file.string() + ": cannot be opened: " + (reason != nullptr ? reason : trouble.message()));
  }
  const auto& plugin = library->get<const Descriptor>("vernier_plugin");
  const std::string id = role + "/" + plugin.name;
  std::unique_ptr<Plugin> made;
  try {
    made.reset(plugin.create(options));
  } catch (...) {
    rethrow_naming(id, " failed in its constructor", Error::Kind::plugin);
  }
  if (made == nullptr) refuse_library(file.string() + ": its create function made nothing");
  options.refuse_unread();
  made->set_id(id);
  made->set_version(plugin.version);
  return made;
}

std::vector<Host::Listed> Host::list() const {
  std::vector<Listed> all;
  const auto list_role = [&all](const fs::path& folder) {
    std::error_code trouble;
    for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
      const auto& file = entry->path();
      if (file.extension() != ".so") continue;
      Listed plugin{folder.filename().string(), file.stem().string(), "", "", file};
      try {
        const auto descriptor = read_descriptor(file);
        plugin.version = descriptor.version;
        if (plugin.role != descriptor.role) plugin.trouble = std::string("it is a plugin of role ") + descriptor.role;
      } catch (const Error& error) {
        plugin.trouble = error.what();
      }
      all.push_back(std::move(plugin));
    }
  };
  for (const auto& folder : folders_) {
    std::error_code trouble;
    for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
      list_role(entry->path());  // one that is no folder lists nothing
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return std::tie(a.role, a.name) < std::tie(b.role, b.name); });
  return all;
}

}  // namespace vernier
