#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstring>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/nccl.h"

namespace trireme {

namespace {

void check_nccl(ncclResult_t code, const char* what) {
  if (code != ncclSuccess) fail("{}: {}", what, ncclGetErrorString(code));
}

ncclDataType_t type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return ncclFloat64;
    case at::kFloat: return ncclFloat32;
    case at::kBFloat16: return ncclBfloat16;
    case at::kHalf: return ncclFloat16;
    case at::kLong: return ncclInt64;
    case at::kInt: return ncclInt32;
    case at::kChar: return ncclInt8;
    case at::kByte: return ncclUint8;
    default: fail("NCCL has no type {}; comm.transport=auto has", c10::toString(dtype));
  }
}

ncclRedOp_t operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::min: return ncclMin;
  }
  return ncclSum;
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::unique_ptr<Transport> host, at::Device device)
      : host_(std::move(host)),
        device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())),
        calls_(static_cast<size_t>(host_->size())) {
    ncclUniqueId id = {};
    if (rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (size() > 1) {
      const auto bytes = at::from_blob(&id, {static_cast<int64_t>(sizeof id)}, at::kByte);
      Call call{.count = bytes.numel(), .collective = Collective::broadcast};
      host_->carry_out(numbered(call), {bytes, {}, {}, {}, /*idle=*/true});
    }
    const c10::cuda::CUDAGuard guard(device_);
    check_nccl(ncclCommInitRank(&comm_, size(), id, rank()), "ncclCommInitRank");
  }

  ~NcclTransport() override { ncclCommDestroy(comm_); }

  const char* name() const override { return "nccl"; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool reaches(at::Device device) const override { return device.is_cpu() || device == device_; }
  const char* way(const Call& call) const override { return call.on_card ? "nccl" : host_->way(call); }
  void abort() override { host_->abort(); }

  void carry_out(const Call& call, const Arguments& arguments) override {
    if (!call.on_card) return host_->carry_out(numbered(call), arguments);
    compare(call);
    const c10::cuda::CUDAStreamGuard guard(stream_);
    if (arguments.ready) arguments.ready->block(device_);
    if (call.count > 0 || call.collective == Collective::all_to_all) give(call, arguments);
    DeviceEvent done;
    done.record(device_);
    done.wait();
  }

  at::Tensor allocate(const Call& call, int64_t bytes, at::Device device) override {
    if (device.is_cpu()) return host_->allocate(numbered(call), bytes, device);
    compare(call);
    return at::zeros({bytes}, at::TensorOptions().device(device).dtype(at::kByte));
  }

  std::unique_ptr<Transport> split(const Call& call, int color) override {
    auto part = host_->split(numbered(call), color);
    return part ? std::make_unique<NcclTransport>(std::move(part), device_) : nullptr;
  }

  std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) override {
    return host_->open_mail(numbered(call), peers);
  }

 private:
  // The host's transport counts its own calls.
  Call numbered(Call call) {
    call.sequence = host_calls_++;
    return call;
  }

  // NCCL would hang, or give wrong data, where ranks call different things.
  void compare(const Call& call) {
    if (size() == 1) return;
    auto* mine = &calls_[static_cast<size_t>(rank())];
    *mine = call;
    constexpr auto bytes = static_cast<int64_t>(sizeof(Call));
    Call gather{.count = bytes, .collective = Collective::all_gather};
    std::strncpy(gather.name, "compare calls", sizeof gather.name - 1);
    host_->carry_out(numbered(gather), {at::from_blob(mine, {bytes}, at::kByte),
                                        at::from_blob(calls_.data(), {bytes * size()}, at::kByte),
                                        {},
                                        {},
                                        /*idle=*/true});
    check_agreement(calls_);
  }

  void give(const Call& call, const Arguments& arguments) {
    auto* data = static_cast<std::byte*>(arguments.tensor.data_ptr());
    const auto element = static_cast<int64_t>(arguments.tensor.element_size());
    const auto count = static_cast<size_t>(call.count);
    const auto begin = [](const Offsets& parts, int r) { return parts[static_cast<size_t>(r)]; };
    const auto length = [&](const Offsets& parts, int r) {
      return static_cast<size_t>(begin(parts, r + 1) - begin(parts, r));
    };
    const auto each_rank = [&](const auto& one) {
      check_nccl(ncclGroupStart(), "ncclGroupStart");
      for (int r = 0; r < size(); ++r) one(r);
      check_nccl(ncclGroupEnd(), "ncclGroupEnd");
    };
    const auto type = type_of(call.dtype);
    const auto op = operation_of(call.op);
    switch (call.collective) {
      case Collective::all_reduce:
        return check_nccl(ncclAllReduce(data, data, count, type, op, comm_, stream_), "ncclAllReduce");
      case Collective::broadcast:
        return check_nccl(ncclBroadcast(data, data, count, type, call.root, comm_, stream_), "ncclBroadcast");
      case Collective::all_gather:
        return check_nccl(ncclAllGather(data, arguments.output.data_ptr(), count, type, comm_, stream_),
                          "ncclAllGather");
      case Collective::reduce:
        return check_nccl(ncclReduce(data, data, count, type, op, call.root, comm_, stream_), "ncclReduce");
      // Parts of any lengths: a reduction, or a broadcast, of each.
      case Collective::reduce_scatter:
        return each_rank([&](int r) {
          auto* part = data + begin(arguments.give, r) * element;
          check_nccl(ncclReduce(part, part, length(arguments.give, r), type, op, r, comm_, stream_), "ncclReduce");
        });
      case Collective::gather_parts:
        return each_rank([&](int r) {
          auto* part = data + begin(arguments.give, r) * element;
          check_nccl(ncclBroadcast(part, part, length(arguments.give, r), type, r, comm_, stream_), "ncclBroadcast");
        });
      case Collective::all_to_all: {
        auto* output = static_cast<std::byte*>(arguments.output.data_ptr());
        return each_rank([&](int r) {
          check_nccl(
              ncclSend(data + begin(arguments.give, r) * element, length(arguments.give, r), type, r, comm_, stream_),
              "ncclSend");
          check_nccl(
              ncclRecv(output + begin(arguments.take, r) * element, length(arguments.take, r), type, r, comm_, stream_),
              "ncclRecv");
        });
      }
      default: return;
    }
  }

  std::unique_ptr<Transport> host_;
  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  ncclComm_t comm_ = nullptr;
  uint64_t host_calls_ = 0;
  std::vector<Call> calls_;
};

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, at::Device device) {
  return std::make_unique<NcclTransport>(std::move(host), device);
}

}  // namespace trireme
