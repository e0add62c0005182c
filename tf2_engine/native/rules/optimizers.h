// The rules, one per file, named after the rule's field in the proto. To add a rule, add its file
// and a line here; no other code, in C++ or Python, needs a change.

#pragma once

#include "rules/rule.h"

#include "rules/optimizers/adadelta.h"
#include "rules/optimizers/adagrad.h"
#include "rules/optimizers/adagrad_momentum.h"
#include "rules/optimizers/adam.h"
#include "rules/optimizers/centered_rms_prop.h"
#include "rules/optimizers/frequency_estimator.h"
#include "rules/optimizers/ftrl.h"
#include "rules/optimizers/mdl_adagrad_light.h"
#include "rules/optimizers/momentum.h"
#include "rules/optimizers/proximal_adagrad.h"
#include "rules/optimizers/proximal_yogi.h"
#include "rules/optimizers/rms_prop.h"
#include "rules/optimizers/stochastic_gradient_descent.h"
