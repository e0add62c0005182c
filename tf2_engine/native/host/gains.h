// The arithmetic of gains: plain C++17, also compiled by NVRTC. For compiler flags see rules/rule.h.

#pragma once

#include <cmath>

namespace estimator_bridge {

enum class Combiner { kSum, kMean, kSqrtn };

// What an occurrence with this weight adds to its cell's sum, which is passed to `GainScale`.
inline float GainTerm(Combiner combiner, float weight) {
  return combiner == Combiner::kSqrtn ? weight * weight : weight;
}

// The factor between the weights of a cell and their gains, given the sum of `GainTerm`; 0 if the
// denominator is 0. `sum` is ignored for kSum.
inline float GainScale(Combiner combiner, float sum) {
  if (combiner == Combiner::kSum) return 1.0f;
  const float denominator = combiner == Combiner::kSqrtn ? std::sqrt(sum) : sum;
  return denominator == 0.0f ? 0.0f : 1.0f / denominator;
}

}  // namespace estimator_bridge
