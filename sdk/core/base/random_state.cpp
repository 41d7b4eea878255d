#include <vernier/random_state.h>

#include <ATen/Context.h>

namespace vernier {

namespace {

at::CPUGeneratorImpl& cpu_generator() {
  static const auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  return *at::check_generator<at::CPUGeneratorImpl>(generator);
}

}  // namespace

void RandomState::take(c10::Device device) {
  auto& cpu = cpu_generator();
  cpu_engine_ = cpu.engine();
  cpu_float_ = cpu.next_float_normal_sample();
  cpu_double_ = cpu.next_double_normal_sample();
  if (!device.is_cpu()) device_state_ = at::globalContext().defaultGenerator(device).get_state();
}

at::Generator own_generator(std::uint64_t seed, c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

void RandomState::restore(c10::Device device) const {
  auto& cpu = cpu_generator();
  cpu.set_engine(cpu_engine_);
  cpu.set_next_float_normal_sample(cpu_float_);
  cpu.set_next_double_normal_sample(cpu_double_);
  if (device_state_.defined()) at::Generator(at::globalContext().defaultGenerator(device)).set_state(device_state_);
}

}  // namespace vernier
