// XXH3-128 of bytes that come piece by piece, in the hexadecimal digits that `xxhsum -H2` prints.
#pragma once

#include <vernier/abi.h>

#include <cstddef>
#include <memory>
#include <string>

struct XXH3_state_s;

namespace vernier {

class VERNIER_API Checksum {
 public:
  Checksum();
  void add(const void* bytes, std::size_t count);
  std::string digits() const;  // 32
  void restart();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

VERNIER_API std::string checksum_of(const std::string& bytes);

}  // namespace vernier
