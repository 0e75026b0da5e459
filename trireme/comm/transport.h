// How bytes get from rank to rank. A transport carries out one call at a time on whichever thread asks it to; the
// Communicator above it keeps the order and the threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>

#include "trireme/comm/call.h"
#include "trireme/comm/mail.h"
#include "trireme/device/device.h"

namespace trireme {

// What a collective works on: contiguous tensors of the host, or of a card that the transport reaches.
struct Arguments {
  at::Tensor tensor;   // in place, or what this rank gives
  at::Tensor output;   // all_gather: size() × count elements; all_to_all: what it takes
  Offsets give, take;  // the parts of `tensor`, and of `output`, where the collective has any
  bool idle = false;   // the thread that carries it out has nothing else to do: it may look for its peers, not sleep
  const DeviceEvent* ready = nullptr;  // on a card: the work that makes the tensor
};

// What a benchmark or a test may leave out, to see what it costs or that the other way works too.
struct TransportTrial {
  bool checking = true;  // ranks compare their calls
  bool reading = true;   // ranks of a host read each other's memory through the kernel, where it allows that
  bool cards = true;     // tensors of cards stay on them, where ranks can reach each other's
};

class Transport;

// A transport with the place of its next call in the order of calls: for what is made of several collectives.
struct Courier {
  Transport& transport;
  uint64_t& calls;
  bool idle = false;

  int rank() const;
  int size() const;
  void all_reduce(const at::Tensor& tensor) const;  // the sum
  void all_to_all(const at::Tensor& given, const Offsets& give, const at::Tensor& taken, const Offsets& take) const;
  void all_gather(const at::Tensor& tensor, const at::Tensor& output) const;
  void gather_parts(const at::Tensor& tensor, const Offsets& parts) const;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void carry_out(const Call& call, const Arguments& arguments) = 0;

  // A sum over all ranks of which somebody else does the part that is costly: `across` sums a tensor over the ranks of
  // a courier. Those are all ranks, or, where hosts have several, the ranks that hold the same share of what each host
  // has summed for itself.
  using SumAcross = std::function<void(const Courier& courier, const at::Tensor& share)>;
  virtual void sum_across(uint64_t& calls, const Arguments& arguments, const SumAcross& across) {
    across({*this, calls, arguments.idle}, arguments.tensor);
  }
  // Which elements of so many `across` gets on this rank: [first, second). None where it is not called.
  virtual std::pair<int64_t, int64_t> share_across(int64_t count, int64_t /*element_bytes*/) const {
    return {0, count};
  }

  // Whether tensors of this device can be given as they are; the same on all ranks. Others are copied to the host.
  virtual bool reaches(at::Device device) const { return device.is_cpu(); }

  // Zeroed memory of a device that peers can reach, where that saves a copy. A collective like the others, but each
  // rank asks for as much as it needs.
  virtual at::Tensor allocate(const Call& call, int64_t bytes, at::Device device) = 0;

  // The ranks of one color as a transport of their own; null for a negative color. Collective.
  virtual std::unique_ptr<Transport> split(const Call& call, int color) = 0;

  // Ways for messages from and to the given peers. Collective.
  virtual std::unique_ptr<Mail> open_mail(const Call& call, const MailPeers& peers) = 0;

  // By which way the last call went, where there are several; for the trace.
  virtual const char* way(const Call&) const { return ""; }

  virtual void try_with(const TransportTrial&) {}

  // Makes every rank that waits for this one throw. For ranks that are threads; processes end by the watchdog.
  virtual void abort() {}
};

}  // namespace trireme
