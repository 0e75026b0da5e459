// What counts the tensors of the host, and those of its cards.
#pragma once

#include "trireme/memory/counter.h"

namespace trireme {

// Handing over tells whether the memory is counted here.
void count_host_memory();
bool hand_over_on_host(const c10::DataPtr& memory, Owner to);

void count_card_memory();
bool hand_over_on_card(const c10::DataPtr& memory, Owner to);

}  // namespace trireme
