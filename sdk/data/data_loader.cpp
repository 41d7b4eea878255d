#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <vernier/copy.h>
#include <vernier/data/data_loader.h>
#include <vernier/error.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/parallel.h"

namespace vernier {

namespace {

// A batch that is prepared. One thread at a time has it: a worker until it is done, then the caller of next().
struct Work {
  State place;  // the position of this batch
  std::int64_t epoch = 0;
  torch::Tensor all, indices;                   // the samples of the batch, and those that this rank loads
  std::vector<std::pair<Sample, Random>> read;  // the samples of a stream that are not finished
  State after;                                  // the place of the stream behind the batch
  Batch batch;
  std::exception_ptr error;
  bool is_done = false;  // under the mutex
};

Sampler make_sampler(const Dataset& dataset, const DataLoaderOptions& options) {
  if (options.batch_size < 1) refuse(c10::str("a batch cannot have ", options.batch_size, " samples"));
  if (options.workers < 0 || options.workers > 1024) refuse(c10::str("there cannot be ", options.workers, " workers"));
  if (options.prefetch < 1) refuse(c10::str("a worker cannot prepare ", options.prefetch, " batches ahead"));
  const auto size = dataset.size();
  if (options.drop_last && size < options.batch_size) {
    refuse(c10::str("drop_last leaves no batch: the dataset has ", size, " samples, and a batch ", options.batch_size));
  }
  if (options.rank < 0 || options.rank >= options.ranks) {
    refuse(c10::str("rank ", options.rank, " of ", options.ranks, " does not exist"));
  }
  if (options.weights.defined()) {
    if (options.weights.numel() != size) {
      refuse(c10::str("there are ", options.weights.numel(), " weights for ", size, " samples"));
    }
    if (options.order != Sampler::Order::shuffled) {
      refuse("weights, such as those of `balanced`, draw the samples at random; leave `order` out");
    }
    return Sampler::weighted(options.weights, options.seed);
  }
  if (options.order == Sampler::Order::by_shard) return Sampler::by_shard(dataset.shards(), options.seed);
  return Sampler(size, options.seed, options.order);
}

// Answers a loader's questions for a stream, whose samples come from next().
class StreamData final : public Dataset {
 public:
  explicit StreamData(StreamPtr stream) : stream_(std::move(stream)) {}
  std::int64_t size() const override { return endless; }
  Sample get(std::int64_t, Random&) const override { return {}; }
  std::string where(std::int64_t index) const override { return c10::str("sample ", index, " of the stream"); }
  std::string fingerprint() const override { return stream_->fingerprint(); }

 private:
  StreamPtr stream_;
};

// The error that is being handled, with the sample's place unless its text has that.
[[noreturn]] void rethrow_at(const std::string& where) {
  const auto [text, kind] = caught();
  throw Error(text.find(where) == std::string::npos ? where + ": " + text : text, kind);
}

std::exception_ptr named(const std::string& where) {
  try {
    rethrow_at(where);
  } catch (...) {
    return std::current_exception();
  }
}

template <typename Source>
Source given(Source source, const char* what) {
  if (source == nullptr) refuse(std::string("the data loader got a null ") + what + ": give it one that exists");
  return source;
}

}  // namespace

struct DataLoader::Workers {
  Workers(DatasetPtr dataset, DataLoaderOptions options)
      : dataset_(given(std::move(dataset), "dataset")),
        options_(std::move(options)),
        fingerprint_(dataset_->fingerprint()),
        sampler_(make_sampler(*dataset_, options_)) {
    stacks_ = !options_.collate;
    if (stacks_) options_.collate = stack;
  }

  Workers(StreamPtr stream, DataLoaderOptions options)
      : Workers(std::make_shared<StreamData>(given(stream, "stream")), of_stream(std::move(options))) {
    stream_ = std::move(stream);
    stream_place_ = clone_of(stream_->save());
  }

  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    work_there_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  Batch next() {
    if (options_.workers == 0) return next_here();
    for (auto i = std::ssize(threads_); i < options_.workers; ++i) threads_.emplace_back([this] { run_worker(); });
    look_ahead();
    const auto begin = std::chrono::steady_clock::now();
    const auto work = ahead_.front();
    {
      std::unique_lock lock(mutex_);
      work_done_.wait(lock, [&] { return work->is_done; });
    }
    waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (work->error) {
      sampler_.load_state_dict(work->place);  // the position stays, and another next() tries again
      drop_work();
      std::rethrow_exception(work->error);
    }
    ahead_.pop_front();
    if (stream_) stream_place_ = std::move(work->after);
    look_ahead();
    return std::move(work->batch);
  }

  State state_dict() const {
    auto state = ahead_.empty() ? place() : ahead_.front()->place;
    if (stream_) state.put("stream", stream_place_);
    return state;
  }

  void load_state_dict(const State& state) {
    if (state.text("data") != fingerprint_) {
      refuse("the data have changed since this run was saved: it had " + state.text("data") + ", now it has " +
             fingerprint_ + "; give the same files, or start a new run");
    }
    sampler_.load_state_dict(state);
    if (stream_) stream_place_ = clone_of(state.part("stream"));
    drop_work();
  }

  std::int64_t epoch() const { return ahead_.empty() ? sampler_.epoch() : ahead_.front()->epoch; }
  std::int64_t batches_per_epoch() const {
    if (stream_) return endless;
    const auto last = options_.drop_last ? 0 : options_.batch_size - 1;
    return (sampler_.size() + last) / options_.batch_size;
  }
  double waited() const { return waited_; }

 private:
  static DataLoaderOptions of_stream(DataLoaderOptions options) {
    options.order = Sampler::Order::sequential;
    options.weights = torch::Tensor();
    options.drop_last = false;
    return options;
  }

  State place() const {
    auto state = sampler_.state_dict();
    state.put("data", fingerprint_);
    return state;
  }

  Batch next_here() {
    const auto begin = std::chrono::steady_clock::now();
    const auto before = sampler_.state_dict();
    auto work = next_work();
    if (stream_) read(*work);
    prepare(*work);
    waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (work->error) {
      sampler_.load_state_dict(before);
      if (stream_) stream_->load(clone_of(stream_place_));
      std::rethrow_exception(work->error);
    }
    if (stream_) stream_place_ = std::move(work->after);
    return std::move(work->batch);
  }

  // The samples of a batch that this rank loads.
  torch::Tensor share_of(const torch::Tensor& indices) const {
    if (options_.ranks == 1) return indices;
    const auto samples = indices.numel();
    const auto begin = Batch::share_begin(samples, options_.rank, options_.ranks);
    return indices.slice(0, begin, Batch::share_begin(samples, options_.rank + 1, options_.ranks));
  }

  std::shared_ptr<Work> next_work() {
    auto work = std::make_shared<Work>();
    do {
      work->place = place();
      work->epoch = sampler_.epoch();
      work->all = sampler_.next(options_.batch_size);
    } while (options_.drop_last && work->all.numel() < options_.batch_size);
    work->indices = share_of(work->all);
    return work;
  }

  // Has the workers prepare batches until enough are ahead.
  void look_ahead() {
    const auto most = static_cast<std::size_t>(options_.workers * options_.prefetch);
    while (ahead_.size() < most) {
      ahead_.push_back(next_work());
      {
        const std::lock_guard lock(mutex_);
        to_do_.push_back(ahead_.back());
      }
      work_there_.notify_one();
    }
  }

  // Drops what was prepared. A worker ends its batch, which nobody gets. A stream goes back to its place.
  void drop_work() {
    {
      std::unique_lock lock(mutex_);
      to_do_.clear();
      work_done_.wait(lock, [this] { return !is_reading_; });
    }
    ahead_.clear();
    if (stream_) stream_->load(clone_of(stream_place_));
  }

  void run_worker() {
    const OneThread one_thread(true);
    for (;;) {
      std::shared_ptr<Work> work;
      {
        std::unique_lock lock(mutex_);
        work_there_.wait(lock, [this] { return is_ending_ || (!to_do_.empty() && !is_reading_); });
        if (is_ending_) return;
        work = to_do_.front();
        to_do_.pop_front();
        is_reading_ = stream_ != nullptr;
      }
      if (stream_) read_in_turn(*work);
      prepare(*work);
      {
        const std::lock_guard lock(mutex_);
        work->is_done = true;
      }
      work_done_.notify_one();
    }
  }

  void read_in_turn(Work& work) {
    read(work);
    {
      const std::lock_guard lock(mutex_);
      is_reading_ = false;
    }
    work_there_.notify_all();
    work_done_.notify_all();
  }

  // Takes a batch out of the stream, and keeps what is this rank's.
  void read(Work& work) const {
    const torch::NoGradGuard no_grad;
    const OneThread one_thread(true);
    const auto* all = work.all.const_data_ptr<std::int64_t>();
    const auto samples = work.all.numel();
    const auto begin = Batch::share_begin(samples, options_.rank, options_.ranks);
    const auto end = Batch::share_begin(samples, options_.rank + 1, options_.ranks);
    std::int64_t i = 0;
    try {
      while (i < samples && !is_ending_) {
        const bool is_own = i >= begin && i < end;
        const auto left = (i < begin ? begin : samples) - i;
        if (!is_own && stream_->skip(left)) {
          i += left;
          continue;
        }
        Random random(options_.seed, work.epoch, all[i]);
        auto sample = stream_->next(random);
        if (is_own) work.read.emplace_back(std::move(sample), random);
        i += 1;
      }
      work.after = clone_of(stream_->save());
    } catch (...) {
      work.error = named(dataset_->where(all[std::min(i, samples - 1)]));
    }
  }

  void prepare(Work& work) const {
    if (work.error) return;
    const torch::NoGradGuard no_grad;
    const OneThread one_thread(true);
    try {
      if (work.indices.numel() > 0) work.batch = make_batch(work);
      work.batch.is_share = options_.ranks > 1;
      if (work.batch.samples == work.indices.numel()) {  // a row of packed() has several
        const auto* indices = work.indices.const_data_ptr<std::int64_t>();
        work.batch.indices.assign(indices, indices + work.indices.numel());
      }
      if (options_.pin_memory) {
        for (auto& tensor : work.batch.tensors) tensor = tensor.pin_memory();
      }
    } catch (...) {
      work.error = std::current_exception();
    }
  }

  Batch make_batch(Work& work) const {
    if (stacks_) {
      try {
        if (auto tensors = dataset_->get_batch(work.indices))
          return Batch{.tensors = std::move(*tensors), .samples = work.indices.numel()};
      } catch (...) {
        one_by_one(work);  // throws for the sample that is to blame
        const auto* indices = work.indices.const_data_ptr<std::int64_t>();
        const auto last = indices[work.indices.numel() - 1];
        rethrow_at(dataset_->where(indices[0]) + " to " + dataset_->where(last));
      }
    }
    const auto samples = one_by_one(work);
    return is_ending_ ? Batch{} : options_.collate(samples);
  }

  std::vector<Sample> one_by_one(Work& work) const {
    std::vector<Sample> samples;
    const auto* indices = work.indices.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < work.indices.numel() && !is_ending_; ++i) {
      try {
        if (stream_) {
          auto& [sample, random] = work.read.at(static_cast<std::size_t>(i));
          samples.push_back(stream_->finish(std::move(sample), random));
          continue;
        }
        Random random(options_.seed, work.epoch, indices[i]);
        samples.push_back(dataset_->get(indices[i], random));
      } catch (...) {
        rethrow_at(dataset_->where(indices[i]));
      }
    }
    return samples;
  }

  DatasetPtr dataset_;
  StreamPtr stream_;    // the source of the samples, or null; one worker at a time reads it
  State stream_place_;  // the place behind the batches that next() has returned; for the caller's thread
  DataLoaderOptions options_;
  std::string fingerprint_;
  bool stacks_ = false;  // so that Dataset::get_batch may do it
  Sampler sampler_;      // its position is that of the first batch that is not in ahead_
  double waited_ = 0;
  std::deque<std::shared_ptr<Work>> ahead_;  // in order; the caller's thread alone has it

  std::mutex mutex_;
  std::condition_variable work_there_, work_done_;
  std::deque<std::shared_ptr<Work>> to_do_;
  std::atomic<bool> is_ending_ = false;
  bool is_reading_ = false;  // under the mutex
  std::vector<std::thread> threads_;
};

DataLoader::DataLoader(DatasetPtr dataset, DataLoaderOptions options)
    : workers_(std::make_unique<Workers>(std::move(dataset), std::move(options))) {}

DataLoader::DataLoader(StreamPtr stream, DataLoaderOptions options)
    : workers_(std::make_unique<Workers>(std::move(stream), std::move(options))) {}

DataLoader::~DataLoader() = default;

Batch DataLoader::next() {
  return workers_->next();
}

double DataLoader::waited() const {
  return workers_->waited();
}

std::int64_t DataLoader::batches_per_epoch() const {
  return workers_->batches_per_epoch();
}

std::int64_t DataLoader::epoch() const {
  return workers_->epoch();
}

State DataLoader::state_dict() const {
  return workers_->state_dict();
}

void DataLoader::load_state_dict(const State& state) {
  workers_->load_state_dict(state);
}

}  // namespace vernier
