// A TPU in software: CPU kernels for ops that TensorFlow's CPU builds register without kernels.
//
// There is one software TPU per process. A kernel that waits for a batch or for other cores does
// not block a thread. The headers:
//
//   config.h       reads and checks the configuration
//   inputs.h       converts enqueued tensors to lists of ids
//   tables.h       tables and slots, and their updates
//   batch_queue.h  the order of batches, the barrier of all cores, and pipelining
//   wait_queue.h   the ops that wait
//   feeds.h        infeed, outfeed, and sums over cores
//   machine.h      all of these together
//   *_kernels.h    the ops

#include "software_tpu/embedding_kernels.h"
#include "software_tpu/load_kernels.h"
#include "software_tpu/machine.h"
#include "software_tpu/system_kernels.h"

extern "C" {

// Sets the number of cores and of SparseCores per core (0 for embedding hardware of the first
// generation), and drops tables, batches and feeds. Waiting ops end with an error.
__attribute__((visibility("default"))) void software_tpu_start(int num_cores, int sparse_cores) {
  software_tpu::Machine& machine = software_tpu::Machine::Get();
  // Cannot fail: the change always succeeds.
  (void)machine.wait_queue.FailAll(absl::StatusCode::kAborted, "it was restarted", [&] {
    machine.Clear();
    machine.num_cores = num_cores;
    machine.sparse_cores = sparse_cores;
    return absl::OkStatus();
  });
}

// The number of ops that wait for a batch, for a feed, or for other cores.
__attribute__((visibility("default"))) int64_t software_tpu_waiting() {
  return software_tpu::Machine::Get().wait_queue.num_waiting();
}

}  // extern "C"
