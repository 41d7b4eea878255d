// A configuration in one line, to be compared: {a=1 b={c="d"}}.
#pragma once

#include <vernier/value.h>

#include <string>

inline std::string show(const vernier::Table& table);

inline std::string show(const vernier::Value& value) {
  struct Show {
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const { return std::to_string(d); }
    std::string operator()(const std::string& s) const { return '"' + s + '"'; }
    std::string operator()(const vernier::Table& t) const { return show(t); }
    std::string operator()(const vernier::Array& a) const {
      std::string text = "[";
      for (const auto& each : a) text += (text.size() > 1 ? " " : "") + show(each);
      return text + "]";
    }
  };
  return std::visit(Show(), value.data);
}

inline std::string show(const vernier::Table& table) {
  std::string text = "{";
  for (const auto& [key, value] : table) text += (text.size() > 1 ? " " : "") + key + "=" + show(value);
  return text + "}";
}
