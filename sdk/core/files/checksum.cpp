#include <vernier/checksum.h>

#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // with AVX2 or AVX-512 where the processor has them: twice as fast
#else
#include <xxhash.h>
#endif

#include <new>

namespace vernier {

void Checksum::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void Checksum::add(const void* bytes, std::size_t count) {
  XXH3_128bits_update(state_.get(), bytes, count);
}

std::string Checksum::digits() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    constexpr char digits[] = "0123456789abcdef";
    text += {digits[byte >> 4], digits[byte & 15]};
  }
  return text;
}

std::string checksum_of(const std::string& bytes) {
  Checksum checksum;
  checksum.add(bytes.data(), bytes.size());
  return checksum.digits();
}

}  // namespace vernier
