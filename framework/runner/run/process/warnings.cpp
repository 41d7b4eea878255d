#include "warnings.h"

#include <vernier/error.h>
#include <vernier/plugin.h>

namespace vernier {

void Warnings::process(const c10::Warning& warning) {
  if (!said_.insert(warning.msg()).second) return;
  const auto line = message(std::runtime_error(warning.msg()));
  log(Level::warning, where_(), "LibTorch warns: " + line + " (further warnings of this text are left out)");
}

}  // namespace vernier
