#include "mapped_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "files/safetensors_file.h"

namespace vernier {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  return std::shared_ptr<const MappedFile>(new MappedFile(path));
}

MappedFile::MappedFile(const std::string& path) : path_(path), file_(path) {
  struct stat status = {};
  if (::fstat(file_.descriptor(), &status) != 0) refuse("cannot be read: " + std::generic_category().message(errno));
  changed_seconds_ = status.st_mtim.tv_sec;
  changed_nanoseconds_ = status.st_mtim.tv_nsec;
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses that
  auto* begin = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.descriptor(), 0);
  if (begin == MAP_FAILED) refuse("cannot be mapped into memory: " + std::generic_category().message(errno));
  begin_ = static_cast<char*>(begin);
}

MappedFile::~MappedFile() {
  if (begin_ != nullptr) ::munmap(begin_, size_);
}

void MappedFile::require_unchanged() const {
  struct stat status = {};
  if (::fstat(file_.descriptor(), &status) != 0) refuse("cannot be read: " + std::generic_category().message(errno));
  if (static_cast<std::size_t>(status.st_size) == size_ && status.st_mtim.tv_sec == changed_seconds_ &&
      status.st_mtim.tv_nsec == changed_nanoseconds_) {
    return;
  }
  refuse(c10::str("has changed while it was read: it had ", size_, " bytes and has ", status.st_size,
                  "; start again when nothing writes to it"));
}

void MappedFile::read(std::size_t from, char* to, std::size_t count) const {
  while (count > 0) {
    const auto done = ::pread(file_.descriptor(), to, count, static_cast<off_t>(from));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) refuse("cannot be read: " + std::generic_category().message(errno));
    if (done == 0) require_unchanged();
    if (done == 0) refuse("has become shorter while it was read");
    to += done, from += static_cast<std::size_t>(done), count -= static_cast<std::size_t>(done);
  }
}

void MappedFile::forget(std::string_view part) const {
  if (part.empty() || part.data() < begin_ || part.data() >= begin_ + size_) return;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<std::size_t>(part.data() - begin_), begin = first / page * page;
  ::madvise(begin_ + begin, first - begin + part.size(), MADV_DONTNEED);
}

std::string MappedFile::fingerprint() const {
  constexpr std::size_t whole = 256 << 20, block = 1 << 20, blocks = 256;
  Checksum sum;
  require_unchanged();
  if (size_ <= whole) {
    sum.add(begin_, size_);
  } else {
    std::string bytes(block, '\0');
    for (std::size_t i = 0; i <= blocks; ++i) {
      read(i < blocks ? (size_ - block) / (blocks - 1) * i : size_ - block, bytes.data(), block);
      sum.add(bytes.data(), block);
    }
  }
  require_unchanged();
  return c10::str(size_, " bytes, XXH3 ", sum.digits());
}

void MappedFile::refuse(const std::string& reason) const {
  file_.refuse(reason);
}

void MappedFile::check_line(std::size_t line, std::size_t bytes) const {
  constexpr std::size_t most = 256 << 20;
  if (bytes > most) refuse(c10::str("line ", line, " has ", bytes, " bytes; divide it into lines of at most ", most));
}

torch::Tensor MappedFile::tensor(std::uint64_t offset, const std::vector<std::int64_t>& shape, torch::ScalarType type,
                                 const std::string& name) const {
  const auto bytes = bytes_of(shape, type);
  if (!bytes || offset > size_ || *bytes > size_ - offset) {
    refuse(c10::str("is cut short: ", name, " of shape ", c10::IntArrayRef(shape), " needs ",
                    bytes ? std::to_string(*bytes) : "more than 2^63", " bytes, there are ",
                    size_ - std::min<std::uint64_t>(offset, size_)));
  }
  auto* begin = begin_ + offset;
  if (type == torch::kBool && !std::all_of(begin, begin + *bytes, [](char c) { return c == 0 || c == 1; })) {
    refuse("is damaged: " + name + " has a bool that is neither 0 nor 1");
  }
  const auto options = torch::TensorOptions(type);
  if (*bytes == 0) return at::empty(shape, options);
  if (reinterpret_cast<std::uintptr_t>(begin) % c10::elementSize(type) != 0) {
    auto copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), begin, *bytes);
    return copy;
  }
  return at::from_blob(
      begin, shape, [keep = shared_from_this()](void*) {}, options);
}

}  // namespace vernier
