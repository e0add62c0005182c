// SparseCores in software: CPU kernels for the ops that TPUEmbeddingV2 makes, of which TensorFlow's
// wheels have none.
//
// There are as many as the cores of the software TPU have, of whose headers it uses two: how ops
// wait, and how an op finds out its core. One idea is in each header:
//
//   occurrences.h  ids to triples of row, column and gain
//   partitions.h   triples in the order in which SparseCores get them, and the limits
//   packing.h      the buffer in which they get them, written and read
//   meeting.h      where the cores meet
//   *_kernels.h    the ops; the rules of the five optimizers are in rules/sparsecore.h

#include "software_sparsecore/meeting.h"
#include "software_sparsecore/preprocess_kernels.h"
#include "software_sparsecore/table_kernels.h"

extern "C" {

// Sets the number of cores and of SparseCores per core. Waiting ops end with an error.
__attribute__((visibility("default"))) void software_sparsecore_start(int num_cores,
                                                                      int sparse_cores) {
  software_sparsecore::Meeting::Get().Start(num_cores, sparse_cores);
}

// How many ops wait for other cores.
__attribute__((visibility("default"))) int64_t software_sparsecore_waiting() {
  return software_sparsecore::Meeting::Get().num_waiting();
}

}  // extern "C"
