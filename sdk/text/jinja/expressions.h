// Reads expressions of Jinja as functions that compute them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lexer.h"
#include "run.h"

namespace vernier::jinja {

using Expression = Part<Value>;

// The tokens of a template, and what its expressions are. All throw Error with a line.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t more = 0) const;
  Token next();
  bool is_sign(const char* sign) const { return peek().kind == Token::Kind::sign && peek().text == sign; }
  bool is_name(const char* name) const { return peek().kind == Token::Kind::name && peek().text == name; }
  bool takes_sign(const char* sign) { return is_sign(sign) && (next(), true); }
  bool takes_name(const char* name) { return is_name(name) && (next(), true); }
  void need_sign(const char* sign);
  std::string need_name();
  [[noreturn]] void fail(const std::string& what) const;

  Expression expression();           // a if b else c
  Expression expression_or_tuple();  // a, b
  Expression disjunction();          // without "if", as in {% for x in list if condition %}
  // | filter(…) | …, behind an expression.
  Expression with_filters(Expression value);

 private:
  using ArgumentList = Part<Arguments>;
  Expression conjunction();
  Expression negation();
  Expression comparison();
  Expression sum();
  Expression concatenation();
  Expression product();
  Expression power();
  Expression sign(bool takes_filters = true);
  Expression with_parts(Expression value);
  Expression part(Expression value);  // [key] or [first:last:step]
  Expression with_test(Expression value);
  Expression primary();
  Expression literal(const Token& token);
  Expression list();
  Expression map();
  ArgumentList arguments();
  Expression binary(const std::vector<const char*>& signs, Expression (Parser::*part)());

  std::vector<Token> tokens_;
  std::size_t at_ = 0, depth_ = 0;
};

}  // namespace vernier::jinja
