// The links between ranks as they were measured (`trireme bench comm --tune`): what a message costs inside a host and
// between hosts. Kept in a file; whoever chooses algorithms, or plans, reads it.
#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "trireme/spec/collective_cost.h"

namespace trireme {

struct Links {
  // Until they have been measured: memory, and an ordinary network.
  LinkCost inside{2e-6, 2e-10, 5e-11};
  LinkCost between{2e-5, 5e-10, 1e-10};
};

Links read_links(const std::filesystem::path& path);  // refuses what it does not understand, with file and line
void write_links(const Links& links, const std::filesystem::path& path);

// α and β that fit best: the relative errors' squares are least. Of messages of so many bytes, the seconds each took.
LinkCost fit_link(const std::vector<std::pair<int64_t, double>>& messages);

}  // namespace trireme
