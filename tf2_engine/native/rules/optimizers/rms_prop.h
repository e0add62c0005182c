// RMSProp with momentum; see optimizers/rms_prop.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct RmsProp : Rule {
  static constexpr int kProtoField = 9;
  static constexpr const char* kOpName = "RMSProp";
  static constexpr std::array kSlots = {"ms", "mom"};

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
              epsilon = epsilon](float& w, float& ms, float& mom, float g) {
      ms = rho * ms + rest * (g * g);
      mom = mu * mom + lr * g / std::sqrt(ms + epsilon);
      w = w - mom;
    });
  }
};
TF2_ENGINE_RULE(RmsProp);

}  // namespace estimator_bridge
