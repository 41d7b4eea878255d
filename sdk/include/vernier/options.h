// One plugin's TOML table. Reading a key declares it: its type, default, range and meaning are what
// `vernier plugins role/name` prints, and a key that nobody read is refused.
#pragma once

#include <vernier/abi.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace vernier {

// A TOML value and where it stands ("run.toml:12" or "--set run.steps"). Built by the host.
struct Value;
using Array = std::vector<Value>;
using Table = std::map<std::string, Value>;
struct Value {
  std::variant<bool, std::int64_t, double, std::string, Array, Table> data;
  std::string where;
};

// The numbers that a key takes, for lists each element. Ends are included unless `above` is set.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;  // min itself is refused
};
inline Range at_least(double min) { return {.min = min}; }
inline Range above(double min) { return {.min = min, .above = true}; }
inline Range between(double min, double max) { return {.min = min, .max = max}; }

// Read in a plugin's constructor, on the main thread. Wrong types, values out of range and unknown keys throw
// Error::Kind::configuration naming file:line, plugin, key and remedy.
class VERNIER_API Options {
 public:
  struct Declared {
    std::string key, type, fallback, value, range, meaning;
  };
  // owner: "scaler/dynamic". where: of the table's header, for keys that are missing.
  Options(std::string owner, Table table, std::string where);

  // T: bool, an integer, a floating-point number, a string, or a vector of std::int64_t, double or std::string.
  // An integer in the TOML serves where a floating-point number is wanted, not the other way round.
  bool get(const char* key, bool fallback, const char* meaning);
  std::string get(const char* key, const char* fallback, const char* meaning);
  std::string get(const char* key, const std::string& fallback, const char* meaning);
  std::vector<std::int64_t> get(const char* key, std::vector<std::int64_t> fallback, const char* meaning, Range range = {});
  std::vector<double> get(const char* key, std::vector<double> fallback, const char* meaning, Range range = {});
  std::vector<std::string> get(const char* key, std::vector<std::string> fallback, const char* meaning);
  Table get(const char* key, const Table& fallback, const char* meaning);  // as it is written
  template <std::integral T>
  std::int64_t get(const char* key, T fallback, const char* meaning, Range range = {}) {
    return integer(key, static_cast<std::int64_t>(fallback), meaning, range);
  }
  template <std::floating_point T>
  double get(const char* key, T fallback, const char* meaning, Range range = {}) {
    return real(key, static_cast<double>(fallback), meaning, range);
  }
  // One word of a list; another is refused with the nearest right one.
  std::string choose(const char* key, const char* fallback, std::initializer_list<const char*> words, const char* meaning);
  // What must be given and not be empty. T: std::int64_t, std::string, a vector of them, or Table for one as it is written.
  template <class T>
  T require(const char* key, const char* meaning, Range range = {});
  // A list of tables, [[precision.rule]]: reads each, refuses what is left unread. Their keys are told as "rule.match".
  void tables(const char* key, const char* meaning, const std::function<void(Options&)>& read_one);
  // Refuses the value of a key for a reason that no Range can say.
  [[noreturn]] void refuse(const char* key, const std::string& reason) const;
  bool given(const char* key) const { return table_.count(key) != 0; }
  const std::string& owner() const { return owner_; }
  // For the host: what was read, and the check that nothing else was written.
  const std::vector<Declared>& declared() const { return declared_; }
  void refuse_unread() const;
  void only_describe() { describing_ = true; }  // for `vernier plugins`: a required key that is missing reads as empty

 private:
  template <class T>
  T read(const char* key, const T& fallback, const char* meaning, Range range, const char* words = "");
  std::int64_t integer(const char* key, std::int64_t fallback, const char* meaning, Range range);
  double real(const char* key, double fallback, const char* meaning, Range range);

  std::string owner_;
  Table table_;
  std::string where_;
  std::vector<Declared> declared_;
  bool describing_ = false;
};
extern template std::int64_t Options::require<std::int64_t>(const char*, const char*, Range);
extern template std::vector<std::int64_t> Options::require<std::vector<std::int64_t>>(const char*, const char*, Range);
extern template std::string Options::require<std::string>(const char*, const char*, Range);
extern template std::vector<std::string> Options::require<std::vector<std::string>>(const char*, const char*, Range);
extern template Table Options::require<Table>(const char*, const char*, Range);

// The word nearest to a misspelt one, or "" where none is near (more than a third of its letters would have to change).
VERNIER_API std::string nearest(const std::string& word, const std::vector<std::string>& words);

}  // namespace vernier
