#include "trireme/comm/mpi.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/reduction.h"

namespace trireme {

namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{}: {}", what, std::string(text, static_cast<size_t>(length)));
}

// Open MPI makes progress only inside its calls, and its own waits spin. Ours yields the core at once and then sleeps
// longer and longer, so that a rank that waits does not slow down one that computes.
void wait_for(MPI_Request& request, const char* what) {
  int done = 0;
  for (int round = 0;; ++round) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done) return;
    if (round < 200) {
      sched_yield();
    } else {
      usleep(static_cast<useconds_t>(std::min(200, 10 + (round - 200) / 4)));
    }
  }
}

}  // namespace

bool mpi_built() { return true; }

std::shared_ptr<MpiSession> MpiSession::start() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) fail("this MPI library cannot be called from more than one thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  auto session = std::shared_ptr<MpiSession>(new MpiSession);
  MPI_Comm_rank(MPI_COMM_WORLD, &session->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &session->size);
  MPI_Comm host;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, session->rank, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  MPI_Comm_rank(host, &session->local_rank);
  MPI_Comm_size(host, &session->local_size);
  MPI_Comm_free(&host);
  return session;
}

MpiSession::~MpiSession() { MPI_Finalize(); }

std::string MpiSession::share_on_host(const std::string& text) {
  MPI_Comm host;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  char buffer[512] = {};
  std::strncpy(buffer, text.c_str(), sizeof buffer - 1);
  check(MPI_Bcast(buffer, sizeof buffer, MPI_CHAR, 0, host), "MPI_Bcast");
  MPI_Comm_free(&host);
  return buffer;
}

namespace {

// bf16 sums, accumulated pairwise in fp32: MPI has no such type.
template <ReduceOp operation, at::ScalarType dtype>
void reduce_narrow(void* input, void* output, int* count, MPI_Datatype*) {
  const void* sources[] = {input, output};
  void* targets[] = {output};
  reduce(dtype, operation, sources, targets, *count);
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiSession> session) : session_(std::move(session)), calls_(session_->size) {
    // A communicator of our own: messages of other MPI users in this process cannot be mistaken for ours.
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Type_contiguous(2, MPI_BYTE, &narrow_);
    MPI_Type_commit(&narrow_);
    add_narrow<at::kBFloat16>(bf16_);
    add_narrow<at::kHalf>(fp16_);
  }

  ~MpiTransport() override {
    for (auto* ops : {&bf16_, &fp16_}) {
      for (auto& op : *ops) MPI_Op_free(&op);
    }
    MPI_Type_free(&narrow_);
    MPI_Comm_free(&world_);
  }

  const char* name() const override { return "mpi"; }
  int rank() const override { return session_->rank; }
  int size() const override { return session_->size; }

  void carry_out(const Call& call, const at::Tensor& tensor, const at::Tensor& output) override {
    compare(call);
    if (call.collective == Collective::barrier) return;
    MPI_Request request;

    // MPI counts are ints: large tensors travel in pieces.
    const auto element = static_cast<int64_t>(tensor.element_size());
    auto* data = static_cast<std::byte*>(tensor.data_ptr());
    const int64_t piece = (int64_t{1} << 28) / element;
    for (int64_t first = 0; first < call.count; first += piece) {
      const int count = static_cast<int>(std::min(piece, call.count - first));
      void* place = data + first * element;
      switch (call.collective) {
        case Collective::all_reduce:
          check(MPI_Iallreduce(MPI_IN_PLACE, place, count, type_of(call.dtype), op_of(call), world_, &request),
                "MPI_Iallreduce");
          break;
        case Collective::broadcast:
          check(MPI_Ibcast(place, static_cast<int>(count * element), MPI_BYTE, call.root, world_, &request),
                "MPI_Ibcast");
          break;
        case Collective::all_gather: {
          if (call.count > piece) fail("all_gather of {} elements is too large", call.count);
          const int bytes = static_cast<int>(count * element);
          check(MPI_Iallgather(place, bytes, MPI_BYTE, output.data_ptr(), bytes, MPI_BYTE, world_, &request),
                "MPI_Iallgather");
          break;
        }
        case Collective::barrier:
        case Collective::allocate: break;
      }
      wait_for(request, call.name);
    }
  }

  at::Tensor allocate(const Call& call, int64_t bytes) override {
    compare(call);
    return at::zeros({bytes}, at::kByte);
  }

 private:
  // Fingerprints have a fixed size, so this first exchange cannot go wrong whatever the ranks asked for.
  void compare(const Call& call) {
    MPI_Request request;
    check(MPI_Iallgather(&call, sizeof call, MPI_BYTE, calls_.data(), sizeof call, MPI_BYTE, world_, &request),
          "fingerprints");
    wait_for(request, "fingerprints");
    check_agreement(calls_);
  }

  template <at::ScalarType dtype>
  static void add_narrow(MPI_Op (&ops)[3]) {
    MPI_Op_create(reduce_narrow<ReduceOp::sum, dtype>, 1, &ops[static_cast<int>(ReduceOp::sum)]);
    MPI_Op_create(reduce_narrow<ReduceOp::max, dtype>, 1, &ops[static_cast<int>(ReduceOp::max)]);
    MPI_Op_create(reduce_narrow<ReduceOp::min, dtype>, 1, &ops[static_cast<int>(ReduceOp::min)]);
  }

  MPI_Datatype type_of(at::ScalarType dtype) const {
    switch (dtype) {
      case at::kDouble: return MPI_DOUBLE;
      case at::kFloat: return MPI_FLOAT;
      case at::kLong: return MPI_INT64_T;
      case at::kInt: return MPI_INT32_T;
      case at::kBFloat16:
      case at::kHalf: return narrow_;
      default:
        fail("tensors of type {} cannot be reduced", c10::toString(dtype));  // narrow integers saturate in MPI_SUM
    }
  }

  MPI_Op op_of(const Call& call) const {
    if (call.dtype == at::kBFloat16) return bf16_[static_cast<int>(call.op)];
    if (call.dtype == at::kHalf) return fp16_[static_cast<int>(call.op)];
    switch (call.op) {
      case ReduceOp::sum: return MPI_SUM;
      case ReduceOp::max: return MPI_MAX;
      case ReduceOp::min: return MPI_MIN;
    }
    return MPI_OP_NULL;
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm world_;
  MPI_Datatype narrow_;
  MPI_Op bf16_[3], fp16_[3];
  std::vector<Call> calls_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session) {
  return std::make_unique<MpiTransport>(std::move(session));
}

}  // namespace trireme
