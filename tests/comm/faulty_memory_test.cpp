// What a rank whose memory is faulty, or that is another program, may have written into the memory that ranks share:
// whoever goes by it gets an error that names the rank, and touches nothing beyond. The faulty rank is this test: it
// fills rank 1's lane beforehand and is ahead at every meeting.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/shared_group.h"
#include "trireme/comm/shared_mail.h"
#include "trireme/comm/shared_transport.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr int64_t count = 100'000;  // floats: enough to be reached where they lie

// Rank 0 of two processes, of which the other one is a few fields.
class FaultyPeer : public testing::Test {
 protected:
  FaultyPeer()
      : group_(std::make_shared<SharedGroup>(Segment::anonymous(SharedGroup::bytes_for(2)), 2, /*threads=*/false)) {
    for (int i = 0; i < 2; ++i) new (&group_->lane(i)) Lane;
    auto& peer = group_->lane(1);
    peer.arrived = 1 << 20;
    peer.process = getpid();
    peer.probe = reinterpret_cast<uint64_t>(&word_);
    peer.word = word_;
  }

  Transport& transport() {
    if (!transport_) transport_ = make_shared_transport(group_, 0);
    return *transport_;
  }

  // What rank 0 hears of a call when the peer shows this place, or has its words changed.
  std::string heard(Call call, const Place& place, const Arguments& arguments,
                    const std::function<void(int64_t*)>& words = {}) {
    transport();
    auto& exhibit = group_->lane(1).exhibits[0];
    exhibit.call = call;
    exhibit.place = place;
    if (words) words(exhibit.words);
    return error_of([&] { transport().carry_out(call, arguments); });
  }
  std::string heard_of_sum(const Place& place) {
    const auto tensor = at::ones({count});
    return heard({.count = count, .collective = Collective::all_reduce, .dtype = at::kFloat}, place, {tensor});
  }

  Place good_place() { return {-1, reinterpret_cast<uint64_t>(theirs_.data_ptr()), 4 * count}; }

  const uint64_t word_ = 0x123456789abcdef;
  const at::Tensor theirs_ = at::ones({count});
  std::shared_ptr<SharedGroup> group_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(FaultyPeer, WithNothingWrongIsReached) {
  EXPECT_EQ(heard_of_sum(good_place()), "no error");
  EXPECT_STREQ(transport().way({.collective = Collective::all_reduce}), "through the kernel");
}

TEST_F(FaultyPeer, PlacesThatCannotBeAreNotTouched) {
  auto place = good_place();
  place.bytes = 4 * count - 4;
  EXPECT_THAT(heard_of_sum(place), HasSubstr("rank 1 shows a buffer of 399996 bytes where 400000 are needed"));
  place.bytes = -1;
  EXPECT_THAT(heard_of_sum(place), HasSubstr("rank 1 shows a buffer of -1 bytes"));
  place = good_place();
  place.offset = UINT64_MAX - 100;
  EXPECT_THAT(heard_of_sum(place),
              HasSubstr("rank 1 shows 400000 bytes at 0xffffffffffffff9b, where no memory can be"));
  for (const int64_t segment : {int64_t{0}, int64_t{1}, int64_t{1} << 40, INT64_MIN, int64_t{-2}}) {
    place = good_place();
    place.segment = segment;
    EXPECT_THAT(heard_of_sum(place), HasSubstr("rank 1 shows")) << segment;
  }
}

TEST_F(FaultyPeer, PlacesBeyondAnAllocationAreNotTouched) {
  // Both allocate: the peer's part is a segment that this test has made for it.
  auto theirs = Segment::create(4 * count);
  transport();
  group_->lane(1).given = 4 * count;
  for (auto& exhibit : group_->lane(1).exhibits) {
    exhibit.call = {.collective = Collective::allocate};
    std::memcpy(exhibit.words, &theirs.name(), sizeof(SegmentName));
  }
  const auto mine = transport().allocate({.collective = Collective::allocate}, 4 * count, at::kCPU).view(at::kFloat);
  const auto heard_with = [&](int64_t segment, uint64_t offset) {
    return heard({.count = count, .collective = Collective::all_reduce, .dtype = at::kFloat},
                 {segment, offset, 4 * count}, {mine});
  };
  EXPECT_EQ(heard_with(1, 0), "no error");
  EXPECT_THAT(heard_with(1, 4), HasSubstr("rank 1 shows 400000 bytes at 4 of its allocation 1, which has 400000"));
  EXPECT_THAT(heard_with(1, UINT64_MAX), HasSubstr("rank 1 shows 400000 bytes at"));
  EXPECT_THAT(heard_with(2, 0), HasSubstr("rank 1 shows memory of its allocation 2, but there are 1"));
}

TEST_F(FaultyPeer, AnAllocationOfAnotherSizeIsAnError) {
  auto theirs = Segment::create(4096);
  transport();
  group_->lane(1).given = 8192;
  group_->lane(1).exhibits[0].call = {.collective = Collective::allocate};
  std::memcpy(group_->lane(1).exhibits[0].words, &theirs.name(), sizeof(SegmentName));
  EXPECT_THAT(error_of([&] { transport().allocate({.collective = Collective::allocate}, 100, at::kCPU); }),
              AllOf(HasSubstr("rank 0 could not share 100 bytes"), HasSubstr("has 4096 bytes instead of 8192")));
}

TEST_F(FaultyPeer, PartsThatCannotBeAreNotTouched) {
  const auto tensor = at::ones({count}), output = at::empty({count});
  const Offsets parts{0, count / 2, count};
  const Call call{.count = count, .collective = Collective::all_to_all, .dtype = at::kFloat};
  const auto heard_of = [&](std::vector<int64_t> give, std::vector<int64_t> take) {
    return heard(call, good_place(), {tensor, output, parts, parts}, [&](int64_t* words) {
      for (auto* list : {&give, &take}) {
        for (const int64_t offset : *list) *words++ = 4 * offset;
      }
    });
  };
  EXPECT_EQ(heard_of({0, count / 2, count}, {0, count / 2, count}), "no error");
  for (const auto& wrong : {std::vector<int64_t>{-1, count / 2 - 1, count}, {count, count / 2, 0}, {0, -5, count}}) {
    EXPECT_THAT(heard_of(wrong, {0, count / 2, count}), HasSubstr("rank 1 shows parts of an all_to_all"));
    EXPECT_THAT(heard_of({0, count / 2, count}, wrong), HasSubstr("rank 1 shows parts of an all_to_all"));
  }
  EXPECT_THAT(heard_of({0, count / 2, int64_t{1} << 58}, {0, count / 2, count}), HasSubstr("rank 1"));
  EXPECT_THAT(heard_of({count, count + count / 2, 2 * count}, {0, count / 2, count}),
              HasSubstr("rank 1 shows a buffer of 400000 bytes where 800000 are needed"));
}

TEST_F(FaultyPeer, AnotherProcessNumberIsFoundOut) {
  for (const int64_t number : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    group_->lane(1).process = number;
    EXPECT_THAT(error_of([&] { make_shared_transport(group_, 0); }),
                HasSubstr(fmt::format("rank 1 shows {}, which is no process number", number)));
  }
  // The number of a process, but not of the one that has written the word: it is not read from again.
  group_->lane(1).process = getppid();
  group_->lane(1).given = 0;
  EXPECT_THAT(error_of([&] {
                make_shared_transport(group_, 0);
                group_->check_process(1, getpid());
              }),
              HasSubstr(fmt::format("rank 1 shows memory of process {}, but is process {}", getpid(), getppid())));
}

TEST_F(FaultyPeer, WhereItsWordIsNotFoundNothingIsRead) {
  group_->lane(1).word = word_ + 1;
  transport();
  const auto tensor = at::ones({count});
  auto& exhibit = group_->lane(1).exhibits[0];
  exhibit.call = {.count = count, .collective = Collective::all_reduce, .dtype = at::kFloat};
  exhibit.place = good_place();
  EXPECT_EQ(error_of([&] { transport().carry_out(exhibit.call, {tensor}); }), "no error");
  EXPECT_STREQ(transport().way(exhibit.call), "staged");
}

TEST(FaultyCall, ANameWithoutAnEndIsCut) {
  Call call;
  std::memset(call.name, 'n', sizeof call.name);
  EXPECT_EQ(call.describe(), "operation 0: barrier() \"" + std::string(sizeof call.name, 'n') + "\"");
}

// Both ends of a ring between two ranks that are threads; its memory can be had by its name there.
class FaultyRing : public testing::Test, public MailHandler {
 protected:
  static constexpr int64_t slot_bytes = 4096;

  FaultyRing() : group_(make_thread_group(2)) {
    MailPeers to, from;
    to.to = {0};
    from.from = {1};
    to.message_bytes = from.message_bytes = slot_bytes;
    receiver_ = std::make_unique<SharedMail>(group_, 0, 0, from);
    sender_ = std::make_unique<SharedMail>(group_, 1, 0, to);
    sender_->connect({});
    memory_ = group_->common<Segment>("mail0.1-0", [] { return std::make_shared<Segment>(); });
  }

  void* place_for(int, const MessageHeader& header) override {
    place_.assign(static_cast<size_t>(header.bytes), std::byte{0});
    return place_.data();
  }
  void arrived(int, const MessageHeader&) override { ++arrived_; }
  void arrived(int, const MessageHeader&, PendingTensor) override { ++arrived_; }

  void send(int64_t bytes) {
    const auto tensor = at::arange(bytes, at::kLong).to(at::kByte);
    MessageHeader header;
    header.tag.microbatch = mark;
    header.bytes = bytes;
    header.dtype = at::kByte;
    header.dims = 1;
    header.sizes[0] = bytes;
    sender_->send(0, header, tensor, {});
  }
  std::string heard() {
    return error_of([&] { receiver_->poll(*this); });
  }

  // The first message's header as it lies in its slot; behind it: where in the message, how many bytes, on a card.
  std::byte* header() {
    for (size_t at = 0; at + sizeof(MessageHeader) < memory_->bytes(); at += 8) {
      MessageHeader found;
      std::memcpy(static_cast<void*>(&found), memory_->data() + at, sizeof found);
      if (found.tag.microbatch == mark && found.dtype == at::kByte) return memory_->data() + at;
    }
    fail("there is no message in the ring");
  }
  template <class Number>
  void write(std::byte* place, Number number) {
    std::memcpy(place, &number, sizeof number);
  }
  std::byte* offset() { return header() + sizeof(MessageHeader); }
  std::byte* bytes() { return offset() + sizeof(int64_t); }
  std::byte* on_device() { return bytes() + sizeof(int64_t); }
  std::byte* put() { return memory_->data(); }
  std::byte* taken() { return memory_->data() + 128; }

  static constexpr int32_t mark = 77'777'777;
  std::shared_ptr<SharedGroup> group_;
  std::unique_ptr<SharedMail> receiver_, sender_;
  std::shared_ptr<Segment> memory_;
  std::vector<std::byte> place_;
  int arrived_ = 0;
};

TEST_F(FaultyRing, WithNothingWrongMessagesArrive) {
  send(1000);
  send(3 * slot_bytes + 5);  // in pieces
  send(0);
  EXPECT_EQ(heard(), "no error");
  sender_->poll(*this);
  EXPECT_EQ(heard(), "no error");
  sender_->poll(*this);
  EXPECT_EQ(heard(), "no error");
  EXPECT_EQ(arrived_, 3);
}

TEST_F(FaultyRing, PiecesThatCannotBeAreNotCopied) {
  const auto refused = AllOf(HasSubstr("the ring of messages from rank 1 holds"), HasSubstr("which cannot be"));
  for (const int64_t wrong : {int64_t{-1}, int64_t{0}, int64_t{1001}, slot_bytes + 1, INT64_MAX, INT64_MIN}) {
    send(1000);
    auto* where = bytes();
    write(where, wrong);
    EXPECT_THAT(heard(), refused) << wrong;
    write(where, int64_t{1000});
    EXPECT_EQ(heard(), "no error");
    std::memset(header(), 0, sizeof(MessageHeader));  // it has been read: the next one lies in another slot
  }
  for (const int64_t wrong : {int64_t{-8}, int64_t{8}, INT64_MAX, INT64_MIN}) {
    send(1000);
    auto* where = offset();
    write(where, wrong);
    EXPECT_THAT(heard(), refused) << wrong;
    write(where, int64_t{0});
    EXPECT_EQ(heard(), "no error");
    std::memset(header(), 0, sizeof(MessageHeader));
  }
  send(1000);
  write(on_device(), char{1});
  EXPECT_THAT(heard(), refused) << "there is no card";
  EXPECT_EQ(arrived_, 10);
}

TEST_F(FaultyRing, ALengthThatChangesOnTheWayIsFoundOut) {
  send(6 * slot_bytes);
  EXPECT_EQ(heard(), "no error");
  sender_->poll(*this);  // the fifth piece lies where the first one was
  MessageHeader next;
  std::memcpy(static_cast<void*>(&next), header(), sizeof next);
  next.bytes = 600 * slot_bytes;
  std::memcpy(header(), static_cast<const void*>(&next), sizeof next);
  EXPECT_THAT(heard(), HasSubstr("the ring of messages from rank 1 holds"));
}

TEST_F(FaultyRing, CountsThatCannotBeAreFoundOut) {
  write(put(), uint32_t{1000});
  EXPECT_THAT(heard(), HasSubstr("the ring of messages from rank 1 has 1000 slots filled and 0 emptied, of 4"));
  write(put(), uint32_t{0});
  write(taken(), uint32_t{1000});
  EXPECT_THAT(error_of([&] { send(10); }),
              HasSubstr("the ring of messages to rank 0 has 0 slots filled and 1000 emptied, of 4"));
}

TEST_F(FaultyRing, TheLengthOfSlotsIsNotReadAgain) {
  // It stands behind the counts; whatever comes there later, both go by what it was.
  for (std::byte* field = taken() + 8; field < taken() + 24; field += 8) write(field, int64_t{1} << 40);
  send(2 * slot_bytes);
  EXPECT_EQ(heard(), "no error");
  EXPECT_EQ(arrived_, 1);
  EXPECT_EQ(place_[5000], static_cast<std::byte>(5000 % 256));
}

TEST_F(FaultyRing, ARingOfAnotherLengthIsNotOpened) {
  auto wrong = Segment::create(10'000);
  auto group = std::make_shared<SharedGroup>(Segment::anonymous(SharedGroup::bytes_for(2)), 2, /*threads=*/false);
  MailPeers to;
  to.to = {0};
  SharedMail mail(group, 1, 0, to);
  EXPECT_THAT(error_of([&] { mail.connect([&](int) { return wrong.name(); }); }),
              HasSubstr("the ring of messages to rank 0 has slots of 0 bytes and 10000 in all, which cannot be"));
  EXPECT_THAT(error_of([&] { mail.connect([&](int) { return SegmentName(); }); }),
              HasSubstr("rank 0 expects no messages from rank 1"));
}

}  // namespace
}  // namespace trireme
