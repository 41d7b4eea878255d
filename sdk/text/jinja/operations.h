// The operations of expressions: parts, methods, filters and tests. All throw Error with a reason, without a line.
#pragma once

#include <map>
#include <string>

#include "values.h"

namespace vernier::jinja {

Value attribute_of(const Value& value, const std::string& name);  // value.name
Value item_of(const Value& value, const Value& key);              // value[key]
// value[first:last:step], where each may be none.
Value slice_of(const Value& value, const Value& first, const Value& last, const Value& step);
bool equal(Run& run, const Value& a, const Value& b);                     // a == b
bool contains(Run& run, const Value& whole, const Value& part);           // part in whole
Value computed(const std::string& sign, const Value& a, const Value& b);  // a + b; + - * / // % ** ~

Value called(Run& run, const Value& function, const Arguments& arguments);
Value method_of(Run& run, const Value& value, const std::string& name, const Arguments& arguments);
Value filtered(Run& run, const std::string& name, const Value& value, const Arguments& arguments);
bool passes(Run& run, const std::string& test, const Value& value, const Arguments& arguments);

std::map<std::string, Value> global_functions();  // range(), namespace(), dict(), raise_exception() …

}  // namespace vernier::jinja
