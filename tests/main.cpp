// The main of every test program. The cases of a file share a process: none leaves anything behind for the next.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <vernier/matmul.h>
#include <vernier/memory.h>
#include <vernier/plugin.h>

#include <cstdio>
#include <cstdlib>

#include "base/process_end.h"

namespace {

class FreshState final : public doctest::IReporter {
 public:
  explicit FreshState(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData&) override {
    vernier::set_log_sink(nullptr);
    vernier::limit_memory(torch::kCPU, 0);
    at::set_num_threads(threads_);
    // torch::manual_seed would ask for CUDA, and LibTorch remembers the answer: a case may open it.
    auto generator = at::globalContext().defaultGenerator(torch::kCPU);
    generator.set_current_seed(0);
  }
  void report_query(const doctest::QueryData&) override {}
  // Products take the path of the program, or a run here would have other bits than one that the program starts. On one
  // thread, because a case may fork, and threads of OpenMP do not survive that.
  void test_run_start() override {
    vernier::leave_libraries_at_exit();
    at::set_num_threads(1);
    vernier::use_matmul();
    at::set_num_threads(threads_);
  }
  // A test of ctest is a filter of names: one that fits none would pass for ever.
  void test_run_end(const doctest::TestRunStats& run) override {
    if (run.numTestCasesPassingFilters > 0) return;
    std::fputs("no case passes the filters\n", stderr);
    std::_Exit(1);
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  int threads_ = at::get_num_threads();
};

REGISTER_LISTENER("fresh", 1, FreshState);

}  // namespace
