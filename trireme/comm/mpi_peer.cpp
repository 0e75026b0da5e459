#include "trireme/comm/mpi_peer.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_calls.h"

namespace trireme {

namespace {

MPI_Request started = MPI_REQUEST_NULL;

// What one of MPI's control variables is set to, in its own words. None where this MPI has no such variable, or says
// nothing of it.
std::optional<std::string> control_variable(const char* name) {
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return std::nullopt;
  int name_length = 0, verbosity = 0, description_length = 0, binding = 0, scope = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum words = MPI_T_ENUM_NULL;
  if (MPI_T_cvar_get_info(index, nullptr, &name_length, &verbosity, &type, &words, nullptr, &description_length,
                          &binding, &scope) != MPI_SUCCESS)
    return std::nullopt;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int count = 0;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return std::nullopt;
  std::optional<std::string> value;
  if (type == MPI_CHAR) {
    std::vector<char> text(static_cast<size_t>(count) + 1, '\0');
    if (MPI_T_cvar_read(handle, text.data()) == MPI_SUCCESS) value = std::string(text.data());
  } else if (type == MPI_INT) {
    int number = 0;
    if (MPI_T_cvar_read(handle, &number) == MPI_SUCCESS) value = std::to_string(number);
    int kinds = 0, length = 0;
    const bool named = words != MPI_T_ENUM_NULL && MPI_T_enum_get_info(words, &kinds, nullptr, &length) == MPI_SUCCESS;
    for (int i = 0; value && named && i < kinds; ++i) {
      char word[128];
      int kind = 0, word_length = sizeof word;
      if (MPI_T_enum_get_item(words, i, &kind, word, &word_length) == MPI_SUCCESS && kind == number) value = word;
    }
  }
  MPI_T_cvar_handle_free(&handle);
  return value;
}

// How one rank's bytes come to another of its host. Open MPI 4 has the first variable and changes it where the kernel
// forbids what was asked for; Open MPI 5 has the second.
std::string describe_copies() {
  for (const char* name : {"btl_vader_single_copy_mechanism", "smsc"}) {
    const auto value = control_variable(name);
    if (!value) continue;
    if (*value == "none" || *value == "emulated") return "copies into shared memory and out of it";
    return value->empty() ? "copies by its own choice" : "copies in one pass by " + *value;
  }
  return "copies by a mechanism that it does not name";
}

}  // namespace

void MpiPeer::all_reduce(float* data, int64_t count) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Allreduce");
}

void MpiPeer::reduce_scatter(const float* data, float* part, int64_t part_count) {
  check_mpi(MPI_Reduce_scatter_block(data, part, static_cast<int>(part_count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Reduce_scatter_block");
}

void MpiPeer::all_gather(const float* part, float* data, int64_t part_count) {
  const int count = static_cast<int>(part_count);
  check_mpi(MPI_Allgather(part, count, MPI_FLOAT, data, count, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Allgather");
}

void MpiPeer::all_to_all(const float* given, float* taken, int64_t part_count) {
  const int count = static_cast<int>(part_count);
  check_mpi(MPI_Alltoall(given, count, MPI_FLOAT, taken, count, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Alltoall");
}

void MpiPeer::barrier() { check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }

void MpiPeer::start_all_reduce(float* data, int64_t count) {
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &started),
            "MPI_Iallreduce");
}

void MpiPeer::finish_all_reduce() { check_mpi(MPI_Wait(&started, MPI_STATUS_IGNORE), "MPI_Wait"); }

void MpiPeer::progress() {
  int done = 0;
  check_mpi(MPI_Test(&started, &done, MPI_STATUS_IGNORE), "MPI_Test");
}

std::string MpiPeer::describe() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0, provided = 0;
  check_mpi(MPI_Get_library_version(version, &length), "MPI_Get_library_version");
  std::string text(version, static_cast<size_t>(length));
  text = text.substr(0, text.find_first_of(",\n"));
  check_mpi(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided), "MPI_T_init_thread");
  text += ", " + describe_copies();
  MPI_T_finalize();
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) fail_errno("sched_getaffinity");
  const int cores = CPU_COUNT(&mine), online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return text + (cores < online ? fmt::format(", each rank bound to {} of {} cores", cores, online)
                                : fmt::format(", ranks on any of {} cores", cores));
}

}  // namespace trireme
