// The software TPU of a process, and how an op finds the core on which it runs.

#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "software_tpu/feeds.h"
#include "software_tpu/batch_queue.h"
#include "software_tpu/wait_queue.h"

namespace software_tpu {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The lock of `wait_queue` guards all members.
struct Machine {
  WaitQueue wait_queue;
  int num_cores = 1;
  int sparse_cores = 0;  // SparseCores per core; 0 means embedding hardware of the first generation
  std::unique_ptr<BatchQueue> batch_queue;  // null while not configured for embeddings
  Feed infeed, outfeed;
  ReplicaSums sums;

  // Forgets tables, batches and feeds.
  void Clear() {
    batch_queue.reset();
    infeed.Clear();
    outfeed.Clear();
    sums.Clear();
  }

  static Machine& Get() {
    // Never deleted: ops may still wait when a process exits.
    static Machine* machine = new Machine;
    return *machine;
  }
};

inline absl::Status NotConfigured() {
  return absl::FailedPreconditionError(
      "Software TPU: it is not configured for embeddings; ConfigureTPUEmbedding comes first.");
}

// The core of an op. SoftTPUStrategy marks the ops of each core's computation with an attribute.
// Devices do not identify cores, because a software core is not a device and its ops are on the
// CPU. Ops that feed a core from outside have its ordinal.
class CoreOfOp {
 public:
  explicit CoreOfOp(tensorflow::OpKernelConstruction* construction)
      : op_(construction->def().op()) {
    int64_t number;
    for (const char* attribute : {"_software_tpu_core", "device_ordinal"}) {
      if (construction->HasAttr(attribute) &&
          construction->GetAttr(attribute, &number).ok() && number >= 0) {
        number_ = number;
        return;
      }
    }
  }

  absl::Status Find(int num_cores, int* core) const { return Find(number_, num_cores, core); }

  // For ops whose ordinal is an input.
  absl::Status Find(int64_t number, int num_cores, int* core) const {
    if (number < 0 && num_cores > 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Software TPU: ", op_, " belongs to none of the ", num_cores,
          " cores; call it inside `strategy.run` of a SoftTPUStrategy, or give it an ordinal."));
    }
    if (number >= num_cores) {
      return Refuse(op_, " is for core ", number, ", but there are ", num_cores, " core(s).");
    }
    *core = number < 0 ? 0 : static_cast<int>(number);
    return absl::OkStatus();
  }

 private:
  const std::string op_;
  int64_t number_ = -1;
};

}  // namespace software_tpu

// Registers a kernel of the software TPU, whose cores are threads of the CPU.
#define SOFTWARE_TPU_KERNEL(OP, ...) \
  REGISTER_KERNEL_BUILDER(Name(OP).Device(tensorflow::DEVICE_CPU), __VA_ARGS__)
