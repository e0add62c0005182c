// The tables of the software TPU: parameters and slots, looked up, updated, loaded and retrieved.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/placement.h"
#include "software_tpu/config.h"
#include "software_tpu/inputs.h"

namespace software_tpu {

// The rows of one host, in the order of the host's tensors.
class Shard {
 public:
  Shard(int64_t rows, int64_t num_shards, int64_t shard, bool mod)
      : num_shards_(num_shards),
        shard_(shard),
        mod_(mod),
        count_(rows / num_shards + (shard < rows % num_shards)),
        first_(shard * (rows / num_shards) + std::min(shard, rows % num_shards)) {}

  int64_t count() const { return count_; }
  // The id of the shard's row number `local`.
  int64_t Id(int64_t local) const {
    return mod_ ? shard_ + local * num_shards_ : first_ + local;
  }

 private:
  int64_t num_shards_, shard_;
  bool mod_;
  int64_t count_, first_;
};

// The core, counted over all hosts, that owns a row. The rows of a host are assigned to its cores
// in turn.
inline int OwnerCore(const TpuConfig& config, const TableConfig& table, int64_t id) {
  const int64_t hosts = config.num_hosts;
  const int64_t per_host = std::max<int64_t>(1, config.num_cores / hosts);
  int64_t host, local;
  estimator_bridge::Placement(table.rows, hosts, config.mod).Find(id, &host, &local);
  return static_cast<int>(host * per_host + local % per_host);
}

// A feature's lookups on one core, and the gradients of its cells.
struct FeatureGradients {
  int core;
  const Lookups* lookups;
  const float* gradients;  // [cells, dim]
};

class Table {
 public:
  absl::Status Allocate(const TableConfig& config) {
    config_ = &config;
    const size_t size = static_cast<size_t>(config.rows) * config.dim;
    for (int array = 0; array <= config.optimizer.num_slots(); ++array) {
      // Zeroed pages use no memory until they are written.
      arrays_.emplace_back(static_cast<float*>(std::calloc(size, sizeof(float))));
      if (arrays_.back() == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("Software TPU: no memory for table '", config.name, "' of ",
                         config.rows, " rows and ", config.dim, " columns."));
      }
    }
    return absl::OkStatus();
  }

  int num_arrays() const { return static_cast<int>(arrays_.size()); }

  // Copies one shard of an array in and out. Array 0 is the parameters; the slots follow.
  void Load(int array, const Shard& shard, const float* values) {
    for (int64_t row = 0; row < shard.count(); ++row) {
      std::memcpy(Row(array, shard.Id(row)), values + row * dim(), dim() * sizeof(float));
    }
  }
  void Retrieve(int array, const Shard& shard, float* values) const {
    for (int64_t row = 0; row < shard.count(); ++row) {
      std::memcpy(values + row * dim(), Row(array, shard.Id(row)), dim() * sizeof(float));
    }
  }

  // Fills in the activations of a feature, [cells, dim].
  void LookUp(const Lookups& lookups, int64_t cells, float* activations) const {
    std::fill(activations, activations + cells * dim(), 0.0f);
    for (const Lookup& lookup : lookups) {
      const float* row = Row(0, lookup.id);
      float* cell = activations + lookup.cell * dim();
      const Quantization& quantization = config_->quantization;
      for (int64_t i = 0; i < dim(); ++i) {
        cell[i] += lookup.gain * (quantization.enabled ? quantization(row[i]) : row[i]);
      }
    }
  }

  // Applies the gradients of a global batch. Every row in the batch is updated, even if its
  // gradient is zero.
  //
  // The contributions are in the order of cores and then features, and so are the terms of each
  // sum. With gradient accumulation, a row is updated once. Without it, a row is updated once for
  // each core that looked it up, first for the core that owns the row.
  void Update(const TpuConfig& config, const std::vector<FeatureGradients>& contributions,
              const std::vector<float>& rate_of_core) {
    struct Term {
      int64_t id;
      int core;
      const FeatureGradients* from;
      const Lookup* lookup;
    };
    std::vector<Term> terms;
    for (const FeatureGradients& from : contributions) {
      for (const Lookup& lookup : *from.lookups) {
        terms.push_back({lookup.id, from.core, &from, &lookup});
      }
    }
    const bool accumulates = config_->accumulates();
    std::stable_sort(terms.begin(), terms.end(), [&](const Term& a, const Term& b) {
      if (a.id != b.id) return a.id < b.id;
      if (accumulates || a.core == b.core) return false;
      const int owner = OwnerCore(config, *config_, a.id);
      return std::make_pair(a.core != owner, a.core) < std::make_pair(b.core != owner, b.core);
    });
    std::vector<float> sum(dim());
    int64_t next_row = 0;  // the next row outside the batch, for non-lazy optimizers
    const bool every_row = config_->optimizer.updates_all_rows();
    for (size_t begin = 0; begin < terms.size();) {
      const Term& first = terms[begin];
      std::fill(sum.begin(), sum.end(), 0.0f);
      size_t end = begin;
      for (; end < terms.size() && terms[end].id == first.id &&
             (accumulates || terms[end].core == first.core);
           ++end) {
        const Lookup& lookup = *terms[end].lookup;
        const float* gradient = terms[end].from->gradients + lookup.cell * dim();
        for (int64_t i = 0; i < dim(); ++i) sum[i] += lookup.gain * gradient[i];
      }
      if (every_row) UpdateRows(next_row, first.id, rate_of_core[0]);
      ApplyRow(first.id, sum.data(), rate_of_core[accumulates ? 0 : first.core]);
      next_row = first.id + 1;
      begin = end;
    }
    if (every_row) UpdateRows(next_row, config_->rows, rate_of_core[0]);
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  int64_t dim() const { return config_->dim; }
  float* Row(int array, int64_t id) const { return arrays_[array].get() + id * dim(); }

  // Updates rows outside the batch with zero gradients.
  void UpdateRows(int64_t begin, int64_t end, float rate) {
    const std::vector<float> zeros(dim());
    for (int64_t id = begin; id < end; ++id) ApplyRow(id, zeros.data(), rate);
  }

  void ApplyRow(int64_t id, const float* gradient, float rate) {
    estimator_bridge::RowAt at{Row(0, id)};
    for (int slot = 1; slot < num_arrays(); ++slot) at.slots[slot - 1] = Row(slot, id);
    at.g = gradient;
    estimator_bridge::OneRow rows(at, dim());
    estimator_bridge::UpdateRows(config_->optimizer, rate, &rows);
  }

  const TableConfig* config_ = nullptr;
  std::vector<std::unique_ptr<float, Free>> arrays_;
};

}  // namespace software_tpu
