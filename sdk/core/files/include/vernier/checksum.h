// XXH3-128, as the 32 hexadecimal digits that `xxhsum -H2` prints.
#pragma once

#include <vernier/abi.h>

#include <cstddef>
#include <memory>
#include <string>

struct XXH3_state_s;

namespace vernier {

// The checksum of bytes that arrive in several parts. One thread at a time. The constructor throws std::bad_alloc.
class VERNIER_API Checksum {
 public:
  Checksum();
  void add(const void* bytes, std::size_t count);
  std::string digits() const;  // the checksum of all bytes so far; more bytes may follow

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

VERNIER_API std::string checksum_of(const std::string& bytes);

}  // namespace vernier
