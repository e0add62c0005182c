// A barrier for the cores of the software SparseCores. The op of a table on one core waits for the
// same op on all other cores, because each core has a part of the table and a part of the samples.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "software_tpu/machine.h"
#include "software_tpu/wait_queue.h"

namespace software_sparsecore {

class Meeting {
 public:
  // The work for which the cores meet. It takes the contexts of their ops, in order of the cores.
  using Work = std::function<absl::Status(const std::vector<tensorflow::OpKernelContext*>&)>;

  // Runs the op once all cores have reached it: a core's n-th op of a name meets the n-th op with
  // this name on every other core. The last core to arrive does the work for all cores. If the work
  // fails, all ops fail.
  //
  // A core that ends earlier, for instance with an error, cancels the step and with it the waiting
  // ops, which are then removed.
  void Meet(const std::string& name, const software_tpu::CoreOfOp& core_of_op,
            tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
            Work work) {
    auto arrival = std::make_shared<Arrival>();
    arrival->context = context;
    wait_queue_.Wait(
        context, std::move(done), absl::StrCat("the other cores, for ", name),
        [this, name, arrival, work = std::move(work), &core_of_op] {
          if (!arrival->here) Arrive(name, core_of_op, arrival);
          if (!arrival->status.has_value()) WorkIfComplete(name, work);
          return arrival->status;
        },
        [this, name, arrival] { rounds_.TakeBack(name, arrival); });
  }

  // Sets the number of cores and of SparseCores per core. Waiting ops end with an error.
  void Start(int num_cores, int sparse_cores) {
    // Cannot fail: the change always succeeds.
    (void)wait_queue_.FailAll(absl::StatusCode::kAborted, "it was restarted", [&] {
      rounds_.Clear();
      num_cores_ = num_cores;
      sparse_cores_ = sparse_cores;
      return absl::OkStatus();
    });
  }

  // Call with the lock of `wait_queue_`, as `Work` does.
  int sparse_cores() const { return sparse_cores_; }
  int64_t num_waiting() { return wait_queue_.num_waiting(); }

  static Meeting& Get() {
    // Never deleted: ops may still wait when a process exits.
    static Meeting* meeting = new Meeting;
    return *meeting;
  }

 private:
  struct Arrival {
    tensorflow::OpKernelContext* context;
    bool here = false;
    std::optional<absl::Status> status;
  };

  void Arrive(const std::string& name, const software_tpu::CoreOfOp& core_of_op,
              const std::shared_ptr<Arrival>& arrival) {
    int core;
    absl::Status status = core_of_op.Find(num_cores_, &core);
    arrival->here = true;
    if (!status.ok()) {
      arrival->status = status;
      return;
    }
    rounds_.Bring(name, core, num_cores_, arrival);
  }

  void WorkIfComplete(const std::string& name, const Work& work) {
    const auto arrivals = rounds_.Take(name);
    if (arrivals.empty()) return;
    std::vector<tensorflow::OpKernelContext*> contexts;
    for (const auto& arrival : arrivals) contexts.push_back(arrival->context);
    const absl::Status status = work(contexts);
    for (const auto& arrival : arrivals) arrival->status = status;
  }

  // The lock of this queue guards all members.
  software_tpu::WaitQueue wait_queue_;
  software_tpu::Rounds<Arrival> rounds_;
  int num_cores_ = 1, sparse_cores_ = 1;
};

}  // namespace software_sparsecore
