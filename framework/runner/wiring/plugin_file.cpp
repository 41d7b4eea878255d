#include "plugin_file.h"

#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/checksum.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "core/process_state.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// The bytes of a file; every read from it is checked, since the file may be anything.
class Bytes {
 public:
  explicit Bytes(const std::vector<char>& bytes) : bytes_(bytes) {}
  bool has(std::uint64_t offset, std::uint64_t count) const {
    return offset <= bytes_.size() && count <= bytes_.size() - offset;
  }
  template <class T>
  bool read(std::uint64_t offset, T& to) const {
    if (!has(offset, sizeof(T))) return false;
    std::memcpy(&to, bytes_.data() + offset, sizeof(T));
    return true;
  }
  // The first `count` records at an offset; fewer where the file ends before.
  template <class T>
  std::vector<T> records(std::uint64_t offset, std::uint64_t count) const {
    std::vector<T> all;
    for (T each; all.size() < count && read(offset + all.size() * sizeof each, each);) all.push_back(each);
    return all;
  }
  bool says(std::uint64_t offset, const char* text) const {
    const std::size_t length = std::strlen(text) + 1;
    return has(offset, length) && std::memcmp(bytes_.data() + offset, text, length) == 0;
  }
  // The text that begins here and ends in 0; "" if it does not end.
  std::string text(std::uint64_t offset) const {
    if (!has(offset, 1)) return "";
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = std::find(begin, bytes_.end(), '\0');
    return end == bytes_.end() ? "" : std::string(begin, end);
  }

 private:
  const std::vector<char>& bytes_;
};

// The place in the file of the bytes that are loaded at an address.
bool file_offset(const Bytes& bytes, const Elf64_Ehdr& header, std::uint64_t address, std::uint64_t& offset) {
  for (const auto& segment : bytes.records<Elf64_Phdr>(header.e_phoff, header.e_phnum)) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz) {
      offset = segment.p_offset + (address - segment.p_vaddr);
      return true;
    }
  }
  return false;
}

// Returns true if the file has all bytes of its loaded segments; touching a missing one would end the process.
bool is_whole(const Bytes& bytes) {
  Elf64_Ehdr header;
  if (!bytes.read(0, header)) return false;
  const auto segments = bytes.records<Elf64_Phdr>(header.e_phoff, header.e_phnum);
  return segments.size() == header.e_phnum && std::ranges::all_of(segments, [&](const auto& segment) {
           return segment.p_type != PT_LOAD || bytes.has(segment.p_offset, segment.p_filesz);
         });
}

// Finds the exported symbol `vernier_plugin` in the table of dynamic symbols.
bool find_descriptor(const Bytes& bytes, std::uint64_t& offset) {
  Elf64_Ehdr header;
  if (!bytes.read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN) return false;
  for (const auto& symbols : bytes.records<Elf64_Shdr>(header.e_shoff, header.e_shnum)) {
    Elf64_Shdr names;
    if (symbols.sh_type != SHT_DYNSYM) continue;
    if (!bytes.read(header.e_shoff + symbols.sh_link * sizeof names, names)) return false;
    for (const auto& symbol : bytes.records<Elf64_Sym>(symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym))) {
      if (symbol.st_shndx != SHN_UNDEF && bytes.says(names.sh_offset + symbol.st_name, "vernier_plugin")) {
        return file_offset(bytes, header, symbol.st_value, offset);
      }
    }
  }
  return false;
}

// The names of the libraries that the loader opens with this one.
std::vector<std::string> needed_libraries(const Bytes& bytes) {
  std::vector<std::string> all;
  Elf64_Ehdr header;
  if (!bytes.read(0, header)) return all;
  for (const auto& section : bytes.records<Elf64_Shdr>(header.e_shoff, header.e_shnum)) {
    Elf64_Shdr names;
    if (section.sh_type != SHT_DYNAMIC) continue;
    if (!bytes.read(header.e_shoff + section.sh_link * sizeof names, names)) continue;
    for (const auto& entry : bytes.records<Elf64_Dyn>(section.sh_offset, section.sh_size / sizeof(Elf64_Dyn))) {
      if (entry.d_tag == DT_NEEDED) all.push_back(bytes.text(names.sh_offset + entry.d_un.d_val));
    }
  }
  return all;
}

template <std::size_t room>
bool is_text(const char (&text)[room]) {
  return std::ranges::find(text, '\0') != std::end(text);
}

[[noreturn]] void refuse_with_errno(const fs::path& path) {
  refuse_library(path.string() + ": cannot be opened: " + std::strerror(errno));
}

bool is_in(const fs::path& file, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

// Keeps the descriptor of a folder open for the rest of the process, and returns the same one for the same folder. The
// loader identifies a library by the path that it was opened with, and that path contains the descriptor.
int kept(int folder) {
  static auto* folders = new std::map<std::pair<dev_t, ino_t>, int>();
  struct stat status = {};
  if (::fstat(folder, &status) != 0) return folder;
  const auto [entry, is_new] = folders->try_emplace({status.st_dev, status.st_ino}, folder);
  if (!is_new) ::close(folder);
  return entry->second;
}

// Makes dladdr, backtraces and debuggers show a library's real path, not the one that it was opened with.
void name_by_path(void* library, const std::string& path) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || path == map->l_name) return;
  static auto* names = new std::deque<std::pair<std::string, char*>>();  // the loader's own names stay too
  map->l_name = names->emplace_back(path, map->l_name).first.data();
}

// Returns true if a plugin's build fits this program's. One that was built with the address sanitizer fits too while
// the sanitizer's runtime is loaded (`vernier check --sanitize`).
bool fits(const std::string& build) {
  return build == VERNIER_BUILD || (build == VERNIER_BUILD " asan" && ::dlsym(RTLD_DEFAULT, "__asan_init") != nullptr);
}

}  // namespace

void refuse_library(const std::string& text) {
  throw Error(text, Error::Kind::plugin);
}

std::string abi_text(std::uint32_t abi) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setw(8) << std::setfill('0') << abi;
  return text.str();
}

PluginFile::PluginFile(fs::path file, const fs::path& folder) : file_(std::move(file)) {
  std::error_code trouble;
  real_ = fs::canonical(file_, trouble);
  const fs::path top = trouble || folder.empty() ? real_.parent_path() : fs::canonical(folder, trouble);
  const bool is_none = trouble == std::errc::no_such_file_or_directory;
  if (trouble && !is_none) refuse_library(file_.string() + ": cannot be opened: " + trouble.message());
  if (is_none || !fs::is_regular_file(real_, trouble)) refuse_library(file_.string() + ": there is no such file");
  if (!is_in(real_, top)) {
    refuse_library(file_.string() + ": leads through a link to " + real_.string() +
                   ", outside of its folder of plugins; copy that file here, or give its path to `use`");
  }
  struct stat status = {};
  for (auto above = real_.parent_path(); above != top; above = above.parent_path()) {
    if (::stat(above.parent_path().c_str(), &status) != 0) refuse_with_errno(above.parent_path());
    refuse_other_writers(above.parent_path(), status, "plugin");
  }
  folder_ = ::open(real_.parent_path().c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_ < 0 || ::fstat(folder_, &status) != 0) refuse_with_errno(real_.parent_path());
  try {
    refuse_other_writers(real_.parent_path(), status, "plugin");
    read();
  } catch (...) {
    ::close(folder_);
    throw;
  }
}

PluginFile::~PluginFile() {
  if (folder_ >= 0) ::close(folder_);
}

void PluginFile::read() {
  const int file = ::openat(folder_, real_.filename().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) refuse_with_errno(file_);
  const auto close = c10::make_scope_exit([file] { ::close(file); });
  struct stat status = {};
  if (::fstat(file, &status) != 0) refuse_with_errno(file_);
  if (!S_ISREG(status.st_mode)) refuse_library(file_.string() + ": there is no such file");
  refuse_other_writers(real_, status, "plugin");
  constexpr off_t largest = 1 << 30;  // all of it is read
  if (status.st_size > largest) refuse_library(file_.string() + ": has more than 1 GiB, as no plugin has");
  bytes_.resize(static_cast<std::size_t>(status.st_size));
  for (std::size_t done = 0; done < bytes_.size();) {
    const auto count = ::read(file, bytes_.data() + done, bytes_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_with_errno(file_);
    if (count == 0) bytes_.resize(done);  // it became shorter
    done += static_cast<std::size_t>(count);
  }
}

Descriptor PluginFile::descriptor() const {
  const std::string name = file_.string();
  const Bytes bytes(bytes_);
  std::uint64_t offset = 0;
  Descriptor plugin;
  if (!find_descriptor(bytes, offset)) {
    refuse_library(
        name + ": not a Vernier plugin (it does not export `vernier_plugin`); does its source have VERNIER_PLUGIN(…)?");
  }
  // A descriptor of another ABI may be shorter than ours, but its first two fields stand where ours do.
  if (!bytes.read(offset, plugin.abi)) refuse_library(name + ": the file is cut short; build or copy it again");
  if (plugin.abi != VERNIER_ABI) {
    refuse_library(name + ": built for plugin ABI " + abi_text(plugin.abi) + ", this Vernier has " +
                   abi_text(VERNIER_ABI) + "; rebuild the plugin");
  }
  if (!bytes.read(offset, plugin) || !is_whole(bytes))
    refuse_library(name + ": the file is cut short; build or copy it again");
  if (!is_text(plugin.build) || !is_text(plugin.role) || !is_text(plugin.name) || !is_text(plugin.version)) {
    refuse_library(name + ": its descriptor is damaged; rebuild the plugin");
  }
  // libc++ leaves this macro of libstdc++ undefined, so that its name stands in the text.
  if (std::string(plugin.build).find("cxx11abi=_") != std::string::npos) {
    refuse_library(name + ": built with libc++, and LibTorch with libstdc++; compile it with -stdlib=libstdc++");
  }
  if (!fits(plugin.build)) {
    refuse_library(name + ": built with " + plugin.build + ", this Vernier with " + VERNIER_BUILD +
                   "; rebuild the plugin");
  }
  refuse_other_libraries();
  return plugin;
}

void PluginFile::refuse_other_libraries() const {
  for (const auto& library : needed_libraries(Bytes(bytes_))) {
    const auto stem_of = [](const std::string& file) { return file.substr(0, file.rfind('.') + 1); };
    for (const std::string ours : {VERNIER_LIBRARY_FILES}) {  // "libvernier_core.so.86d2c1f0"
      if (stem_of(library) != stem_of(ours) || library == ours) continue;
      refuse_library(file_.string() + ": built with " + library + ", this Vernier has " + ours +
                     "; rebuild the plugin");
    }
  }
}

std::string PluginFile::checksum() const {
  Checksum sum;
  sum.add(bytes_.data(), bytes_.size());
  return sum.digits();
}

std::string PluginFile::sha256() const {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (::EVP_Digest(bytes_.data(), bytes_.size(), digest, &length, ::EVP_sha256(), nullptr) != 1) {
    refuse_library(file_.string() + ": its SHA-256 cannot be computed by this OpenSSL");
  }
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    constexpr const char* digits = "0123456789abcdef";
    text += {digits[digest[i] / 16], digits[digest[i] % 16]};
  }
  return text;
}

// Opens the library by its folder's descriptor, so that another folder which has taken the path is not used. The file
// has no descriptor of its own here: its $ORIGIN, where the loader looks for its libraries, would be /proc/self/fd.
const Descriptor& PluginFile::open(const std::string& id) {
  const int folder = kept(std::exchange(folder_, -1));
  const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/" + real_.filename().string();
  static auto* opened = new std::deque<boost::dll::shared_library>();  // never closed: objects of plugins may live on
  auto& library = opened->emplace_back();
  boost::dll::fs::error_code trouble;
  {
    const PluginCall call(id, "as its library was opened");
    library.load(path, trouble, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  }
  if (trouble) {
    opened->pop_back();
    std::string reason = ::dlerror();  // `trouble` has no text of the loader
    c10::ReplaceAll(reason, path, real_.string());
    refuse_library(file_.string() + ": cannot be opened: " + reason);
  }
  name_by_path(library.native(), real_.string());
  if (!library.has("vernier_plugin")) {
    refuse_library(file_.string() + ": does not export `vernier_plugin`; rebuild the plugin");
  }
  const auto& exported = library.get<const Descriptor>("vernier_plugin");
  note_opened(&exported, id);
  return exported;
}

}  // namespace vernier
