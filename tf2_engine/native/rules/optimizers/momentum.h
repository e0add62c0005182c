// Gradient descent with momentum; see optimizers/sgd.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Momentum : Rule {
  static constexpr int kProtoField = 8;
  static constexpr const char* kOpName = "Momentum";
  static constexpr std::array kSlots = {"momenta"};

  float momentum = 0.0f;
  bool use_nesterov = false;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &momentum);
    read(2, &use_nesterov);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, mu = momentum, nesterov = use_nesterov](float& w, float& m, float g) {
      m = mu * m + g;
      w = w - lr * (nesterov ? g + mu * m : m);
    });
  }
};
TF2_ENGINE_RULE(Momentum);

}  // namespace estimator_bridge
