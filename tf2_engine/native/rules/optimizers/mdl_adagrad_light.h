// The slots of MDL Adagrad light, whose rule is not public; see optimizers/mdl_adagrad_light.py.

#ifndef TF2_ENGINE_NATIVE_RULES_OPTIMIZERS_MDL_ADAGRAD_LIGHT_H_
#define TF2_ENGINE_NATIVE_RULES_OPTIMIZERS_MDL_ADAGRAD_LIGHT_H_

#include <array>

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

#endif  // TF2_ENGINE_NATIVE_RULES_OPTIMIZERS_MDL_ADAGRAD_LIGHT_H_
