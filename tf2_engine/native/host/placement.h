// Maps ids to shards and rows. Plain C++17, no TensorFlow.

#pragma once

#include <cstdint>

namespace estimator_bridge {

// Maps ids to shards and rows; see sharding.py.
class Placement {
 public:
  Placement() = default;
  Placement(int64_t rows, int64_t num_shards, bool mod)
      : num_shards_(num_shards), mod_(mod), quotient_(rows / num_shards), extra_(rows % num_shards) {}

  // The placement of numbers whose upper bits are the shard and whose lower bits are the row.
  static Placement OfPositions(int64_t num_shards) {
    Placement placement;
    placement.num_shards_ = num_shards;
    placement.of_positions_ = true;
    return placement;
  }
  static int64_t Position(int64_t shard, int64_t row) { return shard << kRowBits | row; }

  int64_t num_shards() const { return num_shards_; }
  int64_t RowsOf(int64_t shard) const { return quotient_ + (shard < extra_ ? 1 : 0); }

  void Find(int64_t id, int64_t* shard, int64_t* row) const {
    if (num_shards_ == 1) {
      *shard = 0;
      *row = id;
    } else if (of_positions_) {
      *shard = id >> kRowBits;
      *row = id & ((int64_t{1} << kRowBits) - 1);
    } else if (mod_) {
      *shard = id % num_shards_;
      *row = id / num_shards_;
    } else if (id < extra_ * (quotient_ + 1)) {
      *shard = id / (quotient_ + 1);
      *row = id % (quotient_ + 1);
    } else {
      const int64_t beyond = id - extra_ * (quotient_ + 1);
      *shard = extra_ + beyond / quotient_;  // there are rows beyond: quotient_ is not 0
      *row = beyond % quotient_;
    }
  }

 private:
  static constexpr int kRowBits = 40;

  int64_t num_shards_ = 1;
  bool of_positions_ = false, mod_ = false;
  int64_t quotient_ = 0;
  int64_t extra_ = 0;
};

}  // namespace estimator_bridge
