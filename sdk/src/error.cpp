#include <c10/util/Exception.h>
#include <vernier/error.h>

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
  return line;
}

}  // namespace vernier
