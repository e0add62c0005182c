// NVIDIA's driver, which is opened when the first kernel is added. Plain C++17 without CUDA headers
// or TensorFlow.

#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "gpu/args.h"
#include "gpu/step.h"

namespace estimator_bridge {
namespace gpu {

class Cuda {
 public:
  using Result = int;  // 0 is success
  using Pointer = unsigned long long;

  // Gets the driver. If there is no driver, its members are null.
  static const Cuda& Get() {
    static const Cuda* const cuda = new Cuda;
    return *cuda;
  }

  std::string Error(const char* what, Result result) const {
    const char* text = nullptr;
    if (error_text != nullptr) error_text(result, &text);
    return std::string("NVIDIA's driver: ") + what + ": " +
           (text == nullptr ? "error " + std::to_string(result) : text);
  }

  Result (*init)(unsigned) = nullptr;
  Result (*device)(int*, int) = nullptr;
  Result (*retain)(void**, int) = nullptr;
  Result (*push)(void*) = nullptr;
  Result (*pop)(void**) = nullptr;
  Result (*context_of)(void*, void**) = nullptr;
  Result (*load)(void**, const void*) = nullptr;
  Result (*find)(void**, void*, const char*) = nullptr;
  Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) = nullptr;
  Result (*to_device)(Pointer, const void*, size_t, void*) = nullptr;
  Result (*on_device)(Pointer, Pointer, size_t, void*) = nullptr;
  Result (*pinned)(void**, size_t, unsigned) = nullptr;
  Result (*free_pinned)(void*) = nullptr;
  Result (*make_event)(void**, unsigned) = nullptr;
  Result (*record)(void*, void*) = nullptr;
  Result (*wait)(void*) = nullptr;
  Result (*drop_event)(void*) = nullptr;
  Result (*wait_for_stream)(void*) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;
  bool found = true;  // whether all functions were found

 private:
  Cuda() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto set = [&](auto* member, const char* name) {
      void* const symbol = library == nullptr ? nullptr : dlsym(library, name);
      *member = reinterpret_cast<std::remove_pointer_t<decltype(member)>>(symbol);
      found = found && symbol != nullptr;
    };
    set(&init, "cuInit");
    set(&device, "cuDeviceGet");
    set(&retain, "cuDevicePrimaryCtxRetain");
    set(&push, "cuCtxPushCurrent_v2");
    set(&pop, "cuCtxPopCurrent_v2");
    set(&context_of, "cuStreamGetCtx");
    set(&load, "cuModuleLoadData");
    set(&find, "cuModuleGetFunction");
    set(&launch, "cuLaunchKernel");
    set(&to_device, "cuMemcpyHtoDAsync_v2");
    set(&on_device, "cuMemcpyDtoDAsync_v2");
    set(&pinned, "cuMemHostAlloc");
    set(&free_pinned, "cuMemFreeHost");
    set(&make_event, "cuEventCreate");
    set(&record, "cuEventRecord");
    set(&wait, "cuEventSynchronize");
    set(&drop_event, "cuEventDestroy_v2");
    set(&wait_for_stream, "cuStreamSynchronize");
    set(&error_text, "cuGetErrorString");
  }
};

// The kernels that were added, for each GPU's context.
class Kernels {
 public:
  static Kernels* Get() {
    static Kernels* const kernels = new Kernels;
    return kernels;
  }

  // Loads the machine code of a rule's kernels on a GPU, given its CUDA device number. Returns an
  // error message, or an empty string.
  std::string Add(int number, const std::string& rule, const void* code) {
    const Cuda& cuda = Cuda::Get();
    if (!cuda.found) return "NVIDIA's driver (libcuda.so.1) is missing or too old";
    void *context = nullptr, *module = nullptr;
    int device = 0;
    Cuda::Result result = cuda.init(0);
    if (result == 0) result = cuda.device(&device, number);
    if (result == 0) result = cuda.retain(&context, device);
    if (result == 0) result = cuda.push(context);
    if (result != 0) return cuda.Error("opening a GPU", result);
    result = cuda.load(&module, code);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& name : {std::string("look_up"), std::string("make_items"),
                                    std::string("count_digits"), std::string("move_items"),
                                    std::string("read_batch"), std::string("scale_gains"),
                                    "update_" + rule + "_4", "update_" + rule + "_1"}) {
      if (result == 0) result = cuda.find(&of_context_[context][name], module, name.c_str());
    }
    cuda.pop(nullptr);
    return result == 0 ? "" : cuda.Error("loading kernels", result);
  }

  // Finds a kernel in the context of this thread, or returns null.
  void* Find(void* context, const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto& own = of_context_[context];
    const auto found = own.find(name);
    return found == own.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::unordered_map<std::string, void*>> of_context_;
};

// A stream of a GPU. The GPU's context is current in this thread while the object lives.
class Stream final : public Launcher {
 public:
  explicit Stream(void* stream) : stream_(stream) {
    const Cuda& cuda = Cuda::Get();
    if (!cuda.found || cuda.context_of(stream, &context_) != 0 || cuda.push(context_) != 0) {
      context_ = nullptr;
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (context_ != nullptr) Cuda::Get().pop(nullptr);
  }

  bool ok() const { return context_ != nullptr; }

  std::string Launch(const std::string& kernel, uint32_t x, uint32_t y,
                     const void* args) override {
    void* const function = Kernels::Get()->Find(context_, kernel);
    if (function == nullptr) return "there is no kernel '" + kernel + "' for this GPU";
    void* parameters[] = {const_cast<void*>(args)};
    const Cuda& cuda = Cuda::Get();
    const Cuda::Result result =
        cuda.launch(function, x, y, 1, kThreads, 1, 1, 0, stream_, parameters, nullptr);
    return result == 0 ? "" : cuda.Error(kernel.c_str(), result);
  }

  std::string Copy(void* to, const void* from, size_t bytes, bool from_host) {
    const Cuda& cuda = Cuda::Get();
    const auto target = reinterpret_cast<Cuda::Pointer>(to);
    const Cuda::Result result =
        from_host ? cuda.to_device(target, from, bytes, stream_)
                  : cuda.on_device(target, reinterpret_cast<Cuda::Pointer>(from), bytes, stream_);
    return result == 0 ? "" : cuda.Error("copying", result);
  }

  // Waits until the GPU has done all work of the stream.
  std::string Wait() {
    const Cuda& cuda = Cuda::Get();
    const Cuda::Result result = cuda.wait_for_stream(stream_);
    return result == 0 ? "" : cuda.Error("waiting", result);
  }

  // Returns this GPU's report. It is in host memory that kernels can write to.
  Report* report(std::string* error) {
    static std::mutex mutex;
    static std::map<void*, Report*>* const of_context = new std::map<void*, Report*>;
    const std::lock_guard<std::mutex> lock(mutex);
    Report*& report = (*of_context)[context_];
    if (report != nullptr) return report;
    void* memory = nullptr;
    const Cuda::Result result = Cuda::Get().pinned(&memory, sizeof(Report), 0);
    if (result != 0) {
      *error = Cuda::Get().Error("memory for reports", result);
      return nullptr;
    }
    return report = new (memory) Report{kNoProblem};
  }

  void* stream() const { return stream_; }
  void* context() const { return context_; }

 private:
  void* const stream_;
  void* context_ = nullptr;
};

// Host memory from which batches are copied asynchronously.
//
//   std::lock_guard lock(*staging.mutex());
//   char* to = staging.Get(stream, bytes, &error);  // waits until earlier copies from it are done
//   ...                                     // write to this memory, then copy from it
//   staging.Copied(stream);
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    if (context_ == nullptr) return;
    const Cuda& cuda = Cuda::Get();
    cuda.push(context_);
    for (const Slot& slot : slots_) {
      if (slot.is_used) cuda.wait(slot.event);
      if (slot.event != nullptr) cuda.drop_event(slot.event);
      if (slot.memory != nullptr) cuda.free_pinned(slot.memory);
    }
    cuda.pop(nullptr);
  }

  std::mutex* mutex() { return &mutex_; }

  char* Get(const Stream& stream, size_t bytes, std::string* error) {
    const Cuda& cuda = Cuda::Get();
    context_ = stream.context();
    number_ = (number_ + 1) % kSlots;
    Slot& slot = slots_[number_];
    Cuda::Result result = 0;
    if (slot.event == nullptr) result = cuda.make_event(&slot.event, kWithoutTiming);
    if (result == 0 && slot.is_used) result = cuda.wait(slot.event);
    if (result == 0 && slot.bytes < bytes) {
      if (slot.memory != nullptr) cuda.free_pinned(slot.memory);
      slot.memory = nullptr;
      slot.bytes = bytes + bytes / 4;
      result = cuda.pinned(&slot.memory, slot.bytes, 0);
    }
    if (result == 0) return static_cast<char*>(slot.memory);
    slot.bytes = 0;
    *error = cuda.Error("memory to copy batches from", result);
    return nullptr;
  }

  void Copied(const Stream& stream) {
    slots_[number_].is_used = Cuda::Get().record(slots_[number_].event, stream.stream()) == 0;
  }

 private:
  static constexpr size_t kSlots = 4;
  static constexpr unsigned kWithoutTiming = 2;  // CU_EVENT_DISABLE_TIMING
  struct Slot {
    void *memory = nullptr, *event = nullptr;
    size_t bytes = 0;
    bool is_used = false;
  };
  std::mutex mutex_;
  Slot slots_[kSlots];
  size_t number_ = 0;
  void* context_ = nullptr;
};

}  // namespace gpu
}  // namespace estimator_bridge
