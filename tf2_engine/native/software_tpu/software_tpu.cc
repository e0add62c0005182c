// A TPU in software: CPU kernels for the ops that TensorFlow's CPU builds register without any.
//
// One per process. Where a kernel has to wait, for a batch or for other cores, it parks (see
// tpu_parking.h) and blocks no thread. Everything else is in the headers, one idea each:
//
//   tpu_config.h     the configuration, read and checked
//   tpu_inputs.h     enqueued tensors to lists of ids
//   tpu_tables.h     tables and slots, over rules.h
//   tpu_flight.h     the order of batches, the barrier of all cores, pipelining
//   tpu_feeds.h      infeed, outfeed, sums over cores
//   tpu_*_kernels.h  the ops

#include "software_tpu/tpu_embedding_kernels.h"
#include "software_tpu/tpu_load_kernels.h"
#include "software_tpu/tpu_machine.h"
#include "software_tpu/tpu_system_kernels.h"

extern "C" {

// Sets how many cores there are, and forgets everything; what waits ends with an error.
__attribute__((visibility("default"))) void software_tpu_start(int num_cores) {
  software_tpu::Machine& machine = software_tpu::Machine::Get();
  // It cannot fail: the change always succeeds.
  (void)machine.parking.FailAll(absl::StatusCode::kAborted, "it was started anew", [&] {
    machine.Clear();
    machine.num_cores = num_cores;
    return absl::OkStatus();
  });
}

// Returns how many ops wait: for a batch, for a feed, or for other cores.
__attribute__((visibility("default"))) int64_t software_tpu_waiting() {
  return software_tpu::Machine::Get().parking.num_waiting();
}

}  // extern "C"
