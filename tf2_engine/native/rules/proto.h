// Reads OptimizationParameters: plain C++17.
//
// Reference: optimization_parameters.proto, which defines the field numbers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>

#include "rules/optimizer.h"
#include "rules/wire.h"

namespace estimator_bridge {

namespace proto {

inline void Assign(const Field& field, float* setting) {
  if (field.wire == Field::kFixed32) *setting = field.AsFloat();
}
inline void Assign(const Field& field, bool* setting) {
  if (field.wire == Field::kVarint) *setting = field.AsBool();
}

// Reads the message of one rule.
template <class OneRule>
bool ReadSettings(const Field& message, OneRule* rule) {
  return ForEachField(WireReader(message), [&](const Field& field) {
    rule->ReadSettings([&field](int number, auto* setting) {
      if (number == field.number) Assign(field, setting);
    });
    return true;
  });
}

// Whether a field is a member of the `parameters` oneof that this project does not have:
// bounded_adagrad, online_yogi, user_defined_program, assign, lion, frequency_aware_adagrad.
inline bool IsUnknownRule(int number) {
  for (const int unknown : {19, 20, 24, 25, 29, 30}) {
    if (number == unknown) return true;
  }
  return false;
}

// Reads a field that may be a member of the oneof. The last member counts.
inline bool ReadRule(const Field& field, AnyRule* rule) {
  bool known = false, good = true;
  ForEachRule([&](auto fresh) {
    using OneRule = decltype(fresh);
    if (OneRule::kProtoField != field.number) return;
    known = true;
    if (!std::holds_alternative<OneRule>(*rule)) *rule = fresh;
    good = ReadSettings(field, &std::get<OneRule>(*rule));
  });
  if (known || !IsUnknownRule(field.number)) return good;
  return ReadSettings(field, &rule->emplace<NoRule>());
}

// ClippingLimits: two optional floats, each in its own message.
inline bool ReadLimits(const Field& message, float* low, float* high) {
  return ForEachField(WireReader(message), [&](const Field& limit) {
    if (limit.key() != Bytes(1) && limit.key() != Bytes(2)) return true;
    float* const end = limit.number == 1 ? low : high;
    *end = 0.0f;  // an empty message means 0
    return ForEachField(WireReader(limit), [&](const Field& value) {
      if (value.number == 1) Assign(value, end);
      return true;
    });
  });
}

inline bool ReadRate(const Field& message, Optimizer* optimizer) {
  return ForEachField(WireReader(message), [&](const Field& field) {
    if (field.key() == Fixed32(1)) {
      optimizer->constant_rate = field.AsFloat();
      optimizer->rate_tag = -1;
    }
    if (field.key() != Bytes(2)) return true;
    int64_t tag = 0;
    const bool good = ForEachField(WireReader(field), [&](const Field& value) {
      if (value.key() == Varint(1)) tag = value.AsInt();
      return true;
    });
    if (!good || tag < 0 || tag > std::numeric_limits<int>::max()) return false;
    optimizer->rate_tag = static_cast<int>(tag);
    return true;
  });
}

}  // namespace proto

// Reads a serialized OptimizationParameters. Returns false, with `*optimizer` undefined, if the
// bytes are not a message. As in protobuf, unknown fields and fields of another type are skipped.
inline bool ReadOptimizer(const char* data, size_t size, Optimizer* optimizer) {
  *optimizer = Optimizer();
  return ForEachField(WireReader(data, size), [&](const Field& field) {
    using Accumulation = Optimizer::Accumulation;
    switch (field.key()) {
      case Bytes(2):
        return proto::ReadLimits(field, &optimizer->clip_weight_min, &optimizer->clip_weight_max);
      case Bytes(7):
        return proto::ReadLimits(field, &optimizer->clip_gradient_min,
                                 &optimizer->clip_gradient_max);
      case Bytes(13): return proto::ReadRate(field, optimizer);
      case Fixed32(16): optimizer->weight_decay_factor = field.AsFloat(); return true;
      case Varint(22): optimizer->decay_times_rate = field.AsBool(); return true;
      case Varint(17):
        optimizer->accumulation = field.value == 1   ? Accumulation::kEnabled
                                  : field.value == 2 ? Accumulation::kDisabled
                                                     : Accumulation::kUnspecified;
        return true;
      default: return field.wire != Field::kBytes || proto::ReadRule(field, &optimizer->rule);
    }
  });
}

}  // namespace estimator_bridge
