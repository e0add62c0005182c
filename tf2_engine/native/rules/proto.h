// Reads protobuf's wire format, and OptimizationParameters with it: plain C++17.
//
// TensorFlow's own message classes are not in the library that custom ops may link to. No bytes,
// however malformed, are read past their end, loop for ever or recurse.
//
// Reference: the encoding guide of protocol buffers; optimization_parameters.proto, from which the
// field numbers are.

#ifndef TF2_ENGINE_NATIVE_PROTO_H_
#define TF2_ENGINE_NATIVE_PROTO_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "rules/rules.h"

namespace estimator_bridge {

// One field of a message. Which members count follows from `wire`.
struct Field {
  enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  int number = 0;
  int wire = kVarint;
  uint64_t value = 0;  // kVarint, kFixed64, kFixed32
  const char* data = nullptr;
  size_t size = 0;  // kBytes

  float AsFloat() const {  // of kFixed32
    const uint32_t bits = static_cast<uint32_t>(value);
    float number_;
    std::memcpy(&number_, &bits, sizeof(number_));
    return number_;
  }
  int64_t AsInt() const { return static_cast<int64_t>(value); }  // of kVarint
  bool AsBool() const { return value != 0; }                     // of kVarint
  std::string AsString() const { return std::string(data, size); }  // of kBytes
};

// Goes through the fields of one message.
//
//   WireReader reader(data, size);
//   Field field;
//   while (reader.Next(&field)) ...
//   if (!reader.ok()) ...  // the bytes are no message
class WireReader {
 public:
  WireReader(const char* data, size_t size)
      : at_(reinterpret_cast<const uint8_t*>(data)), left_(size) {}
  explicit WireReader(const Field& field) : WireReader(field.data, field.size) {}
  explicit WireReader(const std::string& bytes) : WireReader(bytes.data(), bytes.size()) {}

  // Reads the next field; false at the end, and where the bytes are no message.
  bool Next(Field* field) {
    if (!ok_ || left_ == 0) return false;
    uint64_t key;
    if (!Varint(&key)) return Fail();
    const uint64_t number = key >> 3;
    if (number == 0 || number >= (1u << 29)) return Fail();
    *field = Field();
    field->number = static_cast<int>(number);
    field->wire = static_cast<int>(key & 7);
    switch (field->wire) {
      case Field::kVarint:
        return Varint(&field->value) || Fail();
      case Field::kFixed64:
        return Fixed(8, &field->value) || Fail();
      case Field::kFixed32:
        return Fixed(4, &field->value) || Fail();
      case Field::kBytes: {
        uint64_t size;
        if (!Varint(&size) || size > left_) return Fail();
        field->data = reinterpret_cast<const char*>(at_);
        field->size = static_cast<size_t>(size);
        at_ += size;
        left_ -= static_cast<size_t>(size);
        return true;
      }
      default:  // groups, which proto3 does not have
        return Fail();
    }
  }

  // Reads one number of a packed repeated field, whose bytes the reader was made with.
  bool NextPacked(uint64_t* value) {
    if (!ok_ || left_ == 0) return false;
    return Varint(value) || Fail();
  }

  bool ok() const { return ok_; }

 private:
  bool Fail() {
    ok_ = false;
    return false;
  }

  bool Varint(uint64_t* value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return false;
      const uint8_t byte = *at_++;
      --left_;
      result |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) {
        *value = result;
        return true;
      }
    }
    return false;
  }

  bool Fixed(size_t size, uint64_t* value) {
    if (left_ < size) return false;
    uint64_t result = 0;
    for (size_t i = 0; i < size; ++i) result |= static_cast<uint64_t>(at_[i]) << (8 * i);
    at_ += size;
    left_ -= size;
    *value = result;
    return true;
  }

  const uint8_t* at_;
  size_t left_;
  bool ok_ = true;
};

namespace proto {

// Where a setting of one optimizer is stored: as a float or as a bool, by field number.
struct Setting {
  int number;
  float Optimizer::*as_float;
  bool Optimizer::*as_bool;
};

// A member of the `parameters` oneof.
struct Member {
  int number;
  Kind kind;
  Setting settings[6];  // those with number 0 are none
};

inline const Member* FindMember(int number) {
  using O = Optimizer;
  static const Member kMembers[] = {
      {3, Kind::kAdagrad, {}},
      {4, Kind::kSgd, {}},
      {5,
       Kind::kFtrl,
       {{1, &O::l1, nullptr},
        {2, &O::l2, nullptr},
        {3, &O::lr_power, nullptr},
        {7, &O::beta, nullptr},
        {6, nullptr, &O::linear_times_rate},
        {8, nullptr, &O::allow_zero_accumulator}}},
      {6,
       Kind::kAdam,
       {{3, &O::beta1, nullptr},
        {4, &O::beta2, nullptr},
        {5, &O::epsilon, nullptr},
        {8, nullptr, &O::non_lazy},
        {10, nullptr, &O::sum_inside_sqrt}}},
      {8, Kind::kMomentum, {{1, &O::momentum, nullptr}, {2, nullptr, &O::use_nesterov}}},
      {9,
       Kind::kRmsProp,
       {{1, &O::rho, nullptr}, {2, &O::momentum, nullptr}, {3, &O::epsilon, nullptr}}},
      {10,
       Kind::kCenteredRmsProp,
       {{1, &O::rho, nullptr}, {2, &O::momentum, nullptr}, {3, &O::epsilon, nullptr}}},
      {11, Kind::kMdlAdagradLight, {}},
      {12, Kind::kAdadelta, {{1, &O::rho, nullptr}, {2, &O::epsilon, nullptr}}},
      {14, Kind::kProximalAdagrad, {{1, &O::l1, nullptr}, {2, &O::l2, nullptr}}},
      {21,
       Kind::kProximalYogi,
       {{1, &O::l1, nullptr},
        {2, &O::l2, nullptr},
        {3, &O::beta1, nullptr},
        {4, &O::beta2, nullptr},
        {5, &O::epsilon, nullptr}}},
      {23,
       Kind::kFrequencyEstimator,
       {{1, &O::tau, nullptr},
        {2, &O::max_delta, nullptr},
        {3, &O::outlier_threshold, nullptr},
        {4, &O::weight_exponent, nullptr}}},
      {26,
       Kind::kAdagradMomentum,
       {{1, &O::momentum, nullptr},
        {2, nullptr, &O::use_nesterov},
        {3, &O::exponent, nullptr},
        {4, &O::beta2, nullptr},
        {5, &O::epsilon, nullptr}}},
      // Of the proto, but not of this project: bounded_adagrad, online_yogi, user_defined_program,
      // assign, lion.
      {19, Kind::kUnknown, {}},
      {20, Kind::kUnknown, {}},
      {24, Kind::kUnknown, {}},
      {25, Kind::kUnknown, {}},
      {29, Kind::kUnknown, {}},
  };
  for (const Member& member : kMembers) {
    if (member.number == number) return &member;
  }
  return nullptr;
}

inline bool ReadSettings(const Field& message, const Member& member, Optimizer* optimizer) {
  WireReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    for (const Setting& setting : member.settings) {
      if (setting.number == 0 || setting.number != field.number) continue;
      if (setting.as_float != nullptr && field.wire == Field::kFixed32) {
        optimizer->*setting.as_float = field.AsFloat();
      } else if (setting.as_bool != nullptr && field.wire == Field::kVarint) {
        optimizer->*setting.as_bool = field.AsBool();
      }
    }
  }
  return reader.ok();
}

// ClippingLimits: two optional floats, each in a message of its own.
inline bool ReadLimits(const Field& message, float* low, float* high) {
  WireReader reader(message);
  Field limit;
  while (reader.Next(&limit)) {
    if (limit.wire != Field::kBytes || (limit.number != 1 && limit.number != 2)) continue;
    float found = 0.0f;  // a message that is there, but empty, says 0
    WireReader inner(limit);
    Field value;
    while (inner.Next(&value)) {
      if (value.number == 1 && value.wire == Field::kFixed32) found = value.AsFloat();
    }
    if (!inner.ok()) return false;
    *(limit.number == 1 ? low : high) = found;
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

// Reads a serialized OptimizationParameters; false, and `*optimizer` of no use, if the bytes are
// none. What is unknown, or has another type, is passed over, as protobuf does.
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
      } else if (const proto::Member* member = proto::FindMember(field.number)) {
        optimizer->kind = member->kind;  // of a oneof the last one counts
        good = proto::ReadSettings(field, *member, optimizer);
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

#endif  // TF2_ENGINE_NATIVE_PROTO_H_
