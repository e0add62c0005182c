// The ops for tables on a GPU, as ops for CPUs that go before the native ones. A CPU runs the kernels:
// the threads of a block take turns at every barrier.

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace shim {

struct Index {
  uint32_t x = 0, y = 0;
};
inline Index thread, block;

constexpr uint32_t kThreads = 256, kWarp = 32;

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool runs = false;
};
inline std::vector<Thread> threads(kThreads);
inline ucontext_t scheduler;
inline void (*kernel)(const void*);
inline const void* arguments;

inline void Start() {
  kernel(arguments);
  threads[thread.x].runs = false;
  swapcontext(&threads[thread.x].context, &scheduler);
}

// Lets the other threads come this far.
inline void Barrier() { swapcontext(&threads[thread.x].context, &scheduler); }

inline uint32_t Ballot(bool vote) {
  static bool votes[kThreads];
  votes[thread.x] = vote;
  Barrier();
  uint32_t result = 0;
  const uint32_t first = thread.x / kWarp * kWarp;
  for (uint32_t lane = 0; lane < kWarp; ++lane) result |= uint32_t{votes[first + lane]} << lane;
  Barrier();
  return result;
}

inline void RunBlock() {
  for (Thread& one : threads) {
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.data();
    one.context.uc_stack.ss_size = one.stack.size();
    one.context.uc_link = nullptr;
    makecontext(&one.context, Start, 0);
    one.runs = true;
  }
  for (bool any = true; any;) {
    any = false;
    for (thread.x = 0; thread.x < kThreads; ++thread.x) {
      if (!threads[thread.x].runs) continue;
      any = true;
      swapcontext(&scheduler, &threads[thread.x].context);
    }
  }
}

}  // namespace shim

#define __device__
#define __global__
#define __shared__ static
#define threadIdx shim::thread
#define blockIdx shim::block
#define __syncthreads shim::Barrier
#define __syncwarp shim::Barrier
#define __ballot_sync(mask, vote) shim::Ballot(vote)
#define __popc __builtin_popcount
#define __threadfence_system()
inline uint64_t atomicMin(uint64_t* at, uint64_t other) {
  const uint64_t before = *at;
  if (other < before) *at = other;
  return before;
}
inline uint32_t atomicAdd(uint32_t* at, uint32_t more) {
  const uint32_t before = *at;
  *at += more;
  return before;
}

#include "gpu/kernels.h"

namespace shim {

template <class Args, void (*kKernel)(Args)>
void Call(const void* args) {
  kKernel(*static_cast<const Args*>(args));
}

// The kernels by name; rules are added by including their files.
inline std::map<std::string, void (*)(const void*)>& Kernels() {
  using namespace estimator_bridge::gpu;
  static std::map<std::string, void (*)(const void*)> kernels = {
      {"read_batch", Call<ReadArgs, read_batch>},
      {"scale_gains", Call<ReadArgs, scale_gains>},
      {"look_up", Call<LookUpArgs, look_up>},
      {"make_items", Call<ItemsArgs, make_items>},
      {"count_digits", Call<SortArgs, count_digits>},
      {"move_items", Call<SortArgs, move_items>},
  };
  return kernels;
}

inline std::map<std::string, int> num_launches;  // of each kernel

// Runs a kernel, one block after the other; returns what went wrong, or nothing.
inline std::string Launch(const std::string& name, uint32_t x, uint32_t y, const void* args) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Kernels().find(name);
  if (found == Kernels().end()) return "there is no kernel '" + name + "'";
  ++num_launches[name];
  kernel = found->second;
  arguments = args;
  for (block.y = 0; block.y < y; ++block.y) {
    for (block.x = 0; block.x < x; ++block.x) RunBlock();
  }
  return "";
}

}  // namespace shim

// Rules whose files are included from here on are kernels, and rules for the host as well.
#undef TF2_ENGINE_RULE
#define TF2_ENGINE_RULE(RULE)                                                           \
  TF2_ENGINE_UPDATE_KERNELS(RULE);                                                      \
  template <>                                                                           \
  struct RuleOfField<RULE::kProtoField> {                                               \
    using Type = RULE;                                                                  \
    static constexpr const char* kName = #RULE;                                         \
  };                                                                                    \
  inline const bool added_##RULE = [] {                                                 \
    shim::Kernels()["update_" #RULE "_4"] = shim::Call<gpu::UpdateArgs, update_##RULE##_4>; \
    shim::Kernels()["update_" #RULE "_1"] = shim::Call<gpu::UpdateArgs, update_##RULE##_1>; \
    return true;                                                                        \
  }()
#include "rules/optimizers.h"

#include "gpu/ops.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {
namespace {

struct Shim {
  class Stream final : public gpu::Launcher {
   public:
    explicit Stream(void*) {}
    bool ok() const { return true; }
    std::string Launch(const std::string& kernel, uint32_t x, uint32_t y,
                       const void* args) override {
      return shim::Launch(kernel, x, y, args);
    }
    std::string Copy(void* to, const void* from, size_t bytes, bool) {
      std::memcpy(to, from, bytes);
      return "";
    }
    std::string Wait() { return ""; }
    gpu::Report* report(std::string*) {
      static gpu::Report report = {gpu::kNoProblem};
      return &report;
    }
  };
  class Staging {
   public:
    std::mutex* mutex() { return &mutex_; }
    char* Get(const Stream&, size_t bytes, std::string*) {
      memory_.assign(bytes, static_cast<char>(0xa5));
      return memory_.data();
    }
    void Copied(const Stream&) {}

   private:
    std::mutex mutex_;
    std::vector<char> memory_;
  };
  static void* StreamOf(OpKernelContext*) { return nullptr; }
};

REGISTER_KERNEL_BUILDER(Name("Tf2EngineLookup").Device(tensorflow::DEVICE_CPU).Priority(1),
                        gpu::LookupOnGpu<Shim>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineUpdate").Device(tensorflow::DEVICE_CPU).Priority(1),
                        gpu::UpdateOnGpu<Shim>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineRawLookup").Device(tensorflow::DEVICE_CPU),
                        gpu::RawLookup<Shim>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineRawUpdate").Device(tensorflow::DEVICE_CPU),
                        gpu::RawUpdate<Shim>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineCheckBatches").Device(tensorflow::DEVICE_CPU),
                        gpu::CheckBatchesOp<Shim>);

}  // namespace
}  // namespace estimator_bridge

extern "C" int NumLaunches(const char* kernel) { return shim::num_launches[kernel]; }
