#include "guards.h"

#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "arithmetic.h"

namespace graph {

namespace {

using c10::IValue;

class Expression {
 public:
  Expression(const std::string& text, const NumberOf& number_of) : whole_(text), text_(text), number_of_(number_of) {}

  IValue value() {
    auto result = operation(0);
    return text_.empty() ? result : refuse();
  }

 private:
  struct Operator {
    std::string_view sign;
    int level;  // a higher level binds more tightly
    const char* name;
  };
  static constexpr int comparison = 2, power = 5, most_nested = 64;
  // A sign stands before those that it begins with.
  static constexpr Operator operators[] = {{"or", 0, "or_"},         {"and", 1, "and_"},       {"==", comparison, "eq"},
                                           {"!=", comparison, "ne"}, {"<=", comparison, "le"}, {">=", comparison, "ge"},
                                           {"<", comparison, "lt"},  {">", comparison, "gt"},  {"+", 3, "add"},
                                           {"-", 3, "sub"},          {"**", power, "pow"},     {"*", 4, "mul"},
                                           {"//", 4, "floordiv"},    {"/", 4, "truediv"},      {"%", 4, "mod"}};

  [[noreturn]] IValue refuse() const { vernier::refuse("'" + std::string(whole_) + "' is not read"); }

  bool take(std::string_view sign) {
    while (text_.starts_with(' ')) text_.remove_prefix(1);
    if (!text_.starts_with(sign)) return false;
    text_.remove_prefix(sign.size());
    return true;
  }

  IValue call(const std::string& target, const std::vector<IValue>& arguments) const {
    const auto function = arithmetic_of(target);
    if (function == nullptr || arguments.empty()) refuse();
    if (arguments.size() == 1) return function(arguments);
    auto result = arguments[0];
    for (std::size_t i = 1; i < arguments.size(); ++i) result = function({result, arguments[i]});
    return result;
  }

  const Operator* take_operator(int least) {
    take("");  // spaces are skipped
    for (const auto& each : operators) {
      if (!text_.starts_with(each.sign)) continue;
      return each.level >= least && take(each.sign) ? &each : nullptr;
    }
    return nullptr;
  }

  IValue operation(int level) {
    if (++depth_ > most_nested) refuse();
    auto left = operand();
    while (const auto* next = take_operator(level)) {
      left = call(std::string("_operator.") + next->name, {left, operation(next->level + 1)});
    }
    --depth_;
    return left;
  }

  IValue operand() {
    if (take("-")) return call("_operator.neg", {operation(power)});
    if (take("not ")) return call("torch.sym_not", {operation(comparison)});
    if (take("(")) {
      auto inner = operation(0);
      return take(")") ? inner : refuse();
    }
    if (!text_.empty() && std::isdigit(static_cast<unsigned char>(text_[0])) != 0) return number();
    const auto length = std::min(text_.find_first_of(" (),"), text_.size());
    const auto name = std::string(text_.substr(0, length));
    text_.remove_prefix(length);
    if (take("()[")) {  // it is x.size()[0]
      const auto dimension = operation(0);
      return take("]") && dimension.isInt() ? number_of_(name, dimension.toInt()) : refuse();
    }
    if (name == "math.inf") return std::numeric_limits<double>::infinity();
    if (!take("(")) refuse();
    std::vector<IValue> arguments;
    do arguments.push_back(operation(0));
    while (take(","));
    if (!take(")")) refuse();
    return call(name.find('.') == std::string::npos ? "torch.sym_" + name : name, arguments);
  }

  IValue number() {
    char* end = nullptr;
    const auto real = std::strtod(text_.data(), &end);  // the text ends with a zero
    const auto digits = text_.substr(0, static_cast<std::size_t>(end - text_.data()));
    text_.remove_prefix(digits.size());
    if (digits.find_first_not_of("0123456789") != std::string_view::npos) return real;
    return static_cast<std::int64_t>(std::strtoll(digits.data(), nullptr, 10));
  }

  std::string_view whole_, text_;  // text_ is the rest of the whole
  const NumberOf& number_of_;
  int depth_ = 0;
};

}  // namespace

IValue value_of(const std::string& expression, const NumberOf& number_of) {
  try {
    return Expression(expression, number_of).value();
  } catch (const c10::Error&) {  // a real number where a whole one is needed
    vernier::refuse("'" + expression + "' is not read");
  }
}

}  // namespace graph
