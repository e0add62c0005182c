// The steps between two hits of a row; see optimizers/frequency_estimator.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct FrequencyEstimator : Rule {
  static constexpr int kProtoField = 23;
  static constexpr const char* kOpName = "FrequencyEstimator";
  static constexpr std::array kSlots = {"last_hit_step"};

  float tau = 0.0f;
  float max_delta = 0.0f;
  float outlier_threshold = 0.0f;
  float weight_exponent = 0.0f;  // not used here; only lookups use it

  template <class Read>
  void ReadSettings(const Read& read) {
    read(1, &tau);
    read(2, &max_delta);
    read(3, &outlier_threshold);
    read(4, &weight_exponent);
  }

  template <class Step>
  void Update(float lr, const Step& step) const {
    step.Run([lr, tau = tau, rest = 1.0f - tau, most = max_delta,
              threshold = outlier_threshold](float& w, float& last, float) {
      const float delta = lr - last;
      const float c = AtMost(delta, most);
      w = delta >= threshold * w ? c : w * rest + c * tau;
      last = lr;
    });
  }
};
TF2_ENGINE_RULE(FrequencyEstimator);

}  // namespace estimator_bridge
