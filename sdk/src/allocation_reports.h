// LibTorch's allocators tell somebody on this thread what they give and take back, while it lives.
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
  explicit AllocationReports(std::shared_ptr<c10::MemoryReportingInfoBase> told)
      : told_(c10::DebugInfoKind::PROFILER_STATE, std::move(told)) {
    FLAGS_caffe2_log_level = std::max(log_level_, static_cast<int>(c10::GLOG_ERROR));
  }
  ~AllocationReports() { FLAGS_caffe2_log_level = log_level_; }
  AllocationReports(const AllocationReports&) = delete;
  AllocationReports& operator=(const AllocationReports&) = delete;

  // Who is told now: a ledger, a profiler, or nullptr. The one who is told last is told alone.
  static c10::MemoryReportingInfoBase* told() {
    return static_cast<c10::MemoryReportingInfoBase*>(
        c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  }

 private:
  c10::DebugInfoGuard told_;
  // The allocator warns of blocks that are freed and are older than the reports: they are none of our business.
  int log_level_ = FLAGS_caffe2_log_level;
};

}  // namespace vernier
