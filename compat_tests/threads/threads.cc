// The threaded parts of the native code on their own, for ThreadSanitizer: `make sanitize-threads`.
//
// TensorFlow is not built with it, and hands kernels to its threads in ways that the sanitizer does
// not see: in a whole process it takes every kernel's members for a race. So here the parts that
// threads share are driven without it: the sorting, summing and updating of the fused update, over
// rows that threads divide among them, and the software TPU's queues, barrier and waiting ops, with
// cancellation and shutdown in mid-step.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/rows.h"
#include "rules/optimizer.h"
#include "host/sums.h"
#include "software_tpu/batch_queue.h"
#include "software_tpu/wait_queue.h"
#include "host/work_queue.h"

namespace {

constexpr int kThreads = 4;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "threads: %s\n", what);
  std::exit(1);
}

void OnThreads(int count, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) threads.emplace_back(run, number);
  for (std::thread& thread : threads) thread.join();
}

// Hands tasks out as the fused ops do; threads that come late find nothing to do.
void InParallel(int num_threads, int64_t count, const std::function<void(int64_t)>& task) {
  const auto work_queue = std::make_shared<estimator_bridge::WorkQueue>(count);
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) {
    threads.emplace_back([work_queue, &task] { work_queue->Run(task); });
  }
  work_queue->Run(task);
  work_queue->Wait();
  for (std::thread& thread : threads) thread.join();
}

// --- The fused update: tables are sorted by a thread each, then each row is one thread's.

struct Terms {
  static constexpr bool kGains = true;
  const estimator_bridge::Grouping* order;
  const float* gradients;
  int64_t dim;
  const float* Row(int64_t k) const { return gradients + order->with(k) * dim; }
  void Ask(int64_t) const {}
  float Gain(int64_t k) const { return 1.0f + static_cast<float>(order->with(k) % 3); }
};

std::vector<std::vector<float>> Update(int num_threads) {
  constexpr int kTables = 3, kSteps = 20;
  constexpr int64_t kRows = 97, kDim = 5, kCount = 400;
  estimator_bridge::Optimizer optimizer;
  optimizer.rule = estimator_bridge::Adagrad();
  std::vector<std::vector<float>> rows(kTables, std::vector<float>(kRows * kDim, 1.0f));
  std::vector<std::vector<float>> slots(kTables, std::vector<float>(kRows * kDim, 0.1f));
  std::vector<estimator_bridge::Grouping> orders(kTables);
  std::mt19937 chance(0);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<int64_t>> ids(kTables, std::vector<int64_t>(kCount));
    std::vector<std::vector<float>> gradients(kTables, std::vector<float>(kCount * kDim));
    for (auto& table : ids) for (auto& id : table) id = chance() % kRows;
    for (auto& table : gradients) for (auto& one : table) one = (chance() % 100) / 50.0f - 1.0f;
    InParallel(num_threads, kTables, [&](int64_t table) {
      orders[table].Reset(kRows, kCount, kCount);
      for (int64_t i = 0; i < kCount; ++i) orders[table].Set(i, ids[table][i], i);
      orders[table].Sort();
    });
    struct Task {
      int table;
      int64_t begin, end;
    };
    std::vector<Task> tasks;
    for (int table = 0; table < kTables; ++table) {
      const auto& order = orders[table];
      for (int64_t begin = 0; begin < kCount;) {
        int64_t end = std::min<int64_t>(begin + 37, kCount);
        while (end < kCount && order.id(end) == order.id(end - 1)) ++end;
        tasks.push_back({table, begin, end});
        begin = end;
      }
    }
    InParallel(num_threads, static_cast<int64_t>(tasks.size()), [&](int64_t number) {
      std::vector<float> sum(kDim);
      const Task& task = tasks[number];
      const auto& order = orders[task.table];
      const Terms terms{&order, gradients[task.table].data(), kDim};
      for (int64_t begin = task.begin; begin < task.end;) {
        int64_t end = begin + 1;
        while (end < task.end && order.id(end) == order.id(begin)) ++end;
        estimator_bridge::SumRows(terms, begin, end, kDim, true, sum.data());
        const int64_t at = order.id(begin) * kDim;
        const estimator_bridge::RowAt row{
            rows[task.table].data() + at, {slots[task.table].data() + at}, sum.data()};
        estimator_bridge::OneRow one(row, kDim);
        estimator_bridge::UpdateRows(optimizer, 0.1f, &one);
        begin = end;
      }
    });
  }
  rows.insert(rows.end(), slots.begin(), slots.end());
  return rows;
}

// --- The software TPU: a thread for each core, and others that ask, cancel and shut down.

using software_tpu::BatchQueue;
using software_tpu::WaitQueue;

struct Tpu {
  WaitQueue wait_queue;
  std::unique_ptr<BatchQueue> batch_queue;  // guarded by the lock of `wait_queue`
};

software_tpu::TpuConfig Config(int num_cores, bool pipelined) {
  software_tpu::TpuConfig config;
  config.mode = software_tpu::Mode::kTraining;
  config.num_cores = num_cores;
  config.num_hosts = 1;
  config.pipelined = pipelined;
  config.tables.emplace_back();
  config.tables[0].rows = 11;
  config.tables[0].dim = 4;
  config.tables[0].optimizer.rule = estimator_bridge::Sgd();
  config.tables[0].optimizer.constant_rate = 1.0f;
  config.features.emplace_back();
  config.features[0].table = 0;
  config.features[0].shape = {2};
  config.features[0].cells = 2;
  return config;
}

void Configure(Tpu* tpu, int num_cores, bool pipelined) {
  (void)tpu->wait_queue.FailAll(absl::StatusCode::kAborted, "it was configured again", [&] {
    return BatchQueue::Make(Config(num_cores, pipelined), &tpu->batch_queue);
  });
}

// Parks an op, and returns its status when it is done, by whichever thread.
absl::Status Run(Tpu* tpu, tensorflow::CancellationManager* cancellation,
                 const WaitQueue::Attempt& attempt) {
  tensorflow::OpKernelContext context(cancellation);
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  tpu->wait_queue.Wait(
      &context,
      [&] {
        std::lock_guard<std::mutex> lock(mutex);
        done = true;
        changed.notify_one();
      },
      "a test", attempt);
  std::unique_lock<std::mutex> lock(mutex);
  while (!done) changed.wait(lock);
  return context.status();
}

// One step of one core; the sum of what it looked up goes to `seen`.
absl::Status Step(Tpu* tpu, int core, tensorflow::CancellationManager* cancellation, float* seen) {
  absl::Status status = tpu->wait_queue.Change([&] {
    std::vector<software_tpu::Lookups> lookups{{{0, core, 1.0f}, {1, 10, 1.0f}}};
    return tpu->batch_queue->Enqueue(core, "", true, std::move(lookups));
  });
  if (!status.ok()) return status;
  std::vector<float> values(8);
  status = Run(tpu, cancellation, [&] {
    return tpu->batch_queue->LookUp(core, "", [&](int, float** to) {
      *to = values.data();
      return absl::OkStatus();
    });
  });
  if (!status.ok()) return status;
  *seen = values[4];
  return Run(tpu, cancellation, [&] {
    software_tpu::Gradients sent;
    sent.gradients.emplace_back(tensorflow::DT_FLOAT, tensorflow::TensorShape({2, 4}));
    sent.gradients[0].flat<float>().setConstant(1.0f);
    return tpu->batch_queue->Send(core, "", std::move(sent));
  });
}

void Train(bool pipelined) {
  constexpr int kSteps = 200;
  Tpu tpu;
  Configure(&tpu, kThreads, pipelined);
  std::atomic<int> running{kThreads};
  OnThreads(kThreads + 1, [&](int core) {
    if (core == kThreads) {  // asks
      while (running > 0) {
        Check(tpu.wait_queue.num_waiting() <= kThreads, "more ops wait than there are");
        std::this_thread::yield();
      }
      return;
    }
    tensorflow::CancellationManager cancellation;
    for (int step = 0; step < kSteps; ++step) {
      float seen;
      Check(Step(&tpu, core, &cancellation, &seen).ok(), "a step failed");
      // Each step takes one per core from row 10; pipelined, a lookup is one step behind.
      const int behind = pipelined ? std::max(step - 1, 0) : step;
      Check(seen == -static_cast<float>(behind * kThreads), "a lookup saw another row");
    }
    --running;
  });
}

void ShutDownInMidStep() {
  Tpu tpu;
  Configure(&tpu, kThreads, false);
  std::atomic<bool> over{false};
  std::atomic<int> running{kThreads};
  OnThreads(kThreads + 2, [&](int number) {
    if (number == kThreads) {  // shuts down
      for (int i = 0; i < 200; ++i) {
        Configure(&tpu, kThreads, i % 2 == 0);
        std::this_thread::yield();
      }
      over = true;
    } else if (number > kThreads) {  // ends what still waits
      while (running > 0) {
        if (over) Configure(&tpu, kThreads, false);
        std::this_thread::yield();
      }
    } else {
      for (int i = 0; !over; ++i) {
        tensorflow::CancellationManager cancellation;
        std::thread cancels;
        if (i % 3 == 0) cancels = std::thread([&] { cancellation.StartCancel(); });
        float seen;
        (void)Step(&tpu, number, &cancellation, &seen);
        if (cancels.joinable()) cancels.join();
      }
      --running;
    }
  });
  Check(tpu.wait_queue.num_waiting() == 0, "an op was forgotten");
}

}  // namespace

int main() {
  Check(Update(1) == Update(kThreads), "the update depends on the number of threads");
  Train(false);
  Train(true);
  ShutDownInMidStep();
  std::puts("threads: nothing found");
}
