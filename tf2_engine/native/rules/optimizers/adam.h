// Adam without bias correction; see optimizers/adam.py.

#pragma once

#include "rules/rule.h"

namespace estimator_bridge {

struct Adam : Rule {
  static constexpr int kProtoField = 6;
  static constexpr const char* kOpName = "ADAM";
  static constexpr std::array kSlots = {"momenta", "velocities"};

  float beta1 = 0.0f;
  float beta2 = 0.0f;
  float epsilon = 0.0f;
  bool non_lazy = false;
  bool sum_inside_sqrt = false;

  template <class Read>
  void ReadSettings(const Read& read) {
    read(3, &beta1);
    read(4, &beta2);
    read(5, &epsilon);
    read(8, &non_lazy);
    read(10, &sum_inside_sqrt);
  }

  bool updates_all_rows() const { return non_lazy; }

  template <class Step>
  void Update(float lr, const Step& step) const { UpdateBy(lr, step, SquareFirst()); }

 protected:
  template <class Step, class Square>
  void UpdateBy(float lr, const Step& step, Square square) const {
    const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    if (sum_inside_sqrt) {
      step.Run([lr, square, beta1 = beta1, rest1, beta2 = beta2, rest2,
                squared = epsilon * epsilon](float& w, float& m, float& v, float g) {
        m = beta1 * m + rest1 * g;
        v = beta2 * v + square(rest2, g);
        w = w - lr * m / std::sqrt(v + squared);
      });
    } else {
      step.Run([lr, square, beta1 = beta1, rest1, beta2 = beta2, rest2,
                epsilon = epsilon](float& w, float& m, float& v, float g) {
        m = beta1 * m + rest1 * g;
        v = beta2 * v + square(rest2, g);
        w = w - lr * m / (std::sqrt(v) + epsilon);
      });
    }
  }
};
TF2_ENGINE_RULE(Adam);

}  // namespace estimator_bridge
