// The two workloads by hand, without a framework: what the machine gives at best.
//
// Reads on standard input: tables rows dim batches, then per table and batch
//   samples count, row splits (samples + 1), ids (count)
// all as int64 in binary. Then, for every line "train N" or "infer N" (text), runs N steps over the
// batches in turn and prints the time of each in ms on one line. Two threads over tables; rows are
// asked for 16 ids ahead; gradients are summed per row after a radix sort, then one Adagrad step.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 2;
constexpr int64_t kAhead = 16;

struct Batch {
  int64_t samples;
  std::vector<int64_t> splits, ids;
};

struct Table {
  float* rows;
  float* slots;
  std::vector<Batch> batches;
  std::vector<float> out, gradient;
  std::vector<uint64_t> words, other;
};

void Read(void* to, size_t size) {
  if (std::fread(to, 1, size, stdin) != size) std::exit(1);
}

template <int D>
inline void Prefetch(const float* row) {
  for (int i = 0; i < D; i += 16) __builtin_prefetch(row + i, 1, 3);
}

template <int D>
void Forward(Table& table, const Batch& batch) {
  const int64_t count = static_cast<int64_t>(batch.ids.size());
  for (int64_t s = 0; s < batch.samples; ++s) {
    float sum[D] = {};
    for (int64_t k = batch.splits[s]; k < batch.splits[s + 1]; ++k) {
      if (k + kAhead < count) Prefetch<D>(table.rows + batch.ids[k + kAhead] * D);
      const float* row = table.rows + batch.ids[k] * D;
      for (int i = 0; i < D; ++i) sum[i] += row[i];
    }
    std::memcpy(table.out.data() + s * D, sum, sizeof(sum));
  }
}

void Sort(Table& table, int64_t rows) {
  constexpr int kDigit = 11;
  int bits = 1;
  while ((int64_t{1} << bits) < rows) ++bits;
  for (int shift = 32; shift < 32 + bits; shift += kDigit) {
    size_t first[1 << kDigit] = {};
    for (const uint64_t word : table.words) ++first[word >> shift & ((1 << kDigit) - 1)];
    size_t before = 0;
    for (size_t& start : first) {
      const size_t here = start;
      start = before;
      before += here;
    }
    for (const uint64_t word : table.words) {
      table.other[first[word >> shift & ((1 << kDigit) - 1)]++] = word;
    }
    table.words.swap(table.other);
  }
}

template <int D>
void Backward(Table& table, const Batch& batch, int64_t rows) {
  const int64_t count = static_cast<int64_t>(batch.ids.size());
  table.words.resize(count);
  table.other.resize(count);
  for (int64_t s = 0; s < batch.samples; ++s) {
    for (int64_t k = batch.splits[s]; k < batch.splits[s + 1]; ++k) {
      table.words[k] = static_cast<uint64_t>(batch.ids[k]) << 32 | static_cast<uint64_t>(s);
    }
  }
  Sort(table, rows);
  const uint64_t* words = table.words.data();
  for (int64_t begin = 0; begin < count;) {
    const int64_t id = static_cast<int64_t>(words[begin] >> 32);
    float sum[D] = {};
    int64_t end = begin;
    for (; end < count && static_cast<int64_t>(words[end] >> 32) == id; ++end) {
      if (end + kAhead < count) {
        const int64_t next = static_cast<int64_t>(words[end + kAhead] >> 32);
        Prefetch<D>(table.rows + next * D);
        Prefetch<D>(table.slots + next * D);
      }
      const float* row = table.gradient.data() + (words[end] & 0xffffffff) * D;
      for (int i = 0; i < D; ++i) sum[i] += row[i];
    }
    float* w = table.rows + id * D;
    float* a = table.slots + id * D;
    for (int i = 0; i < D; ++i) {
      a[i] += sum[i] * sum[i];
      w[i] -= 0.1f * sum[i] / std::sqrt(a[i]);
    }
    begin = end;
  }
}

// Runs a task for every table on all threads, which wait in between.
class Team {
 public:
  explicit Team(int tables) : tables_(tables) {
    for (int i = 1; i < kThreads; ++i) std::thread([this] { Work(); }).detach();
  }
  void Run(std::function<void(int)> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = std::move(task);
      next_ = 0;
      busy_ = kThreads - 1;
      ++round_;
    }
    start_.notify_all();
    Take();
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void Take() {
    for (int i = next_++; i < tables_; i = next_++) task_(i);
  }
  void Work() {
    int64_t seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        start_.wait(lock, [&] { return round_ != seen; });
        seen = round_;
      }
      Take();
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }
  const int tables_;
  std::function<void(int)> task_;
  std::atomic<int> next_{0};
  std::mutex mutex_;
  std::condition_variable start_, done_;
  int64_t round_ = 0;
  int busy_ = 0;
};

template <int D>
void Serve(std::vector<Table>& tables, int64_t rows) {
  Team* team = new Team(static_cast<int>(tables.size()));
  const size_t num_batches = tables[0].batches.size();
  size_t step = 0;
  char line[64], what[32];
  int count;
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    if (std::sscanf(line, "%31s %d", what, &count) != 2) continue;
    const bool train = std::strcmp(what, "train") == 0;
    for (int i = 0; i < count; ++i, ++step) {
      const size_t b = step % num_batches;
      const auto start = std::chrono::steady_clock::now();
      team->Run([&](int t) { Forward<D>(tables[t], tables[t].batches[b]); });
      if (train) team->Run([&](int t) { Backward<D>(tables[t], tables[t].batches[b], rows); });
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      std::printf("%.4f ", took.count());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  int64_t num_tables, rows, dim, num_batches;
  Read(&num_tables, 8);
  Read(&rows, 8);
  Read(&dim, 8);
  Read(&num_batches, 8);
  std::vector<Table> tables(num_tables);
  for (Table& table : tables) {
    const size_t size = static_cast<size_t>(rows * dim) * sizeof(float);
    table.rows = static_cast<float*>(std::aligned_alloc(64, size));
    table.slots = static_cast<float*>(std::aligned_alloc(64, size));
    for (int64_t i = 0; i < rows * dim; ++i) {
      table.rows[i] = 0.01f * static_cast<float>(i % 101 - 50);
      table.slots[i] = 0.1f;
    }
    table.batches.resize(num_batches);
    for (Batch& batch : table.batches) {
      int64_t count;
      Read(&batch.samples, 8);
      Read(&count, 8);
      batch.splits.resize(batch.samples + 1);
      batch.ids.resize(count);
      Read(batch.splits.data(), batch.splits.size() * 8);
      Read(batch.ids.data(), batch.ids.size() * 8);
    }
    const size_t cells = static_cast<size_t>(table.batches[0].samples * dim);
    table.out.resize(cells);
    table.gradient.assign(cells, 0.01f);
  }
  if (dim == 64) {
    Serve<64>(tables, rows);
  } else if (dim == 32) {
    Serve<32>(tables, rows);
  }
}
