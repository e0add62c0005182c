// RMSProp with the variance of the gradient; see optimizers/rms_prop.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct CenteredRmsProp : Rule {
  static constexpr int kProtoField = 10;
  static constexpr const char* kOpName = "CenteredRMSProp";
  static constexpr std::array kSlots = {"ms", "mom", "mg"};

  float rho = 0.0f;
  float momentum = 0.0f;
  float epsilon = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &rho);
    read(2, &momentum);
    read(3, &epsilon);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, rho = rho, rest = 1.0f - rho, mu = momentum,
              epsilon = epsilon](float& w, float& ms, float& mom, float& mg, float g) {
      ms = rho * ms + rest * (g * g);
      mg = rho * mg + rest * g;
      mom = mu * mom + lr * g / std::sqrt(ms - mg * mg + epsilon);
      w = w - mom;
    });
  }
};
TF2_ENGINE_RULE(CenteredRmsProp);

}  // namespace estimator_bridge
