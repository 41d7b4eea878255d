// none: one process trains alone. No options.
#include <vernier/sdk.h>

class Alone final : public vernier::Distributed {
 public:
  explicit Alone(vernier::Options&) {}
};

VERNIER_PLUGIN(Alone, "none", "1.0.0")
