// The infeed and outfeed between the host and the cores, and sums over cores.

#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "software_tpu/config.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace software_tpu {

// A queue of tuples of tensors for each core. The caller holds a lock.
class Feed {
 public:
  using Tuple = std::vector<tensorflow::Tensor>;

  void Put(int core, Tuple tuple) { waiting_[core].push_back(std::move(tuple)); }

  // Returns false if the queue is empty.
  bool Take(int core, Tuple* tuple) {
    std::deque<Tuple>& queue = waiting_[core];
    if (queue.empty()) return false;
    *tuple = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  void Clear() { waiting_.clear(); }

 private:
  std::map<int, std::deque<Tuple>> waiting_;
};

// Items of cores, by key. The n-th item of one core is combined with the n-th item of every other
// core. The caller holds a lock.
template <class T>
class Rounds {
 public:
  using Item = std::shared_ptr<T>;

  void Bring(const std::string& key, int core, int num_cores, const Item& item) {
    auto& queues = waiting_[key];
    queues.resize(static_cast<size_t>(num_cores));
    queues[static_cast<size_t>(core)].push_back(item);
  }

  // Takes an item of each core, in the order of the cores. Takes nothing if a core has no item.
  std::vector<Item> Take(const std::string& key) {
    auto& queues = waiting_[key];
    std::vector<Item> round;
    if (std::any_of(queues.begin(), queues.end(), [](const auto& one) { return one.empty(); })) {
      return round;
    }
    for (auto& queue : queues) {
      round.push_back(queue.front());
      queue.pop_front();
    }
    return round;
  }

  void TakeBack(const std::string& key, const Item& item) {
    for (auto& queue : waiting_[key]) {
      queue.erase(std::remove(queue.begin(), queue.end(), item), queue.end());
    }
  }

  void Clear() { waiting_.clear(); }

 private:
  std::map<std::string, std::vector<std::deque<Item>>> waiting_;
};

// Sums of tensors over groups of cores. The caller holds a lock.
class ReplicaSums {
 public:
  struct Part {
    tensorflow::Tensor value;  // the core's part, or the sum if `ready`
    std::vector<int> group;    // the cores whose parts are summed
    bool ready = false;
    absl::Status status;
  };
  using PartPointer = std::shared_ptr<Part>;

  // Adds a part. The last core's part makes all of them ready.
  void Bring(const std::string& key, int core, int num_cores, const PartPointer& part) {
    rounds_.Bring(key, core, num_cores, part);
    const std::vector<PartPointer> round = rounds_.Take(key);
    std::vector<tensorflow::Tensor> values;
    for (const PartPointer& one : round) values.push_back(one->value);
    for (const PartPointer& one : round) {
      one->status = Sum(values, one->group, &one->value);
      one->ready = true;
    }
  }

  void TakeBack(const std::string& key, const PartPointer& part) { rounds_.TakeBack(key, part); }
  void Clear() { rounds_.Clear(); }

 private:
  // Sums in the order of the group. The order is the same for all cores of the group, so all get
  // the same bits.
  static absl::Status Sum(const std::vector<tensorflow::Tensor>& values,
                          const std::vector<int>& group, tensorflow::Tensor* sum) {
    const tensorflow::Tensor& first = values[group[0]];
    tensorflow::Tensor total(first.dtype(), first.shape());
    for (size_t i = 0; i < group.size(); ++i) {
      const tensorflow::Tensor& value = values[group[i]];
      if (value.dtype() != first.dtype() || value.shape() != first.shape()) {
        return Refuse("CrossReplicaSum cannot add ", value.shape().DebugString(), " of core ",
                      group[i], " to ", first.shape().DebugString(), " of core ", group[0], ".");
      }
      absl::Status status = Add(value, i == 0, &total);
      if (!status.ok()) return status;
    }
    *sum = total;
    return absl::OkStatus();
  }

  static absl::Status Add(const tensorflow::Tensor& value, bool is_first,
                          tensorflow::Tensor* total) {
    switch (value.dtype()) {
#define SOFTWARE_TPU_ADD(TYPE)                                                        \
  case tensorflow::DataTypeToEnum<TYPE>::value: {                                     \
    const TYPE* from = value.flat<TYPE>().data();                                     \
    TYPE* to = total->flat<TYPE>().data();                                            \
    for (int64_t i = 0; i < value.NumElements(); ++i) {                               \
      to[i] = is_first ? from[i] : static_cast<TYPE>(to[i] + from[i]);                \
    }                                                                                 \
    return absl::OkStatus();                                                          \
  }
      SOFTWARE_TPU_ADD(float)
      SOFTWARE_TPU_ADD(double)
      SOFTWARE_TPU_ADD(Eigen::half)
      SOFTWARE_TPU_ADD(tensorflow::bfloat16)
      SOFTWARE_TPU_ADD(int32_t)
      SOFTWARE_TPU_ADD(uint32_t)
      SOFTWARE_TPU_ADD(int64_t)
#undef SOFTWARE_TPU_ADD
      default:
        return absl::UnimplementedError(
            absl::StrCat("Software TPU: CrossReplicaSum of ",
                         tensorflow::DataTypeString(value.dtype()), " is not supported."));
    }
  }

  Rounds<Part> rounds_;
};

}  // namespace software_tpu
