// Lets ops wait without a thread: a waiting op is a function that is tried again whenever something
// has changed.

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace software_tpu {

// A lock, and the ops that wait for what it guards.
class WaitQueue {
 public:
  // Tries to finish an op while the lock is held. Returns the op's status, or nothing if it must
  // wait.
  using Attempt = std::function<std::optional<absl::Status>()>;

  // Runs the op as soon as it can.
  //
  // `what` describes in messages what the op waits for. If the op is cancelled, `abandon` undoes
  // what the op left behind; it is called with the lock held.
  void Wait(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
            std::string what, Attempt attempt, std::function<void()> abandon = nullptr) {
    auto waiter = std::make_shared<Waiter>();
    waiter->context = context;
    waiter->done = std::move(done);
    waiter->what = std::move(what);
    waiter->attempt = std::move(attempt);
    waiter->abandon = std::move(abandon);
    waiter->cancellation = context->cancellation_manager();
    if (waiter->cancellation != nullptr) {
      waiter->token = waiter->cancellation->get_cancellation_token();
      if (!waiter->cancellation->RegisterCallback(waiter->token,
                                                  [this, waiter] { Cancel(waiter); })) {
        waiter->context->SetStatus(CancelledStatus(*waiter));
        waiter->done();
        return;
      }
    }
    Finished finished;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // The op may have been cancelled before the callback was registered. Then the context does
      // not exist any more.
      if (!waiter->over) {
        waiters_.push_back(waiter);
        finished = Retry();
      }
    }
    Finish(finished);
  }

  int64_t num_waiting() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(waiters_.size());
  }

  // Changes something while the lock is held, and resumes the ops that waited for it.
  absl::Status Change(const std::function<absl::Status()>& change) {
    absl::Status status;
    Finished finished;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      status = change();
      finished = Retry();
    }
    Finish(finished);
    return status;
  }

  // Ends every waiting op with an error, and changes something before any other op runs.
  absl::Status FailAll(absl::StatusCode code, const std::string& why,
                       const std::function<absl::Status()>& change) {
    absl::Status status;
    Finished finished;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& waiter : waiters_) {
        waiter->context->SetStatus(absl::Status(
            code, absl::StrCat("Software TPU: ", why, " while an op waited for ", waiter->what)));
        waiter->over = true;
        finished.push_back(waiter);
      }
      waiters_.clear();
      status = change();
    }
    Finish(finished);
    return status;
  }

 private:
  struct Waiter {
    tensorflow::OpKernelContext* context;
    tensorflow::AsyncOpKernel::DoneCallback done;
    std::string what;
    Attempt attempt;
    std::function<void()> abandon;
    tensorflow::CancellationManager* cancellation = nullptr;
    tensorflow::CancellationToken token;
    bool over = false;  // guarded by the lock; the code that sets it to true calls `done`
  };
  using Finished = std::vector<std::shared_ptr<Waiter>>;

  static absl::Status CancelledStatus(const Waiter& waiter) {
    return absl::CancelledError(
        absl::StrCat("Software TPU: cancelled while an op waited for ", waiter.what));
  }

  // Tries every waiting op, again and again until none makes progress.
  Finished Retry() {
    Finished finished;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto it = waiters_.begin(); it != waiters_.end();) {
        std::optional<absl::Status> status = (*it)->attempt();
        if (!status.has_value()) {
          ++it;
          continue;
        }
        if (!status->ok()) (*it)->context->SetStatus(*status);
        (*it)->over = true;
        finished.push_back(*it);
        it = waiters_.erase(it);
        moved = true;
      }
    }
    return finished;
  }

  // Called without the lock, because ops that follow may run within this call.
  static void Finish(const Finished& finished) {
    for (const auto& waiter : finished) {
      // DeregisterCallback would wait for running callbacks; our callback checks whether the op is
      // over.
      if (waiter->cancellation != nullptr) {
        waiter->cancellation->TryDeregisterCallback(waiter->token);
      }
      waiter->done();
    }
  }

  void Cancel(const std::shared_ptr<Waiter>& waiter) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (waiter->over) return;
      waiter->over = true;
      waiters_.remove(waiter);
      if (waiter->abandon) waiter->abandon();
    }
    waiter->context->SetStatus(CancelledStatus(*waiter));
    waiter->done();
  }

  std::mutex mutex_;
  std::list<std::shared_ptr<Waiter>> waiters_;
};

}  // namespace software_tpu
