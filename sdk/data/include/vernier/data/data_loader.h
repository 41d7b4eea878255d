// Makes batches of a dataset. Worker threads prepare the next ones while the model computes. Batches and their order
// depend only on dataset, options and seed, never on the number of workers or on timing. The position is saved exactly,
// whatever has been prepared ahead.
//
//   vernier::DataLoader loader(training, {.batch_size = 64, .workers = 2});
//   for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
//     const vernier::Batch batch = loader.next();  // batch.tensors: {images, labels}
//   }
#pragma once

#include <vernier/batch.h>
#include <vernier/data/dataset.h>
#include <vernier/data/stream.h>
#include <vernier/sampler.h>

#include <functional>
#include <memory>
#include <vector>

namespace vernier {

// Makes a batch of samples. Called by worker threads, several at the same time.
using Collate = std::function<Batch(const std::vector<Sample>& samples)>;

// The default: stacks the tensors of the samples, which must have equal shapes.
VERNIER_API Batch stack(const std::vector<Sample>& samples);
// For sequences of different lengths, dimension 0 of a sample's tensors: fills up each tensor with `value` to the
// longest of the batch, and adds a tensor with the lengths of the samples' first tensors (int64, [samples]).
VERNIER_API Collate pad(double value = 0);
// For sequences of different lengths, dimension 0 of a sample's tensors, which are equally long: lays them one after
// the other into rows of `length`, each into the first row with room. The batch has the rows of each tensor, filled up
// with `value`, and a tensor with the number of each position's sequence in its row (int64, [rows, length]; from 1, 0
// where it was filled up). Batch::samples counts rows. A longer sequence throws Error.
VERNIER_API Collate pack(std::int64_t length, double value = 0);

struct VERNIER_API DataLoaderOptions {
  std::int64_t batch_size = 1;
  Sampler::Order order = Sampler::Order::shuffled;
  // Not undefined: an epoch draws size() samples with replacement, in proportion to these weights (float64, 1-D, at
  // least 0). `order` must be shuffled then.
  torch::Tensor weights = {};
  std::uint64_t seed = 1;     // seed of the order, and of the datasets' random numbers
  bool drop_last = false;     // leaves out the last batch of an epoch if it is smaller than batch_size
  std::int64_t workers = 0;   // threads that prepare batches; 0: next() does
  std::int64_t prefetch = 2;  // batches that each worker prepares ahead
  bool pin_memory = false;    // page-locked memory, from which copies to a GPU are asynchronous
  Collate collate = {};       // by default stack()
  // With several processes that train one model, each loads its share of each batch alone: Batch::share(rank, ranks). A
  // share without samples has no tensors.
  std::int64_t rank = 0, ranks = 1;
};

// Its functions are for one thread, except the constructor's and destructor's start and end of the workers. Each worker
// prepares whole batches, with one thread for LibTorch's operators.
class VERNIER_API DataLoader {
 public:
  // Throws Error if the dataset is empty, if an option is out of range, or if drop_last leaves no batch.
  DataLoader(DatasetPtr dataset, DataLoaderOptions options);
  DataLoader(StreamPtr stream, DataLoaderOptions options);  // `order`, `weights` and `drop_last` have no meaning
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Returns the next batch, on the CPU. Waits if it is not ready. After the last batch of an epoch comes the first of
  // the next one. Throws Error with the sample's Dataset::where() if the dataset threw; the position is then unchanged.
  Batch next();
  double waited() const;  // seconds that the last next() waited for the workers, or computed without any

  std::int64_t batches_per_epoch() const;  // vernier::endless if it reads a stream
  std::int64_t epoch() const;              // epoch of the next batch; 0 in the first

  // The position of the next batch. It takes microseconds. load_state_dict() drops what was prepared. It throws Error,
  // and changes nothing, if size, seed, order or Dataset::fingerprint() differ.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  struct Workers;
  std::unique_ptr<Workers> workers_;
};

}  // namespace vernier
