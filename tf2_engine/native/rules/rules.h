// The optimizers' rules on one row: plain C++17, no TensorFlow.
//
// The arithmetic is that of the Python rules (optimizers/*.py) around which come, in this order
// (drivers/host/update.py): clip the gradient, decay the weight, apply the rule, clip the weight.
// Everything is float32 and rounds after each operation, which holds only if the compiler keeps to
// the source: compile with -ffp-contract=off and without -ffast-math. -fno-math-errno and
// -fno-trapping-math change no value and let the loops vectorise.

#ifndef TF2_ENGINE_NATIVE_RULES_H_
#define TF2_ENGINE_NATIVE_RULES_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace estimator_bridge {

enum class Kind {
  kNone,  // no optimizer is set
  kSgd,
  kAdagrad,
  kAdagradMomentum,
  kAdam,
  kFtrl,
  kMomentum,
  kRmsProp,
  kCenteredRmsProp,
  kProximalAdagrad,
  kProximalYogi,
  kAdadelta,
  kFrequencyEstimator,
  kMdlAdagradLight,  // has slots, but no public rule
  kUnknown,          // an optimizer that this project does not have
};

constexpr float kNoLimit = std::numeric_limits<float>::infinity();
constexpr int kMaxSlots = 3;

// The settings of OptimizationParameters, those that all optimizers share and those of each.
//
// The defaults are proto3's: what a message leaves out is 0 or false, and a limit that it leaves
// out is none. The Python side writes every setting of its optimizer out. A setting that several
// optimizers have under one meaning has one member. What a slot starts with is not in the proto.
struct Optimizer {
  enum class Accumulation { kUnspecified = 0, kEnabled = 1, kDisabled = 2 };

  Kind kind = Kind::kNone;
  float constant_rate = 0.0f;  // counts if rate_tag is negative
  int rate_tag = -1;           // position among the dynamic rates
  Accumulation accumulation = Accumulation::kUnspecified;
  float clip_gradient_min = -kNoLimit;
  float clip_gradient_max = kNoLimit;
  float clip_weight_min = -kNoLimit;
  float clip_weight_max = kNoLimit;
  float weight_decay_factor = 0.0f;
  bool decay_times_rate = false;

  float momentum = 0.0f;         // Momentum, AdagradMomentum, RMSProp, CenteredRMSProp
  bool use_nesterov = false;     // Momentum, AdagradMomentum
  float exponent = 0.0f;         // AdagradMomentum
  float beta1 = 0.0f;            // Adam, ProximalYogi
  float beta2 = 0.0f;            // Adam, ProximalYogi, AdagradMomentum
  float epsilon = 0.0f;          // all but SGD, Adagrad, Momentum, FTRL, ProximalAdagrad
  float rho = 0.0f;              // RMSProp, CenteredRMSProp, Adadelta
  bool non_lazy = false;         // Adam: every row of the table moves every step
  bool sum_inside_sqrt = false;  // Adam
  float l1 = 0.0f;               // FTRL, ProximalAdagrad, ProximalYogi
  float l2 = 0.0f;               // the same
  float lr_power = 0.0f;         // FTRL
  float beta = 0.0f;             // FTRL
  bool linear_times_rate = false;       // FTRL
  bool allow_zero_accumulator = false;  // FTRL; zero is always allowed
  float tau = 0.0f;                     // FrequencyEstimator, as the three below
  float max_delta = 0.0f;
  float outlier_threshold = 0.0f;
  float weight_exponent = 0.0f;  // what lookups do with it is not told to a device
};

// Returns how many slots an optimizer has; their order is that of the Load op's inputs after
// `parameters`, and of `slot_names` in Python.
inline int NumSlots(Kind kind) {
  switch (kind) {
    case Kind::kAdagrad:             // accumulators
    case Kind::kMomentum:            // momenta
    case Kind::kProximalAdagrad:     // accumulators
    case Kind::kFrequencyEstimator:  // last_hit_step
      return 1;
    case Kind::kAdagradMomentum:  // accumulators, momenta
    case Kind::kAdam:             // momenta, velocities
    case Kind::kFtrl:             // accumulators, linears
    case Kind::kRmsProp:          // ms, mom
    case Kind::kProximalYogi:     // v, m
    case Kind::kAdadelta:         // accumulators, updates
      return 2;
    case Kind::kCenteredRmsProp:  // ms, mom, mg
    case Kind::kMdlAdagradLight:  // accumulators, weights, benefits
      return 3;
    default:
      return 0;
  }
}

// Returns whether `UpdateRows` knows a rule for it.
inline bool HasRule(Kind kind) {
  return kind != Kind::kNone && kind != Kind::kMdlAdagradLight && kind != Kind::kUnknown;
}

// One row and what moves it; no two of these overlap.
struct RowAt {
  float* w;                 // [dim], the row of the parameters
  float* slots[kMaxSlots];  // of NumSlots(o.kind) slots [dim], the row of each
  const float* g;           // [dim], the gradient, summed over all occurrences
};

struct Rows {
  const RowAt* first;
  int64_t count, dim;
};

namespace rules {

// NaN stays NaN in all of these, as in TensorFlow.
inline float AtLeast(float x, float low) { return x < low ? low : x; }
inline float AtMost(float x, float high) { return high < x ? high : x; }
inline float Sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }

// x^exponent for x of at least 0. The common exponents round better, and vectorise, without powf.
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

inline float Shrink(float w, float eta, float l1, float l2) {
  const float left = AtLeast(std::fabs(w) - eta * l1, 0.0f);
  return Sign(w) * left / (1.0f + eta * l2);
}

// What clips and decays around every rule.
struct Common {
  Common(const Optimizer& o, float lr)
      : gradient_min(o.clip_gradient_min),
        gradient_max(o.clip_gradient_max),
        weight_min(o.clip_weight_min),
        weight_max(o.clip_weight_max),
        decay(o.decay_times_rate ? o.weight_decay_factor * lr : o.weight_decay_factor),
        decays(o.weight_decay_factor != 0.0f) {}

  bool nothing() const {
    return gradient_min == -kNoLimit && gradient_max == kNoLimit && weight_min == -kNoLimit &&
           weight_max == kNoLimit && !decays;
  }
  float Gradient(float g) const { return AtMost(AtLeast(g, gradient_min), gradient_max); }
  float Decayed(float w) const { return decays ? w - decay * w : w; }
  float Weight(float w) const { return AtMost(AtLeast(w, weight_min), weight_max); }

  float gradient_min, gradient_max, weight_min, weight_max, decay;
  bool decays;
};

// Runs `rule(w, a, b, c, g)`, which changes a weight and its slots, over a row. `kSlots` says how
// many of a, b and c there are. Rows do not overlap: without the pragma a compiler checks that
// whenever a row begins, and then takes one element at a time.
template <int kSlots, bool kCommon, class Rule>
inline void Loop(const Common common, float* __restrict w, float* __restrict first,
                 float* __restrict second, float* __restrict third, const float* __restrict g,
                 int64_t dim, const Rule rule) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < dim; ++i) {
    float weight = kCommon ? common.Decayed(w[i]) : w[i];
    float a = kSlots > 0 ? first[i] : 0.0f;
    float b = kSlots > 1 ? second[i] : 0.0f;
    float c = kSlots > 2 ? third[i] : 0.0f;
    rule(weight, a, b, c, kCommon ? common.Gradient(g[i]) : g[i]);
    w[i] = kCommon ? common.Weight(weight) : weight;
    if (kSlots > 0) first[i] = a;
    if (kSlots > 1) second[i] = b;
    if (kSlots > 2) third[i] = c;
  }
}

template <int kSlots, class Rule>
inline void Run(const Common& common, const Rows& rows, const Rule& rule) {
  const bool plain = common.nothing();
  for (int64_t i = 0; i < rows.count; ++i) {
    const RowAt& at = rows.first[i];
    float* first = kSlots > 0 ? at.slots[0] : nullptr;
    float* second = kSlots > 1 ? at.slots[1] : nullptr;
    float* third = kSlots > 2 ? at.slots[2] : nullptr;
    if (plain) {
      Loop<kSlots, false>(common, at.w, first, second, third, at.g, rows.dim, rule);
    } else {
      Loop<kSlots, true>(common, at.w, first, second, third, at.g, rows.dim, rule);
    }
  }
}

template <class Scale>
inline void AdagradMomentum(const Optimizer& o, float lr, const Common& common, const Rows& rows,
                            Scale scale) {
  const float mu = o.momentum, beta2 = o.beta2, rest = 1.0f - o.beta2, epsilon = o.epsilon;
  const bool sums = beta2 == 1.0f, nesterov = o.use_nesterov;
  Run<2>(common, rows, [=](float& w, float& a, float& m, float&, float g) {
    a = sums ? a + g * g : beta2 * a + rest * (g * g);
    const float s = g * scale(a + epsilon);
    m = mu * m + s;
    w = w - lr * (nesterov ? mu * m + s : m);
  });
}

template <class Raise>
inline void Ftrl(const Optimizer& o, float lr, const Common& common, const Rows& rows, Raise raise) {
  const bool times_rate = o.linear_times_rate;
  const float limit = times_rate ? lr * o.l1 : o.l1, l2 = 2.0f * o.l2, beta = o.beta;
  const float constant = lr * l2 + beta;
  Run<2>(common, rows, [=](float& w, float& a, float& z, float&, float g) {
    const float before = raise(a);
    a = a + g * g;
    const float raised = raise(a), grown = raised - before;
    z = times_rate ? z + lr * g - grown * w : z + g - grown * w / lr;
    const float divisor = times_rate ? raised + constant : (raised + beta) / lr + l2;
    const float clipped = AtLeast(AtMost(z, limit), -limit);
    w = divisor == 0.0f ? 0.0f : (clipped - z) / divisor;
  });
}

}  // namespace rules

// Applies one step to each of some rows, one after the other; a row may be among them again. Asks for
// HasRule(o.kind); does nothing otherwise. Several at once spare each of them looking up what to do.
//
// Args:
//   lr: the rate of this step, constant or dynamic.
//
// It is a function of its own, because a compiler does not vectorise where it takes the caller for
// one that seldom runs.
__attribute__((noinline)) inline void UpdateRows(const Optimizer& o, float lr, const Rows& rows) {
  using namespace rules;  // NOLINT: of this header, inside of a function
  const Common common(o, lr);
  const float mu = o.momentum, rho = o.rho, rho_rest = 1.0f - o.rho, epsilon = o.epsilon;
  const float beta1 = o.beta1, rest1 = 1.0f - o.beta1, beta2 = o.beta2, rest2 = 1.0f - o.beta2;
  const float l1 = o.l1, l2 = o.l2;
  switch (o.kind) {
    case Kind::kSgd:
      Run<0>(common, rows,
             [=](float& w, float&, float&, float&, float g) { w = w - lr * g; });
      break;
    case Kind::kAdagrad:
      Run<1>(common, rows, [=](float& w, float& a, float&, float&, float g) {
        a = a + g * g;
        w = w - lr * g / std::sqrt(a);
      });
      break;
    case Kind::kAdagradMomentum: {
      const float exponent = -1.0f / o.exponent;
      if (exponent == -0.5f) {
        AdagradMomentum(o, lr, common, rows, InverseRoot());
      } else {
        AdagradMomentum(o, lr, common, rows, Power(exponent));
      }
      break;
    }
    case Kind::kAdam: {
      const float squared = epsilon * epsilon;
      if (o.sum_inside_sqrt) {
        Run<2>(common, rows, [=](float& w, float& m, float& v, float&, float g) {
          m = beta1 * m + rest1 * g;
          v = beta2 * v + rest2 * (g * g);
          w = w - lr * m / std::sqrt(v + squared);
        });
      } else {
        Run<2>(common, rows, [=](float& w, float& m, float& v, float&, float g) {
          m = beta1 * m + rest1 * g;
          v = beta2 * v + rest2 * (g * g);
          w = w - lr * m / (std::sqrt(v) + epsilon);
        });
      }
      break;
    }
    case Kind::kFtrl: {
      const float power = -o.lr_power;
      if (power == 0.5f) {
        Ftrl(o, lr, common, rows, Root());
      } else if (power == 1.0f) {
        Ftrl(o, lr, common, rows, Same());
      } else {
        Ftrl(o, lr, common, rows, Power(power));
      }
      break;
    }
    case Kind::kMomentum: {
      const bool nesterov = o.use_nesterov;
      Run<1>(common, rows, [=](float& w, float& m, float&, float&, float g) {
        m = mu * m + g;
        w = w - lr * (nesterov ? g + mu * m : m);
      });
      break;
    }
    case Kind::kRmsProp:
      Run<2>(common, rows, [=](float& w, float& ms, float& mom, float&, float g) {
        ms = rho * ms + rho_rest * (g * g);
        mom = mu * mom + lr * g / std::sqrt(ms + epsilon);
        w = w - mom;
      });
      break;
    case Kind::kCenteredRmsProp:
      Run<3>(common, rows, [=](float& w, float& ms, float& mom, float& mg, float g) {
        ms = rho * ms + rho_rest * (g * g);
        mg = rho * mg + rho_rest * g;
        mom = mu * mom + lr * g / std::sqrt(ms - mg * mg + epsilon);
        w = w - mom;
      });
      break;
    case Kind::kProximalAdagrad:
      Run<1>(common, rows, [=](float& w, float& a, float&, float&, float g) {
        a = a + g * g;
        const float eta = lr / std::sqrt(a);
        w = Shrink(w - eta * g, eta, l1, l2);
      });
      break;
    case Kind::kProximalYogi:
      Run<2>(common, rows, [=](float& w, float& v, float& m, float&, float g) {
        const float square = g * g;
        m = beta1 * m + rest1 * g;
        v = v - Sign(v - square) * (rest2 * square);
        const float eta = lr / (std::sqrt(v) + epsilon);
        w = Shrink(w - eta * m, eta, l1, l2);
      });
      break;
    case Kind::kAdadelta:
      Run<2>(common, rows, [=](float& w, float& a, float& d, float&, float g) {
        a = rho * a + rho_rest * (g * g);
        const float u = g * std::sqrt(d + epsilon) / std::sqrt(a + epsilon);
        d = rho * d + rho_rest * (u * u);
        w = w - lr * u;
      });
      break;
    case Kind::kFrequencyEstimator: {
      const float tau = o.tau, rest = 1.0f - o.tau, most = o.max_delta;
      const float threshold = o.outlier_threshold;
      Run<1>(common, rows, [=](float& w, float& last, float&, float&, float) {
        const float delta = lr - last;
        const float c = AtMost(delta, most);
        w = delta >= threshold * w ? c : w * rest + c * tau;
        last = lr;
      });
      break;
    }
    default:
      break;
  }
}

}  // namespace estimator_bridge

#endif  // TF2_ENGINE_NATIVE_RULES_H_
