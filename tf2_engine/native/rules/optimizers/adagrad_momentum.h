// Adagrad with momentum; see optimizers/adagrad.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct AdagradMomentum : Rule {
  static constexpr int kProtoField = 26;
  static constexpr const char* kOpName = "AdagradMomentum";
  static constexpr std::array kSlots = {"accumulators", "momenta"};

  float momentum = 0.0f;
  bool use_nesterov = false;
  float exponent = 0.0f;
  float beta2 = 0.0f;
  float epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &momentum);
    read(2, &use_nesterov);
    read(3, &exponent);
    read(4, &beta2);
    read(5, &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const { UpdateBy(lr, step, SquareFirst()); }

 protected:
  template <class Step, class Square>
  void UpdateBy(float lr, const Step& step, Square square) const {
    const float power = -1.0f / exponent;
    if (power == -0.5f) {
      Run(lr, step, square, InverseRoot());
    } else {
      Run(lr, step, square, Power(power));
    }
  }

 private:
  template <class Step, class Square, class Scale>
  void Run(float lr, const Step& step, Square square, Scale scale) const {
    step.Run([lr, square, scale, mu = momentum, nesterov = use_nesterov, sums = beta2 == 1.0f,
              beta2 = beta2, rest = 1.0f - beta2,
              epsilon = epsilon](float& w, float& a, float& m, float g) {
      a = sums ? a + g * g : beta2 * a + square(rest, g);
      const float s = g * scale(a + epsilon);
      m = mu * m + s;
      w = w - lr * (nesterov ? mu * m + s : m);
    });
  }
};
TF2_ENGINE_RULE(AdagradMomentum);

}  // namespace estimator_bridge
