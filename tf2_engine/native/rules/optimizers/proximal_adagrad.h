// Adagrad with a proximal step; see optimizers/adagrad.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct ProximalAdagrad : Rule {
  static constexpr int kProtoField = 14;
  static constexpr const char* kOpName = "ProximalAdagrad";
  static constexpr std::array kSlots = {"accumulators"};

  float l1 = 0.0f;
  float l2 = 0.0f;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &l1);
    read(2, &l2);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, l1 = l1, l2 = l2](float& w, float& a, float g) {
      a = a + g * g;
      const float eta = lr / std::sqrt(a);
      w = Shrink(w - eta * g, eta, l1, l2);
    });
  }
};
TF2_ENGINE_RULE(ProximalAdagrad);

}  // namespace estimator_bridge
