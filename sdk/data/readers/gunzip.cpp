#include "gunzip.h"

#include <vernier/error.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "mapped_file.h"

namespace vernier {

struct Gunzip::Stream {
  z_stream z{};
};

Gunzip::Gunzip(std::string path, std::function<std::string_view()> source)
    : path_(std::move(path)), source_(std::move(source)), stream_(std::make_unique<Stream>()) {
  constexpr int gzip = 16 + MAX_WBITS;
  if (inflateInit2(&stream_->z, gzip) != Z_OK) refuse("'" + path_ + "' cannot be read: there is no memory left");
}

Gunzip::~Gunzip() {
  inflateEnd(&stream_->z);
}

std::size_t Gunzip::read(char* to, std::size_t count) {
  constexpr std::size_t most = 1 << 30;  // zlib counts in 32 bits
  auto& z = stream_->z;
  std::size_t done = 0;
  while (done < count) {
    if (rest_.empty()) rest_ = source_();
    if (rest_.empty() && !is_in_member_) return done;
    if (!is_in_member_) inflateReset(&z);
    const auto some = rest_.substr(0, most);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(some.data()));
    z.avail_in = static_cast<uInt>(some.size());
    z.next_out = reinterpret_cast<Bytef*>(to + done);
    z.avail_out = static_cast<uInt>(std::min(count - done, most));
    const auto room = z.avail_out;
    const int status = ::inflate(&z, Z_NO_FLUSH);
    const bool is_stuck = z.avail_in == some.size() && z.avail_out == room;
    if ((status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) || (is_stuck && status != Z_STREAM_END)) {
      refuse("'" + path_ + "' is a damaged or unfinished gzip file; make it again");
    }
    is_in_member_ = status != Z_STREAM_END;
    const std::size_t taken = some.size() - z.avail_in, made = room - z.avail_out;
    rest_.remove_prefix(taken);
    done += made;
    if ((made_ += made) > most_unpacked(taken_ += taken)) {
      refuse("'" + path_ +
             "' unpacks to over 200 times its size, as a file made to fill the memory does; if it is "
             "none, unpack it with gunzip, and name the unpacked file");
    }
  }
  return done;
}

UnpackedFile::UnpackedFile(const std::string& path) : file_(path) {
  rest_ = next_block();
  if (!Gunzip::is_packed(rest_)) return;
  packed_.emplace(path, [this] { return rest_.empty() ? next_block() : std::exchange(rest_, {}); });
}

std::string_view UnpackedFile::next_block() {
  block_.resize(1 << 20);
  return std::string_view(block_).substr(0, file_.read(block_.data(), block_.size()));
}

std::size_t UnpackedFile::read(char* to, std::size_t count) {
  if (packed_) return packed_->read(to, count);
  const auto known = rest_.copy(to, count);
  rest_.remove_prefix(known);
  return known == count ? count : known + file_.read(to + known, count - known);
}

std::string gunzipped(const MappedFile& file) {
  auto rest = file.bytes();
  Gunzip packed(file.path(), [&] { return std::exchange(rest, {}); });
  std::string all;
  while (true) {
    constexpr std::size_t step = 1 << 20;
    const auto before = all.size();
    all.resize(before + std::max(step, before / 2));
    const auto count = packed.read(all.data() + before, all.size() - before);
    const bool is_last = count < all.size() - before;
    all.resize(before + count);
    if (is_last) break;
  }
  if (all.empty()) file.refuse("is a gzip file of nothing");
  return all;
}

}  // namespace vernier
