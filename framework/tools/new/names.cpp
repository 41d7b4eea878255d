#include "names.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

namespace vernier {

namespace {

// Words of C++, and targets that CMake makes itself; each between spaces.
constexpr const char* reserved =
    " alignas alignof all and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t"
    " class clean co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue"
    " decltype default delete do double dynamic_cast edit_cache else enum explicit export extern false float for"
    " friend goto help if inline install int long mutable namespace new noexcept not not_eq nullptr operator or"
    " or_eq package package_source private protected public rebuild_cache register reinterpret_cast requires return"
    " short signed sizeof static static_assert static_cast struct switch template test this thread_local throw true"
    " try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq"
    " ";

constexpr std::size_t longest_name = 47;  // vernier::Descriptor has no room for more

bool is_small_letter(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

const std::vector<std::string>& roles() {
  static const std::vector<std::string> all = {"accumulation", "callback",  "checkpoint", "monitor",
                                               "optimizer",    "precision", "scaler",     "task"};
  return all;
}

std::string why_no_name(const std::string& name) {
  const bool has_only_these =
      std::ranges::all_of(name, [](char c) { return is_small_letter(c) || is_digit(c) || c == '_'; });
  if (name.empty() || !has_only_these || !is_small_letter(name.front())) {
    return "a name has small letters, digits and underscores, and begins with a letter, as in grad_watch";
  }
  if (name.size() > longest_name) return "a name has at most " + std::to_string(longest_name) + " characters";
  if (std::string(reserved).find(" " + name + " ") != std::string::npos)
    return name + " is a reserved word of C++ or CMake; choose another name";
  return "";
}

std::string camel_case(const std::string& name) {
  std::string text;
  bool starts = true;
  for (const char c : name) {
    if (c != '_') text += starts ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    starts = c == '_';
  }
  return text;
}

// The runner has its own in the SDK, which would bring LibTorch into this program.
std::string nearest(const std::string& word, const std::vector<std::string>& words) {
  std::string best;
  std::size_t best_distance = std::min<std::size_t>(word.size(), 30) / 3 + 1;
  for (const auto& other : words) {
    std::vector<std::size_t> row(other.size() + 1);  // Levenshtein's distance, a row at a time
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i + 1);
      for (std::size_t j = 0; j < other.size(); ++j) {
        const auto change = diagonal + (word[i] != other[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, change});
      }
    }
    if (row.back() < best_distance || (row.back() == best_distance && best.empty())) {
      best = other;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace vernier
