// What cannot go together in a plan: refused where plans are made, so that a dry run, a run and a program that uses the
// library say the same, before anything is started. Rules that settings show by themselves are check()'s (config.h),
// which names their lines; those here need to know the ranks, the model or how a batch is dealt.
#pragma once

#include "trireme/spec/layer.h"
#include "trireme/spec/plan.h"

namespace trireme {

void check_plan(const LayerTable& table, const Plan& plan, const Facts& facts);

}  // namespace trireme
