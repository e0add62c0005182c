// Looks up, locks and checks the tables' variables for kernels.
//
// Lookups take shared locks and updates exclusive ones, always in the order of the mutexes'
// addresses, so that kernels cannot deadlock. A lookup leaves a variable as it is. An update
// switches the variable to TensorFlow's mode for sparse access, in which reading the whole variable
// makes a copy. If the buffer is shared at that moment, the switch copies the table once.

#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/huge_pages.h"
#include "host/placement.h"
#include "host/rows.h"
#include "host/work_queue.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace estimator_bridge {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
namespace errors = ::tensorflow::errors;

struct VariableShape {
  int64_t rows, dim;
};

// Holds the locks of variables until it is destroyed.
class LockedVariables {
 public:
  enum class Access { kRead, kUpdate };

  // Copies memory on the device of the variables.
  using Copy = std::function<absl::Status(void* to, const void* from, size_t bytes)>;

  explicit LockedVariables(Access access, Copy copy = &OnHost)
      : access_(access), copy_(std::move(copy)) {}
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables() {
    for (auto lock = locked_.rbegin(); lock != locked_.rend(); ++lock) {
      access_ == Access::kRead ? (*lock)->unlock_shared() : (*lock)->unlock();
    }
  }

  // Locks the variables of the inputs from `first` on.
  absl::Status Lock(OpKernelContext* context, int first, int count) TF_NO_THREAD_SAFETY_ANALYSIS {
    variables_.resize(count);
    std::vector<tensorflow::mutex*> mutexes;
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(
          context, tensorflow::HandleFromInput(context, first + i), &variables_[i]));
      mutexes.push_back(variables_[i]->mu());
    }
    std::sort(mutexes.begin(), mutexes.end());
    const auto last = std::unique(mutexes.begin(), mutexes.end());
    if (access_ == Access::kUpdate && last != mutexes.end()) {
      return errors::InvalidArgument(
          "A variable is given twice; an update needs distinct variables.");
    }
    for (auto mutex = mutexes.begin(); mutex != last; ++mutex) {
      access_ == Access::kRead ? (*mutex)->lock_shared() : (*mutex)->lock();
      locked_.push_back(*mutex);
    }
    return absl::OkStatus();
  }

  // Locks the first inputs, which are variables [rows, dim] of float32, and finds their elements.
  // With `types`, the variables may also be float16 or bfloat16; sets their types.
  absl::Status Find(OpKernelContext* context, const std::vector<VariableShape>& shapes,
                    std::vector<float*>* data,
                    std::vector<tensorflow::DataType>* types = nullptr) {
    TF_RETURN_IF_ERROR(Lock(context, 0, static_cast<int>(shapes.size())));
    data->resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      TF_RETURN_IF_ERROR(
          Rows(context, variables_[i].get(), shapes[i], types != nullptr, &(*data)[i]));
      if (types != nullptr) types->push_back(variables_[i]->tensor()->dtype());
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Rows(OpKernelContext* context, tensorflow::Var* variable,
                    const VariableShape& shape, bool takes_small, float** data) {
    const Tensor* tensor = variable->tensor();
    if (!variable->is_initialized || !tensor->IsInitialized()) {
      return errors::FailedPrecondition("A table's variable is not initialized.");
    }
    const tensorflow::DataType type = tensor->dtype();
    const bool is_small = type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16;
    if (!(type == tensorflow::DT_FLOAT || (takes_small && is_small)) || tensor->dims() != 2 ||
        tensor->dim_size(0) != shape.rows || tensor->dim_size(1) != shape.dim) {
      return errors::InvalidArgument("A table's variable is ",
                                     tensorflow::DataTypeString(type), " ",
                                     tensor->shape().DebugString(), " instead of float [",
                                     shape.rows, ",", shape.dim, "].");
    }
    if (access_ == Access::kUpdate) TF_RETURN_IF_ERROR(OwnBuffer(context, variable));
    *data = static_cast<float*>(variable->tensor()->data());
    return absl::OkStatus();
  }

  static absl::Status OnHost(void* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

  absl::Status OwnBuffer(OpKernelContext* context, tensorflow::Var* variable) {
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    Tensor* held = variable->tensor();
    if (!held->RefCountIsOne()) {
      tensorflow::AllocatorAttributes attributes;
      attributes.set_gpu_compatible(true);
      Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(held->dtype(), held->shape(), &copy, attributes));
      if (held->NumElements() > 0) {
        TF_RETURN_IF_ERROR(copy_(copy.flat<float>().data(), held->flat<float>().data(),
                                 held->TotalBytes()));
      }
      *held = copy;
    }
    variable->copy_on_read_mode.store(true);
    return absl::OkStatus();
  }

  const Access access_;
  const Copy copy_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
  std::vector<tensorflow::mutex*> locked_;
};

// Temporary tensors that a kernel needs in every step. They reuse the memory of the previous step
// unless it is still in use, because allocating memory costs as much as filling it.
class KeptTensors {
 public:
  // Sets `*tensor`, the kernel's tensor `number`, to a tensor of this type and shape with undefined
  // content.
  absl::Status Get(OpKernelContext* context, size_t number, tensorflow::DataType type,
                   const tensorflow::TensorShape& shape, Tensor* tensor) {
    tensorflow::mutex_lock lock(mutex_);
    if (number >= kept_.size()) kept_.resize(number + 1);
    Tensor* kept = &kept_[number];
    const int64_t size = shape.num_elements();
    // The only reference is the one kept here, so no other can be added.
    if (!kept->IsInitialized() || kept->dtype() != type || !kept->RefCountIsOne() ||
        kept->NumElements() < size || kept->NumElements() / 2 > size + kSpare) {
      *kept = Tensor();
      TF_RETURN_IF_ERROR(context->allocate_temp(type, {size + size / 8 + 1}, kept));
    }
    *tensor = Tensor();
    if (!tensor->CopyFrom(kept->Slice(0, size), shape)) {
      return errors::Internal("A tensor cannot be given the shape ", shape.DebugString(), ".");
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kSpare = 1024;
  tensorflow::mutex mutex_;
  std::vector<Tensor> kept_;
};

inline int NumThreads(OpKernelContext* context) {
  return std::max(1, context->device()->tensorflow_cpu_worker_threads()->num_threads);
}

// For so few ids, waking threads takes longer than the work.
constexpr int64_t kFewIds = 2048;

// Runs `task(i)` for every i below `count`, in any order, on this thread and the device's threads.
// A thread that starts late finds no work, and the call does not wait for it. `num_ids` is the
// number of ids in all tasks.
template <class Task>
void InParallel(OpKernelContext* context, int64_t count, int64_t num_ids, const Task& task) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  const bool alone = workers == nullptr || num_ids <= kFewIds;
  const int64_t threads = alone ? 1 : std::min<int64_t>(count, NumThreads(context));
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const auto work_queue = std::make_shared<WorkQueue>(count);
  for (int64_t i = 1; i < threads; ++i) {
    // `task` exists until all work is done.
    workers->Schedule([work_queue, &task] { work_queue->Run(task); });
  }
  work_queue->Run(task);
  work_queue->Wait();
}

// Tables that a kernel has already moved to huge pages.
class HugeTables {
 public:
  // Moves tables that are new, or whose memory is not that of the previous step.
  void See(OpKernelContext* context, const std::vector<float*>& data,
           const std::vector<VariableShape>& shapes) {
    if (!HasHugePages()) return;
    std::vector<HugeRange> fresh;
    {
      tensorflow::mutex_lock lock(mutex_);
      if (seen_ == data) return;
      seen_.resize(data.size());
      for (size_t i = 0; i < data.size(); ++i) {
        if (seen_[i] != data[i]) {
          fresh.emplace_back(data[i], shapes[i].rows * shapes[i].dim * sizeof(float));
        }
      }
      seen_ = data;
    }
    std::vector<std::pair<size_t, int64_t>> parts;
    for (size_t i = 0; i < fresh.size(); ++i) {
      for (int64_t first = 0; first < fresh[i].count(); first += kPages) parts.emplace_back(i, first);
    }
    constexpr int64_t kMuch = kFewIds + 1;  // moving a page takes longer than the work for many ids
    InParallel(context, static_cast<int64_t>(parts.size()), kMuch, [&](int64_t i) {
      const HugeRange& range = fresh[parts[i].first];
      const int64_t first = parts[i].second;
      MakeHuge(range, first, std::min(kPages, range.count() - first));
    });
  }

 private:
  static constexpr int64_t kPages = 32;  // pages per task
  tensorflow::mutex mutex_;
  std::vector<float*> seen_;
};

// Runs tasks that may fail, like `InParallel`. Returns the error of the first task that fails.
template <class Task>
absl::Status TryInParallel(OpKernelContext* context, int64_t count, int64_t num_ids,
                           const Task& task) {
  std::vector<absl::Status> results(static_cast<size_t>(count), absl::OkStatus());
  InParallel(context, count, num_ids, [&](int64_t i) { results[i] = task(i); });
  for (const absl::Status& result : results) TF_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

inline bool IsBelow(int64_t number, int64_t limit) {
  return static_cast<uint64_t>(number) < static_cast<uint64_t>(limit);
}

inline bool AllWithin(const int64_t* numbers, int64_t count, int64_t first, int64_t last) {
  bool outside = false;
  for (int64_t i = 0; i < count; ++i) outside |= (numbers[i] < first) | (numbers[i] >= last);
  return !outside;
}

inline bool AllBelow(const int64_t* numbers, int64_t count, int64_t limit) {
  return AllWithin(numbers, count, 0, limit);
}

// Finds the first number that is not in [0, limit). There must be such a number.
inline int64_t FirstOutside(const int64_t* numbers, int64_t count, int64_t limit) {
  return *std::find_if(numbers, numbers + count,
                       [limit](int64_t number) { return !IsBelow(number, limit); });
}

inline absl::Status OutsideTable(int64_t id, int64_t rows, const std::string& where) {
  return errors::InvalidArgument(
      where, ": an id lies outside the table, which has rows 0 to ", rows - 1,
      ". Fix the ids, or set out_of_range_ids='drop' to treat such ids as absent. The id: ", id);
}

// Checks that ids are rows of a table.
inline absl::Status CheckIds(const int64_t* ids, int64_t count, int64_t rows,
                             const std::string& where) {
  if (AllBelow(ids, count, rows)) return absl::OkStatus();
  return OutsideTable(FirstOutside(ids, count, rows), rows, where);
}

// What the gains of a piece belong to.
enum class GainsOf { kNone, kIds, kCells };

// The occurrences of one feature on one core, from the Occurrences op; see batch.py. With `splits`,
// ids are in order of their cells: cell i has the ids splits[i] to splits[i + 1], and gains belong
// to cells. Otherwise `cell` has the cell of each id, or is null if id i belongs to cell i.
struct Occurrences : OccurrenceArrays {
  GainsOf gains = GainsOf::kNone;

  int64_t num_cells() const { return num_splits - 1; }

  // A `cell_tensor` of rank 2, [1, num_cells + 1], holds splits. An empty tensor of rank 1 means
  // that it is missing.
  absl::Status Read(const Tensor& ids_tensor, const Tensor& cell_tensor,
                    const Tensor& gain_tensor, const std::string& where) {
    count = ids_tensor.NumElements();
    ids = ids_tensor.flat<int64_t>().data();
    const int64_t* cells = cell_tensor.flat<int64_t>().data();
    const int64_t size = cell_tensor.NumElements(), size_of_gains = gain_tensor.NumElements();
    const bool has_splits = cell_tensor.dims() == 2;
    if (has_splits) {
      splits = cells;
      num_splits = size;
      TF_RETURN_IF_ERROR(CheckSplits(where));
    } else if (size != 0) {
      cell = cells;
    }
    if (size_of_gains != 0) {
      gain = gain_tensor.flat<float>().data();
      gains = has_splits ? GainsOf::kCells : GainsOf::kIds;
    }
    const bool misfit = size_of_gains != 0 && size_of_gains != (has_splits ? size - 1 : count);
    if ((cell != nullptr && size != count) || misfit) {
      return errors::InvalidArgument(where, ": ", count, " ids come with ", size,
                                     has_splits ? " row splits and " : " cells and ", size_of_gains,
                                     " gains; there must be one per id, or none",
                                     has_splits ? "; with row splits one per row." : ".");
    }
    return absl::OkStatus();
  }

  // Checks that the occurrences from `begin` to `end` belong to cells from `first` to `last`; see
  // `CheckNumCells` for splits.
  absl::Status CheckCells(int64_t begin, int64_t end, int64_t first, int64_t last,
                          const std::string& where) const {
    if (splits != nullptr) return absl::OkStatus();
    if (cell == nullptr ? begin < first || end > last
                        : !AllWithin(cell + begin, end - begin, first, last)) {
      return BeyondCells(last, where);
    }
    return absl::OkStatus();
  }

  // Checks that the number of cells fits the splits, if there are splits.
  absl::Status CheckNumCells(int64_t cells, const std::string& where) const {
    return splits != nullptr && num_cells() > cells ? BeyondCells(cells, where) : absl::OkStatus();
  }

 private:
  static absl::Status BeyondCells(int64_t cells, const std::string& where) {
    return errors::InvalidArgument(where, ": an id belongs to a cell beyond the ", cells,
                                   " cells of the batch.");
  }

  // Checks that splits rise from 0 to the number of ids.
  absl::Status CheckSplits(const std::string& where) const {
    bool falls = num_splits < 1 || splits[0] != 0 || splits[num_splits - 1] != count;
    for (int64_t i = 1; i < num_splits; ++i) falls |= splits[i] < splits[i - 1];
    if (!falls) return absl::OkStatus();
    return errors::InvalidArgument(where, ": row splits must rise from 0 to the ", count, " ids.");
  }
};

}  // namespace estimator_bridge
