// The settings that say how replicas are kept together and how bytes travel between them, and which of them go with
// which.
#pragma once

#include "trireme/spec/config.h"

namespace trireme {

void describe_sync(Settings& settings, SyncConfig& sync);
void describe_communication(Settings& settings, CommConfig& comm, TrialConfig& trial);
void check_sync(const RunConfig& config, const Settings& settings);

}  // namespace trireme
