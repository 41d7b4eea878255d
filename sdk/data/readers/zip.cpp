#include "zip.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "gunzip.h"

namespace vernier {

namespace {

// The signatures and lengths of the fixed parts of the archive's records.
constexpr std::uint32_t zip_local = 0x04034b50, zip_central = 0x02014b50, zip_end = 0x06054b50,
                        zip64_locator = 0x07064b50, zip64_end = 0x06064b50;
constexpr std::uint64_t zip_local_size = 30, zip_central_size = 46, zip_end_size = 22, zip64_locator_size = 20,
                        zip64_end_size = 56, zip_longest_comment = 0xffff;
constexpr std::uint64_t zip_in_extra = 0xffffffff;  // a 32-bit field whose value is in the record's extra part
constexpr std::uint16_t zip64_extra = 1;

class Archive {
 public:
  explicit Archive(const MappedFile& file) : file_(file), bytes_(file.bytes()) {}
  std::vector<ZipMember> members() const;

 private:
  template <class Number>
  Number number(std::uint64_t at) const {
    Number value;
    require(at, sizeof value);
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  void require(std::uint64_t at, std::uint64_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at) refuse("a record ends behind its end");
  }
  [[noreturn]] void refuse(const std::string& reason) const { file_.refuse("is not a whole ZIP archive: " + reason); }
  std::uint64_t find_end() const;
  ZipMember member(std::uint64_t at) const;
  void read_extra(ZipMember& member, std::uint64_t at, std::uint64_t end, std::uint64_t& local) const;

  const MappedFile& file_;
  std::string_view bytes_;
};

// The last record, which has a comment of any length behind it.
std::uint64_t Archive::find_end() const {
  if (bytes_.size() < zip_end_size) refuse(c10::str("it has ", bytes_.size(), " bytes"));
  const auto last = bytes_.size() - zip_end_size;
  for (std::uint64_t back = 0; back <= std::min<std::uint64_t>(last, zip_longest_comment); ++back) {
    if (number<std::uint32_t>(last - back) == zip_end && number<std::uint16_t>(last - back + 20) == back) {
      return last - back;
    }
  }
  refuse("its directory is missing");
}

std::vector<ZipMember> Archive::members() const {
  const auto end = find_end();
  std::uint64_t count = number<std::uint16_t>(end + 10), at = number<std::uint32_t>(end + 16);
  if (end >= zip64_locator_size && number<std::uint32_t>(end - zip64_locator_size) == zip64_locator) {
    const auto large = number<std::uint64_t>(end - zip64_locator_size + 8);
    require(large, zip64_end_size);
    if (number<std::uint32_t>(large) != zip64_end) refuse("its directory is damaged");
    count = number<std::uint64_t>(large + 32);
    at = number<std::uint64_t>(large + 48);
  }
  std::vector<ZipMember> members;
  for (std::uint64_t i = 0; i < count; ++i) {
    members.push_back(member(at));
    at += zip_central_size + number<std::uint16_t>(at + 28) + number<std::uint16_t>(at + 30) +
          number<std::uint16_t>(at + 32);
  }
  return members;
}

ZipMember Archive::member(std::uint64_t at) const {
  require(at, zip_central_size);
  if (number<std::uint32_t>(at) != zip_central) refuse("its directory is damaged");
  const auto flags = number<std::uint16_t>(at + 8), method = number<std::uint16_t>(at + 10);
  const std::uint64_t name_size = number<std::uint16_t>(at + 28), extra_size = number<std::uint16_t>(at + 30);
  require(at + zip_central_size, name_size + extra_size);
  ZipMember member;
  member.name = bytes_.substr(at + zip_central_size, name_size);
  if ((flags & 1) != 0) file_.refuse("is encrypted; unpack it and pack it again without a password");
  if (method != 0 && method != Z_DEFLATED) {
    file_.refuse(c10::str("packs '", shortened(member.name), "' by method ", method, "; read are 0 (stored) and 8"));
  }
  member.is_deflated = method == Z_DEFLATED;
  member.crc = number<std::uint32_t>(at + 16);
  member.packed = number<std::uint32_t>(at + 20);
  member.unpacked = number<std::uint32_t>(at + 24);
  std::uint64_t local = number<std::uint32_t>(at + 42);
  const auto extra = at + zip_central_size + name_size;
  read_extra(member, extra, extra + extra_size, local);
  require(local, zip_local_size);
  if (number<std::uint32_t>(local) != zip_local) refuse("'" + shortened(member.name) + "' is not where it should be");
  member.begin = local + zip_local_size + number<std::uint16_t>(local + 26) + number<std::uint16_t>(local + 28);
  require(member.begin, member.packed);
  if (!member.is_deflated && member.packed != member.unpacked) refuse("its directory is damaged");
  return member;
}

// Replaces the fields that did not fit, in this order.
void Archive::read_extra(ZipMember& member, std::uint64_t at, std::uint64_t end, std::uint64_t& local) const {
  while (at + 4 <= end) {
    const auto id = number<std::uint16_t>(at);
    const auto next = at + 4 + number<std::uint16_t>(at + 2);
    at += 4;
    if (next > end) refuse("its directory is damaged");
    for (auto* field : {&member.unpacked, &member.packed, &local}) {
      if (id != zip64_extra || *field != zip_in_extra) continue;
      if (at + 8 > next) refuse("its directory is damaged");
      *field = number<std::uint64_t>(at);
      at += 8;
    }
    at = next;
  }
}

}  // namespace

std::vector<ZipMember> read_zip(const MappedFile& file) {
  return Archive(file).members();
}

std::string inflate(const MappedFile& file, const ZipMember& member) {
  const auto refuse = [&](const std::string& reason) {
    file.refuse("is damaged: '" + shortened(member.name) + "' " + reason);
  };
  if (member.unpacked > most_unpacked(member.packed)) {
    file.refuse("unpacks '" + shortened(member.name) +
                "' to over 200 times its size, as a file made to fill the memory " +
                "does; if it is none, store it unpacked, as numpy.savez does");
  }
  std::string unpacked(member.unpacked, '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) file.refuse("cannot be read: there is no memory left");
  constexpr std::uint64_t most = std::numeric_limits<uInt>::max();  // zlib counts in an int
  const auto* from = reinterpret_cast<const Bytef*>(file.bytes().data() + member.begin);
  auto* to = reinterpret_cast<Bytef*>(unpacked.data());
  std::uint64_t taken = 0, made = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    stream.next_in = const_cast<Bytef*>(from + taken);
    stream.next_out = to + made;
    stream.avail_in = static_cast<uInt>(std::min(most, member.packed - taken));
    stream.avail_out = static_cast<uInt>(std::min(most, member.unpacked - made));
    status = ::inflate(&stream, Z_NO_FLUSH);  // Z_BUF_ERROR where it has no bytes to go on
    taken = static_cast<std::uint64_t>(stream.next_in - from);
    made = static_cast<std::uint64_t>(stream.next_out - to);
  }
  inflateEnd(&stream);
  if (status != Z_STREAM_END || made != member.unpacked) refuse("cannot be unpacked");
  return unpacked;
}

void check_crc(const MappedFile& file, const ZipMember& member, std::string_view bytes) {
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (sum == member.crc) return;
  file.require_unchanged();
  file.refuse("is damaged: '" + shortened(member.name) + "' has another checksum than the archive says");
}

}  // namespace vernier
