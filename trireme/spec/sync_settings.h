// The settings that say how replicas are kept together and how bytes travel between them, and which of them go with
// which.
#pragma once

#include <string_view>
#include <vector>

#include "trireme/spec/config.h"

namespace trireme {

// All that is known of a way to keep replicas together before a run: the settings, the plan and a resume ask its row.
struct SyncRow {
  SyncKind kind;
  const char* name;
  std::vector<const char*> options{};  // that it reads: names of settings
  bool loose = true;                   // a rank goes on without waiting, in every step, for what all others did in it
  bool makes_sums = false;             // of which a codec can make good in the next one what was lost
  bool takes_stages = false;           // a replica may be a pipeline
  bool one_process = false;            // its ranks share memory as threads do

  bool reads(std::string_view option) const;
};

const std::vector<SyncRow>& all_sync_kinds();
const SyncRow& row_of(SyncKind kind);

void describe_sync(Settings& settings, SyncConfig& sync);
void describe_communication(Settings& settings, CommConfig& comm, TrialConfig& trial);
void check_sync(const RunConfig& config, const Settings& settings);

}  // namespace trireme
