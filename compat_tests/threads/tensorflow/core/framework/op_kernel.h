// What wait_queue.h needs of TensorFlow's header of this name, compiled with the sanitizer.

#ifndef COMPAT_TESTS_THREADS_OP_KERNEL_H_
#define COMPAT_TESTS_THREADS_OP_KERNEL_H_

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"

namespace tensorflow {

using CancellationToken = int64_t;

class CancellationManager {
 public:
  CancellationToken get_cancellation_token() {
    std::lock_guard<std::mutex> lock(mutex_);
    return next_++;
  }
  bool RegisterCallback(CancellationToken token, std::function<void()> callback) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_) return false;
    callbacks_[token] = std::move(callback);
    return true;
  }
  bool TryDeregisterCallback(CancellationToken token) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_) return false;
    callbacks_.erase(token);
    return true;
  }
  void StartCancel() {
    std::map<CancellationToken, std::function<void()>> callbacks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      callbacks.swap(callbacks_);
    }
    for (auto& [token, callback] : callbacks) callback();
  }

 private:
  std::mutex mutex_;
  bool cancelled_ = false;
  CancellationToken next_ = 0;
  std::map<CancellationToken, std::function<void()>> callbacks_;
};

class OpKernelContext {
 public:
  explicit OpKernelContext(CancellationManager* cancellation) : cancellation_(cancellation) {}
  CancellationManager* cancellation_manager() const { return cancellation_; }
  void SetStatus(const absl::Status& status) { status_ = status; }
  const absl::Status& status() const { return status_; }

 private:
  CancellationManager* cancellation_;
  absl::Status status_;
};

class AsyncOpKernel {
 public:
  using DoneCallback = std::function<void()>;
};

}  // namespace tensorflow

#endif  // COMPAT_TESTS_THREADS_OP_KERNEL_H_
