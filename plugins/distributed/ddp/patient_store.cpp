#include "patient_store.h"

#include <tuple>

namespace ddp {

using std::chrono::milliseconds;

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store, milliseconds timeout)
    : Store(timeout), store_(std::move(store)) {}

template <class Result, class... Parameters, class... Arguments>
Result PatientStore::ask(milliseconds timeout, Result (c10d::Store::*function)(Parameters...),
                         const Arguments&... arguments) {
  if (is_silent_) throw StoreIsSilent("the store does not answer any more");
  try {
    return within(timeout, [store = store_, function, own = std::tuple(arguments...)] {
      return std::apply([&](const auto&... each) { return ((*store).*function)(each...); }, own);
    });
  } catch (const vernier::Error&) {
    is_silent_ = true;
    throw StoreIsSilent(c10::str("the store does not answer within ", timeout.count() / 1000, " s"));
  }
}

c10::intrusive_ptr<c10d::Store> PatientStore::clone() {
  return c10::make_intrusive<PatientStore>(within(timeout_, [store = store_] { return store->clone(); }), timeout_);
}

void PatientStore::setTimeout(const milliseconds& timeout) {
  timeout_ = timeout;
  store_->setTimeout(timeout);
}

void PatientStore::set(const std::string& key, const Bytes& value) {
  ask<void, const std::string&, const Bytes&>(timeout_, &Store::set, key, value);
}

PatientStore::Bytes PatientStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return ask<Bytes, const std::string&, const Bytes&, const Bytes&>(timeout_, &Store::compareSet, key, expected,
                                                                    desired);
}

PatientStore::Bytes PatientStore::get(const std::string& key) {
  return ask(timeout_, &Store::get, key);
}

std::int64_t PatientStore::add(const std::string& key, std::int64_t value) {
  return ask(timeout_, &Store::add, key, value);
}

bool PatientStore::deleteKey(const std::string& key) {
  return ask(timeout_, &Store::deleteKey, key);
}

bool PatientStore::check(const std::vector<std::string>& keys) {
  return ask(timeout_, &Store::check, keys);
}

std::int64_t PatientStore::getNumKeys() {
  return ask(timeout_, &Store::getNumKeys);
}

void PatientStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void PatientStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask<void, const std::vector<std::string>&, const milliseconds&>(timeout, &Store::wait, keys, timeout);
}

void PatientStore::append(const std::string& key, const Bytes& value) {
  ask(timeout_, &Store::append, key, value);
}

std::vector<PatientStore::Bytes> PatientStore::multiGet(const std::vector<std::string>& keys) {
  return ask(timeout_, &Store::multiGet, keys);
}

void PatientStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  ask(timeout_, &Store::multiSet, keys, values);
}

bool PatientStore::hasExtendedApi() const {
  return store_->hasExtendedApi();
}

}  // namespace ddp
