// NVIDIA GPU kernels for the lookup and update ops that host/host_ops.cc registers. No CUDA header
// is needed: TensorFlow provides the stream, and cuda.h opens the driver.

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
REGISTER_KERNEL_BUILDER(Name("Tf2EngineRawLookup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("parameters")
                            .HostMemory("num_samples"),
                        gpu::RawLookup<NvidiaGpu>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineRawUpdate")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("num_samples"),
                        gpu::RawUpdate<NvidiaGpu>);
REGISTER_KERNEL_BUILDER(Name("Tf2EngineCheckBatches").Device(tensorflow::DEVICE_GPU),
                        gpu::CheckBatchesOp<NvidiaGpu>);

}  // namespace
}  // namespace estimator_bridge

// Adds the machine code of a rule's kernels for a GPU, given its CUDA device number. Returns an
// error message, which is valid until this thread's next call, or null.
extern "C" const char* Tf2EngineAddKernels(int number, const char* rule, const void* code) {
  static thread_local std::string error;
  error = estimator_bridge::gpu::Kernels::Get()->Add(number, rule, code);
  return error.empty() ? nullptr : error.c_str();
}
