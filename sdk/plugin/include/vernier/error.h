// The exception type that Vernier throws, the texts of exceptions, and texts that are safe to print.
#pragma once

#include <vernier/abi.h>

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace vernier {

// The text says in one line what is wrong, where, and what to do. The kind is the exit status of `vernier`.
class VERNIER_API Error : public std::runtime_error {
 public:
  enum class Kind { configuration = 2, plugin = 3, training = 4 };
  // who, place: the plugin and the line of a file that the text names. The host adds those that are empty.
  explicit Error(const std::string& what, Kind kind = Kind::training, std::string who = "", std::string place = "");
  ~Error() override;
  Kind kind() const { return kind_; }
  const std::string& who() const { return who_; }
  const std::string& place() const { return place_; }

 private:
  Kind kind_;
  std::string who_, place_;
};

// Returns the message of any exception in one line, without LibTorch's C++ backtrace.
VERNIER_API std::string message(const std::exception& exception);

// Call it in a catch (...) block. Describes the exception, whatever its type. An Error keeps its kind; other exceptions
// get the kind `otherwise`.
struct Caught {
  std::string message;
  Error::Kind kind;
};
VERNIER_API Caught caught(Error::Kind otherwise = Error::Kind::training);

// Call it in a catch (...) block. Rethrows the exception, nested in an Error whose text begins with place, who and
// when. An Error whose who() is `who`, or that nests another exception, is rethrown unchanged.
[[noreturn]] VERNIER_API void rethrow_naming(const std::string& who, const std::string& when, Error::Kind otherwise,
                                             const std::string& place = "");

// Throws Error(text, Error::Kind::configuration, who). who: the plugin that the text names.
[[noreturn]] VERNIER_API void refuse(const std::string& text, const std::string& who = "");

// An option that cannot be what it is, and why: "max_scale", "is below min_scale". Empty where all is well.
struct Contradiction {
  std::string option, reason;
};

// Returns a text of a user or a file with control characters, and bytes that are not UTF-8, in hexadecimal. The
// characters in `kept` stay.
VERNIER_API std::string printable(const std::string& text, const std::string& kept = "");

// The same of a text that has at most `most` bytes. A longer one loses its middle: "abc… (1048576 bytes) …xyz".
VERNIER_API std::string shortened(const std::string& text, std::size_t most = 120);

// Returns the first three names and the number of the others, for a message: "a,b,c and 4 more".
VERNIER_API std::string some_of(const std::vector<std::string>& names);

}  // namespace vernier
