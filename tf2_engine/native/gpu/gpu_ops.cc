// Kernels for GPUs of NVIDIA of the lookup and update ops that host/host_ops.cc registers. They need
// no header of CUDA: TensorFlow knows the stream, and cuda.h opens the driver.

#include "gpu/cuda.h"
#include "gpu/ops.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace estimator_bridge {
namespace {

struct NvidiaGpu {
  using Stream = gpu::Stream;
  using Staging = gpu::Staging;

  static void* StreamOf(OpKernelContext* context) {
    return context->op_device_context()->stream()->platform_specific_handle().stream;
  }
};

REGISTER_KERNEL_BUILDER(Name("Tf2EngineLookup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("parameters")
                            .HostMemory("ids")
                            .HostMemory("cells")
                            .HostMemory("gains")
                            .HostMemory("num_cells"),
                        gpu::LookupOnGpu<NvidiaGpu>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineUpdate")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("ids")
                            .HostMemory("cells")
                            .HostMemory("gains"),
                        gpu::UpdateOnGpu<NvidiaGpu>);

}  // namespace
}  // namespace estimator_bridge

// Adds the machine code of a rule's kernels for a GPU, by its number among those that CUDA sees.
// Returns what went wrong, or null; the text is there until this thread calls again.
extern "C" const char* Tf2EngineAddKernels(int number, const char* rule, const void* code) {
  static thread_local std::string error;
  error = estimator_bridge::gpu::Kernels::Get()->Add(number, rule, code);
  return error.empty() ? nullptr : error.c_str();
}
