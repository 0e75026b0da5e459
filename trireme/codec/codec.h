// A codec says what a tensor holds in fewer bytes: exactly, or as nearly as it promises. The same interface serves
// wherever bytes are costly: gradients on the wire, activations kept for later, checkpoints.
//
// Error feedback is part of it: with a residual e, what is encoded is v = values + e, and e becomes v − decoded(v), so
// that what one message leaves out is said by the next ones. The sum of all that was decoded and of the last residual
// is the sum of all values. What is not finite is not said again: e is 0 there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/spec/config.h"

namespace trireme {

// A matrix that lies row by row in a flat tensor.
struct MatrixPlace {
  int64_t offset = 0, rows = 0, columns = 0;
};

class MessageSum;
class Sealed;

// A codec is a value that never changes: threads may share one, and what they need besides the tensors (scratch memory)
// each thread keeps for its next message.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string name() const = 0;  // "int8, blocks of 256"
  // Bytes that the message of so many values takes at most.
  int64_t most_bytes(int64_t count) const;
  // Whether codecs of this kind work on tensors of a card where they lie; others are copied to the host by the caller.
  virtual bool on_cards() const { return false; }

  // Writes what `values` (fp32, contiguous, flat) say into `message` (bytes, at least most_bytes) and returns its
  // length. `residual` is undefined, or as long as the values and changed as said above. `noise` is what random
  // rounding is a function of, besides the element's place. On a card the work is given to the current stream, and the
  // length is always the same.
  int64_t encode(const at::Tensor& values, const at::Tensor& residual, Key noise, const at::Tensor& message) const;
  // Puts what a message says into `values`, or adds it to them. Refuses, with an Error, what is not a whole message of
  // this codec for so many values; what the values are then is not said. On a card only the length is looked at.
  void decode(const at::Tensor& message, const at::Tensor& values) const { take(message, values, false); }
  void add(const at::Tensor& message, const at::Tensor& values) const { take(message, values, true); }

  // What a sum of decoded messages is said in: codecs that keep few elements of a message keep all of a sum's.
  virtual const Codec& of_sums() const { return *this; }

 protected:
  // `setting` is what both ends must have in common besides the kind.
  explicit Codec(CodecKind kind, uint32_t setting = 0) : kind_(kind), setting_(setting) {}

 private:
  // What each kind does. `write` has most_payload bytes to write into and returns how many it took; it may add what it
  // has written to the checksum while that is near. `read` gets a payload that may be anything, if its checksum was
  // forged. Codecs of fixed length read what was not checked yet, as all bytes mean something to them.
  virtual int64_t most_payload(int64_t count) const = 0;
  virtual int64_t write(const at::Tensor& values, const at::Tensor& residual, Key noise, uint8_t* payload,
                        MessageSum& sum) const = 0;
  virtual void read(std::span<const uint8_t> payload, const at::Tensor& values, bool adding) const = 0;
  virtual void read_sealed(Sealed& message, const at::Tensor& values, bool adding) const;
  // The same on a card, where there is neither header nor checksum.
  virtual int64_t write_on_card(const at::Tensor& values, const at::Tensor& residual, Key noise,
                                uint8_t* message) const;
  virtual void read_on_card(std::span<const uint8_t> message, const at::Tensor& values, bool adding) const;

  void take(const at::Tensor& message, const at::Tensor& values, bool adding) const;
  void check_values(const at::Tensor& values, const char* what) const;

  const CodecKind kind_;
  const uint32_t setting_;
};

// `matrices` matter to low_rank: where they lie in what is encoded; the rest travels as it is.
std::unique_ptr<Codec> make_codec(const CodecConfig& config, const std::vector<MatrixPlace>& matrices = {});

}  // namespace trireme
