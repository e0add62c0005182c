// Reads a TPUEmbeddingConfiguration. Returns an error if a TPU would refuse it.
//
// Reference: tpu_embedding_configuration.proto, which defines the field numbers.

#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rules/proto.h"
#include "rules/optimizer.h"

namespace software_tpu {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("Software TPU: ", parts...));
}

// Rounds looked-up numbers to the nearest of `buckets` values between two limits.
struct Quantization {
  bool enabled = false;
  float low = -estimator_bridge::kNoLimit;
  float high = estimator_bridge::kNoLimit;
  int64_t buckets = 0;

  float operator()(float x) const {
    const float quantum = (high - low) / static_cast<float>(buckets - 1);
    const float clipped = x < low ? low : (x > high ? high : x);
    return std::floor((clipped - low) / quantum + 0.5f) * quantum + low;
  }
};

struct TableConfig {
  std::string name;
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t num_features = 0;  // in the old form, without feature descriptors
  estimator_bridge::Optimizer optimizer;
  Quantization quantization;

  bool accumulates() const {
    return optimizer.accumulation != estimator_bridge::Optimizer::Accumulation::kDisabled;
  }
};

struct FeatureConfig {
  std::string name;
  int64_t table = 0;
  std::vector<int64_t> shape;  // the activation's shape without the embedding dimension
  int64_t cells = 1;           // product of the shape
};

enum class Mode { kInference = 1, kTraining = 2, kBackwardPassOnly = 3 };

struct TpuConfig {
  std::vector<TableConfig> tables;
  std::vector<FeatureConfig> features;
  Mode mode = Mode::kTraining;
  int64_t batch_size = 0;  // in the old form
  int64_t num_hosts = 0;
  int64_t num_cores = 0;
  bool mod = false;
  bool pipelined = false;
  bool spmd = false;
  int64_t cores_per_replica = 0;
  int num_rates = 0;  // the number of dynamic learning rates
};

// Whether bytes are text in UTF-8, like strings in protos. Messages cannot contain other bytes.
inline bool IsText(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const unsigned char first = static_cast<unsigned char>(bytes[i++]);
    // The number of bytes that follow, and the smallest character with so many bytes.
    const int more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2
                     : first >> 3 == 30                  ? 3
                                                         : -1;
    if (more < 0) return false;
    const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint32_t character = more == 0 ? first : first & (0x3f >> more);
    for (int j = 0; j < more; ++j) {
      if (i == bytes.size() || (static_cast<unsigned char>(bytes[i]) & 0xc0) != 0x80) return false;
      character = character << 6 | (static_cast<unsigned char>(bytes[i++]) & 0x3f);
    }
    if (character < least[more] || character > 0x10ffff ||
        (character >= 0xd800 && character <= 0xdfff)) {
      return false;
    }
  }
  return true;
}

inline std::string AsText(const std::string& bytes) { return IsText(bytes) ? bytes : "?"; }

// The text by which messages name a feature and its table.
inline std::string Where(const TpuConfig& config, int64_t feature) {
  const FeatureConfig& one = config.features[feature];
  return absl::StrCat("feature ", feature, one.name.empty() ? "" : " '", one.name,
                      one.name.empty() ? "" : "'", " of table '", config.tables[one.table].name,
                      "'");
}

namespace config_reader {

using estimator_bridge::Bytes;
using estimator_bridge::Field;
using estimator_bridge::ForEachField;
using estimator_bridge::Varint;
using estimator_bridge::WireReader;

// Larger sizes are a mistake, and their products would overflow.
constexpr int64_t kMostRows = int64_t{1} << 40;
constexpr int64_t kMostColumns = int64_t{1} << 20;
constexpr int64_t kMostCells = int64_t{1} << 31;
constexpr int64_t kMostCores = 1 << 16;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return Refuse("in TPUEmbeddingConfiguration ", parts..., ".");
}

// Part of OptimizationParameters. The optimizer's settings are read elsewhere.
inline bool ReadQuantization(const Field& parameters, Quantization* quantization) {
  return ForEachField(WireReader(parameters), [&](const Field& message) {
    if (message.key() != Bytes(27)) return true;
    return ForEachField(WireReader(message), [&](const Field& field) {
      switch (field.key()) {
        case Varint(1): quantization->enabled = field.AsBool(); return true;
        case Bytes(2):
          return estimator_bridge::proto::ReadLimits(field, &quantization->low,
                                                     &quantization->high);
        case Varint(3): quantization->buckets = field.AsInt(); return true;
        default: return true;
      }
    });
  });
}

inline bool ReadTable(const Field& message, TableConfig* table) {
  return ForEachField(WireReader(message), [&](const Field& field) {
    switch (field.key()) {
      case Bytes(1): table->name = field.AsString(); return IsText(table->name);
      case Varint(2): table->rows = field.AsInt(); return true;
      case Varint(3): table->dim = field.AsInt(); return true;
      case Varint(4): table->num_features = field.AsInt(); return true;
      case Bytes(5):
        return estimator_bridge::ReadOptimizer(field.data, field.size, &table->optimizer) &&
               ReadQuantization(field, &table->quantization);
      default: return true;
    }
  });
}

inline bool ReadFeature(const Field& message, FeatureConfig* feature) {
  return ForEachField(WireReader(message), [&](const Field& field) {
    WireReader packed(field);
    uint64_t size;
    switch (field.key()) {
      case Bytes(1): feature->name = field.AsString(); return IsText(feature->name);
      case Varint(2): feature->table = field.AsInt(); return true;
      case Varint(3): feature->shape.push_back(field.AsInt()); return true;
      case Bytes(3):
        while (packed.NextPacked(&size)) feature->shape.push_back(static_cast<int64_t>(size));
        return packed.ok();
      default: return true;
    }
  });
}

inline bool ReadSharding(const Field& message, TpuConfig* config) {
  return ForEachField(WireReader(message), [&](const Field& field) {
    if (field.key() == Varint(1)) config->spmd = field.AsBool();
    if (field.key() == Varint(2)) config->cores_per_replica = field.AsInt();
    return true;
  });
}

// Leaves `mode` and `sharding` unchanged if the message does not have them.
inline bool Read(const std::string& bytes, TpuConfig* config, int64_t* mode, int64_t* sharding) {
  return ForEachField(WireReader(bytes), [&](const Field& field) {
    switch (field.key()) {
      case Bytes(1): return ReadTable(field, &config->tables.emplace_back());
      case Bytes(10): return ReadFeature(field, &config->features.emplace_back());
      case Bytes(11): return ReadSharding(field, config);
      case Varint(2): *mode = field.AsInt(); return true;
      case Varint(3): config->batch_size = field.AsInt(); return true;
      case Varint(4): config->num_hosts = field.AsInt(); return true;
      case Varint(5): config->num_cores = field.AsInt(); return true;
      case Varint(6): *sharding = field.AsInt(); return true;
      case Varint(7): config->pipelined = field.AsBool(); return true;
      case Bytes(9): return IsText(field.AsString());  // profile_data_directory
      default: return true;
    }
  });
}

// Adds features to the old form, which has none: one per table, with all lookups of a sample.
inline absl::Status AddFeatures(TpuConfig* config) {
  if (!config->features.empty()) {
    if (config->batch_size != 0) {
      return Wrong("batch_size_per_tensor_core is ", config->batch_size,
                   " and there are feature descriptors; only one of them may give the sizes");
    }
    return absl::OkStatus();
  }
  for (size_t i = 0; i < config->tables.size(); ++i) {
    const TableConfig& table = config->tables[i];
    if (table.num_features < 1 || config->batch_size < 1 || table.num_features > kMostCells ||
        config->batch_size > kMostCells) {
      return Wrong("there are no feature descriptors, table '", table.name, "' has num_features ",
                   table.num_features, ", and batch_size_per_tensor_core is ",
                   config->batch_size, "; both must be positive");
    }
    FeatureConfig feature;
    feature.table = static_cast<int64_t>(i);
    feature.shape = {config->batch_size * table.num_features};
    config->features.push_back(feature);
  }
  return absl::OkStatus();
}

inline absl::Status CheckTables(TpuConfig* config) {
  if (config->tables.empty()) return Wrong("there is no table");
  std::set<std::string> names;
  std::set<int> tags;
  for (const TableConfig& table : config->tables) {
    if (!names.insert(table.name).second) return Wrong("two tables are named '", table.name, "'");
    if (table.rows < 1 || table.rows > kMostRows) {
      return Wrong("table '", table.name, "' has vocabulary_size ", table.rows);
    }
    if (table.dim < 1 || table.dim > kMostColumns) {
      return Wrong("table '", table.name, "' has dimension ", table.dim);
    }
    if (table.rows < config->num_hosts) {
      return Wrong("table '", table.name, "' has vocabulary_size ", table.rows, " on ",
                   config->num_hosts, " hosts; every host must have a row");
    }
    if (!table.optimizer.is_known()) {
      return Wrong("table '", table.name, "' has no optimizer that is known here");
    }
    const Quantization& quantization = table.quantization;
    if (quantization.enabled &&
        (quantization.buckets < 2 || !std::isfinite(quantization.low) ||
         !std::isfinite(quantization.high) || quantization.low >= quantization.high)) {
      return Wrong("table '", table.name, "' is quantized to ", quantization.buckets,
                   " buckets between ", quantization.low, " and ", quantization.high,
                   "; there must be at least two buckets, and two finite limits in order");
    }
    if (table.optimizer.rate_tag >= 0) tags.insert(table.optimizer.rate_tag);
  }
  config->num_rates = static_cast<int>(tags.size());
  if (!tags.empty() && *tags.rbegin() != config->num_rates - 1) {
    return Wrong("the tags of the dynamic learning rates go up to ", *tags.rbegin(),
                 ", but there are ", config->num_rates, " tags; they must count from 0");
  }
  return absl::OkStatus();
}

inline absl::Status CheckFeatures(TpuConfig* config) {
  std::vector<bool> used(config->tables.size());
  for (size_t i = 0; i < config->features.size(); ++i) {
    FeatureConfig& feature = config->features[i];
    if (feature.table < 0 || feature.table >= static_cast<int64_t>(config->tables.size())) {
      return Wrong("feature ", i, " '", feature.name, "' has table_id ", feature.table,
                   ", but there are ", config->tables.size(), " tables");
    }
    used[feature.table] = true;
    if (feature.shape.empty()) return Wrong(Where(*config, i), " has no input_shape");
    for (const int64_t size : feature.shape) {
      if (size < 1 || size > kMostCells || feature.cells > kMostCells / size) {
        return Wrong(Where(*config, i), " has the size ", size, " in its input_shape");
      }
      feature.cells *= size;
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return Wrong("table '", config->tables[i].name, "' has no feature");
  }
  return absl::OkStatus();
}

inline absl::Status CheckCores(const TpuConfig& config) {
  if (config.num_hosts < 1 || config.num_cores < config.num_hosts ||
      config.num_cores > kMostCores || config.num_cores % config.num_hosts != 0) {
    return Wrong("num_hosts is ", config.num_hosts, " and num_tensor_cores is ", config.num_cores,
                 "; every host must have the same number of cores");
  }
  if (config.spmd && config.cores_per_replica != 1) {
    return absl::UnimplementedError(absl::StrCat(
        "Software TPU: model parallelism (num_cores_per_replica ", config.cores_per_replica,
        ") is not supported; make the strategy without a device assignment."));
  }
  return absl::OkStatus();
}

}  // namespace config_reader

// Reads and checks a configuration.
inline absl::Status ParseConfig(const std::string& bytes, TpuConfig* config) {
  namespace reader = config_reader;
  int64_t mode = 0, sharding = 0;
  if (!reader::Read(bytes, config, &mode, &sharding)) {
    return Refuse("the configuration of ", bytes.size(),
                  " bytes is not a serialized TPUEmbeddingConfiguration.");
  }
  if (mode < 1 || mode > 3) return reader::Wrong("mode is ", mode, "; it must be set");
  if (sharding < 0 || sharding > 1) return reader::Wrong("sharding_strategy is ", sharding);
  config->mode = static_cast<Mode>(mode);
  config->mod = sharding == 1;
  absl::Status status = reader::CheckCores(*config);
  if (status.ok()) status = reader::CheckTables(config);
  if (status.ok()) status = reader::AddFeatures(config);
  if (status.ok()) status = reader::CheckFeatures(config);
  return status;
}

}  // namespace software_tpu
