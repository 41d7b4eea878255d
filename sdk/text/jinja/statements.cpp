// Source of what statements do: Jinja 3.1 (jinja2/compiler.py, jinja2/runtime.py).
#include "statements.h"

#include <vernier/error.h>

#include <algorithm>

#include "expressions.h"
#include "operations.h"

namespace vernier::jinja {

namespace {

using Kind = Token::Kind;
using Names = std::vector<std::string>;

constexpr std::size_t most_steps = 5'000'000, largest = 64'000'000, deepest_calls = 60, deepest_blocks = 100;
constexpr std::size_t bytes_of_step = 256, parts_of_step = 8;

// A name that is set: x, or x.part of a namespace.
struct Target {
  std::string name, part;
};

void set(Run& run, const std::vector<Target>& targets, const Value& value) {
  const auto set_one = [&](const Target& target, const Value& one) {
    if (target.part.empty()) return run.set(target.name, one);
    const auto* held = run.find(target.name);
    if (held == nullptr || held->space() == nullptr)
      refuse("'" + target.name + "' is not a namespace, so its parts cannot be set");
    if (one.space() != nullptr) refuse("a namespace cannot be a part of a namespace");
    auto& parts = held->space()->parts;
    std::erase_if(parts, [&](const auto& each) { return are_equal(each.first, Value(target.part)); });
    parts.emplace_back(Value(target.part), one);
  };
  if (targets.size() == 1) return set_one(targets[0], value);
  run.walk(value);
  const auto items = items_of(value);
  if (items.size() != targets.size()) refuse("the numbers of names and of values differ");
  for (std::size_t i = 0; i < items.size(); ++i) set_one(targets[i], items[i]);
}

// The variable `loop`.
Value loop_of(const List& items, std::int64_t place) {
  const auto size = std::ssize(items);
  const auto item = [&](std::int64_t i, const char* name) {
    return i < 0 || i >= size ? Value(Undefined{name}) : items[static_cast<std::size_t>(i)];
  };
  const Function cycle = [place](Run&, const Arguments& given) {
    if (given.places.empty()) refuse("loop.cycle() needs values");
    return given.places[static_cast<std::size_t>(place) % given.places.size()];
  };
  return Map{{"index", place + 1},
             {"index0", place},
             {"first", place == 0},
             {"last", place == size - 1},
             {"length", size},
             {"revindex", size - place},
             {"revindex0", size - place - 1},
             {"previtem", item(place - 1, "previtem")},
             {"nextitem", item(place + 1, "nextitem")},
             {"cycle", cycle}};
}

class Statements {
 public:
  explicit Statements(const std::string& source) : parser_(tokens_of(source)) {}

  Statement all() {
    auto body = until({});
    if (parser_.peek().kind != Kind::end) parser_.fail("'" + parser_.peek().text + "' ends nothing");
    return body;
  }

 private:
  // Statements up to one of these names, which stands behind the opened block then.
  Statement until(const Names& ends) {
    if (++depth_ > deepest_blocks) parser_.fail("blocks are nested too deeply");
    std::vector<Statement> body;
    while (parser_.peek().kind != Kind::end) {
      const auto token = parser_.next();
      if (token.kind == Kind::data) {
        body.push_back([text = token.text](Run& run) { run.write(text); });
      } else if (token.kind == Kind::begin_output) {
        body.push_back(at_line(token.line, output()));
      } else {
        if (std::ranges::find(ends, parser_.peek().text) != ends.end()) break;
        body.push_back(at_line(token.line, statement()));
      }
    }
    --depth_;
    return [body](Run& run) {
      for (const auto& each : body) {
        if (run.jump != Run::Jump::none) return;
        each(run);
      }
    };
  }

  Statement output() {
    const auto value = parser_.expression_or_tuple();
    if (parser_.next().kind != Kind::end_output) parser_.fail("'}}' is needed");
    return [value](Run& run) {
      const auto written = value(run);
      run.walk_all(written);
      run.write(str(written));
    };
  }

  static Statement at_line(std::size_t line, Statement statement) {
    return [line, statement](Run& run) {
      run.line = line;
      run.step();
      statement(run);
    };
  }

  void end_block() {
    if (parser_.next().kind != Kind::end_block) parser_.fail("'%}' is needed");
  }
  void end_block(const char* name) {
    if (!parser_.takes_name(name)) parser_.fail(std::string(name) + " is missing");
    end_block();
  }

  Statement statement() {
    const auto name = parser_.need_name();
    if (name == "for") return loop();
    if (name == "if") return condition();
    if (name == "set") return setting();
    if (name == "macro") return macro();
    if (name == "generation") {  // the assistant's part, for masks
      end_block();
      const auto body = until({"endgeneration"});
      end_block("endgeneration");
      return [body](Run& run) {
        const auto begin = run.out.size();
        body(run);
        if (run.captures == 0) run.generated.emplace_back(begin, run.out.size());
      };
    }
    if (name == "break" || name == "continue") {
      end_block();
      return [jump = name == "break" ? Run::Jump::leave : Run::Jump::next](Run& run) { run.jump = jump; };
    }
    if (name.starts_with("end")) parser_.fail(name + " does not end the block that is open here");
    parser_.fail("the statement " + name + " is not supported");
  }

  std::vector<Target> targets() {
    std::vector<Target> targets;
    const bool is_enclosed = parser_.takes_sign("(");
    do {
      Target target{parser_.need_name(), ""};
      if (parser_.takes_sign(".")) target.part = parser_.need_name();
      targets.push_back(std::move(target));
    } while (parser_.takes_sign(","));
    if (is_enclosed) parser_.need_sign(")");
    return targets;
  }

  Statement loop() {
    const auto names = targets();
    if (!parser_.takes_name("in")) parser_.fail("'in' is needed");
    const auto list = parser_.disjunction();
    const auto condition = parser_.takes_name("if") ? parser_.expression() : Expression();
    if (parser_.takes_name("recursive")) parser_.fail("recursive loops are not supported");
    end_block();
    const auto body = until({"else", "endfor"});
    Statement other = [](Run&) {};
    if (parser_.takes_name("else")) {
      end_block();
      other = until({"endfor"});
    }
    end_block("endfor");
    return [=](Run& run) {
      const auto all = list(run);
      run.walk(all);
      const auto items = chosen(run, items_of(all), names, condition);
      for (std::int64_t i = 0; i < std::ssize(items); ++i) {
        run.step();
        run.open();
        run.set("loop", loop_of(items, i));
        set(run, names, items[static_cast<std::size_t>(i)]);
        body(run);
        run.close();
        if (std::exchange(run.jump, Run::Jump::none) == Run::Jump::leave) break;
      }
      if (items.empty()) other(run);
    };
  }

  static List chosen(Run& run, List items, const std::vector<Target>& names, const Expression& condition) {
    if (!condition) return items;
    List chosen;
    for (const auto& item : items) {
      run.open();
      set(run, names, item);
      if (is_true(condition(run))) chosen.push_back(item);
      run.close();
    }
    return chosen;
  }

  Statement condition() {
    std::vector<std::pair<Expression, Statement>> branches;
    Statement other = [](Run&) {};
    do {
      auto test = parser_.expression_or_tuple();
      end_block();
      branches.emplace_back(std::move(test), until({"elif", "else", "endif"}));
    } while (parser_.takes_name("elif"));
    if (parser_.takes_name("else")) {
      end_block();
      other = until({"endif"});
    }
    end_block("endif");
    return [branches, other](Run& run) {
      for (const auto& [test, body] : branches) {
        if (is_true(test(run))) return body(run);
      }
      other(run);
    };
  }

  // {% set x = value %}, or {% set x %}text{% endset %}.
  Statement setting() {
    const auto names = targets();
    if (parser_.takes_sign("=")) {
      const auto value = parser_.expression_or_tuple();
      end_block();
      return [names, value](Run& run) { set(run, names, value(run)); };
    }
    constexpr const char* between = "";  // a name that no template has
    const auto filters = parser_.with_filters([](Run& run) { return *run.find(between); });
    end_block();
    const auto body = until({"endset"});
    end_block("endset");
    return [names, filters, body](Run& run) {
      run.set(between, written(run, body));
      set(run, names, filters(run));
    };
  }

  static Value written(Run& run, const Statement& body) {
    const Deeper deeper(run.captures);
    auto outside = run.swap_out("");
    run.open();
    body(run);
    run.close();
    return run.swap_out(std::move(outside));
  }

  Statement macro() {
    const auto name = parser_.need_name();
    std::vector<std::pair<std::string, Expression>> parameters;
    parser_.need_sign("(");
    while (!parser_.takes_sign(")")) {
      auto parameter = parser_.need_name();
      parameters.emplace_back(std::move(parameter), parser_.takes_sign("=") ? parser_.expression() : Expression());
      if (!parser_.is_sign(")")) parser_.need_sign(",");
    }
    end_block();
    const auto body = until({"endmacro"});
    end_block("endmacro");
    return [name, parameters, body](Run& run) {
      const auto depth = run.depth();
      run.set(name, Function([=](Run& caller, const Arguments& given) {
                if (given.places.size() > parameters.size()) refuse("the macro " + name + " has fewer parameters");
                if (++caller.calls > deepest_calls) refuse("macros call each other too deeply");
                auto inner = caller.cut(depth);
                caller.open();
                for (std::size_t i = 0; i < parameters.size(); ++i) {
                  const auto& [parameter, fallback] = parameters[i];
                  const auto* value = given.find(i, parameter);
                  caller.set(parameter, value != nullptr ? *value
                                        : fallback       ? fallback(caller)
                                                         : Value(Undefined{parameter}));
                }
                auto text = written(caller, body);
                caller.restore(depth, std::move(inner));
                --caller.calls;
                return text;
              }));
    };
  }

  Parser parser_;
  std::size_t depth_ = 0;
};

}  // namespace

const Value* Run::find(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(name); found != scope->end()) return &found->second;
  }
  return nullptr;
}

void Run::set(const std::string& name, Value value) {
  scopes_.back().insert_or_assign(name, std::move(value));
}

std::vector<Run::Scope> Run::cut(std::size_t depth) {
  const auto from = scopes_.begin() + static_cast<std::ptrdiff_t>(std::min(depth, scopes_.size()));
  std::vector<Scope> rest(std::make_move_iterator(from), std::make_move_iterator(scopes_.end()));
  scopes_.erase(from, scopes_.end());
  return rest;
}

void Run::restore(std::size_t depth, std::vector<Scope> scopes) {
  scopes_.resize(std::min(depth, scopes_.size()));
  std::ranges::move(scopes, std::back_inserter(scopes_));
}

void Run::step(std::size_t steps) {
  if ((steps_ += steps) > most_steps) refuse("the template takes too many steps");
}

Value Run::counted(Value value) {
  if (value.text() != nullptr) {
    require_small(value.text()->size());
    walk(value);
  }
  if (value.list() != nullptr) step(value.list()->size());
  return value;
}

void Run::walk(const Value& value) {
  if (value.text() != nullptr) step(value.text()->size() / bytes_of_step);
  if (value.list() != nullptr) step(value.list()->size() / parts_of_step);
  if (value.map() != nullptr) step(value.map()->size() / parts_of_step);
}

void Run::walk_all(const Value& value) {
  value.text() != nullptr ? walk(value) : step(value.nodes() / parts_of_step);
}

void Run::refuse_depth() {
  refuse("expressions and macros are nested too deeply");
}

void Run::require_small(std::size_t size) {
  if (size > largest) refuse("the template makes too long a text");
}

Statement program_of(const std::string& source) {
  return Statements(source).all();
}

}  // namespace vernier::jinja
