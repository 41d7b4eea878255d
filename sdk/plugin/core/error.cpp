#include <c10/util/Exception.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

Error::Error(const std::string& what, Kind kind) : std::runtime_error(what), kind_(kind) {}
Error::~Error() = default;

std::string message(const std::exception& exception) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&exception);
  std::string text = torch_error ? torch_error->what_without_backtrace() : exception.what();
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
    if (has_cause || std::string_view(error.what()).find(who) != std::string_view::npos) throw;
  } catch (...) {  // goes on below, where it is still in flight
  }
  const auto [text, kind] = caught(otherwise);
  std::throw_with_nested(Error((place.empty() ? "" : place + ": ") + who + when + ": " + text, kind));
}

void refuse(const std::string& text) {
  throw Error(text, Error::Kind::configuration);
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i > 0 ? "," : "") + names[i];
  return names.size() > most ? text + " and " + std::to_string(names.size() - most) + " more" : text;
}

}  // namespace vernier
