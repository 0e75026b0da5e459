// The assignment problem: every row gets a column of its own, at the least total cost.
#pragma once

#include <cstddef>
#include <vector>

namespace trireme::fleet {

// `cost` is rows × columns, rows ≤ columns, finite. Answers the column of each row. Shortest augmenting paths, row by
// row (Jonker and Volgenant 1987, for rectangles Crouse 2016); of columns equally near, a free one, and of those the
// one seen last from the right, is taken, so that degenerate problems are answered as SciPy answers them.
std::vector<size_t> assign(const std::vector<double>& cost, size_t rows, size_t columns);

}  // namespace trireme::fleet
