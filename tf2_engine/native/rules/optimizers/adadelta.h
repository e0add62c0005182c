// Adadelta; see optimizers/rms_prop.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Adadelta : Rule {
  static constexpr int kProtoField = 12;
  static constexpr const char* kOpName = "Adadelta";
  static constexpr std::array kSlots = {"accumulators", "updates"};

  float rho = 0.0f;
  float epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &rho);
    read(2, &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, rho = rho, rest = 1.0f - rho,
              epsilon = epsilon](float& w, float& a, float& d, float g) {
      a = rho * a + rest * (g * g);
      const float u = g * std::sqrt(d + epsilon) / std::sqrt(a + epsilon);
      d = rho * d + rest * (u * u);
      w = w - lr * u;
    });
  }
};
TF2_ENGINE_RULE(Adadelta);

}  // namespace estimator_bridge
