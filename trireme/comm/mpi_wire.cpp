#include <algorithm>
#include <climits>
#include <mutex>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_calls.h"

namespace trireme {

namespace {

// Long messages are cut where MPI's counts, which are ints, end; both sides cut alike.
constexpr int64_t longest = int64_t{1} << 30;
static_assert(longest <= INT_MAX);

class MpiWire final : public Wire {
 public:
  MpiWire(std::shared_ptr<MpiSession> session, MPI_Comm comm) : session_(std::move(session)), comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  ~MpiWire() override {
    std::lock_guard lock(session_->mutex);
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Posted send(int to, const void* data, int64_t bytes) override {
    return post(bytes, [&](int64_t offset, int count, MPI_Request* request) {
      check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + offset, count, MPI_BYTE, to, 0, comm_, request),
                "MPI_Isend");
    });
  }

  Posted receive(int from, void* data, int64_t bytes) override {
    return post(bytes, [&](int64_t offset, int count, MPI_Request* request) {
      check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + offset, count, MPI_BYTE, from, 0, comm_, request),
                "MPI_Irecv");
    });
  }

  void finish(Posted posted) override {
    Patience patience;
    auto& requests = requests_[posted];
    while (true) {
      {
        std::lock_guard lock(session_->mutex);
        int done = 0;
        check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
                  "waiting for a message");
        if (done) break;
      }
      patience.wait();
    }
    requests.clear();
    spare_.push_back(posted);
  }

 private:
  template <class Start>
  Posted post(int64_t bytes, Start start) {
    if (spare_.empty()) {
      spare_.push_back(requests_.size());
      requests_.emplace_back();
    }
    const Posted posted = spare_.back();
    spare_.pop_back();
    std::lock_guard lock(session_->mutex);
    for (int64_t offset = 0; offset < bytes; offset += longest) {
      requests_[posted].push_back(MPI_REQUEST_NULL);
      start(offset, static_cast<int>(std::min(longest, bytes - offset)), &requests_[posted].back());
    }
    return posted;
  }

  std::shared_ptr<MpiSession> session_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::vector<std::vector<MPI_Request>> requests_;  // by what was posted; slots are used again
  std::vector<Posted> spare_;
};

}  // namespace

std::unique_ptr<Wire> make_mpi_wire(std::shared_ptr<MpiSession> session, MPI_Comm comm) {
  return std::make_unique<MpiWire>(std::move(session), comm);
}

}  // namespace trireme
