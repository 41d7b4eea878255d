#include <c10/util/Exception.h>
#include <vernier/error.h>

#include <algorithm>
#include <sstream>

#include "reworded_error.h"

namespace vernier {

Error::Error(const std::string& what, Kind kind, std::string who, std::string place)
    : std::runtime_error(what), kind_(kind), who_(std::move(who)), place_(std::move(place)) {}
Error::~Error() = default;

namespace {

// The last line that begins like "RuntimeError: ", without this beginning; "": there is none.
std::string cause_in(const std::string& text) {
  std::istringstream lines(text);
  std::string cause;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find("Error: ");
    if (colon != std::string::npos && line.find(' ') > colon) cause = line.substr(colon + 7);
  }
  return cause;
}

// The line of a TorchScript model that an error arose in: the one above the last mark; "": none is marked.
std::string code_in(const std::string& text) {
  const auto mark = text.rfind("<--- HERE");
  const auto end = mark == std::string::npos ? mark : text.rfind('\n', mark);
  if (end == std::string::npos || end == 0) return "";
  const auto begin = text.find_first_not_of(" \n", text.rfind('\n', end - 1));
  return begin < end ? text.substr(begin, end - begin) : "";
}

// A text of another library, without its traceback and marks.
std::string without_trace(std::string text) {
  constexpr std::size_t most = 400;
  const bool has_trace = text.find("Traceback of TorchScript") != std::string::npos;
  if (!has_trace && text.size() <= most) return text;
  const auto cause = cause_in(text), code = code_in(text);
  if (has_trace) return (cause.empty() ? text : cause) + (code.empty() ? "" : " (in `" + code + "`)");
  const auto first = text.substr(0, text.find('\n', text.find_first_not_of('\n')));
  return cause.empty() || first.find(cause) != std::string::npos ? first : first + ": " + cause;
}

}  // namespace

std::string message(const std::exception& exception) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&exception);
  std::string text = torch_error ? torch_error->what_without_backtrace() : exception.what();
  if (dynamic_cast<const Error*>(&exception) == nullptr) text = reworded_error(without_trace(std::move(text)));
  std::string line;
  for (char c : text) {
    if (c == '\n') c = ' ';
    if (c != ' ' || (!line.empty() && line.back() != ' ')) line += c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  constexpr std::size_t most = 4000;  // whatever a plugin or a library quotes
  return shortened(line, most);
}

Caught caught(Error::Kind otherwise) {
  try {
    throw;
  } catch (const Error& error) {
    return {message(error), error.kind()};
  } catch (const std::exception& exception) {
    return {message(exception), otherwise};
  } catch (...) {
    return {"it threw no std::exception", otherwise};
  }
}

void rethrow_naming(const std::string& who, const std::string& when, Error::Kind otherwise, const std::string& place) {
  try {
    throw;
  } catch (const Error& error) {
    const bool has_cause = dynamic_cast<const std::nested_exception*>(&error) != nullptr;
    if (has_cause || error.who() == who) throw;
  } catch (...) {  // goes on below, where it is still in flight
  }
  const auto [text, kind] = caught(otherwise);
  std::throw_with_nested(Error((place.empty() ? "" : place + ": ") + who + when + ": " + text, kind, who, place));
}

void refuse(const std::string& text, const std::string& who) {
  throw Error(text, Error::Kind::configuration, who);
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i > 0 ? "," : "") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

}  // namespace vernier
