// Every op's struct, for the two places that see them all: the binding and the back ends' tables.
#pragma once

#include "adamw.h"
#include "attention.h"
#include "copy.h"
#include "cross_entropy.h"
#include "dropout.h"
#include "elementwise.h"
#include "embedding.h"
#include "fill.h"
#include "gather.h"
#include "gradient_control.h"
#include "matmul.h"
#include "norm.h"
#include "random.h"
#include "reduce.h"
#include "rope.h"
#include "softmax.h"
