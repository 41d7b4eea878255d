// The one exception that Vernier throws.
#pragma once

#include <vernier/abi.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace vernier {

// The text says what is wrong, where, and what to do, in one line. The kind decides the exit status of `vernier`.
class VERNIER_API Error : public std::runtime_error {
 public:
  enum class Kind { configuration = 2, plugin = 3, training = 4 };
  explicit Error(const std::string& what, Kind kind = Kind::training);
  ~Error() override;
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// The message of any exception in one line, without LibTorch's C++ backtrace.
VERNIER_API std::string message(const std::exception& exception);

// In a catch (...) block: what was caught, whatever its type. An Error keeps its kind, others get `otherwise`.
struct Caught {
  std::string message;
  Error::Kind kind;
};
VERNIER_API Caught caught(Error::Kind otherwise = Error::Kind::training);

// In a catch (...) block: rethrows what was caught as an Error that says place, who and when first, the cause nested in
// it. An Error that names `who` or has a cause already passes as it is.
[[noreturn]] VERNIER_API void rethrow_naming(const std::string& who, const std::string& when, Error::Kind otherwise,
                                             const std::string& place = "");

}  // namespace vernier
