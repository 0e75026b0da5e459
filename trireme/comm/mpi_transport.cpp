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
class Patience {
 public:
  void wait() {
    if (round_ < 200) {
      sched_yield();
    } else {
      usleep(static_cast<useconds_t>(std::min(200, 10 + (round_ - 200) / 4)));
    }
    ++round_;
  }
  void reset() { round_ = 0; }

 private:
  int round_ = 0;
};

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

// Messages by MPI: a header of fixed size, for which several receives are always posted, and then the tensor, received
// where the header's reader wants it.
class MpiMail final : public Mail {
 public:
  MpiMail(std::shared_ptr<MpiSession> session, MPI_Comm comm, const MailPeers& peers)
      : session_(std::move(session)), comm_(comm) {
    std::lock_guard lock(session_->mutex);
    for (const int from : peers.from) {
      auto way = std::make_unique<Incoming>();
      way->from = from;
      for (size_t i = 0; i < posted; ++i) post(*way, i);
      incoming_.push_back(std::move(way));
    }
  }

  ~MpiMail() override {
    std::lock_guard lock(session_->mutex);
    for (auto& way : incoming_) {
      for (auto& request : way->headers) {
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
    for (auto& message : outgoing_) {
      for (auto& request : message->requests) {
        if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
      }
    }
    MPI_Comm_free(&comm_);
  }

  void send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent) override {
    if (header.bytes > INT_MAX) fail("a message of {} bytes is too long for MPI", header.bytes);
    std::lock_guard lock(session_->mutex);
    auto& message = *outgoing_.emplace_back(take_message());
    message.header = header;
    message.tensor = tensor;
    check(MPI_Isend(&message.header, sizeof header, MPI_BYTE, to, header_tag, comm_, &message.requests[0]),
          "MPI_Isend");
    if (header.bytes > 0) {
      check(MPI_Isend(tensor.const_data_ptr(), static_cast<int>(header.bytes), MPI_BYTE, to, tensor_tag, comm_,
                      &message.requests[1]),
            "MPI_Isend");
    }
    patience_.reset();
  }

  bool poll(MailHandler& handler) override {
    bool moved = push();
    for (auto& way : incoming_) moved |= take(*way, handler);
    if (moved) patience_.reset();
    return moved;
  }

  void sleep(int64_t) override { patience_.wait(); }
  void wake() override {}

 private:
  static constexpr size_t posted = 4;  // receives that wait for a header, by peer
  static constexpr int header_tag = 0, tensor_tag = 1;

  struct Incoming {
    int from = 0;
    MessageHeader buffers[posted];
    MPI_Request headers[posted];
    size_t next = 0;        // headers come in the order in which their receives were posted
    bool arriving = false;  // the tensor of this header is under way
    MessageHeader header;
    MPI_Request tensor = MPI_REQUEST_NULL;
  };
  struct Outgoing {
    MessageHeader header;
    at::Tensor tensor;
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  };

  void post(Incoming& way, size_t i) {
    check(MPI_Irecv(&way.buffers[i], sizeof(MessageHeader), MPI_BYTE, way.from, header_tag, comm_, &way.headers[i]),
          "MPI_Irecv");
  }

  std::unique_ptr<Outgoing> take_message() {
    if (spare_.empty()) return std::make_unique<Outgoing>();
    auto message = std::move(spare_.back());
    spare_.pop_back();
    return message;
  }

  // Lets go of the tensors that have left.
  bool push() {
    std::lock_guard lock(session_->mutex);
    bool moved = false;
    for (size_t i = 0; i < outgoing_.size();) {
      int done = 0;
      check(MPI_Testall(2, outgoing_[i]->requests, &done, MPI_STATUSES_IGNORE), "sending a message");
      if (!done) {
        ++i;
        continue;
      }
      outgoing_[i]->tensor = at::Tensor();
      spare_.push_back(std::move(outgoing_[i]));
      outgoing_[i] = std::move(outgoing_.back());
      outgoing_.pop_back();
      moved = true;
    }
    return moved;
  }

  bool take(Incoming& way, MailHandler& handler) {
    bool moved = false;
    while (true) {
      int done = 0;
      if (!way.arriving) {
        {
          std::lock_guard lock(session_->mutex);
          check(MPI_Test(&way.headers[way.next], &done, MPI_STATUS_IGNORE), "receiving a message");
          if (!done) return moved;
          way.header = way.buffers[way.next];
          post(way, way.next);
          way.next = (way.next + 1) % posted;
        }
        void* place = handler.place_for(way.from, way.header);
        way.arriving = true;
        if (way.header.bytes > 0) {
          std::lock_guard lock(session_->mutex);
          check(
              MPI_Irecv(place, static_cast<int>(way.header.bytes), MPI_BYTE, way.from, tensor_tag, comm_, &way.tensor),
              "MPI_Irecv");
        }
      }
      {
        std::lock_guard lock(session_->mutex);
        check(MPI_Test(&way.tensor, &done, MPI_STATUS_IGNORE), "receiving a message");
      }
      if (!done) return moved;
      way.arriving = false;
      handler.arrived(way.from, way.header);
      moved = true;
    }
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm comm_;
  Patience patience_;
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_, spare_;
};

class MpiTransport final : public Transport {
 public:
  // Owns the communicator: messages of other MPI users in this process cannot be mistaken for ours.
  MpiTransport(std::shared_ptr<MpiSession> session, MPI_Comm comm) : session_(std::move(session)), world_(comm) {
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &size_);
    calls_.resize(static_cast<size_t>(size_));
    MPI_Type_contiguous(2, MPI_BYTE, &narrow_);
    MPI_Type_commit(&narrow_);
    add_narrow<at::kBFloat16>(bf16_);
    add_narrow<at::kHalf>(fp16_);
  }

  ~MpiTransport() override {
    std::lock_guard lock(session_->mutex);
    for (auto* ops : {&bf16_, &fp16_}) {
      for (auto& op : *ops) MPI_Op_free(&op);
    }
    MPI_Type_free(&narrow_);
    MPI_Comm_free(&world_);
  }

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

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
      std::unique_lock lock(session_->mutex);
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
        default: break;  // made by functions of their own
      }
      lock.unlock();
      wait_for(request, call.name);
    }
  }

  at::Tensor allocate(const Call& call, int64_t bytes) override {
    compare(call);
    return at::zeros({bytes}, at::kByte);
  }

  std::unique_ptr<Transport> split(const Call& call, int color) override {
    compare(call);
    std::lock_guard lock(session_->mutex);
    MPI_Comm comm;
    check(MPI_Comm_split(world_, color < 0 ? MPI_UNDEFINED : color, rank_, &comm), "MPI_Comm_split");
    return color < 0 ? nullptr : std::make_unique<MpiTransport>(session_, comm);
  }

  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override {
    compare(call);
    MPI_Comm comm;
    {
      std::lock_guard lock(session_->mutex);
      check(MPI_Comm_dup(world_, &comm), "MPI_Comm_dup");
    }
    return std::make_unique<MpiMail>(session_, comm, peers);
  }

 private:
  // Fingerprints have a fixed size, so this first exchange cannot go wrong whatever the ranks asked for.
  void compare(const Call& call) {
    MPI_Request request;
    {
      std::lock_guard lock(session_->mutex);
      check(MPI_Iallgather(&call, sizeof call, MPI_BYTE, calls_.data(), sizeof call, MPI_BYTE, world_, &request),
            "fingerprints");
    }
    wait_for(request, "fingerprints");
    check_agreement(calls_);
  }

  void wait_for(MPI_Request& request, const char* what) {
    Patience patience;
    while (true) {
      {
        std::lock_guard lock(session_->mutex);
        int done = 0;
        check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
        if (done) return;
      }
      patience.wait();
    }
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
  int rank_ = 0, size_ = 1;
  MPI_Datatype narrow_;
  MPI_Op bf16_[3], fp16_[3];
  std::vector<Call> calls_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(std::shared_ptr<MpiSession> session) {
  MPI_Comm comm;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiTransport>(std::move(session), comm);
}

}  // namespace trireme
