// The queue where Slurm decides when jobs begin. All of them are handed over at once. The files of an attempt say what
// becomes of it, as they do without Slurm; whether one that says nothing is still there, squeue says, since a lock may
// be held on another machine.
#include <iostream>

#include "service/queue/queue.h"

namespace serve {

using Lock = std::lock_guard<std::mutex>;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto ask_every = std::chrono::milliseconds(500);
constexpr auto submit_again = std::chrono::seconds(3);
constexpr auto interrupt_again = std::chrono::seconds(10);
constexpr int most_missing = 4;  // in a row: the last file of an attempt may come late from another machine

}  // namespace

void Queue::look_at_slurm() {
  if (Clock::now() - asked_slurm_ < ask_every) return;
  const auto there = slurm_->jobs();  // it may take long, so the lock is free
  asked_slurm_ = Clock::now();
  std::vector<Job> to_submit;
  {
    const Lock lock(mutex_);
    for (auto& job : journal_.queued()) {
      job.slurm.empty() ? to_submit.push_back(job) : look_after_waiting(job, there.contains(job.slurm));
    }
    for (auto& job : journal_.running()) {
      job.slurm.empty() ? look_after(job) : look_after_handed(job, there.contains(job.slurm));
    }
    remove_old();
  }
  cancel_in_slurm();
  for (const auto& job : to_submit) {
    if (Clock::now() < submit_after_ || !hand_over(job)) return;
  }
}

void Queue::look_after_waiting(Job& job, bool is_there) {
  const Attempt attempt(folder_of(job.id), job.attempt);
  if (attempt.claim() == Attempt::Claim::process) {
    job.state = State::running;
    job.started = vernier::time_text();
    return write(job);
  }
  // Somebody has removed it there, or it died before it began.
  if (!is_there && attempt.claim_for_server()) lose(job, /*is_loss=*/true);
}

void Queue::look_after_handed(Job& job, bool is_there) {
  const Attempt attempt(folder_of(job.id), job.attempt);
  if (const auto end = attempt.how_it_ended()) {
    missing_.erase(job.id);
    return finish(job, *end);
  }
  if (job.is_cancelled && Clock::now() - interrupted_[job.id] > interrupt_again) {
    interrupted_[job.id] = Clock::now();
    slurm_calls_.emplace_back(&Slurm::interrupt, job.slurm);
  }
  if (is_there) {
    missing_.erase(job.id);
  } else if (++missing_[job.id] >= most_missing) {
    missing_.erase(job.id);
    lose(job, /*is_loss=*/true);
  }
}

// Cancels in Slurm the jobs that were cancelled here since the last time. A job that has ended meanwhile is not an
// error.
void Queue::cancel_in_slurm() {
  decltype(slurm_calls_) calls;
  {
    const Lock lock(mutex_);
    calls.swap(slurm_calls_);
  }
  for (const auto& [call, number] : calls) {
    try {
      (*slurm_.*call)(number);
    } catch (const std::exception& error) {
      std::cerr << "vernier: " << error.what() << std::endl;
    }
  }
}

// False where Slurm does not take it; the job says why, and waits.
bool Queue::hand_over(const Job& job) {
  const auto is_gone = [&](const auto& now) { return !now || now->state != job.state || now->attempt != job.attempt; };
  std::string number, error;
  try {
    const auto whole = [&] {
      const Lock lock(mutex_);
      return journal_.find(job.id);
    }();
    if (is_gone(whole)) return true;
    write_files(*whole, {});
    number = slurm_->submit(job, folder_of(job.id), settings_.attempt_program, settings_.limits.grace);
  } catch (const std::exception& trouble) {
    error = trouble.what();
    submit_after_ = Clock::now() + submit_again;
    std::cerr << "vernier: job " << job.id << ": " << error << std::endl;
  }
  const Lock lock(mutex_);
  auto now = journal_.find(job.id);
  if (is_gone(now)) {  // cancelled meanwhile, and perhaps removed before some of its files were written
    if (!number.empty()) slurm_calls_.emplace_back(&Slurm::remove, number);
    if (!now) erase(job);
    return true;
  }
  if (now->slurm != number || now->error != error) {
    now->slurm = number;
    now->error = error;
    write(*now);
  }
  return error.empty();
}

// One that waits there never begins; one that has begun is asked to end.
bool Queue::cancel_at_slurm(Job& job) {
  const Attempt attempt(folder_of(job.id), job.attempt);
  make_folder(attempt.files());
  if (!attempt.claim_for_server()) return false;
  if (!job.slurm.empty()) slurm_calls_.emplace_back(&Slurm::remove, job.slurm);
  return true;
}

}  // namespace serve
