// The rules of the five optimizers that SparseCores support. Each operation is rounded, and
// operations are in the order of TensorFlow's lowering of the ops. The rules differ from
// rules/optimizers/ in this order (SquareLast; the sum in FTRL's divisor), and FTRL does not avoid
// a division by zero. Plain C++17, no TensorFlow.
//
// A rule inherits from the rule in rules/optimizers/ with the same settings, and adds:
//
//   static constexpr const char* kUpdateOp
//       the name of its op: XlaSparseDenseMatmulGradWith<name>AndStaticBufferSize
//   static constexpr std::array kInputs = {"...", ...}
//       the op's inputs for the slots, in the order of its outputs
//   template <class Read> void ReadAttributes(const Read& read)
//       calls read(name, &setting) for every attribute

#pragma once

#include <array>
#include <type_traits>
#include <variant>

#include "rules/optimizer.h"
#include "rules/optimizers.h"
#include "rules/rule.h"

namespace estimator_bridge {
namespace sparsecore {

struct Sgd : estimator_bridge::Sgd {
  static constexpr const char* kUpdateOp = "Sgd";
  static constexpr std::array<const char*, 0> kInputs = {};

  template <class Read>
  void ReadAttributes(const Read&) {}
};

struct Adagrad : estimator_bridge::Adagrad {
  static constexpr const char* kUpdateOp = "Adagrad";
  static constexpr std::array kInputs = {"accumulator"};

  template <class Read>
  void ReadAttributes(const Read&) {}
};

struct AdagradMomentum : estimator_bridge::AdagradMomentum {
  static constexpr const char* kUpdateOp = "AdagradMomentum";
  static constexpr std::array kInputs = {"accumulator", "momenta"};

  template <class Read>
  void ReadAttributes(const Read& read) {
    read("use_nesterov", &use_nesterov);
    read("exponent", &exponent);
    read("beta1", &momentum);
    read("beta2", &beta2);
    read("epsilon", &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const { UpdateBy(lr, step, SquareLast()); }
};

struct Adam : estimator_bridge::Adam {
  static constexpr const char* kUpdateOp = "Adam";
  static constexpr std::array kInputs = {"momenta", "velocity"};

  template <class Read>
  void ReadAttributes(const Read& read) {
    read("use_sum_inside_sqrt", &sum_inside_sqrt);
    read("beta1", &beta1);
    read("beta2", &beta2);
    read("epsilon", &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const { UpdateBy(lr, step, SquareLast()); }
};

struct Ftrl : estimator_bridge::Ftrl {
  static constexpr const char* kUpdateOp = "Ftrl";
  static constexpr std::array kInputs = {"accumulator", "linear"};

  template <class Read>
  void ReadAttributes(const Read& read) {
    read("multiply_linear_by_learning_rate", &linear_times_rate);
    read("beta", &beta);
    read("learning_rate_power", &lr_power);
    read("l1_regularization_strength", &l1);
    read("l2_regularization_strength", &l2);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    const float power = -lr_power;
    if (power == 0.5f) {
      Run(lr, step, Root());
    } else {
      Run(lr, step, Power(power));
    }
  }

 private:
  template <class Step, class Raise>
  void Run(float lr, const Step& step, Raise raise) const {
    const bool times_rate = linear_times_rate;
    step.Run([lr, raise, times_rate, beta = beta, l1 = l1, limit = times_rate ? lr * l1 : l1,
              twice_l2 = 2.0f * l2,
              constant = 2.0f * lr * l2](float& w, float& a, float& z, float g) {
      const float before = raise(a);
      a = a + g * g;
      const float raised = raise(a), grown = raised - before;
      z = times_rate ? z + lr * g - grown * w : z + g - grown * w / lr;
      const float clipped = l1 == 0.0f ? 0.0f : AtLeast(AtMost(z, limit), -limit);
      const float divisor = times_rate ? raised + constant + beta : (raised + beta) / lr + twice_l2;
      w = (clipped - z) / divisor;
    });
  }
};

// The SparseCore rule with the same settings as a rule, or void.
template <class OneRule>
struct Counterpart {
  using Type = void;
};
#define TF2_ENGINE_SPARSECORE_RULE(RULE)          \
  template <>                                     \
  struct Counterpart<estimator_bridge::RULE> {    \
    using Type = RULE;                            \
  }
TF2_ENGINE_SPARSECORE_RULE(Sgd);
TF2_ENGINE_SPARSECORE_RULE(Adagrad);
TF2_ENGINE_SPARSECORE_RULE(AdagradMomentum);
TF2_ENGINE_SPARSECORE_RULE(Adam);
TF2_ENGINE_SPARSECORE_RULE(Ftrl);
#undef TF2_ENGINE_SPARSECORE_RULE

template <class OneRule>
constexpr bool kHasCounterpart = !std::is_void_v<typename Counterpart<OneRule>::Type>;

// Calls `visit` with every SparseCore rule, with default settings.
template <class Visit>
void ForEachRule(const Visit& visit) {
  estimator_bridge::ForEachRule([&visit](const auto& rule) {
    using OneRule = std::decay_t<decltype(rule)>;
    if constexpr (kHasCounterpart<OneRule>) visit(typename Counterpart<OneRule>::Type{rule});
  });
}

// Whether `UpdateRows` applies a rule.
inline bool Trains(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& rule) { return kHasCounterpart<std::decay_t<decltype(rule)>>; },
      optimizer.rule);
}

// Applies one step like estimator_bridge::UpdateRows, with the SparseCore rule if there is one.
inline void UpdateRows(const Optimizer& optimizer, float lr, Rows* rows) {
  const ClipAndDecay around(optimizer, lr);
  std::visit(
      [&](const auto& rule) {
        using OneRule = std::decay_t<decltype(rule)>;
        if constexpr (kHasCounterpart<OneRule>) {
          UpdateRowsBy(typename Counterpart<OneRule>::Type{rule}, lr, around, rows);
        }
      },
      optimizer.rule);
}

}  // namespace sparsecore
}  // namespace estimator_bridge
