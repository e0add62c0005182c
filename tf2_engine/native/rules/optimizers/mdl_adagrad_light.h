// The slots of MDL Adagrad light, whose rule is not public; see optimizers/adagrad.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct MdlAdagradLight : Rule {
  static constexpr int kProtoField = 11;
  static constexpr const char* kOpName = "MDLAdagradLight";
  static constexpr std::array kSlots = {"accumulators", "weights", "benefits"};
  static constexpr bool kTrains = false;
};
TF2_ENGINE_RULE(MdlAdagradLight);

}  // namespace estimator_bridge
