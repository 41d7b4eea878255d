// none: saves nothing, for runs that are short enough to be done again. No options.
#include <vernier/error.h>
#include <vernier/roles.h>

namespace {

using vernier::Error;
using vernier::Run;
using vernier::State;

class None final : public vernier::Checkpoint {
 public:
  explicit None(vernier::Options&) {}
  void prepare(Run&) override { warn("nothing of this run is saved: once stopped, it cannot be resumed"); }
  bool due(const Run&) override { return false; }
  void write(const State&, Run&) override {}
  bool writes_shards() const override { return true; }
  void write_shard(const State&, Run&) override {}
  std::optional<State> read(const Run&, const std::string& from) override {
    if (from.empty()) return std::nullopt;
    throw Error(from + ": cannot be resumed from with [checkpoint] use = \"none\"; take \"rolling\"",
                Error::Kind::configuration);
  }
};

}  // namespace

VERNIER_PLUGIN(None, "none", "1.0.0")
