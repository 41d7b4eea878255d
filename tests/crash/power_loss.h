// The possible contents of a disk after a loss of power, derived from the calls that were made (disk.h).
//
// The rules are the weakest that file systems are known to keep (Pillai et al., "All File Systems Are Not Created
// Equal", OSDI 2014): bytes are safe when their file was synced, names when their folder was. Of all else each change
// is there or not, whatever the order in which they were made; of a write that was not synced half may be there, or its
// room without its bytes. A rename is one change, and safe when either folder was synced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "disk.h"

// A folder that starts empty, and to which calls are applied.
class UnsafeDisk {
 public:
  enum class Chance { gone, there, half, zeros };     // the last two: of a write; gone else
  using Choice = std::function<Chance(std::size_t)>;  // for the n-th change that is not safe

  explicit UnsafeDisk(std::string root) : root_(std::move(root)) { nodes_.emplace_back().is_folder = true; }

  void apply(const disk::Call& call);

  std::size_t unsafe() const { return changes_.size(); }
  bool is_write(std::size_t change) const { return changes_[change].is_write; }

  // Returns the files that a boot would find: path below the root → bytes; folders end in "/", links are "-> target".
  std::map<std::string, std::string> after_power_loss(const Choice& choice) const;
  static std::map<std::string, std::string> everything_of(const std::filesystem::path& folder);
  static void make(const std::map<std::string, std::string>& files, const std::filesystem::path& folder);

 private:
  using Names = std::map<std::string, std::size_t>;
  struct Node {
    bool is_folder = false;
    std::string bytes, safe_bytes, link;
    Names names, safe_names;
  };
  struct Entry {  // a name that leads to another node
    std::size_t folder, node;
    std::string name;
  };
  struct Change {
    bool is_write = false;
    std::size_t node = 0;  // the bytes of this node change
    std::uint64_t offset = 0;
    std::string bytes;
    bool cuts = false;           // a truncate, to `offset`
    std::vector<Entry> entries;  // or names; nothing_: taken away
  };
  static constexpr std::size_t nothing_ = static_cast<std::size_t>(-1);

  std::size_t find(const std::string& path) const;
  Entry place(const std::string& path) const;
  void rename(std::vector<Entry> entries);
  void move(Entry from, Entry to, std::size_t moved, std::size_t left);
  void write(std::size_t node, std::uint64_t offset, const std::string& bytes);
  void cut(std::size_t node, std::uint64_t size);
  void sync(std::size_t node);
  static void put(Names& names, const Entry& entry);
  static void put(std::string& bytes, std::uint64_t offset, const std::string& more);
  void list(const std::vector<Node>& nodes, std::size_t folder, const std::string& path,
            std::map<std::string, std::string>& all) const;

  std::string root_;
  std::vector<Node> nodes_;  // the first is the root
  std::vector<Change> changes_;
  std::map<int, std::size_t> open_;
};
