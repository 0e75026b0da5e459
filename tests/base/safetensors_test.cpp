#include "trireme/base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    auto name = process_folder() + "trireme-safetensors-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::byte> file_bytes(const fs::path& path) { return copy_of(MappedFile(path).bytes()); }

template <class Number>
std::vector<Number> numbers_in(std::span<const std::byte> bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// A file by hand: the header's length, the header, and so many zero bytes of data.
std::vector<std::byte> file_with(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::vector<std::byte> file(sizeof length + header.size() + data_bytes);
  std::memcpy(file.data(), &length, sizeof length);
  std::copy(bytes_of(header).begin(), bytes_of(header).end(), file.begin() + sizeof length);
  return file;
}

// Why the reader refuses these bytes.
std::string refusal(std::span<const std::byte> file) {
  try {
    parse_safetensors(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::refused);
    return error.what();
  }
  return "read without complaint";
}
std::string refusal(std::string_view header, size_t data_bytes) { return refusal(file_with(header, data_bytes)); }

// The error of a writer misused.
template <class Action>
std::string failure(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
const std::vector<int16_t> counts = {-1, 7, 9};

// One of everything: several dtypes, a tensor without bytes, a scalar, names that need escapes, metadata.
SafetensorsWriter::Written write_sample(const fs::path& path, RateLimit* limit = nullptr) {
  const double scale = 0.5;
  SafetensorsWriter writer(path,
                           {{"z.weight", DType::f32, {2, 3}},
                            {"empty", DType::bf16, {0, 4}},
                            {"quote \" and é", DType::i16, {3}},
                            {"a.scale", DType::f64, {}}},
                           {{"step", "12"}, {"format", "pt"}}, limit);
  writer.append(std::as_bytes(std::span(weights)).first(5));  // pieces need not be whole numbers
  writer.append(std::as_bytes(std::span(weights)).subspan(5));
  writer.append({});
  writer.append(std::as_bytes(std::span(counts)));
  writer.append(std::as_bytes(std::span(&scale, 1)));
  return writer.finish();
}

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::boolean), "BOOL");
  EXPECT_EQ(dtype_bytes(DType::bf16), 2U);
  for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(std::string(dtype_name(dtype))), dtype);
  }
  EXPECT_EQ(tensor_bytes(DType::f32, {}), 4U);
  EXPECT_EQ(tensor_bytes(DType::f16, std::vector<int64_t>{3, 5}), 30U);
}

TEST_F(SafetensorsTest, RoundTrip) {
  const auto path = folder_ / "model.safetensors";
  const auto written = write_sample(path);
  EXPECT_EQ(written.bytes, fs::file_size(path));
  EXPECT_EQ(written.checksum, checksum(file_bytes(path)));

  const Safetensors file(path);
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("format", "pt"), std::pair("step", "12")));
  EXPECT_THAT(
      file.tensors(),
      ElementsAre(TensorInfo{"z.weight", DType::f32, {2, 3}, 0, 24}, TensorInfo{"empty", DType::bf16, {0, 4}, 24, 0},
                  TensorInfo{"quote \" and é", DType::i16, {3}, 24, 6}, TensorInfo{"a.scale", DType::f64, {}, 30, 8}));
  EXPECT_EQ(numbers_in<float>(file.bytes(*file.find("z.weight"))), weights);
  EXPECT_EQ(numbers_in<int16_t>(file.bytes(*file.find("quote \" and é"))), counts);
  EXPECT_THAT(numbers_in<double>(file.bytes(*file.find("a.scale"))), ElementsAre(0.5));
  EXPECT_TRUE(file.bytes(*file.find("empty")).empty());
  EXPECT_EQ(file.find("a"), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes(file.tensors()[0]).data()) % 64, 0U);
}

TEST_F(SafetensorsTest, SameInputSameBytes) {
  RateLimit limit(1'000'000'000);
  const auto first = write_sample(folder_ / "first");
  const auto second = write_sample(folder_ / "second", &limit);
  EXPECT_EQ(file_bytes(folder_ / "first"), file_bytes(folder_ / "second"));
  EXPECT_EQ(first.checksum, second.checksum);

  // To the letter, so that a new version cannot change the bytes unnoticed.
  SafetensorsWriter writer(folder_ / "third", {{"b", DType::u8, {1}}, {"a", DType::i32, {0}}}, {{"k", "v"}});
  writer.append(bytes_of("x"));
  writer.finish();
  std::string expected = R"({"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("a":{"dtype":"I32","shape":[0],"data_offsets":[1,1]}})";
  expected.resize(184, ' ');  // 8 + 184 is a multiple of 64
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(file_bytes(folder_ / "third").data()) + 8, 185),
            expected + "x");
}

TEST_F(SafetensorsTest, LargeTensorSpansChunks) {
  std::vector<uint32_t> large(1'000'000);
  std::iota(large.begin(), large.end(), 0U);
  SafetensorsWriter writer(folder_ / "large", {{"large", DType::u32, {1000, 1000}}});
  writer.append(std::as_bytes(std::span(large)));
  const auto written = writer.finish();
  EXPECT_EQ(written.checksum, checksum(file_bytes(folder_ / "large")));
  const Safetensors file(folder_ / "large");
  EXPECT_EQ(numbers_in<uint32_t>(file.bytes(file.tensors().at(0))), large);
}

TEST_F(SafetensorsTest, NoTensorsAtAll) {
  EXPECT_EQ(SafetensorsWriter(folder_ / "none", {}).finish().bytes, 64U);
  EXPECT_TRUE(Safetensors(folder_ / "none").tensors().empty());
}

TEST_F(SafetensorsTest, WriterFindsWrongSizes) {
  const auto path = folder_ / "wrong";
  const std::vector<TensorInfo> tensors = {{"a", DType::u8, {2}}, {"b", DType::u8, {2}}};
  EXPECT_THAT(failure([&] { SafetensorsWriter(path, tensors).append(bytes_of("123")); }),
              AllOf(HasSubstr(path.string()), HasSubstr("tensor 'a' takes 2 more bytes, not 3")));
  EXPECT_THAT(failure([&] {
                SafetensorsWriter writer(path, tensors);
                writer.append(bytes_of("12"));
                writer.append(bytes_of("3"));
                writer.finish();
              }),
              HasSubstr("tensor 'b' has 1 of its 2 bytes"));
  EXPECT_THAT(failure([&] { SafetensorsWriter(path, {}).append(bytes_of("123")); }),
              HasSubstr("3 bytes more than its tensors take"));
}

TEST_F(SafetensorsTest, WriterRefusesWhatReadersWould) {
  const auto writing = [&](std::vector<TensorInfo> tensors) {
    return failure([&] { SafetensorsWriter(folder_ / "bad", tensors); });
  };
  EXPECT_THAT(writing({{"a"}, {"a"}}), HasSubstr("two tensors are named 'a'"));
  EXPECT_THAT(writing({{"__metadata__"}}), HasSubstr("must not be named"));
  EXPECT_THAT(writing({{"a", DType::f32, {-1}}}), HasSubstr("negative"));
  EXPECT_THAT(writing({{"\xff"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(writing({{"a", DType::u8, {INT64_MAX}}, {"b", DType::u8, {INT64_MAX}}, {"c", DType::u8, {2}}}),
              HasSubstr("larger than any file"));
}

TEST_F(SafetensorsTest, FullDiskSaysSo) {
  EXPECT_THAT(failure([] { SafetensorsWriter("/dev/full", {}); }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("disk full")));
}

TEST_F(SafetensorsTest, ErrorsNameTheFile) {
  const auto path = folder_ / "cut";
  write_sample(path);
  fs::resize_file(path, fs::file_size(path) - 1);
  const auto reason = ": tensor 'a.scale': it ends at byte 38 of the data, but the file has only 37";
  EXPECT_THAT(failure([&] { Safetensors{path}; }), StartsWith(path.string() + reason));
  EXPECT_THAT(failure([&] { Safetensors{folder_ / "missing"}; }), HasSubstr("no such file"));
}

TEST(SafetensorsRefusalTest, BeforeTheHeader) {
  EXPECT_THAT(refusal(bytes_of("1234567")), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(refusal(bytes_of("PK archives claim much")), HasSubstr("not a safetensors file: it claims a header of"));
  auto cut = file_with("{}      ", 0);
  cut.pop_back();
  EXPECT_THAT(refusal(cut), HasSubstr("should have 8 bytes, but only 7 follow"));
  EXPECT_THAT(refusal("", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("not a JSON object"));
}

TEST(SafetensorsRefusalTest, InvalidJson) {
  EXPECT_THAT(refusal("{\"a\":}", 0), HasSubstr("not valid JSON at byte 14"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"\xff\":1}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\":1e999}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("nested too deeply"));
}

TEST(SafetensorsRefusalTest, DuplicateKeys) {
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refusal("{\"a\":" + tensor + ",\"a\":" + tensor + "}", 1), HasSubstr("has 'a' twice"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","dtype":"I8"}})", 1), HasSubstr("has 'dtype' twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0), HasSubstr("has 'k' twice"));
}

TEST(SafetensorsRefusalTest, Metadata) {
  EXPECT_THAT(refusal(R"({"__metadata__":[]})", 0), HasSubstr("__metadata__ is not an object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":1}})", 0), HasSubstr("not text: 'k'"));
}

TEST(SafetensorsRefusalTest, TensorEntries) {
  EXPECT_THAT(refusal(R"({"a":1})", 0), AllOf(StartsWith("tensor 'a': "), HasSubstr("dtype is missing")));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8"}})", 0), HasSubstr("shape is missing"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[]}})", 0), HasSubstr("data_offsets is missing"));

  const auto with = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return refusal(fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), 8);
  };
  EXPECT_EQ(with("F32", "[2]", "[0,8]"), "read without complaint");
  EXPECT_THAT(with("F33", "[2]", "[0,8]"), HasSubstr("unknown dtype 'F33'"));
  EXPECT_THAT(with("F32", "[-2]", "[0,8]"), HasSubstr("shape [-2] has a negative size"));
  EXPECT_THAT(with("F32", "[2.0]", "[0,8]"), HasSubstr("not a whole number"));
  EXPECT_THAT(with("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("beyond 63 bits"));
  EXPECT_THAT(with("F32", "[4611686018427387904,2]", "[0,8]"), HasSubstr("do not fit into 64 bits"));
  EXPECT_THAT(with("F32", "[2]", "[0]"), HasSubstr("not two whole numbers"));
  EXPECT_THAT(with("F32", "[2]", "[-8,0]"), HasSubstr("not two whole numbers"));
  EXPECT_THAT(with("F32", "[2]", "[8,0]"), HasSubstr("run backwards"));
  EXPECT_THAT(with("F32", "[4]", "[0,16]"), HasSubstr("ends at byte 16 of the data, but the file has only 8"));
  EXPECT_THAT(with("F32", "[1]", "[0,8]"), HasSubstr("shape [1] of F32 takes 4 bytes, but its data_offsets span 8"));
  EXPECT_THAT(with("F32", "[1]", "[0,4]"), HasSubstr("4 bytes after the last tensor belong to no tensor"));
  EXPECT_THAT(with("F32", "[1]", "[4,8]"), HasSubstr("bytes 0 to 4 of the data, before tensor 'a'"));
}

TEST(SafetensorsRefusalTest, OverlapsAndHoles) {
  const auto with = [](int begin) {
    return refusal(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                               R"("b":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})",
                               begin, begin + 4),
                   10);
  };
  EXPECT_THAT(with(3), HasSubstr("tensors 'a' and 'b' overlap"));
  EXPECT_THAT(with(0), HasSubstr("tensors 'a' and 'b' overlap"));
  EXPECT_THAT(with(6), HasSubstr("bytes 4 to 6 of the data, before tensor 'b', belong to no tensor"));
  EXPECT_THAT(with(4), HasSubstr("2 bytes after the last tensor"));
}

// A valid file with a few bytes changed, some of them to what headers are made of, and sometimes the end cut off.
std::vector<std::byte> damaged(std::vector<std::byte> file, Key key) {
  constexpr std::string_view alphabet = "0123456789{}[]\",:-.eFUIB";
  uint64_t draw = 0;
  const auto below = [&](uint64_t bound) { return bits64(key, draw++) % bound; };
  for (uint64_t change = 0, changes = 1 + below(3); change < changes; ++change) {
    auto& victim = file[below(8) == 0 ? below(8) : below(file.size())];  // the length is small but vital
    const auto flipped = victim ^ static_cast<std::byte>(1U << below(8));
    victim = below(2) == 0 ? flipped : static_cast<std::byte>(alphabet[below(alphabet.size())]);
  }
  if (below(4) == 0) file.resize(below(file.size()));
  file.shrink_to_fit();  // so that AddressSanitizer sees a read past the end
  return file;
}

TEST_F(SafetensorsTest, DamagedFilesAreReadOrRefused) {
  write_sample(folder_ / "whole");
  const auto whole = file_bytes(folder_ / "whole");
  int read = 0;
  int refused = 0;
  for (uint64_t round = 0; round < 20'000; ++round) {
    const auto file = damaged(whole, Key{}.with("safetensors damage").with(round));
    try {
      const auto layout = parse_safetensors(file);
      uint64_t bytes = layout.data_start;
      for (const auto& tensor : layout.tensors) bytes += tensor.bytes;
      ASSERT_EQ(bytes, file.size()) << "round " << round;
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  // Damage to the data, a name or the padding goes unnoticed here; the checksum is there for that.
  EXPECT_GT(read, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace trireme
