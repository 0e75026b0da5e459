// A checkpoint that several ranks write: each writes its own files and then a note that they are there, part-N.json.
// The first writer waits for all notes; what they say goes into the manifest.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <thread>
#include <vector>

namespace trireme {

void note_part(const std::filesystem::path& partial, int writer, const nlohmann::ordered_json& files);
// Whoever waits for this part need not wait longer.
void note_failed_part(const std::filesystem::path& partial, int writer) noexcept;

// A writer's signs of life while it lives: a file beside its part that grows every second. The part itself does not grow
// while a slow disk is waited for.
class PartPulse {
 public:
  PartPulse(const std::filesystem::path& partial, int writer);
  ~PartPulse();  // takes the file away
  PartPulse(const PartPulse&) = delete;
  PartPulse& operator=(const PartPulse&) = delete;

 private:
  void beat();

  std::filesystem::path file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

// How the first writer waits. That others work is seen by the growth of the folder; a wait without any growth has an
// end.
struct PartWait {
  std::vector<int> ranks;            // of each writer
  double patience_s = 300;           // without growth: file systems between hosts may show it minutes late
  double hurried_s = 30;             // the same once the user has asked the run to stop
  std::function<bool()> hurried;     // whether that is so
  std::function<bool()> given_up;    // nobody needs the checkpoint any more
  std::function<void()> progressed;  // called when the folder has grown
};

// Waits for the notes and takes them away; fails with the rank whose part is missing.
nlohmann::ordered_json gather_parts(const std::filesystem::path& partial, const PartWait& wait);

}  // namespace trireme
