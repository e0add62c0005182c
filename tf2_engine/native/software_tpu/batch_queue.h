// Decides which batches are looked up, which update the tables, and which wait.
//
// Every core has its own queue. The n-th batches of all cores belong together and form a step.
// Batches of different names do not wait for each other.

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.h"
#include "software_tpu/config.h"
#include "software_tpu/inputs.h"
#include "software_tpu/tables.h"

namespace software_tpu {

// The gradients of one core, and the dynamic learning rates by tag.
struct Gradients {
  std::vector<tensorflow::Tensor> gradients;
  std::vector<float> rates;
};

// The tables and queued batches of a TPU that is configured for embeddings. The caller holds a
// lock.
class BatchQueue {
 public:
  // Allocates a part of an activation, [cells, dim].
  using Output = std::function<absl::Status(int feature, float** values)>;

  static absl::Status Make(TpuConfig config, std::unique_ptr<BatchQueue>* batch_queue) {
    auto queue = std::unique_ptr<BatchQueue>(new BatchQueue(std::move(config)));
    queue->tables_.resize(queue->config_.tables.size());
    for (size_t i = 0; i < queue->tables_.size(); ++i) {
      absl::Status status = queue->tables_[i].Allocate(queue->config_.tables[i]);
      if (!status.ok()) return status;
    }
    *batch_queue = std::move(queue);
    return absl::OkStatus();
  }

  const TpuConfig& config() const { return config_; }
  Table& table(int number) { return tables_[number]; }

  // Enqueues the batch of one core.
  absl::Status Enqueue(int core, const std::string& name, bool training,
                       std::vector<Lookups> lookups) {
    if (config_.mode == Mode::kInference) training = false;
    std::deque<Step>& steps = steps_by_name_[name];
    auto step = steps.begin();
    while (step != steps.end() && step->cores[core].enqueued) ++step;
    if (step == steps.end()) {
      steps.emplace_back();
      step = steps.end() - 1;
      step->training = training;
      step->cores.resize(config_.num_cores);
    }
    if (step->training != training) {
      return Refuse("core ", core, " enqueued a batch for ", ModeName(training),
                    ", but other cores enqueued their batches of this step for ",
                    ModeName(step->training), "; the cores of a TPU run the same program.");
    }
    step->cores[core].enqueued = true;
    step->cores[core].lookups = std::move(lookups);
    return absl::OkStatus();
  }

  // Looks up a core's oldest batch that was not looked up yet. Returns nothing if no lookup is
  // possible yet.
  std::optional<absl::Status> LookUp(int core, const std::string& name, const Output& output) {
    std::deque<Step>& steps = steps_by_name_[name];
    size_t at = 0;
    while (at < steps.size() && steps[at].cores[core].looked_up) ++at;
    if (at == steps.size() || !steps[at].cores[core].enqueued || !MayLookUp(steps, at)) {
      return std::nullopt;
    }
    CoreBatch& batch = steps[at].cores[core];
    for (size_t i = 0; i < config_.features.size(); ++i) {
      float* values;
      absl::Status status = output(static_cast<int>(i), &values);
      if (!status.ok()) return status;
      const FeatureConfig& feature = config_.features[i];
      tables_[feature.table].LookUp(batch.lookups[i], feature.cells, values);
    }
    batch.looked_up = true;
    Advance(steps);
    return absl::OkStatus();
  }

  // Takes the gradients of a core's oldest training batch that was looked up. Returns nothing if
  // such a batch has yet to be looked up.
  std::optional<absl::Status> Send(int core, const std::string& name, Gradients sent) {
    std::deque<Step>& steps = steps_by_name_[name];
    for (Step& step : steps) {
      CoreBatch& batch = step.cores[core];
      if (!step.training || batch.sent) continue;
      if (!batch.looked_up && batch.enqueued) return std::nullopt;
      if (!batch.looked_up) break;
      batch.sent = true;
      batch.gradients = std::move(sent);
      Advance(steps);
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "Software TPU: core ", core, " sent gradients, but no training batch of this core",
        name.empty() ? "" : absl::StrCat(" with the name '", name, "'"),
        " was looked up; enqueue a batch for training, and receive its activations first."));
  }

  // Applies the updates that wait for a later lookup.
  void Flush() {
    for (auto& [name, steps] : steps_by_name_) {
      for (Step& step : steps) {
        if (step.training && !step.applied && step.All(&CoreBatch::sent)) Apply(step);
      }
      DropFinished(steps);
    }
  }

  // Drops the waiting updates, because their tables are about to be replaced.
  void Drop() {
    for (auto& [name, steps] : steps_by_name_) {
      for (Step& step : steps) {
        if (step.training && step.All(&CoreBatch::sent)) step.applied = true;
      }
      DropFinished(steps);
    }
  }

 private:
  struct CoreBatch {
    bool enqueued = false, looked_up = false, sent = false;
    std::vector<Lookups> lookups;  // by feature
    Gradients gradients;
  };
  struct Step {
    bool training = false, applied = false;
    std::vector<CoreBatch> cores;
    bool All(bool CoreBatch::*done) const {
      for (const CoreBatch& core : cores) {
        if (!(core.*done)) return false;
      }
      return true;
    }
  };

  explicit BatchQueue(TpuConfig config) : config_(std::move(config)) {}

  static const char* ModeName(bool training) { return training ? "training" : "inference"; }

  // Without pipelining, a lookup includes every earlier update. With pipelining, a lookup for
  // training never includes the update of the training step just before it; a lookup for inference
  // includes all updates.
  bool MayLookUp(std::deque<Step>& steps, size_t at) {
    bool hidden = config_.pipelined && steps[at].training;
    for (size_t i = at; i-- > 0;) {
      if (!steps[i].training) continue;
      if (hidden) {
        hidden = false;
      } else if (!steps[i].applied) {
        const bool waits = config_.pipelined && steps[i].All(&CoreBatch::sent);
        if (steps[at].training || !waits) return false;
        Apply(steps[i]);
      }
    }
    return true;
  }

  // Applies each step for which all cores have sent their gradients. With pipelining, the step
  // waits until all cores have looked up the next training batch.
  void Advance(std::deque<Step>& steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      Step& step = steps[i];
      if (!step.training || step.applied || !step.All(&CoreBatch::sent)) continue;
      if (config_.pipelined) {
        size_t next = i + 1;
        while (next < steps.size() && !steps[next].training) ++next;
        if (next == steps.size() || !steps[next].All(&CoreBatch::looked_up)) continue;
      }
      Apply(step);
    }
    DropFinished(steps);
  }

  void DropFinished(std::deque<Step>& steps) {
    while (!steps.empty() &&
           (steps.front().training ? steps.front().applied
                                  : steps.front().All(&CoreBatch::looked_up))) {
      steps.pop_front();
    }
  }

  void Apply(Step& step) {
    for (size_t number = 0; number < tables_.size(); ++number) {
      std::vector<FeatureGradients> contributions;
      std::vector<float> rates;
      for (int core = 0; core < config_.num_cores; ++core) {
        const CoreBatch& batch = step.cores[core];
        const TableConfig& table = config_.tables[number];
        rates.push_back(table.optimizer.rate_tag < 0
                            ? table.optimizer.constant_rate
                            : batch.gradients.rates[table.optimizer.rate_tag]);
        for (size_t i = 0; i < config_.features.size(); ++i) {
          if (config_.features[i].table != static_cast<int64_t>(number)) continue;
          contributions.push_back({core, &batch.lookups[i],
                                   batch.gradients.gradients[i].flat<float>().data()});
        }
      }
      tables_[number].Update(config_, contributions, rates);
    }
    step.applied = true;
    for (CoreBatch& batch : step.cores) {
      batch.lookups.clear();
      batch.gradients = Gradients();
    }
  }

  const TpuConfig config_;
  std::vector<Table> tables_;
  std::map<std::string, std::deque<Step>> steps_by_name_;
};

}  // namespace software_tpu
