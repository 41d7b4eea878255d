// A store whose calls have a timeout: c10d's own client waits for ever for a server that hangs.
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddp {

// Returns what the call returns, or throws vernier::Error if it takes half a second longer than `most`: a call may have
// this timeout itself, and then says more. It runs in a thread of its own, which is left behind if it does not end, so
// it must own all that it uses.
template <class Call>
auto within(std::chrono::milliseconds most, Call call) {
  constexpr std::chrono::milliseconds longer{500};
  std::packaged_task<std::invoke_result_t<Call>()> task(std::move(call));
  auto done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(most + longer) != std::future_status::ready) {
    thread.detach();
    throw vernier::Error(c10::str("no answer within ", most.count() / 1000, " s"));
  }
  thread.join();
  return done.get();
}

// Thrown if the store does not answer in time.
struct StoreTimeout final : vernier::Error {
  using Error::Error;
};

// After a call that did not end in time, all others throw at once.
class TimeoutStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  TimeoutStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const Bytes& value) override;
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override;
  bool hasExtendedApi() const override;

 private:
  template <class Result, class... Parameters, class... Arguments>
  Result ask(std::chrono::milliseconds timeout, Result (c10d::Store::*function)(Parameters...),
             const Arguments&... arguments);

  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<bool> has_timed_out_ = false;
};

}  // namespace ddp
