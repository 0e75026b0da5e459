// An interior-point method for ShareProblem that ends in the middle of the optima instead of at a corner: where a
// corner gives one of two equal jobs everything, the middle gives both the same. The reference's solver is of this
// kind, and which optimum it takes moves its results by percents; so --reference asks this one.
//
// Primal-dual, predictor and corrector after Mehrotra, the last steps towards the centre x z = μ. Jobs couple only
// through device rows (and pairs), so a step costs O(M J²) without pairs. A row of a pool of n alike jobs counts n
// times in the barrier, which gives the same centre as the n rows would.
#pragma once

#include "trireme/fleet/lp/problem.h"

namespace trireme::fleet {

// The analytic centre of the optimal face: of the highest level, else of the least first cost, else of all that is
// feasible. Later costs are not looked at. Columns with value 0 count too, as they do in the reference.
ShareSolution center_of_optima(const ShareProblem& problem);

// The most Σ_m log(Σ_j a_mj X_mj): proportional fairness, unique in what each job gets. Bases, gains and costs are not
// looked at.
ShareSolution proportional_fairness(const ShareProblem& problem);

}  // namespace trireme::fleet
