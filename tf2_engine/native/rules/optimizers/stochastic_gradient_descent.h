// Stochastic gradient descent; see optimizers/sgd.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Sgd : Rule {
  static constexpr int kProtoField = 4;
  static constexpr const char* kOpName = "StochasticGradientDescent";

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr](float& w, float g) { w = w - lr * g; });
  }
};
TF2_ENGINE_RULE(Sgd);

}  // namespace estimator_bridge
