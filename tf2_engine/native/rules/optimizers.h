// The rules, one file each, named after the rule's field in the proto. A new rule is one more line
// here. Everything else, in Python too, follows from it and from the file.

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
