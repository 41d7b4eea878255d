// Stands in for server.cpp in a build without the component service.
#include <vernier/error.h>

#include "server.h"

namespace vernier {

void serve_predictions(const PredictionServer&, const Predict&) {
  refuse(
      "--listen needs the HTTP of the service, and this program was built without it; configure it with "
      "-DVERNIER_COMPONENTS=all");
}

}  // namespace vernier
