// Adagrad; see optimizers/adagrad.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Adagrad : Rule {
  static constexpr int kProtoField = 3;
  static constexpr const char* kOpName = "Adagrad";
  static constexpr std::array kSlots = {"accumulators"};

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr](float& w, float& a, float g) {
      a = a + g * g;
      w = w - lr * g / std::sqrt(a);
    });
  }
};
TF2_ENGINE_RULE(Adagrad);

}  // namespace estimator_bridge
