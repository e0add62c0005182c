// The rules of the five optimizers that SparseCores have, each operation rounded and in the order in
// which TensorFlow's lowering of the ops has it. They differ from rules/optimizers/ in that order:
// (1 - beta) * g is first here, and FTRL divides by zero. Plain C++17, no TensorFlow.
//
// A rule has, besides those of rules/rule.h:
//
//   static constexpr const char* kOpName
//       what the op is called: XlaSparseDenseMatmulGradWith<name>AndStaticBufferSize
//   static constexpr std::array kSlots = {"...", ...}
//       the op's inputs for the slots, in the order of its outputs
//   template <class Read> void ReadSettings(const Read& read)
//       calls read(name, &setting) for every attribute

#ifndef TF2_ENGINE_NATIVE_SOFTWARE_SPARSECORE_RULES_H_
#define TF2_ENGINE_NATIVE_SOFTWARE_SPARSECORE_RULES_H_

#include <array>
#include <cmath>

#include "rules/rule.h"

namespace software_sparsecore {

using estimator_bridge::Step;

struct Sgd : estimator_bridge::Rule {
  static constexpr const char* kOpName = "Sgd";

  template <class Read>
  void ReadSettings(const Read&) {}

  void Update(float lr, const Step<0>& step) const {
    step.Run([lr](float& w, float g) { w = w - lr * g; });
  }
};

struct Adagrad : estimator_bridge::Rule {
  static constexpr const char* kOpName = "Adagrad";
  static constexpr std::array kSlots = {"accumulator"};

  template <class Read>
  void ReadSettings(const Read&) {}

  void Update(float lr, const Step<1>& step) const {
    step.Run([lr](float& w, float& a, float g) {
      a = a + g * g;
      w = w - lr * g / std::sqrt(a);
    });
  }
};

struct AdagradMomentum : estimator_bridge::Rule {
  static constexpr const char* kOpName = "AdagradMomentum";
  static constexpr std::array kSlots = {"accumulator", "momenta"};

  bool use_nesterov = false;
  float exponent = 2.0f, beta1 = 0.0f, beta2 = 1.0f, epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read("use_nesterov", &use_nesterov);
    read("exponent", &exponent);
    read("beta1", &beta1);
    read("beta2", &beta2);
    read("epsilon", &epsilon);
  }

  void Update(float lr, const Step<2>& step) const {
    step.Run([lr, power = -1.0f / exponent, nesterov = use_nesterov, beta1 = beta1, beta2 = beta2,
              rest = 1.0f - beta2, epsilon = epsilon](float& w, float& a, float& m, float g) {
      a = beta2 == 1.0f ? a + g * g : beta2 * a + rest * g * g;
      const float scaled = std::pow(a + epsilon, power) * g;
      m = beta1 * m + scaled;
      w = w - lr * (nesterov ? beta1 * m + scaled : m);
    });
  }
};

struct Adam : estimator_bridge::Rule {
  static constexpr const char* kOpName = "Adam";
  static constexpr std::array kSlots = {"momenta", "velocity"};

  bool sum_inside_sqrt = false;
  float beta1 = 0.0f, beta2 = 0.0f, epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read("use_sum_inside_sqrt", &sum_inside_sqrt);
    read("beta1", &beta1);
    read("beta2", &beta2);
    read("epsilon", &epsilon);
  }

  void Update(float lr, const Step<2>& step) const {
    const float inside = sum_inside_sqrt ? epsilon * epsilon : 0.0f;
    step.Run([lr, beta1 = beta1, rest1 = 1.0f - beta1, beta2 = beta2, rest2 = 1.0f - beta2, inside,
              outside = sum_inside_sqrt ? 0.0f : epsilon](float& w, float& m, float& v, float g) {
      m = beta1 * m + rest1 * g;
      v = beta2 * v + rest2 * g * g;
      w = w - lr * m / (std::sqrt(v + inside) + outside);
    });
  }
};

struct Ftrl : estimator_bridge::Rule {
  static constexpr const char* kOpName = "Ftrl";
  static constexpr std::array kSlots = {"accumulator", "linear"};

  bool times_rate = false;
  float beta = 0.0f, lr_power = -0.5f, l1 = 0.0f, l2 = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read("multiply_linear_by_learning_rate", &times_rate);
    read("beta", &beta);
    read("learning_rate_power", &lr_power);
    read("l1_regularization_strength", &l1);
    read("l2_regularization_strength", &l2);
  }

  void Update(float lr, const Step<2>& step) const {
    step.Run([lr, power = -lr_power, times_rate = times_rate, beta = beta, l1 = l1,
              limit = times_rate ? lr * l1 : l1, twice_l2 = 2.0f * l2,
              constant = 2.0f * lr * l2](float& w, float& a, float& z, float g) {
      const float before = std::pow(a, power);
      a = a + g * g;
      const float raised = std::pow(a, power), grown = raised - before;
      z = times_rate ? z + lr * g - grown * w : z + g - grown * w / lr;
      const float clipped =
          l1 == 0.0f ? 0.0f : estimator_bridge::AtLeast(estimator_bridge::AtMost(z, limit), -limit);
      const float divisor = times_rate ? raised + constant + beta : (raised + beta) / lr + twice_l2;
      w = (clipped - z) / divisor;
    });
  }
};

}  // namespace software_sparsecore

#endif  // TF2_ENGINE_NATIVE_SOFTWARE_SPARSECORE_RULES_H_
