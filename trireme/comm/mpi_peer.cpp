#include "trireme/comm/mpi_peer.h"

#include "trireme/comm/mpi_calls.h"

namespace trireme {

namespace {

MPI_Request started = MPI_REQUEST_NULL;

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

}  // namespace trireme
