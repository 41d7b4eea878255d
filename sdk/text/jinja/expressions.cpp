// Source of the grammar: Parser of Jinja 3.1 (jinja2/parser.py).
#include "expressions.h"

#include <vernier/error.h>

#include <algorithm>
#include <charconv>

#include "operations.h"

namespace vernier::jinja {

namespace {

using Kind = Token::Kind;

constexpr std::size_t deepest = 200;

std::string shown(const Token& token) {
  switch (token.kind) {
    case Kind::end:
      return "the end";
    case Kind::end_block:
      return "'%}'";
    case Kind::end_output:
      return "'}}'";
    default:
      return "'" + token.text + "'";
  }
}

// Names that are an operator behind an expression, and no argument of a test.
bool is_operator(const std::string& name) {
  constexpr const char* names[] = {"and", "or", "else", "if", "is", "in", "not"};
  return std::ranges::find(names, name) != std::end(names);
}

bool compares(Run& run, const std::string& sign, const Value& a, const Value& b) {
  run.step();
  if (sign == "in" || sign == "not in") return contains(run, b, a) == (sign == "in");
  if (sign == "==" || sign == "!=") return equal(run, a, b) == (sign == "==");
  run.walk(a);
  if (sign == "<") return is_less(a, b);
  if (sign == ">") return is_less(b, a);
  if (sign == "<=") return is_less(a, b) || are_equal(a, b);
  return is_less(b, a) || are_equal(a, b);
}

}  // namespace

const Token& Parser::peek(std::size_t more) const {
  return tokens_[std::min(at_ + more, tokens_.size() - 1)];
}

Token Parser::next() {
  return tokens_[std::min(at_++, tokens_.size() - 1)];
}

void Parser::fail(const std::string& what) const {
  refuse("line " + std::to_string(peek().line) + ": " + what);
}

void Parser::need_sign(const char* sign) {
  if (!takes_sign(sign)) fail("'" + std::string(sign) + "' is needed, and there is " + shown(peek()));
}

std::string Parser::need_name() {
  if (peek().kind != Kind::name) fail("a name is needed, and there is " + shown(peek()));
  return next().text;
}

Expression Parser::expression_or_tuple() {
  auto first = expression();
  if (!is_sign(",")) return first;
  std::vector<Expression> items = {std::move(first)};
  while (takes_sign(",")) {
    if (peek().kind == Kind::end_block || peek().kind == Kind::end_output || is_sign(")")) break;
    items.push_back(expression());
  }
  return [items](Run& run) {
    List values;
    for (const auto& item : items) values.push_back(item(run));
    return Value(std::move(values));
  };
}

Expression Parser::expression() {
  if (depth_ >= deepest) fail("an expression is nested too deeply");
  const Deeper deeper(depth_);
  auto value = disjunction();
  while (takes_name("if")) {
    const auto condition = disjunction();
    const auto other = takes_name("else") ? expression() : Expression([](Run&) { return Value(Undefined{"else"}); });
    value = [value, condition, other](Run& run) { return is_true(condition(run)) ? value(run) : other(run); };
  }
  return value;
}

Expression Parser::disjunction() {
  auto left = conjunction();
  while (takes_name("or")) {
    left = [left, right = conjunction()](Run& run) {
      auto value = left(run);
      return is_true(value) ? value : right(run);
    };
  }
  return left;
}

Expression Parser::conjunction() {
  auto left = negation();
  while (takes_name("and")) {
    left = [left, right = negation()](Run& run) {
      auto value = left(run);
      return is_true(value) ? right(run) : value;
    };
  }
  return left;
}

Expression Parser::negation() {
  if (depth_ >= deepest) fail("an expression is nested too deeply");
  const Deeper deeper(depth_);
  if (!takes_name("not")) return comparison();
  return [value = negation()](Run& run) { return Value(!is_true(value(run))); };
}

// a < b < c is a < b and b < c.
Expression Parser::comparison() {
  auto first = sum();
  std::vector<std::pair<std::string, Expression>> others;
  while (true) {
    std::string sign;
    for (const char* each : {"==", "!=", "<", ">", "<=", ">="}) {
      if (is_sign(each)) sign = each;
    }
    if (is_name("in")) sign = "in";
    if (is_name("not") && peek(1).kind == Kind::name && peek(1).text == "in") sign = "not in";
    if (sign.empty()) break;
    next();
    if (sign == "not in") next();
    others.emplace_back(sign, sum());
  }
  if (others.empty()) return first;
  return [first, others](Run& run) {
    auto left = first(run);
    for (const auto& [sign, other] : others) {
      auto right = other(run);
      if (!compares(run, sign, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  };
}

Expression Parser::binary(const std::vector<const char*>& signs, Expression (Parser::*part)()) {
  auto left = (this->*part)();
  while (std::ranges::any_of(signs, [this](const char* each) { return is_sign(each); })) {
    const auto sign = next().text;
    left = [left, sign, right = (this->*part)()](Run& run) {
      run.step();
      const auto a = left(run), b = right(run);
      if (sign == "~") {
        run.walk_all(a);
        run.walk_all(b);
      }
      return run.counted(computed(sign, a, b));
    };
  }
  return left;
}

Expression Parser::sum() {
  return binary({"+", "-"}, &Parser::concatenation);
}
Expression Parser::concatenation() {
  return binary({"~"}, &Parser::product);
}
Expression Parser::product() {
  return binary({"*", "/", "//", "%"}, &Parser::power);
}
Expression Parser::power() {
  auto left = sign();
  while (takes_sign("**")) {
    left = [left, right = sign()](Run& run) { return computed("**", left(run), right(run)); };
  }
  return left;
}

Expression Parser::sign(bool takes_filters) {
  if (depth_ >= deepest) fail("an expression is nested too deeply");
  const Deeper deeper(depth_);
  Expression value;
  if (takes_sign("-")) {
    value = [part = sign(false)](Run& run) { return computed("-", Value(0), part(run)); };
  } else if (takes_sign("+")) {
    value = sign(false);
  } else {
    value = primary();
  }
  value = with_parts(std::move(value));
  return takes_filters ? with_filters(std::move(value)) : value;
}

// Attributes, items, and calls.
Expression Parser::with_parts(Expression value) {
  while (true) {
    if (takes_sign(".")) {
      const auto name = peek().kind == Kind::whole ? next().text : need_name();
      if (takes_sign("(")) {
        value = [value, name, given = arguments()](Run& run) {
          run.step();
          const auto whose = value(run);
          run.walk(whose);
          return run.counted(method_of(run, whose, name, given(run)));
        };
      } else {
        value = [value, name](Run& run) {
          const auto whose = value(run);
          run.walk(whose);
          return attribute_of(whose, name);
        };
      }
    } else if (takes_sign("[")) {
      value = part(std::move(value));
    } else if (takes_sign("(")) {
      value = [value, given = arguments()](Run& run) {
        run.step();
        const auto function = value(run);
        return run.counted(called(run, function, given(run)));
      };
    } else {
      return value;
    }
  }
}

Expression Parser::part(Expression value) {
  std::vector<Expression> bounds;
  const Expression none = [](Run&) { return Value(None()); };
  bool is_slice = false;
  for (int i = 0; i < 3; ++i) {
    const bool is_missing = is_sign(":") || is_sign("]");
    bounds.push_back(is_missing ? none : expression());
    if (!takes_sign(":")) break;
    is_slice = true;
  }
  need_sign("]");
  if (!is_slice) {
    return [value, key = bounds.front()](Run& run) {
      const auto whole = value(run);
      if (whole.list() == nullptr) run.walk(whole);
      return item_of(whole, key(run));
    };
  }
  bounds.resize(3, none);
  return [value, bounds](Run& run) {
    run.step();
    const auto whole = value(run), first = bounds[0](run), last = bounds[1](run);
    run.walk(whole);
    return run.counted(slice_of(whole, first, last, bounds[2](run)));
  };
}

Expression Parser::with_filters(Expression value) {
  while (true) {
    if (takes_sign("|")) {
      const auto name = need_name();
      auto given = takes_sign("(") ? arguments() : ArgumentList([](Run&) { return Arguments(); });
      value = [value, name, given](Run& run) {
        run.step();
        const auto input = value(run);
        return run.counted(filtered(run, name, input, given(run)));
      };
    } else if (takes_name("is")) {
      value = with_test(std::move(value));
    } else if (takes_sign("(")) {
      value = [value, given = arguments()](Run& run) { return called(run, value(run), given(run)); };
    } else {
      return value;
    }
  }
}

Expression Parser::with_test(Expression value) {
  const bool wants = !takes_name("not");
  const auto name = need_name();
  ArgumentList given = [](Run&) { return Arguments(); };
  const auto& token = peek();
  const bool is_value = token.kind == Kind::text || token.kind == Kind::whole || token.kind == Kind::real ||
                        (token.kind == Kind::name && !is_operator(token.text)) || is_sign("[") || is_sign("{");
  if (takes_sign("(")) {
    given = arguments();
  } else if (is_value) {
    given = [argument = with_parts(primary())](Run& run) { return Arguments{{argument(run)}, {}}; };
  }
  return [value, wants, name, given](Run& run) {
    run.step();
    const auto input = value(run);
    return Value(passes(run, name, input, given(run)) == wants);
  };
}

// Behind an opening parenthesis.
Parser::ArgumentList Parser::arguments() {
  std::vector<Expression> places;
  std::vector<std::pair<std::string, Expression>> names;
  while (!takes_sign(")")) {
    if (is_sign("*") || is_sign("**")) fail("arguments with * are not supported");
    const bool is_named = peek().kind == Kind::name && peek(1).kind == Kind::sign && peek(1).text == "=";
    if (is_named) {
      auto name = next().text;
      next();
      names.emplace_back(std::move(name), expression());
    } else {
      places.push_back(expression());
    }
    if (!is_sign(")")) need_sign(",");
  }
  return [places, names](Run& run) {
    Arguments given;
    for (const auto& each : places) given.places.push_back(each(run));
    for (const auto& [name, each] : names) given.names.emplace_back(name, each(run));
    return given;
  };
}

Expression Parser::primary() {
  if (takes_sign("(")) {
    if (takes_sign(")")) return [](Run&) { return Value(List()); };
    auto value = expression_or_tuple();
    need_sign(")");
    return value;
  }
  if (takes_sign("[")) return list();
  if (takes_sign("{")) return map();
  if (peek().kind == Kind::begin_block || peek().kind == Kind::sign || peek().kind == Kind::end ||
      peek().kind == Kind::end_block || peek().kind == Kind::end_output) {
    fail("an expression is needed, and there is " + shown(peek()));
  }
  return literal(next());
}

Expression Parser::literal(const Token& token) {
  Value value;
  const auto& text = token.text;
  if (token.kind == Kind::text) {
    auto whole = text;
    while (peek().kind == Kind::text) whole += next().text;
    value = whole;
  } else if (token.kind == Kind::whole) {
    std::int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) fail(text + " is too large");
    value = number;
  } else if (token.kind == Kind::real) {
    value = std::stod(text);
  } else if (text == "true" || text == "True" || text == "false" || text == "False") {
    value = text == "true" || text == "True";
  } else if (text == "none" || text == "None") {
    value = None();
  } else {
    return [name = text](Run& run) {
      run.step();
      const auto* found = run.find(name);
      return found == nullptr ? Value(Undefined{name}) : *found;
    };
  }
  return [value](Run&) { return value; };
}

Expression Parser::list() {
  std::vector<Expression> items;
  while (!takes_sign("]")) {
    items.push_back(expression());
    if (!is_sign("]")) need_sign(",");
  }
  return [items](Run& run) {
    List values;
    for (const auto& item : items) values.push_back(item(run));
    return Value(std::move(values));
  };
}

Expression Parser::map() {
  std::vector<std::pair<Expression, Expression>> items;
  while (!takes_sign("}")) {
    auto key = expression();
    need_sign(":");
    items.emplace_back(std::move(key), expression());
    if (!is_sign("}")) need_sign(",");
  }
  return [items](Run& run) {
    Map values;
    for (const auto& [key, item] : items) {
      const auto name = key(run);
      auto value = item(run);
      std::erase_if(values, [&](const auto& each) { return are_equal(each.first, name); });
      values.emplace_back(name, std::move(value));
    }
    return Value(std::move(values));
  };
}

}  // namespace vernier::jinja
