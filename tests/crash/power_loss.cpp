#include "power_loss.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "temporary_folder.h"

using disk::Call;
namespace fs = std::filesystem;

std::size_t UnsafeDisk::find(const std::string& path) const {
  std::size_t node = 0;
  for (const auto& part : fs::path(path).lexically_relative(root_)) {
    if (part == ".") continue;
    const auto found = nodes_[node].names.find(part.string());
    if (found == nodes_[node].names.end()) return nothing_;
    node = found->second;
  }
  return node;
}

UnsafeDisk::Entry UnsafeDisk::place(const std::string& path) const {
  const fs::path whole(path);
  return {find(whole.parent_path().string()), find(path), whole.filename().string()};
}

void UnsafeDisk::put(Names& names, const Entry& entry) {
  if (entry.node == nothing_) {
    names.erase(entry.name);
  } else {
    names[entry.name] = entry.node;
  }
}

void UnsafeDisk::put(std::string& bytes, std::uint64_t offset, const std::string& more) {
  if (bytes.size() < offset + more.size()) bytes.resize(offset + more.size(), '\0');
  bytes.replace(offset, more.size(), more);
}

void UnsafeDisk::rename(std::vector<Entry> entries) {
  for (const auto& entry : entries) put(nodes_[entry.folder].names, entry);
  Change change;
  change.entries = std::move(entries);
  changes_.push_back(std::move(change));
}

void UnsafeDisk::write(std::size_t node, std::uint64_t offset, const std::string& bytes) {
  put(nodes_[node].bytes, offset, bytes);
  Change change;
  change.is_write = true;
  change.node = node;
  change.offset = offset;
  change.bytes = bytes;
  changes_.push_back(std::move(change));
}

void UnsafeDisk::cut(std::size_t node, std::uint64_t size) {
  nodes_[node].bytes.resize(size, '\0');
  Change change;
  change.node = node;
  change.offset = size;
  change.cuts = true;
  changes_.push_back(std::move(change));
}

void UnsafeDisk::sync(std::size_t node) {
  if (!nodes_[node].is_folder) {
    nodes_[node].safe_bytes = nodes_[node].bytes;
    std::erase_if(changes_, [&](const Change& change) { return change.entries.empty() && change.node == node; });
    return;
  }
  std::erase_if(changes_, [&](const Change& change) {
    const bool concerns = std::ranges::any_of(change.entries, [&](const Entry& entry) { return entry.folder == node; });
    if (concerns) {
      for (const auto& entry : change.entries) put(nodes_[entry.folder].safe_names, entry);
    }
    return concerns;
  });
}

// Gives the node `moved` the name `to`, and the name `from` the node `left`.
void UnsafeDisk::move(Entry from, Entry to, std::size_t moved, std::size_t left) {
  from.node = left;
  to.node = moved;
  rename({from, to});
}

void UnsafeDisk::apply(const Call& call) {
  using Kind = Call::Kind;
  const auto opened = [&] {
    const auto found = open_.find(call.file);
    return found != open_.end() ? found->second : find(call.name);
  };
  const auto known = [&](std::size_t node) {
    if (node == nothing_) throw std::runtime_error("the calls that were kept do not show " + call.name);
    return node;
  };
  switch (call.kind) {
    case Kind::mark:
      break;
    case Kind::open:
      if (call.is_new) {
        nodes_.emplace_back();
        auto entry = place(call.name);
        entry.node = nodes_.size() - 1;
        rename({entry});
      }
      open_[call.file] = known(find(call.name));
      if (call.is_emptied && !call.is_new) cut(open_[call.file], 0);
      break;
    case Kind::write:
      write(known(opened()), call.offset, call.bytes);
      break;
    case Kind::truncate:
      cut(known(opened()), call.offset);
      break;
    case Kind::sync:
      sync(known(opened()));
      break;
    case Kind::close:
      open_.erase(call.file);
      break;
    case Kind::make_folder:
    case Kind::link: {
      nodes_.emplace_back();
      nodes_.back().is_folder = call.kind == Kind::make_folder;
      nodes_.back().link = call.other;
      auto entry = place(call.name);
      entry.node = nodes_.size() - 1;
      rename({entry});
      break;
    }
    case Kind::remove: {
      auto entry = place(call.name);
      entry.node = nothing_;
      rename({entry});
      break;
    }
    case Kind::rename:
      move(place(call.name), place(call.other), known(find(call.name)), nothing_);
      break;
    case Kind::exchange:
      move(place(call.name), place(call.other), known(find(call.name)), known(find(call.other)));
      break;
  }
}

void UnsafeDisk::list(const std::vector<Node>& nodes, std::size_t folder, const std::string& path,
                      std::map<std::string, std::string>& all) const {
  for (const auto& [name, number] : nodes[folder].safe_names) {
    const Node& node = nodes[number];
    const std::string below = path + name;
    if (node.is_folder) {
      all[below + "/"] = "";
      list(nodes, number, below + "/", all);
    } else {
      all[below] = node.link.empty() ? node.safe_bytes : "-> " + node.link;
    }
  }
}

std::map<std::string, std::string> UnsafeDisk::after_power_loss(const Choice& choice) const {
  auto nodes = nodes_;
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    const Change& change = changes_[i];
    const Chance chance = choice(i);
    auto& bytes = nodes[change.node].safe_bytes;
    if (change.is_write) {
      const auto size = change.bytes.size();
      if (chance == Chance::there) put(bytes, change.offset, change.bytes);
      if (chance == Chance::half) put(bytes, change.offset, change.bytes.substr(0, size / 2));
      if (chance == Chance::zeros) put(bytes, change.offset, std::string(size, '\0'));
    } else if (chance == Chance::there && change.cuts) {
      bytes.resize(change.offset, '\0');
    } else if (chance == Chance::there) {
      for (const auto& entry : change.entries) put(nodes[entry.folder].safe_names, entry);
    }
  }
  std::map<std::string, std::string> all;
  list(nodes, 0, "", all);
  return all;
}

std::map<std::string, std::string> UnsafeDisk::everything_of(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      all[name] = "-> " + fs::read_symlink(entry.path()).string();
    } else if (entry.is_directory()) {
      all[name + "/"] = "";
    } else {
      all[name] = read_text(entry.path());
    }
  }
  return all;
}

// In the order of the map a folder comes before what is in it.
void UnsafeDisk::make(const std::map<std::string, std::string>& files, const fs::path& folder) {
  for (const auto& [name, bytes] : files) {
    const fs::path path = folder / name;
    if (name.ends_with('/')) {
      fs::create_directory(path.parent_path());
      fs::permissions(path.parent_path(), fs::perms::owner_all);
    } else if (bytes.starts_with("-> ")) {
      fs::create_symlink(bytes.substr(3), path);
    } else {
      std::ofstream(path, std::ios::binary) << bytes;
      fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    }
  }
}
