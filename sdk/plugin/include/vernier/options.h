// One plugin's TOML table. Reading a key declares it, so that `vernier plugins role/name` can print its type, default,
// range and meaning. A key that is never read is refused.
#pragma once

#include <vernier/abi.h>
#include <vernier/value.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace vernier {

// An option as a plugin declares it by reading it.
struct VERNIER_API OptionInfo {
  enum class Type { boolean, integer, number, string, integers, numbers, strings, table, tables };
  std::string key, meaning;
  Type type = Type::string;
  Value fallback, value;                // the default, and the value that was read
  Range range = {};                     // the allowed numbers
  std::vector<std::string> words = {};  // the strings that choose() takes
  bool is_required = false, is_resumable = false;

  std::string type_text() const;      // "an integer"
  std::string limits_text() const;    // "at least 1", "red | blue"; "": any value
  std::string fallback_text() const;  // in TOML, or "required"
};
// Returns a value as TOML writes it, and JSON too, unless it has tables, inf or nan.
VERNIER_API std::string value_text(const Value& value);

// A plugin's constructor reads it, on the main thread. Wrong types, values out of range and unknown keys throw
// Error::Kind::configuration with file:line, plugin, key and remedy.
class VERNIER_API Options {
 public:
  // owner: "scaler/dynamic". where: the place of the table's header, for messages on missing keys.
  Options(std::string owner, Table table, std::string where);

  // Returns the value of a key, or `fallback` if it is missing. The fallback's type is that of the key: bool, integer,
  // floating-point number, string, or a vector of std::int64_t, double or std::string. An integer in the TOML is
  // accepted as a floating-point number, not the reverse.
  bool get(const char* key, bool fallback, const char* meaning);
  std::string get(const char* key, const char* fallback, const char* meaning);
  std::string get(const char* key, const std::string& fallback, const char* meaning);
  std::vector<std::int64_t> get(const char* key, std::vector<std::int64_t> fallback, const char* meaning,
                                Range range = {});
  std::vector<double> get(const char* key, std::vector<double> fallback, const char* meaning, Range range = {});
  std::vector<std::string> get(const char* key, std::vector<std::string> fallback, const char* meaning);
  Table get(const char* key, const Table& fallback, const char* meaning);  // unchecked
  template <std::integral T>
  std::int64_t get(const char* key, T fallback, const char* meaning, Range range = {}) {
    return integer(key, static_cast<std::int64_t>(fallback), meaning, range);
  }
  template <std::floating_point T>
  double get(const char* key, T fallback, const char* meaning, Range range = {}) {
    return real(key, static_cast<double>(fallback), meaning, range);
  }
  // Returns one of the words. Another word is refused, with the nearest right one.
  std::string choose(const char* key, const char* fallback, std::initializer_list<const char*> words,
                     const char* meaning);
  // Returns the value of a key that must be given and not be empty. T: std::int64_t, std::string, a vector of them,
  // Table.
  template <class T>
  T require(const char* key, const char* meaning, Range range = {});
  // Reads a list of tables, [[precision.rule]], and refuses keys that read_one did not read. They are declared as
  // "rule.match".
  void tables(const char* key, const char* meaning, const std::function<void(Options&)>& read_one);
  // Says of a key that was read: its value changes no number of the run, so a resumed run may have another.
  void resumable(const char* key);
  // Names a value of a key, or of `use` for another plugin of the role, that takes less memory, for `--low-memory`.
  void saves_memory(const char* key, const char* value, const char* price);
  // Throws the error for the value of a key, for a reason that no Range expresses.
  [[noreturn]] void refuse(const char* key, const std::string& reason) const;
  bool given(const char* key) const { return table_.count(key) != 0; }
  const std::string& owner() const { return owner_; }

 private:
  friend struct HostApi;
  struct LessMemory {
    std::string key, value, price;
  };
  void refuse_unread() const;
  template <class T>
  T read(const char* key, const T& fallback, const char* meaning, Range range, std::vector<std::string> words = {});
  std::int64_t integer(const char* key, std::int64_t fallback, const char* meaning, Range range);
  double real(const char* key, double fallback, const char* meaning, Range range);

  std::string owner_;
  Table table_;
  std::string where_;
  std::vector<OptionInfo> declared_;
  std::vector<LessMemory> less_memory_;
  bool describing_ = false;
};
extern template std::int64_t Options::require<std::int64_t>(const char*, const char*, Range);
extern template std::vector<std::int64_t> Options::require<std::vector<std::int64_t>>(const char*, const char*, Range);
extern template std::string Options::require<std::string>(const char*, const char*, Range);
extern template std::vector<std::string> Options::require<std::vector<std::string>>(const char*, const char*, Range);
extern template Table Options::require<Table>(const char*, const char*, Range);

// Returns the nearest to a misspelt word, or "" if more than a third of the letters would have to change.
VERNIER_API std::string nearest(const std::string& word, const std::vector<std::string>& words);

}  // namespace vernier
