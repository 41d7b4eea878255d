// Data that never end, read in order: a crawl, a simulation, texts that are drawn from several sources. A stream of
// your own implements next(), and names its place in its constructor. SupervisedTask::set_training() takes it, and so
// does a DataLoader. Workers, checkpoints and ranks are as for a Dataset: a resumed run gets the samples that come
// next, and each of several ranks trains on its part of each batch.
//
//   class Lines final : public vernier::Stream {
//    public:
//     explicit Lines(const std::string& path) : file_(path) { remember("place", place_); }
//     vernier::Sample next(vernier::Random&) override { return {encoded(file_.line_at(place_))}; }  // moves place_ on
//     std::string fingerprint() const override { return file_.name(); }
//     …
//   };
#pragma once

#include <vernier/data/dataset.h>
#include <vernier/state.h>

namespace vernier {

// One thread at a time calls the functions, except finish(): first the main thread, then the workers. Gradients are
// off.
class VERNIER_API Stream {
 public:
  virtual ~Stream();
  // Returns the next sample. random: depends only on the run's seed and the number of samples before this one. An
  // exception ends the run, which is resumed at the batch of this sample.
  virtual Sample next(Random& random) = 0;
  // Goes past samples, which other ranks train on, and returns true if that is cheaper than next(). What follows must
  // be the same. Default: false, and next() is called for each.
  virtual bool skip(std::int64_t samples);
  // Costly work on a sample that next() returned, which needs nothing of the stream that changes: decoding, augmenting.
  // Workers call it, several at the same time. Default: the sample as it is.
  virtual Sample finish(Sample sample, Random& random) const;
  // Identifies the data, so that a run is not resumed with others. Default: "a stream".
  virtual std::string fingerprint() const;
  // The place. Called after each batch, so it must be small. The defaults keep what remember() names.
  virtual State save() const;
  virtual void load(const State& state);

 protected:
  // Called in the constructor: names a member that next() changes, of a type that State keeps.
  template <class Member>
  void remember(const std::string& name, Member& member) {
    memory_.push_back({[name, &member](State& state) { state.put(name, std::as_const(member)); },
                       [name, &member](const State& state) { state.get(name, member, torch::kCPU); }});
  }

 private:
  struct Memory {
    std::function<void(State&)> put;
    std::function<void(const State&)> get;
  };
  std::vector<Memory> memory_;
};
using StreamPtr = std::shared_ptr<Stream>;

// The next samples of a stream, in memory, for a validation. Training then begins behind them.
VERNIER_API DatasetPtr take(Stream& stream, std::int64_t samples, std::uint64_t seed);

}  // namespace vernier
