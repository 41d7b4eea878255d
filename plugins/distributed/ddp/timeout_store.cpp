#include "timeout_store.h"

#include <tuple>

namespace ddp {

using std::chrono::milliseconds;

TimeoutStore::TimeoutStore(c10::intrusive_ptr<c10d::Store> store, milliseconds timeout)
    : Store(timeout), store_(std::move(store)) {}

template <class Result, class... Parameters, class... Arguments>
Result TimeoutStore::ask(milliseconds timeout, Result (c10d::Store::*function)(Parameters...),
                         const Arguments&... arguments) {
  if (has_timed_out_) throw StoreTimeout("the store does not answer any more");
  try {
    return within(timeout, [store = store_, function, own = std::tuple(arguments...)] {
      return std::apply([&](const auto&... each) { return ((*store).*function)(each...); }, own);
    });
  } catch (const vernier::Error&) {
    has_timed_out_ = true;
    throw StoreTimeout(c10::str("the store does not answer within ", timeout.count() / 1000, " s"));
  }
}

c10::intrusive_ptr<c10d::Store> TimeoutStore::clone() {
  return c10::make_intrusive<TimeoutStore>(within(timeout_, [store = store_] { return store->clone(); }), timeout_);
}

void TimeoutStore::setTimeout(const milliseconds& timeout) {
  timeout_ = timeout;
  store_->setTimeout(timeout);
}

void TimeoutStore::set(const std::string& key, const Bytes& value) {
  ask<void, const std::string&, const Bytes&>(timeout_, &Store::set, key, value);
}

TimeoutStore::Bytes TimeoutStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return ask<Bytes, const std::string&, const Bytes&, const Bytes&>(timeout_, &Store::compareSet, key, expected,
                                                                    desired);
}

TimeoutStore::Bytes TimeoutStore::get(const std::string& key) {
  return ask(timeout_, &Store::get, key);
}

std::int64_t TimeoutStore::add(const std::string& key, std::int64_t value) {
  return ask(timeout_, &Store::add, key, value);
}

bool TimeoutStore::deleteKey(const std::string& key) {
  return ask(timeout_, &Store::deleteKey, key);
}

bool TimeoutStore::check(const std::vector<std::string>& keys) {
  return ask(timeout_, &Store::check, keys);
}

std::int64_t TimeoutStore::getNumKeys() {
  return ask(timeout_, &Store::getNumKeys);
}

void TimeoutStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void TimeoutStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask<void, const std::vector<std::string>&, const milliseconds&>(timeout, &Store::wait, keys, timeout);
}

void TimeoutStore::append(const std::string& key, const Bytes& value) {
  ask(timeout_, &Store::append, key, value);
}

std::vector<TimeoutStore::Bytes> TimeoutStore::multiGet(const std::vector<std::string>& keys) {
  return ask(timeout_, &Store::multiGet, keys);
}

void TimeoutStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  ask(timeout_, &Store::multiSet, keys, values);
}

bool TimeoutStore::hasExtendedApi() const {
  return store_->hasExtendedApi();
}

}  // namespace ddp
