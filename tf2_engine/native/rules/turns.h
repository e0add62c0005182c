// How threads divide tasks among them: plain C++17, no TensorFlow.

#ifndef TF2_ENGINE_NATIVE_TURNS_H_
#define TF2_ENGINE_NATIVE_TURNS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace estimator_bridge {

// Numbers that several threads take in turn until none is left.
class Turns {
 public:
  explicit Turns(int64_t count) : count_(count), left_(count) {}

  // Runs `task(i)` for every number that this thread gets.
  template <class Task>
  void Take(const Task& task) {
    int64_t done = 0;
    for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      task(i);
      ++done;
    }
    if (done == 0 || left_.fetch_sub(done) != done) return;
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    condition_.notify_all();
  }

  // Waits until all tasks have run.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    condition_.wait(lock, [this] { return finished_; });
  }

 private:
  const int64_t count_;
  std::atomic<int64_t> next_{0}, left_;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool finished_ = false;
};

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_TURNS_H_
