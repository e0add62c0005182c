// Reads OptimizationParameters: plain C++17.
//
// Reference: optimization_parameters.proto, from which the field numbers are.

#ifndef TF2_ENGINE_NATIVE_RULES_PROTO_H_
#define TF2_ENGINE_NATIVE_RULES_PROTO_H_

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
  WireReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    rule->ReadSettings([&field](int number, auto* setting) {
      if (number == field.number) Assign(field, setting);
    });
  }
  return reader.ok();
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
  WireReader reader(message);
  Field limit;
  while (reader.Next(&limit)) {
    if (limit.wire != Field::kBytes || (limit.number != 1 && limit.number != 2)) continue;
    float* const end = limit.number == 1 ? low : high;
    *end = 0.0f;  // a message that is there, but empty, says 0
    WireReader inner(limit);
    Field value;
    while (inner.Next(&value)) {
      if (value.number == 1) Assign(value, end);
    }
    if (!inner.ok()) return false;
  }
  return reader.ok();
}

inline bool ReadRate(const Field& message, Optimizer* optimizer) {
  WireReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == 1 && field.wire == Field::kFixed32) {
      optimizer->constant_rate = field.AsFloat();
      optimizer->rate_tag = -1;
    } else if (field.number == 2 && field.wire == Field::kBytes) {
      int64_t tag = 0;
      WireReader inner(field);
      Field value;
      while (inner.Next(&value)) {
        if (value.number == 1 && value.wire == Field::kVarint) tag = value.AsInt();
      }
      if (!inner.ok() || tag < 0 || tag > std::numeric_limits<int>::max()) return false;
      optimizer->rate_tag = static_cast<int>(tag);
    }
  }
  return reader.ok();
}

}  // namespace proto

// Reads a serialized OptimizationParameters. Returns false, with `*optimizer` undefined, if the
// bytes are not a message. As in protobuf, unknown fields and fields of another type are skipped.
inline bool ReadOptimizer(const char* data, size_t size, Optimizer* optimizer) {
  *optimizer = Optimizer();
  WireReader reader(data, size);
  Field field;
  while (reader.Next(&field)) {
    bool good = true;
    if (field.wire == Field::kBytes) {
      if (field.number == 2) {
        good = proto::ReadLimits(field, &optimizer->clip_weight_min, &optimizer->clip_weight_max);
      } else if (field.number == 7) {
        good = proto::ReadLimits(field, &optimizer->clip_gradient_min,
                                 &optimizer->clip_gradient_max);
      } else if (field.number == 13) {
        good = proto::ReadRate(field, optimizer);
      } else {
        good = proto::ReadRule(field, &optimizer->rule);
      }
    } else if (field.number == 16 && field.wire == Field::kFixed32) {
      optimizer->weight_decay_factor = field.AsFloat();
    } else if (field.number == 22 && field.wire == Field::kVarint) {
      optimizer->decay_times_rate = field.AsBool();
    } else if (field.number == 17 && field.wire == Field::kVarint) {
      using Accumulation = Optimizer::Accumulation;
      optimizer->accumulation = field.value == 1   ? Accumulation::kEnabled
                                : field.value == 2 ? Accumulation::kDisabled
                                                   : Accumulation::kUnspecified;
    }
    if (!good) return false;
  }
  return reader.ok();
}

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_RULES_PROTO_H_
