// The cost of an event with no listener, one, eight. Bar: 5 ns, and 80 ns for eight; no allocation.
#include <benchmark/benchmark.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <cstdlib>
#include <new>

namespace {

std::int64_t allocations = 0;

class Listener final : public vernier::Callback {
 public:
  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::StepEnd, [this](vernier::Run& run) { seen_ += run.step; });
  }

 private:
  std::int64_t seen_ = 0;
};

void emit(benchmark::State& state) {
  std::vector<Listener> listeners(static_cast<std::size_t>(state.range(0)));
  vernier::Bus bus;
  for (auto& listener : listeners) vernier::HostApi::attach(bus, listener, /*monitor=*/false);
  vernier::TrainerRun run;
  const auto before = allocations;
  for (auto _ : state) {
    vernier::HostApi::emit(bus, vernier::Event::StepEnd, run);
    benchmark::ClobberMemory();
  }
  state.counters["allocations"] = static_cast<double>(allocations - before);
}
BENCHMARK(emit)->ArgName("listeners")->Arg(0)->Arg(1)->Arg(8);

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

BENCHMARK_MAIN();
