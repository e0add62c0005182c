// Divides tasks among threads. Plain C++17, no TensorFlow.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace estimator_bridge {

// The indices of tasks, which several threads take in turn until all are taken.
class WorkQueue {
 public:
  explicit WorkQueue(int64_t count) : count_(count), left_(count) {}

  // Runs `task(i)` for every index that this thread takes.
  template <class Task>
  void Run(const Task& task) {
    int64_t count = 0;
    for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      task(i);
      ++count;
    }
    if (count == 0 || left_.fetch_sub(count) != count) return;
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    condition_.notify_all();
  }

  // Waits until all tasks have run. Spins for a moment, because the system takes longer to wake a
  // thread than most tasks take.
  void Wait() {
    for (int i = 0; i < kAwake; ++i) {
      if (left_.load(std::memory_order_acquire) == 0) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    condition_.wait(lock, [this] { return finished_; });
  }

 private:
  static constexpr int kAwake = 2000;

  static void Pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  const int64_t count_;
  std::atomic<int64_t> next_{0}, left_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool finished_ = false;
};

}  // namespace estimator_bridge
