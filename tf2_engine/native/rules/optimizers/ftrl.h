// Follow the regularized leader; see optimizers/ftrl.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Ftrl : Rule {
  static constexpr int kProtoField = 5;
  static constexpr const char* kOpName = "FTRL";
  static constexpr std::array kSlots = {"accumulators", "linears"};

  float l1 = 0.0f;
  float l2 = 0.0f;
  float lr_power = 0.0f;
  float beta = 0.0f;
  bool linear_times_rate = false;
  bool allow_zero_accumulator = false;  // not used: zero is always allowed

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &l1);
    read(2, &l2);
    read(3, &lr_power);
    read(6, &linear_times_rate);
    read(7, &beta);
    read(8, &allow_zero_accumulator);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    const float power = -lr_power;
    if (power == 0.5f) {
      Run(lr, step, Root());
    } else if (power == 1.0f) {
      Run(lr, step, Same());
    } else {
      Run(lr, step, Power(power));
    }
  }

 private:
  template <class Step, class Raise>
  void Run(float lr, const Step& step, Raise raise) const {
    const float limit = linear_times_rate ? lr * l1 : l1, twice_l2 = 2.0f * l2;
    step.Run([lr, raise, times_rate = linear_times_rate, limit, l2 = twice_l2, beta = beta,
              constant = lr * twice_l2 + beta](float& w, float& a, float& z, float g) {
      const float before = raise(a);
      a = a + g * g;
      const float raised = raise(a), grown = raised - before;
      z = times_rate ? z + lr * g - grown * w : z + g - grown * w / lr;
      const float divisor = times_rate ? raised + constant : (raised + beta) / lr + l2;
      const float clipped = AtLeast(AtMost(z, limit), -limit);
      w = divisor == 0.0f ? 0.0f : (clipped - z) / divisor;
    });
  }
};
TF2_ENGINE_RULE(Ftrl);

}  // namespace estimator_bridge
