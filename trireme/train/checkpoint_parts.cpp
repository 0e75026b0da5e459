#include "trireme/train/checkpoint_parts.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"

namespace trireme {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto look_interval = std::chrono::milliseconds(5);
constexpr auto growth_interval = std::chrono::milliseconds(250);
constexpr auto beat_interval = std::chrono::seconds(1);
constexpr double silent_s = 10;  // before somebody is told what is waited for

fs::path note_of(const fs::path& partial, int writer) { return partial / fmt::format("part-{}.json", writer); }
fs::path pulse_of(const fs::path& partial, int writer) { return partial / fmt::format("part-{}.alive", writer); }
fs::path failure_of(const fs::path& partial, int writer) { return partial / fmt::format("part-{}.failed", writer); }

// Bytes of all files in the folder, and how many there are: whatever changes it is somebody's work.
std::pair<uintmax_t, size_t> extent(const fs::path& folder) {
  std::pair<uintmax_t, size_t> found{0, 0};
  std::error_code gone;  // a temporary name may be renamed while we look
  for (const auto& entry : fs::directory_iterator(folder, gone)) {
    if (const auto bytes = entry.file_size(gone); !gone) found.first += bytes;
    ++found.second;
  }
  return found;
}

// The wait for one writer's note.
class NoteWait {
 public:
  NoteWait(const fs::path& partial, int writer, const PartWait& wait)
      : partial_(partial), writer_(writer), rank_(wait.ranks[static_cast<size_t>(writer)]), wait_(wait) {}

  void operator()() {
    while (!fs::exists(note_of(partial_, writer_))) {
      if (fs::exists(failure_of(partial_, writer_))) fail("rank {} could not save its part", rank_);
      if (wait_.given_up()) fail("the run ended before rank {} had saved its part", rank_);
      if (Clock::now() - looked_at_ >= growth_interval) look();
      std::this_thread::sleep_for(look_interval);
    }
  }

 private:
  void look() {
    looked_at_ = Clock::now();
    if (const auto now = extent(partial_); now != seen_) {
      seen_ = now;
      grown_at_ = looked_at_;
      wait_.progressed();
      return;
    }
    const double still_s = std::chrono::duration<double>(looked_at_ - grown_at_).count();
    const bool hurried = wait_.hurried();
    if (still_s > (hurried ? wait_.hurried_s : wait_.patience_s)) {
      fail(
          "rank {} has given no sign of life in {} for {}{}, and {} is missing there: is that folder the same for all "
          "ranks?",
          rank_, partial_.string(), human_seconds(still_s), hurried ? " and the run was asked to stop" : "",
          note_of(partial_, writer_).filename().string());
    }
    if (still_s > silent_s && !warned_) {
      warned_ = true;
      log::warn("{} waits for the part of rank {}, which has given no sign of life for {} (given up after {})",
                partial_.filename().string(), rank_, human_seconds(still_s), human_seconds(wait_.patience_s));
    }
  }

  const fs::path& partial_;
  const int writer_, rank_;
  const PartWait& wait_;
  std::pair<uintmax_t, size_t> seen_{0, 0};
  Clock::time_point looked_at_ = Clock::now(), grown_at_ = looked_at_;
  bool warned_ = false;
};

}  // namespace

void note_part(const fs::path& partial, int writer, const ordered_json& files) {
  write_atomically(note_of(partial, writer), files.dump());
}

void note_failed_part(const fs::path& partial, int writer) noexcept {
  try {
    std::ofstream(failure_of(partial, writer));
  } catch (...) {
    // The wait ends without it too, only later.
  }
}

PartPulse::PartPulse(const fs::path& partial, int writer) : file_(pulse_of(partial, writer)) {
  thread_ = std::thread([this] { beat(); });
}

PartPulse::~PartPulse() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::error_code ignored;
  fs::remove(file_, ignored);
}

void PartPulse::beat() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, beat_interval, [this] { return ending_; })) {
    std::ofstream(file_, std::ios::app) << '.';  // on a full disk the part itself fails, and says so
  }
}

ordered_json gather_parts(const fs::path& partial, const PartWait& wait) {
  ordered_json files;
  for (int writer = 0; writer < static_cast<int>(wait.ranks.size()); ++writer) {
    NoteWait(partial, writer, wait)();
    const auto note = note_of(partial, writer);
    std::ifstream stream(note);
    const auto part = ordered_json::parse(stream);
    for (const auto& [file, entry] : part.items()) files[file] = entry;
    fs::remove(note);
  }
  return files;
}

}  // namespace trireme
