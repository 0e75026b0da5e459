#include "trireme/memory/counters.h"

namespace trireme {

void count_card_memory() {}

bool hand_over_on_card(const c10::DataPtr&, Owner) { return false; }

}  // namespace trireme
