#include "shared_sums.h"

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

namespace ddp {

using vernier::Error;
using Count = std::atomic<std::uint32_t>;

namespace {

// A tensor is summed in chunks that fit in the processor's caches. A chunk has too few elements for LibTorch to share
// them out to threads. An element has at most 8 bytes.
constexpr std::int64_t chunk_elements = 24 << 10, chunk_bytes = 8 * chunk_elements;
constexpr std::uint32_t chunks_under_way = 4;

void wake_all(Count& count) {
  ::syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void advance(Count& count, std::uint32_t to) {
  count.store(to, std::memory_order_release);
  wake_all(count);
}

}  // namespace

// It is the begin of the memory, and the slots with the chunks follow it. A rank waits for a count by futex(2).
struct SharedSums::Board {
  static constexpr std::size_t most_ranks = 256;
  struct Progress {
    alignas(64) Count in;   // chunks that the rank has put in
    alignas(64) Count out;  // chunks that it no longer needs
  };
  Progress of[most_ranks];
};

SharedSums::SharedSums(const vernier::LaunchPlace& place, const std::string& name, std::chrono::milliseconds timeout)
    : rank_(place.rank),
      ranks_(place.ranks),
      timeout_(timeout),
      memory_(rank_ == 0
                  ? SharedMemory(sizeof(Board) + static_cast<std::size_t>(ranks_ * chunks_under_way * chunk_bytes))
                  : SharedMemory(name, /*keeps_writes=*/false)),
      board_(reinterpret_cast<Board*>(memory_.data())) {
  if (ranks_ > static_cast<std::int64_t>(Board::most_ranks)) throw Error("too many ranks for one machine");
  thread_ = std::thread([this] { work(); });
}

SharedSums::~SharedSums() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  came_.notify_all();
  thread_.join();
}

std::future<void> SharedSums::sum(std::vector<torch::Tensor> tensors, bool is_read) {
  return later([this, is_read, tensors = std::move(tensors)] {
    for (const auto& tensor : tensors) sum(tensor, is_read);
  });
}

std::future<void> SharedSums::copy(torch::Tensor tensor, std::int64_t from) {
  return later([this, from, tensor = std::move(tensor)] { copy_from(from, tensor); });
}

// After a call that failed, other ranks would mistake the bytes of the next call for those of that one.
std::future<void> SharedSums::later(std::function<void()> body) {
  std::packaged_task<void()> task([this, body = std::move(body)] {
    if (std::exchange(has_failed_, true)) throw Error("an earlier sum or copy failed");
    body();
    has_failed_ = false;
  });
  auto done = task.get_future();
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(task));
  came_.notify_all();
  return done;
}

void SharedSums::work() {
  const torch::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    auto task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

// A chunk is put in before the sum of the one before it, so that ranks seldom wait for each other.
void SharedSums::sum(const torch::Tensor& tensor, bool is_read) {
  auto* bytes = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const auto size = static_cast<std::int64_t>(tensor.nbytes());
  const auto each = chunk_elements * tensor.element_size();
  const auto count = (size + each - 1) / each;
  const auto bytes_of = [&](std::int64_t i) { return std::min(each, size - i * each); };
  const auto put_in = [&](std::int64_t i) {
    const auto chunk = chunks_ + static_cast<std::uint32_t>(i);
    for (std::int64_t r = 0; r < ranks_; ++r) wait(board_->of[r].out, chunk + 1 - chunks_under_way);
    std::memcpy(slot(rank_, chunk), bytes + i * each, static_cast<std::size_t>(bytes_of(i)));
    advance(board_->of[rank_].in, chunk + 1);
  };
  if (count > 0) put_in(0);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + 1 < count) put_in(i + 1);
    const auto chunk = chunks_ + static_cast<std::uint32_t>(i);
    const auto elements = bytes_of(i) / tensor.element_size();
    const auto at = [&](std::byte* from) { return at::from_blob(from, {elements}, tensor.scalar_type()); };
    auto to = at(bytes + i * each);
    for (std::int64_t r = 0; is_read && r < ranks_; ++r) {
      wait(board_->of[r].in, chunk + 1);
      if (r == 1) at::add_out(to, at(slot(0, chunk)), at(slot(1, chunk)));
      if (r > 1) at::add_out(to, to, at(slot(r, chunk)));
    }
    advance(board_->of[rank_].out, chunk + 1);
  }
  chunks_ += static_cast<std::uint32_t>(count);
}

// The others count the chunks too, without bytes of their own.
void SharedSums::copy_from(std::int64_t from, const torch::Tensor& tensor) {
  auto* bytes = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const auto size = static_cast<std::int64_t>(tensor.nbytes());
  for (std::int64_t begin = 0; begin < size; begin += chunk_bytes, ++chunks_) {
    const auto length = static_cast<std::size_t>(std::min(chunk_bytes, size - begin));
    if (rank_ == from) {
      for (std::int64_t r = 0; r < ranks_; ++r) wait(board_->of[r].out, chunks_ + 1 - chunks_under_way);
      std::memcpy(slot(from, chunks_), bytes + begin, length);
    }
    advance(board_->of[rank_].in, chunks_ + 1);
    if (rank_ != from) {
      wait(board_->of[from].in, chunks_ + 1);
      std::memcpy(bytes + begin, slot(from, chunks_), length);
    }
    advance(board_->of[rank_].out, chunks_ + 1);
  }
}

void SharedSums::wait(Count& count, std::uint32_t least) const {
  constexpr int looks = 300;
  constexpr timespec nap{0, 50'000'000};
  const auto end = std::chrono::steady_clock::now() + timeout_;
  for (int i = 0;; ++i) {
    const auto now = count.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(now - least) >= 0) return;
    if (i < looks) {
      __builtin_ia32_pause();
      continue;
    }
    if (is_ending_) throw Error("the group ends");
    if (std::chrono::steady_clock::now() > end) {
      throw Error("no answer within " + std::to_string(timeout_.count() / 1000) + " s");
    }
    ::syscall(SYS_futex, &count, FUTEX_WAIT, now, &nap, nullptr, 0);
  }
}

std::byte* SharedSums::slot(std::int64_t rank, std::uint32_t chunk) const {
  const auto number = rank * chunks_under_way + chunk % chunks_under_way;
  return reinterpret_cast<std::byte*>(board_ + 1) + number * chunk_bytes;
}

}  // namespace ddp
