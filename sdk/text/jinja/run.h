// The state of a template while it is rendered.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "values.h"

namespace vernier::jinja {

// The variables, and the limits of a template that may be a stranger's.
class Run {
 public:
  using Scope = std::map<std::string, Value>;
  enum class Jump { none, next, leave };  // {% continue %} and {% break %}

  explicit Run(Scope globals) : scopes_{std::move(globals), {}} {}

  const Value* find(const std::string& name) const;
  void set(const std::string& name, Value value);  // in the innermost scope
  void open() { scopes_.emplace_back(); }
  void close() { scopes_.pop_back(); }
  std::size_t depth() const { return scopes_.size(); }
  // Takes the scopes above a depth away, and gives them back.
  std::vector<Scope> cut(std::size_t depth);
  void restore(std::size_t depth, std::vector<Scope> scopes);

  void write(const std::string& text) { require_small((out += text).size()); }
  std::string swap_out(std::string text) { return std::exchange(out, std::move(text)); }

  // Called for each expression and statement. Throws Error if the template takes too many.
  void step(std::size_t steps = 1);
  Value counted(Value value);                   // takes steps as its size needs, and refuses a text that is too long
  void walk(const Value& value);                // takes steps for a look at each part of a list, a mapping or a text
  void walk_all(const Value& value);            // takes steps for a look at all that is in a value, too
  static void require_small(std::size_t size);  // throws Error for a text that is too long
  static constexpr std::size_t deepest_parts = 3000;
  [[noreturn]] static void refuse_depth();

  std::string out;
  std::vector<std::pair<std::size_t, std::size_t>> generated;  // bytes of `out` within {% generation %}
  Jump jump = Jump::none;
  std::size_t line = 1, calls = 0, parts = 0;  // calls, parts: macros, and parts of the template, that are running
  std::size_t captures = 0;                    // texts that are written to a variable, and not yet to `out`

 private:
  std::vector<Scope> scopes_;
  std::size_t steps_ = 0;
};

// Counts how deep a recursion is.
struct Deeper {
  explicit Deeper(std::size_t& depth) : depth(depth) { ++depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  ~Deeper() { --depth; }
  std::size_t& depth;
};

// A part of a template, as a function. Copies share it, so that a tree of them is made in time.
template <class Result>
class Part {
 public:
  Part() = default;
  template <class Call>
  requires std::is_invocable_r_v<Result, const Call&, Run&> &&
      (!std::is_same_v<Call, Part>)Part(Call call)  // NOLINT: written as a lambda
      : call_(std::make_shared<const std::function<Result(Run&)>>(std::move(call))) {}
  explicit operator bool() const { return call_ != nullptr; }
  Result operator()(Run& run) const {
    const Deeper deeper(run.parts);
    if (run.parts > Run::deepest_parts) Run::refuse_depth();
    return (*call_)(run);
  }

 private:
  std::shared_ptr<const std::function<Result(Run&)>> call_;
};

}  // namespace vernier::jinja
