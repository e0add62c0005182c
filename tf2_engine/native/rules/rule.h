// The common parts of the optimizers' rules. Plain C++17, no TensorFlow.
//
// A rule is a struct of settings in a file of rules/optimizers/; optimizers.h lists the files. Its
// arithmetic is that of the Python class with the same field of the proto (optimizers/*.py). The
// steps around it, in this order (backends/host/update.py), are: clip the gradient, decay the
// weight, apply the rule, clip the weight. Everything is float32 and rounds after each operation.
// This requires that the compiler follows the source: compile with -ffp-contract=off and without
// -ffast-math. -fno-math-errno and -fno-trapping-math change no value and allow loops to be
// vectorised.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace estimator_bridge {

constexpr float kNoLimit = std::numeric_limits<float>::infinity();
constexpr int kMaxSlots = 3;

// The settings of OptimizationParameters that all optimizers share.
//
// The defaults here and in the rules are proto3's: a missing field is 0 or false, and a missing
// limit is no limit. The Python side writes every setting of its optimizer. The initial values of
// slots are not in the proto.
struct SharedSettings {
  enum class Accumulation { kUnspecified = 0, kEnabled = 1, kDisabled = 2 };

  float constant_rate = 0.0f;  // used if rate_tag is negative
  int rate_tag = -1;           // position among the dynamic rates
  Accumulation accumulation = Accumulation::kUnspecified;
  float clip_gradient_min = -kNoLimit;
  float clip_gradient_max = kNoLimit;
  float clip_weight_min = -kNoLimit;
  float clip_weight_max = kNoLimit;
  float weight_decay_factor = 0.0f;
  bool decay_times_rate = false;
};

// One row and its gradient. No two of these arrays overlap.
struct RowAt {
  float* w;                 // [dim], the row of the parameters
  float* slots[kMaxSlots];  // [dim] each, the row of each slot of the rule
  const float* g;           // [dim], the gradient, summed over all occurrences
};

// The rows that one step of a rule updates, one after another. A row may occur several times. The
// next row is read after the update of the previous row, so that the processor reads and sums it
// while it still divides for the previous row.
class Rows {
 public:
  explicit Rows(int64_t dim) : dim_(dim) {}

  int64_t dim() const { return dim_; }
  // Sets the members of `*at` that the rule has; returns false if no row is left. Set them one by
  // one: copying a whole RowAt would wait for all earlier writes to reach the cache, including rows
  // that are not in it yet.
  virtual bool Next(RowAt* at) = 0;

 protected:
  ~Rows() = default;

 private:
  const int64_t dim_;
};

class OneRow final : public Rows {
 public:
  OneRow(const RowAt& row, int64_t dim) : Rows(dim), row_(row) {}

  bool Next(RowAt* at) override {
    *at = row_;
    return std::exchange(left_, false);
  }

 private:
  const RowAt row_;
  bool left_ = true;
};

// NaN stays NaN in all of these, as in TensorFlow.
inline float AtLeast(float x, float low) { return x < low ? low : x; }
inline float AtMost(float x, float high) { return high < x ? high : x; }
inline float Sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }

// x^exponent for x >= 0. Common exponents are computed without powf. This rounds better and is
// vectorised.
struct Power {
  explicit Power(float exponent) : exponent(exponent) {}
  float operator()(float x) const { return std::pow(x, exponent); }
  float exponent;
};
struct Root {
  float operator()(float x) const { return std::sqrt(x); }
};
struct InverseRoot {
  float operator()(float x) const { return 1.0f / std::sqrt(x); }
};
struct Same {
  float operator()(float x) const { return x; }
};

// (1 - beta) * g^2, the new term of a moving average of squares. Embedding hardware of the first
// generation rounds the square first; SparseCores round the product with 1 - beta first.
struct SquareFirst {
  float operator()(float rest, float g) const { return rest * (g * g); }
};
struct SquareLast {
  float operator()(float rest, float g) const { return rest * g * g; }
};

// Applies the proximal step of the L1 and L2 terms to a weight; see `shrink` in Python.
inline float Shrink(float w, float eta, float l1, float l2) {
  const float left = AtLeast(std::fabs(w) - eta * l1, 0.0f);
  return Sign(w) * left / (1.0f + eta * l2);
}

// The clipping and the decay around every rule.
class ClipAndDecay {
 public:
  ClipAndDecay(const SharedSettings& settings, float lr)
      : gradient_min_(settings.clip_gradient_min),
        gradient_max_(settings.clip_gradient_max),
        weight_min_(settings.clip_weight_min),
        weight_max_(settings.clip_weight_max),
        decay_(settings.decay_times_rate ? settings.weight_decay_factor * lr
                                         : settings.weight_decay_factor),
        decays_(settings.weight_decay_factor != 0.0f) {}

  bool clips() const {
    return gradient_min_ != -kNoLimit || gradient_max_ != kNoLimit || weight_min_ != -kNoLimit ||
           weight_max_ != kNoLimit;
  }
  bool decays() const { return decays_; }
  float Gradient(float g) const { return AtMost(AtLeast(g, gradient_min_), gradient_max_); }
  float Decayed(float w) const { return w - decay_ * w; }
  float Weight(float w) const { return AtMost(AtLeast(w, weight_min_), weight_max_); }

 private:
  float gradient_min_, gradient_max_, weight_min_, weight_max_, decay_;
  bool decays_;
};

// One step of a rule.
template <int kSlots>
class Step {
 public:
  Step(const ClipAndDecay& around, Rows* rows) : around_(around), rows_(rows) {}

  // Calls `rule(w, slots..., g)`, which changes a weight and its slots, for every element of the
  // rows.
  //
  // A rule captures its settings by value (`[lr, rho = rho]`, not `this`), so that the compiler
  // knows that writing a row does not change them.
  template <class Rule>
  void Run(const Rule& rule) const {
    if (around_.decays()) {
      RunRows<true, true>(rule);
    } else if (around_.clips()) {
      RunRows<true, false>(rule);
    } else {
      RunRows<false, false>(rule);
    }
  }

 private:
  template <bool kClips, bool kDecays, class Rule>
  void RunRows(const Rule& rule) const {
    const int64_t dim = rows_->dim();
    RowAt at;
    while (rows_->Next(&at)) {
      float* first = kSlots > 0 ? at.slots[0] : nullptr;
      float* second = kSlots > 1 ? at.slots[1] : nullptr;
      float* third = kSlots > 2 ? at.slots[2] : nullptr;
      Loop<kClips, kDecays>(around_, at.w, first, second, third, at.g, dim, rule);
    }
  }

  // The pragma says that rows do not overlap. Without it, the compiler checks this at the start of
  // each row and then processes one element at a time.
  template <bool kClips, bool kDecays, class Rule>
  static void Loop(const ClipAndDecay around, float* __restrict w, float* __restrict first,
                   float* __restrict second, float* __restrict third, const float* __restrict g,
                   int64_t dim, const Rule rule) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < dim; ++i) {
      float weight = kDecays ? around.Decayed(w[i]) : w[i];
      float a = kSlots > 0 ? first[i] : 0.0f;
      float b = kSlots > 1 ? second[i] : 0.0f;
      float c = kSlots > 2 ? third[i] : 0.0f;
      const float gradient = kClips ? around.Gradient(g[i]) : g[i];
      if constexpr (kSlots == 0) rule(weight, gradient);
      if constexpr (kSlots == 1) rule(weight, a, gradient);
      if constexpr (kSlots == 2) rule(weight, a, b, gradient);
      if constexpr (kSlots == 3) rule(weight, a, b, c, gradient);
      w[i] = kClips ? around.Weight(weight) : weight;
      if (kSlots > 0) first[i] = a;
      if (kSlots > 1) second[i] = b;
      if (kSlots > 2) third[i] = c;
    }
  }

  const ClipAndDecay& around_;
  Rows* const rows_;
};

// The base of all rules. A rule adds
//
//   static constexpr int kProtoField
//       its field in OptimizationParameters
//   static constexpr const char* kOpName
//       the name of its ops: LoadTPUEmbedding<name>Parameters, and Retrieve...
//   static constexpr std::array kSlots = {"...", ...}
//       its slots, if it has any, in the order of the Load op
//   template <class Read> void ReadSettings(const Read& read)
//       calls read(number, &setting) for every field of its message, if there are any
//   template <class Step> void Update(float lr, const Step& step) const
//       applies one step; `lr` is the rate of the step, constant or dynamic
struct Rule {
  static constexpr std::array<const char*, 0> kSlots = {};
  static constexpr bool kTrains = true;  // false: it has slots, but no public rule

  template <class Read>
  void ReadSettings(const Read&) {}
  // Whether every row of the table changes in every step, if need be with a zero gradient.
  bool updates_all_rows() const { return false; }
};

// The rule of a field of the proto, or void.
template <int kProtoField>
struct RuleOfField {
  using Type = void;
};

}  // namespace estimator_bridge

// Registers a rule of optimizers.h. gpu/kernels.h creates kernels from the same list.
#define TF2_ENGINE_RULE(RULE)                   \
  template <>                                   \
  struct RuleOfField<RULE::kProtoField> {       \
    using Type = RULE;                          \
    static constexpr const char* kName = #RULE; \
  }
