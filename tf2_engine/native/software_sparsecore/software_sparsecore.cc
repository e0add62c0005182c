// SparseCores in software: CPU kernels for the ops of TPUEmbeddingV2, for which TensorFlow's wheels
// have no kernels.
//
// The number of SparseCores is set with the software TPU. The software TPU's headers define how ops
// wait and how an op finds its core. The headers here:
//
//   occurrences.h  converts ids to triples of row, column and gain
//   partitions.h   sorts triples by receiving SparseCore, and checks the limits
//   packing.h      writes and reads the buffer that SparseCores receive
//   meeting.h      the barrier of all cores
//   *_kernels.h    the ops (the rules of the five optimizers are in rules/sparsecore.h)

#include "software_sparsecore/meeting.h"
#include "software_sparsecore/preprocess_kernels.h"
#include "software_sparsecore/table_kernels.h"

extern "C" {

// Sets the number of cores and of SparseCores per core. Waiting ops end with an error.
__attribute__((visibility("default"))) void software_sparsecore_start(int num_cores,
                                                                      int sparse_cores) {
  software_sparsecore::Meeting::Get().Start(num_cores, sparse_cores);
}

// The number of ops that wait for other cores.
__attribute__((visibility("default"))) int64_t software_sparsecore_waiting() {
  return software_sparsecore::Meeting::Get().num_waiting();
}

}  // extern "C"
