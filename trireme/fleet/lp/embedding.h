// The interior-point method that the published policies were solved with (the homogeneous self-dual embedding of ECOS,
// after Domahidi, Chu and Boyd), for ShareProblem. It ends inside the optima, and where only demands have to be met, at
// a point that depends on its start and its scaling; the published results depend on these points by up to ten percent.
// So
// --reference takes the same steps.
//
// Rows and columns are scaled to size one (after Ruiz), jobs couple only through device rows and pairs, and a row of a
// pool of n alike jobs stands for n equal ones.
#pragma once

#include "trireme/fleet/lp/problem.h"

namespace trireme::fleet {

// The highest level, else the least first cost, else whatever meets the demands. Later costs are not looked at. Columns
// with value 0 count too, as they do in the reference.
ShareSolution embedded_optimum(const ShareProblem& problem);

}  // namespace trireme::fleet
