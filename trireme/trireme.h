// The library: distributed training for programs on LibTorch.
//
//   find_package(Trireme REQUIRED)
//   target_link_libraries(mine PRIVATE Trireme::trireme)
//
// World joins the ranks. DataParallel, AdamW, SGD, Loader, save and load serve a loop of one's own; Trainer runs the
// loop, cuts a list of modules into pipeline stages and keeps the run's folder. docs/tutorial.md leads through both.
#pragma once

#include <torch/torch.h>

#include "trireme/api/data_parallel.h"
#include "trireme/api/loader.h"
#include "trireme/api/module_layer.h"
#include "trireme/api/optimizers.h"
#include "trireme/api/saving.h"
#include "trireme/api/trainer.h"
#include "trireme/base/error.h"
#include "trireme/comm/world.h"
#include "trireme/version.h"
