#include <climits>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_calls.h"

namespace trireme {

namespace {

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

  // What MPI still reads or writes must outlive its request, for one that is only freed goes on. So messages that are
  // under way get some time, and what a receiver that is gone never took stays allocated.
  ~MpiMail() override {
    const int64_t deadline_ns = monotonic_ns() + last_wait_ns;
    while (!at_rest() && monotonic_ns() < deadline_ns) patience_.wait();
    std::lock_guard lock(session_->mutex);
    for (auto& way : incoming_) {
      for (auto& request : way->headers) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      }
      if (way->tensor != MPI_REQUEST_NULL) {  // of a sender that is gone
        int done = 0;
        MPI_Cancel(&way->tensor);
        MPI_Test(&way->tensor, &done, MPI_STATUS_IGNORE);
      }
    }
    for (auto& message : outgoing_) (void)message.release();
    MPI_Comm_free(&comm_);
  }

  void send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent) override {
    if (header.bytes > INT_MAX) fail("a message of {} bytes is too long for MPI", header.bytes);
    std::lock_guard lock(session_->mutex);
    auto& message = *outgoing_.emplace_back(take_message());
    message.header = header;
    message.tensor = tensor;
    check_mpi(MPI_Isend(&message.header, sizeof header, MPI_BYTE, to, header_tag, comm_, &message.requests[0]),
              "MPI_Isend");
    if (header.bytes > 0) {
      check_mpi(MPI_Isend(tensor.const_data_ptr(), static_cast<int>(header.bytes), MPI_BYTE, to, tensor_tag, comm_,
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
  static constexpr int64_t last_wait_ns = 5'000'000'000;  // for messages to leave, at the end

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
    check_mpi(MPI_Irecv(&way.buffers[i], sizeof(MessageHeader), MPI_BYTE, way.from, header_tag, comm_, &way.headers[i]),
              "MPI_Irecv");
  }

  std::unique_ptr<Outgoing> take_message() {
    if (spare_.empty()) return std::make_unique<Outgoing>();
    auto message = std::move(spare_.back());
    spare_.pop_back();
    return message;
  }

  // Whether nothing is under way any more. No error is worth mentioning here: it has been, or everything has come.
  bool at_rest() {
    std::lock_guard lock(session_->mutex);
    int done = 1, all = 1;
    for (auto& message : outgoing_) {
      MPI_Testall(2, message->requests, &done, MPI_STATUSES_IGNORE);
      all &= done;
    }
    for (auto& way : incoming_) {
      MPI_Test(&way->tensor, &done, MPI_STATUS_IGNORE);
      all &= done;
    }
    if (all) outgoing_.clear();
    return all != 0;
  }

  // Lets go of the tensors that have left.
  bool push() {
    std::lock_guard lock(session_->mutex);
    bool moved = false;
    for (size_t i = 0; i < outgoing_.size();) {
      int done = 0;
      check_mpi(MPI_Testall(2, outgoing_[i]->requests, &done, MPI_STATUSES_IGNORE), "sending a message");
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
          check_mpi(MPI_Test(&way.headers[way.next], &done, MPI_STATUS_IGNORE), "receiving a message");
          if (!done) return moved;
          way.header = way.buffers[way.next];
          post(way, way.next);
          way.next = (way.next + 1) % posted;
        }
        void* place = handler.place_for(way.from, way.header);
        way.arriving = true;
        if (way.header.bytes > 0) {
          std::lock_guard lock(session_->mutex);
          check_mpi(
              MPI_Irecv(place, static_cast<int>(way.header.bytes), MPI_BYTE, way.from, tensor_tag, comm_, &way.tensor),
              "MPI_Irecv");
        }
      }
      {
        std::lock_guard lock(session_->mutex);
        check_mpi(MPI_Test(&way.tensor, &done, MPI_STATUS_IGNORE), "receiving a message");
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

}  // namespace

std::unique_ptr<Mail> make_mpi_mail(std::shared_ptr<MpiSession> session, MPI_Comm comm, const MailPeers& peers) {
  return std::make_unique<MpiMail>(std::move(session), comm, peers);
}

}  // namespace trireme
