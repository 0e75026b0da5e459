// The kinds of LooseSync, one file each.
#pragma once

#include <memory>

#include "trireme/parallel/loose_sync.h"

namespace trireme {

std::unique_ptr<LooseSync> make_stale_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_eager_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_local_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_server_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_elastic_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_gossip_sync(const Replica& replica);
std::unique_ptr<LooseSync> make_hogwild_sync(const Replica& replica);

}  // namespace trireme
