// A folder that belongs to one job while the job lives: a run's folder, or a sweep's. The job's first process locks the
// file FOLDER/lock and leaves a note in it that names the process, its host and its start. The lock is the kernel's: it
// ends with the process, however that ends, and holds between hosts where the file system has locks (NFS does).
//
//   byte 0: locked by the job's first process
//   byte 1: shared by the other processes of the job that write into the folder
//
// Whoever wants the folder must get both bytes, so it is free only when the last process that may write there is gone.
// The lock belongs to the open file (F_OFD_SETLK): neither a program that is started meanwhile nor another descriptor
// of the file that is closed can lose it, and two runs of one process keep each other out too.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

class FolderLock {
 public:
  // Takes the folder for this job, and makes it where it is not there yet. Refuses a folder of another job that lives.
  static FolderLock take(const std::filesystem::path& folder);
  // The same of a folder that must be new: none where there is one of this name.
  static std::optional<FolderLock> take_new(const std::filesystem::path& folder);
  // Of another process of the job that has taken the folder. It waits a moment for a file system between hosts, and
  // refuses a folder that this host does not see.
  static FolderLock join(const std::filesystem::path& folder, double patience_s = 60);
  // Refuses a folder of another job that lives, and changes nothing.
  static void check_free(const std::filesystem::path& folder);

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  // What take() made, the folder or only the file in it, is taken away again, unless keep() was called. A folder that
  // somebody else has put something into stays.
  ~FolderLock();

  void keep() { made_ = Made::nothing; }

 private:
  enum class Made { nothing, file, folder };
  FolderLock(std::filesystem::path folder, Made made) : folder_(std::move(folder)), made_(made) {}
  void lock();

  std::filesystem::path folder_;
  int descriptor_ = -1;
  bool first_ = false;  // whose note stands in the file
  Made made_ = Made::nothing;
};

}  // namespace trireme
