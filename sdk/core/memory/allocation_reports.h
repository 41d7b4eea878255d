// While it lives, LibTorch's allocators report allocations on this thread to an observer.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace vernier {

class AllocationReports {
 public:
  explicit AllocationReports(std::shared_ptr<c10::MemoryReportingInfoBase> receiver)
      : receiver_(c10::DebugInfoKind::PROFILER_STATE, std::move(receiver)) {
    FLAGS_caffe2_log_level = std::max(log_level_, static_cast<int>(c10::GLOG_ERROR));
  }
  ~AllocationReports() { FLAGS_caffe2_log_level = log_level_; }
  AllocationReports(const AllocationReports&) = delete;
  AllocationReports& operator=(const AllocationReports&) = delete;

  // Returns the current observer: a ledger, a profiler, or nullptr. Only the newest observer gets reports.
  static c10::MemoryReportingInfoBase* receiver() {
    return static_cast<c10::MemoryReportingInfoBase*>(
        c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  }

 private:
  c10::DebugInfoGuard receiver_;
  // The allocator warns when blocks are freed that are older than the reports; here that is normal.
  int log_level_ = FLAGS_caffe2_log_level;
};

}  // namespace vernier
