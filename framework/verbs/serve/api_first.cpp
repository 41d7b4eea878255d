#include "api.h"
namespace serve {
std::vector<vernier::HttpRoute> first_routes(const ApiOf&) { return {}; }
std::vector<vernier::HttpRoute> page_routes() { return {}; }
}
