// The optimizer of a table: its settings, its rule, and one step of it. Plain C++17, no TensorFlow.

#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "rules/optimizers.h"
#include "rules/rule.h"

namespace estimator_bridge {

// Represents a missing optimizer, and optimizers in the proto that this project does not have.
struct NoRule : Rule {
  static constexpr int kProtoField = 0;
  static constexpr const char* kOpName = "";
  static constexpr bool kTrains = false;
};

// Upper bound of the field numbers in the `parameters` oneof.
constexpr int kRuleFields = 64;

template <int... kFields>
auto RulesOf(std::integer_sequence<int, kFields...>) {
  return std::tuple_cat(
      std::conditional_t<std::is_void_v<typename RuleOfField<kFields>::Type>, std::tuple<>,
                         std::tuple<typename RuleOfField<kFields>::Type>>()...);
}
// All rules, with default settings.
using AllRules = decltype(RulesOf(std::make_integer_sequence<int, kRuleFields>()));

template <class... AnyOf>
std::variant<NoRule, AnyOf...> OneOf(std::tuple<AnyOf...>);
// One of the rules, with its settings.
using AnyRule = decltype(OneOf(AllRules()));

// Calls `visit` with every rule, with default settings.
template <class Visit>
void ForEachRule(const Visit& visit) {
  std::apply([&visit](const auto&... rule) { (visit(rule), ...); }, AllRules());
}

struct Optimizer : SharedSettings {
  AnyRule rule;

  // Whether there is a rule, or at least its slots.
  bool is_known() const { return !std::holds_alternative<NoRule>(rule); }
  // Whether `UpdateRows` applies a rule.
  bool trains() const {
    return std::visit([](const auto& one) { return one.kTrains; }, rule);
  }
  bool updates_all_rows() const {
    return std::visit([](const auto& one) { return one.updates_all_rows(); }, rule);
  }
  // The number of slots. Their order is that of the Load op's inputs after `parameters`, and of
  // `slot_names` in Python.
  int num_slots() const {
    return std::visit([](const auto& one) { return static_cast<int>(one.kSlots.size()); }, rule);
  }
  const char* op_name() const {
    return std::visit([](const auto& one) { return one.kOpName; }, rule);
  }
};

// Applies one step of one rule.
//
// This is a separate function, because compilers do not vectorise large functions or functions that
// seem to run rarely.
template <class OneRule>
__attribute__((noinline)) void UpdateRowsBy(const OneRule& rule, float lr,
                                            const ClipAndDecay& around, Rows* rows) {
  rule.Update(lr, Step<static_cast<int>(OneRule::kSlots.size())>(around, rows));
}

// Applies one step to each row, in order, if the optimizer has a rule.
//
// Args:
//   lr: the rate of this step, constant or dynamic.
inline void UpdateRows(const Optimizer& optimizer, float lr, Rows* rows) {
  const ClipAndDecay around(optimizer, lr);
  std::visit(
      [&](const auto& rule) {
        if constexpr (std::decay_t<decltype(rule)>::kTrains) UpdateRowsBy(rule, lr, around, rows);
      },
      optimizer.rule);
}

}  // namespace estimator_bridge
