// Checkpoints: a folder step-N with model.safetensors (masters and buffers, under their global names),
// optimizer.safetensors and manifest.json (format, version, step, configuration, size and checksum of each file). With
// several stages each writes files of its own (model-00002-of-00004.safetensors); they load on any other cut, because
// names are global. Where replicas differ, or keep something of their own, each rank adds a file of that
// (rank-00002-of-00004.safetensors), from which as many ranks go on exactly. A folder is written under another name and
// renamed when it is whole and on the disk, so what bears the name is complete. The bytes depend only on the values and
// the cut: not on replicas, buckets or time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/files.h"
#include "trireme/observe/recorder.h"
#include "trireme/optim/store.h"
#include "trireme/spec/source_model.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

struct CheckpointInfo {
  std::filesystem::path folder;
  int64_t step = 0;
  Progression progression;
  std::string config;  // the resolved configuration of the run that wrote it
  std::string codec;   // what it summed with, where sync.codec = auto
  std::vector<std::filesystem::path> model_files, optimizer_files;
  std::vector<std::filesystem::path> rank_files;  // by rank, where ranks had something of their own
};

// Reads the manifest and checks every file's size and checksum. Refuses what is damaged, foreign or newer, with the
// reason.
CheckpointInfo open_checkpoint(const std::filesystem::path& folder);

// The newest checkpoint of the run. When that one is not whole: refuses, with the reason, the newest that is whole and
// how the caller is asked for that one.
CheckpointInfo newest_checkpoint(const std::filesystem::path& run_dir, const std::string& how_to_name_one = "give");

// Completes a folder: `files` has the size and checksum of each, by name.
void write_manifest(const std::filesystem::path& folder, const nlohmann::ordered_json& files,
                    const Progression& progression, const std::string& resolved_config,
                    const std::string& codec = "");

// A run that goes on from an older step leaves the later ones of its former line: they are renamed (abandoned-step-N),
// so that nothing is lost and the next resume takes the new line.
void set_aside_checkpoints_after(const std::filesystem::path& run_dir, int64_t step);

// What a checkpoint holds of a model: its adapters where it has some, otherwise all of it.
ParameterList saved_parameters(const Model& model);

// Loads parameters, buffers and, where the store has it, optimizer state; `parameters` and `buffers` may be those of
// one stage of the model. Refuses a checkpoint of another model.
void load_checkpoint(const CheckpointInfo& info, const ParameterList& parameters, ParameterStore& store,
                     bool with_optimizer, bool whole_model = true, const BufferList& buffers = {});

// Loads what a rank had of its own into the tensors of `state`. False, and nothing is changed, where the checkpoint has
// none for so many ranks, or of another kind.
bool load_own_state(const CheckpointInfo& info, int rank, int ranks, const OwnState& state);

// All that a rank had of its own; nothing where the checkpoint has none for so many ranks.
OwnState read_own_state(const CheckpointInfo& info, int rank, int ranks);

// Which part of a checkpoint a writer saves: a stage of the model, or only what its rank has of its own, or both. The
// first writer waits for the others' files and completes the folder.
struct CheckpointPart {
  int stage = 0, stages = 1;
  int writer = 0;
  std::vector<int> writer_ranks{0};  // of all writers
  bool model = true;
  std::string codec{};  // that sync.codec = auto has chosen
  std::function<bool()> stop_asked = [] { return false; };  // then nobody is waited for as long as otherwise
};

// Writes checkpoints in the background: save() copies the state, which is all the training waits for, and returns.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path run_dir, const CheckpointConfig& config, std::string resolved_config,
                   Recorder& recorder, CheckpointPart part = {});
  ~CheckpointWriter();  // finishes what was begun

  // What this rank has of its own goes with the next save.
  void keep_own(const OwnState& state);
  void save(const ParameterList& order, const ParameterStore& store, const Progression& progression,
            const BufferList& buffers = {});
  // Waits for the save that is under way; false if `timeout_s` was too short. The watchdog hears of it as long as
  // something is written.
  bool finish(double timeout_s);
  // The newest folder that was completed by this writer.
  std::optional<std::filesystem::path> last() const;
  // Why the newest save failed, where it did.
  std::optional<std::string> failure() const;

 private:
  struct Snapshot;
  void run();
  void write(const Snapshot& snapshot);
  void write_part(const Snapshot& snapshot, const std::filesystem::path& partial);
  void prune(int64_t newest);
  void clean() const;
  bool wait_until_written(std::unique_lock<std::mutex>& lock, double timeout_s);

  std::filesystem::path folder_;
  std::optional<HeldFolder> held_;  // a run whose folder is moved away does not begin another one under its name
  CheckpointConfig config_;
  std::string resolved_config_;
  Recorder& recorder_;
  const CheckpointPart part_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Snapshot> snapshot_;  // buffers are kept from save to save
  bool pending_ = false, ending_ = false;
  std::atomic<uint64_t> pieces_written_{0};
  std::optional<std::filesystem::path> last_;
  std::optional<std::string> failure_;
  std::thread thread_;
};

}  // namespace trireme
