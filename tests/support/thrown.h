// The exception of a function, to be compared whole.
#pragma once

#include <vernier/error.h>

#include <exception>
#include <ostream>
#include <string>

struct Thrown {
  int kind = 0;  // the exit status of a vernier::Error; 0: nothing was thrown, 1: something else was
  std::string text;
  bool operator==(const Thrown&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Thrown& thrown) {
  return out << thrown.kind << " \"" << thrown.text << '"';
}

template <class Body>
Thrown thrown_by(const Body& body) {
  try {
    body();
  } catch (const vernier::Error& error) {
    return {static_cast<int>(error.kind()), error.what()};
  } catch (const std::exception& exception) {
    return {1, exception.what()};
  }
  return {};
}

inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline Thrown configuration(const std::string& text) {
  return {2, text};
}
inline Thrown refused(const std::string& text) {
  return {3, text};
}
inline Thrown failed(const std::string& text) {
  return {4, text};
}
