// Reads protobuf's wire format: plain C++17.
//
// TensorFlow's own message classes are not in the library that custom ops may link to. Malformed
// bytes are never read past their end and cause neither endless loops nor recursion.
//
// Reference: the encoding guide of protocol buffers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace estimator_bridge {

// One field of a message. `wire` determines which members are set.
struct Field {
  enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  int number = 0;
  int wire = kVarint;
  uint64_t value = 0;  // of kVarint, kFixed64 and kFixed32
  const char* data = nullptr;
  size_t size = 0;  // of kBytes

  float AsFloat() const {  // of kFixed32
    const uint32_t bits = static_cast<uint32_t>(value);
    float number_;
    std::memcpy(&number_, &bits, sizeof(number_));
    return number_;
  }
  int64_t AsInt() const { return static_cast<int64_t>(value); }  // of kVarint
  bool AsBool() const { return value != 0; }                     // of kVarint
  std::string AsString() const { return std::string(data, size); }  // of kBytes
  uint32_t key() const { return static_cast<uint32_t>(number) << 3 | static_cast<uint32_t>(wire); }
};

// The `key` of a field, given its number.
constexpr uint32_t Varint(uint32_t number) { return number << 3 | Field::kVarint; }
constexpr uint32_t Bytes(uint32_t number) { return number << 3 | Field::kBytes; }
constexpr uint32_t Fixed32(uint32_t number) { return number << 3 | Field::kFixed32; }

// Iterates over the fields of one message; see `ForEachField`.
class WireReader {
 public:
  WireReader(const char* data, size_t size)
      : at_(reinterpret_cast<const uint8_t*>(data)), left_(size) {}
  explicit WireReader(const Field& field) : WireReader(field.data, field.size) {}
  explicit WireReader(const std::string& bytes) : WireReader(bytes.data(), bytes.size()) {}

  // Reads the next field. Returns false at the end, or if the bytes are not a message.
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

  // Reads one number of a packed repeated field, whose bytes were passed to the constructor.
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

// Calls `visit` with each field of a message. Returns false if a call returns false, or if the
// bytes are not a message.
template <class Visit>
bool ForEachField(WireReader reader, const Visit& visit) {
  Field field;
  while (reader.Next(&field)) {
    if (!visit(field)) return false;
  }
  return reader.ok();
}

}  // namespace estimator_bridge
