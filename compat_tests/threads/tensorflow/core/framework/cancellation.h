#include "op_kernel.h"
