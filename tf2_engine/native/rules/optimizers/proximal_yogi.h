// Yogi with a proximal step; see optimizers/adam.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct ProximalYogi : Rule {
  static constexpr int kProtoField = 21;
  static constexpr const char* kOpName = "ProximalYogi";
  static constexpr std::array kSlots = {"v", "m"};

  float l1 = 0.0f;
  float l2 = 0.0f;
  float beta1 = 0.0f;
  float beta2 = 0.0f;
  float epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &l1);
    read(2, &l2);
    read(3, &beta1);
    read(4, &beta2);
    read(5, &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, l1 = l1, l2 = l2, beta1 = beta1, rest1 = 1.0f - beta1, rest2 = 1.0f - beta2,
              epsilon = epsilon](float& w, float& v, float& m, float g) {
      const float square = g * g;
      m = beta1 * m + rest1 * g;
      v = v - Sign(v - square) * (rest2 * square);
      const float eta = lr / (std::sqrt(v) + epsilon);
      w = Shrink(w - eta * m, eta, l1, l2);
    });
  }
};
TF2_ENGINE_RULE(ProximalYogi);

}  // namespace estimator_bridge
