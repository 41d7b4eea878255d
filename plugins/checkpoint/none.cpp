// none: saves nothing, for runs that are short enough to be done again. No options.
#include <vernier/error.h>
#include <vernier/roles.h>

class None final : public vernier::Checkpoint {
 public:
  explicit None(vernier::Options&) {}
  void prepare(vernier::Run&) override { warn("nothing of this run is saved: once stopped, it cannot be resumed"); }
  bool due(const vernier::Run&) override { return false; }
  void write(const vernier::State&, vernier::Run&) override {}
  bool writes_shards() const override { return true; }
  void write_shard(const vernier::State&, vernier::Run&) override {}
  std::vector<std::string> snapshots(const std::string&) override { return {}; }
  std::optional<vernier::State> read(const vernier::Run&, const std::string& from) override {
    if (from.empty()) return std::nullopt;
    vernier::refuse(from + ": cannot be resumed from with [checkpoint] use = \"none\"; take \"rolling\"");
  }
};

VERNIER_PLUGIN(None, "none", "1.0.0")
