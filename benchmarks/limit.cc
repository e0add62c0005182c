// Runs the two workloads in hand-written loops, without a framework, as a bound for contenders.
//
//   limit [threads]
//
// Reads on standard input: tables rows dim batches, then per table and batch
//   samples count, row splits (samples + 1), ids (count)
// all as int64 in binary. Then answers each line "WHAT N" (text) with N numbers on one line:
//   train, infer   time of a step in ms; batches in turn, outputs always in the same memory
//   infer-fresh    the same, with outputs in newly allocated memory in each step
//   rows           time in ms to read as many rows as `infer` reads, in random order from all
//                  tables, so that no row is in a cache
//   bandwidth      GB/s that all threads together read and write in a[i] = b[i] + c * d[i]
// Tables are in huge pages if the system has them. Rows are prefetched, in lookups only for
// reading. Sums are kept in registers, of 16 floats each if available. Each width has its own
// kernel. Threads take parts of tables in turn. Gradients are summed per row after a radix sort,
// and then each row has one Adagrad step.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

constexpr int64_t kBytesAhead = 4096;  // of rows that lookups prefetch
constexpr int64_t kRowsAhead = 8;      // rows and slots that updates prefetch
constexpr int64_t kIdsOfPart = 8192;

struct Batch {
  int64_t samples;
  std::vector<int64_t> splits, ids;
};

struct Part {
  int64_t begin, end;
};

struct Table {
  float* rows;
  float* slots;
  float* out;
  std::vector<Batch> batches;
  std::vector<float> gradient;
  std::vector<uint64_t> words, other;
  std::vector<Part> parts;  // of the sorted words
};

void Read(void* to, size_t size) {
  if (std::fread(to, 1, size, stdin) != size) std::exit(1);
}

// New memory from the system, which has not been touched yet.
float* Map(size_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::exit(1);
  return static_cast<float*>(at);
}

// The same in huge pages, if the system has any.
float* Huge(int64_t floats) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t size = (static_cast<size_t>(floats) * sizeof(float) + kPage - 1) / kPage * kPage;
  char* at = reinterpret_cast<char*>(Map(size + kPage));
  at += kPage - reinterpret_cast<uintptr_t>(at) % kPage;
  madvise(at, size, MADV_HUGEPAGE);
  return reinterpret_cast<float*>(at);
}

template <int D, int kWrite>
__attribute__((always_inline)) inline void Prefetch(const float* row) {
  for (int i = 0; i < D; i += 16) __builtin_prefetch(row + i, kWrite, 3);
}

inline Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
inline void Store(const Lanes& lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

template <int D>
void Forward(const Table& table, const Batch& batch, const Part& samples, float* out) {
  constexpr int64_t kAhead = std::max<int64_t>(kBytesAhead / (D * sizeof(float)), 4);
  const int64_t count = batch.splits[samples.end];
  const int64_t* ids = batch.ids.data();
  const float* rows = table.rows;
  for (int64_t s = samples.begin; s < samples.end; ++s) {
    Lanes sum[D / kLanes] = {};
    for (int64_t k = batch.splits[s]; k < batch.splits[s + 1]; ++k) {
      if (k + kAhead < count) Prefetch<D, 0>(rows + ids[k + kAhead] * D);
      const float* row = rows + ids[k] * D;
      for (int v = 0; v < D / kLanes; ++v) sum[v] += Load(row + v * kLanes);
    }
    for (int v = 0; v < D / kLanes; ++v) Store(sum[v], out + s * D + v * kLanes);
  }
}

void Sort(Table& table, int64_t rows) {
  constexpr int kMostDigitBits = 11;
  int bits = 1;
  while ((int64_t{1} << bits) < rows) ++bits;
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  const int digit = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit) - 1;
  for (int shift = 32; shift < 32 + bits; shift += digit) {
    size_t first[1 << kMostDigitBits] = {};
    for (const uint64_t word : table.words) ++first[word >> shift & mask];
    size_t before = 0;
    for (size_t value = 0; value <= mask; ++value) {
      const size_t here = first[value];
      first[value] = before;
      before += here;
    }
    for (const uint64_t word : table.words) table.other[first[word >> shift & mask]++] = word;
    table.words.swap(table.other);
  }
}

int64_t IdOf(uint64_t word) { return static_cast<int64_t>(word >> 32); }

// Sorts the ids of a batch, each with its sample, and divides them into parts of whole rows.
void Group(Table& table, const Batch& batch, int64_t rows) {
  const int64_t count = static_cast<int64_t>(batch.ids.size());
  table.words.resize(count);
  table.other.resize(count);
  for (int64_t s = 0; s < batch.samples; ++s) {
    for (int64_t k = batch.splits[s]; k < batch.splits[s + 1]; ++k) {
      table.words[k] = static_cast<uint64_t>(batch.ids[k]) << 32 | static_cast<uint64_t>(s);
    }
  }
  Sort(table, rows);
  table.parts.clear();
  for (int64_t begin = 0; begin < count;) {
    int64_t end = std::min(begin + kIdsOfPart, count);
    while (end < count && IdOf(table.words[end]) == IdOf(table.words[end - 1])) ++end;
    table.parts.push_back({begin, end});
    begin = end;
  }
}

template <int D>
void Update(const Table& table, const Part& part) {
  const uint64_t* words = table.words.data();
  const float* gradient = table.gradient.data();
  int64_t asked = part.begin + 1;
  for (int64_t begin = part.begin; begin < part.end;) {
    const int64_t id = IdOf(words[begin]);
    Lanes sum[D / kLanes] = {};
    int64_t end = begin;
    for (; end < part.end && IdOf(words[end]) == id; ++end) {
      if (end + kRowsAhead < part.end) {
        Prefetch<D, 0>(gradient + (words[end + kRowsAhead] & 0xffffffff) * D);
      }
      const float* row = gradient + (words[end] & 0xffffffff) * D;
      for (int v = 0; v < D / kLanes; ++v) sum[v] += Load(row + v * kLanes);
    }
    for (; asked < end + kRowsAhead && asked < part.end; ++asked) {
      const int64_t next = IdOf(words[asked]);
      if (next == IdOf(words[asked - 1])) continue;
      Prefetch<D, 1>(table.rows + next * D);
      Prefetch<D, 1>(table.slots + next * D);
    }
    float g[D];
    for (int v = 0; v < D / kLanes; ++v) Store(sum[v], g + v * kLanes);
    float* w = table.rows + id * D;
    float* a = table.slots + id * D;
    for (int i = 0; i < D; ++i) {
      a[i] += g[i] * g[i];
      w[i] -= 0.1f * g[i] / std::sqrt(a[i]);
    }
    begin = end;
  }
}

// Threads that take tasks in turn. Between tasks they spin for a moment and then sleep. Nothing
// waits for a thread that comes too late to get a task.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) std::thread([this] { Work(); }).detach();
  }
  int threads() const { return threads_; }

  void Run(int64_t tasks, std::function<void(int64_t)> task) {
    const auto job = std::make_shared<Job>();
    job->task = std::move(task);
    job->count = job->left = tasks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      ++round_;
    }
    start_.notify_all();
    Take(*job);
    while (job->left != 0) __builtin_ia32_pause();
  }

 private:
  static constexpr int kAwake = 20000;

  struct Job {
    std::function<void(int64_t)> task;
    int64_t count;
    std::atomic<int64_t> next{0}, left;
  };

  static void Take(Job& job) {
    for (int64_t i = job.next++; i < job.count; i = job.next++) {
      job.task(i);
      --job.left;
    }
  }
  void Work() {
    int64_t seen = 0;
    for (;;) {
      for (int i = 0; i < kAwake && round_ == seen; ++i) __builtin_ia32_pause();
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        start_.wait(lock, [&] { return round_ != seen; });
        seen = round_;
        job = job_;
      }
      Take(*job);
    }
  }
  const int threads_;
  std::atomic<int64_t> round_{0};
  std::mutex mutex_;
  std::condition_variable start_;
  std::shared_ptr<Job> job_;
};

// A part of the samples of a table's batch, or of its sorted ids.
struct Task {
  int table;
  Part part;
};

std::vector<Task> ForwardTasks(const std::vector<Table>& tables, size_t batch_number) {
  std::vector<Task> tasks;
  for (size_t t = 0; t < tables.size(); ++t) {
    const Batch& batch = tables[t].batches[batch_number];
    for (int64_t begin = 0; begin < batch.samples;) {
      int64_t end = begin + 1;
      while (end < batch.samples && batch.splits[end] - batch.splits[begin] < kIdsOfPart) ++end;
      tasks.push_back({static_cast<int>(t), {begin, end}});
      begin = end;
    }
  }
  return tasks;
}

template <int D>
class Program {
 public:
  Program(std::vector<Table>& tables, int64_t rows, int threads)
      : tables_(tables), rows_(rows), team_(*new Team(threads)) {
    for (size_t b = 0; b < tables[0].batches.size(); ++b) {
      forward_.push_back(ForwardTasks(tables, b));
    }
    int64_t count = 0;
    for (const Table& table : tables) count += static_cast<int64_t>(table.batches[0].ids.size());
    // For `rows`: reads each row once in a scattered order, by a prime above any number of rows.
    anywhere_.resize(static_cast<size_t>(count));
    const uint64_t all = static_cast<uint64_t>(rows) * tables.size();
    for (int64_t i = 0; i < count; ++i) {
      anywhere_[i] = static_cast<int64_t>(static_cast<uint64_t>(i) * 2654435761 % all);
    }
    for (float*& numbers : stream_) {
      numbers = Huge(kStream);
      for (int64_t i = 0; i < kStream; ++i) numbers[i] = 1.0f;
    }
  }

  double Run(const std::string& what, size_t step) {
    const size_t b = step % tables_[0].batches.size();
    if (what == "bandwidth") return Bandwidth();
    std::vector<float*> outputs;
    for (const Table& table : tables_) outputs.push_back(table.out);
    const auto start = std::chrono::steady_clock::now();
    if (what == "rows") {
      RandomRows();
    } else if (what == "infer-fresh") {
      LookupFresh(b);
    } else {
      Lookup(b);
      if (what == "train") Train(b);
    }
    const double took = Since(start);
    for (size_t t = 0; t < tables_.size(); ++t) tables_[t].out = outputs[t];
    return took;
  }

 private:
  static constexpr int64_t kStream = int64_t{1} << 24;

  static double Since(std::chrono::steady_clock::time_point start) {
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    return took.count();
  }

  void Lookup(size_t b) {
    const std::vector<Task>& tasks = forward_[b];
    team_.Run(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      const Table& table = tables_[tasks[i].table];
      Forward<D>(table, table.batches[b], tasks[i].part, table.out);
    });
  }

  void Train(size_t b) {
    team_.Run(static_cast<int64_t>(tables_.size()),
              [&](int64_t t) { Group(tables_[t], tables_[t].batches[b], rows_); });
    std::vector<Task> tasks;
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (const Part& part : tables_[t].parts) tasks.push_back({static_cast<int>(t), part});
    }
    team_.Run(static_cast<int64_t>(tasks.size()),
              [&](int64_t i) { Update<D>(tables_[tasks[i].table], tasks[i].part); });
  }

  // Allocates outputs from the system, and frees them.
  void LookupFresh(size_t b) {
    for (Table& table : tables_) table.out = Map(SizeOfOutput(table));
    Lookup(b);
    for (Table& table : tables_) munmap(table.out, SizeOfOutput(table));
  }
  static size_t SizeOfOutput(const Table& table) {
    return static_cast<size_t>(table.batches[0].samples * D) * sizeof(float);
  }

  void RandomRows() {
    const int64_t count = static_cast<int64_t>(anywhere_.size());
    const int64_t tasks = (count + kIdsOfPart - 1) / kIdsOfPart;
    team_.Run(tasks, [&](int64_t i) {
      const int64_t end = std::min((i + 1) * kIdsOfPart, count);
      constexpr int64_t kAhead = std::max<int64_t>(kBytesAhead / (D * sizeof(float)), 4);
      Lanes sum[D / kLanes] = {};
      for (int64_t k = i * kIdsOfPart; k < end; ++k) {
        if (k + kAhead < end) Prefetch<D, 0>(RowAnywhere(k + kAhead));
        const float* row = RowAnywhere(k);
        for (int v = 0; v < D / kLanes; ++v) sum[v] += Load(row + v * kLanes);
      }
      float first;
      std::memcpy(&first, sum, sizeof(first));
      if (first == 0.123f) std::fputc(' ', stderr);  // keeps the compiler from removing the sum
    });
  }
  const float* RowAnywhere(int64_t k) const {
    const int64_t row = anywhere_[k];
    return tables_[row / rows_].rows + row % rows_ * D;
  }

  double Bandwidth() {
    const auto start = std::chrono::steady_clock::now();
    const int64_t part = kStream / (4 * team_.threads());
    team_.Run(4 * team_.threads(), [&](int64_t i) {
      float* to = stream_[0] + i * part;
      const float *from = stream_[1] + i * part, *other = stream_[2] + i * part;
      for (int64_t k = 0; k < part; ++k) to[k] = from[k] + 0.5f * other[k];
    });
    // Writing a cache line also reads it first.
    return 4.0 * static_cast<double>(sizeof(float) * kStream) / 1e6 / Since(start);
  }

  std::vector<Table>& tables_;
  const int64_t rows_;
  Team& team_;
  std::vector<std::vector<Task>> forward_;
  std::vector<int64_t> anywhere_;
  float* stream_[3];
};

template <int D>
void Serve(std::vector<Table>& tables, int64_t rows, int threads) {
  Program<D> program(tables, rows, threads);
  size_t step = 0;
  char line[64], what[32];
  int count;
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    if (std::sscanf(line, "%31s %d", what, &count) != 2) continue;
    for (int i = 0; i < count; ++i) std::printf("%.4f ", program.Run(what, step++));
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2;
  int64_t num_tables, rows, dim, num_batches;
  Read(&num_tables, 8);
  Read(&rows, 8);
  Read(&dim, 8);
  Read(&num_batches, 8);
  std::vector<Table> tables(num_tables);
  for (Table& table : tables) {
    table.rows = Huge(rows * dim);
    table.slots = Huge(rows * dim);
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
    const int64_t cells = table.batches[0].samples * dim;
    table.out = Huge(cells);
    table.gradient.assign(cells, 0.01f);
  }
  switch (dim) {
    case 16: Serve<16>(tables, rows, threads); break;
    case 32: Serve<32>(tables, rows, threads); break;
    case 64: Serve<64>(tables, rows, threads); break;
    case 128: Serve<128>(tables, rows, threads); break;
    default: std::fprintf(stderr, "limit: no kernel of width %lld\n", static_cast<long long>(dim));
             return 1;
  }
}
